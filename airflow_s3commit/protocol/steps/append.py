"""Create the next entry of a log, by a process that has read all entries before it.

The newest entry gets first what follows from it: its receipt, and its version if the table is published. So
only the newest entry of a log may lack them.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from airflow_s3commit.exceptions import Unavailable
from airflow_s3commit.protocol.metadata.context import JobContext, create_record
from airflow_s3commit.protocol.model.codec import PROSE
from airflow_s3commit.protocol.model.job import JobOptions, JobRecord, Position
from airflow_s3commit.protocol.model.layout import entry_key
from airflow_s3commit.protocol.model.table import Commit, Entry
from airflow_s3commit.protocol.steps.log import Log, Read
from airflow_s3commit.protocol.steps.publish import publish_if_missing, publishable

#: Tries to create an entry. Each that fails means that another job's entry came first.
TRIES = 100


def append(context: JobContext, log: Log, make: Callable[[Position], Entry]) -> Entry | None:
    """Try to create the entry after the head of a log. Repeatable.

    Before: the log is read.

    Returns:
        The entry; or None if another one has its number: that is read now. Decide anew.

    Raises:
        OutcomeUnknown: The response was lost, and reading back did not settle it.
        InvalidRecord: The entry that is there is damaged.
        InvalidOption: The table is or would be published, and cannot be with this entry.
    """
    log.write_receipt()
    if (newest := log.read_newest()) is not None and newest.published:
        publish_if_missing(context, newest)
    entry = carried(context, log, make(log.head))
    key = entry_key(context.layout.destination, entry.number)
    stored = create_record(context.store, context.bucket, key, entry)
    log.take(Read(stored.record, stored.sha256))
    return stored.record if stored.record.nonce == entry.nonce else None


def carried(context: JobContext, log: Log, entry: Entry) -> Entry:
    """Return the entry after the head of a log with what every entry has since an earlier one has it.

    Raises:
        InvalidOption: The table is or would be published, and cannot be with this entry.
    """
    if (before := log.read_newest()) is not None:
        published = before.published or entry.published
        entry = replace(entry, marks=before.marks or entry.marks, published=published)
    if entry.published and entry.commit is not None and log.publishable_at != log.head.number:
        entry = publishable(context, log, entry)
        log.publishable_at = log.head.number if entry.published else -1
    return entry


def end_job(context: JobContext, log: Log, make: Callable[[Position], Entry], *, otherwise: str) -> Entry:
    """Create the entry that ends a job, and return it, or the one that ended the job before.

    Before: the log is read to its end. Repeatable.

    Args:
        make: Returns the entry that follows a position. It is called anew for each try, because what an entry
            says may depend on those before it.
        otherwise: The state of the job and the next action, for the error.

    Raises:
        OutcomeUnknown: A response was lost, and reading back did not settle it.
        Unavailable: Other jobs' entries came first a hundred times.
        InvalidOption: The table is or would be published, and cannot be with this entry.
    """
    for _ in range(TRIES):
        if log.end is not None:
            return log.end
        append(context, log, make)
        if log.end is None:
            log.read()
    if log.end is not None:
        return log.end
    raise Unavailable(f"{context.name}: entries of other jobs came first {TRIES} times. {otherwise}")


def ending(
    context: JobContext,
    head: Position,
    job: JobRecord | None,
    *,
    commit: Commit | None = None,
    why: str = "",
    options: JobOptions | None = None,
) -> Entry:
    """Return the entry after a position that ends the job: a commit, or without one ``abandon``.

    Args:
        job: The job's record; None if there is none, or it is damaged.
        options: The options of a commit, which may turn on what every later entry has too: markers of
            partitions, and publication.
    """
    number = head.number + 1
    return Entry(
        destination=context.layout.destination.uri,
        number=number,
        kind="abandon" if commit is None else "commit",
        prev=head.sha256,
        since=context.now_ms(),
        job_id=context.job_id,
        staging=context.layout.staging.uri,
        context=job.context if job is not None else {},
        commit=commit,
        why=why[:PROSE],
        marks=options is not None and options.partition_success,
        published=number if options is not None and options.publish else 0,
        nonce=context.new_id(),
    )

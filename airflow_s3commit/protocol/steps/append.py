"""Decide what a commit takes from the table, and create the next entry of a log: at its head, at each try.

Before a new entry, the newest one gets what follows from it: its receipt, and its version if the table is
published. So only the newest entry of a log may lack them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from airflow_s3commit.exceptions import (
    AccessDenied,
    DestinationNotEmpty,
    InvalidDestination,
    NoSuchKey,
    Unavailable,
)
from airflow_s3commit.protocol.metadata.context import JobContext, create_record
from airflow_s3commit.protocol.model.codec import PROSE
from airflow_s3commit.protocol.model.destination import Destination, directories_above, join_uri
from airflow_s3commit.protocol.model.job import JobOptions, JobRecord, Position, Removal
from airflow_s3commit.protocol.model.layout import OPEN_JOBS, entry_key, owner_of, partition_of
from airflow_s3commit.protocol.model.sealed_job import Counts
from airflow_s3commit.protocol.model.table import Commit, Entry, Table, UnownedObject
from airflow_s3commit.protocol.steps.files import unowned_objects
from airflow_s3commit.protocol.steps.fold import read_table
from airflow_s3commit.protocol.steps.log import Log, Read, write_receipt
from airflow_s3commit.protocol.steps.publish import publish_if_missing, publishable
from airflow_s3commit.store.base import Head, ObjectInfo
from airflow_s3commit.store.execute import outcomes


@dataclass(frozen=True)
class Taken:
    """What a commit takes from the table, as of one entry of the log.

    Attributes:
        takes: ``nothing``, the files of its ``partitions``, or ``everything``.
        pieces: The commits whose files leave, by partition.
        unowned: Objects of other programs that leave with them.
        replaced: The totals of both; their rows are unknown.
    """

    takes: Removal
    pieces: dict[str, list[int]]
    unowned: list[UnownedObject]
    replaced: Counts

    def losing(self, home: Destination) -> set[str]:
        """Return the partitions that lose files."""
        others = (partition_of(home.relative(one.key) or "") for one in self.unowned)
        return {*self.pieces, *others}


#: What an append takes.
NOTHING = Taken("nothing", {}, [], Counts())


def decide(
    context: JobContext,
    options: JobOptions,
    partitions: Collection[str],
    table: Table,
    own: Container[str] = (),
) -> Taken:
    """Return what a commit that does not append takes from a table, or refuse the commit.

    The options are as sealed, the partitions those that it writes or empties; ``own`` has the keys of the
    job's own files, if their names do not show whose they are. Raises `DestinationNotEmpty` in conflict mode
    ``fail`` where there is data, `InvalidDestination` if it would take files of another dataset.
    """
    whole = options.whole_destination
    takes: Removal = "everything" if whole else "partitions"
    pieces = table.left_by(takes, partitions)
    unowned = unowned_objects(context, table, None if whole else partitions, own)
    if options.conflict_mode == "fail":
        if pieces or unowned:
            raise not_empty(context, min(pieces) if pieces else unowned[0].key)
        return NOTHING
    named = [one.key for one in unowned]
    refuse_tables(context, directories_above(context.bucket, named), named)
    others = Counts(files=len(unowned), bytes=sum(one.size for one in unowned), rows=None)
    return Taken(takes, pieces, unowned, table.counts_of(pieces).plus(others))


def refuse_tables(context: JobContext, places: Iterable[Destination], keys: Collection[str]) -> None:
    """Raise `InvalidDestination` if a key is of a table at another of these places, or of its open jobs."""
    store, home = context.store, context.layout.destination
    calls = [(place, Head(place.bucket, entry_key(place, 1))) for place in places if place != home]
    # A role that is limited to the destination may not read what lies above.
    for place, found in outcomes(store, calls, NoSuchKey, AccessDenied):
        if not isinstance(found, ObjectInfo):
            continue
        # Before the table, which has the files of a job that ends meanwhile.
        prefix = place.key(OPEN_JOBS)
        jobs = {info.key[len(prefix) :].split("/")[0] for info in store.list_objects(place.bucket, prefix)}
        names = read_table(store, place).partitions()
        for key in keys:
            path = place.relative(key)
            if path is not None and (partition_of(path) in names or owner_of(key) in jobs):
                raise InvalidDestination(
                    f"{context.name}: {join_uri(place.bucket, key)} is of the table {place.uri}, which would"
                    " lose it: write to that table, or to another directory"
                )


def not_empty(context: JobContext, where: str) -> DestinationNotEmpty:
    """Return the error of a job with conflict mode ``fail`` where there is data."""
    return DestinationNotEmpty(
        f"{context.name}: conflict mode is fail, and there is data: {where!r}; use replace or append, or"
        " another destination"
    )


#: Tries to create an entry. Each that fails means that another job's entry came first.
TRIES = 100


def append(context: JobContext, log: Log, make: Callable[[Position], Entry]) -> Entry | None:
    """Try to create the entry after the head of a log, and return it. Repeatable.

    Before: the log is read. Returns None if another entry has its number; that one is read now, so decide
    anew. Raises as `create_record`; `InvalidRecord` if that one is damaged; `InvalidOption` if the table is
    or would be published, and cannot be with this entry.
    """
    store, home = context.store, context.layout.destination
    if (newest := log.read_newest()) is not None:
        write_receipt(store, home, newest)
        publish_if_missing(context, newest)
    entry = carried(context, log, make(log.head))
    stored = create_record(store, home.bucket, entry_key(home, entry.number), entry)
    log.take(Read(stored.record, stored.sha256))
    return stored.record if stored.record.nonce == entry.nonce else None


def carried(context: JobContext, log: Log, entry: Entry) -> Entry:
    """Return the entry after the head of a log, marked and published if the one before is."""
    if (before := log.read_newest()) is not None and (before.marks or before.published):
        published = before.published or entry.published
        entry = replace(entry, marks=before.marks or entry.marks, published=published)
    if entry.published and entry.commit is not None and log.publishable_at != log.head.number:
        entry = publishable(context, log, entry)
        log.publishable_at = log.head.number if entry.published else -1
    return entry


def end_job(context: JobContext, log: Log, make: Callable[[Position], Entry], *, otherwise: str) -> Entry:
    """Create the entry that ends a job, and return it, or the one that ended the job before.

    Before: the log is read to its end, or nobody else ends the job. Repeatable. ``make`` returns the entry
    after a position: anew for each try, as it may depend on earlier entries. Raises as `append`;
    `Unavailable` if other jobs' entries came first a hundred times: ``otherwise`` says what to do then.
    """
    for _ in range(TRIES):
        if log.end is None:
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

    A commit's options may turn on what every later entry has too: markers of partitions, and publication.
    """
    number = head.number + 1
    return entry_after(
        context,
        head,
        kind="abandon" if commit is None else "commit",
        job_id=context.job_id,
        staging=context.layout.staging.uri,
        context=job.context if job is not None else {},
        commit=commit,
        why=why.encode(errors="backslashreplace").decode()[:PROSE],
        marks=options is not None and options.partition_success,
        published=number if options is not None and options.publish else 0,
    )


def entry_after(job: JobContext, head: Position, /, **facts: Any) -> Entry:
    """Return the entry after a position, with these facts."""
    return Entry(
        destination=job.layout.destination.uri,
        number=head.number + 1,
        prev=head.sha256,
        since=job.now_ms(),
        nonce=job.new_id(),
        **facts,
    )

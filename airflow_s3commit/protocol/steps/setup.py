"""Set up a job: look at the store, and create the job's record. The first setup here begins the log.

And read how far a job is, by its records and by the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial

from msgspec import UNSET

from airflow_s3commit._causes import noting, undoing
from airflow_s3commit.exceptions import (
    AccessDenied,
    AlreadyCommitted,
    DidNotHappen,
    InvalidDestination,
    InvalidRecord,
    JobClosed,
    JobFailed,
    JobMismatch,
    NoSuchJob,
    NoSuchKey,
    NoSuchUpload,
    PreconditionFailed,
    StoreUnsuitable,
)
from airflow_s3commit.protocol.metadata.context import (
    JobContext,
    Stored,
    after_effect,
    create_record,
    find_record,
    naming,
)
from airflow_s3commit.protocol.metadata.listing import data_objects
from airflow_s3commit.protocol.metadata.removal import delete_record
from airflow_s3commit.protocol.metadata.sealed_job import check_digest, find_seal
from airflow_s3commit.protocol.metadata.store_check import look_at_conditions, look_at_uploads
from airflow_s3commit.protocol.model.codec import encode
from airflow_s3commit.protocol.model.destination import join_uri
from airflow_s3commit.protocol.model.job import JobOptions, JobRecord, JobState, Position
from airflow_s3commit.protocol.model.layout import OLDER_DATA, check_new_id, job_key, owner_of
from airflow_s3commit.protocol.model.sealed_job import Counts
from airflow_s3commit.protocol.model.table import Commit, Entry
from airflow_s3commit.protocol.steps.append import append
from airflow_s3commit.protocol.steps.conflicts import decide, not_empty
from airflow_s3commit.protocol.steps.files import list_older_data, write_list
from airflow_s3commit.protocol.steps.finish import refuse_markers_beside_retained
from airflow_s3commit.protocol.steps.fold import read_table, table_at_head
from airflow_s3commit.protocol.steps.log import Log, find_end, look_up_end
from airflow_s3commit.protocol.steps.publish import prepare
from airflow_s3commit.store.forwarding import with_headers

logger = logging.getLogger(__name__)


def open_job(
    context: JobContext,
    options: JobOptions,
    facts: Mapping[str, str],
    *,
    adopting: Container[str] | None = None,
) -> Stored[JobRecord]:
    """Look at the store, set up a job, and look at conditional writes on its new record.

    Each process looks at a bucket once. Repeatable by any process. For the arguments and errors see `set_up`.

    Raises:
        AccessDenied: The credentials may not do what a job needs.
        StoreUnsuitable: The store does not do what a job relies on. The job's record is removed.
    """
    with naming(context, "setup"):
        look_at_uploads(context, options)
        context = replace(context, store=with_headers(context.store, options.object_options.of_records))
        stored = set_up(context, options, facts, adopting=adopting)
        look_at_record(context, stored)
        return stored


def look_at_record(context: JobContext, stored: Stored[JobRecord]) -> None:
    """Look at conditional writes on a job's new record.

    Raises:
        StoreUnsuitable: The store does not do what a job relies on. The job's record is removed.
        OutcomeUnknown: A request failed. The job is set up: set it up again, or abort it.
    """
    key = job_key(context.layout.destination, context.job_id)
    try:
        with after_write(context):
            look_at_conditions(context, context.bucket, key, encode(stored.record), stored.etag)
    except StoreUnsuitable as error:
        with noting(error, f"deleting {join_uri(context.bucket, key)}", "it is left until a sweep"):
            delete_record(context, context.bucket, key)
        raise


def set_up(
    context: JobContext,
    options: JobOptions,
    facts: Mapping[str, str],
    *,
    adopting: Container[str] | None = None,
) -> Stored[JobRecord]:
    """Create a job's record, unless a job with its id has ended; begin the log if there is none.

    Repeatable by any process: with the same options it returns the record that is there.

    Args:
        adopting: The job is Hadoop's, and keeps its id, which need not be a UUID. The keys of the objects
            that Hadoop has made of its uploads: the first entry of the log leaves them to its commit.

    Raises:
        InvalidRecord: The id is no UUID; or the log is damaged, or was copied here.
        DestinationNotEmpty: Conflict mode ``fail`` over the whole destination, and there is data.
        InvalidDestination: The destination is an object, or another dataset lies below it.
        InvalidOption: The table has what the options exclude.
        JobMismatch: A job with this id is open, with other options.
        AlreadyCommitted: A job with this id is committed.
        JobClosed: A job with this id was aborted.
        OutcomeUnknown: A response was lost, or a request failed after the write: set the job up again, or
            abort it.
    """
    if adopting is None:
        check_new_id(context.job_id)
    log = Log(context)
    store, home = context.store, context.layout.destination
    is_first = begin_log(context, log, adopting or ())
    if not is_first:
        # The newest entry first: it alone may lack its receipt. So the job ends after its base, if at all.
        refuse_ended(context, log.end or find_end(context))
    if options.conflict_mode == "fail" and options.whole_destination:
        # A job that could only fail is refused before it writes anything; the commit looks again.
        if not is_first:
            decide(context, options, (), table_at_head(store, home, log))
        elif older := log.older_partitions():
            raise not_empty(context, min(older))
    refuse_markers_beside_retained(context, options, log.marks, lambda: read_table(store, home))
    publishes = prepare(context, options, log, adopted=adopting is not None)
    record = JobRecord(
        **context.layout.place,
        options=options,
        context=dict(facts),
        adopted=adopting is not None,
        publishes=publishes,
        base=log.head,
        created=context.now_ms(),
        nonce=context.new_id(),
    )
    key = job_key(context.layout.destination, context.job_id)
    stored = create_record(context.store, context.bucket, key, record)
    found = _checked(context, stored.record)
    if (found.options, found.adopted) != (options, record.adopted):
        raise JobMismatch(
            f"{context.name} is open with other options: {found.options}; give the new job another id"
        )

    def withdraw(_: Entry) -> None:
        with suppress(PreconditionFailed):
            delete_record(context, context.bucket, key, if_match=stored.etag)

    refuse_ended_since(
        context,
        is_own=found.nonce == record.nonce,
        withdraw=withdraw,
        doing=f"deleting {join_uri(context.bucket, key)}",
        left="it is left until a sweep",
    )
    return stored


def begin_log(context: JobContext, log: Log, own: Container[str] = ()) -> bool:
    """Read the newest entry of a log, or create the first one; return whether this process created it.

    That entry lists the data that is there, or nothing. It is made before any upload is completed there:
    otherwise a job's file could enter the table twice, or stay in it after an abort. Repeatable.

    Args:
        own: Keys of objects of a job that is adopted: its commit lists them.

    Raises:
        InvalidDestination: There is no log, and the destination is an object, or another dataset lies below.
    """
    log.read_listed()
    if log.head.number:
        return False
    _refuse_object(context)
    files = list_older_data(context, own)
    write_list(context, files, OLDER_DATA)
    counts, within = files.counts(), files.short()
    commit = Commit(
        mode=OLDER_DATA,
        partitions=counts,
        counts=Counts.total(counts.values()),
        files_sha256=files.sha256,
        within=UNSET if within is None else within,
    )

    def first(_: Position) -> Entry:
        return Entry(
            destination=context.layout.destination.uri,
            number=1,
            kind="commit",
            since=context.now_ms(),
            commit=commit,
            nonce=context.new_id(),
        )

    if append(context, log, first) is not None:
        return True
    log.read()
    return False


def _refuse_object(context: JobContext) -> None:
    """Raise `InvalidDestination` if the destination is an object."""
    home = context.layout.destination
    if not home.prefix:
        return
    key = home.prefix.rstrip("/")
    try:
        context.store.head(home.bucket, key)
    except (NoSuchKey, AccessDenied):
        # A role limited to the destination's prefix may not read this key, which is not below it.
        return
    raise InvalidDestination(f"{join_uri(home.bucket, key)} is an object; data goes into a directory")


def recorded(context: JobContext) -> JobContext:
    """Return the context with the job's record, and with the staging that it names; unchanged without one.

    A record never changes, so one that was read before is as good as one that is read now. Errors are those
    of `find_job`.
    """
    if context.record is None and (stored := find_job(context)) is not None:
        return context.as_recorded(stored.record, stored.sha256)
    return context


def find_job(context: JobContext) -> Stored[JobRecord] | None:
    """Read a job's record; None if the job was never set up, or has ended and is cleaned up.

    Raises:
        InvalidRecord: It is damaged, was copied here, or is not the one that the job's reference names.
    """
    key = job_key(context.layout.destination, context.job_id)
    stored = find_record(context.store, context.bucket, key, JobRecord)
    if stored is not None:
        _checked(context, stored.record)
        if context.record_sha256:
            check_digest(stored.sha256, context.record_sha256, join_uri(context.bucket, key))
    return stored


def load_job(context: JobContext) -> JobRecord:
    """Read the record of a job that has not ended. Errors are those of `job_record`."""
    refuse_ended(context, find_end(context))
    return job_record(context)


def job_record(context: JobContext) -> JobRecord:
    """Read the record of a job, which it may keep for a while after its end.

    Raises:
        AlreadyCommitted: The job is committed, and has no record left.
        JobClosed: The job is aborted, and has no record left.
        NoSuchJob: It was never set up.
        InvalidRecord: Its record is damaged, or was copied here.
    """
    record = recorded(context).record
    if record is None:
        refuse_ended(context, find_end(context))
        raise NoSuchJob(never_set_up(context))
    return record


def never_set_up(context: JobContext) -> str:
    """Return the message for a job that has neither a record nor an end."""
    home = context.layout.destination
    return (
        f"{context.name} is not known: it was never set up, or a program deleted its record"
        f" {join_uri(home.bucket, job_key(home, context.job_id))}, as an overwrite of a directory above does."
        " Set up a new job; s3commit sweep aborts the uploads of one whose record was deleted"
    )


def after_write(context: JobContext) -> AbstractContextManager[None]:
    """Return a block whose failed requests say that the step wrote a record before, which stays."""
    done = f"{context.name}: the step has written its record, and then failed"
    return after_effect(done, "take it again, or abort the job", DidNotHappen)


def refuse_ended_since(
    context: JobContext, *, is_own: bool, withdraw: Callable[[Entry], object], doing: str, left: str
) -> None:
    """Write, then look: refuse, as `refuse_ended`, a step whose job has ended since the step's first look.

    Args:
        is_own: Whether this process wrote the record, and not an earlier one with the same.
        withdraw: Takes back what this process wrote, by the entry that ended the job.
        doing: What that does, for the note of an error of it; ``left`` is what remains then.

    Raises:
        OutcomeUnknown: A request failed. The record is written: take the step again.
    """
    with after_write(context):
        end = find_end(context)
    if end is not None:
        with undoing(partial(withdraw, end), doing, left) if is_own else nullcontext():
            refuse_ended(context, end)


def refuse_ended(context: JobContext, end: Entry | None) -> None:
    """Raise `AlreadyCommitted` or `JobClosed` if a job has ended: it takes no more output."""
    if end is None:
        return
    if end.kind == "commit":
        raise AlreadyCommitted(f"{context.name} is committed, as entry {end.number} of the log")
    why = f" ({end.why})" if end.why else ""
    raise JobClosed(f"{context.name} is aborted{why}: nothing of it is or will become visible")


@contextmanager
def refusing_ended(context: JobContext) -> Iterator[None]:
    """Refuse a step, as `refuse_ended`, for the end of its job rather than for what is missing because of it.

    Whoever ends a job writes its receipt before it removes anything of it.
    """
    try:
        yield
    except (InvalidRecord, JobClosed, JobFailed, NoSuchUpload):
        refuse_ended(context, find_end(context))
        raise


def _checked(context: JobContext, record: JobRecord) -> JobRecord:
    layout = context.layout
    if (record.job_id, record.destination) != (layout.job_id, layout.destination.uri):
        where = join_uri(context.bucket, job_key(layout.destination, layout.job_id))
        raise InvalidRecord(f"{where} is of job {record.job_id} on {record.destination}: it was copied here")
    return record


def find_state(context: JobContext) -> JobState | None:
    """Return how far a job is; None if it was never set up."""
    stored = find_job(context)
    job = stored.record if stored is not None else None
    end = look_up_end(context, job)
    if end is not None:
        return JobState(
            state="committed" if end.kind == "commit" else "aborted",
            generation=end.number if end.kind == "commit" else None,
            since=end.since,
            reason=end.why,
            finished=job is None,
        )
    if job is None:
        return None
    seal = find_seal(context)
    if seal is not None:
        return JobState(state="sealed", since=seal.record.created)
    return JobState(state="open", since=job.created)


def is_publishing(context: JobContext) -> bool:
    """Return whether some of a sealed job's files are objects already. Lists the partitions of the seal."""
    seal = find_seal(context)
    if seal is None:
        return False
    if context.record is not None and context.record.adopted:
        return True
    listed = data_objects(context, list(seal.record.partitions))
    return any(owner_of(info.key) == context.job_id for info in listed)

"""Set up a job: check the store, and create the job's record. A destination's first setup begins its log.

The module also reads how far a job has got, by its records and by the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TypeVar

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
    StoreUnsuitable,
)
from airflow_s3commit.protocol.metadata.context import (
    JobContext,
    Stored,
    after_effect,
    check_job,
    create_record,
    find_job,
    naming,
    recorded,
)
from airflow_s3commit.protocol.metadata.removal import delete_record
from airflow_s3commit.protocol.metadata.sealed_job import find_seal
from airflow_s3commit.protocol.metadata.store_check import look_at_conditions, look_at_uploads
from airflow_s3commit.protocol.model.codec import encode, sha256
from airflow_s3commit.protocol.model.destination import Destination, directories_above, join_uri
from airflow_s3commit.protocol.model.job import JobOptions, JobRecord, JobState
from airflow_s3commit.protocol.model.layout import OLDER_DATA, job_key, owner_of, receipt_key
from airflow_s3commit.protocol.model.sealed_job import Counts, SealRecord, StageSealRecord
from airflow_s3commit.protocol.model.table import Commit, Entry
from airflow_s3commit.protocol.steps.append import append, decide, entry_after, not_empty, refuse_tables
from airflow_s3commit.protocol.steps.files import FileList, data_objects, list_older_data, write_list
from airflow_s3commit.protocol.steps.finish import refuse_markers_beside_retained
from airflow_s3commit.protocol.steps.fold import read_table, table_at_head
from airflow_s3commit.protocol.steps.log import Log, find_end, look_up_end
from airflow_s3commit.protocol.steps.publish import prepare
from airflow_s3commit.store.execute import in_threads
from airflow_s3commit.store.forwarding import with_headers

logger = logging.getLogger(__name__)


def open_job(
    context: JobContext,
    options: JobOptions,
    facts: Mapping[str, str],
    *,
    adopting: Container[str] | None = None,
) -> Stored[JobRecord]:
    """Check the store, set up a job, and try conditional writes on its new record.

    Each process checks a bucket once. Repeatable by any process. For the arguments and errors see `set_up`.
    Also raises `AccessDenied` if the credentials may not do what a job needs; `StoreUnsuitable` if the store
    does not do what a job relies on: no record of the job stays then.
    """
    with naming(context, "setup"):
        look = partial(look_at_uploads, context, options)
        context = replace(context, store=with_headers(context.store, options.object_options.of_records))
        stored = set_up(context, options, facts, adopting=adopting, look=look)
        look_at_record(context, stored)
        return stored


def look_at_record(context: JobContext, stored: Stored[JobRecord]) -> None:
    """Try conditional writes on a job's new record, which is removed if the store does not heed them.

    Raises `StoreUnsuitable` then, `OutcomeUnknown` if a request fails: the job is set up; repeat or abort.
    """
    body = encode(stored.record)
    if sha256(body) != stored.sha256:
        # Another release wrote the record, and tried this. Its bytes stay, because references name them.
        return
    key = job_key(context.layout.destination, context.job_id)
    try:
        with after_write(context):
            look_at_conditions(context, context.bucket, key, body, stored.etag)
    except StoreUnsuitable as error:
        with noting(error, f"deleting {stored.uri}", "it is left until a sweep"):
            delete_record(context, context.bucket, key)
        raise


def set_up(
    context: JobContext,
    options: JobOptions,
    facts: Mapping[str, str],
    *,
    adopting: Container[str] | None = None,
    look: Callable[[], None] | None = None,
) -> Stored[JobRecord]:
    """Create a job's record, unless a job with its id has ended; begin the log if there is none.

    Repeatable by any process: with the same options it returns the existing one. For errors see `Job.setup`.
    For a Hadoop job, ``adopting`` has the keys of objects that Hadoop made of its uploads, which the log's
    first entry leaves to the job's commit. ``look`` is called before any write, alongside the first reads.
    """
    log = Log(context)
    store, home = context.store, context.layout.destination
    is_first = begin_log(context, log, adopting or (), look)
    if not is_first:
        # The newest entry first: it alone may lack its receipt. So the job ends after its base, if at all.
        refuse_ended(context, log.end or find_end(context))
    if options.conflict_mode == "fail" and options.whole_destination:
        # A job that could only fail is refused before it writes anything; the commit checks again.
        if not is_first:
            decide(context, options, (), table_at_head(store, home, log))
        elif older := log.older_partitions():
            raise not_empty(context, min(older))
    refuse_markers_beside_retained(context, options, log.marks, lambda: read_table(store, home))
    publishes = prepare(context, options, log)
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
    stored = create_unless_ended(context, context.bucket, key, record)
    found = check_job(context, stored)
    if (found.options, found.adopted) != (options, record.adopted):
        raise JobMismatch(
            f"{context.name} is open with other options: {found.options}; give the new job another id"
        )
    return stored


def begin_log(
    context: JobContext, log: Log, own: Container[str] = (), look: Callable[[], None] | None = None
) -> bool:
    """Read the newest entry of a log, or create the first one; return whether this process created it.

    The first entry lists the data there, or nothing. It precedes any completed upload there: otherwise a
    job's file could enter the table twice, or stay in it after an abort. Repeatable. ``own`` has keys of an
    adopted job's objects: its commit lists them. Raises `InvalidDestination` if there is no log, and the
    destination is an object, belongs to another table, or has a dataset below it. For ``look`` see `set_up`.
    """
    steps: list[Callable[[], FileList | None]] = [partial(_older_data, context, log, own)]
    if look is not None:
        steps.insert(0, look)
    *_, files = in_threads(lambda step: step(), steps, 0 if look is None else context.threads)
    if files is None:
        return False
    counts, within, home = files.counts(), files.short(), context.layout.destination
    above = directories_above(home.bucket, [home.prefix.rstrip("/")] if counts else [])
    keys = {(one.partition, owner_of(one.key)): one.key for one in files.entries()}
    refuse_tables(context, above, keys.values())
    write_list(context, files, OLDER_DATA)
    commit = Commit(
        mode=OLDER_DATA,
        partitions=counts,
        counts=Counts.total(counts.values()),
        files_sha256=files.sha256,
        within=UNSET if within is None else within,
    )

    if append(context, log, partial(entry_after, context, kind="commit", commit=commit)) is not None:
        return True
    log.read()
    return False


def _older_data(context: JobContext, log: Log, own: Container[str]) -> FileList | None:
    """Read the newest entry of a log; without one, return the list of the data that is there."""
    log.read_listed()
    if log.head.number:
        return None
    _refuse_object(context)
    return list_older_data(context, own)


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


def load_job(context: JobContext) -> JobRecord:
    """Read the record of a job that has not ended. Errors are those of `job_record`."""
    refuse_ended(context, find_end(context))
    return job_record(context)


def job_record(context: JobContext) -> JobRecord:
    """Read the record of a job, which it may keep for a while after its end.

    Raises as `refuse_ended` if the job has ended and has no record left; `NoSuchJob` if it was never set up;
    `InvalidRecord` if its record is damaged, or was copied here.
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


def other_home(context: JobContext, keys: Collection[str]) -> Destination | None:
    """Return another directory above some keys where the job has a record or receipt; None without one.

    Destinations nest, so uploads of a job on a directory above or below may lie within this one.
    """
    for place in directories_above(context.bucket, keys):
        records = {job_key(place, context.job_id), receipt_key(place, context.job_id)}
        # Listed, because a role that is limited to the destination must not ask for what lies above.
        listed = (info.key for key in records for info in context.store.list_objects(place.bucket, key))
        if place != context.layout.destination and not records.isdisjoint(listed):
            return place
    return None


def after_write(context: JobContext) -> AbstractContextManager[None]:
    """Return a block whose failed requests raise `OutcomeUnknown`: the record written before it stays."""
    done = f"{context.name}: the step has written its record, and then failed"
    return after_effect(done, "take it again, or abort the job", DidNotHappen)


R = TypeVar("R", JobRecord, StageSealRecord, SealRecord)


def create_unless_ended(
    context: JobContext, bucket: str, key: str, record: R, withdraw: Callable[[Entry], object] | None = None
) -> Stored[R]:
    """Create a record, then check whether the job has ended meanwhile: if it has, raise as `refuse_ended`.

    In that case a record that this call wrote, and no earlier one, is deleted, or ``withdraw`` is called with
    the entry that ended the job. Raises `OutcomeUnknown` if a request fails after the write.
    """
    stored = create_record(context.store, bucket, key, record)
    with after_write(context):
        end = find_end(context)

    def delete(_: Entry) -> None:
        delete_record(context, bucket, key)

    if end is not None:
        clean_up, doing = partial(withdraw or delete, end), f"clearing away {stored.uri}"
        is_own = stored.record.nonce == record.nonce
        with undoing(clean_up, doing, "it is left until a sweep") if is_own else nullcontext():
            refuse_ended(context, end)
    return stored


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
    """Raise that the job has ended, as `load_job`, instead of an error that only follows from its end.

    A process that ends a job writes its receipt before it removes anything of it.
    """
    try:
        yield
    except (InvalidRecord, JobClosed, JobFailed, NoSuchUpload):
        # Read anew: all of it may have been deleted, or aborted although this process alone is to end it.
        load_job(replace(context, record=None, alone=""))
        raise


def find_state(context: JobContext) -> JobState | None:
    """Return how far a job has got; None if it was never set up."""
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

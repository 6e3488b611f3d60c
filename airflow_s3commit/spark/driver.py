"""The driver's side of a write: finds or sets up its job, and seals, commits or aborts it after the tasks.

A job in the Spark conf belongs to another owner, such as Airflow, and the write only seals its stage. Without
such a job the write sets up its own, and seals and commits it.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from airflow_s3commit._causes import add_failure
from airflow_s3commit._clock import SystemClock
from airflow_s3commit.exceptions import (
    AccessDenied,
    AlreadyCommitted,
    InvalidDestination,
    JobMismatch,
    NoSuchJob,
    S3CommitError,
)
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.model.destination import Destination, split_uri
from airflow_s3commit.protocol.model.job import JobReference, ObjectOptions
from airflow_s3commit.protocol.model.layout import Layout
from airflow_s3commit.protocol.model.manifest import Manifest
from airflow_s3commit.protocol.model.sealed_job import CommittedTask, SealReference
from airflow_s3commit.spark.plan import (
    check_job_overwrite,
    check_layout,
    check_own_overwrite,
    check_rows,
    sets_static,
)
from airflow_s3commit.spark.session import (
    DEFAULT_STAGE,
    DEFAULT_STAGE_ATTEMPT,
    ConfGet,
    JobInConf,
    forget_store,
    job_from_conf,
    store_from_conf,
    store_of_process,
    tasks_have_twins,
)
from airflow_s3commit.spark.writer_settings import s3a_settings, with_file_settings, with_s3a
from airflow_s3commit.store.credentials import StoreAddress
from airflow_s3commit.store.forwarding import with_headers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from airflow_s3commit._clock import Clock
    from airflow_s3commit.spark.options import WriteOptions
    from airflow_s3commit.store.base import ObjectStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Target:
    """The job of a write, and its store; can be pickled.

    Attributes:
        reference: The job.
        stage: Name of this write's stage in the job.
        stage_attempt: Id of the stage attempt.
        own: Whether the write sets up the job, and so commits it.
        store: The store's address.
        twins: Whether Spark may run two attempts at a task at the same time.
        object_options: Encryption, storage class, ACL, tags and headers of the objects of a write's own job.
        session: The session's S3A settings for the bucket.
        session_static: Whether the session sets Spark's ``partitionOverwriteMode`` to ``static``.
    """

    reference: JobReference
    stage: str
    stage_attempt: str
    own: bool
    store: StoreAddress
    twins: bool = False
    object_options: ObjectOptions = field(default_factory=ObjectOptions)
    session: dict[str, str] = field(default_factory=dict)
    session_static: bool = False

    def job(self) -> Job:
        """Return the job, with this process's store."""
        return Job.at(self.job_store(), self.reference)

    def job_store(self) -> ObjectStore:
        """Return this process's store, with the headers for records of the write's own job."""
        return with_headers(store_of_process(self.store), self.object_options.of_records)


@dataclass(frozen=True, slots=True)
class PendingWrite:
    """The result of a write.

    Attributes:
        destination: URI of the destination.
        job: The job; None if the write was ignored.
        stage: Name of the write's stage in the job.
        stage_attempt: Id of the stage attempt.
        tasks: The sealed task attempts, each with its pendingset's location, files, bytes and rows; none with
            the engine ``spark``.
        seal: The stage's seal, with counts of each partition; None if the write was ignored, or was committed
            with the engine ``spark``.
        manifest: The manifest, if the write committed a job of its own; None if the job's owner commits.
        ignored: Whether nothing was written, because the mode was ``ignore`` and the destination has data.
    """

    destination: str
    job: JobReference | None = None
    stage: str = DEFAULT_STAGE
    stage_attempt: str = DEFAULT_STAGE_ATTEMPT
    tasks: tuple[CommittedTask, ...] = ()
    seal: SealReference | None = None
    manifest: Manifest | None = None
    ignored: bool = False

    def __str__(self) -> str:
        if self.ignored:
            return f"nothing was written to {self.destination}: it has data already"
        counts = (self.manifest or self.seal).counts  # type: ignore[union-attr] # one of them is there
        state = "pending" if self.manifest is None else "committed"
        rows = "an unknown number of" if counts.rows is None else counts.rows
        return f"{rows} rows in {counts.files} files are {state} for {self.destination}"


@contextmanager
def renewing_store(settings: StoreAddress) -> Iterator[None]:
    """Drop this process's store if the block raises `AccessDenied`, so that the next call reconnects."""
    try:
        yield
    except AccessDenied:
        forget_store(settings)
        raise


def own_target(options: WriteOptions, job_id: str) -> Target:
    """Return the target of a write that sets up its own job.

    Raises:
        InvalidDestination: The write has no path.
    """
    if options.destination is None:
        raise InvalidDestination(
            'the write has no destination: call .save("s3://bucket/table"), or set a job in the Spark conf'
            " (spark.s3commit.job.id and the other keys of committer_conf). Spark does not pass on how a SQL"
            " table was created: write INSERT INTO t WITH (path = 's3://bucket/table',"
            " partitionBy = 'dt'), and give saveAsTable and writeTo these options; CREATE TABLE AS SELECT"
            " cannot have them"
        )
    return Target(
        JobReference(**Layout.of(Destination.parse(options.destination), job_id).place),
        DEFAULT_STAGE,
        DEFAULT_STAGE_ATTEMPT,
        True,
        options.store,
        object_options=options.object_options,
    )


def target_of(options: WriteOptions, job_id: str, conf: ConfGet, given: JobInConf | None = None) -> Target:
    """Return the target of a write: the given job, else the conf's, else a job of its own.

    Args:
        job_id: Id of the job that the write sets up by itself.
        given: The caller's job, which takes precedence over the conf's.

    Raises:
        InvalidDestination: The write has no path, or it differs from the job's destination.
        InvalidRecord: The conf has some of a job's keys, not all.
        InvalidOption: The session sets an encryption for S3A that this package does not support.
    """
    store = options.store.or_else(store_from_conf(conf))
    found = given or job_from_conf(conf)
    static = sets_static(conf)
    if found is None:
        target = own_target(options, job_id)
        session = s3a_settings(conf, split_uri(target.reference.destination)[0])
        return replace(
            target,
            store=store,
            twins=tasks_have_twins(conf),
            object_options=with_s3a(options.object_options, session),
            session_static=static,
        )
    destination = Destination.parse(found.reference.destination).uri
    if options.destination not in (None, destination):
        raise InvalidDestination(
            f"the write goes to {options.destination}, but its job {found.reference.job_id} commits to"
            f" {destination}; leave the path out, or the job (spark.s3commit.job.* in the Spark conf)"
        )
    session = s3a_settings(conf, split_uri(destination)[0])
    return Target(
        found.reference,
        found.stage,
        found.stage_attempt,
        False,
        store,
        session=session,
        session_static=static,
    )


def ready_job(target: Target, options: WriteOptions, job: Job | None = None) -> Job:
    """Return the target's job: set up if it is the write's own, else checked against the write's options.

    Repeatable. Every task of ``format("s3commit")`` calls it, because Spark gives the session's conf to tasks
    alone; tasks at the same time may all set the job up, and those that come later find it with one request.

    Raises:
        InvalidOption: An overwrite would replace other data than it means to; see `check_own_overwrite`.
        JobMismatch: The save mode, the option ``partitionOverwriteMode``, or the object options of the write
            or the session contradict the job.
        S3CommitError: The job could not be read or set up.
    """
    with renewing_store(target.store):
        job = job or target.job()
        if not target.own:
            _check_modes(job, options)
            _check_publish(job, options)
            check_job_overwrite(job, options, session_static=target.session_static)
            _check_object_options(job, options, target.session)
            return job
        with suppress(NoSuchJob):
            job.record()
            return job
        destination, static = target.reference.destination, target.session_static
        check_own_overwrite(target.job_store(), destination, options, session_static=static)
        return Job.setup(
            target.job_store(),
            target.reference.destination,
            options=options.own_job(target.object_options),
            job_id=target.reference.job_id,
            context={"engine": "spark"},
        )


def commit_write(
    target: Target,
    options: WriteOptions,
    tasks: Sequence[CommittedTask],
    job: Job | None = None,
    *,
    layout_known: bool = False,
) -> tuple[SealReference, Manifest | None]:
    """Seal the stage with the tasks that succeeded; commit the job if it is the write's own.

    Args:
        job: The job, if this process has it already.
        layout_known: Whether the caller has passed `check_layout` for this table before.

    Returns:
        The stage's seal; and the manifest, if the job was committed.

    Raises:
        InvalidOption: An overwrite by a job of its own has no rows, or the table is partitioned and the write
            is not; see `check_rows` and `check_layout`.
        S3CommitError: The stage could not be sealed, or the job not committed; see `Job.seal_stage` and
            `Job.commit`.
    """
    with renewing_store(target.store):
        job = job or target.job()
        if target.own:
            check_rows(target.job_store(), target.reference.destination, options, tasks)
        if not layout_known and not _settles_layout(job, target):
            check_layout(target.job_store(), target.reference.destination, options)
        seal = job.seal_stage(target.stage, target.stage_attempt, tasks)
        logger.info("sealed %d files at %s", seal.counts.files, seal.location)
        if not target.own:
            return seal, None
        manifest = job.commit(stages=[(target.stage, target.stage_attempt)])
        logger.info("committed %d files to %s", manifest.counts.files, manifest.destination)
        if target.twins:
            abort_twins(job)
    return seal, manifest


def _settles_layout(job: Job, target: Target) -> bool:
    """Return whether a job's rows cannot end up beside those of another layout, so no check is needed."""
    options = job.record().options
    # The commit replaces all data or refuses any; and the setup of the write's own overwrite has checked.
    whole = options.whole_destination and options.conflict_mode != "append"
    return whole or (target.own and options.conflict_mode == "replace")


def check_site(job: Job, options: WriteOptions, conf: Mapping[str, str]) -> None:
    """Refuse a write if this machine's configuration asks for something that the driver did not see.

    Raises:
        InvalidOption: It asks for files that s3commit cannot write, such as encrypted ones.
        JobMismatch: It asks for stored objects that differ from the job's, such as encrypted ones.
    """
    with_file_settings(options, conf)
    bucket = split_uri(job.reference.destination)[0]
    _check_object_options(job, options, s3a_settings(conf.get, bucket))


def abort_failed_write(
    target: Target,
    *,
    tasks_ended: bool = False,
    instead: str = "run `s3commit abort` for it",
    cause: BaseException | None = None,
) -> None:
    """Abort a failed write: its own job, or its stage attempt in a job of the conf. Repeatable.

    A sealed stage attempt is left to the job's owner, and a job that is committed after all stays so. A
    failure to abort is logged, not raised.

    Args:
        instead: The other way to abort the uploads, for the log line; such as a command to run.
        cause: The write's error, if it is known here; a failure to abort is added to it as a note.
    """
    try:
        with renewing_store(target.store):
            job = target.job()
            if target.own:
                # Of a job that is not set up yet too, so that no task sets it up from now on.
                abort_until_quiet(job, quiet=0.0 if tasks_ended else QUIET)
            elif job.stage_seal(target.stage, target.stage_attempt) is None:
                job.abort_stage(target.stage, target.stage_attempt)
    except Exception as error:
        if cause is not None:
            left = f"its uploads may stay pending; {instead}"
            add_failure(cause, error, f"aborting job {target.reference.job_id}", left)
        logger.warning(
            "job %s on %s could not be aborted; %s",
            target.reference.job_id,
            target.reference.destination,
            instead,
            exc_info=True,
        )


def _check_modes(job: Job, options: WriteOptions) -> None:
    wanted, mode = options.conflict_mode, job.record().options.conflict_mode
    if wanted not in (None, mode):
        setting = "overwrite" if wanted == "replace" else "errorifexists"
        raise JobMismatch(
            f"save mode {setting} contradicts conflict mode {mode} of job {job.reference.job_id} on"
            f' {job.reference.destination}; let the job decide: use .mode("append"), or no mode in'
            " write_pending"
        )


def _check_publish(job: Job, options: WriteOptions) -> None:
    if options.publish is not None and not job.record().publishes:
        raise JobMismatch(
            f"publish={options.publish} contradicts job {job.reference.job_id} on"
            f" {job.reference.destination}, which was set up without it: set the job up with it"
        )


def _check_object_options(job: Job, options: WriteOptions, session: Mapping[str, str]) -> None:
    """Refuse a write whose options, or whose session's S3A settings, differ from its job's object options."""
    of_job = job.record().options.object_options
    for source, wanted in (
        ("the write's options", options.object_options.or_else(of_job)),
        ("fs.s3a.* of the Spark session", with_s3a(of_job, session)),
    ):
        others = [
            f"{name}={getattr(wanted, name)!r}"
            for name in of_job.__struct_fields__
            if getattr(wanted, name) != getattr(of_job, name)
        ]
        if others:
            raise JobMismatch(
                f"{source} set {', '.join(others)}, unlike job {job.reference.job_id} on"
                f" {job.reference.destination}: set it in the job's object_options"
            )


#: Seconds after which Spark has killed all tasks, unless they start new uploads.
QUIET = 4.0

#: Seconds after which no further abort begins, and seconds between two aborts.
_LONGEST_ABORT = 10.0

_PAUSE = 1.0


def abort_until_quiet(job: Job, clock: Clock | None = None, quiet: float = QUIET) -> int:
    """Abort a job whose tasks may still be running, and repeat until no new uploads appear.

    It takes ``quiet`` seconds or longer, and begins no abort after 10 seconds. A task that uploads later
    finds its job aborted; a sweep removes its uploads.

    Returns:
        The number of aborted uploads; 0 if the job is committed.

    Raises:
        S3CommitError: An upload could not be aborted.
    """
    clock = clock or SystemClock()
    began = changed = clock.monotonic()
    total = 0
    while True:
        try:
            found = job.abort(reason="the Spark write failed").uploads
        except AlreadyCommitted:
            logger.warning(
                "job %s on %s is committed: not aborted; run `s3commit recover` to finish what is left of it",
                job.reference.job_id,
                job.reference.destination,
            )
            return total
        total += found
        now = clock.monotonic()
        if found:
            changed = now
        if now - changed >= quiet or now - began >= _LONGEST_ABORT:
            return total
        clock.sleep(_PAUSE)


def abort_twins(job: Job, clock: Clock | None = None) -> None:
    """Abort what speculative attempts upload after the job's commit, once Spark has had time to kill them.

    The write is committed, so an error is logged and not raised; a sweep removes the remaining uploads.
    """
    (clock or SystemClock()).sleep(QUIET)
    try:
        job.recover()
    except S3CommitError:
        logger.warning(
            "job %s on %s is committed, but pending uploads of its speculative tasks could not be aborted;"
            " run `s3commit sweep`",
            job.reference.job_id,
            job.reference.destination,
            exc_info=True,
        )

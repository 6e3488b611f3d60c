"""The driver's side of a write: finds or sets up its job, and seals, commits or aborts it after the tasks.

A job in the Spark conf belongs to another owner, such as Airflow, and the write only seals its stage. Without
such a job the write sets up its own, and seals and commits it.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_s3commit._causes import undoing
from airflow_s3commit._clock import SystemClock
from airflow_s3commit.exceptions import (
    AlreadyCommitted,
    InvalidDestination,
    InvalidOption,
    JobMismatch,
    NoSuchJob,
    S3CommitError,
)
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.model.destination import Destination, escape, is_data, is_hidden, split_uri
from airflow_s3commit.protocol.model.job import JobOptions, JobReference, ObjectOptions
from airflow_s3commit.protocol.model.layout import Layout
from airflow_s3commit.protocol.model.manifest import Manifest
from airflow_s3commit.protocol.model.sealed_job import CommittedTask, SealReference
from airflow_s3commit.spark.session import (
    DEFAULT_STAGE,
    DEFAULT_STAGE_ATTEMPT,
    PENDING_JOB,
    JobInConf,
    renewing_store,
    store_from_conf,
    store_of_process,
    tasks_have_twins,
)
from airflow_s3commit.spark.writer_settings import s3a_settings, with_file_settings, with_s3a
from airflow_s3commit.store.credentials import StoreAddress
from airflow_s3commit.store.forwarding import with_headers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from airflow_s3commit._clock import Clock
    from airflow_s3commit.protocol.model.job import ConflictMode
    from airflow_s3commit.spark.options import WriteOptions
    from airflow_s3commit.store.base import ObjectStore

logger = logging.getLogger(__name__)

#: Spark's own key.
OVERWRITE_MODE = "spark.sql.sources.partitionOverwriteMode"

#: Spark's own local property of threads that run a batch of a streaming query, and of their tasks.
BATCH = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class Target:
    """The job of a write, and its store; can be pickled.

    Attributes:
        own: Whether the write sets up the job, and so commits it.
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


def own_target(destination: str, job_id: str, store: StoreAddress, **more: Any) -> Target:
    """Return the target of a write that sets up its own job; ``more`` are further fields of the target."""
    place = Layout.of(Destination.parse(destination), job_id).place
    return Target(JobReference(**place), DEFAULT_STAGE, DEFAULT_STAGE_ATTEMPT, own=True, store=store, **more)


def target_of(
    options: WriteOptions, job_id: str, conf: Mapping[str, str], found: JobInConf | None = None
) -> Target:
    """Return a write's target: the job that was given or found in the conf, else its own job ``job_id``."""
    store = options.store.or_else(store_from_conf(conf.get))
    static = conf.get(OVERWRITE_MODE, "").lower() == "static"
    destination = options.destination if found is None else Destination.parse(found.reference.destination).uri
    if destination is None:
        raise InvalidDestination(
            'the write has no destination: call .save("s3://bucket/table"), or set a job in the Spark conf'
            " (spark.s3commit.job.id and the other keys of committer_conf). Spark does not pass on how a SQL"
            " table was created: write INSERT INTO t WITH (path = 's3://bucket/table',"
            " partitionBy = 'dt'), and give saveAsTable and writeTo these options; CREATE TABLE AS SELECT"
            " cannot have them"
        )
    session = s3a_settings(conf.get, split_uri(destination)[0])
    if found is None:
        for key, home in conf.items():
            is_inside = destination.startswith(home) and not is_hidden(destination.removeprefix(home))
            is_home = key.startswith(PENDING_JOB) and key.endswith(".destination")
            if is_home and (is_inside or home.startswith(destination)):
                raise InvalidDestination(
                    f"the write would commit to {destination} at once, but the Spark conf ({key}) has a job"
                    f" for {home}: write with a DataFrame writer of Spark's own, and the job's owner commits"
                )
        twins, objects = tasks_have_twins(conf.get), with_s3a(options.object_options, session)
        return own_target(
            destination, job_id, store, twins=twins, object_options=objects, session_static=static
        )
    if options.destination not in (None, destination):
        raise InvalidDestination(
            f"the write goes to {options.destination}, but its job {found.reference.job_id} commits to"
            f" {destination}; leave the path out, or the job (spark.s3commit.job.* in the Spark conf)"
        )
    job = (found.reference, found.stage, found.stage_attempt)
    return Target(*job, own=False, store=store, session=session, session_static=static)


def ready_job(target: Target, options: WriteOptions, job: Job | None = None) -> Job:
    """Return the target's job: set up if it is the write's own, else checked against the write's options.

    Repeatable. Every task of ``format("s3commit")`` calls it, because Spark gives the session's conf only to
    tasks. Concurrent tasks may all set the job up; later ones find it with one request.
    """
    with renewing_store(target.store):
        job = job or target.job()
        if not target.own:
            _check_given(target, options, job)
            return job
        with suppress(NoSuchJob):
            job.record()
            return job
        own, how = target.reference, check_table(target, options)
        return Job.setup(
            target.job_store(), own.destination, options=how, job_id=own.job_id, context={"engine": "spark"}
        )


def commit_write(
    target: Target,
    options: WriteOptions | None = None,
    tasks: Sequence[CommittedTask] | None = None,
    job: Job | None = None,
) -> tuple[SealReference, Manifest | None]:
    """Seal the stage; commit the job if it is the write's own.

    Args:
        options: The options of the write, for checks of the table; None skips these checks.
        tasks: The task attempts that count; None for what Spark's own writers left. Stages that others have
            sealed for the write's own job are then committed with it.
    """
    with renewing_store(target.store):
        job = job or target.job()
        if options is not None and not target.own:
            _check_layout(target, options, job.record().options)
        seal = job.seal_stage(target.stage, target.stage_attempt, tasks)
        logger.info("sealed %d files at %s", seal.counts.files, seal.location)
        if not target.own:
            return seal, None
        if options is not None:
            check_rows(target, options, seal.counts.rows)
        stages = [(target.stage, target.stage_attempt)] if tasks is not None else job.sealed_stages()
        manifest = job.commit(stages=stages)
        logger.info("committed %d files to %s", manifest.counts.files, manifest.destination)
        if target.twins:
            abort_twins(job)
    return seal, manifest


@contextmanager
def aborting(target: Target, *, tasks_ended: bool = False) -> Iterator[None]:
    """Abort the write if the block raises; a failure to abort becomes a note of the block's error."""
    doing = f"aborting job {target.reference.job_id}"
    left = "its uploads may stay pending; run `s3commit abort` for it"
    abort = partial(abort_write, target, tasks_ended=tasks_ended)
    with undoing(abort, doing, left), renewing_store(target.store):
        yield


def abort_write(target: Target, *, tasks_ended: bool) -> None:
    """Abort a failed write: its own job, or its stage attempt in another owner's job. Repeatable.

    A sealed stage attempt is left to the job's owner, and a job that is committed after all stays committed.
    """
    with renewing_store(target.store):
        job = target.job()
        if target.own:
            # Even if the job is not set up yet, so that no task can set it up from now on.
            abort_until_quiet(job, quiet=0.0 if tasks_ended else QUIET)
        elif job.stage_seal(target.stage, target.stage_attempt) is None:
            job.abort_stage(target.stage, target.stage_attempt)


#: Seconds without new uploads after which Spark is taken to have killed all tasks.
QUIET = 4.0

#: Seconds after which no further abort begins, and seconds between two aborts.
_LONGEST_ABORT = 10.0
_PAUSE = 1.0


def abort_until_quiet(job: Job, clock: Clock | None = None, quiet: float = QUIET) -> None:
    """Abort a job whose tasks may still be running, and repeat until no new uploads appear.

    It takes ``quiet`` seconds or longer, and begins no abort after 10 seconds. A task that uploads later
    finds its job aborted; a sweep removes its uploads.
    """
    clock = clock or SystemClock()
    began = changed = clock.monotonic()
    while True:
        try:
            found = job.abort(reason="the Spark write failed").uploads
        except AlreadyCommitted as error:
            logger.warning("%s: not aborted; run `s3commit recover` to finish what is left of it", error)
            return
        now = clock.monotonic()
        changed = now if found else changed
        if now - changed >= quiet or now - began >= _LONGEST_ABORT:
            return
        clock.sleep(_PAUSE)


def abort_twins(job: Job, clock: Clock | None = None) -> None:
    """Abort what speculative attempts upload after the job's commit, once Spark has had time to kill them.

    The write is committed, so an error is logged and not raised; a sweep removes the remaining uploads.
    """
    (clock or SystemClock()).sleep(QUIET)
    try:
        job.recover()
    except S3CommitError:
        left = "pending uploads of its speculative tasks could not be aborted; run `s3commit sweep`"
        logger.warning("%s is committed, but %s", named(job), left, exc_info=True)


def check_table(target: Target, options: WriteOptions) -> JobOptions:
    """Return the options of a write's own job; refuse one that contradicts the session or the table."""
    of_job = options.own_job(target.object_options)
    _check_overwrite(target, options, of_job)
    _check_layout(target, options, of_job)
    return of_job


def check_site(job: Job, options: WriteOptions, conf: Mapping[str, str]) -> None:
    """Refuse a write if this machine's configuration asks for something that the driver did not see."""
    with_file_settings(options, conf)
    bucket = split_uri(job.reference.destination)[0]
    _check_object_options(job, options, s3a_settings(conf.get, bucket))


def _check_given(target: Target, options: WriteOptions, job: Job) -> None:
    """Refuse a write that contradicts another owner's job."""
    record = job.record()
    check_mode(target, options.conflict_mode, record.options.conflict_mode)
    if options.publish is not None and not record.publishes:
        raise JobMismatch(
            f"publish={options.publish} contradicts {named(target)}, which was set up without it: set the"
            " job up with it"
        )
    _check_overwrite(target, options, record.options)
    _check_object_options(job, options, target.session)


def batch_repeats(what: str) -> InvalidOption:
    """Return the error for what a function of ``foreachBatch`` does, and a repeated batch would do twice."""
    return InvalidOption(
        f"a streaming query {what}, and a repeated batch would be written twice: use"
        " airflow_s3commit.spark.foreach_batch"
    )


def check_mode(target: Target, wanted: ConflictMode | None, decides: ConflictMode) -> None:
    """Refuse a save mode that means another conflict mode than the job's."""
    if wanted not in (None, decides):
        setting = "overwrite" if wanted == "replace" else "errorifexists"
        raise JobMismatch(
            f"save mode {setting} contradicts conflict mode {decides} of {named(target)}; let the job"
            ' decide: use .mode("append"), or no mode in write_pending'
        )


def named(one: Target | Job) -> str:
    """Return a job and its destination, for messages."""
    return f"job {one.reference.job_id} on {one.reference.destination}"


def _check_overwrite(target: Target, options: WriteOptions, of_job: JobOptions) -> None:
    """Refuse a write whose overwrite mode, or its session's, contradicts what the job replaces.

    Spark's default ``static`` replaces the whole table; the default here replaces partitions that get rows.
    """
    if of_job.conflict_mode != "replace":
        return
    chosen, source = options.partition_overwrite, f"partitionOverwriteMode={options.partition_overwrite}"
    overwrites = options.conflict_mode == "replace" and options.table.partition_by
    if chosen is None and target.session_static and overwrites:
        chosen, source = "static", f"{OVERWRITE_MODE}=static of the session"
    if chosen in (None, "static" if of_job.whole_destination else "dynamic"):
        return
    if target.own:
        raise InvalidOption(
            f"overwrite of {target.reference.destination}: the session sets {OVERWRITE_MODE}=static, but"
            " s3commit replaces only the partitions that get rows; set the write's option"
            " partitionOverwriteMode to dynamic to replace these, or to static to replace the whole table"
        )
    replaced = "the whole table" if of_job.whole_destination else "the partitions that get rows"
    raise JobMismatch(
        f"{source} contradicts {named(target)}, which replaces {replaced}; let the job decide: use"
        ' .mode("append"), without partitionOverwriteMode'
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
                f"{source} set {', '.join(others)}, unlike {named(job)}: set it in the job's object_options"
            )


def _check_layout(target: Target, options: WriteOptions, of_job: JobOptions) -> None:
    """Refuse a write whose rows would end up beside those of another layout.

    That is an overwrite with other partition columns than the table's, or any write without partition columns
    to a table that has some. They are easily lost in SQL: Spark does not pass on ``PARTITIONED BY``.
    """
    replaces, columns = of_job.conflict_mode == "replace", options.table.partition_by
    settled = of_job.whole_destination and of_job.conflict_mode != "append"
    if settled or (columns and not replaces):
        return
    path = _first_path(target)
    directories = (path or "").split("/")[:-1]
    if path is None or not all("=" in directory for directory in directories):
        return
    theirs = [directory.partition("=")[0] for directory in directories]
    if theirs == [escape(name) for name in columns]:
        return
    same = ",".join(theirs)
    cure = f"to {same}, in SQL INSERT INTO t WITH (partitionBy = '{same}')" if theirs else "to nothing"
    raise InvalidOption(
        f"the write to {target.reference.destination} is {_layout(columns)}, but the table is"
        f" {_layout(theirs)} (such as {path}), so rows of both would stay side by side: set the write's"
        f" option partitionBy {cure}, write to another path, or overwrite the whole table with the option"
        " partitionOverwriteMode=static"
    )


def _layout(columns: Iterable[str]) -> str:
    named = ", ".join(columns)
    return f"partitioned by {named}" if named else "not partitioned"


def check_rows(target: Target, options: WriteOptions, rows: int | None) -> None:
    """Refuse to commit the write's own overwrite without rows, unless an option says what it replaces."""
    of_job = options.own_job()
    if of_job.conflict_mode != "replace" or of_job.whole_destination or options.partition_overwrite:
        return
    if rows != 0 or _first_path(target) is None:
        return
    effect = "replace nothing" if options.table.partition_by else "empty the table"
    raise InvalidOption(
        f"overwrite of {target.reference.destination} has no rows and would {effect}; skip the write, or set"
        " its option partitionOverwriteMode to static to empty the table, or to dynamic to go on"
    )


def _first_path(target: Target) -> str | None:
    return first_data_path(target.job_store(), Destination.parse(target.reference.destination))


def first_data_path(store: ObjectStore, destination: Destination) -> str | None:
    """Return the path of a table's first data file, relative to the table; None if it has none."""
    after: str | None = None
    while True:
        for info in store.list_objects(destination.bucket, destination.prefix, start_after=after):
            relative = info.key.removeprefix(destination.prefix)
            if is_data(relative):
                return relative
            directory, slash, _ = relative.partition("/")
            # Hidden directories may have very many objects. The character after "/" is "0".
            beyond = f"{destination.prefix}{directory}0"
            if slash and is_hidden(directory) and (after is None or beyond > after):
                after = beyond
                break
        else:
            return None

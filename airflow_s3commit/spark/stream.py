"""``foreach_batch``: each micro-batch of a streaming query is a job, and is committed exactly once.

Spark runs a batch again when a driver died before the checkpoint knew of it, with the same number and, from
a source that can be replayed, the same rows. `begin_batch` looks
up what became of the earlier attempt. A batch's jobs have ids that follow from the query, the batch's number
and the number of the attempt, so the store alone decides, and no process has to remember.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Literal, TypeAlias
from uuid import UUID, uuid4, uuid5

from pyspark.sql.utils import is_remote

from airflow_s3commit._causes import noting
from airflow_s3commit.exceptions import (
    AlreadyCommitted,
    InvalidOption,
    JobClosed,
    JobFailed,
    JobMismatch,
    NoSuchJob,
)
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.model.destination import Destination, as_uri, split_uri
from airflow_s3commit.protocol.model.job import JobOptions, JobReference
from airflow_s3commit.protocol.model.layout import Layout
from airflow_s3commit.spark.driver import Target, abort_failed_write, renewing_store
from airflow_s3commit.spark.options import WriteOptions, parse_options
from airflow_s3commit.spark.s3a_conf import conf_of, s3a_settings
from airflow_s3commit.spark.session import job_from_conf, store_from_conf, store_of_process
from airflow_s3commit.spark.write import write_pending
from airflow_s3commit.store.headers import with_headers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from airflow_s3commit.protocol.model.manifest import ManifestRecord
    from airflow_s3commit.spark.session import ConfGet
    from airflow_s3commit.store.base import ObjectStore

logger = logging.getLogger(__name__)


BatchMode: TypeAlias = Literal["append", "overwrite"]


#: Where Spark keeps the id that a checkpoint gave its query, for the thread that runs the query's batches.
_QUERY_ID = "sql.streaming.queryId"


def foreach_batch(
    *,
    destination: str | Destination,
    partition_by: Sequence[str] = (),
    mode: BatchMode = "append",
    name: str = "",
    stream: str | None = None,
    cluster: bool = True,
    format: str | None = None,  # noqa: A002 - as Spark calls it
    options: Mapping[str, str] | None = None,
) -> BatchWriter:
    """Return the function to hand to ``writeStream.foreachBatch``.

    Args:
        destination: URI of the destination, or a `Destination`.
        partition_by: Partition columns, outermost first.
        mode: ``append``, or ``overwrite`` to replace the partitions of which a batch has rows.
        name: Distinguishes this write from others of the same query to the same destination. Without it
            the second of two would be taken for the first, and skipped.
        stream: The stream's identity, where Spark does not give the query's id (Spark Connect). Change it
            with the query's checkpoint: under an old identity, batches of a new checkpoint would be taken for
            those of the old one, and skipped.
        cluster: Bring the rows of a partition together first; see `write_pending`.
        format: ``parquet``, ``orc``, ``csv`` or ``json``.
        options: Further options of the data source ``s3commit``, by the same names.

    Raises:
        InvalidOption: An option is unknown or malformed, or the mode is none of the two.

    """
    if mode not in ("append", "overwrite"):
        raise InvalidOption(f"mode {mode!r} is not append or overwrite: batches come again and again")
    destination = as_uri(destination)
    said = {"path": destination, "partitionBy": json.dumps(list(partition_by)), "format": format}
    given = {key: text for key, text in said.items() if text is not None}
    parsed = parse_options({**(options or {}), **given}, overwrite=mode == "overwrite")
    return BatchWriter(
        destination=destination,
        partition_by=tuple(partition_by),
        parsed=parsed,
        name=name,
        stream=stream,
        cluster=cluster,
        format=format,
        options=dict(options or {}),
    )


@dataclass(frozen=True, slots=True)
class BatchWriter:
    """Commits each batch it is called with as a job of its own; made by `foreach_batch`.

    Attributes are the arguments of `foreach_batch`; ``parsed`` are its options, read.
    """

    destination: str
    partition_by: tuple[str, ...]
    parsed: WriteOptions
    name: str = ""
    stream: str | None = None
    cluster: bool = True
    format: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Write and commit a batch, unless it is committed already.

        After: the batch's rows are in the destination, once. Run again, by this or another driver, after a
        crash at any point: the same. If it raises, the batch's job is aborted, and the next run of the query
        writes the batch as another.

        Raises:
            InvalidOption: Spark does not tell the query's id, or the conf names a job.
            JobClosed: Another driver of the same query has begun this batch meanwhile.
            S3CommitError: As `write_pending` and `Job.commit` do.

        """
        conf = conf_of(frame.sparkSession)
        _refuse_job_in_conf(conf)
        settings = self.parsed.store.or_else(store_from_conf(conf))
        stream = self.stream or _query_id(frame.sparkSession)
        batch = Batch(stream, self.name, str(self.parsed.destination), int(batch_id))
        token = uuid4().hex
        kept = s3a_settings(conf, split_uri(batch.destination)[0]).fill(self.parsed.object_options)
        options = JobOptions(
            committer=self.parsed.committer,
            conflict_mode=self.parsed.own_conflict_mode,
            object_options=kept,
        )
        with renewing_store(settings):
            store = with_headers(store_of_process(settings), kept.of_records)
            job = begin_batch(store, batch, options, token)
        if job is None:
            logger.info("batch %d of stream %s is committed already", batch.number, stream)
            return
        try:
            with renewing_store(settings):
                manifest = self._write(frame, job, token)
        except BaseException as error:
            failed = Target(job.reference, STAGE, token, True, settings, object_options=kept)
            abort_failed_write(failed, instead="the batch's next attempt will try", cause=error)
            raise
        logger.info(
            "batch %d of stream %s: committed %d files as job %s", batch.number, stream,
            manifest.counts.files, manifest.job_id,
        )  # fmt: skip

    def _write(self, frame: DataFrame, job: Job, token: str) -> ManifestRecord:
        written = write_pending(
            frame,
            destination=self.destination,
            partition_by=self.partition_by,
            job=job.reference,
            stage=STAGE,
            stage_attempt=token,
            cluster=self.cluster,
            format=self.format,
            options=self.options,
        )
        return commit_batch(job, token, written.seal.counts.rows if written.seal is not None else None)


def _refuse_job_in_conf(conf: ConfGet) -> None:
    found = job_from_conf(conf)
    if found is not None:
        raise InvalidOption(
            f"the Spark conf names job {found.reference.job_id}, whose owner commits it as a whole, but every"
            " batch of a streaming query is a job that commits by itself: submit the query without"
            " spark.s3commit.job.*, in Airflow with SparkSubmitOperator"
        )


def _query_id(session: SparkSession) -> str:
    if is_remote():
        raise InvalidOption(
            "Spark Connect does not tell a query's id: name the stream, foreach_batch(stream=…), and name it"
            " anew with each new checkpoint"
        )
    found = session.sparkContext.getLocalProperty(_QUERY_ID)
    if not found:
        raise InvalidOption(
            "this is not the thread that runs a streaming query's batches: call the function of foreach_batch"
            " from the one that writeStream.foreachBatch was given, in its own thread"
        )
    return str(found)


#: The one stage of a batch's job.
STAGE = "batch"

#: Ids of batches' jobs are names in here.
_NAMESPACE = UUID("6f0d6d0c-9c0e-5d43-8a2b-4f7f1b6a3c55")

#: States in which a job's output is complete.
_WHOLE = ("sealed", "committing", "committed")

_BEGUN_AGAIN = "the batch of the streaming query was begun again"


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch of one write of a query: what its jobs' ids follow from.

    Attributes:
        stream: The query's id, or the identity it was given.
        name: Which of the query's writes to this destination.
        destination: URI of the destination.
        number: Spark's number of the batch.

    """

    stream: str
    name: str
    destination: str
    number: int

    def job_id(self, attempt: int) -> str:
        """Return the id of the job that is the attempt of this number at the batch, from 0."""
        told = [self.stream, self.name, self.destination, self.number, attempt]
        return str(uuid5(_NAMESPACE, json.dumps(told)))

    def reference(self, attempt: int) -> JobReference:
        """Return that job's reference."""
        layout = Layout.of(Destination.parse(self.destination), self.job_id(attempt))
        return JobReference(
            job_id=layout.job_id, destination=layout.destination.uri, staging=layout.staging.uri
        )


def begin_batch(store: ObjectStore, batch: Batch, options: JobOptions, token: str) -> Job | None:
    """Set up the job of a new attempt at a batch; None if an earlier attempt is committed.

    Earlier attempts are ended first, in order: one whose output is complete is committed, any other is
    aborted, even if the driver that began it still runs. So at most one attempt at a batch is committed: an
    attempt begins only after every earlier one is aborted for good.

    Args:
        store: Where everything is.
        batch: The batch.
        options: How the job commits.
        token: What tells this attempt from one that another driver begins at the same time: letters and
            digits, new at each call. It is the stage attempt to write as.

    Raises:
        S3CommitError: As `Job.setup`, `Job.commit` and `Job.abort` do.

    """
    for attempt in count():
        reference = batch.reference(attempt)
        while True:
            if _is_committed(Job.at(store, reference)):
                return None
            job = _set_up(store, reference, options, batch, token)
            if job is None:
                break
            if _is_own(job, token):
                return job
    raise AssertionError("unreachable: attempts are counted without end")


def commit_batch(job: Job, token: str, rows: int | None) -> ManifestRecord:
    """Commit a batch's job, whose stage attempt was sealed.

    Args:
        job: The job, as `begin_batch` returned it.
        token: The token it was begun with.
        rows: How many rows the stage attempt wrote. Without any its files are left out: a query with state
            has batches without rows, and each would leave a file that has a schema only.

    Raises:
        S3CommitError: As `Job.seal`, `Job.plan` and `Job.commit` do.

    """
    job.seal([] if rows == 0 else [(STAGE, token)])
    job.plan()
    return job.commit()


def _is_committed(job: Job) -> bool:
    """End an earlier attempt, whatever its state; return whether it is committed."""
    while (state := job.state()) is not None:
        try:
            if state.state not in _WHOLE:
                job.abort(reason=_BEGUN_AGAIN)
                continue
            if state.state == "sealed":
                job.plan()
            job.commit()
        except (AlreadyCommitted, JobClosed, JobFailed, JobMismatch, NoSuchJob) as error:
            is_moved = False
            with noting(error, "reading the job's state again", "another process may have moved it on"):
                is_moved = job.state() != state
            if not is_moved:
                raise
    return job.manifest() is not None


def _set_up(
    store: ObjectStore, reference: JobReference, options: JobOptions, batch: Batch, token: str
) -> Job | None:
    """Set an attempt's job up; None if its id is spent."""
    context = {"engine": "spark", "stream": batch.stream, "batch": str(batch.number), "driver": token}
    if batch.name:
        context["write"] = batch.name
    try:
        return Job.setup(
            store,
            reference.destination,
            options=options,
            job_id=reference.job_id,
            context=context,
        )
    except JobClosed:
        return None
    except JobMismatch:
        # A driver died between its two records, and this one commits otherwise.
        Job.at(store, reference).abort(reason=_BEGUN_AGAIN)
        return None


def _is_own(job: Job, token: str) -> bool:
    """Return whether this driver set up the job, and not another one at the same time."""
    try:
        return job.record().context.get("driver") == token
    except NoSuchJob:
        return False

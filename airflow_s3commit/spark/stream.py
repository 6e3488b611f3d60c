"""``foreach_batch``: each micro-batch of a streaming query is a job, and is committed exactly once.

If a driver dies before it has recorded a batch in the checkpoint, Spark runs the batch again: with the same
number and, from a replayable source, the same rows. `begin_batch` then finishes or aborts the earlier
attempt. The ids of a batch's jobs are derived from the query, the batch's number and the attempt's number, so
all state is in the store and none in a process.
"""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Literal
from uuid import UUID, uuid4, uuid5

from pyspark.sql.utils import is_remote

from airflow_s3commit.exceptions import AlreadyCommitted, InvalidOption, JobClosed, JobFailed, JobMismatch
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.model.destination import Destination, as_uri
from airflow_s3commit.protocol.model.job import JobReference
from airflow_s3commit.protocol.model.layout import Layout
from airflow_s3commit.spark.driver import aborting, check_table, target_of
from airflow_s3commit.spark.options import parse_options, refuse_arguments
from airflow_s3commit.spark.session import job_from_conf, renewing_store
from airflow_s3commit.spark.write import planned, run_tasks
from airflow_s3commit.spark.writer_settings import conf_of, with_file_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from airflow_s3commit.protocol.model.job import JobOptions
    from airflow_s3commit.protocol.model.manifest import Manifest
    from airflow_s3commit.protocol.model.sealed_job import CommittedTask
    from airflow_s3commit.spark.options import WriteOptions
    from airflow_s3commit.store.base import ObjectStore

logger = logging.getLogger(__name__)

#: For each write, by its batch 0, the run and the number of the last batch that this process has written.
_WRITTEN: dict[Batch, tuple[str, int]] = {}


def foreach_batch(
    *,
    destination: str | Destination,
    partition_by: Sequence[str] = (),
    mode: Literal["append", "overwrite"] = "append",
    name: str = "",
    stream: str | None = None,
    cluster: bool = True,
    options: Mapping[str, str] | None = None,
) -> Callable[[DataFrame, int], None]:
    """Return the function to pass to ``writeStream.foreachBatch``; it commits each batch as a job of its own.

    After a call of the function the batch's rows are in the destination exactly once, even if the call is
    repeated, by this or another driver, after a crash at any point. If it raises, the batch's job is aborted,
    and the next run of the query writes the batch as another job.

    Args:
        destination: URI of the destination, or a `Destination`.
        partition_by: One partition column, or several, outermost first.
        mode: ``append``, or ``overwrite`` of partitions that get rows; with ``partitionOverwriteMode=static``
            the whole table. A batch without rows replaces nothing, or with that option everything.
        name: Distinguishes a query's writes to a destination; without it, a batch's second write is refused.
        stream: The stream's identity, required in Spark Connect, which hides the query's id. Change it with
            the query's checkpoint: else a new checkpoint's batches look like the old one's, and are refused.
        cluster: Cluster rows by partition first (a shuffle and a sort), so that each partition has one file.
        options: Further options of the data source ``s3commit``, by the same names.

    Raises:
        InvalidOption: An option is unknown or malformed, or the mode is neither. The function raises it if
            the query's id is unknown, or the conf names a job; or this run of the query wrote the batch under
            this name before; or an overwrite would replace unexpected data, as in `write_pending`.
        JobClosed: From the function: another driver of the same query has begun this batch meanwhile; or the
            batch is committed and a later one has begun, because the query runs from another checkpoint.
        S3CommitError: The function cannot write or commit the batch; see `write_pending` and `Job.commit`.
    """
    if mode not in ("append", "overwrite"):
        raise InvalidOption(f"mode {mode!r} is not supported for a stream's batches: use append or overwrite")
    refuse_arguments(options or (), path="destination", partitionby="partition_by")
    columns = [partition_by] if isinstance(partition_by, str) else [*partition_by]
    given = {"path": as_uri(destination), "partitionBy": json.dumps(columns)}
    parsed = parse_options({**(options or {}), **given}, overwrite=mode == "overwrite")
    return partial(_write_batch, parsed=parsed, name=name, stream=stream, cluster=cluster)


def _write_batch(
    frame: DataFrame, batch_id: int, *, parsed: WriteOptions, name: str, stream: str | None, cluster: bool
) -> None:
    session = frame.sparkSession
    conf = conf_of(session)
    if (found := job_from_conf(conf.get)) is not None:
        raise InvalidOption(
            f"the Spark conf names job {found.reference.job_id}, but every batch of a streaming query is a"
            " job of its own: submit the query without spark.s3commit.job.*, in Airflow with"
            " SparkSubmitOperator"
        )
    parsed = with_file_settings(parsed, conf)
    batch = Batch(stream or _query_id(session), name, str(parsed.destination), int(batch_id))
    run, key = _run_id(session), replace(batch, number=0)
    # A run begins each batch once. After a failure another run begins it again, in this process or another.
    if run is not None and _WRITTEN.get(key) == (run, batch.number):
        raise InvalidOption(
            f"this run of the streaming query has written batch {batch.number} to {batch.destination} before:"
            f" give each write of a batch another name, foreach_batch(…, name=…); the name of both is"
            f" {name!r}"
        )
    token = uuid4().hex
    target = target_of(parsed, token, conf)
    frame, plan = planned(frame, parsed, cluster=cluster)
    with renewing_store(target.store):
        store = target.job_store()
        job = begin_batch(store, batch, check_table(target, parsed), token)
        if job is None:
            refuse_passed(store, batch)
    if job is None:
        logger.info("batch %d of stream %s is committed already", batch.number, batch.stream)
    else:
        target = replace(target, reference=job.reference, stage=STAGE, stage_attempt=token)
        tasks = run_tasks(frame, plan, parsed, target, job)
        with aborting(target, tasks_ended=True):
            counts = commit_batch(job, token, tasks).counts
        done = "batch %d of stream %s: committed %d files as job %s"
        logger.info(done, batch.number, batch.stream, counts.files, job.reference.job_id)
    if run is not None:
        _WRITTEN[key] = (run, batch.number)


def _query_id(session: SparkSession) -> str:
    if is_remote():
        raise InvalidOption(
            "Spark Connect does not reveal a query's id: name the stream with foreach_batch(stream=…), and"
            " rename it with each new checkpoint"
        )
    # Spark sets it in the thread of the query's batches, and the checkpoint keeps it.
    found = session.sparkContext.getLocalProperty("sql.streaming.queryId")
    if not found:
        raise InvalidOption(
            "this thread does not run a streaming query's batches: pass the function of foreach_batch to"
            " writeStream.foreachBatch, or call it in the thread of the function that you pass"
        )
    return str(found)


def _run_id(session: SparkSession) -> str | None:
    """Return the id of this run of the query; None if the caller has replaced Spark's job group with its own.

    Under Spark Connect it is empty, because the process that calls the function serves only one run.
    """
    if is_remote():
        return ""
    group = session.sparkContext.getLocalProperty("spark.jobGroup.id") or ""
    try:
        return str(UUID(group))
    except ValueError:
        return None


#: The one stage of a batch's job.
STAGE = "batch"

#: The namespace of the UUIDs of batches' jobs.
_NAMESPACE = UUID("6f0d6d0c-9c0e-5d43-8a2b-4f7f1b6a3c55")


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch of one write of a query; the ids of its jobs are derived from it.

    Attributes:
        stream: The query's id, or the given identity of the stream.
        name: Name of this write among those of the query to the destination.
    """

    stream: str
    name: str
    destination: str
    number: int

    def reference(self, attempt: int) -> JobReference:
        """Return the job of an attempt at the batch; attempts are numbered from 0."""
        parts = [self.stream, self.name, self.destination, self.number, attempt]
        job_id = str(uuid5(_NAMESPACE, json.dumps(parts)))
        return JobReference(**Layout.of(Destination.parse(self.destination), job_id).place)


def begin_batch(store: ObjectStore, batch: Batch, options: JobOptions, token: str) -> Job | None:
    """Set up the job of a new attempt at a batch; None if an earlier attempt is committed.

    It ends earlier attempts first, in order: it commits an attempt whose output is complete, and aborts any
    other, even if the driver that began it still runs. An attempt begins only after all earlier ones are
    aborted, so at most one attempt at a batch is committed.

    Args:
        token: Distinguishes this attempt from one that another driver begins at the same time: letters and
            digits, new at each call. It is the id of the stage attempt to write.
    """
    context = {"engine": "spark", "stream": batch.stream, "batch": str(batch.number), "driver": token}
    if batch.name:
        context["write"] = batch.name
    for attempt in count():
        reference = batch.reference(attempt)
        with suppress(AlreadyCommitted, JobClosed, JobMismatch):
            job = Job.setup(
                store,
                reference.destination,
                options=options,
                job_id=reference.job_id,
                context=context,
                alone="driver",
            )
            # Another driver may set up the same attempt at the same time.
            if job.record().context.get("driver") == token:
                return job
        if _is_committed(Job.at(store, reference)):
            return None
    raise AssertionError("unreachable: attempts are counted without end")


def refuse_passed(store: ObjectStore, batch: Batch) -> None:
    """Refuse a committed batch that is begun again although the next batch has begun too.

    Spark begins a batch again only if it is the last of its checkpoint.
    """
    following = replace(batch, number=batch.number + 1)
    if Job.at(store, following.reference(0)).state() is not None:
        raise JobClosed(
            f"batch {batch.number} of stream {batch.stream} is committed to {batch.destination}, and a later"
            " one has begun, but the query begins it again: its checkpoint was restored to an earlier state,"
            " or another query had the same identity. Its rows would be lost: start a new checkpoint, with a"
            " new foreach_batch(stream=…) if the query has one"
        )


def commit_batch(job: Job, token: str, tasks: Sequence[CommittedTask]) -> Manifest:
    """Seal and commit the job that `begin_batch` returned for a token. Repeatable.

    Files of a batch without rows are left out: a stateful query has such batches, and each would add a file.
    """
    seal = job.seal_stage(STAGE, token, tasks)
    return job.commit(stages=[] if seal.counts.rows == 0 else [(STAGE, token)])


def _is_committed(job: Job) -> bool:
    """End another driver's attempt, whatever its state, and return whether it is committed. Repeatable."""
    state = job.state()
    if state is not None and state.finished:
        return state.state == "committed"
    if state is not None and state.state in ("sealed", "committed"):
        # Its output is complete; another process may abort it, an upload may be gone, or the table refuse it.
        with suppress(InvalidOption, JobClosed, JobFailed):
            job.commit()
            return True
    try:
        job.abort(reason="the batch of the streaming query was begun again")
    except AlreadyCommitted:
        job.commit()
        return True
    return False

"""``foreach_batch``: each micro-batch of a streaming query is a job, and is committed exactly once.

Spark runs a batch again when a driver died before the checkpoint knew of it, with the same number and, from
a source that can be replayed, the same rows. `batch_jobs` finds out what became of it the time before.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias
from uuid import uuid4

from pyspark.sql.utils import is_remote

from airflow_s3commit.protocol.destination import split_uri
from airflow_s3commit.protocol.records import JobOptions
from airflow_s3commit.spark.batch_jobs import STAGE, Batch, begin_batch, commit_batch
from airflow_s3commit.spark.commit_flow import Target, abort_failed_write, renewing_store
from airflow_s3commit.spark.executor_store import store_of_process
from airflow_s3commit.spark.options import InvalidOption, WriteOptions, parse_options
from airflow_s3commit.spark.pending import write_pending
from airflow_s3commit.spark.s3a_conf import conf_of, s3a_settings
from airflow_s3commit.spark.session import job_from_conf, store_from_conf
from airflow_s3commit.store.headers import with_headers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from airflow_s3commit.protocol.job import Job
    from airflow_s3commit.protocol.records import ManifestRecord
    from airflow_s3commit.spark.session import ConfGet

__all__ = ["BatchMode", "BatchWriter", "foreach_batch"]

logger = logging.getLogger(__name__)

BatchMode: TypeAlias = Literal["append", "overwrite"]

#: Where Spark keeps the id that a checkpoint gave its query, for the thread that runs the query's batches.
_QUERY_ID = "sql.streaming.queryId"


def foreach_batch(
    *,
    destination: str,
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
        destination: URI of the destination.
        partition_by: Partition columns, outermost first.
        mode: ``append``, or ``overwrite`` to replace the partitions of which a batch has rows.
        name: Tells this write from others of the same query to the same destination: without it the second
            of two would be taken for the first, done already.
        stream: The stream's identity, for where Spark does not tell the query's id (Spark Connect). It must
            be changed whenever the query's checkpoint is: under an old one, batches of a new checkpoint
            would be taken for those of the old, done already.
        cluster: Bring the rows of a partition together first; see `write_pending`.
        format: ``parquet``, ``orc``, ``csv`` or ``json``.
        options: Further options of the data source ``s3commit``, by the same names.

    Raises:
        InvalidOption: An option is unknown or malformed, or the mode is none of the two.

    """
    if mode not in ("append", "overwrite"):
        raise InvalidOption(f"mode {mode!r} is not append or overwrite: batches come again and again")
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

"""Writes a DataFrame for `write_pending` with Spark's own writer, whose files the jar keeps pending."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_s3commit.exceptions import (
    DestinationNotEmpty,
    InvalidDestination,
    InvalidOption,
    JobMismatch,
)
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import JobOptions
from airflow_s3commit.spark.driver import Target
from airflow_s3commit.spark.jobs import commit_job, write_stage
from airflow_s3commit.spark.pending_write import (
    ARGUMENTS,
    CONFLICT_MODES,
    DEFAULT_MODE,
    PendingWrite,
    SaveMode,
    refuse_arguments,
)
from airflow_s3commit.spark.session import JobInConf, getter_of, job_from_conf
from airflow_s3commit.spark.writer_settings import s3a_address

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Options that only this package's own writer has, in lower case.
_ONLY_OURS = frozenset(
    {"targetfilebytes", "rowbytes", "openfiles", "committer", "publish", "partbytes", "uploadbytes"}
    | {"storageclass", "sse", "ssekmskeyid", "ssebucketkey", "acl", "objecttags", "objectheaders"}
    | {"endpointurl", "region", "pathstyle"}
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where and how Spark's own writer is to write; see `write_pending`."""

    destination: str | None
    partition_by: tuple[str, ...]
    mode: SaveMode | None
    format: str
    options: dict[str, str]

    def save(self, frame: DataFrame, destination: str, *, overwrite: bool) -> None:
        """Write a frame. An overwrite replaces the partitions that get rows, unless an option decides."""
        writer = frame.write.format(self.format).mode("overwrite" if overwrite else "append")
        if self.partition_by:
            writer = writer.partitionBy(*self.partition_by)
            if overwrite:
                writer = writer.option("partitionOverwriteMode", "dynamic")
        writer.options(**self.options).save(f"s3a://{destination.removeprefix('s3://').rstrip('/')}")


def write_by_spark(
    frame: DataFrame,
    place: Place,
    given: JobInConf | None,
    stage_attempt: str | None,
) -> PendingWrite:
    """Write a frame for a job, whose stage is then sealed; or for a job of its own, which is then committed.

    Args:
        frame: The rows, arranged.
        place: Where and how to write.
        given: The caller's job; None for the conf's, or one of the write's own.
        stage_attempt: Id of the stage attempt; None for that of the job.

    Raises:
        InvalidOption: An option is one of this package's own writer, or the session cannot have such jobs.
        InvalidDestination: There is no destination, or it differs from the job's.
        JobMismatch: The mode contradicts the job.
        DestinationNotEmpty: The mode is ``errorifexists`` and the destination has data.
        S3CommitError: The stage could not be sealed, or the job not committed.
    """
    spark = frame.sparkSession
    found = given or job_from_conf(getter_of(spark))
    mode = place.mode or (DEFAULT_MODE if found is None else "append")
    if mode not in CONFLICT_MODES:
        raise InvalidOption(f"mode {mode!r} is not one of {', '.join(CONFLICT_MODES)}")
    refuse_arguments(place.options, ARGUMENTS, "write_pending")
    for name in place.options:
        if name.lower() in _ONLY_OURS:
            raise InvalidOption(
                f"Spark's own writer has no option {name}: leave it out, or use engine='python'"
            )
    if found is None:
        return _commit_by_spark(frame, place, mode)
    reference = found.reference
    home = Destination.parse(reference.destination)
    if place.destination is not None and Destination.parse(place.destination) != home:
        raise InvalidDestination(
            f"the write goes to {place.destination}, but job {reference.job_id} commits to {home.uri}: leave"
            " the destination out, or the job"
        )
    attempt = stage_attempt or found.stage_attempt
    target = Target(reference, found.stage, attempt, own=False, store=s3a_address(spark, home.bucket))
    decides = target.job().record().options.conflict_mode
    is_accepted = mode == "append" or (mode == "overwrite" and decides in ("as-written", "replace"))
    if not is_accepted:
        raise JobMismatch(
            f"save mode {mode} contradicts conflict mode {decides} of job {reference.job_id} on {home.uri};"
            " let the job decide: leave the mode out"
        )
    overwrite = mode == "overwrite" and decides == "as-written"
    seal = write_stage(spark, target, lambda: place.save(frame, home.uri, overwrite=overwrite))
    return PendingWrite(home.uri, reference, target.stage, target.stage_attempt, seal=seal)


def _commit_by_spark(frame: DataFrame, place: Place, mode: SaveMode) -> PendingWrite:
    """Write with a job of the write's own."""
    if place.destination is None:
        raise InvalidDestination("the write has no destination: name it, or a job")
    adds = mode in ("append", "overwrite")
    options = JobOptions(conflict_mode="as-written") if adds else JobOptions(committer="directory")
    try:
        with commit_job(frame.sparkSession, place.destination, options=options) as job:
            place.save(frame, job.reference.destination, overwrite=mode == "overwrite")
    except DestinationNotEmpty:
        if mode != "ignore":
            raise
        return PendingWrite(place.destination, ignored=True)
    return PendingWrite(place.destination, job.reference, manifest=job.manifest())

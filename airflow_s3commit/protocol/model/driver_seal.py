"""What a Spark driver says of each of its own writes for a job, in the jar's ``PendingWrite.java``."""

from __future__ import annotations

from msgspec import Struct

from airflow_s3commit.protocol.model.codec import Versioned
from airflow_s3commit.protocol.model.limits import Count, Line, Text


class DriverTask(Struct, frozen=True, kw_only=True):
    """One task attempt of a write that counts, with its pendingset's digest; Spark counted the rows."""

    task: Text
    attempt: Text
    sha256: Text
    files: Count
    bytes: Count
    rows: Count | None = None


class DriverSealRecord(Versioned, frozen=True, kw_only=True):
    """``stages/<stage>-<attempt>/spark/<driver>/<number>.json``: one write of a Spark application.

    Attributes:
        version: Always 1.
        job_id: The job.
        stage: Name of the application's stage.
        stage_attempt: Id of the stage attempt.
        application: Spark's id of the application.
        spark: Its version.
        write: Number of the write in the application, in the order in which they ended.
        directory: The written directory below the destination; ``""`` for the destination itself.
        dynamic: The write overwrites the partitions that it has files for.
        replaced: Directories that it overwrites, with all below them; ``""`` for the whole destination.
        tasks: The task attempts that count.

    """

    job_id: Text
    stage: Text
    stage_attempt: Text
    application: Text
    spark: Text
    write: Count
    directory: Line
    dynamic: bool
    replaced: list[Line]
    tasks: list[DriverTask]

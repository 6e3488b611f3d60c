"""What a call of `write_pending` means and returns, whatever writes the files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from airflow_s3commit.exceptions import InvalidOption
from airflow_s3commit.spark.clustering import Arrangement
from airflow_s3commit.spark.session import DEFAULT_STAGE, DEFAULT_STAGE_ATTEMPT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_s3commit.protocol.model.job import ConflictMode, JobReference
    from airflow_s3commit.protocol.model.manifest import Manifest
    from airflow_s3commit.protocol.model.sealed_job import CommittedTask, SealReference

#: What writes the files: this package in Python, or Spark's own writer, kept pending by the jar.
Engine: TypeAlias = Literal["python", "spark"]

#: Spark's save modes, by Spark's names.
SaveMode: TypeAlias = Literal["append", "overwrite", "errorifexists", "error", "ignore"]

CONFLICT_MODES: dict[str, ConflictMode] = {
    "append": "append",
    "overwrite": "replace",
    "errorifexists": "fail",
    "error": "fail",
    "ignore": "fail",
}

#: Spark's own default mode.
DEFAULT_MODE: SaveMode = "errorifexists"

#: Options that are arguments of `write_pending`.
ARGUMENTS = {
    "path": "destination", "partitionby": "partition_by", "format": "format",
}  # fmt: skip


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
        arrangement: The arrangement of the rows before they were written.
        ignored: Whether nothing was written, because the mode was ``ignore`` and the destination has data.
    """

    destination: str
    job: JobReference | None = None
    stage: str = DEFAULT_STAGE
    stage_attempt: str = DEFAULT_STAGE_ATTEMPT
    tasks: tuple[CommittedTask, ...] = ()
    seal: SealReference | None = None
    manifest: Manifest | None = None
    arrangement: Arrangement = field(default_factory=Arrangement)
    ignored: bool = False

    @property
    def clustered(self) -> bool:
        """Whether rows were clustered by partition before they were written."""
        return self.arrangement.clustered

    def __str__(self) -> str:
        if self.ignored:
            return f"nothing was written to {self.destination}: it has data already"
        counts = (self.manifest or self.seal).counts  # type: ignore[union-attr] # one of them is there
        state = "pending" if self.manifest is None else "committed"
        rows = "an unknown number of" if counts.rows is None else counts.rows
        return f"{rows} rows in {counts.files} files are {state} for {self.destination}; {self.arrangement}"


def refuse_arguments(options: Iterable[str], arguments: Mapping[str, str], function: str) -> None:
    """Refuse options that are arguments of a function.

    Args:
        options: Names of options.
        arguments: The function's arguments, by the names of options in lower case.
        function: The function's name.

    Raises:
        InvalidOption: An option is an argument.
    """
    for name in options:
        if (argument := arguments.get(name.lower())) is not None:
            raise InvalidOption(f"pass {name} as the argument {argument} of {function}")

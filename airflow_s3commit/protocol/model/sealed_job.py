"""What a job wrote: columns, counts, committed tasks, and the seals that say which tasks count."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from airflow_s3commit.protocol.model.codec import (
    MAX_COLUMNS,
    Count,
    JobOwned,
    Line,
    Milliseconds,
    Plain,
    Schema,
    Schemas,
    Text,
    Versioned,
    decode,
    encode,
    from_plain,
)
from airflow_s3commit.protocol.model.job import Removal


class SparkField(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A column as in Spark's JSON.

    Attributes:
        name: Its name.
        type: Its type. One that Spark lacks has Arrow's name; ``void`` is unknown.
        nullable: Whether it may have nulls.
        metadata: What else Spark knows of the column.
    """

    name: Line
    type: Line | dict[str, Any]
    nullable: bool = True
    metadata: dict[str, Any] = {}


class SparkSchema(Struct, frozen=True, kw_only=True):
    """Columns as in Spark's ``StructType.json``."""

    type: Literal["struct"] = "struct"
    fields: list[SparkField]


class WrittenColumns(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The columns of some files. Records keep them as this struct's JSON text.

    Attributes:
        format: The files' format, such as ``parquet``.
        spark: The columns of the files, then the partition columns.
        partitions: Names of the partition columns, outermost first.
        arrow: The same columns as base64 of Arrow's encoding; None if Spark's own writers wrote the files.
    """

    format: Line
    spark: SparkSchema
    partitions: list[Line]
    arrow: Schema | None = None

    @classmethod
    def of(cls, text: str, where: str) -> WrittenColumns:
        """Read the text; `InvalidRecord` if it is damaged."""
        return decode(cls, text.encode(), where)

    def text(self) -> str:
        """Return the text, the same for the same columns; `InvalidRecord` if there are too many."""
        return encode(self).decode()


#: A least or greatest value as JSON holds it; dates and times in ISO 8601, decimals as text.
Value: TypeAlias = bool | int | float | Line | None


class ColumnStatistics(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Statistics of one column.

    Attributes:
        values: Number of values that are not null; None if unknown.
        nulls: Number of nulls; None if unknown.
        least: Least value, or the first characters of a long text; None if there is none, or it is unknown.
        greatest: Greatest value, or a short text above a long one; None if there is none, or it is unknown.
        decimal: The bounds are decimal numbers as text, compared as numbers.
    """

    values: Count | None = None
    nulls: Count | None = None
    least: Value = None
    greatest: Value = None
    decimal: bool = False

    def plus(self, other: ColumnStatistics) -> ColumnStatistics:
        """Merge the statistics of two parts of a column; what is unknown in one is unknown in the result."""
        return ColumnStatistics(
            values=_sum(self.values, other.values),
            nulls=_sum(self.nulls, other.nulls),
            least=_outer(self, other, self.least, other.least, min),
            greatest=_outer(self, other, self.greatest, other.greatest, max),
            decimal=self.decimal and other.decimal,
        )


Columns: TypeAlias = Mapping[str, ColumnStatistics]

#: Columns in a record, with a limit to their number.
KnownColumns: TypeAlias = Annotated[dict[Line, ColumnStatistics], Meta(max_length=MAX_COLUMNS)]


def add_columns(one: Columns | None, other: Columns | None) -> dict[str, ColumnStatistics] | None:
    """Merge the statistics of two sets of files, for the columns of both; None if one has none."""
    if one is None or other is None:
        return None
    return {name: one[name].plus(other[name]) for name in one if name in other}


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _outer(
    one: ColumnStatistics, other: ColumnStatistics, mine: Value, theirs: Value, pick: Callable[..., Any]
) -> Value:
    """Return the outer of two bounds; a part without values does not count."""
    if one.values == 0:
        return theirs
    if other.values == 0:
        return mine
    numbers = isinstance(mine, int | float) and isinstance(theirs, int | float)
    if not numbers and not (isinstance(mine, str) and isinstance(theirs, str)):
        return None
    if one.decimal != other.decimal:
        return None
    try:
        bound: Value = pick(mine, theirs, key=Decimal if one.decimal else None)
    except ArithmeticError:
        # A bound is marked as decimal and is no number.
        return None
    return bound


class Counts(Struct, frozen=True, kw_only=True):
    """Totals of files, bytes, rows and column statistics.

    Attributes:
        files: Number of files.
        bytes: Their total size.
        rows: Their total rows; None if a writer did not count them.
        columns: Their merged column statistics; None if a writer had none.
    """

    files: Count = 0
    bytes: Count = 0
    rows: Count | None = 0
    columns: KnownColumns | None = None

    def plus(self, other: Counts) -> Counts:
        """Return the sum of these counts and ``other``; what is unknown in one is unknown in the sum."""
        if not self.files or not other.files:
            columns = self.columns if self.files else other.columns
        else:
            columns = add_columns(self.columns, other.columns)
        return Counts(
            files=self.files + other.files,
            bytes=self.bytes + other.bytes,
            rows=None if self.rows is None or other.rows is None else self.rows + other.rows,
            columns=columns,
        )

    def without_columns(self) -> Counts:
        """Return the counts without column statistics."""
        return msgspec.structs.replace(self, columns=None)

    @classmethod
    def total(cls, parts: Iterable[Counts]) -> Counts:
        """Return the sum of ``parts``; zero counts if there are none."""
        total = cls()
        for part in parts:
            total = total.plus(part)
        return total


class CommittedTask(Plain, Struct, frozen=True, kw_only=True):
    """Result of a task attempt's commit, to be passed to the sealing of its stage.

    Attributes:
        stage: Name of the stage.
        stage_attempt: Id of the stage attempt.
        task: Name of the task.
        attempt: Id of the task attempt.
        location: URI of the attempt's pendingset.
        files: Number of files.
        bytes: Their total size.
        rows: Their total rows; None if a writer did not count them.
        sha256: SHA-256 of the pendingset, in hexadecimal.
    """

    stage: Text
    stage_attempt: Text
    task: Text
    attempt: Text
    location: Text
    files: Count
    bytes: Count
    rows: Count | None = None
    sha256: Text

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> CommittedTask:
        """Read what `to_dict` returned; an entry that is missing or of another type is an `InvalidRecord`."""
        return from_plain(cls, mapping, "a committed task")


class SealedTask(Struct, frozen=True, kw_only=True):
    """One sealed task attempt, with the digest of its pendingset; the key follows from its ids."""

    task: Text
    attempt: Text
    counts: Counts
    sha256: Text


class Sealed(JobOwned, frozen=True, kw_only=True):
    """What the seals of stages and of jobs say of the output.

    Attributes:
        removes: What the writers asked to remove; it counts in conflict mode ``as-written``.
        replaced: Directories that leave the table with all below them, in addition to the partitions.
        schemas: The schemas of all files; empty if that of one is unknown, or there are too many.
    """

    counts: Counts
    partitions: dict[Line, Counts]
    removes: Removal = "nothing"
    replaced: list[Line] = msgspec.field(default_factory=list)
    schemas: Schemas = msgspec.field(default_factory=list)
    created: Milliseconds
    nonce: Text


class StageSealRecord(Sealed, frozen=True, kw_only=True):
    """``stages/<stage>-<attempt>/sealed.json``: the task attempts of a stage that count."""

    stage: Text
    stage_attempt: Text
    tasks: list[SealedTask]


class DriverTask(Struct, frozen=True, kw_only=True):
    """One task attempt of a write that counts, with its pendingset's digest; Spark counted the rows."""

    task: Text
    attempt: Text
    sha256: Text
    files: Count
    bytes: Count
    rows: Count | None = None


class DriverSealRecord(Versioned, frozen=True, kw_only=True):
    """``stages/<stage>-<attempt>/spark/<driver>/<number>.json``: the task attempts of one write that count.

    The jar's ``PendingWrite.java`` creates one for each write of a Spark application, and the stage's seal is
    made of them. A driver is one JVM, whatever Spark contexts it starts: ``<driver>`` is the number that it
    took before its first write, and its id.

    Attributes:
        stage: Name of the application's stage.
        application: Spark's id of the application.
        application_attempt: YARN's number of this start of the application in cluster mode; elsewhere None.
        spark: Spark's version.
        write: Number of the write in the driver, in the order in which its writes ended.
        directory: The written directory below the destination; ``""`` for the destination itself.
        dynamic: The write overwrites the partitions that it has files for.
        replaced: Directories that it overwrites, with all below them; ``""`` for the whole destination.
        tasks: The task attempts that count.
    """

    job_id: Text
    stage: Text
    stage_attempt: Text
    application: Text
    application_attempt: Text | None = None
    spark: Text
    write: Count
    directory: Line
    dynamic: bool
    replaced: list[Line]
    tasks: list[DriverTask]


class SealedStage(Struct, frozen=True, kw_only=True):
    """One sealed stage attempt, pinned by its seal's digest.

    Attributes:
        tasks: How many task attempts count.
        sha256: SHA-256 of its seal in hexadecimal.
    """

    stage: Text
    stage_attempt: Text
    tasks: Count
    counts: Counts
    sha256: Text


class SealRecord(Sealed, frozen=True, kw_only=True):
    """``_s3commit/open/<job id>/sealed.json``: the stage attempts of a job that count."""

    stages: list[SealedStage]


class SealReference(Struct, frozen=True, kw_only=True):
    """Location, SHA-256 and totals of a seal.

    Attributes:
        location: URI of the seal.
        sha256: SHA-256 of the seal, in hexadecimal: a commit that is given it refuses any other seal.
        tasks: Number of task attempts that count.
        counts: Totals of their output.
        partitions: Totals by partition.
    """

    location: Text
    sha256: Text
    tasks: Count
    counts: Counts
    partitions: dict[Line, Counts]

    def to_dict(self) -> dict[str, Any]:
        """Return the reference as plain values; the partitions are counted, not listed."""
        return {
            "location": self.location,
            "sha256": self.sha256,
            "tasks": self.tasks,
            "files": self.counts.files,
            "bytes": self.counts.bytes,
            "rows": self.counts.rows,
            "partitions": len(self.partitions),
        }

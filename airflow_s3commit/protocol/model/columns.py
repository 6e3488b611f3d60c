"""The columns of written files as records keep them: as Spark's JSON, and in Arrow's encoding."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from airflow_s3commit.protocol.model.codec import Line, Schema, decode, encode


class SparkField(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A column as in Spark's JSON.

    Attributes:
        name: Its name.
        type: Its type. One that Spark lacks has Arrow's name; ``void`` is unknown.
        nullable: Whether it may have nulls.
        metadata: What else Spark knows of it.

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
    """The columns of some files, which records keep as the text of this.

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
        """Read the text.

        Raises:
            InvalidRecord: It is damaged.

        """
        return decode(cls, text.encode(), where)

    def text(self) -> str:
        """Return the text: the same for the same columns.

        Raises:
            InvalidRecord: There are too many columns.

        """
        return encode(self).decode()

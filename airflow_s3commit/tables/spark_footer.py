"""What Spark reads its own schema back from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["SparkFooter"]


@dataclass(frozen=True, slots=True)
class SparkFooter:
    """What the files of a write say of Spark; files written without Spark say nothing.

    Readers of Spark take dates and times in a file of this version, without a key that says otherwise, for
    those of the proleptic Gregorian calendar, which Arrow's are too.

    Attributes:
        version: Version of the Spark that writes.
        row_metadata: The files' Spark schema (without partition columns) as JSON.
        types: Spark's names of the columns' types, by column.

    """

    version: str
    row_metadata: str
    types: Mapping[str, str] = field(default_factory=dict)

    @property
    def parquet(self) -> dict[str, str]:
        """What goes into the footer of a Parquet file."""
        return {
            "org.apache.spark.version": self.version,
            "org.apache.spark.sql.parquet.row.metadata": self.row_metadata,
        }

    @property
    def orc(self) -> dict[str, str]:
        """What goes into the footer of an ORC file."""
        return {"org.apache.spark.version": self.version}

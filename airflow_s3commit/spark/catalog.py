"""A table in the catalog of a Spark session, such as a Hive metastore, and its partitions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from airflow_s3commit.exceptions import InvalidOption
from airflow_s3commit.protocol import publication
from airflow_s3commit.protocol.model.destination import hive_values
from airflow_s3commit.spark.session import getter_of, store_from_conf, store_of_process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_s3commit.store.base import ObjectStore

#: The directory of null in Hive and Spark.
_NULL = "__HIVE_DEFAULT_PARTITION__"

#: Partitions in one statement.
_BATCH = 100


class SparkTable:
    """A table of a Spark session's catalog, for `airflow_s3commit.register_partitions`.

    Args:
        name: The table, as in SQL: ``database.table``.
    """

    def __init__(self, session: SparkSession, name: str) -> None:
        self._session = session
        self.name = name

    @property
    def location(self) -> str:
        """URI of the table's directory."""
        return self._described["Location"]

    @cached_property
    def columns(self) -> Sequence[str]:
        """The partition columns, outermost first."""
        return [column.name for column in self._session.catalog.listColumns(self.name) if column.isPartition]

    def partitions(self) -> Collection[tuple[str, ...]]:
        """Return the values of the table's partitions."""
        rows = self._session.sql(f"SHOW PARTITIONS {self.name}").collect()
        return {tuple(hive_values(row[0]).values()) for row in rows}

    def location_of(self, partition: tuple[str, ...]) -> str:
        """Return the URI of the directory of the partition with these values."""
        return self._describe(f"PARTITION ({self._spec(partition)})")["Location"]

    def add(self, partitions: Sequence[tuple[str, ...]], directories: Sequence[str]) -> None:
        """Add partitions, by their values, in their default directories. Existing ones are not changed."""
        del directories
        self._alter("ADD IF NOT EXISTS", " ", partitions)

    def remove(self, partitions: Sequence[tuple[str, ...]]) -> None:
        """Remove partitions, by their values; their files stay.

        Raises:
            InvalidOption: The table is managed: Spark would delete the partitions' files.
        """
        if self._described["Type"].upper() == "MANAGED":
            raise InvalidOption(
                f"table {self.name} is managed, so its partitions cannot be removed without their files, such"
                f" as {'/'.join(partitions[0])}: make it external, with a LOCATION"
            )
        self._alter("DROP IF EXISTS", ", ", partitions)

    @cached_property
    def _described(self) -> dict[str, str]:
        return self._describe("")

    def _describe(self, partition: str) -> dict[str, str]:
        rows = self._session.sql(f"DESCRIBE TABLE EXTENDED {self.name} {partition}").collect()
        # Columns come first, and a partition's own values before those of its table.
        found: dict[str, str] = {}
        details = False
        for name, value, *_ in rows:
            details = details or name.startswith("# Detailed")
            if details:
                found.setdefault(name, value)
        return found

    def _alter(self, change: str, between: str, partitions: Sequence[tuple[str, ...]]) -> None:
        for start in range(0, len(partitions), _BATCH):
            specs = (f"PARTITION ({self._spec(values)})" for values in partitions[start : start + _BATCH])
            self._session.sql(f"ALTER TABLE {self.name} {change} {between.join(specs)}")

    def _spec(self, partition: Iterable[str]) -> str:
        pairs = zip(self.columns, partition, strict=True)
        return ", ".join(f"{_quoted(name)} = {_literal(value)}" for name, value in pairs)


def register_partitions(
    session: SparkSession, table: str, store: ObjectStore | None = None
) -> publication.RegistrationReport:
    """Make the partitions of a table in a session's catalog those of its newest commit.

    Effect, errors and repeatability are those of `airflow_s3commit.register_partitions`.

    Args:
        session: The session.
        table: The table, as in SQL: ``database.table``.
        store: The store of the table; by default that of the session's conf, with this process's credentials.

    Raises:
        InvalidOption: As there; or the table is managed, and has partitions that the newest commit lacks.
    """
    there = store or store_of_process(store_from_conf(getter_of(session)))
    return publication.register_partitions(there, SparkTable(session, table))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _literal(value: str) -> str:
    if value == _NULL:
        return "null"
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"

"""Asset events of a commit, and the mapper that turns its partitions into runs of consumers.

A commit emits one event for each table asset, and for a partition asset one event for each partition with new
files. These are two assets because Airflow starts ordinary ``schedule=[asset]`` DAGs for events
without a partition key only, and ``PartitionedAssetTimetable`` DAGs for events with one only.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from string import Formatter
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from airflow.partition_mappers.base import PartitionMapper

if TYPE_CHECKING:
    from airflow.sdk import Asset

    from airflow_s3commit.protocol.model.manifest import ManifestRecord
    from airflow_s3commit.xcom import JsonObject

__all__ = ["HivePathMapper", "announce", "event_extra", "hive_values"]

logger = logging.getLogger(__name__)

#: Partitions with counts in an event; the manifest has them all.
_MOST_PARTITIONS: Final = 1_000

#: Characters of a partition key that Airflow's database holds.
_LONGEST_KEY: Final = 250


class HivePathMapper(PartitionMapper):
    """Maps a partition such as ``dt=2013-01-01/region=eu`` to the partition key of a consumer's run.

    ::

        schedule = PartitionedAssetTimetable(
            assets=flight_days,
            default_partition_mapper=HivePathMapper("{dt}", date_column="dt"),
        )

    runs the consumer once for each day, with the partition key ``2013-01-01``, however many regions of that
    day were committed. Airflow's ``ChainMapper`` puts another mapper behind it: with
    ``StartOfMonthMapper(input_format="%Y-%m-%d")`` the runs are of months. Values are unescaped, as Spark
    escapes them in directory names.

    The package's plugin registers it, so that the scheduler knows it.

    :param template: The consumer's key, with columns in braces: ``{dt}``, ``{region}/{dt}``. None keeps the
        path as it is.
    :param date_column: The column of the template that is a date; the consumer's run gets it as its partition
        date. None: runs have none.
    :param date_format: How ``date_column`` writes a date, in the letters of ``strptime``.
    :param max_downstream_keys: As Airflow's own mappers.
    """

    def __init__(
        self,
        template: str | None = None,
        *,
        date_column: str | None = None,
        date_format: str = "%Y-%m-%d",
        max_downstream_keys: int | None = None,
    ) -> None:
        super().__init__(max_downstream_keys=max_downstream_keys)
        self.template = template
        self.date_column = date_column
        self.date_format = date_format
        self._columns = _columns_of(template)
        if date_column is not None and date_column not in self._columns:
            raise ValueError(f"date_column {date_column!r} is not in the template {template!r}")

    def to_downstream(self, key: str) -> str:
        """Return the consumer's key for a partition.

        :param key: The partition, as the commit named it.
        :raises ValueError: It is not a Hive path, or lacks a column of the template.
        """
        values = hive_values(key)
        if self.template is None:
            return key.strip("/")
        missing = [column for column in self._columns if column not in values]
        if missing:
            raise ValueError(f"partition {key!r} has no column {', '.join(missing)}: {self.template!r}")
        return self.template.format_map(values)

    def to_partition_date(self, downstream_key: str) -> datetime | None:
        """Return the date of a consumer's key, at midnight UTC; None if no column is a date.

        :param downstream_key: The consumer's key.
        :raises ValueError: It does not match the template, or its date is invalid.
        """
        if self.date_column is None or self.template is None:
            return None
        found = re.fullmatch(_pattern(self.template), downstream_key)
        if found is None:
            raise ValueError(f"{downstream_key!r} is no key of the template {self.template!r}")
        written = found.group(self._columns.index(self.date_column) + 1)
        return datetime.strptime(written, self.date_format).replace(tzinfo=UTC)

    def serialize(self) -> dict[str, Any]:
        """Return the arguments as plain values, for the scheduler."""
        return {
            **super().serialize(),
            "template": self.template,
            "date_column": self.date_column,
            "date_format": self.date_format,
        }

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> HivePathMapper:
        """Return the mapper that `serialize` described.

        :param data: What it returned.
        """
        return cls(**data)


def hive_values(path: str) -> dict[str, str]:
    """Return the columns and unescaped values of a Hive path.

    :param path: The path, such as ``dt=2013-01-01/region=eu``.
    :raises ValueError: A part of it is no ``column=value``.
    """
    values: dict[str, str] = {}
    for part in path.strip("/").split("/"):
        column, equals, value = part.partition("=")
        if not equals or not column:
            raise ValueError(f"{path!r} is no Hive path: {part!r} is no column=value")
        values[unquote(column)] = unquote(value)
    return values


def event_extra(manifest: ManifestRecord) -> JsonObject:
    """Return the ``extra`` of an asset event: the manifest's summary, and counts by partition.

    ``partition_counts`` has files, bytes and rows of up to 1,000 partitions; ``partitions`` is how many there
    are, and the manifest has them all.

    :param manifest: The commit's manifest.
    """
    from airflow_s3commit.xcom import manifest_summary  # noqa: PLC0415 - keeps DAG parsing light

    counts = {
        name: {"files": count.files, "bytes": count.bytes, "rows": count.rows}
        for name, count in sorted(manifest.partitions.items())[:_MOST_PARTITIONS]
    }
    return {**manifest_summary(manifest), "partition_counts": counts}


def announce(
    events: Any,
    manifest: ManifestRecord,
    *,
    tables: Iterable[Asset],
    partitions: Asset | None,
) -> None:
    """Describe a commit in the events of its assets.

    :param events: The task's ``outlet_events``.
    :param manifest: The commit's manifest.
    :param tables: Assets that get one event.
    :param partitions: The asset that gets an event for each partition with new files; without any, or in an
        unpartitioned dataset, it gets the one that Airflow gives to every outlet.
    """
    extra = event_extra(manifest)
    for table in tables:
        events[table].extra = dict(extra)
    if partitions is None:
        return
    events[partitions].extra = dict(extra)
    keys = [name for name, count in manifest.partitions.items() if name and count.files]
    if long := [key for key in keys if len(key) > _LONGEST_KEY]:
        logger.warning("No events for %d partitions with names over 250 characters: %s", len(long), long[0])
    events[partitions].add_partitions([key for key in keys if len(key) <= _LONGEST_KEY])


def _columns_of(template: str | None) -> list[str]:
    columns: list[str] = []
    for _, column, spec, conversion in Formatter().parse(template or ""):
        if column is None:
            continue
        if not column or spec or conversion or "." in column or "[" in column:
            raise ValueError(f"template {template!r}: write columns as {{name}} and nothing else in braces")
        columns.append(column)
    if template is not None and not columns:
        raise ValueError(f"template {template!r} has no column in braces")
    return columns


def _pattern(template: str) -> str:
    parts = []
    for text, column, _, _ in Formatter().parse(template):
        parts.append(re.escape(text) + ("(.+?)" if column is not None else ""))
    return "".join(parts)

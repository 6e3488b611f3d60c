"""Asset events and lineage of a commit, and the mapper from its partitions to consumers' partition keys.

A commit emits one event for each table asset, and one event for each partition with new files for a partition
asset. These must be two assets, because Airflow starts ``schedule=[asset]`` DAGs only for events without a
partition key, and ``PartitionedAssetTimetable`` DAGs only for events with a partition key. The table's event
has the partition key of the run that committed, if it has one: no task can send an event without it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from airflow_s3commit.airflow_version import PartitionMapper, has_partition_events, lacks
from airflow_s3commit.protocol.model.destination import Destination, hive_values

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Asset

    from airflow_s3commit.protocol.model.manifest import Manifest

__all__ = ["HivePathMapper", "announce", "event_extra", "hive_values"]

logger = logging.getLogger(__name__)

#: Maximum number of partitions with counts in an event; the manifest has all of them.
_MOST_PARTITIONS: Final = 1_000

#: A column in a mapper's template.
_COLUMN: Final = re.compile(r"\{([^{}:!.\[]+)\}")

#: Maximum length of a partition key in Airflow's database, in characters.
_LONGEST_KEY: Final = 250


class HivePathMapper(PartitionMapper):
    """Maps a partition such as ``dt=2013-01-01/region=eu`` to the partition key of a consumer's run.

    ::

        schedule = PartitionedAssetTimetable(
            assets=flight_days,
            default_partition_mapper=HivePathMapper("{dt}", date_column="dt"),
        )

    runs the consumer once a day, with the partition key ``2013-01-01``, for any number of committed regions.
    Airflow's ``ChainMapper`` combines it with others, such as ``StartOfMonthMapper(input_format="%Y-%m-%d")``
    for monthly runs. The mapper undoes Spark's escaping in directory names.

    The package's plugin registers it with the scheduler.

    :param template: The consumer's key, with columns in braces, as ``{region}/{dt}``; None keeps the path.
    :param date_column: The template's column with the partition date of a consumer's run; None for no date.
    :param date_format: Format of ``date_column``, as for ``strptime``.
    :param max_downstream_keys: As in Airflow's own mappers.
    :raises ValueError: The template is malformed, or does not have ``date_column``.
    """

    def __init__(
        self,
        template: str | None = None,
        *,
        date_column: str | None = None,
        date_format: str = "%Y-%m-%d",
        max_downstream_keys: int | None = None,
    ) -> None:
        # Airflow 3.2 does not know the argument.
        limit = {} if max_downstream_keys is None else {"max_downstream_keys": max_downstream_keys}
        super().__init__(**limit)
        self.template = template
        self.date_column = date_column
        self.date_format = date_format
        self._columns = _COLUMN.findall(template or "")
        if template is not None and (not self._columns or {*"{}"} & {*_COLUMN.sub("", template)}):
            raise ValueError(f"template {template!r}: write columns as {{name}} and nothing else in braces")
        if date_column is not None and date_column not in self._columns:
            raise ValueError(f"date_column {date_column!r} is not in the template {template!r}")

    def to_downstream(self, key: str) -> str:
        """Return the consumer's key for a partition; `ValueError` if it lacks a column of the template."""
        values = hive_values(key)
        if self.template is None:
            return key.strip("/")
        missing = [column for column in self._columns if column not in values]
        if missing:
            raise ValueError(
                f"partition {key!r} has no column {', '.join(missing)} of the template {self.template!r}"
            )
        return _COLUMN.sub(lambda column: values[column[1]], self.template)

    def to_partition_date(self, downstream_key: str) -> datetime | None:
        """Return the date in a consumer's key, in UTC; None without a ``date_column``."""
        if self.date_column is None or self.template is None:
            return None
        # The template's separators may be in values too, so a date must have as many words as its format.
        date = re.sub("%.", r"[^\\W_]+", re.escape(self.date_format))
        parts = [re.escape(part) for part in _COLUMN.split(self.template)]
        parts[1::2] = [f"({date})" if name == self.date_column else "(.+?)" for name in self._columns]
        found = re.fullmatch("".join(parts), downstream_key)
        if found is None:
            raise ValueError(f"the key {downstream_key!r} does not match the template {self.template!r}")
        text = found.group(self._columns.index(self.date_column) + 1)
        return datetime.strptime(text, self.date_format).replace(tzinfo=UTC)

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
        """Return the mapper with the arguments that `serialize` returned."""
        return cls(**data)


def event_extra(manifest: Manifest) -> dict[str, Any]:
    """Return the ``extra`` of a table's event: the manifest's summary, and counts by partition.

    ``partition_counts`` has files, bytes and rows of up to 1,000 partitions, and ``partitions`` is the number
    of all partitions. The manifest has the counts of all.
    """
    counts = {
        name: {"files": count.files, "bytes": count.bytes, "rows": count.rows}
        for name, count in sorted(manifest.partitions.items())[:_MOST_PARTITIONS]
    }
    return {**manifest.to_dict(), "partition_counts": counts}


def announce(events: Any, manifest: Manifest, *, tables: Iterable[Asset], partitions: Asset | None) -> None:
    """Describe a commit in the events of its assets.

    :param events: The task's ``outlet_events``.
    :param tables: Assets that get one event each.
    :param partitions: The asset that gets an event for each partition with new files. Without new files, or
        for an unpartitioned dataset, it gets the single event that Airflow emits for every outlet. Airflow
        stores one ``extra`` with all of these events, so it has no counts if there are several partitions.
    """
    extra = event_extra(manifest)
    for table in tables:
        events[table].extra = dict(extra)
    if partitions is None:
        return
    if len(manifest.partitions) > 1:
        del extra["partition_counts"]
    events[partitions].extra = extra
    if not has_partition_events():
        logger.warning("%s: %s has one event", lacks("events of partitions", "3.3"), partitions.name)
        return
    keys = [name for name, count in manifest.partitions.items() if name and count.files]
    if long := [key for key in keys if len(key) > _LONGEST_KEY]:
        logger.warning(
            "No asset events for %d partitions with names over %d characters, such as %s",
            len(long),
            _LONGEST_KEY,
            long[0],
        )
    events[partitions].add_partitions([key for key in keys if len(key) <= _LONGEST_KEY])


def lineage_of(manifest: Manifest | None) -> OperatorLineage[Any, Any]:
    """Return a commit's lineage: its destination as an output, with counts, and its job's id as the version.

    Only OpenLineage's provider, if it is installed, calls this. Without a commit it is empty.
    """
    from airflow.providers.openlineage.extractors import OperatorLineage  # noqa: PLC0415 - optional
    from openlineage.client.event_v2 import OutputDataset  # noqa: PLC0415
    from openlineage.client.facet_v2 import (  # noqa: PLC0415
        DatasetFacet,
        dataset_version_dataset,
        lifecycle_state_change_dataset,
        output_statistics_output_dataset,
    )

    if manifest is None:
        return OperatorLineage()
    facets: dict[str, DatasetFacet] = {
        "version": dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=manifest.job_id)
    }
    if manifest.replaced.files:
        change = lifecycle_state_change_dataset.LifecycleStateChange.OVERWRITE
        facets["lifecycleStateChange"] = lifecycle_state_change_dataset.LifecycleStateChangeDatasetFacet(
            lifecycleStateChange=change
        )
    statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
        rowCount=manifest.counts.rows, size=manifest.counts.bytes, fileCount=manifest.counts.files
    )
    place = Destination.parse(manifest.destination)
    output = OutputDataset(
        # OpenLineage's convention for S3, by which other tools recognise the dataset.
        namespace=f"s3://{place.bucket}",
        name=place.prefix.rstrip("/") or "/",
        facets=facets,
        outputFacets={"outputStatistics": statistics},
    )
    return OperatorLineage(outputs=[output])

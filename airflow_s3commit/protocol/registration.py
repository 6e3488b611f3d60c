"""Make a catalog's partitions of a table those that have files at the newest generation of its log."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from msgspec import Struct

from airflow_s3commit.exceptions import DestinationChanged, InvalidDestination, InvalidOption
from airflow_s3commit.protocol.model.codec import Plain
from airflow_s3commit.protocol.model.destination import Destination, hive_values, is_data, split_uri
from airflow_s3commit.protocol.model.layout import owner_of
from airflow_s3commit.protocol.model.table import Table
from airflow_s3commit.protocol.steps.fold import read_table
from airflow_s3commit.store.base import ObjectStore

#: A partition, by the values of its columns, outermost first.
Values = tuple[str, ...]

#: Times to begin again because another job has committed.
_TRIES = 20


class Catalog(Protocol):
    """A table of a catalog. Each method is repeatable: what is there is added, and what is gone removed."""

    @property
    def name(self) -> str:
        """The table's name, for messages."""

    @property
    def location(self) -> str:
        """URI of the table's directory."""

    @property
    def columns(self) -> Sequence[str]:
        """The partition columns, outermost first."""

    def partitions(self) -> Collection[Values]:
        """Return the partitions that the catalog has."""

    def location_of(self, partition: Values) -> str:
        """Return the URI of the directory of a partition that the catalog has."""

    def add(self, partitions: Sequence[Values], directories: Sequence[str]) -> None:
        """Add partitions, with their directories relative to the table's."""

    def remove(self, partitions: Sequence[Values]) -> None:
        """Remove partitions, and leave their files alone."""


class RegistrationReport(Plain, Struct, frozen=True, kw_only=True):
    """What a registration has changed in a catalog.

    Attributes:
        destination: URI of the table.
        generation: The generation whose partitions the catalog has; 0 without a commit.
        partitions: How many they are.
        added: Directories of the partitions that were added.
        removed: Directories of the partitions that were removed.
    """

    destination: str
    generation: int
    partitions: int
    added: list[str]
    removed: list[str]


def register_partitions(store: ObjectStore, catalog: Catalog) -> RegistrationReport:
    """Make a catalog's partitions of a table those that have files at the newest generation of its log.

    Before: any moment, also after an abort: Spark may have added and removed partitions for a write that was
    not committed. After: the catalog has the partitions of the newest commit. Partitions elsewhere, and with
    files that no job of the log has written, stay. Repeatable, and safe to run beside commits and beside
    other registrations: the last to end has seen the newest commit.

    Args:
        store: The store of the table.
        catalog: The table in its catalog.

    Raises:
        InvalidOption: The catalog's table has no partition columns, or others than the directories; or a
            partition has files that were replaced and are retained.
        DestinationChanged: Other jobs keep committing.
        InvalidRecord: The log is damaged.
    """
    place = Destination.parse(catalog.location)
    if not catalog.columns:
        raise InvalidOption(f"table {catalog.name} has no partition columns: there is nothing to register")
    added: set[str] = set()
    removed: set[str] = set()
    table = read_table(store, place)
    for _ in range(_TRIES):
        wanted, found = _wanted(place, table, catalog.columns), {*catalog.partitions()}
        if new := {values: directory for values, directory in wanted.items() if values not in found}:
            catalog.add(list(new), list(new.values()))
        gone = {}
        for values in sorted(found - wanted.keys()):
            directory = _below(place, catalog.location_of(values))
            # Without a log nothing says whose a file is.
            if directory and not _has_files(store, place, directory, any_name=not table.head.number):
                gone[values] = directory
        if gone:
            catalog.remove(list(gone))
        added.update(new.values())
        removed.update(gone.values())
        before, table = table, read_table(store, place)
        # A registration after a newer commit may have ended meanwhile, and this one may have undone it.
        if table.generation == before.generation:
            return RegistrationReport(
                destination=place.uri,
                generation=table.generation,
                partitions=len(table.live),
                added=sorted(added),
                removed=sorted(removed),
            )
    raise DestinationChanged(
        f"other jobs have committed to {place.uri} {_TRIES} times while its partitions were being registered"
        f" as {catalog.name}; register them again"
    )


def _wanted(place: Destination, table: Table, columns: Sequence[str]) -> dict[Values, str]:
    """Return the directories of a table by the values of their partition.

    Readers of a catalog list directories, so one is refused in which replaced files are retained.
    """
    left = (*table.retained.values(), *table.freed.values())
    retained = {name for one in left for name, numbers in one.pieces.items() if numbers}
    if crowded := sorted(retained & table.live.keys()):
        raise InvalidOption(
            f"partition {crowded[0]!r} of {place.uri} has files that generation {table.generation} or one"
            " before has replaced and retains: readers of a catalog list directories, and would read them"
            " beside the new ones. Commit without retain, or wait until a sweep has deleted them"
        )
    return {_values(place.uri, directory, columns): directory for directory in sorted(table.live)}


def _below(place: Destination, uri: str) -> str:
    """Return the directory of a URI below a destination; empty if it is elsewhere."""
    try:
        bucket, key = split_uri(uri)
    except InvalidDestination:
        return ""
    return (place.relative(key) or "").rstrip("/") if bucket == place.bucket else ""


def _has_files(store: ObjectStore, place: Destination, directory: str, *, any_name: bool) -> bool:
    """Return whether a directory has data objects that no job's name claims, or of any name.

    Files of jobs that are not in the table any more, or not yet, do not count.
    """
    for info in store.list_objects(place.bucket, place.key(f"{directory}/")):
        relative = place.relative(info.key) or ""
        if is_data(relative) and (any_name or owner_of(info.key) is None):
            return True
    return False


def _values(destination: str, directory: str, columns: Sequence[str]) -> Values:
    try:
        values = hive_values(directory)
    except ValueError:
        values = {}
    # Glue and Hive keep the names of columns in lower case.
    if [name.lower() for name in values] != [name.lower() for name in columns]:
        raise InvalidOption(
            f"directory {directory!r} of {destination} is not a partition by {', '.join(columns)}, the"
            " partition columns of the catalog"
        )
    return tuple(values.values())

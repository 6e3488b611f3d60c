"""Tell by their names which files a table has, and which it had and retains."""

from __future__ import annotations

from collections.abc import Callable

from airflow_s3commit.protocol.metadata.log import newest_entries
from airflow_s3commit.protocol.metadata.snapshot import read_snapshot
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.layout import owner_of, partition_of
from airflow_s3commit.protocol.model.snapshot import TableSnapshot
from airflow_s3commit.store.base import ObjectStore


class KnownFiles:
    """The files of a table, and those that it had and retains, by the jobs in their names.

    Args:
        destination: The destination.
        snapshot: The table; None for one without a commit.

    """

    def __init__(self, destination: Destination, snapshot: TableSnapshot | None) -> None:
        self._prefix = destination.prefix
        self._snapshot = snapshot or TableSnapshot(destination.uri)
        self._live: dict[str, frozenset[str]] = {}
        self._retained: dict[str, frozenset[str]] = {}

    def is_live(self, key: str) -> bool:
        """Return whether a file is one of the table's."""
        owner, partition = owner_of(key), self._partition(key)
        if partition not in self._live:
            self._live[partition] = self._snapshot.live_jobs(partition)
        return owner in self._live[partition]

    def is_retained(self, key: str) -> bool:
        """Return whether a file has left the table, and is or was retained."""
        owner, partition = owner_of(key), self._partition(key)
        if partition not in self._retained:
            self._retained[partition] = self._snapshot.retained_jobs(partition)
        return owner in self._retained[partition]

    def _partition(self, key: str) -> str:
        return partition_of(key[len(self._prefix) :])


def known_files(store: ObjectStore, destination: Destination, *, at_least: int = 0) -> KnownFiles:
    """Read which files a table has and retains.

    Args:
        store: The store of the destination.
        destination: The destination.
        at_least: Number of an entry of the log that is known to be there.

    Raises:
        InvalidRecord: An entry of the log is damaged or missing.

    """
    return KnownFiles(destination, read_snapshot(store, destination, at_least=at_least))


def is_retained_at(store: ObjectStore, destination: Destination) -> Callable[[str], bool]:
    """Return a function that tells by its key whether a file has left the table and is retained.

    Reads the log at the first call: its newest entry alone, if no commit has retained files.

    Raises:
        InvalidRecord: Raised by the function: an entry of the log is damaged or missing.

    """
    read: list[KnownFiles | None] = []

    def is_retained(key: str) -> bool:
        if not read:
            newest = next(newest_entries(store, destination, 1), None)
            retains = newest is not None and newest.retaining
            read.append(known_files(store, destination) if retains else None)
        return read[0] is not None and read[0].is_retained(key)

    return is_retained

"""The history of a table: its commits, newest first."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from airflow_s3commit.protocol.metadata.log import newest_entries
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.manifest import ManifestRecord
from airflow_s3commit.store.base import ObjectStore


def history(
    store: ObjectStore, destination: str | Destination, *, limit: int | None = None
) -> Iterator[ManifestRecord]:
    """Yield the manifest of each commit to a destination, newest first; none without a log.

    A manifest's ``generation`` is the number of its commit in the log. Numbers in between are of jobs that
    were aborted. The log is read while the caller iterates: stopping early saves requests. May be repeated.

    Args:
        store: The store of the destination.
        destination: URI of the dataset's directory, or a `Destination`.
        limit: How many commits to return; None for all.

    Raises:
        InvalidRecord: An entry of the log is damaged or missing.

    """
    place = Destination.of(destination)
    entries = newest_entries(store, place, limit, limit) if limit else newest_entries(store, place)
    return islice((entry.manifest for entry in entries if entry.manifest is not None), limit)

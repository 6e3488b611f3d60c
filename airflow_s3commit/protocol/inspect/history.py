"""The history of a table: its commits, newest first."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from airflow_s3commit.protocol.metadata.log import newest_entries
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.manifest import ManifestRecord
from airflow_s3commit.store.base import ObjectStore

#: Entries to read at once where the caller wants all of them.
_AT_ONCE = 64


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
    entries = newest_entries(store, Destination.of(destination), min(limit or _AT_ONCE, _AT_ONCE))
    return islice((entry.manifest for entry in entries if entry.manifest is not None), limit)

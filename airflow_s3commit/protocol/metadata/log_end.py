"""Find the end of a log: by a listing, which the marker or a checkpoint shortens, or what is remembered.

A process remembers the entry that it created last in each log, and the ``_SUCCESS`` that it wrote then. It
goes by neither alone: a listing shows whether the entry is still the newest, and a delete on the condition of
its ETag whether the marker is still there.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from airflow_s3commit.exceptions import InvalidRecord, NoSuchKey
from airflow_s3commit.protocol.model.codec import decode, largest
from airflow_s3commit.protocol.model.destination import join_uri
from airflow_s3commit.protocol.model.layout import (
    SUCCESS,
    checkpoint_number,
    checkpoints_prefix,
    entry_key,
    entry_number,
    log_prefix,
)
from airflow_s3commit.protocol.model.manifest import SuccessData
from airflow_s3commit.store.headers import store_without_headers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_s3commit.protocol.model.destination import Destination
    from airflow_s3commit.protocol.model.job import SavedSuccess
    from airflow_s3commit.protocol.model.log import LogEntry
    from airflow_s3commit.store.base import ObjectStore

#: Entries on one page of a listing. With more, the marker says where the last ones are.
_PAGE = 1_000

#: The end that this process gave to each log, by store and destination.
_ends: WeakKeyDictionary[ObjectStore, dict[str, LogEnd]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The end of a log as a process left it.

    Attributes:
        entry: The newest entry.
        etag: Its ETag.
        marker: The ``_SUCCESS`` that the process wrote; None if it wrote none.

    """

    entry: LogEntry
    etag: str
    marker: SavedSuccess | None = None


def find_head(store: ObjectStore, destination: Destination, marked: int = 0) -> int:
    """Return the number of the newest entry of a log by listing it; 0 without one.

    Takes one request for a thousand entries, and three for any log whose last commit has finished; one if
    the caller has read the marker. While there is no marker, checkpoints say where the end is: one request
    more for each 13,000 entries.

    Args:
        store: The store of the destination.
        destination: The destination.
        marked: Number of the entry that ``_SUCCESS`` names; 0 if it is not known.

    """

    def listed(after: int) -> Iterator[int]:
        start = entry_key(destination, after) if after else None
        keys = store.list_objects(
            destination.bucket, log_prefix(destination), recursive=False, start_after=start
        )
        return (number for info in keys if (number := entry_number(destination, info.key)) is not None)

    if marked and (head := max(listed(marked - 1), default=0)):
        return head
    first = list(islice(listed(0), _PAGE))
    head = first[-1] if first else 0
    if len(first) < _PAGE:
        return head
    # A marker or checkpoint is used only if the entry that it names exists.
    marked = _marked(store, destination)
    if marked <= head:
        listing = store.list_objects(destination.bucket, checkpoints_prefix(destination), recursive=False)
        marked = max((checkpoint_number(destination, info.key) or 0 for info in listing), default=0)
    return max(listed(marked - 1) if marked > head else (), default=0) or max(listed(head), default=head)


def remember_end(store: ObjectStore, end: LogEnd) -> None:
    """Remember the entry that this process has created at the end of a log.

    Before: its manifest or record of abort is written.

    Args:
        store: The store of the set-ups to come.
        end: The entry, and the marker of its commit.

    """
    _ends.setdefault(store_without_headers(store), {})[end.entry.destination] = end


def remembered_marker(store: ObjectStore, destination: Destination, number: int) -> SavedSuccess | None:
    """Return the ``_SUCCESS`` that this process wrote last, if it belongs to an entry; it may be another now.

    Args:
        store: The store of the destination.
        destination: The destination.
        number: Number of the entry, the newest that the caller knows of.

    """
    end = _ends.get(store_without_headers(store), {}).get(destination.uri)
    return end.marker if end is not None and end.entry.number == number else None


def own_entry(store: ObjectStore, destination: Destination) -> LogEntry | None:
    """Return the entry that this process created last in a log; others may follow it. None if it has none."""
    end = _ends.get(store_without_headers(store), {}).get(destination.uri)
    return end.entry if end is not None else None


def remembered_end(store: ObjectStore, destination: Destination) -> LogEntry | None:
    """Return the newest entry of a log if this process remembers it; a listing shows if it still is that."""
    end = _ends.get(store_without_headers(store), {}).get(destination.uri)
    if end is None:
        return None
    entry = end.entry
    after = entry_key(destination, entry.number - 1) if entry.number > 1 else None
    bucket, prefix = destination.bucket, log_prefix(destination)
    listed = store.list_objects(bucket, prefix, recursive=False, start_after=after)
    there = [(info.key, info.etag) for info in islice(listed, 2)]
    return entry if there == [(entry_key(destination, entry.number), end.etag)] else None


def _marked(store: ObjectStore, destination: Destination) -> int:
    """Return the number of the entry that ``_SUCCESS`` was derived from; 0 if it names none."""
    key = destination.key(SUCCESS)
    with suppress(NoSuchKey, InvalidRecord):
        body = store.get(destination.bucket, key, limit=largest(SuccessData)).body
        return decode(SuccessData, body, join_uri(destination.bucket, key)).generation or 0
    return 0

"""Find the end of a log: by a listing, which the marker or a checkpoint shortens, or what is remembered."""

from __future__ import annotations

from contextlib import suppress
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
from airflow_s3commit.protocol.model.success import SuccessData
from airflow_s3commit.store.headers import store_without_headers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_s3commit.protocol.model.destination import Destination
    from airflow_s3commit.protocol.model.log import LogEntry
    from airflow_s3commit.store.base import ObjectStore

#: Entries on one page of a listing. With more, the marker says where the last ones are.
_PAGE = 1_000

#: The newest entry that this process created in each log, by store and destination, and its ETag.
_ends: WeakKeyDictionary[ObjectStore, dict[str, tuple[LogEntry, str]]] = WeakKeyDictionary()


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


def remember_end(store: ObjectStore, entry: LogEntry, etag: str) -> None:
    """Remember an entry that this process has created at the end of a log.

    Before: its manifest or record of abort is written.

    Args:
        store: The store of the set-ups to come.
        entry: The entry.
        etag: Its ETag.

    """
    _ends.setdefault(store_without_headers(store), {})[entry.destination] = entry, etag


def remembered_end(store: ObjectStore, destination: Destination) -> LogEntry | None:
    """Return the newest entry of a log if this process remembers it; a listing shows if it still is that."""
    entry, etag = _ends.get(store_without_headers(store), {}).get(destination.uri, (None, ""))
    if entry is None:
        return None
    after = entry_key(destination, entry.number - 1) if entry.number > 1 else None
    bucket, prefix = destination.bucket, log_prefix(destination)
    listed = store.list_objects(bucket, prefix, recursive=False, start_after=after)
    there = [(info.key, info.etag) for info in islice(listed, 2)]
    return entry if there == [(entry_key(destination, entry.number), etag)] else None


def _marked(store: ObjectStore, destination: Destination) -> int:
    """Return the number of the entry that ``_SUCCESS`` was derived from; 0 if it names none."""
    key = destination.key(SUCCESS)
    with suppress(NoSuchKey, InvalidRecord):
        body = store.get(destination.bucket, key, limit=largest(SuccessData)).body
        return decode(SuccessData, body, join_uri(destination.bucket, key)).generation or 0
    return 0

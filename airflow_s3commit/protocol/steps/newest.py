"""Read the log from its end, several entries at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from airflow_s3commit.exceptions import InvalidRecord, NoSuchKey
from airflow_s3commit.protocol.model.codec import largest
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.entry import Entry
from airflow_s3commit.protocol.model.job import Position
from airflow_s3commit.protocol.model.layout import entry_key
from airflow_s3commit.protocol.steps.fold import entries_after
from airflow_s3commit.protocol.steps.log import Read, decode_entry, find_head, read_entry, refuse_copy
from airflow_s3commit.store.base import Fetched, Get, ObjectStore
from airflow_s3commit.store.execute import in_batches, outcomes

#: Entries to read at once.
AT_ONCE = 64

#: An entry; or why it cannot be read: it is missing or damaged.
Outcome: TypeAlias = Read | NoSuchKey | InvalidRecord


def newest_entry(store: ObjectStore, home: Destination) -> Read | None:
    """Return the newest entry of a log; None without a log.

    Raises:
        InvalidRecord: It is damaged, or of another destination.

    """
    newest, number = None, find_head(store, home)
    if number:
        newest = read_entry(store, home, number)
        refuse_copy(home, newest.entry)
    # The listing may lag, and show none.
    for read in entries_after(store, home, newest.position if newest is not None else Position()):
        newest = read
    return newest


def newest_entries(store: ObjectStore, home: Destination, *, at_once: int = AT_ONCE) -> Iterator[Read]:
    """Yield the entries of a log, newest first. Raises as `newest_entry` and `entries_before`."""
    newest = newest_entry(store, home)
    if newest is not None:
        yield newest
        yield from entries_before(store, home, newest, at_once=at_once)


def entries_before(
    store: ObjectStore, home: Destination, read: Read, *, at_once: int = AT_ONCE
) -> Iterator[Read]:
    """Yield the entries before one, newest first, each checked against the one after it.

    Args:
        store: The store of the destination.
        home: The destination.
        read: The entry to begin before.
        at_once: How many to read at once.

    Raises:
        InvalidRecord: An entry is missing or damaged, or another one follows it.

    """
    for _, outcome in fetch_entries(store, home, range(read.entry.number - 1, 0, -1), at_once=at_once):
        where = join_uri(home.bucket, entry_key(home, read.entry.number - 1))
        if isinstance(outcome, NoSuchKey):
            raise InvalidRecord(f"{where} is missing; see: s3commit verify {home.uri}") from outcome
        if isinstance(outcome, InvalidRecord):
            raise outcome
        if outcome.sha256 != read.entry.prev or outcome.entry.destination != home.uri:
            raise InvalidRecord(
                f"{where} is not the entry that the next one follows; see: s3commit verify {home.uri}"
            )
        yield outcome
        read = outcome


def fetch_entries(
    store: ObjectStore, home: Destination, numbers: Iterable[int], *, at_once: int = AT_ONCE
) -> Iterator[tuple[int, Outcome]]:
    """Read entries by their numbers, several at once, and yield each in the given order. Checks no chain.

    Args:
        store: The store of the destination.
        home: The destination.
        numbers: The numbers.
        at_once: How many to read at once.

    Raises:
        S3CommitError: A request failed.

    """
    limit = largest(Entry)
    for batch in in_batches(numbers, at_once):
        calls = ((number, Get(home.bucket, entry_key(home, number), limit)) for number in batch)
        fetched = dict(outcomes(store, calls, NoSuchKey, InvalidRecord))
        for number in batch:
            outcome = fetched.pop(number)
            if isinstance(outcome, Fetched):
                try:
                    yield number, decode_entry(outcome.body, home, number)
                except InvalidRecord as error:
                    yield number, error
            else:
                assert isinstance(outcome, NoSuchKey | InvalidRecord)
                yield number, outcome

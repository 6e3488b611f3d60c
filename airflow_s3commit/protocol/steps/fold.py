"""Read the table at a generation: from the newest checkpoint on, entry by entry."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress

from airflow_s3commit.exceptions import InvalidRecord, NoSuchKey, S3CommitError
from airflow_s3commit.protocol.model.codec import CHECKPOINT_BYTES, largest
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.entry import Entry
from airflow_s3commit.protocol.model.job import Position
from airflow_s3commit.protocol.model.layout import (
    checkpoint_key,
    checkpoint_number,
    checkpoints_prefix,
    entry_key,
)
from airflow_s3commit.protocol.model.table import Left, Table
from airflow_s3commit.protocol.steps import checkpoint
from airflow_s3commit.protocol.steps.log import Log, Read, decode_entry, find_head, read_entry, refuse_copy
from airflow_s3commit.store.base import Fetched, Get, ObjectStore
from airflow_s3commit.store.execute import in_batches

logger = logging.getLogger(__name__)

#: Entries to read at once.
_AHEAD = 16

#: Entries from one checkpoint to the next. A prime: no rhythm of commits and aborts keeps missing it.
CHECKPOINT_EVERY = 13


def read_table(store: ObjectStore, home: Destination, number: int | None = None) -> Table:
    """Return the table after an entry, or after the newest.

    Args:
        store: The store of the destination.
        home: The destination.
        number: The entry, of any kind; None for the newest that there is by the end of this call.

    Raises:
        NoSuchKey: There is no entry of this number.
        InvalidRecord: An entry is damaged, or does not follow the one before.

    """
    table = _from_checkpoint(store, home, number)
    listed = find_head(store, home) if number is None else number
    for read in entries_after(store, home, table.head, number, listed=listed):
        table.apply(read.entry, read.sha256)
    return table


def table_at_head(store: ObjectStore, home: Destination, log: Log) -> Table:
    """Return the table at the head of a log, without reading again what the log has read.

    Raises:
        InvalidRecord: An entry is damaged, missing, or does not follow the one before.

    """
    before = log.reads[0].entry.number - 1 if log.reads else log.head.number
    table = read_table(store, home, before)
    for read in log.reads:
        _refuse_gap(home, read, table.head.sha256)
        table.apply(read.entry, read.sha256)
    return table


def what_left(store: ObjectStore, home: Destination, number: int) -> Left:
    """Return what a commit took from the table.

    Raises:
        NoSuchKey: There is no entry of this number.
        InvalidRecord: An entry is damaged, or does not follow the one before.

    """
    table = read_table(store, home, number - 1)
    read = next(entries_after(store, home, table.head, number))
    return table.apply(read.entry, read.sha256)


def entries_after(
    store: ObjectStore,
    home: Destination,
    position: Position,
    last: int | None = None,
    *,
    listed: int = 0,
) -> Iterator[Read]:
    """Yield the entries after a position, each checked against the one before.

    Args:
        store: The store of the destination.
        home: The destination.
        position: Where to begin.
        last: The last entry to yield; None to go on until one is missing.
        listed: The newest entry that a listing has shown: those up to it are read several at once.

    Raises:
        NoSuchKey: The last entry, or one before it, is missing.
        InvalidRecord: An entry is damaged, missing, or does not follow the one before.

    """
    digest = position.sha256
    for read in _in_order(store, home, position.number + 1, last, last or listed):
        refuse_copy(home, read.entry)
        _refuse_gap(home, read, digest)
        yield read
        digest = read.sha256


def _refuse_gap(home: Destination, read: Read, digest: str) -> None:
    if read.entry.prev != digest:
        where = join_uri(home.bucket, entry_key(home, read.entry.number))
        raise InvalidRecord(f"{where} does not follow the entry before it in the log of {home.uri}")


def _in_order(
    store: ObjectStore, home: Destination, number: int, last: int | None, known: int
) -> Iterator[Read]:
    """Yield entries by their keys; several are read at once up to one that is known to be there."""
    for numbers in in_batches(range(number, known + 1), _AHEAD):
        calls = [(one, Get(home.bucket, entry_key(home, one), largest(Entry))) for one in numbers]
        found = dict(store.perform(calls))
        for one in numbers:
            outcome = found.pop(one)
            if isinstance(outcome, NoSuchKey) and last is None:
                where = join_uri(home.bucket, entry_key(home, one))
                raise InvalidRecord(f"{where} is missing, and entry {known} is there") from outcome
            if isinstance(outcome, S3CommitError):
                raise outcome
            assert isinstance(outcome, Fetched)
            yield decode_entry(outcome.body, home, one)
    number = max(number, known + 1)
    with suppress(NoSuchKey):
        while last is None:
            yield read_entry(store, home, number)
            number += 1


def write_checkpoint(store: ObjectStore, home: Destination, entry: Entry) -> None:
    """Write a checkpoint after every thirteenth entry. Never fails: checkpoints only save requests."""
    if entry.number % CHECKPOINT_EVERY:
        return
    try:
        body = checkpoint.to_bytes(read_table(store, home, entry.number), home.uri)
        store.put(home.bucket, checkpoint_key(home, entry.number), body, content_type="application/gzip")
    except S3CommitError as error:
        logger.warning("%s: no checkpoint of entry %d: %s", home.uri, entry.number, error)


def _from_checkpoint(store: ObjectStore, home: Destination, last: int | None) -> Table:
    """Return the table of the newest checkpoint up to an entry; an empty one without a checkpoint."""
    if last is not None and last < CHECKPOINT_EVERY:
        return Table()
    listed = store.list_objects(home.bucket, checkpoints_prefix(home), recursive=False)
    numbers = {checkpoint_number(home, info.key) or 0 for info in listed}
    for number in sorted(numbers, reverse=True):
        if not number or (last is not None and number > last):
            continue
        key = checkpoint_key(home, number)
        where = join_uri(home.bucket, key)
        try:
            body = store.get(home.bucket, key, limit=CHECKPOINT_BYTES).body
            table = checkpoint.from_bytes(body, home.uri, where)
            if table.head == read_entry(store, home, number).position:
                return table
            logger.warning("passing over %s: it is not of this log", where)
        except (S3CommitError, ValueError, MemoryError) as error:
            logger.warning("passing over a checkpoint: %s", error)
    return Table()

"""The log of a destination: entries with numbers, each created by a process that has read all before it.

An entry exists once and never changes, so a number is free or taken, and the first to create it wins. Each
names the SHA-256 of the one before, so every reader notices entries that were mixed from two logs.

A listing may lag; it only hints where the end is. From there entries are read by key until one is missing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from airflow_s3commit.exceptions import (
    AccessDenied,
    ForeignRecord,
    InvalidRecord,
    NoSuchKey,
    PreconditionFailed,
)
from airflow_s3commit.protocol.metadata.context import JobContext, find_record, has_object
from airflow_s3commit.protocol.model.codec import decode, encode, largest, sha256
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.job import JobRecord, Position
from airflow_s3commit.protocol.model.layout import (
    CHECKPOINTS,
    LOG,
    checkpoint_key,
    checkpoint_number,
    entry_key,
    entry_number,
    job_key,
    receipt_key,
)
from airflow_s3commit.protocol.model.table import Entry, Table
from airflow_s3commit.store.base import Head, ObjectInfo, ObjectStore
from airflow_s3commit.store.execute import outcomes

logger = logging.getLogger(__name__)

#: Entries on a page of a listing.
_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class Read:
    """An entry as it was read, with the SHA-256 of its bytes."""

    entry: Entry
    sha256: str

    @property
    def position(self) -> Position:
        """Its number and digest."""
        return Position(self.entry.number, self.sha256)


class Log:
    """A log as one process has read it, for one job.

    Args:
        base: Where to begin, before the job's own entry; None if unknown: then the newest is read first.

    Attributes:
        head: The newest entry that was read, by its position.
        newest: That entry; None if the process begins at a base and has read nothing after it.
        end: The entry that ended the job; None if none was read.
        after_base: The entries after the base, in their order.
        reads: Every entry that was read, in their order, up to the head.
        table: The table after an entry that was read; `table_at_head` brings it to the head.
        publishable_at: Number of the head after which the commit was found to be publishable; -1 before.
    """

    def __init__(self, context: JobContext, base: Position | None = None) -> None:
        self._context = context
        self._home = context.layout.destination
        self._is_begun = base is not None
        self.head = base or Position()
        self.newest: Read | None = None
        self.end: Entry | None = None
        self.after_base: list[Entry] = []
        self.reads: list[Read] = []
        self.table: Table | None = None
        self.publishable_at = -1

    @property
    def marks(self) -> bool:
        """Whether each partition has a ``_SUCCESS`` of its own. Before: the newest entry is read."""
        return self.newest is not None and self.newest.entry.marks

    def older_partitions(self) -> list[str]:
        """Return the partitions with files older than the log. Before: its first entry is created."""
        commit = self.newest.entry.commit if self.newest is not None else None
        return [name for name, counts in commit.partitions.items() if counts.files] if commit else []

    def read_listed(self) -> None:
        """Read the newest entry that a listing shows, unless the log was read before. It may lag.

        Raises `InvalidRecord` if the entry is damaged, or is of another destination.
        """
        if not self._is_begun:
            number = find_head(self._context.store, self._home)
            if number:
                self.take(read_entry(self._context.store, self._home, number), follows=False)
            self._is_begun = True

    def read(self) -> Entry | None:
        """Read on until there is no newer entry; return the one that ended the job, if any. Repeatable.

        Raises `InvalidRecord` for an entry that is damaged, of another destination, or does not follow.
        """
        self.read_listed()
        try:
            while True:
                self.take(read_entry(self._context.store, self._home, self.head.number + 1))
        except NoSuchKey:
            return self.end

    def read_newest(self) -> Entry | None:
        """Return the entry at the head, which is read unless it was read before; None without a log."""
        if self.newest is None and self.head.number:
            store, key = self._context.store, entry_key(self._home, self.head.number)
            where = join_uri(self._home.bucket, key)
            try:
                if self._context.alone == "writer":
                    # The writer's store remembers what it wrote, and somebody may have deleted everything.
                    store.head(self._home.bucket, key)
                read = read_entry(store, self._home, self.head.number)
            except NoSuchKey as error:
                raise InvalidRecord(
                    f"{where} is missing, which was there when {self._context.name} was set up: restore it"
                    " from a backup; if the whole destination was deleted, abort the job"
                ) from error
            if read.sha256 != self.head.sha256:
                raise InvalidRecord(
                    f"{where} is not the entry that was there when {self._context.name} was set up: the log"
                    " was written over; see: s3commit verify"
                )
            self.newest = read
            self.reads.append(read)
        return self.newest.entry if self.newest is not None else None

    def take(self, read: Read, *, follows: bool = True) -> None:
        """Go on to an entry that was read or created: it follows the head, or the log begins with it.

        Raises `InvalidRecord` if it is of another destination, or does not follow the head.
        """
        refuse_copy(self._home, read.entry)
        if follows:
            refuse_gap(self._home, read.entry, self.head.sha256)
        self.head, self.newest = read.position, read
        self.reads.append(read)
        if follows:
            self.after_base.append(read.entry)
        if read.entry.job_id == self._context.job_id:
            self.end = read.entry


def refuse_gap(home: Destination, entry: Entry, digest: str) -> None:
    """Raise `InvalidRecord` if an entry does not follow the one with this digest."""
    if entry.prev != digest:
        where = join_uri(home.bucket, entry_key(home, entry.number))
        raise InvalidRecord(
            f"{where} does not follow the entry before it: one of them was written over, or the log is mixed"
            f" of two; nobody commits to {home.uri} until that is settled: compare the entries with a backup,"
            " and see: s3commit verify"
        )


def refuse_copy(home: Destination, entry: Entry) -> None:
    """Raise `ForeignRecord` if an entry is of the log of another destination."""
    if entry.destination != home.uri:
        where = join_uri(home.bucket, entry_key(home, entry.number))
        raise ForeignRecord(
            f"{where} is an entry of the log of {entry.destination}: this dataset is a copy. Remove"
            f" {home.uri}_s3commit/ from the copy; its next job lists the files and begins a log"
        )


def read_entry(store: ObjectStore, home: Destination, number: int) -> Read:
    """Read an entry by its key; `NoSuchKey` if there is none, `InvalidRecord` if it is damaged."""
    body = store.get(home.bucket, entry_key(home, number), limit=largest(Entry)).body
    return decode_entry(body, home, number)


def decode_entry(body: bytes, home: Destination, number: int) -> Read:
    """Return an entry from its bytes; `InvalidRecord` if it is damaged, or has another number."""
    where = join_uri(home.bucket, entry_key(home, number))
    entry = decode(Entry, body, where)
    if entry.number != number:
        raise InvalidRecord(f"{where} is entry {entry.number}")
    return Read(entry, sha256(body))


def is_in_log(context: JobContext, entry: Entry) -> bool:
    """Return whether an entry, perhaps read from a receipt, is in the log, or only missing within it.

    Nothing follows from one of a log that was deleted, whatever was begun in its place. Raises
    `InvalidRecord` if the entry with its number is damaged.
    """
    store, home = context.store, context.layout.destination
    try:
        return read_entry(store, home, entry.number).entry.nonce == entry.nonce
    except NoSuchKey:
        return find_head(store, home) > entry.number


def is_erased(context: JobContext, job: JobRecord) -> bool:
    """Return whether the log was deleted since a job's setup, and perhaps begun anew.

    One that was cut, or replaced by an older one, may be restored: it cannot tell if the job is committed.
    """
    store, home = context.store, context.layout.destination
    with suppress(NoSuchKey, InvalidRecord):
        # A store that remembers what it wrote forgets by this what is gone.
        store.head(home.bucket, entry_key(home, job.base.number))
        if read_entry(store, home, job.base.number).sha256 == job.base.sha256:
            return False
    oldest = next(iter(store.list_objects(home.bucket, home.key(LOG), recursive=False)), None)
    records = store.list_objects(home.bucket, job_key(home, context.job_id))
    return oldest is None or (
        any(info.modified < oldest.modified for info in records)
        and read_entry(store, home, 1).entry.since > job.created
    )


def find_head(store: ObjectStore, home: Destination) -> int:
    """Return the number of the newest entry that a listing shows; 0 without one. It may lag.

    One request for up to a thousand entries; three for up to 13,000, and one more for each 13,000 more.
    """

    def after(number: int) -> Iterator[int]:
        start = entry_key(home, number) if number else None
        listed = store.list_objects(home.bucket, home.key(LOG), recursive=False, start_after=start)
        return (found for info in listed if (found := entry_number(home, info.key)) is not None)

    first = list(islice(after(0), _PAGE))
    head = max(first, default=0)
    if len(first) < _PAGE:
        return head
    # Checkpoints show roughly where the end is. One whose entry is gone shows nothing.
    listed = store.list_objects(
        home.bucket, home.key(CHECKPOINTS), recursive=False, start_after=checkpoint_key(home, head)
    )
    marked = max((checkpoint_number(home, info.key) or 0 for info in listed), default=0)
    near = max(after(marked - 1), default=0) if marked > head else 0
    return near or max(after(head), default=head)


def entry_times(context: JobContext, numbers: Iterable[int]) -> dict[int, float]:
    """Return when entries of the log were created, by the store's clock in seconds since the epoch."""
    home = context.layout.destination
    calls = [(number, Head(home.bucket, entry_key(home, number))) for number in numbers]
    found = outcomes(context.store, calls)
    return {number: info.modified for number, info in found if isinstance(info, ObjectInfo)}


def find_receipt(store: ObjectStore, home: Destination, job_id: str) -> Entry | None:
    """Return the entry that ended a job, by its receipt; None if it has none.

    Without a receipt the newest entry may still have ended the job, so read that first. Raises
    `InvalidRecord` if the receipt is damaged, or of another job or destination.
    """
    found = find_record(store, home.bucket, receipt_key(home, job_id), Entry)
    if found is None:
        return None
    if (found.record.job_id, found.record.destination) != (job_id, home.uri):
        what = f"the receipt of job {job_id} on {home.uri}"
        raise InvalidRecord(f"{found.uri} is not {what}: it was copied here, so delete it")
    return found.record


def write_receipt(store: ObjectStore, home: Destination, entry: Entry) -> None:
    """Copy the entry that ended a job to its receipt, unless that is there. Repeatable."""
    if entry.job_id is None:
        return
    key = receipt_key(home, entry.job_id)
    try:
        store.put(home.bucket, key, encode(entry), if_none_match=True)
    except PreconditionFailed:
        return
    except AccessDenied:
        # A bucket may demand an encryption that is not known any more once the job's record is gone.
        if not has_object(store, home.bucket, key):
            raise


def find_end(context: JobContext) -> Entry | None:
    """Return the entry that ended the job, by its receipt; None without one, and if this process is alone."""
    if context.alone:
        return None
    return find_receipt(context.store, context.layout.destination, context.job_id)


def look_up_end(context: JobContext, job: JobRecord | None) -> Entry | None:
    """Return the entry that ended a job; None if it has not. `InvalidRecord` if that cannot be read."""
    # The newest entry first: it alone may lack its receipt.
    end = Log(context, job.base if job is not None else None).read()
    return end or find_receipt(context.store, context.layout.destination, context.job_id)

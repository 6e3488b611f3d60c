"""The log of a destination: entries with numbers, each created by a process that has read all before it.

An entry exists once and never changes, so a number is free or taken, and the first to create it wins. Each
names the SHA-256 of the one before, so every reader notices entries that were mixed from two logs.

A listing may lag; it only hints where the end is. From there entries are read by their keys until one is
missing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from msgspec.structs import replace

from airflow_s3commit.exceptions import (
    AccessDenied,
    ForeignRecord,
    InvalidRecord,
    NoSuchKey,
    PreconditionFailed,
    Unavailable,
)
from airflow_s3commit.protocol.metadata import records
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.model.codec import PROSE, decode, encode, largest, sha256
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.entry import Commit, Entry
from airflow_s3commit.protocol.model.job import JobRecord, Position
from airflow_s3commit.protocol.model.layout import (
    checkpoint_key,
    checkpoint_number,
    checkpoints_prefix,
    entry_key,
    entry_number,
    log_prefix,
    receipt_key,
)
from airflow_s3commit.store.base import ObjectStore

logger = logging.getLogger(__name__)

#: Tries to create an entry. Each that fails means that another job's entry came first.
TRIES = 100

#: Entries on a page of a listing.
_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class Read:
    """An entry as it was read.

    Attributes:
        entry: The entry.
        sha256: SHA-256 of its bytes.

    """

    entry: Entry
    sha256: str

    @property
    def position(self) -> Position:
        """Its number and digest."""
        return Position(self.entry.number, self.sha256)


class Log:
    """A log as one process has read it, for one job.

    Args:
        context: The job.
        base: Where to begin: the job's own entry comes after it. None if that is not known: then the newest
            entry is the first to be read.

    Attributes:
        head: The newest entry that was read, by its position.
        newest: That entry; None if the process begins at a base and has read nothing after it.
        end: The entry that ended the job; None if none was read.
        after_base: The entries after the base, in their order.
        reads: Every entry that was read, in their order, up to the head.

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

        Raises:
            InvalidRecord: The entry is damaged, or is of another destination.

        """
        if not self._is_begun:
            number = find_head(self._context.store, self._home)
            if number:
                self._take(read_entry(self._context.store, self._home, number), follows=False)
            self._is_begun = True

    def read(self) -> None:
        """Read on until there is no newer entry. Repeatable.

        Raises:
            InvalidRecord: An entry is damaged, is of another destination, or does not follow the one before.

        """
        self.read_listed()
        try:
            while True:
                self._take(read_entry(self._context.store, self._home, self.head.number + 1))
        except NoSuchKey:
            return

    def append(self, make: Callable[[Position], Entry]) -> Entry | None:
        """Try to create the entry after the head. Repeatable.

        Before: the log is read. The newest entry gets its receipt first, so that only the last one of a log
        may lack it.

        Args:
            make: Returns the entry that follows a position.

        Returns:
            The entry; or None if another one has its number: that is read now. Decide anew.

        Raises:
            OutcomeUnknown: The response was lost, and reading back did not settle it.
            InvalidRecord: The entry that is there is damaged.

        """
        context = self._context
        self.write_receipt()
        entry = make(self.head)
        if self.marks and not entry.marks:
            entry = replace(entry, marks=True)
        key = entry_key(self._home, entry.number)
        stored = records.create(context.store, context.bucket, key, entry)
        self._take(Read(stored.record, stored.sha256))
        return stored.record if stored.record.nonce == entry.nonce else None

    def end_job(self, make: Callable[[Position], Entry], *, otherwise: str) -> Entry:
        """Create the entry that ends the job, and return it, or the one that ended the job before.

        Before: the log is read to its end. Repeatable.

        Args:
            make: Returns the entry that follows a position. It is called anew for each try, because what an
                entry says may depend on those before it.
            otherwise: The state of the job and the next action, for the error.

        Raises:
            OutcomeUnknown: A response was lost, and reading back did not settle it.
            Unavailable: Other jobs' entries came first a hundred times.

        """
        for _ in range(TRIES):
            if self.end is not None:
                return self.end
            self.append(make)
            if self.end is None:
                self.read()
        if self.end is not None:
            return self.end
        raise Unavailable(
            f"{self._context.name}: entries of other jobs came first {TRIES} times. {otherwise}"
        )

    def write_receipt(self) -> None:
        """Write the receipt of the newest entry, unless it is there or the entry ended no job. Repeatable."""
        if self.newest is None and self.head.number:
            read = read_entry(self._context.store, self._home, self.head.number)
            self._refuse_another(read)
            self.newest = read
            self.reads.append(read)
        if self.newest is not None:
            write_receipt(self._context.store, self._home, self.newest.entry)

    def _take(self, read: Read, *, follows: bool = True) -> None:
        refuse_copy(self._home, read.entry)
        if follows and read.entry.prev != self.head.sha256:
            where = join_uri(self._home.bucket, entry_key(self._home, read.entry.number))
            raise InvalidRecord(
                f"{where} does not follow the entry before it: one of them was written over, or the log is"
                f" mixed of two; nobody commits to {self._home.uri} until that is settled: compare the"
                " entries with a backup, and see: s3commit verify"
            )
        self.head, self.newest = read.position, read
        self.reads.append(read)
        if follows:
            self.after_base.append(read.entry)
        if read.entry.job_id == self._context.job_id:
            self.end = read.entry

    def _refuse_another(self, read: Read) -> None:
        if read.sha256 != self.head.sha256:
            where = join_uri(self._home.bucket, entry_key(self._home, self.head.number))
            raise InvalidRecord(
                f"{where} is not the entry that was there when {self._context.name} was set up: the log was"
                " written over; see: s3commit verify"
            )


def refuse_copy(home: Destination, entry: Entry) -> None:
    """Raise if an entry is of the log of another destination.

    Raises:
        ForeignRecord: It is.

    """
    if entry.destination != home.uri:
        where = join_uri(home.bucket, entry_key(home, entry.number))
        raise ForeignRecord(
            f"{where} is an entry of the log of {entry.destination}: this dataset is a copy. Remove"
            f" {home.uri}_s3commit/ from the copy; its next job lists the files and begins a log"
        )


def ending(
    context: JobContext,
    head: Position,
    job: JobRecord | None,
    *,
    commit: Commit | None = None,
    why: str = "",
    marks: bool = False,
) -> Entry:
    """Return the entry after a position that ends the job: a commit, or without one ``abandon``.

    Args:
        context: The job.
        head: The newest entry.
        job: The job's record; None if there is none, or it is damaged.
        commit: What the commit does.
        why: The reason of an abort.
        marks: Whether each partition has a ``_SUCCESS`` of its own from this entry on.

    """
    return Entry(
        destination=context.layout.destination.uri,
        number=head.number + 1,
        kind="abandon" if commit is None else "commit",
        prev=head.sha256,
        since=context.now_ms(),
        job_id=context.job_id,
        staging=context.layout.staging.uri,
        context=job.context if job is not None else {},
        commit=commit,
        why=why[:PROSE],
        marks=marks,
        nonce=context.new_id(),
    )


def read_entry(store: ObjectStore, home: Destination, number: int) -> Read:
    """Read an entry by its key.

    Raises:
        NoSuchKey: There is none of this number.
        InvalidRecord: It is damaged.

    """
    body = store.get(home.bucket, entry_key(home, number), limit=largest(Entry)).body
    return decode_entry(body, home, number)


def decode_entry(body: bytes, home: Destination, number: int) -> Read:
    """Return an entry from its bytes.

    Raises:
        InvalidRecord: It is damaged, or has another number.

    """
    where = join_uri(home.bucket, entry_key(home, number))
    entry = decode(Entry, body, where)
    if entry.number != number:
        raise InvalidRecord(f"{where} is entry {entry.number}")
    return Read(entry, sha256(body))


def find_head(store: ObjectStore, home: Destination) -> int:
    """Return the number of the newest entry that a listing shows; 0 without one. It may lag.

    One request for up to a thousand entries; three for up to 13,000, and one more for each 13,000 more.
    """

    def after(number: int) -> Iterator[int]:
        start = entry_key(home, number) if number else None
        listed = store.list_objects(home.bucket, log_prefix(home), recursive=False, start_after=start)
        return (found for info in listed if (found := entry_number(home, info.key)) is not None)

    first = list(islice(after(0), _PAGE))
    head = max(first, default=0)
    if len(first) < _PAGE:
        return head
    # Checkpoints say where the end is about. One whose entry is gone says nothing.
    listed = store.list_objects(
        home.bucket, checkpoints_prefix(home), recursive=False, start_after=checkpoint_key(home, head)
    )
    marked = max((checkpoint_number(home, info.key) or 0 for info in listed), default=0)
    near = max(after(marked - 1), default=0) if marked > head else 0
    return near or max(after(head), default=head)


def find_receipt(store: ObjectStore, home: Destination, job_id: str) -> Entry | None:
    """Return the entry that ended a job, by its receipt; None if it has none.

    Without a receipt the job may have ended by the newest entry. So read that first.

    Raises:
        InvalidRecord: It is damaged, or is of another job or destination.

    """
    found = records.find(store, home.bucket, receipt_key(home, job_id), Entry)
    if found is None:
        return None
    if (found.record.job_id, found.record.destination) != (job_id, home.uri):
        where = join_uri(home.bucket, receipt_key(home, job_id))
        raise InvalidRecord(f"{where} is not the receipt of job {job_id} on {home.uri}: it was copied here")
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
        # A bucket may demand encryption, of which nobody knows once the job's record is gone.
        if not records.exists(store, home.bucket, key):
            raise

"""Read and append to a destination's log of commits.

An entry is created if absent, at the number after the newest, by a process that has read all entries up to
it. So entries are in one order, and each was written in the knowledge of those before it. The log is the only
truth about which jobs committed. What is derived from it for short look-ups, the manifest or abort record of
each job, is written before the next entry: only the newest entry may lack it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress

from msgspec import structs

from airflow_s3commit.exceptions import DestinationChanged, InvalidRecord, NoSuchKey
from airflow_s3commit.protocol.metadata import records
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.endings import record_ending
from airflow_s3commit.protocol.metadata.log_end import find_head
from airflow_s3commit.protocol.model.codec import decode, largest
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.layout import check_id, entry_key, entry_number, log_prefix
from airflow_s3commit.protocol.model.log import EntryKind, LogEntry
from airflow_s3commit.store.base import Fetched, Get, ObjectStore
from airflow_s3commit.store.execute import in_batches, outcomes

logger = logging.getLogger(__name__)

#: Entries to read at once.
_AT_ONCE = 64
_ABORTS_AT_ONCE = 16

#: Kinds of entries that end a job.
_ENDINGS: tuple[EntryKind, ...] = ("commit", "abandon")


class Log:
    """The log of a destination, as far as one process has read it for one job.

    Args:
        context: The job. Its record says where to begin: its own entry is newer than that. Without the
            record the newest entry alone is read.

    Attributes:
        position: Number of the newest entry that was read; 0 without one.
        epoch: Number of the entry that the history begins with; 0 if it has not begun.
        retaining: Whether a commit of the history has retained files that it removed.
        is_read: Whether the log was read; False has it read again where it is asked.
        marking: Whether commits of the history write a ``_SUCCESS`` in each partition.

    """

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._is_begun = context.record is not None
        self.position = context.record.log if context.record is not None else 0
        self.epoch = context.record.epoch if context.record is not None else 0
        self.retaining = context.record is not None and context.record.retaining
        self.marking = context.record is not None and context.record.marking
        self._ended: set[str] = set()
        self._newest: LogEntry | None = None
        self._ending: LogEntry | None = None
        #: The partitions of each commit of another job; None for a baseline, which does not name them.
        self._commits: dict[int, Collection[str] | None] = {}
        self.is_read = False
        self._is_assumed = False
        self._created: str | None = None

    def ending(self) -> LogEntry | None:
        """Return the entry that ended the job, or None; reads the log if this process has not.

        Raises:
            InvalidRecord: An entry is damaged or missing.

        """
        if not self.is_read:
            self.read()
        return self._ending

    def read(self) -> int:
        """Read the entries after the position, and return the new position. Repeatable.

        Raises:
            InvalidRecord: An entry is damaged or missing.

        """
        context, destination = self._context, self._context.layout.destination
        if not self._is_begun:
            self.position, self._is_begun = max(find_head(context.store, destination) - 1, 0), True
        for entry in read_entries(context.store, destination, self.position):
            self._know(entry)
        self.is_read, self._is_assumed = True, False
        return self.position

    def read_on(self) -> int:
        """Read the entries after the position by their keys, and return the new position. Repeatable.

        A listing may lack the newest entries; this does not, and takes a request for each entry.

        Raises:
            InvalidRecord: An entry is damaged.

        """
        with suppress(NoSuchKey):
            while True:
                self._take_entry(self.position + 1)
        return self.position

    def assume_read(self) -> None:
        """Go by what the job's set-up has read: if there are newer entries, `append` finds and reads them."""
        self.is_read = self._is_assumed = True

    def append(self, entry_at: Callable[[int], LogEntry]) -> LogEntry | None:
        """Try to create the job's entry at the next number, and return it.

        Writes the manifest or abort record of the newest entry first. Returns the entry of the job that was
        there already; or None where another entry came first: it is read now, so decide anew and call again.

        Args:
            entry_at: Returns the job's entry for a number.

        Raises:
            OutcomeUnknown: The response was lost, and reading back did not settle it.
            InvalidRecord: An entry is damaged or missing.

        """
        if not self.is_read:
            self.read()
        if self._ending is None:
            self.add(entry_at(self.position + 1))
        if self._ending is None and self._is_assumed:
            self.read()
        return self._ending

    def add(self, entry: LogEntry) -> bool:
        """Try to create an entry at the next number, and return whether it is there.

        Writes the manifest or abort record of the newest entry first. If another entry came first, it is read
        now: decide anew.

        Args:
            entry: A baseline, a release, or the end of any job.

        Raises:
            OutcomeUnknown: The response was lost, and reading back did not settle it.
            InvalidRecord: An entry is damaged or missing.

        """
        self.record_newest()
        context, destination = self._context, self._context.layout.destination
        key = entry_key(destination, entry.number)
        entry = structs.replace(
            entry,
            retaining=self.retaining or entry.retaining or entry.retain > 0,
            marking=self.marking or entry.marking,
        )
        stored = records.create(context.store, destination.bucket, key, entry)
        if stored.record.nonce == entry.nonce:
            self._know(entry)
            self._created = stored.etag
            return True
        # Not by a listing, which may lag.
        self._take_entry(entry.number)
        return False

    def refuse_if_swept(self) -> None:
        """Raise if a sweep has abandoned this process, which is no job, because it did nothing for so long.

        Raises:
            DestinationChanged: It has.

        """
        if self._ending is not None:
            raise DestinationChanged(
                f"{self._context.layout.destination.uri}: entry {self._ending.number} of its log, by a sweep,"
                " ends this process, which did nothing for long; nothing was changed: run it again"
            )

    def record_newest(self) -> None:
        """Write the manifest or abort record of the newest entry, unless it is there. Repeatable."""
        if self._newest is not None and self._newest is not self._ending:
            record_ending(self._context, self._newest)

    def created_last(self) -> tuple[LogEntry, str] | None:
        """Return the job's own end and its ETag, if this process created it and knows of no newer entry."""
        is_last = self._newest is not None and self._newest is self._ending
        return (self._newest, self._created) if is_last and self._newest and self._created else None

    def has_ended(self, job_id: str) -> bool:
        """Return whether an entry that was read is the end of a job; False where the log was not read."""
        return job_id in self._ended

    def was_added_to(self, partitions: Collection[str] | None, since: int) -> bool:
        """Return whether another job committed files after an entry, or began the history with older files.

        Args:
            partitions: Directories to ask about; None for all.
            since: Number of the entry.

        """
        return any(
            number > since
            and (added is None or (added if partitions is None else not set(partitions).isdisjoint(added)))
            for number, added in self._commits.items()
        )

    def _take_entry(self, number: int) -> None:
        context, destination = self._context, self._context.layout.destination
        key = entry_key(destination, number)
        body = context.store.get(destination.bucket, key, limit=largest(LogEntry)).body
        self._know(_decode_entry(destination, key, body, number))

    def _know(self, entry: LogEntry) -> None:
        self.position = entry.number
        if entry.destination != self._context.layout.destination.uri:
            # Copied here with the dataset: another place's history.
            self._newest, self.epoch = None, 0
            self.retaining = self.marking = False
            self._ended.clear()
            return
        self._newest, self.epoch = entry, entry.epoch
        self.retaining, self.marking = entry.retaining, entry.marking
        if entry.kind == "baseline" and entry.job_id != self._context.job_id:
            self._commits[entry.number] = None
        if entry.kind not in _ENDINGS:
            return
        self._ended.add(entry.job_id)
        if entry.job_id == self._context.job_id:
            self._ending = entry
        elif entry.manifest is not None:
            self._commits[entry.number] = frozenset(entry.manifest.partitions)


def read_entries(store: ObjectStore, destination: Destination, after: int) -> Iterator[LogEntry]:
    """Yield the entries after a number in their order. Reads several at once.

    Raises:
        InvalidRecord: An entry is damaged or missing.

    """
    start = entry_key(destination, after) if after else None
    listed = [
        info
        for info in store.list_objects(
            destination.bucket, log_prefix(destination), recursive=False, start_after=start
        )
        if entry_number(destination, info.key) is not None
    ]
    limit = largest(LogEntry)
    for batch in in_batches(sorted(listed, key=lambda info: info.key), _AT_ONCE):
        fetched = {
            info.key: outcome
            for info, outcome in records.fetch_listed(store, destination.bucket, batch, lambda _: limit)
        }
        for key in sorted(fetched):
            outcome = fetched[key]
            if isinstance(outcome, InvalidRecord):
                raise outcome
            after += 1
            yield _decode_entry(destination, key, outcome.body, after)


def each_entry(
    store: ObjectStore, destination: Destination
) -> Iterator[tuple[int, LogEntry | InvalidRecord]]:
    """Yield every entry with its number, or what is wrong with it; reads several at once.

    Consecutive entries that are missing are one error, with the number of the last of them.
    """
    bucket, limit, after = destination.bucket, largest(LogEntry), 0
    listed = store.list_objects(bucket, log_prefix(destination), recursive=False)
    entries = (info for info in listed if entry_number(destination, info.key) is not None)
    for batch in in_batches(entries, _AT_ONCE):
        fetched = {
            info.key: outcome for info, outcome in records.fetch_listed(store, bucket, batch, lambda _: limit)
        }
        for key in sorted(fetched):
            outcome, number = fetched[key], entry_number(destination, key) or 0
            if number > after + 1:
                first, last = (
                    join_uri(bucket, entry_key(destination, one)) for one in (after + 1, number - 1)
                )
                yield number - 1, InvalidRecord(f"the entries {first} to {last} are missing")
            after = number
            if isinstance(outcome, InvalidRecord):
                yield number, outcome
                continue
            try:
                entry = _decode_entry(destination, key, outcome.body, number)
            except InvalidRecord as error:
                yield number, error
            else:
                yield number, entry


def next_entries(store: ObjectStore, destination: Destination, after: int) -> Iterator[LogEntry]:
    """Yield the entries after a known one, in their order. Takes one request where there are none.

    Raises:
        InvalidRecord: An entry is damaged or missing.

    """
    key = entry_key(destination, after + 1)
    try:
        body = store.get(destination.bucket, key, limit=largest(LogEntry)).body
    except NoSuchKey:
        return
    yield _decode_entry(destination, key, body, after + 1)
    yield from read_entries(store, destination, after + 1)


def read_entry(store: ObjectStore, destination: Destination, number: int) -> LogEntry:
    """Read an entry of a log.

    Raises:
        InvalidRecord: It is damaged or missing.

    """
    key = entry_key(destination, number)
    where = join_uri(destination.bucket, key)
    stored = records.find(store, destination.bucket, key, LogEntry)
    if stored is None:
        raise _missing(destination, number)
    _check_entry(stored.record, number, where)
    return stored.record


def newest_commit(
    store: ObjectStore,
    destination: Destination,
    *,
    marked: int = 0,
    at_least: int = 0,
) -> LogEntry | None:
    """Return the entry of the last commit to a destination; None if there is none in its history.

    Args:
        store: The store of the destination.
        destination: The destination.
        marked: As for `find_head`.
        at_least: Number of an entry that is known to be there, though a listing may lack it.

    Raises:
        InvalidRecord: An entry that must be read is damaged or missing.

    """
    # The newest is a commit, unless a job was aborted after it; then several may have been.
    for entry in newest_entries(store, destination, 1, _ABORTS_AT_ONCE, marked=marked, at_least=at_least):
        if entry.kind == "commit":
            return entry
    return None


def newest_entries(
    store: ObjectStore,
    destination: Destination,
    first: int = _AT_ONCE,
    then: int = _AT_ONCE,
    *,
    before: int | None = None,
    marked: int = 0,
    at_least: int = 0,
) -> Iterator[LogEntry]:
    """Yield the entries of a history, newest first, down to its baseline or to one that was copied here.

    Args:
        store: The store of the destination.
        destination: The destination.
        first: How many to read at once at first, at most 64.
        then: How many to read at once after these, at most 64.
        before: Leave out the entries from this number on; None for none.
        marked: As for `find_head`.
        at_least: As for `newest_commit`.

    Raises:
        InvalidRecord: An entry is damaged or missing.

    """
    bucket, limit = destination.bucket, largest(LogEntry)
    last, at_once = max(find_head(store, destination, marked), at_least), min(first, _AT_ONCE)
    last = last if before is None else min(last, before - 1)
    while last:
        numbers = range(last, max(last - at_once, 0), -1)
        calls = ((number, Get(bucket, entry_key(destination, number), limit)) for number in numbers)
        fetched = dict(outcomes(store, calls, NoSuchKey, InvalidRecord))
        for number in numbers:
            outcome = fetched[number]
            if isinstance(outcome, InvalidRecord):
                raise outcome
            if not isinstance(outcome, Fetched):
                raise _missing(destination, number)
            entry = _decode_entry(destination, outcome.info.key, outcome.body, number)
            if entry.destination != destination.uri:
                return
            yield entry
            if entry.kind == "baseline":
                return
        last, at_once = numbers[-1] - 1, min(then, _AT_ONCE)


def _missing(destination: Destination, number: int) -> InvalidRecord:
    where = join_uri(destination.bucket, entry_key(destination, number))
    return InvalidRecord(f"{where} is missing, and there are later ones: entries are never deleted")


def _decode_entry(destination: Destination, key: str, body: bytes, number: int) -> LogEntry:
    """Decode the entry that is expected to have a number."""
    where = join_uri(destination.bucket, key)
    entry = decode(LogEntry, body, where)
    _check_entry(entry, entry_number(destination, key), where)
    if entry.number != number:
        missing = join_uri(destination.bucket, entry_key(destination, number))
        raise InvalidRecord(f"{missing} is missing, and {where} is there: entries are never deleted")
    return entry


def _check_entry(entry: LogEntry, number: int | None, where: str) -> None:
    if entry.number != number:
        raise InvalidRecord(f"{where} has the number {entry.number}: it was moved here")
    try:
        check_id(entry.job_id)
    except InvalidRecord as error:
        raise InvalidRecord(f"{where}: {error}") from None

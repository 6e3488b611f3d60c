"""Read the log, forwards and backwards: the table at a generation, and what jobs have committed."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import TypeAlias

from airflow_s3commit.exceptions import ForeignRecord, HistoryRewound, InvalidRecord, NoSuchKey, S3CommitError
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.model.codec import CHECKPOINT_BYTES, decode, largest
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.job import Position
from airflow_s3commit.protocol.model.layout import (
    CHECKPOINTS,
    SUCCESS,
    Layout,
    checkpoint_key,
    checkpoint_number,
    entry_key,
)
from airflow_s3commit.protocol.model.manifest import FileEntry, Manifest, SuccessData
from airflow_s3commit.protocol.model.table import Entry, Table
from airflow_s3commit.protocol.steps import checkpoint
from airflow_s3commit.protocol.steps.files import files_of
from airflow_s3commit.protocol.steps.log import (
    Log,
    Read,
    decode_entry,
    find_head,
    look_up_end,
    read_entry,
    refuse_copy,
    refuse_gap,
)
from airflow_s3commit.store.base import Fetched, Get, ObjectStore
from airflow_s3commit.store.execute import in_batches, outcomes

logger = logging.getLogger(__name__)

#: Entries from one checkpoint to the next. A prime: no rhythm of commits and aborts keeps missing it.
CHECKPOINT_EVERY = 13


def read_table(store: ObjectStore, home: Destination, number: int | None = None) -> Table:
    """Return the table after an entry of any kind, or after the newest that there is by the end of this call.

    Raises `NoSuchKey` if there is no entry of this number, and as `entries_after`.
    """
    table = _from_checkpoint(store, home, number)
    listed = find_head(store, home) if number is None else number
    for read in entries_after(store, home, table.head, number, listed=listed):
        table.apply(read.entry, read.sha256)
    return table


def table_at_head(store: ObjectStore, home: Destination, log: Log) -> Table:
    """Return the table at the head of a log, without reading again what was read. Apply entries to a copy.

    Raises as `entries_after`.
    """
    if log.table is None:
        before = log.reads[0].entry.number - 1 if log.reads else log.head.number
        log.table = read_table(store, home, before)
    for read in log.reads:
        if read.entry.number > log.table.head.number:
            refuse_gap(home, read.entry, log.table.head.sha256)
            log.table.apply(read.entry, read.sha256)
    return log.table


def table_before(store: ObjectStore, home: Destination, entry: Entry) -> Table:
    """Return the table that an entry follows. Raises as `entries_after`."""
    table = read_table(store, home, entry.number - 1)
    refuse_gap(home, entry, table.head.sha256)
    return table


def entries_after(
    store: ObjectStore, home: Destination, position: Position, last: int | None = None, *, listed: int = 0
) -> Iterator[Read]:
    """Yield the entries after a position up to the last, or until one is missing, each checked.

    Those up to ``listed``, the newest a listing showed, are read in parallel. Raises `NoSuchKey` if the log
    ends before the last, `InvalidRecord` if one is damaged, missing, or does not follow the one before.
    """
    digest = position.sha256
    for read in _in_order(store, home, position.number + 1, last, last or listed):
        refuse_copy(home, read.entry)
        refuse_gap(home, read.entry, digest)
        yield read
        digest = read.sha256


def _in_order(
    store: ObjectStore, home: Destination, number: int, last: int | None, known: int
) -> Iterator[Read]:
    """Yield entries by their keys; several are read at once up to one that is known to be there."""
    for one, outcome in fetch_entries(store, home, range(number, known + 1)):
        if isinstance(outcome, NoSuchKey):
            where = join_uri(home.bucket, entry_key(home, one))
            newest = known if last is None else find_head(store, home)
            if last is None or newest > one:
                raise InvalidRecord(f"{where} is missing, and entry {newest} is there") from outcome
        if isinstance(outcome, NoSuchKey | InvalidRecord):
            raise outcome
        yield outcome
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
    listed = store.list_objects(home.bucket, home.key(CHECKPOINTS), recursive=False)
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


#: Entries to read at once.
AT_ONCE = 64

#: An entry; or why it cannot be read: it is missing or damaged.
Outcome: TypeAlias = Read | NoSuchKey | InvalidRecord


def newest_entry(store: ObjectStore, home: Destination) -> Read | None:
    """Return the newest entry of a log, None without one; `InvalidRecord` if it is damaged, or of a copy."""
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

    Raises `InvalidRecord` if an entry is missing or damaged, or is not the one that the next entry follows.
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
    """Read entries by their numbers, several at once; yield each in the given order. Checks no digests."""
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


def read_manifest(store: ObjectStore, destination: str | Destination, job_id: str) -> Manifest:
    """Return the manifest of one job.

    Args:
        store: The store of the destination.
        destination: URI of the dataset's directory, or a `Destination`.
        job_id: The job.

    Raises:
        NoSuchKey: The job has not committed to this destination.
        InvalidRecord: A record is damaged, or was copied here with its dataset.
    """
    place = Destination.of(destination)
    found = find_manifest(JobContext(store, Layout.of(place, job_id)))
    if found is None:
        raise NoSuchKey(f"job {job_id} has not committed to {place.uri}; see: s3commit log {place.uri}")
    return found


def find_manifest(context: JobContext) -> Manifest | None:
    """Return the manifest of a job; None if it has not committed. Raises as `read_manifest` does."""
    end = look_up_end(context, None)
    return Manifest.of(end) if end is not None and end.kind == "commit" else None


def latest_manifest(store: ObjectStore, destination: str | Destination) -> Manifest:
    """Return the manifest of the last commit. Works while another commit is running.

    Args:
        store: The store of the destination.
        destination: URI of the dataset's directory, or a `Destination`.

    Raises:
        NoSuchKey: Nothing has been committed to this destination.
        InvalidRecord: An entry of the log is damaged, or was copied here with the dataset.
    """
    home = Destination.of(destination)
    generation = read_table(store, home).generation
    entry = read_entry(store, home, generation).entry if generation else None
    if entry is None or entry.job_id is None:
        raise NoSuchKey(
            f"no job has committed to {home.uri}; see what is under way with: s3commit jobs {home.uri}"
        )
    return Manifest.of(entry)


def manifest_files(store: ObjectStore, manifest: Manifest) -> Iterator[FileEntry]:
    """Yield every file that a job committed, after checking the list against the manifest's digest.

    A long list is spooled to disk, so that memory is constant.

    Args:
        store: The store of the destination.
        manifest: The job's manifest.

    Raises:
        InvalidRecord: The list is gone, was changed, or one of its files is outside of the destination.
    """
    return files_of(store, Destination.parse(manifest.destination), manifest.source)


def history(
    store: ObjectStore, destination: str | Destination, *, limit: int | None = None
) -> Iterator[Manifest]:
    """Yield the manifest of each commit to a destination, newest first; none without a log.

    A manifest's ``generation`` is the number of its commit in the log. Numbers in between belong to aborted
    jobs and to releases. Data that was there before the first job is a commit too. The log is read while the
    caller iterates: stopping early saves requests. May be repeated.

    Args:
        store: The store of the destination.
        destination: URI of the dataset's directory, or a `Destination`.
        limit: How many commits to return; None for all.

    Raises:
        InvalidRecord: An entry of the log is damaged or missing.
    """
    at_once = AT_ONCE if limit is None else max(1, min(limit, AT_ONCE))
    entries = newest_entries(store, Destination.of(destination), at_once=at_once)
    commits = (Manifest.of(read.entry) for read in entries if read.entry.commit is not None)
    # The first entry of a log lists the data that is older, or nothing.
    return islice((one for one in commits if one.is_of_job or one.counts.files), limit)


def refuse_rewound(store: ObjectStore, home: Destination, since: int, last: int) -> None:
    """Refuse to bring a reader from a generation, 0 for none, to a later entry by the added files alone.

    After a rollback the generation alone does not tell which files a reader has seen: of two readers at one
    generation, one may have read a file that came back, and the other not. Raises `HistoryRewound` if a
    rollback came in between, or the log lacks the generation: read the whole table then, and go on from it.
    """
    if not since:
        return
    try:
        begin = read_entry(store, home, since).position
    except NoSuchKey as error:
        raise HistoryRewound(
            f"{home.uri} has no generation {since}: its log was begun anew since. Read the whole table, and"
            " go on from its generation"
        ) from error
    for read in entries_after(store, home, begin, last):
        commit = read.entry.commit
        if commit is not None and commit.rolled_back_to:
            raise HistoryRewound(
                f"{home.uri} was rolled back to {commit.rolled_back_to} by generation {read.entry.number},"
                f" after generation {since}. Read the whole table, and go on from its generation"
            )


def read_success(store: ObjectStore, home: Destination) -> SuccessData:
    """Read a destination's ``_SUCCESS``; `NoSuchKey` if there is none, `InvalidRecord` if it is no manifest.

    Raises `ForeignRecord` if it is empty: the classic committer's marker.
    """
    key = home.key(SUCCESS)
    body = store.get(home.bucket, key, limit=largest(SuccessData)).body
    where = join_uri(home.bucket, key)
    if not body:
        raise ForeignRecord(f"{where} is empty: the classic committer's marker, not a manifest")
    return decode(SuccessData, body, where)

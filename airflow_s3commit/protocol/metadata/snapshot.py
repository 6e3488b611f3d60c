"""Read the table at a generation, and tell which files are a table's.

The log is folded from its newest checkpoint, then the lists of files are read. A table's files are those that
it has, those that it retains, and those older than its log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator

from airflow_s3commit.exceptions import InvalidRecord, NoSuchKey, S3CommitError
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.listing import are_unfinished, data_objects
from airflow_s3commit.protocol.metadata.log import newest_commit, newest_entries, read_entries, read_entry
from airflow_s3commit.protocol.metadata.log_end import find_head
from airflow_s3commit.protocol.metadata.manifests import F, each_list, key_with_list, read_list
from airflow_s3commit.protocol.model.codec import CHECKPOINT_BYTES, decode, largest
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.layout import (
    Layout,
    aborted_prefix,
    checkpoint_key,
    checkpoint_number,
    checkpoints_prefix,
    manifests_prefix,
    owner_of,
    partition_of,
)
from airflow_s3commit.protocol.model.log import LiveCommit, LogEntry
from airflow_s3commit.protocol.model.manifest import ManifestRecord
from airflow_s3commit.protocol.model.snapshot import TableSnapshot
from airflow_s3commit.store.base import Fetched, Get, Head, ObjectInfo, ObjectStore
from airflow_s3commit.store.execute import in_batches, outcomes

logger = logging.getLogger(__name__)

#: Entries from one checkpoint to the next. A prime: no rhythm of commits and aborts keeps missing it.
CHECKPOINT_EVERY = 13

#: Entries that a checkpoint must save reading, as a part of the commits in it: else all of them together
#: would grow with the square of the log.
_PART = 1_000


def read_snapshot(
    store: ObjectStore, destination: Destination, generation: int | None = None, *, at_least: int = 0
) -> TableSnapshot | None:
    """Return the table at a generation, by default the newest; None if its log has no commit.

    Takes two listings, and reads one checkpoint and the entries after it.

    Args:
        store: The store of the destination.
        destination: The destination.
        generation: The generation, from 1.
        at_least: Number of an entry that is known to be there, though a listing may lack it.

    Raises:
        NoSuchKey: There is no such generation yet.
        InvalidRecord: An entry of the log is damaged or missing.

    """
    snapshot, entries = _newest_checkpoint(store, destination, generation)
    while snapshot.number != generation and (entry := next(entries, None)) is not None:
        snapshot.apply(entry)
    while snapshot.number < at_least:
        snapshot.apply(read_entry(store, destination, snapshot.number + 1))
    if generation is None:
        return snapshot if snapshot.generation else None
    if snapshot.number < generation or not snapshot.generation:
        newest = newest_commit(store, destination)
        found = "no commit is in its log; are bucket and prefix right?"
        if snapshot.original:
            found = f"it is a copy of {snapshot.original}, whose generations can be read there alone"
        if newest is not None:
            found = f"the newest is {newest.number}; list them with: s3commit log {destination.uri}"
        raise NoSuchKey(f"{destination.uri} has no generation {generation}: {found}")
    return snapshot


def original_of(store: ObjectStore, destination: Destination) -> str | None:
    """Return the URI that a log names where it was copied here; None for a destination's own log, or none.

    Raises:
        InvalidRecord: The newest entry is damaged.

    """
    head = find_head(store, destination)
    named = read_entry(store, destination, head).destination if head else destination.uri
    return named if named != destination.uri else None


def _newest_checkpoint(
    store: ObjectStore, destination: Destination, generation: int | None
) -> tuple[TableSnapshot, Iterator[LogEntry]]:
    """Return the newest checkpoint up to a generation, and the entries of the log after it.

    A checkpoint that cannot be read, or that is not of this log, is passed over.
    """
    listed = store.list_objects(destination.bucket, checkpoints_prefix(destination), recursive=False)
    numbers = {checkpoint_number(destination, info.key) for info in listed} - {None}
    for number in sorted((n for n in numbers if n is not None), reverse=True):
        if generation is not None and number > generation:
            continue
        key = checkpoint_key(destination, number)
        where = join_uri(destination.bucket, key)
        try:
            body = store.get(destination.bucket, key, limit=CHECKPOINT_BYTES).body
            snapshot = TableSnapshot.from_bytes(body, destination.uri, number, where)
        except (InvalidRecord, NoSuchKey) as error:
            logger.warning("skipping a checkpoint: %s", error)
            continue
        entries = read_entries(store, destination, number - 1)
        last = next(entries, None)
        if last is not None and last.nonce == snapshot.nonce:
            return snapshot, entries
        logger.warning("skipping a checkpoint: %s is not of this log", where)
    return TableSnapshot(destination.uri), read_entries(store, destination, 0)


def write_checkpoint(
    store: ObjectStore, destination: Destination, number: int, *, always: bool = False
) -> None:
    """Write a checkpoint after an entry, now and then. Never fails: checkpoints only save requests.

    Args:
        store: The store of the destination.
        destination: The destination.
        number: Number of the entry.
        always: Write it after any number of entries.

    """
    if number % CHECKPOINT_EVERY and not always:
        return
    try:
        before, entries = _newest_checkpoint(store, destination, number)
        began = before.number
        while before.number != number and (entry := next(entries, None)) is not None:
            before.apply(entry)
        if before.number == number and (always or number - began >= len(before.commits()) // _PART):
            key = checkpoint_key(destination, number)
            store.put(destination.bucket, key, before.to_bytes(), content_type="application/gzip")
    except S3CommitError as error:
        logger.warning("%s: no checkpoint of the log: %s", destination.uri, error)


def live_files(
    store: ObjectStore,
    destination: Destination,
    commits: Iterable[LiveCommit],
    kind: type[F],
) -> Iterator[tuple[LiveCommit, list[F]]]:
    """Yield each commit, in any order, with its files that are still in the table; reads several at once.

    Args:
        store: The store of the destination.
        destination: The destination.
        commits: The commits of a snapshot.
        kind: What to decode of each file.

    Raises:
        NoSuchKey: A list is gone.
        InvalidRecord: A list was changed, or names a file that no job may write.

    """
    for commit, pieces in each_list(store, destination, commits):
        live = frozenset(commit.partitions)
        where = join_uri(destination.bucket, key_with_list(destination, commit))
        files = read_list(kind, destination, commit.job_id, commit.files_sha256, pieces, where=where)
        yield commit, [file for file in files if partition_of(file.key[len(destination.prefix) :]) in live]


_PAGE = 1_000


class KnownFiles:
    """The files of a table, and those that it had and retains, by the jobs in their names.

    Args:
        destination: The destination.
        snapshot: The table; None for one without a commit.

    """

    def __init__(self, destination: Destination, snapshot: TableSnapshot | None) -> None:
        self._prefix = destination.prefix
        self._snapshot = snapshot or TableSnapshot(destination.uri)
        self._live: dict[str, frozenset[str]] = {}
        self._retained: dict[str, frozenset[str]] = {}

    def is_live(self, key: str) -> bool:
        """Return whether a file is one of the table's."""
        owner, partition = owner_of(key), self._partition(key)
        if partition not in self._live:
            self._live[partition] = self._snapshot.live_jobs(partition)
        return owner in self._live[partition]

    def is_retained(self, key: str) -> bool:
        """Return whether a file has left the table, and is or was retained."""
        owner, partition = owner_of(key), self._partition(key)
        if partition not in self._retained:
            self._retained[partition] = self._snapshot.retained_jobs(partition)
        return owner in self._retained[partition]

    def _partition(self, key: str) -> str:
        return partition_of(key[len(self._prefix) :])


def known_files(store: ObjectStore, destination: Destination, *, at_least: int = 0) -> KnownFiles:
    """Read which files a table has and retains.

    Args:
        store: The store of the destination.
        destination: The destination.
        at_least: Number of an entry of the log that is known to be there.

    Raises:
        InvalidRecord: An entry of the log is damaged or missing.

    """
    return KnownFiles(destination, read_snapshot(store, destination, at_least=at_least))


def is_retained_at(store: ObjectStore, destination: Destination) -> Callable[[str], bool]:
    """Return a function that tells by its key whether a file has left the table and is retained.

    Reads the log at the first call: its newest entry alone, if no commit has retained files.

    Raises:
        InvalidRecord: Raised by the function: an entry of the log is damaged or missing.

    """
    read: list[KnownFiles | None] = []

    def is_retained(key: str) -> bool:
        if not read:
            newest = next(newest_entries(store, destination, 1), None)
            retains = newest is not None and newest.retaining
            read.append(known_files(store, destination) if retains else None)
        return read[0] is not None and read[0].is_retained(key)

    return is_retained


def unlisted_objects(
    store: ObjectStore,
    destination: Destination,
    snapshot: TableSnapshot,
    listed: Collection[str],
    *,
    unfinished: set[str] | None = None,
    nested: set[str] | None = None,
) -> Iterator[ObjectInfo]:
    """Yield the objects of a snapshot's baseline. Lists the whole destination.

    Objects that a commit after the snapshot deletes may be missing: read the log again when this has ended.

    Args:
        store: The store of the destination.
        destination: The destination.
        snapshot: The snapshot; it has commits.
        listed: Keys of all files that its commits list; not needed for those with a job's id in
            their names.
        unfinished: Gets the ids of unfinished jobs, whose objects are left out.
        nested: As for `data_objects`.

    Raises:
        InvalidRecord: A manifest is damaged.

    """
    newest = snapshot.commits()[-1].job_id if snapshot.commits() else _NOBODY
    context = JobContext(store, Layout.of(destination, newest))
    is_other = {newest: True}
    for page in in_batches(data_objects(context, None, nested=nested), _PAGE):
        new = {owner: info.key for info in page if (owner := owner_of(info.key)) and owner not in is_other}
        ended = are_in_log(store, destination, new)
        begun = are_unfinished(context, {job: key for job, key in new.items() if job not in ended})
        # What has ended since the first look is looked up again.
        ended |= are_in_log(store, destination, [job for job, lives in begun.items() if not lives])
        is_other |= begun | ended
        if unfinished is not None:
            unfinished.update(job for job, lives in begun.items() if lives)
        for info in page:
            is_left = partition_of(info.key[len(destination.prefix) :]) not in snapshot.removed
            if is_left and info.key not in listed and not is_other.get(owner_of(info.key) or "", False):
                yield info


#: Stands for a job where the log has no commit.
_NOBODY = "00000000-0000-0000-0000-000000000000"


def are_in_log(store: ObjectStore, home: Destination, job_ids: Collection[str]) -> dict[str, bool]:
    """Return for each job that has ended whether its end is in the log, or it was aborted.

    Jobs without a manifest or record of abort are left out. Manifests that were copied here are of another
    log.
    """
    found: dict[str, bool] = {}
    limit = largest(ManifestRecord)
    manifests = [
        (job_id, Get(home.bucket, f"{manifests_prefix(home)}{job_id}.json", limit)) for job_id in job_ids
    ]
    for job_id, outcome in outcomes(store, manifests, NoSuchKey):
        if isinstance(outcome, Fetched):
            record = decode(ManifestRecord, outcome.body, join_uri(home.bucket, outcome.info.key))
            found[job_id] = record.destination == home.uri
    aborted = [
        (job_id, Head(home.bucket, f"{aborted_prefix(home)}{job_id}.json"))
        for job_id in job_ids
        if not found.get(job_id)
    ]
    for job_id, outcome in outcomes(store, aborted, NoSuchKey):
        if isinstance(outcome, ObjectInfo):
            found[job_id] = True
    return found

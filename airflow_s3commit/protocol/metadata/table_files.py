"""Tell which files are a table's: those that it has, those that it retains, and those older than its log."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from airflow_s3commit.exceptions import NoSuchKey
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.listing import are_unfinished, data_objects
from airflow_s3commit.protocol.metadata.log import newest_entries
from airflow_s3commit.protocol.metadata.snapshot import read_snapshot
from airflow_s3commit.protocol.model.codec import decode, largest
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.layout import (
    Layout,
    aborted_prefix,
    manifests_prefix,
    owner_of,
    partition_of,
)
from airflow_s3commit.protocol.model.manifest import ManifestRecord
from airflow_s3commit.protocol.model.snapshot import TableSnapshot
from airflow_s3commit.store.base import Fetched, Get, Head, ObjectInfo, ObjectStore
from airflow_s3commit.store.execute import in_batches, outcomes

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

    Jobs without a manifest or record of abort are left out. Manifests of versions without a log have no
    generation; those that were copied here are of another log.
    """
    found: dict[str, bool] = {}
    limit = largest(ManifestRecord)
    manifests = [
        (job_id, Get(home.bucket, f"{manifests_prefix(home)}{job_id}.json", limit)) for job_id in job_ids
    ]
    for job_id, outcome in outcomes(store, manifests, NoSuchKey):
        if isinstance(outcome, Fetched):
            record = decode(ManifestRecord, outcome.body, join_uri(home.bucket, outcome.info.key))
            found[job_id] = record.generation > 0 and record.destination == home.uri
    aborted = [
        (job_id, Head(home.bucket, f"{aborted_prefix(home)}{job_id}.json"))
        for job_id in job_ids
        if not found.get(job_id)
    ]
    for job_id, outcome in outcomes(store, aborted, NoSuchKey):
        if isinstance(outcome, ObjectInfo):
            found[job_id] = True
    return found

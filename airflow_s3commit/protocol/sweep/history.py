"""Find what the history of a table has left.

That is files that commits have replaced and retained, once their retention has passed, and lists of files
that no entry of the log names, and that none ever will.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from msgspec import UNSET

from airflow_s3commit._format import age, several, size
from airflow_s3commit.protocol.lifecycle.finish import context_of, files_in_place
from airflow_s3commit.protocol.metadata.fitness import STORE_CLOCK_SECONDS
from airflow_s3commit.protocol.metadata.listing import data_objects
from airflow_s3commit.protocol.metadata.log import newest_entries, read_entries
from airflow_s3commit.protocol.metadata.snapshot import read_snapshot
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.layout import Layout, entry_key, manifests_prefix, owner_of
from airflow_s3commit.protocol.sweep.plan import LeftAlone, OrphanList, ReplacedFiles
from airflow_s3commit.store.base import Head, ObjectInfo, ObjectStore
from airflow_s3commit.store.execute import outcomes


def plan_releases(
    store: ObjectStore, destination: Destination, now: float, *, threads: int
) -> Iterator[ReplacedFiles | LeftAlone]:
    """Yield the retained files to release and delete, by the commit that replaced them, and those to keep.

    Args:
        store: The store of the destination.
        destination: The destination.
        now: The store's time, in seconds since the epoch.
        threads: Concurrent requests; 0 sends them in the caller's thread.

    Raises:
        InvalidRecord: An entry of the log is damaged or missing.

    """
    newest = next(newest_entries(store, destination, 1), None)
    if newest is None or not newest.retaining:
        return
    snapshot = read_snapshot(store, destination, at_least=newest.number)
    retained = snapshot.retained() if snapshot is not None else []
    context = context_of(store, destination, threads=threads)
    written = _written(store, destination, {commit.removed for commit in retained})
    sizes: dict[int, list[int]] = {}
    for removed, info in files_in_place(context, retained):
        sizes.setdefault(removed, []).append(info.size)
    for removed in sorted({commit.removed for commit in retained}):
        theirs = [commit for commit in retained if commit.removed == removed]
        found, retain, past = sizes.get(removed, []), theirs[0].retain, now - written[removed]
        released = max(commit.released for commit in theirs)
        if released:
            reason = f"entry {released} of the log has released them, and not all of them are deleted"
        elif past > retain + STORE_CLOCK_SECONDS:
            reason = f"retained for {age(retain)}, and replaced {age(past)} ago"
        else:
            yield LeftAlone(
                what=f"{several(len(found), 'file')} ({size(sum(found))}) that generation {removed} replaced",
                reason=f"retained for {age(retain)}, and replaced {age(past)} ago",
            )
            continue
        if not released or found:
            yield ReplacedFiles(
                generation=removed,
                files=len(found),
                bytes=sum(found),
                age=past,
                retain=retain,
                released=released,
                reason=reason,
            )


def _written(store: ObjectStore, destination: Destination, generations: Collection[int]) -> dict[int, float]:
    """Return when each commit was entered, in seconds by the store's clock."""
    calls = ((number, Head(destination.bucket, entry_key(destination, number))) for number in generations)
    return {number: info.modified for number, info in outcomes(store, calls) if isinstance(info, ObjectInfo)}


def plan_lists(
    store: ObjectStore, destination: Destination, now: float, *, older_than: float, known: Collection[str]
) -> Iterator[OrphanList | LeftAlone]:
    """Yield the lists of files to remove, and those that look like orphans and are kept.

    A process that dies between a list and its entry leaves one: a commit, a rollback or a baseline.
    So does a committer that slept while its job was ended. Such a list is an orphan if the log shows the end
    of its job, or if its job has nothing else at the destination; then its sweep abandons the job first, so
    that a process which sleeps still cannot enter it.

    Reads the whole log if a list is old enough and has no manifest beside it, and only then.

    Args:
        store: The store of the destination.
        destination: The destination.
        now: The store's time, in seconds since the epoch.
        older_than: Seconds since its last write after which a list is an orphan.
        known: Jobs with staging: their own recovery or abort deals with their lists.

    Raises:
        InvalidRecord: An entry of the log is damaged or missing.

    """
    bucket, prefix = destination.bucket, manifests_prefix(destination)
    listed = {info.key: info for info in store.list_objects(bucket, prefix, recursive=False)}
    suspects: dict[str, ObjectInfo] = {}
    for key, info in listed.items():
        job_id, has_manifest = _job_of(prefix, key), key.removesuffix("l") in listed
        if job_id and job_id not in known and not has_manifest and now - info.modified >= older_than:
            suspects[key] = info
    if not suspects:
        return
    log = _Named.of(store, destination)
    for key, info in sorted(suspects.items()):
        if key in log.lists:
            continue
        job_id = _job_of(prefix, key) or ""
        uri, kept = join_uri(bucket, key), None
        has_ended = job_id in log.ended
        if log.is_copied:
            kept = f"the log was copied here: list the table's files with s3commit baseline {destination.uri}"
        elif not has_ended and _has_data(store, destination, job_id):
            kept = (
                f"files of job {job_id} are here, and its staging is elsewhere: name that with --staging, or"
                f" end the job: s3commit recover {destination.uri} {job_id} --staging …"
            )
        if kept is not None:
            yield LeftAlone(what=f"list of files {uri}", reason=kept)
            continue
        past = now - info.modified
        reason = "its job has ended" if has_ended else "nothing else of its job is here"
        yield OrphanList(
            uri=uri,
            etag=info.etag,
            job_id=job_id,
            age=past,
            bytes=info.size,
            ended=has_ended,
            reason=f"no entry of the log names it, {reason}, and it was written {age(past)} ago",
        )


def _job_of(prefix: str, key: str) -> str | None:
    """Return the job of a list of files by its key; None for any other key."""
    name, job_id = key.removeprefix(prefix), owner_of(key)
    return job_id if name == f"{job_id}.jsonl" else None


@dataclass
class _Named:
    """What a log says of lists of files.

    Attributes:
        lists: Keys of the lists that its entries name, those of the original of a copy included.
        ended: Jobs that have ended.
        is_copied: Whether its newest entry names another destination.

    """

    lists: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    is_copied: bool = False

    @classmethod
    def of(cls, store: ObjectStore, home: Destination) -> _Named:
        found = cls()
        for entry in read_entries(store, home, 0):
            manifest = entry.manifest
            if manifest is not None and manifest.within is UNSET:
                found.lists.add(Layout.of(home, entry.job_id).manifest_files)
            if manifest is not None or entry.aborted is not None:
                found.ended.add(entry.job_id)
            found.is_copied = entry.destination != home.uri
        return found


def _has_data(store: ObjectStore, destination: Destination, job_id: str) -> bool:
    """Return whether a data object has the job's id in its name."""
    objects = data_objects(context_of(store, destination), None)
    return any(owner_of(info.key) == job_id for info in objects)

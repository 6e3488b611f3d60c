"""Release the files that commits have replaced and retained, then delete them.

An entry of the log releases files before they are deleted, so that no later entry brings them back. A sweep
that dies after its entry leaves the deletion to the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from typing import Any

from airflow_s3commit._clock import Clock
from airflow_s3commit._format import age, several, size
from airflow_s3commit.exceptions import PreconditionFailed
from airflow_s3commit.protocol.metadata.context import JobContext, new_uuid
from airflow_s3commit.protocol.metadata.listing import data_objects
from airflow_s3commit.protocol.metadata.log import Log, newest_entries
from airflow_s3commit.protocol.metadata.removal import delete_objects
from airflow_s3commit.protocol.metadata.snapshot import read_snapshot
from airflow_s3commit.protocol.metadata.store_clock import STORE_CLOCK_SECONDS
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.layout import Layout, entry_key, owner_of, partition_of
from airflow_s3commit.protocol.model.log import LogEntry, Release
from airflow_s3commit.protocol.model.signing import Signer
from airflow_s3commit.protocol.model.snapshot import RetainedCommit
from airflow_s3commit.protocol.sweep.plan import LeftAlone, ReplacedFiles
from airflow_s3commit.store.base import Head, ObjectInfo, ObjectStore, ObjectToDelete
from airflow_s3commit.store.execute import outcomes

logger = logging.getLogger(__name__)

#: Tries to enter a release among the entries of jobs, before it gives up.
_RELEASES = 100


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
    context = _context(store, destination, threads=threads)
    written = _written(store, destination, {commit.removed for commit in retained})
    sizes: dict[int, list[int]] = {}
    for removed, info in _in_place(context, retained):
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


def release_files(
    store: ObjectStore,
    destination: Destination,
    generations: Collection[int],
    *,
    clock: Clock,
    new_id: Callable[[], str],
    threads: int,
    signer: Signer | None,
) -> int:
    """Release what commits have replaced and retained, delete it, and return how many files. Repeatable.

    Deletes first what earlier sweeps have released. Files that the table has again are kept.

    Args:
        store: The store of the destination.
        destination: The destination.
        generations: The commits; their retention has passed.
        clock: Source of time for the entry.
        new_id: Source of nonces.
        threads: Concurrent requests; 0 sends them in the caller's thread.
        signer: Signs the entry, where jobs are signed.

    Raises:
        PreconditionFailed: Other jobs' entries came first a hundred times in a row; sweep again.
        InvalidRecord: An entry of the log is damaged or missing.
        S3CommitError: A file could not be deleted; sweep again.

    """
    context = _context(store, destination, clock=clock, new_id=new_id, threads=threads, signer=signer)
    log = Log(context)
    log.read()
    earlier = [commit for commit in _retained(context, log) if commit.released]
    deleted = _delete(context, earlier)
    finished = max((commit.released for commit in earlier), default=0)
    for _ in range(_RELEASES):
        # Decided again after each entry of another job: it may be a rollback to these files.
        due = sorted(
            {
                commit.removed
                for commit in _retained(context, log)
                if not commit.released and commit.removed in generations
            }
        )
        if not due:
            return deleted
        entry = LogEntry(
            **context.layout.place,
            number=log.position + 1,
            kind="release",
            epoch=log.epoch,
            release=Release(commits=due, finished=finished, since=context.now_ms()),
            nonce=context.new_id(),
        )
        if log.add(entry):
            logger.info("%s: entry %d releases what %s replaced", destination.uri, entry.number, due)
            released = [one for one in _retained(context, log) if one.released == entry.number]
            return deleted + _delete(context, released)
    raise PreconditionFailed(
        f"{destination.uri}: entries of jobs came first {_RELEASES} times in a row, so the retained files are"
        " not released yet; sweep again"
    )


def _context(store: ObjectStore, destination: Destination, **settings: Any) -> JobContext:
    """Return a context for requests of a sweep, which is no job."""
    return JobContext(store, Layout.of(destination, new_uuid()), **settings)


def _retained(context: JobContext, log: Log) -> list[RetainedCommit]:
    snapshot = read_snapshot(context.store, context.layout.destination, at_least=log.position)
    return snapshot.retained() if snapshot is not None else []


def _written(store: ObjectStore, destination: Destination, generations: Collection[int]) -> dict[int, float]:
    """Return when each commit was entered, in seconds by the store's clock."""
    calls = ((number, Head(destination.bucket, entry_key(destination, number))) for number in generations)
    return {number: info.modified for number, info in outcomes(store, calls) if isinstance(info, ObjectInfo)}


def _in_place(context: JobContext, retained: Collection[RetainedCommit]) -> Iterator[tuple[int, ObjectInfo]]:
    """Yield the retained files that are there, each with the generation that replaced it."""
    home = context.layout.destination
    removed = {
        (partition, commit.job_id): commit.removed for commit in retained for partition in commit.partitions
    }
    for info in data_objects(context, {partition for partition, _ in removed}) if removed else ():
        held = (partition_of(info.key[len(home.prefix) :]), owner_of(info.key))
        if held in removed:
            yield removed[held], info


def _delete(context: JobContext, released: Collection[RetainedCommit]) -> int:
    doomed = (ObjectToDelete(info.key, info.etag) for _, info in _in_place(context, released))
    return delete_objects(context, doomed, "release")

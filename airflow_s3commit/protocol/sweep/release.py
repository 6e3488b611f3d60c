"""Find the files that commits have replaced and retained, and whose retention has passed."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from airflow_s3commit._format import age, several, size
from airflow_s3commit.protocol.lifecycle.release import context_of, files_in_place
from airflow_s3commit.protocol.metadata.log import newest_entries
from airflow_s3commit.protocol.metadata.snapshot import read_snapshot
from airflow_s3commit.protocol.metadata.store_clock import STORE_CLOCK_SECONDS
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.layout import entry_key
from airflow_s3commit.protocol.sweep.plan import LeftAlone, ReplacedFiles
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

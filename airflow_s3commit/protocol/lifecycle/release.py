"""Release retained files by an entry of the log, then delete them.

After the entry no later one brings the files back. A process that dies after it leaves their deletion to the
next sweep.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from typing import Any

from airflow_s3commit.exceptions import PreconditionFailed
from airflow_s3commit.protocol.lifecycle.partition_success import remove_older_markers
from airflow_s3commit.protocol.lifecycle.success import restore_success
from airflow_s3commit.protocol.metadata.context import JobContext, new_uuid
from airflow_s3commit.protocol.metadata.listing import data_objects
from airflow_s3commit.protocol.metadata.log import Log
from airflow_s3commit.protocol.metadata.removal import delete_objects
from airflow_s3commit.protocol.metadata.snapshot import read_snapshot
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.layout import Layout, owner_of, partition_of
from airflow_s3commit.protocol.model.log import LogEntry, Release, RetainedCommit
from airflow_s3commit.store.base import ObjectInfo, ObjectStore, ObjectToDelete

logger = logging.getLogger(__name__)

#: Tries to enter a release among the entries of jobs, before it gives up.
_RELEASES = 100


def release_files(context: JobContext, generations: Collection[int]) -> int:
    """Release what commits have removed and retained, delete it, and return how many files. Repeatable.

    Deletes first what earlier releases have left. Files that the table has again are kept.

    Args:
        context: What `context_of` returned: the id names the entry.
        generations: The commits; their retention has passed.

    Raises:
        PreconditionFailed: Other jobs' entries came first a hundred times in a row; sweep again.
        InvalidRecord: An entry of the log is damaged or missing.
        S3CommitError: A file could not be deleted; sweep again.

    """
    log, home = Log(context), context.layout.destination
    log.read()
    # A rollback that died may have left the marker of the commit whose files go now.
    restore_success(context, None, at_least=log.position)
    earlier = [commit for commit in _retained(context, log) if commit.released]
    deleted = _delete(context, log, earlier)
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
            logger.info("%s: entry %d releases what %s replaced", home.uri, entry.number, due)
            released = [one for one in _retained(context, log) if one.released == entry.number]
            return deleted + _delete(context, log, released)
    raise PreconditionFailed(
        f"{home.uri}: entries of jobs came first {_RELEASES} times in a row, so the retained files are not"
        " released yet; sweep again"
    )


def context_of(store: ObjectStore, destination: Destination, **settings: Any) -> JobContext:
    """Return a context for requests of a process that is no job, under an id of its own."""
    return JobContext(store, Layout.of(destination, new_uuid()), **settings)


def _retained(context: JobContext, log: Log) -> list[RetainedCommit]:
    snapshot = read_snapshot(context.store, context.layout.destination, at_least=log.position)
    return snapshot.retained() if snapshot is not None else []


def files_in_place(
    context: JobContext, retained: Collection[RetainedCommit]
) -> Iterator[tuple[int, ObjectInfo]]:
    """Yield the retained files that are there, each with the generation that replaced it."""
    home = context.layout.destination
    removed = {
        (partition, commit.job_id): commit.removed for commit in retained for partition in commit.partitions
    }
    for info in data_objects(context, {partition for partition, _ in removed}) if removed else ():
        held = (partition_of(info.key[len(home.prefix) :]), owner_of(info.key))
        if held in removed:
            yield removed[held], info


def _delete(context: JobContext, log: Log, released: Collection[RetainedCommit]) -> int:
    # Likewise.
    for commit in released if log.marking else ():
        remove_older_markers(context, commit.partitions, commit.removed)
    doomed = (ObjectToDelete(info.key, info.etag) for _, info in files_in_place(context, released))
    return delete_objects(context, doomed, "release")

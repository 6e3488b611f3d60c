"""Finish a committed job from its entry alone: delete what it took, write ``_SUCCESS``, clean up.

Every part can be repeated by any process, beside others that do the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from msgspec import UNSET

from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol.metadata.context import JobContext, after_effect
from airflow_s3commit.protocol.metadata.removal import delete_objects
from airflow_s3commit.protocol.metadata.sealed_job import load_stage_seals, pendingset_key
from airflow_s3commit.protocol.model.codec import decode_lines
from airflow_s3commit.protocol.model.entry import Commit, Entry
from airflow_s3commit.protocol.model.layout import owner_of
from airflow_s3commit.protocol.model.manifest import MAX_FILENAMES, FileEntry
from airflow_s3commit.protocol.model.table import Left, Source
from airflow_s3commit.protocol.steps.clean import abort_pending, clean, list_staging
from airflow_s3commit.protocol.steps.files import files_in, files_of
from airflow_s3commit.protocol.steps.fold import what_left
from airflow_s3commit.protocol.steps.log import write_receipt
from airflow_s3commit.protocol.steps.marker import write_marker
from airflow_s3commit.protocol.steps.partition_markers import derive_markers
from airflow_s3commit.protocol.steps.sealed import find_seal
from airflow_s3commit.store.base import ObjectToDelete

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Known:
    """What the process that created a commit's entry knows, and another one reads.

    Attributes:
        counted: Keys of the pendingsets whose uploads are completed.
        staged: All keys in the staging; None if other processes may have written there.
        left: What the commit took from the table; None if that was not worked out.

    """

    counted: set[str]
    staged: list[str] | None
    left: Left | None


def finish(context: JobContext, entry: Entry, known: Known | None = None) -> None:
    """Do all that follows a commit's entry. Repeatable by any process.

    Before: the entry is in the log. After: what it took is deleted, unless it is retained; ``_SUCCESS`` is of
    this commit or a later one; the receipt exists; nothing of the job is pending or staged.

    Args:
        context: The job.
        entry: Its commit.
        known: What this process knows of it.

    Raises:
        OutcomeUnknown: A request failed. The job is committed: run the step again.

    """
    done = f"{context.name} is committed, as entry {entry.number} of the log, and not finished"
    with after_effect(done, "commit it again to finish what is left"):
        _finish(context.in_staging(entry.staging), entry, known)


def _finish(context: JobContext, entry: Entry, known: Known | None) -> None:
    commit = entry.commit
    assert commit is not None
    store, home = context.store, context.layout.destination
    takes = commit.takes != "nothing" or bool(commit.restores)
    needs_what_left = takes and (entry.marks or not commit.retain)
    left = Left({}, {})
    if needs_what_left:
        left = known.left if known is not None and known.left else what_left(store, home, entry.number)
    if not commit.retain:
        deleted = delete_objects(context, _doomed(context, commit, left), "plan")
        if deleted:
            logger.info("%s: deleted %d replaced objects", context.name, deleted)
    # After the deletions: the markers say that they are done.
    write_marker(context, context.layout.success, entry, lambda: first_keys(context, entry))
    if entry.marks:
        derive_markers(context, entry, {*commit.partitions, *commit.restores, *left.pieces})
    write_receipt(store, home, entry)
    staged = known.staged if known is not None else None
    if staged is None:
        # After the receipt: a task attempt that records its output later than this listing finds the receipt.
        staged = list_staging(context)
        discarded = abort_pending(context, staged, known.counted if known is not None else _counted(context))
        if discarded:
            logger.info("%s: discarded %d uploads of attempts that do not count", context.name, discarded)
    clean(context, entry, staged)


def _doomed(context: JobContext, commit: Commit, left: Left) -> Iterator[ObjectToDelete]:
    """Yield the objects that a commit took.

    A file with a job's id in its name is deleted by that: no other program writes it, and its ETag does not
    follow from its parts on every store. Any other is deleted only as it was when it was listed.
    """
    for file in files_in(context.store, context.layout.destination, left.sources, left.pieces):
        yield ObjectToDelete(file.key, None if owner_of(file.key) else file.etag)
    for unowned in commit.unowned:
        yield ObjectToDelete(unowned.key, unowned.etag)


def _counted(context: JobContext) -> set[str]:
    """Return the keys of the pendingsets that count; none if another process is removing the seals."""
    try:
        stored = find_seal(context)
        stages = load_stage_seals(context, stored.record) if stored is not None else []
    except InvalidRecord as error:
        logger.info("%s: its seals are going: %s", context.name, error)
        return set()
    return {pendingset_key(context, stage, task) for stage in stages for task in stage.tasks}


def first_keys(context: JobContext, entry: Entry) -> list[str]:
    """Return the keys of a commit's first files, as many as ``_SUCCESS`` names."""
    commit = entry.commit
    assert commit is not None
    if commit.within is not UNSET:
        lines = (bytes(line) for line in commit.within[:MAX_FILENAMES])
        return [file.key for file in decode_lines(FileEntry, lines, f"entry {entry.number}")]
    source = Source(entry.number, entry.job_id, commit.files_sha256, False, commit.partitions)
    files = files_of(context.store, context.layout.destination, source)
    return [file.key for file in islice(files, MAX_FILENAMES)]

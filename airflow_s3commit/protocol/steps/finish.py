"""Finish a committed job from its entry alone: delete what it took, write ``_SUCCESS``, clean up.

Every part can be repeated by any process, beside others that do the same.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice

from msgspec import UNSET

from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol.metadata.context import JobContext, after_effect
from airflow_s3commit.protocol.metadata.pending_uploads import tracked_uploads, untracked_uploads
from airflow_s3commit.protocol.metadata.removal import (
    PendingId,
    abort_uploads,
    delete_objects,
    delete_record,
    delete_records,
)
from airflow_s3commit.protocol.metadata.sealed_job import find_seal, load_stage_seals, pendingset_key
from airflow_s3commit.protocol.model.codec import decode_lines
from airflow_s3commit.protocol.model.entry import Commit, Entry
from airflow_s3commit.protocol.model.layout import job_key, owner_of, seal_key
from airflow_s3commit.protocol.model.manifest import MAX_FILENAMES, FileEntry
from airflow_s3commit.protocol.model.table import Left, Source
from airflow_s3commit.protocol.steps.files import files_in, files_of
from airflow_s3commit.protocol.steps.fold import what_left, write_checkpoint
from airflow_s3commit.protocol.steps.log import write_receipt
from airflow_s3commit.protocol.steps.marker import derive_markers, write_marker
from airflow_s3commit.protocol.steps.publish import publish
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

    Before: the entry is in the log. After: its version is written, if the table is published; what it took is
    deleted, unless it is retained; ``_SUCCESS`` is of this commit or a later one; the receipt exists; nothing
    of the job is pending or staged.

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
    if entry.published:
        # Before the deletions: other engines see the newest version, whose files must be there.
        publish(context, entry)
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
    files = files_of(context.store, context.layout.destination, Source.of(entry, commit))
    return [file.key for file in islice(files, MAX_FILENAMES)]


#: Objects on a page of a listing.
_PAGE = 1_000


def list_staging(context: JobContext) -> list[str] | None:
    """Return the keys in a job's staging if that is at most one page of a listing; otherwise None.

    Before: the job's receipt is written: who writes there later finds the receipt, and withdraws.
    """
    listed = context.store.list_objects(context.staging_bucket, context.layout.staging.prefix)
    found = [info.key for info in islice(listed, _PAGE + 1)]
    return found if len(found) <= _PAGE else None


def abort_pending(context: JobContext, staged: list[str] | None, counted: Container[str] = ()) -> int:
    """Abort every upload of the job that a listing or a record in its staging shows; return how many.

    Before: the job's receipt is written. Repeatable.

    Args:
        context: The job.
        staged: What `list_staging` returned.
        counted: Keys of the pendingsets whose uploads are completed.

    Raises:
        S3CommitError: An upload could not be aborted.

    """
    # Hadoop's own pendingsets are beside those of a job that was adopted.
    tracked = tracked_uploads(context, context.layout.staging.prefix, skip=counted, listed=staged)
    recorded = (PendingId.of(one) for one in tracked if one is not None)
    return abort_uploads(context, recorded) + abort_uploads(context, untracked_uploads(context))


def has_leftovers(context: JobContext) -> bool:
    """Return whether tasks that outlived their finished job have left staging or uploads. Reads only."""
    return list_staging(context) != [] or any(True for _ in untracked_uploads(context))


def clean(context: JobContext, entry: Entry, staged: list[str] | None) -> None:
    """Delete the staging and the records of a job that has ended. Repeatable.

    The job's record goes last: as long as it is there, the job is found among those to be finished.

    Args:
        context: The job.
        entry: Its end.
        staged: What `list_staging` returned.

    """
    store, layout = context.store, context.layout
    seal = seal_key(layout.destination, context.job_id)
    # The seal goes with the same request, if it is in the same bucket.
    is_near = context.staging_bucket == context.bucket
    found: Iterable[str] | None = staged
    if found is None:
        listed = store.list_objects(context.staging_bucket, layout.staging.prefix)
        found = (info.key for info in listed)
    delete_records(context, chain(found, [seal] if is_near else []))
    if not is_near:
        delete_record(context, context.bucket, seal)
    delete_record(context, context.bucket, job_key(layout.destination, context.job_id))
    write_checkpoint(store, layout.destination, entry)

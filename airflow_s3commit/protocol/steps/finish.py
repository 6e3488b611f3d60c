"""Finish a committed job from its entry alone: delete what it took, write ``_SUCCESS``, clean up.

Any process may repeat any part, also while others do the same.

``_SUCCESS`` is derived from the log, never deleted, and only goes forward. It is written after what a commit
replaces is deleted, by compare-and-swap, and only over the marker of an older generation or of another
program. A deleted marker has no ETag, so a slow writer could create an old one anew; a marker that is only
overwritten cannot go back.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from airflow_s3commit.exceptions import (
    InvalidOption,
    InvalidRecord,
    NoSuchBucket,
    NoSuchKey,
    PreconditionFailed,
    StoreUnsuitable,
    TooLarge,
)
from airflow_s3commit.protocol.metadata.context import JobContext, after_effect
from airflow_s3commit.protocol.metadata.pending_uploads import tracked_uploads, untracked_uploads
from airflow_s3commit.protocol.metadata.removal import (
    PendingId,
    abort_uploads,
    delete_objects,
    delete_record,
    delete_records,
    is_under_kms,
)
from airflow_s3commit.protocol.metadata.sealed_job import find_seal, sealed_tasks
from airflow_s3commit.protocol.model.codec import decode, decode_lines, encode, largest
from airflow_s3commit.protocol.model.destination import join_uri
from airflow_s3commit.protocol.model.job import JobOptions
from airflow_s3commit.protocol.model.layout import (
    SUCCESS,
    entry_key,
    job_key,
    owner_of,
    partition_of,
    receipt_key,
    seal_key,
)
from airflow_s3commit.protocol.model.manifest import (
    GENERATION_DIAGNOSTIC,
    MANIFEST_DIAGNOSTIC,
    MAX_FILENAMES,
    NONCE_DIAGNOSTIC,
    SUCCESS_NAME,
    FileEntry,
    SuccessData,
)
from airflow_s3commit.protocol.model.pendingset import IOStatistics
from airflow_s3commit.protocol.model.sealed_job import Counts
from airflow_s3commit.protocol.model.table import Entry, Left, Source, Table, UnownedObject
from airflow_s3commit.protocol.steps.files import TableFiles, files_in, files_of, freed_objects
from airflow_s3commit.protocol.steps.fold import entries_after, read_table, table_before, write_checkpoint
from airflow_s3commit.protocol.steps.log import entry_times, is_in_log, read_entry, write_receipt
from airflow_s3commit.protocol.steps.publish import publish
from airflow_s3commit.store.base import Head, ObjectInfo, ObjectToDelete
from airflow_s3commit.store.execute import in_batches, in_threads, outcomes

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Known:
    """What the process that created a commit's entry knows, and any other has to read.

    Attributes:
        counted: Keys of the pendingsets whose uploads are completed.
        staged: All keys in the staging; None if other processes may have written there.
        before: The table that the entry follows.
    """

    counted: set[str] | None = None
    staged: list[str] | None = None
    before: Table | None = None


def finish(context: JobContext, entry: Entry, known: Known = Known()) -> None:
    """Do all that follows a commit's entry. Repeatable by any process.

    Before: the entry is in the log. After: its version is written, if the table is published; what it took is
    deleted, unless it is retained; ``_SUCCESS`` belongs to this commit or a later one; the receipt exists;
    nothing of the job is pending or staged. Raises `OutcomeUnknown` if a request fails: the job is committed,
    run this again.
    """
    done = f"{context.name} is committed, as entry {entry.number} of the log, and not finished"
    with after_effect(done, "commit it again to finish what is left"):
        _finish(context.in_staging(entry.staging), entry, known)


def _finish(context: JobContext, entry: Entry, known: Known) -> None:
    if known.counted is not None or is_in_log(context, entry):
        _follow(context, entry, known)
    write_receipt(context.store, context.layout.destination, entry)
    staged = known.staged
    if staged is None:
        # After the receipt: a task attempt that records its output later than this listing finds the receipt.
        staged = list_staging(context)
        counted = _counted(context) if known.counted is None else known.counted
        discarded = abort_pending(context, staged, counted)
        if discarded:
            logger.info("%s: discarded %d uploads of attempts that do not count", context.name, discarded)
    clean(context, entry, staged)


def _follow(context: JobContext, entry: Entry, known: Known) -> None:
    """Change the table's directory as a commit's entry in the log demands: its version, files and markers."""
    commit = entry.commit
    assert commit is not None
    store, home = context.store, context.layout.destination
    takes = commit.takes != "nothing" or bool(commit.restores)
    needs_what_left = takes and (entry.marks or not commit.retain)
    left = Left({}, {})
    if entry.published or needs_what_left:
        table = known.before or table_before(store, home, entry)
        if entry.published:
            # Before the deletions: other engines see the newest version, whose files must be there.
            publish(context, entry, table.copy())
        left = table.apply(entry, "")
    if takes and not commit.retain:
        doomed = _doomed(context, entry, left, is_first=known.counted is not None)
        deleted = delete_objects(context, doomed, "entry")
        if deleted:
            logger.info("%s: deleted %d replaced objects", context.name, deleted)
    # After the deletions: the markers say that they are done.
    write_marker(context, context.layout.success, entry, lambda: first_keys(context, entry))
    if entry.marks:
        derive_markers(context, entry, {*commit.partitions, *commit.restores, *left.pieces})


def _doomed(context: JobContext, entry: Entry, left: Left, *, is_first: bool) -> Iterator[ObjectToDelete]:
    """Yield the objects that a commit took.

    A file with its job's id in its name is deleted by its key: no other program writes it, and on some stores
    its ETag does not follow from its parts. Any other object is deleted only with the ETag that was listed;
    a file that Hadoop wrote, where its ETag does not follow from its parts, if it has the size. What the
    table has at its key by now stays, and so does what was written there after the entry: only right after
    it, ``is_first``, nobody asks when that was.
    """
    store, home, sources = context.store, context.layout.destination, left.sources.values()
    jobs, asks = {one.job_id for one in sources} - {None}, any(one.adopted for one in sources)
    kept, entered = TableFiles(store, home, Table(), {}), 0.0
    unowned = entry.commit.unowned if entry.commit is not None else []
    if unowned or any(None in one.owners for one in sources):
        names = {*left.pieces, *(partition_of(home.relative(one.key) or "") for one in unowned)}
        kept = TableFiles.all_in(store, home, read_table(store, home), names)
        entered = entry_times(context, [entry.number])[entry.number]
    files: Iterator[FileEntry | UnownedObject] = files_in(store, home, left.sources, left.pieces)
    for batch in in_batches(chain(files, unowned), _PAGE):
        doomed = [one for one in batch if one not in kept]
        named = {one.key for one in doomed if isinstance(one, FileEntry) and owner_of(one.key) in jobs}
        etags = {one.key: None if one.key in named else one.etag for one in doomed}
        calls = [(one, Head(home.bucket, one.key)) for one in doomed if one.key not in named]
        for one, found in outcomes(store, calls if asks or not is_first else (), NoSuchKey):
            if not isinstance(found, ObjectInfo) or found.modified > entered:
                etags.pop(one.key, None)
            elif asks and found.size == one.size:
                etags[one.key] = found.etag if is_under_kms(found) else one.etag or found.etag
        yield from (ObjectToDelete(key, etag) for key, etag in etags.items())


def _counted(context: JobContext) -> set[str]:
    """Return the keys of the pendingsets that count; none if another process is removing the seals."""
    try:
        stored = find_seal(context)
        return {key for key, _ in sealed_tasks(context, stored.record)} if stored is not None else set()
    except (InvalidRecord, NoSuchBucket) as error:
        logger.info("%s: its seals are going, or gone: %s", context.name, error)
        return set()


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

    Before: the job's receipt is written: a process that writes there later finds the receipt, and withdraws.
    """
    found: list[str] = []
    # A bucket that somebody has deleted holds nothing of the job.
    with suppress(NoSuchBucket):
        listed = context.store.list_objects(context.staging_bucket, context.layout.staging.prefix)
        found += (info.key for info in islice(listed, _PAGE + 1))
    return found if len(found) <= _PAGE else None


def abort_pending(context: JobContext, staged: list[str] | None, counted: Container[str] = ()) -> int:
    """Abort every upload of the job that a listing or a record in its staging shows; return how many.

    Before: the job's receipt is written, then ``staged`` was listed. Repeatable. The uploads of the
    pendingsets in ``counted`` are completed, and left out.
    """
    # The staging of an adopted job has Hadoop's own pendingsets too.
    tracked = tracked_uploads(context, context.layout.staging.prefix, skip=counted, listed=staged)
    recorded = (PendingId.of(one) for one in tracked if one is not None)
    return abort_uploads(context, recorded) + abort_uploads(context, untracked_uploads(context))


def has_leftovers(context: JobContext) -> bool:
    """Return whether tasks that outlived their finished job have left staging or uploads. Reads only."""
    return list_staging(context) != [] or any(True for _ in untracked_uploads(context))


def clean(context: JobContext, entry: Entry, staged: list[str] | None) -> None:
    """Delete the staging and the records of a job that has ended. Repeatable.

    The job's record goes last: as long as it is there, the job is found among those to be finished.
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


#: Refused writes on one condition after which a store is taken to compare an object that it does not show.
REFUSALS = 3


class Marker(NamedTuple):
    """The marker that is there; ``generation`` is None for another program's, ``job_id`` that of its job."""

    etag: str
    generation: int | None = None
    job_id: str | None = None


def write_marker(
    context: JobContext, key: str, entry: Entry, keys: Callable[[], list[str]], *, over_others: bool = False
) -> None:
    """Write the marker of a commit, unless that of this commit or a later one is there. Repeatable.

    A marker that another program wrote after the entry stays, as it speaks of newer data than this commit;
    with ``over_others`` it is overwritten, as a damaged one is. ``keys`` returns the keys of the commit's
    first files, at most 100. Raises `StoreUnsuitable` if writes are refused again and again although the
    marker, as the store shows it, meets their condition.
    """
    store, bucket = context.store, context.bucket
    tried: list[dict[str, Any]] = []
    while True:
        found = find_marker(context, key)
        is_others = found is not None and found.generation is None
        if found is not None and not (over_others and is_others) and _is_as_new(context, key, found, entry):
            return
        condition: dict[str, Any] = {"if_none_match": True} if found is None else {"if_match": found.etag}
        if tried.count(condition) == REFUSALS:
            raise StoreUnsuitable(
                f"s3://{bucket}/{key} was found to fulfil {condition}, and a write on that condition was"
                f" refused, {REFUSALS} times: look for what changes responses on their way, such as a proxy"
                " that compresses or caches, and run s3commit doctor"
            )
        tried.append(condition)
        body = encode(success_of(context, entry, keys()))
        with suppress(PreconditionFailed, NoSuchKey):
            store.put(bucket, key, body, **condition)
            return


def success_of(context: JobContext, entry: Entry, keys: list[str]) -> SuccessData:
    """Return what the marker says of a commit, each time with another nonce."""
    commit = entry.commit
    assert commit is not None
    written = datetime.fromtimestamp(entry.since / 1000, UTC)
    counters = {
        "committer_commits_completed": commit.counts.files,
        "committer_bytes_committed": commit.counts.bytes,
        "committer_jobs_completed": 1,
        "committer_tasks_completed": commit.tasks,
    }
    receipt = receipt_key(context.layout.destination, entry.job_id) if entry.job_id else ""
    return SuccessData(
        name=SUCCESS_NAME,
        timestamp=entry.since,
        date=written.strftime("%a %b %d %H:%M:%S UTC %Y"),
        hostname=socket.gethostname(),
        description=f"{commit.counts.files} files in {len(commit.partitions)} partitions, {commit.mode}",
        jobId=entry.job_id or "",
        jobIdSource="airflow-s3commit",
        metrics=commit.metrics,
        diagnostics={
            **entry.context,
            MANIFEST_DIAGNOSTIC: join_uri(context.bucket, receipt),
            GENERATION_DIAGNOSTIC: str(entry.number),
            NONCE_DIAGNOSTIC: context.new_id(),
        },
        filenames=[f"/{key}" for key in keys],
        iostatistics=IOStatistics(counters=counters),
    )


def find_marker(context: JobContext, key: str) -> Marker | None:
    """Return the marker at a key; None without one."""
    store, bucket = context.store, context.bucket
    try:
        fetched = store.get(bucket, key, limit=largest(SuccessData))
    except NoSuchKey:
        return None
    except TooLarge:
        return Marker(store.head(bucket, key).etag)
    with suppress(InvalidRecord):
        success = decode(SuccessData, fetched.body, SUCCESS)
        return Marker(fetched.info.etag, success.generation, success.jobId)
    return Marker(fetched.info.etag)


def _is_as_new(context: JobContext, key: str, found: Marker, entry: Entry) -> bool:
    store, home = context.store, context.layout.destination
    if found.generation is not None:
        if found.generation > entry.number:
            # A marker of another log, of which this is a copy, or which was removed, counts as older.
            with suppress(NoSuchKey):
                entry = read_entry(store, home, found.generation).entry
        return (found.generation, found.job_id) == (entry.number, entry.job_id)
    try:
        written = store.head(home.bucket, key)
    except NoSuchKey:
        return False
    # Both by the store's clock.
    entered = store.head(home.bucket, entry_key(home, entry.number))
    return written.etag == found.etag and written.modified > entered.modified


def refuse_markers_beside_retained(
    context: JobContext, options: JobOptions, marks: bool, table: Callable[[], Table]
) -> None:
    """Refuse what would show retained files to a reader that waits for a partition's marker, then lists it.

    That is ``retain`` in a table with markers, and ``partition_success`` in one that retains files.
    """
    home = context.layout.destination.uri
    if marks and options.retain_seconds:
        raise InvalidOption(
            f"{context.name}: retain={options.retain!r} is refused, because a commit of {home} has asked for"
            " partition_success=True: a reader that waits for the marker of a partition lists it, and would"
            " see the retained files too. Set the job up without retain"
        )
    if not options.partition_success or marks:
        return
    there = table()
    if there.retained or any(True for _ in freed_objects(context, there)):
        raise InvalidOption(
            f"{context.name}: partition_success=True is refused, because {home} retains files that generation"
            f" {max({*there.retained, *there.freed})} replaced: a reader that waits for the marker of a"
            " partition lists it, and would see them too. Set the job up without it, or first remove them"
            f" once their time has passed: s3commit sweep {home} --older-than 7d --apply"
        )


def derive_markers(
    context: JobContext, entry: Entry, touched: Iterable[str], *, over_others: bool = False
) -> None:
    """Give the partitions that a commit touched the markers that follow from the log. Repeatable.

    Before: the files that the commit took are deleted. For ``over_others`` see `write_marker`.
    """
    store, home = context.store, context.layout.destination
    names = sorted({*touched} - {""})
    while names:
        table = read_table(store, home)
        derive = partial(_derive, context, entry, table, over_others)
        for _ in in_threads(derive, names, context.threads):
            pass
        # Write, then look: a later commit may have emptied a partition meanwhile, and found no marker there.
        later = {name for read in entries_after(store, home, table.head) for name in _touched(read.entry)}
        names = names if "*" in later else sorted(later & {*names})


def _touched(entry: Entry) -> set[str]:
    """Return the partitions that an entry touched; ``*`` stands for all."""
    if entry.commit is None:
        return set()
    everything = {"*"} if entry.commit.takes == "everything" else set()
    return {*entry.commit.partitions, *entry.commit.restores, *everything}


def _derive(context: JobContext, entry: Entry, table: Table, over_others: bool, name: str) -> None:
    key = context.layout.partition_success(name)
    if table.live.get(name):
        commit = entry.commit
        assert commit is not None
        counts = commit.partitions.get(name, Counts())
        part = replace(commit, partitions={name: counts}, counts=counts, metrics={})
        write_marker(context, key, replace(entry, commit=part), list, over_others=over_others)
        return
    # The marker of a commit after the table that was read stays: `derive_markers` comes back to it.
    while (found := find_marker(context, key)) is not None and 0 < (
        found.generation or 0
    ) <= table.head.number:
        with suppress(PreconditionFailed):
            delete_record(context, context.bucket, key, if_match=found.etag)
            return

"""Roll a table back to an older generation, by a commit that refers to files that are there already.

Nothing is copied. The commit's entry names the commits that its partitions consist of again. What it removes
is retained until a release, like the files that a job replaces; without a retention the release follows at
once. So a process that dies after the entry leaves nothing that a sweep does not finish.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from msgspec import Struct

from airflow_s3commit._clock import Clock, SystemClock
from airflow_s3commit.exceptions import DestinationChanged, InvalidOption, NoSuchKey, NotReversible
from airflow_s3commit.protocol.lifecycle.finish import context_of, release_files
from airflow_s3commit.protocol.lifecycle.success import (
    remove_older_markers,
    restore_success,
    write_markers,
    write_success,
)
from airflow_s3commit.protocol.metadata.context import JobContext, new_uuid
from airflow_s3commit.protocol.metadata.endings import record_ending
from airflow_s3commit.protocol.metadata.log import Log, newest_commit
from airflow_s3commit.protocol.metadata.removal import delete_record
from airflow_s3commit.protocol.metadata.snapshot import live_files, read_snapshot, write_checkpoint
from airflow_s3commit.protocol.metadata.store_check import look_at_destination
from airflow_s3commit.protocol.model.codec import Plain
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.job import JobOptions
from airflow_s3commit.protocol.model.layout import Layout, owner_of, partition_of
from airflow_s3commit.protocol.model.log import LiveCommit, LogEntry
from airflow_s3commit.protocol.model.manifest import MAX_FILENAMES, FileEntry, ManifestRecord
from airflow_s3commit.protocol.model.ownership import UPLOAD_METADATA
from airflow_s3commit.protocol.model.sealed_job import Counts
from airflow_s3commit.protocol.model.snapshot import TableSnapshot
from airflow_s3commit.protocol.steps.file_list import FileList, table_entry
from airflow_s3commit.store.base import Head, ObjectInfo, ObjectStore
from airflow_s3commit.store.execute import in_batches, outcomes

logger = logging.getLogger(__name__)

#: Tries among the entries of aborts and sweeps, before it gives up.
_TRIES = 20

_BATCH = 1_000

NOTHING = Counts()


class RollbackReport(Plain, Struct, frozen=True, kw_only=True):
    """What a rollback of a table changes, or has changed.

    Attributes:
        destination: URI of the table.
        to: The generation that it becomes again.
        newest: The newest generation before the rollback.
        generation: The generation that the rollback made; None for a dry run, and where nothing differs.
        dry_run: Whether nothing was changed.
        partitions: The partitions that differ.
        files: How many files these partitions then have.
        restored: How many of them the table does not have now.
        removed: How many files leave the table.
        retain: How long they stay in place.

    """

    destination: str
    to: int
    newest: int
    generation: int | None = None
    dry_run: bool = False
    partitions: list[str] = []
    files: int = 0
    restored: int = 0
    removed: int = 0
    retain: str = "0s"


def rollback(
    store: ObjectStore,
    destination: str | Destination,
    *,
    to: int,
    retain: str = "0s",
    dry_run: bool = False,
    newest: int | None = None,
    clock: Clock | None = None,
    new_id: Callable[[], str] = new_uuid,
    threads: int = 16,
) -> RollbackReport:
    """Make a table what it was at an older generation, by a new commit. Copies nothing.

    The commit changes the partitions that differ: files that have left the table since come back, others
    leave it. Sends a HEAD for each file of these partitions first. If another job commits meanwhile, nothing
    is changed: the rollback would take its files away too, so decide again. Jobs that commit later treat the
    rollback like a ``replace``. Repeatable: a table that is already so is left alone.

    Args:
        store: The store of the destination.
        destination: URI of the dataset's directory, or a `Destination`.
        to: The generation.
        retain: How long the files that leave the table stay in place before a sweep may delete them: ``7d``,
            ``36h``. ``0s`` deletes them at once.
        dry_run: Check, and report what would change.
        newest: The newest generation that the caller knows; refused if there is a newer one.
        clock: Source of time for records.
        new_id: Source of ids for records.
        threads: Concurrent requests; 0 sends them in the caller's thread.

    Raises:
        NoSuchKey: There is no such generation, or a list of files is gone.
        NotReversible: A file of the generation is gone, changed, or released to be deleted; or it is older
            than the log and was replaced since. Nothing was changed.
        DestinationChanged: Another job has committed meanwhile. Nothing was changed.
        InvalidOption: ``retain`` is no duration, or the table has a marker in each partition.
        StoreUnsuitable: The store ignores conditional writes.
        InvalidRecord: An entry of the log or a list of files is damaged.
        OutcomeUnknown: A response was lost: look at ``s3commit log``, and run it again.

    """
    place = Destination.of(destination)
    seconds = JobOptions(retain=retain).retain_seconds
    context = context_of(store, place, clock=clock or SystemClock(), new_id=new_id, threads=threads)
    log = Log(context)
    if not dry_run:
        look_at_destination(context)
    for _ in range(_TRIES):
        change = _change(context, log, to, newest)
        if seconds and log.marking:
            raise InvalidOption(
                f"{place.uri}: retain={retain!r} is refused, because a commit has asked for"
                " partition_success=True: a reader that waits for the marker of a partition lists it, and"
                " would see the retained files too; nothing was changed: roll back without --retain"
            )
        newest = change.now.generation
        target = _checked(context, change)
        report = RollbackReport(
            destination=place.uri,
            to=to,
            newest=newest,
            dry_run=dry_run,
            partitions=change.partitions,
            files=sum(counts.files for counts in target.partitions.values()),
            restored=target.restored,
            removed=target.removed.files,
            retain=retain,
        )
        if dry_run:
            return report
        if not change.partitions:
            # Of an earlier rollback that died this may be missing.
            log.record_newest()
            restore_success(context, None, at_least=log.position)
            last = newest_commit(store, place)
            if last is not None and last.manifest is not None and last.manifest.rolled_back_to:
                _renew_markers(context, log, last.manifest)
            return report
        log.refuse_if_swept()
        entry = _entry(context, log, change, target, seconds)
        if log.add(entry):
            logger.info("%s: rolled back to %d, generation %d", place.uri, to, entry.number)
            _finish(context, log, entry, target, at_once=not seconds)
            return msgspec.structs.replace(report, generation=entry.number)
        delete_record(context, context.bucket, context.layout.manifest_files)
    raise DestinationChanged(
        f"{place.uri}: other entries came first in its log {_TRIES} times in a row, so it is not rolled back"
        " and nothing was changed; run it again"
    )


@dataclass(frozen=True)
class _Change:
    """From one generation of a table to another.

    Attributes:
        to: The generation.
        now: The table.
        partitions: The partitions that differ.
        then: The commits that they consist of at the generation.
        leaving: The commits whose files leave the table.

    """

    to: int
    now: TableSnapshot
    partitions: list[str]
    then: list[LiveCommit]
    leaving: list[LiveCommit]


def _change(context: JobContext, log: Log, to: int, newest: int | None) -> _Change:
    """Compare the table with the generation.

    Raises:
        NotReversible: A file of the generation is released, or older than the log and replaced.
        DestinationChanged: There is a newer generation than the caller knows.

    """
    store, home = context.store, context.layout.destination
    older = read_snapshot(store, home, to)
    now = read_snapshot(store, home, at_least=log.read())
    while now is not None and now.number > log.position:
        # Between the two an entry was made.
        now = read_snapshot(store, home, at_least=log.read())
    assert older is not None and now is not None, "read_snapshot has found the generation"  # noqa: PT018
    if newest is not None and now.generation != newest:
        raise DestinationChanged(
            f"{home.uri} has generation {now.generation} by now, which a rollback to {to} would take back"
            f" too; nothing was changed. Look at it with s3commit log {home.uri}, then decide again"
        )
    if (older.baseline, older.removed) != (now.baseline, now.removed):
        raise NotReversible(
            f"{home.uri} cannot be rolled back to generation {to}: files that are older than its log have"
            " been replaced since, and no list names them; nothing was changed"
        )
    partitions = sorted(
        partition
        for partition in {*older.partitions, *now.partitions}
        if older.numbers_in(partition) != now.numbers_in(partition)
    )
    for partition in partitions:
        for number in sorted(older.numbers_in(partition) - now.numbers_in(partition)):
            if not now.can_take_back(partition, number):
                raise NotReversible(
                    f"{home.uri} cannot be rolled back to generation {to}: files of generation {number} in"
                    f" {partition or 'its root'} have been replaced since, and are deleted or released to be;"
                    " nothing was changed"
                )
    then = _within(older, {partition: older.numbers_in(partition) for partition in partitions})
    gone = {p: now.numbers_in(p) - older.numbers_in(p) for p in partitions}
    return _Change(to, now, partitions, then, _within(now, gone))


def _within(snapshot: TableSnapshot, wanted: dict[str, frozenset[int]]) -> list[LiveCommit]:
    """Return some commits of a snapshot, with some of their partitions."""
    found = []
    for commit in snapshot.commits():
        partitions = [p for p in commit.partitions if commit.number in wanted.get(p, ())]
        if partitions:
            found.append(msgspec.structs.replace(commit, partitions=partitions))
    return found


@dataclass
class _Target:
    """What the partitions that differ have at the generation.

    Attributes:
        files: Their files.
        partitions: Their totals.
        restored: How many of the files the table does not have now.
        removed: Totals of the files that leave the table.

    """

    files: FileList
    partitions: dict[str, Counts]
    restored: int = 0
    removed: Counts = NOTHING


def _checked(context: JobContext, change: _Change) -> _Target:
    """Check every file that the partitions then have, and collect them.

    Raises:
        NotReversible: A file is gone or changed, or one that leaves the table has no job's id in its name.

    """
    store, home = context.store, context.layout.destination
    target = _Target(FileList(context), dict.fromkeys(change.partitions, NOTHING))
    for commit, entries in live_files(store, home, change.then, FileEntry):
        for batch in in_batches(entries, _BATCH):
            _check_in_place(context, change.to, batch)
            for entry in batch:
                target.files.add_entry(entry)
                partition = partition_of(entry.key[len(home.prefix) :])
                target.restored += commit.number not in change.now.numbers_in(partition)
                counts = Counts(files=1, bytes=entry.size, rows=entry.rows)
                target.partitions[partition] = target.partitions[partition].plus(counts)
    for commit, entries in live_files(store, home, change.leaving, FileEntry):
        for entry in entries:
            if owner_of(entry.key) != commit.job_id:
                raise NotReversible(
                    f"{join_uri(home.bucket, entry.key)} of generation {commit.number} does not have"
                    f" the id of job {commit.job_id} in its name: a rollback cannot tell it from a later"
                    " file; write the data again instead"
                )
            target.removed = target.removed.plus(Counts(files=1, bytes=entry.size, rows=None))
    return target


def _check_in_place(context: JobContext, to: int, entries: list[FileEntry]) -> None:
    calls = [(entry, Head(context.bucket, entry.key)) for entry in entries]
    for entry, found in outcomes(context.store, calls, NoSuchKey):
        if not isinstance(found, ObjectInfo) or not _is_intact(entry, found):
            fault = "changed" if isinstance(found, ObjectInfo) else "gone"
            raise NotReversible(
                f"{context.layout.destination.uri} cannot be rolled back to generation {to}:"
                f" {join_uri(context.bucket, entry.key)} is {fault}; nothing was changed"
            )


def _is_intact(entry: FileEntry, found: ObjectInfo) -> bool:
    if found.size != entry.size:
        return False
    if entry.upload and found.metadata.get(UPLOAD_METADATA) == entry.upload:
        return True
    return found.etag == entry.etag if entry.etag else not entry.upload


def _entry(context: JobContext, log: Log, change: _Change, target: _Target, seconds: int) -> LogEntry:
    """Write the list of files, and return the entry of the rollback."""
    entry = table_entry(
        context,
        log.position + 1,
        target.files,
        target.partitions,
        committer="directory",
        conflict_mode="replace",
        replaced=target.removed,
        rolled_back_to=change.to,
    )
    # Without a retention the release follows at once.
    retain = max(seconds, 1)
    return msgspec.structs.replace(
        entry, epoch=log.epoch, removes="partitions", retain=retain, restores=change.then
    )


def _finish(context: JobContext, log: Log, entry: LogEntry, target: _Target, *, at_once: bool) -> None:
    """Write manifest and ``_SUCCESS``; delete what has left the table, if it is not retained."""
    assert entry.manifest is not None
    record_ending(context, entry)
    _renew_markers(context, log, entry.manifest)
    write_success(context, entry.manifest, lambda: target.files.first_keys(MAX_FILENAMES))
    if at_once and target.removed.files:
        # Under another id: an id has one entry in the log.
        layout = Layout.of(context.layout.destination, new_uuid())
        release_files(dataclasses.replace(context, layout=layout), [entry.number])
    write_checkpoint(context.store, context.layout.destination, entry.number)


def _renew_markers(context: JobContext, log: Log, manifest: ManifestRecord) -> None:
    """Remove the markers of the partitions that a rollback has changed, and write its own."""
    if log.marking:
        remove_older_markers(context, manifest.partitions, manifest.generation)
        write_markers(context, manifest)

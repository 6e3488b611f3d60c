"""Close the baseline of a dataset: name every file that is older than its log, in a list of its own.

A baseline names no files: a reader lists the destination for them, and nobody can tell an old file from one
that another program wrote since. A *closed* baseline is a commit whose manifest lists them. It adds nothing
to the table: in the fold its files have the number of the baseline, so readers of what is new since a
generation do not get them again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from airflow_s3commit._clock import Clock, SystemClock
from airflow_s3commit.exceptions import DestinationChanged
from airflow_s3commit.protocol.lifecycle.baseline import is_copied
from airflow_s3commit.protocol.lifecycle.finish import context_of
from airflow_s3commit.protocol.lifecycle.manifest import FileList, table_entry
from airflow_s3commit.protocol.lifecycle.success import (
    listed_keys,
    restore_success,
    write_success,
)
from airflow_s3commit.protocol.metadata.context import JobContext, new_uuid
from airflow_s3commit.protocol.metadata.endings import record_ending
from airflow_s3commit.protocol.metadata.listing import refuse_nested
from airflow_s3commit.protocol.metadata.log import Log, newest_commit, read_entry
from airflow_s3commit.protocol.metadata.removal import delete_record
from airflow_s3commit.protocol.metadata.snapshot import (
    live_files,
    read_snapshot,
    unlisted_objects,
    write_checkpoint,
)
from airflow_s3commit.protocol.metadata.store_check import look_at_destination
from airflow_s3commit.protocol.model.codec import Plain
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.layout import owner_of, partition_of
from airflow_s3commit.protocol.model.log import LogEntry
from airflow_s3commit.protocol.model.manifest import FileEntry
from airflow_s3commit.protocol.model.sealed_job import Counts
from airflow_s3commit.protocol.model.snapshot import TableSnapshot
from airflow_s3commit.store.base import ObjectStore

logger = logging.getLogger(__name__)

#: Times to list the destination while jobs commit, before it gives up.
_TRIES = 3


class BaselineReport(Plain, Struct, kw_only=True):
    """Which files a table has that no commit lists, and whether they are listed now.

    Attributes:
        destination: URI of the table.
        dry_run: Whether nothing was changed.
        generation: The generation that lists them; None if none was made.
        closed: Whether a list names every file of the table already.
        files: How many files they are.
        bytes: Their bytes.
        partitions: How many partitions they are in.
        unfinished: Ids of jobs that have neither committed nor been aborted: their files are left out.

    """

    destination: str
    dry_run: bool = True
    generation: int | None = None
    closed: bool = False
    files: int = 0
    bytes: int = 0
    partitions: int = 0
    unfinished: list[str] = []


def baseline(
    store: ObjectStore,
    destination: str | Destination,
    *,
    dry_run: bool = True,
    clock: Clock | None = None,
    new_id: Callable[[], str] = new_uuid,
    threads: int = 16,
    step: Callable[[int], None] = lambda _: None,
) -> BaselineReport:
    """List the files of a table that are older than its log, and enter the list in the log as a commit.

    From then on readers do not list the destination, `verify` finds objects of other programs, and the table
    can be rolled back over the older files' partitions. Leaves out hidden objects and the files of unfinished
    jobs. Run it while no other program writes: what it writes during the listing may be left out. Jobs may
    run. Repeatable.

    Args:
        store: The store of the destination.
        destination: URI of the dataset's directory, or a `Destination`.
        dry_run: Only list and count.
        clock: Source of time for records.
        new_id: Source of ids for records.
        threads: Concurrent requests; 0 sends them in the caller's thread.
        step: Called with the number of files that were listed.

    Raises:
        DestinationChanged: Jobs committed each of three times while it listed. Nothing was changed.
        InvalidRecord: An entry or a list of files is damaged; or the dataset is a copy with retained files.
        InvalidDestination: There are other datasets below it. Nothing was entered.
        StoreUnsuitable: The store ignores conditional writes.

    """
    place = Destination.of(destination)
    context = context_of(store, place, clock=clock or SystemClock(), new_id=new_id, threads=threads)
    log = Log(context)
    report = BaselineReport(destination=place.uri, dry_run=dry_run)
    if not dry_run:
        look_at_destination(context)
    for _ in range(_TRIES):
        table = _table(context, log)
        if table is None:
            report.closed = True
            if not dry_run:
                _finish_again(context)
            return report
        found = _list(context, table, step)
        refuse_nested(place, found.nested)
        report.unfinished = sorted(found.unfinished)
        total = Counts.total(found.partitions.values())
        report.files, report.bytes, report.partitions = total.files, total.bytes, len(found.partitions)
        if dry_run or not (log.epoch or report.files):
            return report
        log.refuse_if_swept()
        number = log.position + 1
        entry = table_entry(
            context,
            number,
            found.files,
            found.partitions,
            committer="magic",
            conflict_mode="append",
            replaced=Counts(),
            context={"baseline": "files that are older than the log"},
        )
        if log.add(replace(entry, epoch=log.epoch or number, closing=True)):
            logger.info("%s: entry %d lists %d files that are older", place.uri, number, report.files)
            _finish(context, read_entry(store, place, number))
            report.generation = number
            return report
        delete_record(context, context.bucket, context.layout.manifest_files)
    raise DestinationChanged(
        f"{place.uri}: jobs committed each of {_TRIES} times while it was listed; nothing was changed:"
        " run it again when fewer jobs are at work"
    )


def _finish(context: JobContext, entry: LogEntry) -> None:
    """Write manifest, ``_SUCCESS`` and checkpoint of the commit that lists older files. Repeatable."""
    store, home = context.store, context.layout.destination
    assert entry.manifest is not None, "a commit has a manifest"
    record_ending(context, entry)
    restore_success(context, None, at_least=entry.number)
    # That leaves the marker of another program, which the list has outdated.
    write_success(context, entry.manifest, partial(listed_keys, context, entry.manifest))
    write_checkpoint(store, home, entry.number, always=True)


def _finish_again(context: JobContext) -> None:
    """Write what a process that died after its entry has not written, if it is the newest commit's."""
    newest = newest_commit(context.store, context.layout.destination)
    if newest is not None and newest.closing:
        _finish(context, newest)


def _table(context: JobContext, log: Log) -> TableSnapshot | None:
    """Return the table whose older files to list; None if a list names every file already."""
    home = context.layout.destination
    log.read()
    if not log.epoch:
        is_copied(context, log)
        return TableSnapshot(home.uri)
    snapshot = read_snapshot(context.store, home, at_least=log.position)
    if snapshot is None:
        # A baseline, and no commit yet.
        return TableSnapshot(home.uri) if read_entry(context.store, home, log.epoch).baseline else None
    return snapshot if snapshot.baseline else None


@dataclass
class _Found:
    """Files that no commit lists.

    Attributes:
        files: Their list, on disk if it is long.
        partitions: Their totals.
        unfinished: Jobs whose files are left out.
        nested: Directories that are destinations themselves.

    """

    files: FileList
    partitions: dict[str, Counts] = field(default_factory=dict)
    unfinished: set[str] = field(default_factory=set)
    nested: set[str] = field(default_factory=set)


def _list(context: JobContext, table: TableSnapshot, step: Callable[[int], None]) -> _Found:
    store, home = context.store, context.layout.destination
    # A file with the id of its job in its name needs none of this; Hadoop's names may lack it.
    nameless = {
        file.key
        for commit, files in live_files(store, home, table.commits(), FileEntry)
        for file in files
        if owner_of(file.key) != commit.job_id
    }
    found = _Found(FileList(context))
    listed = unlisted_objects(store, home, table, nameless, unfinished=found.unfinished, nested=found.nested)
    for number, info in enumerate(listed, 1):
        partition = partition_of(info.key[len(home.prefix) :])
        found.files.add_entry(FileEntry(key=info.key, size=info.size, etag=info.etag, partition=partition))
        counts = Counts(files=1, bytes=info.size, rows=None)
        found.partitions[partition] = found.partitions.get(partition, _NONE).plus(counts)
        step(number)
    return found


_NONE = Counts()

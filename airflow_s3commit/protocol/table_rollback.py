"""Roll the table back to an older generation, by a commit of files that are there already. Copies nothing.

A rollback is a job: its record comes first, then its entry, and the finish of a commit does the rest. So a
process that dies leaves nothing that another commit, abort or sweep of the job does not end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from hashlib import sha256

from msgspec import Struct
from msgspec.structs import replace

from airflow_s3commit._causes import noting
from airflow_s3commit._clock import Clock, SystemClock
from airflow_s3commit._format import Column, number, shortened
from airflow_s3commit.exceptions import DestinationChanged, DidNotHappen, NoSuchKey, NotReversible, Refused
from airflow_s3commit.protocol.metadata.context import JobContext, naming, new_uuid
from airflow_s3commit.protocol.metadata.removal import UPLOAD_METADATA
from airflow_s3commit.protocol.model.codec import Plain
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.job import JobOptions, Position
from airflow_s3commit.protocol.model.layout import Layout
from airflow_s3commit.protocol.model.manifest import FileEntry
from airflow_s3commit.protocol.model.sealed_job import Counts
from airflow_s3commit.protocol.model.table import Commit, Entry, Pieces, Source, Table
from airflow_s3commit.protocol.steps.abort import abort, aborting_unbegun, undo
from airflow_s3commit.protocol.steps.append import carried, end_job, ending
from airflow_s3commit.protocol.steps.files import files_in
from airflow_s3commit.protocol.steps.finish import finish, refuse_markers_beside_retained
from airflow_s3commit.protocol.steps.fold import read_table
from airflow_s3commit.protocol.steps.log import Log
from airflow_s3commit.protocol.steps.setup import look_at_record, set_up
from airflow_s3commit.store.base import Head, ObjectInfo, ObjectStore
from airflow_s3commit.store.execute import in_batches, outcomes

logger = logging.getLogger(__name__)

_BATCH = 1_000


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
        retain: How long the removed files stay in place.
    """

    columns = (
        Column("generation", "newest"),
        Column("back to", "to"),
        Column("partitions", "partitions", lambda names: shortened([name or "." for name in names])),
        Column("files that come back", "restored", number),
        Column("files that leave", "removed", number),
        Column("retained for", "retain", lambda time: time if time != "0s" else "no time: deleted at once"),
    )

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
    leave it. Sends a HEAD for each file that comes back first. If another job commits meanwhile, nothing is
    changed: the rollback would take its files away too, so decide again. Jobs that commit later treat the
    rollback like a ``replace``. Repeatable: a table that is already as wanted is left alone.

    Args:
        store: The store of the destination.
        destination: URI of the dataset's directory, or a `Destination`.
        to: The generation.
        retain: How long removed files stay before a sweep may delete them: ``7d``, ``36h``, ``0s`` (at once).
        dry_run: Check, and report what would change.
        newest: The newest generation that the caller knows; refused if there is a newer one.
        clock: Source of time for records.
        new_id: Source of nonces for records.
        threads: Concurrent requests; 0 sends them in the caller's thread.

    Raises:
        NoSuchKey: There is no such generation.
        NotReversible: A file of the generation is gone, changed or released. Nothing was changed.
        DestinationChanged: Another job has committed meanwhile. Nothing was changed.
        InvalidOption: ``retain`` is no duration, or the table has a marker in each partition.
        StoreUnsuitable: The store ignores conditional writes.
        InvalidRecord: An entry of the log or a list of files is damaged.
        OutcomeUnknown: A response was lost: look at ``s3commit log``, and run it again.
    """
    home = Destination.of(destination)
    layout = Layout.of(home, new_uuid())
    context = JobContext(store, layout, clock=clock or SystemClock(), new_id=new_id, threads=threads)
    return roll_back(context, to, retain=retain, seen=newest, dry_run=dry_run)


class Change(Struct, frozen=True):
    """The change from one generation of a table to another.

    Attributes:
        to: The generation.
        now: The newest generation.
        restores: The partitions that differ, and the commits that they consisted of.
        leaving: The commits whose files leave the table, by partition.
        returning: The commits whose files come back, by partition.
        sources: All these commits, by number.
    """

    to: int
    now: int
    restores: Mapping[str, list[int]]
    leaving: Mapping[str, list[int]]
    returning: Mapping[str, list[int]]
    sources: Mapping[int, Source]

    def files(self, pieces: Pieces) -> int:
        """Return how many files some of these pieces have."""
        parts = (self.sources[one].partitions[name] for name, numbers in pieces.items() for one in numbers)
        return sum(part.files for part in parts)


def change_between(then: Table, now: Table) -> Change:
    """Compare two generations of a table; `NotReversible` if the log has released files of the older one."""
    differing = [
        name for name in sorted({*then.live, *now.live}) if then.live.get(name) != now.live.get(name)
    ]
    restores = {name: list(then.live.get(name, ())) for name in differing}
    returning = {name: [n for n in restores[name] if n not in now.live.get(name, ())] for name in differing}
    for name, numbers in returning.items():
        for one in numbers:
            if not now.can_restore(name, one):
                raise NotReversible(
                    f"the table cannot be rolled back to generation {then.generation}: the files of"
                    f" generation {one} in {name or 'its root'} were replaced since, and are deleted or"
                    " released to be; nothing was changed"
                )
    leaving = {name: [n for n in now.live.get(name, ()) if n not in restores[name]] for name in differing}
    return Change(then.generation, now.generation, restores, leaving, returning, now.sources)


def plan_rollback(context: JobContext, to: int, seen: int | None = None) -> Change:
    """Return what a rollback would change, after checking every file that would come back."""
    store, home = context.store, context.layout.destination
    now = read_table(store, home)
    if to < 1 or to > now.head.number or (then := read_table(store, home, to)).generation != to:
        raise NoSuchKey(
            f"{home.uri} has no generation {to}; the newest is {now.generation}; list them with:"
            f" s3commit log {home.uri}"
        )
    if seen not in (None, now.generation):
        raise DestinationChanged(
            f"{home.uri} is at generation {now.generation}, and not at {seen}, so a rollback to {to} would"
            " change more than was decided; nothing was changed. Look at s3commit log, then decide again"
        )
    change = change_between(then, now)
    for batch in in_batches(files_in(store, home, change.sources, change.returning), _BATCH):
        calls = [(file, Head(home.bucket, file.key)) for file in batch]
        for file, found in outcomes(store, calls, NoSuchKey):
            if not isinstance(found, ObjectInfo) or not is_intact(file, found):
                raise NotReversible(
                    f"the table cannot be rolled back to generation {to}:"
                    f" {join_uri(home.bucket, file.key)} is gone or changed; nothing was changed"
                )
    return change


def roll_back(
    context: JobContext, to: int, *, retain: str = "0s", seen: int | None = None, dry_run: bool = False
) -> RollbackReport:
    """Roll back by a new job of the destination, as `rollback`.

    After an `OutcomeUnknown` commit the job of the rollback again, or abort it.
    """
    options = JobOptions(conflict_mode="replace", retain=retain)
    change = plan_rollback(context, to, seen)
    report = RollbackReport(
        destination=context.layout.destination.uri,
        to=to,
        newest=change.now,
        dry_run=dry_run,
        partitions=sorted(change.restores),
        files=change.files(change.restores),
        restored=change.files(change.returning),
        removed=change.files(change.leaving),
        retain=retain,
    )
    if not change.restores:
        return report
    job, log = None, Log(context)

    def entry_after(head: Position) -> Entry:
        store, home = context.store, context.layout.destination
        table = read_table(store, home, head.number)
        refuse_markers_beside_retained(context, options, log.marks, lambda: table)
        if table.generation != change.now:
            raise DestinationChanged(
                f"{home.uri}: generation {table.generation} came in between, which a rollback to"
                f" {change.to} would take back too; nothing was changed. Decide again"
            )
        # A release may have come in between.
        anew = change_between(read_table(store, home, change.to), table)
        return ending(context, head, job, commit=_commit(table, anew, options))

    if dry_run:
        log.read()
        carried(context, log, entry_after(log.head))
        return report
    with naming(context, f"rollback to generation {change.to}"):
        with aborting_unbegun(context):
            stored = set_up(context, options, {})
            look_at_record(context, stored)
        job = stored.record
        log = Log(context, job.base)
        try:
            log.read()
            end = end_job(context, log, entry_after, otherwise="Nothing was changed: run it again")
        except (DidNotHappen, Refused) as error:
            with noting(error, f"aborting {context.name}", "a sweep ends it"):
                abort(context, str(error))
            raise
        if end.kind == "abandon":
            undo(context, end)
            raise DestinationChanged(f"{context.name} was aborted by another process; nothing was changed")
        finish(context, end)
        logger.info("%s: rolled back to %d, generation %d", end.destination, change.to, end.number)
        return replace(report, generation=end.number)


def _commit(table: Table, change: Change, options: JobOptions) -> Commit:
    leaving = table.counts_of(change.leaving)
    return Commit(
        mode="rollback",
        partitions={},
        counts=Counts(),
        replaced=Counts(files=leaving.files, bytes=leaving.bytes, rows=None),
        files_sha256=sha256().hexdigest(),
        within=[],
        retain=options.retain_seconds,
        restores=dict(change.restores),
        rolled_back_to=change.to,
    )


def is_intact(file: FileEntry, found: ObjectInfo) -> bool:
    """Return whether an object is the file that was committed, and no other of the same size."""
    if file.upload and found.metadata.get(UPLOAD_METADATA) == file.upload:
        return found.size == file.size
    return found.size == file.size and (found.etag == file.etag if file.etag else not file.upload)

"""Roll the table back to an older generation, by a commit of files that are there already. Copies nothing.

A rollback is a job: its record comes first, then its entry, and the finish of a commit does the rest. So a
process that dies leaves nothing that another commit, abort or sweep of the job does not end.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from hashlib import sha256

from msgspec import Struct

from airflow_s3commit._causes import noting
from airflow_s3commit.exceptions import (
    DestinationChanged,
    DidNotHappen,
    NoSuchKey,
    NotReversible,
    Refused,
)
from airflow_s3commit.protocol.metadata.context import JobContext, naming
from airflow_s3commit.protocol.metadata.removal import UPLOAD_METADATA
from airflow_s3commit.protocol.model.destination import join_uri
from airflow_s3commit.protocol.model.job import JobOptions, Position
from airflow_s3commit.protocol.model.manifest import FileEntry
from airflow_s3commit.protocol.model.sealed_job import Counts
from airflow_s3commit.protocol.model.table import Commit, Entry, Source, Table
from airflow_s3commit.protocol.steps.abort import abort, aborting_unbegun, undo
from airflow_s3commit.protocol.steps.append import end_job, ending
from airflow_s3commit.protocol.steps.files import files_in
from airflow_s3commit.protocol.steps.finish import finish, refuse_markers_beside_retained
from airflow_s3commit.protocol.steps.fold import read_table
from airflow_s3commit.protocol.steps.log import Log
from airflow_s3commit.protocol.steps.setup import look_at_record, set_up
from airflow_s3commit.store.base import Head, ObjectInfo
from airflow_s3commit.store.execute import in_batches, outcomes

logger = logging.getLogger(__name__)

_BATCH = 1_000


class Change(Struct, frozen=True):
    """From one generation of a table to another.

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


def change_between(then: Table, now: Table) -> Change:
    """Compare two generations of a table.

    Raises:
        NotReversible: Files of the older generation are released, by the log.
    """
    differing = [
        name for name in sorted({*then.live, *now.live}) if then.live.get(name) != now.live.get(name)
    ]
    restores = {name: list(then.live.get(name, ())) for name in differing}
    returning = {name: [n for n in restores[name] if n not in now.live.get(name, ())] for name in differing}
    for name, numbers in returning.items():
        for number in numbers:
            if not now.can_restore(name, number):
                raise NotReversible(
                    f"the table cannot be rolled back to generation {then.generation}: the files of"
                    f" generation {number} in {name or 'its root'} were replaced since, and are deleted or"
                    " released to be; nothing was changed"
                )
    leaving = {name: [n for n in now.live.get(name, ()) if n not in restores[name]] for name in differing}
    sources = {**then.sources, **now.sources}
    return Change(then.generation, now.generation, restores, leaving, returning, sources)


def plan_rollback(context: JobContext, to: int, seen: int | None = None) -> Change:
    """Return what a rollback would change, after looking at every file that would come back.

    Args:
        seen: The newest generation that the caller knows; None for any.

    Raises:
        NoSuchKey: There is no such generation.
        NotReversible: A file of the generation is gone, changed or released.
        DestinationChanged: There is a newer generation than the caller knows.
    """
    store, home = context.store, context.layout.destination
    now = read_table(store, home)
    if to < 1 or to > now.head.number or (then := read_table(store, home, to)).generation != to:
        raise NoSuchKey(
            f"{home.uri} has no generation {to}; the newest is {now.generation}; list them with:"
            f" s3commit log {home.uri}"
        )
    if seen not in (None, now.generation):
        raise DestinationChanged(
            f"{home.uri} has generation {now.generation} by now, which a rollback to {to} would take back"
            " too; nothing was changed. Look at it with s3commit log, then decide again"
        )
    change = change_between(then, now)
    for batch in in_batches(files_in(store, home, change.sources, change.returning), _BATCH):
        calls = [(file, Head(home.bucket, file.key)) for file in batch]
        for file, found in outcomes(store, calls, NoSuchKey):
            if not isinstance(found, ObjectInfo) or not _is_intact(file, found):
                raise NotReversible(
                    f"the table cannot be rolled back to generation {to}:"
                    f" {join_uri(home.bucket, file.key)} is gone or changed; nothing was changed"
                )
    return change


def roll_back(
    context: JobContext, to: int, *, retain: str = "0s", seen: int | None = None, dry_run: bool = False
) -> tuple[Change, Entry | None]:
    """Make the table what it was at an older generation, by a commit of its own.

    Args:
        context: A new job of the destination, with an id that nobody has used.
        retain: How long the files that leave the table stay in place, as a job's option.
        seen: The newest generation that the caller knows; None for any.
        dry_run: Only look what would change.

    Returns:
        What changes, and the commit's entry; None without one: for a dry run, or if the table is already so.

    Raises:
        NoSuchKey: There is no such generation.
        NotReversible: A file of the generation is gone, changed or released. Nothing was changed.
        DestinationChanged: Another job committed meanwhile. Nothing was changed.
        OutcomeUnknown: A response was lost, or a request failed after the entry: look at the log, and commit
            the job of the rollback again, or abort it.
        Unavailable: Other entries came first a hundred times. Nothing was changed: run it again.
    """
    options = JobOptions(conflict_mode="replace", retain=retain)
    change = plan_rollback(context, to, seen)
    if dry_run or not change.restores:
        return change, None
    with naming(context, f"rollback to generation {change.to}"):
        with aborting_unbegun(context):
            stored = set_up(context, options, {})
            look_at_record(context, stored)
        job = stored.record
        log = Log(context, job.base)

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
        return change, end


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


def _is_intact(file: FileEntry, found: ObjectInfo) -> bool:
    if file.upload and found.metadata.get(UPLOAD_METADATA) == file.upload:
        return found.size == file.size
    return found.size == file.size and (found.etag == file.etag if file.etag else not file.upload)

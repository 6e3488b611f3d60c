"""Roll a table back to an older generation, by a commit that refers to files that are there already."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from airflow_s3commit._clock import Clock, SystemClock
from airflow_s3commit._columns import Column
from airflow_s3commit._format import number, shortened
from airflow_s3commit.protocol.metadata.context import JobContext, new_uuid
from airflow_s3commit.protocol.model.codec import Plain
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.layout import Layout
from airflow_s3commit.protocol.model.table import Pieces
from airflow_s3commit.protocol.steps.rollback import Change, roll_back
from airflow_s3commit.store.base import ObjectStore


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
        new_id: Source of nonces for records.
        threads: Concurrent requests; 0 sends them in the caller's thread.

    Raises:
        NoSuchKey: There is no such generation.
        NotReversible: A file of the generation is gone, changed, or released to be deleted. Nothing was
            changed.
        DestinationChanged: Another job has committed meanwhile. Nothing was changed.
        InvalidOption: ``retain`` is no duration, or the table has a marker in each partition.
        StoreUnsuitable: The store ignores conditional writes.
        InvalidRecord: An entry of the log or a list of files is damaged.
        OutcomeUnknown: A response was lost: look at ``s3commit log``, and run it again.
    """
    home = Destination.of(destination)
    layout = Layout.of(home, new_uuid())
    context = JobContext(store, layout, clock=clock or SystemClock(), new_id=new_id, threads=threads)
    change, entry = roll_back(context, to, retain=retain, seen=newest, dry_run=dry_run)
    return RollbackReport(
        destination=home.uri,
        to=to,
        newest=change.now,
        generation=entry.number if entry is not None else None,
        dry_run=dry_run,
        partitions=sorted(change.restores),
        files=_files(change, change.restores),
        restored=_files(change, change.returning),
        removed=_files(change, change.leaving),
        retain=retain,
    )


def _files(change: Change, pieces: Pieces) -> int:
    return sum(
        change.sources[number].partitions[name].files
        for name, numbers in pieces.items()
        for number in numbers
    )

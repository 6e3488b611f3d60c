"""What a commit takes from the table: decided at the head of the log, right before each try of its entry."""

from __future__ import annotations

from collections.abc import Collection, Container
from dataclasses import dataclass

from msgspec.structs import replace

from airflow_s3commit.exceptions import DestinationNotEmpty
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.model.job import JobOptions, Removal
from airflow_s3commit.protocol.model.sealed_job import Counts
from airflow_s3commit.protocol.model.table import Table, UnownedObject
from airflow_s3commit.protocol.steps.files import unowned_objects


@dataclass(frozen=True)
class Taken:
    """What a commit takes from the table, as of one entry of the log.

    Attributes:
        takes: ``nothing``, the files of its ``partitions``, or ``everything``.
        pieces: The commits whose files leave, by partition.
        unowned: Objects of other programs that leave with them.
        replaced: The totals of both; their rows are unknown.
    """

    takes: Removal
    pieces: dict[str, list[int]]
    unowned: list[UnownedObject]
    replaced: Counts


def decide(
    context: JobContext,
    options: JobOptions,
    partitions: Collection[str],
    table: Table,
    own: Container[str] = (),
) -> Taken:
    """Return what a commit takes from a table, or refuse the commit.

    Args:
        options: The options of the commit, as sealed.
        partitions: The partitions that it writes or empties.
        own: Keys of the job's own files, if their names do not show whose they are.

    Raises:
        DestinationNotEmpty: Conflict mode ``fail``, and there is data.
        InvalidDestination: All is replaced, and another dataset lies below the destination.
    """
    if options.only_adds:
        return Taken("nothing", {}, [], Counts())
    whole = options.whole_destination
    takes: Removal = "everything" if whole else "partitions"
    pieces = table.left_by(takes, partitions)
    unowned = unowned_objects(context, table, None if whole else partitions, own)
    if options.conflict_mode == "fail":
        if pieces or unowned:
            raise not_empty(context, min(pieces) if pieces else unowned[0].key)
        return Taken("nothing", {}, [], Counts())
    others = Counts(files=len(unowned), bytes=sum(one.size for one in unowned), rows=None)
    replaced = replace(table.counts_of(pieces).plus(others).without_columns(), rows=None)
    return Taken(takes, pieces, unowned, replaced)


def not_empty(context: JobContext, where: str) -> DestinationNotEmpty:
    """Return the error of a job with conflict mode ``fail`` where there is data."""
    return DestinationNotEmpty(
        f"{context.name}: conflict mode is fail, and there is data: {where!r}; use replace or append, or"
        " another destination"
    )

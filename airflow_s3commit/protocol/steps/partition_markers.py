"""A ``_SUCCESS`` in each partition, for readers that wait for one: derived from the log after an entry.

A partition with files has the marker of a commit, and an emptied one has none. Unlike the destination's
marker these are deleted, so for a moment an older one may come back; the commit that touched the partition
last puts that right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from airflow_s3commit.exceptions import InvalidOption, NoSuchKey, PreconditionFailed
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.removal import delete_record
from airflow_s3commit.protocol.model.entry import Entry
from airflow_s3commit.protocol.model.job import JobOptions
from airflow_s3commit.protocol.model.sealed_job import Counts
from airflow_s3commit.protocol.model.table import Table
from airflow_s3commit.protocol.steps.fold import entries_after, read_table
from airflow_s3commit.protocol.steps.marker import find_marker, write_marker
from airflow_s3commit.store.execute import in_threads


def refuse_markers_beside_retained(
    context: JobContext, options: JobOptions, marks: bool, table: Callable[[], Table]
) -> None:
    """Refuse what would show retained files to a reader that waits for a partition's marker and lists it.

    Args:
        context: The job.
        options: Its options.
        marks: Whether the partitions have markers.
        table: Returns the table at the head.

    Raises:
        InvalidOption: ``retain`` in a table with markers, or ``partition_success`` in one that retains files.

    """
    home = context.layout.destination.uri
    if options.retain_seconds and marks:
        raise InvalidOption(
            f"{context.name}: retain={options.retain!r} is refused, because a commit of {home} has asked for"
            " partition_success=True: a reader that waits for the marker of a partition lists it, and would"
            " see the retained files too. Set the job up without retain"
        )
    if options.partition_success and not marks and (retained := table().retained):
        raise InvalidOption(
            f"{context.name}: partition_success=True is refused, because {home} retains files that"
            f" generation {max(retained)} replaced: a reader that waits for the marker of a partition lists"
            " it, and would see them too. Set the job up without it, or first remove them once their time has"
            f" passed: s3commit sweep {home} --older-than 7d --apply"
        )


def derive_markers(
    context: JobContext, entry: Entry, touched: Iterable[str], *, over_others: bool = False
) -> None:
    """Give the partitions that a commit touched the markers that follow from the log. Repeatable.

    Before: the files that the commit took are deleted.

    Args:
        context: Any job of the destination.
        entry: The commit.
        touched: The partitions; the root has the destination's marker.
        over_others: Write over the marker of another program too, and over one that is damaged.

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
    found = find_marker(context, key)
    # That of a commit after the table that was read stays: the partition is looked at again.
    if found is not None and found.generation is not None and found.generation <= table.head.number:
        with suppress(PreconditionFailed, NoSuchKey):
            delete_record(context, context.bucket, key, if_match=found.etag)

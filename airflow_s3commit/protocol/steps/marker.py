"""``_SUCCESS``: derived from the log, never deleted, and it only goes forward.

It is written after what a commit replaces is deleted, by compare-and-swap, and only over the marker of an
older generation or of another program. What is deleted has no ETag, so a slow writer could create it anew;
what is only overwritten cannot go back.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from msgspec.structs import replace

from airflow_s3commit.exceptions import (
    ForeignRecord,
    InvalidOption,
    InvalidRecord,
    NoSuchKey,
    PreconditionFailed,
    TooLarge,
)
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.removal import delete_record
from airflow_s3commit.protocol.model.codec import decode, encode, largest
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.entry import Entry
from airflow_s3commit.protocol.model.job import JobOptions
from airflow_s3commit.protocol.model.layout import SUCCESS, entry_key, receipt_key
from airflow_s3commit.protocol.model.manifest import (
    GENERATION_DIAGNOSTIC,
    MANIFEST_DIAGNOSTIC,
    NONCE_DIAGNOSTIC,
    SUCCESS_NAME,
    SuccessData,
)
from airflow_s3commit.protocol.model.pendingset import IOStatistics
from airflow_s3commit.protocol.model.sealed_job import Counts
from airflow_s3commit.protocol.model.table import Table
from airflow_s3commit.protocol.steps.fold import entries_after, read_table
from airflow_s3commit.store.base import ObjectStore
from airflow_s3commit.store.execute import in_threads


class Marker(NamedTuple):
    """The marker that is there; ``generation`` is None for another program's."""

    etag: str
    generation: int | None


def write_marker(
    context: JobContext,
    key: str,
    entry: Entry,
    keys: Callable[[], list[str]],
    *,
    over_others: bool = False,
) -> None:
    """Write the marker of a commit, unless that of this commit or a later one is there. Repeatable.

    A marker that another program wrote after the entry stays: it speaks of newer data than this commit.

    Args:
        context: Any job of the destination.
        key: Key of the marker.
        entry: The commit.
        keys: Returns the keys of its first files, at most 100.
        over_others: Write over such a marker too, and over one that is damaged.

    """
    store, bucket = context.store, context.bucket
    while True:
        found = find_marker(context, key)
        is_others = found is not None and found.generation is None
        if found is not None and not (over_others and is_others) and _is_as_new(context, key, found, entry):
            return
        condition: dict[str, Any] = {"if_none_match": True} if found is None else {"if_match": found.etag}
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


def read_success(store: ObjectStore, home: Destination) -> SuccessData:
    """Read a destination's ``_SUCCESS``.

    Raises:
        NoSuchKey: It does not exist.
        ForeignRecord: It is empty: the classic committer's marker.
        InvalidRecord: It is truncated, or no manifest.

    """
    key = home.key(SUCCESS)
    body = store.get(home.bucket, key, limit=largest(SuccessData)).body
    where = join_uri(home.bucket, key)
    if not body:
        raise ForeignRecord(f"{where} is empty: the classic committer's marker, not a manifest")
    return decode(SuccessData, body, where)


def find_marker(context: JobContext, key: str) -> Marker | None:
    """Return the marker at a key; None without one."""
    store, bucket = context.store, context.bucket
    try:
        fetched = store.get(bucket, key, limit=largest(SuccessData))
    except NoSuchKey:
        return None
    except TooLarge:
        return Marker(store.head(bucket, key).etag, None)
    generation = None
    with suppress(InvalidRecord):
        generation = decode(SuccessData, fetched.body, SUCCESS).generation
    return Marker(fetched.info.etag, generation)


def _is_as_new(context: JobContext, key: str, found: Marker, entry: Entry) -> bool:
    if found.generation is not None:
        return found.generation >= entry.number
    store, home = context.store, context.layout.destination
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
    # That of a commit after the table that was read stays: the partition is looked at again.
    while (found := find_marker(context, key)) is not None and 0 < (
        found.generation or 0
    ) <= table.head.number:
        with suppress(PreconditionFailed, NoSuchKey):
            delete_record(context, context.bucket, key, if_match=found.etag)
            return

"""Publish the entries of a log to other engines: each is one version of a Delta table at the destination.

A version follows from the log alone, as receipts do, and is written right after its entry: before it the
files that the entry adds are there, after it those that the entry takes are deleted. So the newest version
names no file that is missing. A process that creates an entry first writes the newest one's version.

What a commit changes is what enters and leaves the table with its entry, by partition. That one rule serves
an append, a replace, a rollback and a compaction, and needs no lists of files but those of what changes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct
from msgspec.structs import replace

from airflow_s3commit.exceptions import (
    AccessDenied,
    InvalidOption,
    InvalidRecord,
    NoSuchKey,
    OutcomeUnknown,
    PreconditionFailed,
    TooLarge,
)
from airflow_s3commit.protocol.metadata.context import JobContext, has_object
from airflow_s3commit.protocol.model.codec import GIB, KIB, MIB, Count, decode
from airflow_s3commit.protocol.model.delta import (
    UNKNOWN_COLUMNS,
    DeltaColumns,
    TableChange,
    columns_of,
    partition_values,
    version_lines,
)
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.job import JobOptions, Position
from airflow_s3commit.protocol.model.layout import DELTA_LOG, VERSIONS, delta_version, entry_key, version_key
from airflow_s3commit.protocol.model.table import Entry, Source, Table
from airflow_s3commit.protocol.steps.files import files_in
from airflow_s3commit.protocol.steps.fold import entries_after, read_table, table_at_head, table_before
from airflow_s3commit.protocol.steps.log import Log
from airflow_s3commit.store.base import ObjectStore

logger = logging.getLogger(__name__)

#: Seconds of retention below which a setup warns about queries of other engines.
_LONG = 3600


def _apply(store: ObjectStore, table: Table, entry: Entry, sha256: str = "", *, whole: bool) -> TableChange:
    """Apply a commit's entry to a table, and return what it changes; with ``whole`` from an empty table.

    Raises `InvalidOption` if Delta cannot have a column or partition of the table after the commit.
    """
    home = Destination.parse(entry.destination)
    before = None if whole else delta_columns(table)
    left = table.apply(entry, sha256)
    after = delta_columns(table)
    gained, lost = (table.live, {}) if whole else (left.gained, left.pieces)
    # Where a partition column's type changes, the values of files that stay must be of it too.
    is_same = before is not None and before.partitions == after.partitions
    for partition, numbers in (gained if is_same else table.live).items():
        if numbers:
            partition_values(partition, after)
    removed = files_in(store, home, left.sources, lost)
    added = files_in(store, home, table.sources, gained)
    return TableChange(entry, table, before, after, gained, removed, added)


def changes(store: ObjectStore, home: Destination, since: Position) -> Iterator[TableChange]:
    """Yield what each commit after an entry changes, oldest first.

    If that is number 0, no entry, the first change has the whole table as it is now: files that older commits
    removed may be gone. Raises `InvalidRecord` if the log does not have this entry, and as `entries_after`.
    """
    if since.number:
        table = Table()
        with suppress(NoSuchKey):
            table = read_table(store, home, since.number)
        if table.head != since:
            raise InvalidRecord(
                f"the log of {home.uri} does not have the entry {since.number} that it had: it was begun anew"
            )
    else:
        newest = read_table(store, home).generation
        table = read_table(store, home, max(newest - 1, 0))
    for read in entries_after(store, home, table.head):
        if read.entry.commit is None:
            table.apply(read.entry, read.sha256)
        else:
            yield _apply(store, table, read.entry, read.sha256, whole=not since.number)
            since = table.head


#: Bytes at the start of a version that hold its first line, unless another program wrote it.
START_BYTES = 64 * KIB


def publish(context: JobContext, entry: Entry, before: Table | None = None) -> None:
    """Write the version of an entry of a published table, unless it is there. Repeatable by any process.

    ``before`` is the table that it follows, if that is known; the entry is applied to it. Raises
    `InvalidRecord` if another program wrote this version, `OutcomeUnknown` after a lost response.
    """
    store, home, version = context.store, context.layout.destination, entry.delta_version
    if version is None:
        return
    lines = version_lines(home, entry)
    if entry.commit is not None:
        table = before or table_before(store, home, entry)
        lines = version_lines(home, entry, _apply(store, table, entry, whole=not version))
    # The lines of a million files are in memory once.
    body = BytesIO()
    body.writelines(lines)
    try:
        store.put(home.bucket, version_key(home, version), body.getvalue(), if_none_match=True)
    except (PreconditionFailed, OutcomeUnknown, AccessDenied) as error:
        # The client may have sent the request twice, so it may be this version; and a bucket may demand an
        # encryption that is not known any more once the job's record is gone.
        if not _is_published(context, entry, version):
            raise error from None
        return
    if version and version % LOOK_EVERY == 0:
        checkpoint_if_due(store, home, version)


def publish_if_missing(context: JobContext, entry: Entry) -> None:
    """Write the version of an entry of a published table, if there is none. Raises as `publish`."""
    version = entry.delta_version
    if version is not None and not _is_published(context, entry, version):
        publish(context, entry)


def _is_published(context: JobContext, entry: Entry, version: int) -> bool:
    """Return whether the version of an entry is there; `InvalidRecord` if another program wrote it."""
    home = context.layout.destination
    try:
        start = read_start(context.store, home, version)
    except NoSuchKey:
        return False
    if not is_of(start, entry.nonce):
        where = join_uri(home.bucket, version_key(home, version))
        raise InvalidRecord(
            f"{where} is not the version of entry {entry.number}: another program wrote it, or it is of an"
            f" older log. Nobody commits to {home.uri} until it is moved away; then run: s3commit publish"
            f" {home.uri}"
        )
    return True


def read_start(store: ObjectStore, home: Destination, version: int) -> bytes:
    """Return the first bytes of a version; `NoSuchKey` without it."""
    key = version_key(home, version)
    try:
        return store.get(home.bucket, key, limit=START_BYTES).body
    except TooLarge:
        return store.get_range(home.bucket, key, 0, START_BYTES, etag=store.head(home.bucket, key).etag)


def is_of(start: bytes, nonce: str) -> bool:
    """Return whether a version belongs to the entry with this nonce, by its first line."""
    return nonce.encode() in start.partition(b"\n")[0]


def missing_versions(store: ObjectStore, home: Destination, newest: int) -> list[int]:
    """Return the missing versions up to ``newest``, after Delta's newest checkpoint, oldest first."""
    there, checkpoints = set[int](), [-1]
    for info in store.list_objects(home.bucket, home.key(VERSIONS), recursive=False):
        version = delta_version(home, info.key)
        if version is not None and info.key == version_key(home, version):
            there.add(version)
        elif version is not None and version <= newest:
            checkpoints.append(version)
    return [version for version in range(max(checkpoints) + 1, newest + 1) if version not in there]


def delta_columns(table: Table) -> DeltaColumns:
    """Return the columns of a table as Delta has them; `InvalidOption` if some are unknown, or cannot be."""
    if unknown := table.without_schemas():
        source = table.sources[unknown[0]]
        raise InvalidOption(
            f"the table cannot be published: the columns of files of {_owner(source)} are unknown:"
            f" {UNKNOWN_COLUMNS}"
        )
    written: dict[str, str] = {}
    for number in table.commits():
        for text in table.sources[number].schemas:
            written.setdefault(text, _owner(table.sources[number]))
    # An empty table keeps the columns that it had.
    return columns_of(written or dict.fromkeys(table.newest_schemas, "the table"))


def _owner(source: Source) -> str:
    who = "the data older than the log" if source.job_id is None else f"job {source.job_id}"
    return f"{who} (generation {source.number})"


def publishable(context: JobContext, log: Log, entry: Entry) -> Entry:
    """Return a commit's entry, without publication as long as the table has no columns.

    Before: the log is read to the entry before; the entry may lack its list of files. Raises `InvalidOption`
    if Delta cannot have a column or partition of the committed table, or another writer's versions exist.
    """
    is_first = entry.delta_version == 0
    table = table_at_head(context.store, context.layout.destination, log)
    change = _apply(context.store, table.copy(), entry, whole=is_first)
    if is_first:
        refuse_others_versions(context, log.head)
    return entry if change.after.fields else replace(entry, published=0)


def prepare(context: JobContext, options: JobOptions, log: Log) -> bool:
    """Return whether a job publishes the table, and refuse a job that certainly could not.

    Before: the newest entry is read. Raises `InvalidOption` if files that stay in the table cannot be
    published; or there are versions of another writer.
    """
    newest = log.read_newest()
    is_published = newest is not None and newest.published > 0
    if not is_published and options.publish is None:
        return False
    if not is_published:
        refuse_others_versions(context, log.head)
        if options.conflict_mode in ("append", "fail"):
            delta_columns(table_at_head(context.store, context.layout.destination, log))
    if options.retain_seconds < _LONG and not options.only_adds:
        logger.warning(
            "%s: with retain=%s a query of another engine fails if it still reads files that a commit has"
            " replaced: set retain to more than the longest query takes",
            context.name,
            options.retain,
        )
    return True


def refuse_others_versions(context: JobContext, head: Position) -> None:
    """Raise `InvalidOption` if another program keeps a Delta table there.

    Before: ``head``, the newest entry that was read, has no version. If there is a newer entry, the versions
    may be its own, and nothing is raised: the caller cannot create its entry, and decides anew after it.
    """
    home = context.layout.destination
    for info in context.store.list_objects(home.bucket, home.key(VERSIONS), page=1):
        if has_object(context.store, home.bucket, entry_key(home, head.number + 1)):
            return
        raise InvalidOption(
            f"{context.name} cannot be published: {join_uri(home.bucket, info.key)} is of another program,"
            " which keeps a Delta table there. Write to another directory, or move it away"
        )


#: Number and bytes of versions after which a checkpoint is made, and number of versions between such checks.
MOST_VERSIONS, MOST_BYTES, LOOK_EVERY = 100, 32 * MIB, 10

#: Most bytes of one object of the Delta log that are read.
_OBJECT_BYTES = 5 * GIB


class _LastCheckpoint(Struct, frozen=True):
    version: Count


def last_checkpoint(store: ObjectStore, home: Destination) -> int | None:
    """Return the version of the checkpoint at which readers begin; None without one, or if it is damaged."""
    key = home.key(f"{VERSIONS}_last_checkpoint")
    with suppress(NoSuchKey, InvalidRecord, TooLarge):
        return decode(_LastCheckpoint, store.get(home.bucket, key, limit=64 * KIB).body, key).version
    return None


def checkpoint_if_due(store: ObjectStore, home: Destination, newest: int) -> None:
    """Write a checkpoint up to version ``newest`` if many or large ones came since the last. Never raises."""
    prefix, bucket = home.key(VERSIONS), home.bucket
    last = f"{prefix}_last_checkpoint"
    try:
        since = last_checkpoint(store, home) or 0
        # From the checkpoint's own objects on.
        start = f"{prefix}{since:020}"
        found = store.list_objects(bucket, prefix, recursive=False, start_after=start)
        # Without later versions of another program: a checkpoint would keep them even if they are moved away.
        numbers = ((info, delta_version(home, info.key)) for info in found)
        listed = [info for info, number in numbers if number is not None and number <= newest]
        versions = [info.size for info in listed if info.key.endswith(".json")]
        if len(versions) <= MOST_VERSIONS and sum(versions) < MOST_BYTES:
            return
        from deltalake import DeltaTable  # noqa: PLC0415 - large, and optional

        with TemporaryDirectory() as folder:
            log = Path(folder, DELTA_LOG)
            log.mkdir()
            for info in listed:
                body = store.get(bucket, info.key, limit=_OBJECT_BYTES).body
                (log / info.key.removeprefix(prefix)).write_bytes(body)
            DeltaTable(folder).create_checkpoint()
            made = {prefix + file.name: file for file in log.glob("*.checkpoint*.parquet")}
            # The object that names the others comes last.
            for key in [*sorted(made.keys() - {info.key for info in listed}), last]:
                body = (log / key.removeprefix(prefix)).read_bytes()
                store.put(bucket, key, body, content_type="application/octet-stream")
    except Exception as error:
        # The library may raise anything, or be missing, and the disk may be full.
        logger.warning(
            "%s: no checkpoint of its Delta log, which every reader reads, is written (%s): install"
            " airflow-s3commit[delta] where jobs are committed",
            home.uri,
            error,
        )

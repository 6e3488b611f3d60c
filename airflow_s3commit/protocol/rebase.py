"""Take over the history of a copied dataset, after every file of the copy was compared with it.

In a copy the log names the original, and counts as no history. A *rebase* is a commit that takes it over: it
names the original, and new lists of the files, which have the keys and ETags of the copy. Nothing that was
copied is changed.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from msgspec import field
from msgspec.structs import replace

from airflow_s3commit._clock import Clock, SystemClock
from airflow_s3commit.exceptions import (
    DestinationChanged,
    NoSuchKey,
    NotReversible,
    SignatureRefused,
)
from airflow_s3commit.protocol.inspect.verify_dataset import MAX_NAMED, Changed, FileDifferences
from airflow_s3commit.protocol.lifecycle.commit import settle
from airflow_s3commit.protocol.lifecycle.finish import context_of
from airflow_s3commit.protocol.lifecycle.manifest import FileList, table_entry, write_files
from airflow_s3commit.protocol.lifecycle.success import restore_success, write_markers
from airflow_s3commit.protocol.metadata.capabilities import check_store
from airflow_s3commit.protocol.metadata.context import JobContext, new_uuid
from airflow_s3commit.protocol.metadata.endings import record_ending
from airflow_s3commit.protocol.metadata.lock import bar_older_versions
from airflow_s3commit.protocol.metadata.log import Log, read_entries, read_entry
from airflow_s3commit.protocol.metadata.snapshot import live_files, write_checkpoint
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.job import JobOptions
from airflow_s3commit.protocol.model.layout import Layout, entry_key, partition_of
from airflow_s3commit.protocol.model.log import LiveCommit, LogEntry, Rebase
from airflow_s3commit.protocol.model.manifest import FileEntry
from airflow_s3commit.protocol.model.ownership import UPLOAD_METADATA, Signer, check_signature
from airflow_s3commit.protocol.model.sealed_job import Counts
from airflow_s3commit.protocol.model.snapshot import TableSnapshot
from airflow_s3commit.store.base import Head, ObjectInfo, ObjectStore
from airflow_s3commit.store.execute import in_batches, outcomes

logger = logging.getLogger(__name__)

_BATCH = 1_000


class RebaseReport(FileDifferences, kw_only=True):
    """What a rebase has found in a copy, and whether it has taken over the history.

    Attributes:
        destination: URI of the copy.
        origin: URI of the original, as the copied log names it.
        dry_run: Whether nothing was changed.
        generation: The generation that the rebase made; None if it made none.
        files: Number of files that the table of the original had or retained.
        intact: Number of files whose bytes are proven to be the same: by the ETag, by the MD5 in it, or by
            the upload id in the metadata.
        by_size: Number of files of which only the size could be compared.
        missing_count: Number of files that are not in the copy.
        missing: Keys of the first `MAX_NAMED` of them.
        changed_count: Number of keys with another object.
        changed: The first `MAX_NAMED` of them.
        unproven: Keys of the first `MAX_NAMED` of them.
        accepts_sizes: Whether such files are accepted.

    """

    derived = ("complete", "acceptable")

    destination: str
    origin: str
    dry_run: bool = True
    generation: int | None = None
    unproven: list[str] = field(default_factory=list)
    accepts_sizes: bool = False

    @property
    def acceptable(self) -> bool:
        """Whether every file is there, and proven or accepted."""
        return self.complete and (self.accepts_sizes or not self.by_size)


def rebase(
    store: ObjectStore,
    destination: str | Destination,
    *,
    dry_run: bool = True,
    accept_sizes: bool = False,
    clock: Clock | None = None,
    new_id: Callable[[], str] = new_uuid,
    threads: int = 16,
    signer: Signer | None = None,
    step: Callable[[int], None] = lambda _: None,
) -> RebaseReport:
    """Make the log of a copied dataset the history of the copy. Changes nothing that was copied.

    Sends a HEAD for each file that the table has or retains. If all are as listed, it writes lists with
    the keys and ETags of the copy, and a commit that adds nothing. From then on generations, retention,
    ``since=`` and rollbacks go on as at the original. Copy while no job is running, and rebase before the
    first commit to the copy. Repeatable, also after a process died in the middle.

    Args:
        store: The store of the copy.
        destination: URI of the copy, or a `Destination`.
        dry_run: Only compare and report.
        accept_sizes: Accept files that have the right size and neither the ETag nor the metadata of the
            original: a copy in parts by a tool that drops metadata.
        clock: Source of time for records.
        new_id: Source of ids for records.
        threads: Concurrent requests; 0 sends them in the caller's thread.
        signer: The key of signed jobs: the copied entries must be signed with it.
        step: Called with the number of files that were compared.

    Returns:
        The report. Without ``acceptable`` nothing was changed.

    Raises:
        NoSuchKey: There is no log, or a list of files is missing.
        NotReversible: The history of the original has files that no list names; or the destination has a
            history of its own.
        DestinationChanged: A job committed meanwhile.
        SignatureRefused: Entries are signed, and no key, or another one, is given.
        StoreUnsuitable: The store ignores conditional writes.
        InvalidRecord: An entry or a list of files is damaged.

    """
    place = Destination.of(destination)
    context = context_of(
        store, place, clock=clock or SystemClock(), new_id=new_id, threads=threads, signer=signer
    )
    snapshot, rebased = _read(context)
    if rebased is not None:
        report = RebaseReport(destination=place.uri, origin=rebased.origin, dry_run=dry_run)
        if not dry_run:
            _finish(context, rebased.number)
        return report
    copied = snapshot.copied
    assert copied is not None, "the newest entry was copied here"
    report = RebaseReport(
        destination=place.uri, origin=copied.destination, dry_run=dry_run, accepts_sizes=accept_sizes
    )
    if not dry_run:
        check_store(context, JobOptions())
    lists = _Lists(context, copied, report)
    lists.compare(step)
    if dry_run or not report.acceptable:
        return report
    bar_older_versions(context, settle)
    log, entry = Log(context), _entry(context, lists, snapshot.number + 1)
    if log.read() != snapshot.number or not log.add(entry):
        raise DestinationChanged(
            f"{place.uri}: entry {log.position} of its log came meanwhile, so the history is not taken over;"
            " look at it with s3commit log, and do not commit to a copy before its rebase"
        )
    logger.info("%s: entry %d takes over the history of %s", place.uri, entry.number, copied.destination)
    _finish(context, entry.number)
    report.generation = entry.number
    return report


class _TakenOver(NamedTuple):
    """An earlier rebase: the original, and the number of its entry."""

    origin: str
    number: int


def _read(context: JobContext) -> tuple[TableSnapshot, _TakenOver | None]:
    """Return the fold of the log, and the rebase if the history was taken over already."""
    home = context.layout.destination
    snapshot, earlier, last = TableSnapshot(home.uri), None, None
    for entry, body in read_entries(context.store, home, 0):
        _check_signature(context, entry, body)
        snapshot.apply(entry)
        last, earlier = entry, _taken_over_after(entry, home, earlier)
    if last is None:
        raise NoSuchKey(f"{home.uri} has no log: nothing was copied here that a rebase could take over")
    if last.destination == home.uri:
        if earlier is not None:
            return snapshot, earlier
        raise NotReversible(
            f"{home.uri} has a history of its own, by entry {last.number} of its log: rebase a copy before"
            " the first commit to it; read it as it is, or copy the dataset to another place"
        )
    copied = snapshot.copied
    if copied is None or not copied.generation:
        raise NoSuchKey(f"{last.destination}, of which {home.uri} is a copy, has no commit in its log")
    if copied.baseline:
        raise NotReversible(
            f"{copied.destination}, of which {home.uri} is a copy, has files that are older than its log,"
            " and no list names them; list them at the original before it is copied, with: s3commit baseline"
            f" {copied.destination} --apply, or begin a history of the copy's own with its next commit"
        )
    return snapshot, None


def _taken_over_after(entry: LogEntry, home: Destination, earlier: _TakenOver | None) -> _TakenOver | None:
    """Return the rebase that the history after an entry goes back to; None if it goes back to none."""
    if entry.destination != home.uri or entry.baseline is not None:
        return None
    return _TakenOver(entry.rebase.origin, entry.number) if entry.rebase is not None else earlier


def _check_signature(context: JobContext, entry: LogEntry, body: bytes) -> None:
    home = context.layout.destination
    where = join_uri(home.bucket, entry_key(home, entry.number))
    if context.signer is None:
        if entry.signature is not None:
            raise SignatureRefused(f"{where} is signed: give the key, or nobody can tell who wrote it")
    elif entry.manifest is not None:
        check_signature(context.signer, entry, body, where)


class _Lists:
    """The lists of files of a copy.

    Args:
        context: The rebase.
        copied: The table of the original.
        report: Where to count.

    """

    def __init__(self, context: JobContext, copied: TableSnapshot, report: RebaseReport) -> None:
        self.retaining = any(not commit.released for commit in copied.retained())
        self.origin = Destination.parse(copied.destination)
        self.table = FileList(context)
        self.partitions: dict[str, Counts] = {}
        self._context, self._report = context, report
        self._live = {commit.number: frozenset(commit.partitions) for commit in copied.commits()}
        held = {commit.number: commit for commit in copied.commits()}
        for retained in copied.retained():
            if not retained.released:
                names = sorted({*retained.partitions, *(self._live.get(retained.number) or ())})
                held[retained.number] = LiveCommit(
                    number=retained.number,
                    job_id=retained.job_id,
                    files_sha256=retained.files_sha256,
                    partitions=names,
                    lost=held[retained.number].lost if retained.number in held else False,
                    rebased=retained.rebased,
                    within=retained.within,
                )
        self._held = [held[number] for number in sorted(held)]
        #: The new lists one after another, and how many files are in each.
        self._compared = FileList(context)
        self._commits: list[tuple[LiveCommit, int]] = []

    def compare(self, step: Callable[[int], None]) -> None:
        """Compare each file, by one HEAD, and collect the new lists: on disk, if they are long."""
        context, home = self._context, self._context.layout.destination
        compared = 0
        for commit, entries in live_files(context.store, home, self._held, FileEntry, origin=self.origin):
            files, count = FileList(context), 0
            for batch in in_batches(entries, _BATCH):
                for entry in self._found(batch):
                    files.add_entry(entry)
                    count += 1
                    partition = partition_of(entry.key[len(home.prefix) :])
                    if partition in self._live.get(commit.number, ()):
                        self.table.add_entry(entry)
                        counts = Counts(files=1, bytes=entry.size, rows=entry.rows)
                        self.partitions[partition] = self.partitions.get(partition, Counts()).plus(counts)
                compared += len(batch)
                step(compared)
            self._compared.extend(files)
            listed = replace(commit, files_sha256=files.sha256, rebased=True, within=False)
            self._commits.append((listed, count))

    def write(self) -> list[LiveCommit]:
        """Write the new lists, and return the commits that have them."""
        context, lines = self._context, self._compared.lines()
        for commit, count in self._commits:
            layout = Layout.of(context.layout.destination, commit.job_id)
            write_files(context, islice(lines, count), layout.rebased_files(commit.files_sha256))
        return [commit for commit, _ in self._commits]

    def _found(self, batch: list[FileEntry]) -> Iterator[FileEntry]:
        """Yield the files of the original as they are in the copy, without those that are gone or changed."""
        home = self._context.layout.destination
        moved = [replace(e, key=home.prefix + e.key[len(self.origin.prefix) :]) for e in batch]
        calls = [(entry.key, Head(home.bucket, entry.key)) for entry in moved]
        heads = dict(outcomes(self._context.store, calls, NoSuchKey))
        self._report.files += len(moved)
        for entry in moved:
            info = heads[entry.key]
            if not isinstance(info, ObjectInfo):
                self._report.add_missing(entry.key)
            elif self._is_accepted(entry, info):
                is_marked = info.metadata.get(UPLOAD_METADATA) == entry.upload
                yield replace(entry, etag=info.etag, upload=entry.upload if is_marked else "")

    def _is_accepted(self, entry: FileEntry, info: ObjectInfo) -> bool:
        report = self._report
        marked = info.metadata.get(UPLOAD_METADATA)
        if info.size != entry.size or (marked is not None and marked != (entry.upload or marked)):
            report.add_changed(_changed(entry, info))
        elif (entry.upload and marked == entry.upload) or have_same_md5(entry.etag, info.etag):
            report.intact += 1
            return True
        elif not entry.etag or "-" in entry.etag + info.etag:
            # The ETag depends on the parts too: other parts, or bytes, nobody can tell.
            report.by_size += 1
            if len(report.unproven) < MAX_NAMED:
                report.unproven.append(entry.key)
            return True
        else:
            report.add_changed(_changed(entry, info))
        return False


def have_same_md5(one: str, other: str) -> bool:
    """Return whether two ETags prove the same bytes: equal, or one of a single part and one without parts.

    The ETag of a plain object is the MD5 of its bytes; that of an upload is the MD5 of its parts' MD5s, with
    their number.
    """
    return bool(one) and (one == other or _of_one_part(one) == other or _of_one_part(other) == one)


def _of_one_part(etag: str) -> str | None:
    if not re.fullmatch("[0-9a-f]{32}", etag):
        return None
    return f"{hashlib.md5(bytes.fromhex(etag), usedforsecurity=False).hexdigest()}-1"


def _changed(entry: FileEntry, info: ObjectInfo) -> Changed:
    return Changed(
        key=entry.key, expected_size=entry.size, size=info.size, expected_etag=entry.etag, etag=info.etag
    )


def _entry(context: JobContext, lists: _Lists, number: int) -> LogEntry:
    """Write the lists, and return the entry that takes over the history."""
    written = lists.write()
    entry = table_entry(
        context,
        number,
        lists.table,
        lists.partitions,
        committer="magic",
        conflict_mode="append",
        replaced=Counts(),
        context={"rebased_from": lists.origin.uri},
    )
    before = read_entry(context.store, context.layout.destination, number - 1)
    return replace(
        entry,
        retaining=lists.retaining,
        marking=before.marking,
        rebase=Rebase(origin=lists.origin.uri, lists=written),
    )


def _finish(context: JobContext, number: int) -> None:
    """Write what is derived from the entry; markers that were copied here name the original's."""
    home = context.layout.destination
    entry = read_entry(context.store, home, number)
    assert entry.manifest is not None, "a rebase is a commit"
    record_ending(context, entry)
    if entry.marking:
        write_markers(context, entry.manifest)
    restore_success(context, None, at_least=number)
    write_checkpoint(context.store, home, number, always=True)

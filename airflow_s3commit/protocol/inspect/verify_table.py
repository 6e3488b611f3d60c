"""Verifies a table: compares the files of a generation with everything that lies in its destination.

Reads only. The expected files are held in a temporary database on disk, so that memory does not grow with
the table; one listing of the destination is compared with them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import overload

from msgspec import Struct, field

from airflow_s3commit.exceptions import InvalidRecord, NoSuchKey
from airflow_s3commit.protocol.inspect.verify_dataset import (
    MAX_NAMED,
    ExpectedFile,
    FileDifferences,
    VerifyReport,
    compare_objects,
    verify_manifest,
)
from airflow_s3commit.protocol.inspect.verify_log import LogCheck, LogFinding
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.listing import are_unfinished, data_objects
from airflow_s3commit.protocol.metadata.log import newest_commit
from airflow_s3commit.protocol.metadata.manifests import (
    FileSummary,
    each_list,
    key_with_list,
    manifest_of,
    read_list,
)
from airflow_s3commit.protocol.metadata.snapshot import KnownFiles, are_in_log
from airflow_s3commit.protocol.model.codec import Line
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.job import State
from airflow_s3commit.protocol.model.layout import Layout, owner_of, partition_of
from airflow_s3commit.protocol.model.log import LiveCommit
from airflow_s3commit.protocol.model.snapshot import TableSnapshot
from airflow_s3commit.store.base import ObjectInfo, ObjectStore
from airflow_s3commit.store.execute import in_batches

_BATCH = 1_000

#: KiB of the expected files in memory.
_CACHE_KIB = 65_536

#: Stands for a job, where a listing needs one.
_NOBODY = "00000000-0000-0000-0000-000000000000"


class Beside(Struct, frozen=True, kw_only=True):
    """A data object that is not part of the table.

    Attributes:
        key: Object key.
        size: Its bytes.
        job_id: The job that wrote it; None if none is known.

    """

    key: str
    size: int
    job_id: str | None = None


class TableReport(FileDifferences, kw_only=True):
    """Differences between a table at a generation and what is in its destination.

    Attributes:
        destination: URI of the table.
        generation: The generation; None if the log is too damaged to know the table, whose files are then not
            compared.
        files: Number of files that its commits list.
        intact: Number of files that exist unchanged, by their ETag or by the upload id in their metadata.
        by_size: Number of files that exist with the right size, and cannot be compared further.
        missing_count: Number of files that do not exist.
        missing: Keys of the first `MAX_NAMED` missing files.
        changed_count: Number of keys with another object: somebody overwrote the file.
        changed: The first `MAX_NAMED` changed files.
        removed: Number of files that are gone or changed because a later commit replaced them, and of those
            that a job which is ending will delete.
        older: Number of objects that are older than the log and part of the table.
        later: Number of objects of commits after the generation.
        retained: Number of files that the table had, and that are retained.
        unfinished_count: Number of objects of jobs that neither committed nor were aborted.
        unfinished: The first `MAX_NAMED` of them.
        leftover_count: Number of objects of ended jobs that are not part of the table.
        leftovers: The first `MAX_NAMED` of them.
        foreign_count: Number of other objects: another program wrote them, or somebody copied them here.
        foreign: The first `MAX_NAMED` of them.
        entries: Number of the newest entry of the log.
        log: What is wrong with the log and the records derived from it.

    """

    derived = ("complete", "exclusive", "sound")

    destination: str
    generation: int | None = None
    removed: int = 0
    older: int = 0
    later: int = 0
    retained: int = 0
    unfinished_count: int = 0
    unfinished: list[Beside] = field(default_factory=list)
    leftover_count: int = 0
    leftovers: list[Beside] = field(default_factory=list)
    foreign_count: int = 0
    foreign: list[Beside] = field(default_factory=list)
    entries: int = 0
    log: list[LogFinding] = field(default_factory=list)

    @property
    def exclusive(self) -> bool:
        """Whether the destination holds no foreign objects and none of ended jobs beside the table."""
        return not self.foreign_count and not self.leftover_count

    @property
    def sound(self) -> bool:
        """Whether the table is complete and exclusive, and its log has no finding that does harm."""
        return self.complete and self.exclusive and all(finding.harmless for finding in self.log)


@overload
def verify(
    store: ObjectStore,
    destination: str | Destination,
    *,
    job_id: str,
    threads: int = 16,
) -> VerifyReport: ...


@overload
def verify(
    store: ObjectStore,
    destination: str | Destination,
    *,
    generation: int | None = None,
    job_id: None = None,
    threads: int = 16,
) -> TableReport | VerifyReport: ...


def verify(
    store: ObjectStore,
    destination: str | Destination,
    *,
    generation: int | None = None,
    job_id: str | None = None,
    threads: int = 16,
) -> TableReport | VerifyReport:
    """Compare a table, or the files that one job committed, with the objects at the destination. Reads only.

    Args:
        store: The store of the destination.
        destination: URI of the dataset's directory, or a `Destination`.
        generation: Check the table as it was after this commit; by default at the newest.
        job_id: Check what this job committed, in place of the table.
        threads: Number of partitions to list at once for one job; 0 lists in the caller's thread.

    Returns:
        The report on the table. With ``job_id``, and where no version with a log has committed, the report on
        one job: this one, or the last one that committed.

    Raises:
        NoSuchKey: The job has not committed there, or no job has; there is no such generation; or the job's
            list of files is missing.
        ForeignRecord: ``_SUCCESS`` was written by another committer, or the manifest was copied here.
        InvalidRecord: ``_SUCCESS``, the job's manifest or its list of files is damaged.
        ValueError: Both ``generation`` and ``job_id`` are given.

    """
    place = Destination.of(destination)
    if generation is not None and job_id is not None:
        raise ValueError("verify one job, or the table at a generation")
    if job_id is None and (generation is not None or has_log(store, place)):
        return verify_table(LogCheck(store, place, generation).read())
    return verify_manifest(store, manifest_of(store, place, job_id), threads=threads)


def has_log(store: ObjectStore, destination: Destination) -> bool:
    """Return whether a destination has a log with a commit, or one that is damaged."""
    try:
        return newest_commit(store, destination) is not None
    except InvalidRecord:
        return True


def verify_table(log: LogCheck, step: Callable[[int], None] = lambda _: None) -> TableReport:
    """Compare the table of a log that was read with everything in its destination. Reads only.

    Lists the destination once. Commits that are entered meanwhile are taken into account.

    Args:
        log: The log.
        step: Called with the number of objects that were compared.

    Raises:
        S3CommitError: A request failed.

    """
    report = TableReport(destination=log.destination.uri)
    if log.table is not None:
        report.generation = log.table.generation
        with closing(_ExpectedFiles()) as expected:
            commits = log.table.commits()
            for commit, file in _listed_files(log, commits):
                expected.add(file.key, ExpectedFile(file.size, file.etag, file.upload), commit.number)
            log.compare_lists(commits)
            report.files = expected.count()
            _Comparison(log, log.table, expected, report).run(step)
    report.entries, report.log = log.head, log.findings
    return report


class _ListedFile(FileSummary, frozen=True, kw_only=True, gc=False):
    etag: Line = ""
    upload: Line = ""


def _listed_files(log: LogCheck, commits: Iterable[LiveCommit]) -> Iterator[tuple[LiveCommit, _ListedFile]]:
    """Yield the files of a snapshot's commits. A list that is damaged or gone becomes a finding."""
    home = log.destination
    for commit, pieces in each_list(log.store, home, commits):
        live = frozenset(commit.partitions)
        where = join_uri(home.bucket, key_with_list(home, commit))
        try:
            files = read_list(_ListedFile, home, commit.job_id, commit.files_sha256, pieces, where=where)
            for file in files:
                if partition_of(file.key[len(home.prefix) :]) in live:
                    yield commit, file
        except (InvalidRecord, NoSuchKey) as error:
            log.add_list(commit, str(error))


class _ExpectedFiles:
    """The files of a table by key, in a temporary database on disk."""

    def __init__(self) -> None:
        self._rows = sqlite3.connect("", isolation_level=None)
        self._rows.execute("PRAGMA journal_mode = OFF")
        self._rows.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        self._rows.execute(
            "CREATE TABLE file (key BLOB PRIMARY KEY, size INT, etag TEXT, upload TEXT, number INT)"
            " WITHOUT ROWID"
        )
        self._rows.execute("BEGIN")

    def close(self) -> None:
        """Delete the database."""
        self._rows.close()

    def add(self, key: str, file: ExpectedFile, number: int) -> None:
        """Add a file of a commit; of two with one key the later one counts."""
        self._rows.execute(
            "INSERT INTO file VALUES (?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET size = excluded.size,"
            " etag = excluded.etag, upload = excluded.upload, number = excluded.number"
            " WHERE excluded.number > number",
            (_bytes_of(key), *file, number),
        )

    def count(self) -> int:
        """Return the number of files that are left."""
        return int(self._rows.execute("SELECT count(*) FROM file").fetchone()[0])

    def pop(self, key: str) -> ExpectedFile | None:
        """Remove a file and return it; None if it is not there."""
        row = self._rows.execute(
            "SELECT size, etag, upload FROM file WHERE key = ?", (_bytes_of(key),)
        ).fetchone()
        if row is None:
            return None
        self._rows.execute("DELETE FROM file WHERE key = ?", (_bytes_of(key),))
        return ExpectedFile(*row)

    def __iter__(self) -> Iterator[str]:
        """Yield the keys of the files that are left, in their order."""
        for (key,) in self._rows.execute("SELECT key FROM file ORDER BY key"):
            yield key.decode("utf-8", "surrogatepass")


def _bytes_of(key: str) -> bytes:
    # Keys of other programs may contain what text in the database cannot.
    return key.encode("utf-8", "surrogatepass")


class _Comparison:
    """Compares a listing of a destination with the expected files, and names what lies beside them."""

    def __init__(
        self, log: LogCheck, table: TableSnapshot, expected: _ExpectedFiles, report: TableReport
    ) -> None:
        self._log = log
        self._table = table
        self._expected = expected
        self._report = report
        self._context = JobContext(log.store, Layout.of(log.destination, _NOBODY))
        self._known = KnownFiles(log.destination, log.newest)
        self._deleting: dict[str, State] = {}
        self._unfinished: dict[str, bool] = {}
        self._is_older: dict[str, bool] = {}

    def run(self, step: Callable[[int], None]) -> None:
        compared = 0
        # Before the listing: what it shows of them may go later.
        self._deleting = self._log.deleting()
        for batch in in_batches(data_objects(self._context, None), _BATCH):
            pairs, beside = [], []
            for info in batch:
                file = self._expected.pop(info.key)
                if file is None:
                    beside.append(info)
                else:
                    pairs.append((info, file))
            self._compare(pairs)
            if beside:
                self._judge(beside)
            compared += len(batch)
            step(compared)
        self._log.catch_up()
        for key in self._expected:
            if self._log.is_later(self._partition(key)):
                self._report.removed += 1
            else:
                self._report.add_missing(key)

    def _compare(self, pairs: list[tuple[ObjectInfo, ExpectedFile]]) -> None:
        """Compare objects with the files at their keys; later commits may have removed them."""
        kept = [pair for pair in pairs if not self._log.is_later(self._partition(pair[0].key))]
        compare_objects(self._context, kept, self._report)
        if len(kept) < len(pairs):
            later = FileDifferences()
            compare_objects(self._context, (pair for pair in pairs if pair not in kept), later)
            self._report.intact += later.intact
            self._report.by_size += later.by_size
            self._report.removed += later.changed_count + later.missing_count

    def _judge(self, beside: list[ObjectInfo]) -> None:
        """Count objects that are not in the table by their jobs."""
        report, log = self._report, self._log
        owners = {info.key: owner_of(info.key) for info in beside}
        if any(owner not in log.ended for owner in owners.values() if owner is not None):
            log.catch_up()
        unknown = {
            owner: key
            for key, owner in owners.items()
            if owner is not None and owner not in log.ended and owner not in self._unfinished
        }
        self._unfinished |= are_unfinished(self._context, unknown)
        if self._table.baseline:
            settled = [owner for owner in unknown if not self._unfinished[owner]]
            ended = are_in_log(log.store, log.destination, settled)
            self._is_older |= {owner: not ended.get(owner, False) for owner in settled}
        for info in beside:
            owner = owners[info.key]
            found = Beside(key=info.key, size=info.size, job_id=owner)
            if self._known.is_retained(info.key):
                report.retained += 1
            elif owner in log.ended:
                number, kind = log.ended[owner]
                if kind == "commit" and number > (report.generation or 0):
                    report.later += 1
                elif self._is_being_deleted(owner, kind):
                    report.removed += 1
                else:
                    report.leftover_count += 1
                    _name(report.leftovers, found)
            elif owner is not None and self._unfinished[owner]:
                report.unfinished_count += 1
                _name(report.unfinished, found)
            elif self._is_in_baseline(info.key, owner):
                report.older += 1
            else:
                report.foreign_count += 1
                _name(report.foreign, found)

    def _is_being_deleted(self, owner: str | None, kind: str) -> bool:
        """Return whether a job that is ending will delete an object of a job that has ended."""
        if kind == "abandon":
            return owner in self._deleting
        return any(state != "aborting" for state in self._deleting.values())

    def _is_in_baseline(self, key: str, owner: str | None) -> bool:
        is_there = self._table.baseline > 0 and self._partition(key) not in self._table.removed
        return is_there and (owner is None or self._is_older.get(owner, False))

    def _partition(self, key: str) -> str:
        return partition_of(key[len(self._log.destination.prefix) :])


def _name(names: list[Beside], found: Beside) -> None:
    if len(names) < MAX_NAMED:
        names.append(found)

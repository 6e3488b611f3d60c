"""Verifies a table: compares the files that its log names with a listing of its destination. Reads only."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from msgspec import Struct, field

from airflow_s3commit._format import Column, Named, size, some
from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol.inspect.verify_job import (
    BATCH,
    MAX_NAMED,
    ExpectedFile,
    ExpectedFiles,
    FileDifferences,
)
from airflow_s3commit.protocol.inspect.verify_log import LogCheck, LogFinding
from airflow_s3commit.protocol.metadata.context import JobContext, has_object
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.layout import OLDER_DATA, Layout, job_key, owner_of, partition_of
from airflow_s3commit.protocol.model.table import Left, Pieces, Source, Table
from airflow_s3commit.protocol.steps.files import data_objects
from airflow_s3commit.protocol.steps.fold import table_before
from airflow_s3commit.protocol.steps.log import read_entry
from airflow_s3commit.store.base import ObjectInfo, ObjectStore
from airflow_s3commit.store.execute import in_batches

logger = logging.getLogger(__name__)


class Beside(Struct, frozen=True, kw_only=True):
    """A data object that is not part of the table, and the job that wrote it; None if none is known."""

    key: str
    size: int
    job_id: str | None = None

    def __str__(self) -> str:
        return f"{self.key}: {size(self.size)}" + (f", of job {self.job_id}" if self.job_id else "")


class TableReport(FileDifferences, kw_only=True):
    """Differences between a table and its destination: `FileDifferences`, and what is beside the table.

    Attributes:
        destination: URI of the table.
        generation: The generation; None if the log is too damaged to know the table: no files are compared.
        later: Number of objects of commits whose entries were created during the comparison.
        retained: Number of files that the table had, and that are retained.
        removed: Number of files that are gone or changed because a later commit replaced them, and of objects
            that a job which has ended will still delete.
        unfinished_count: Number of objects of jobs that neither committed nor were aborted.
        unfinished: The first `MAX_NAMED` of them.
        leftover_count: Number of objects of ended jobs that are not part of the table.
        leftovers: The first `MAX_NAMED` of them.
        foreign_count: Number of other objects: another program wrote them, or somebody copied them here.
        foreign: The first `MAX_NAMED` of them.
        entries: Number of the newest entry of the log.
        log: What is wrong with the log and the records derived from it.
    """

    kind = "table"
    derived = ("complete", "exclusive", "sound")
    columns = (
        Column("destination", "destination"),
        Column(
            "generation",
            "generation",
            lambda one: "not known: the log is damaged" if one is None else str(one),
        ),
        *FileDifferences.columns,
        Column("retained", "retained", some),
        Column("of later commits", "later", some),
        Column("of unfinished jobs", "unfinished_count", some),
        Column("LEFT OVER", "leftover_count", some),
        Column("FOREIGN", "foreign_count", some),
        Column("newest entry of the log", "entries"),
    )
    lists = (
        *FileDifferences.lists,
        Named("left over", "leftovers", "leftover_count"),
        Named("foreign", "foreign", "foreign_count"),
        Named("unfinished", "unfinished", "unfinished_count", harmless=True),
        Named("log", "log"),
    )

    destination: str
    generation: int | None = None
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
        """Whether the destination holds no foreign objects, and none of ended jobs outside the table."""
        return not self.foreign_count and not self.leftover_count

    @property
    def sound(self) -> bool:
        """Whether the table is complete and exclusive, and its log has no finding that does harm."""
        return self.complete and self.exclusive and all(finding.harmless for finding in self.log)


def verify(
    store: ObjectStore, destination: str | Destination, *, step: Callable[[int], None] = lambda _: None
) -> TableReport:
    """Compare a table and its log with everything that lies at the destination. Reads only.

    Lists the destination once. Takes commits that come meanwhile into account. For one job use `verify_job`.

    Args:
        store: The store of the destination.
        destination: URI of the dataset's directory, or a `Destination`.
        step: Called with the number of entries that were read, then of objects that were compared.

    Raises:
        NoSuchKey: There is no log.
        S3CommitError: A request failed.
    """
    log = LogCheck(store, Destination.of(destination), step).read()
    report = TableReport(destination=log.destination.uri)
    if log.newest is not None:
        _Comparison(log, log.newest, report).run(step)
    report.entries, report.log = log.head, log.findings
    return report


#: In place of a commit's number, for files that are not in the table and may be there: files that a job at
#: work is about to delete, and retained files.
_DOOMED, _RETAINED = 0, -1


class _Comparison:
    """Compares a listing of a destination with the files of a table, and judges what lies beside them."""

    def __init__(self, log: LogCheck, table: Table, report: TableReport) -> None:
        self._log, self._table, self._report = log, table, report
        self._home, self._head = log.destination, log.head
        # The listing needs the context of a job, whichever it is.
        self._context = JobContext(log.store, Layout.of(log.destination, OLDER_DATA))
        self._expected = ExpectedFiles(self._context, report, self._newest)
        self._unowned = table.unowned_in_place()

    def run(self, step: Callable[[int], None]) -> None:
        with self._expected as expected:
            self._read_lists()
            compared = 0
            for batch in in_batches(data_objects(self._context, None), BATCH):
                self._judge(expected.compare(batch))
                compared += len(batch)
                step(compared)
            expected.add_missing()

    def _read_lists(self) -> None:
        log, table = self._log, self._table
        sources: dict[int, Source] = {}
        numbers: dict[tuple[str, int], int] = {}

        def expect(pieces: Pieces, known: Mapping[int, Source], stands_for: int | None) -> None:
            sources.update(known)
            for name, commits in pieces.items():
                for one in commits:
                    numbers.setdefault((name, one), one if stands_for is None else stands_for)

        expect(table.live, table.sources, None)
        for left in table.left:
            expect(left.pieces, table.sources, _RETAINED)
        for ending in log.unfinished.values():
            if ending.is_commit and (taken := self._taken_by(ending.number)) is not None:
                expect(taken.pieces, taken.sources, _DOOMED)
        for source, file in log.files(sources):
            number = numbers.get((partition_of(self._home.relative(file.key) or ""), source.number))
            if number is not None:
                self._expected.add(file.key, ExpectedFile(file.size, file.etag, file.upload, number))
        self._report.generation, self._report.files = table.generation, self._expected.count()

    def _newest(self) -> Table:
        """Return the table, with the commits that came meanwhile."""
        self._log.catch_up()
        return self._table

    def _taken_by(self, number: int) -> Left | None:
        """Return what an unfinished commit took and may not have deleted; note objects that no table had."""
        try:
            entry = read_entry(self._log.store, self._home, number).entry
            left = table_before(self._log.store, self._home, entry).apply(entry, "")
        except InvalidRecord as error:
            logger.warning("what entry %d took is not known: %s", number, error)
            return None
        commit = entry.commit
        for one in commit.unowned if commit is not None else ():
            self._expected.add(one.key, ExpectedFile(one.size, one.etag, "", _DOOMED))
        return left

    def _judge(self, beside: list[tuple[ObjectInfo, ExpectedFile | None]]) -> None:
        """Count objects that are not in the table by what the log says of them and of their jobs."""
        report, log = self._report, self._log
        owners = {info.key: owner_of(info.key) for info, _ in beside}
        unknown = {owner for owner in owners.values() if owner is not None and owner not in log.ended}
        # The record before the log: a job that ends meanwhile is in one or the other.
        alive = {
            owner for owner in unknown if has_object(log.store, self._home.bucket, job_key(self._home, owner))
        }
        if unknown:
            log.catch_up()
        # The names of Hadoop's files do not tell whose they are.
        is_adopting = any(job.record is not None and job.record.adopted for job in log.open.values())
        for info, known in beside:
            owner = owners[info.key]
            found = Beside(key=info.key, size=info.size, job_id=owner)
            ending = log.ended.get(owner or "")
            if known is not None or self._unowned.get(info.key) == info.etag:
                is_doomed = known is not None and known.number == _DOOMED
                report.removed += is_doomed
                report.retained += not is_doomed
            elif ending is not None and ending.is_commit and ending.number > self._head:
                report.later += 1
            elif ending is not None and owner in log.unfinished:
                report.removed += 1
            elif ending is not None and ending.number not in log.unread:
                report.leftover_count += 1
                _name(report.leftovers, found)
            elif owner in alive or (owner is None and is_adopting):
                report.unfinished_count += 1
                _name(report.unfinished, found)
            elif ending is None:
                report.foreign_count += 1
                _name(report.foreign, found)


def _name(names: list[Beside], found: Beside) -> None:
    if len(names) < MAX_NAMED:
        names.append(found)

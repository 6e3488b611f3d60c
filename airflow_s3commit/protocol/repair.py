"""Repair a destination: derive again what follows from its log, and report what does not."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import msgspec
from msgspec import Struct

from airflow_s3commit._causes import described
from airflow_s3commit._clock import Clock, SystemClock
from airflow_s3commit.exceptions import InvalidRecord, NoSuchKey, S3CommitError
from airflow_s3commit.protocol.inspect.verify_log import LogCheck, LogFinding
from airflow_s3commit.protocol.metadata.context import JobContext, new_uuid
from airflow_s3commit.protocol.metadata.records import exists
from airflow_s3commit.protocol.model.codec import Plain, encode
from airflow_s3commit.protocol.model.destination import Destination, join_uri, split_uri
from airflow_s3commit.protocol.model.entry import Entry
from airflow_s3commit.protocol.model.job import Position
from airflow_s3commit.protocol.model.layout import (
    SUCCESS,
    Layout,
    checkpoint_number,
    job_key,
    log_prefix,
    receipt_key,
    receipts_prefix,
)
from airflow_s3commit.protocol.model.table import Table
from airflow_s3commit.protocol.steps import checkpoint
from airflow_s3commit.protocol.steps.abort import undo
from airflow_s3commit.protocol.steps.finish import finish, first_keys
from airflow_s3commit.protocol.steps.fold import entries_after
from airflow_s3commit.protocol.steps.log import find_receipt, read_entry, write_receipt
from airflow_s3commit.protocol.steps.marker import write_marker
from airflow_s3commit.protocol.steps.partition_markers import derive_markers
from airflow_s3commit.store.base import ObjectStore

logger = logging.getLogger(__name__)


class RepairReport(Plain, Struct, kw_only=True):
    """What a repair has derived again, or would, and what it cannot.

    Attributes:
        destination: URI of the destination.
        dry_run: Whether nothing was changed.
        entries: Number of the newest entry of the log; 0 without a log.
        repaired: What was put right, or in a dry run would be; each with what was wrong.
        left: What follows from nothing, with what to do.
        failures: What could not be put right; repair again.

    """

    destination: str
    dry_run: bool
    entries: int = 0
    repaired: list[LogFinding] = []
    left: list[LogFinding] = []
    failures: list[LogFinding] = []

    @property
    def is_sound(self) -> bool:
        """Whether nothing is left that is wrong."""
        return not self.left and not self.failures


def repair(
    store: ObjectStore,
    destination: str | Destination,
    *,
    dry_run: bool = True,
    clock: Clock | None = None,
    new_id: Callable[[], str] = new_uuid,
    threads: int = 16,
    step: Callable[[int], None] = lambda _: None,
) -> RepairReport:
    """Derive again what follows from the log of a destination, and report what is wrong besides.

    That is receipts, checkpoints and ``_SUCCESS``, those of partitions too; and all that comes after the
    entry of a job: a commit that died is finished, an abort too. An entry of the log and a list of files
    follow from nothing: restore them from a backup or a version of the object. As long as an entry is wrong,
    nothing is derived from the log. Repeatable, also beside jobs at work.

    Args:
        store: The store of the destination.
        destination: URI of the dataset's directory, or a `Destination`.
        dry_run: Only report.
        clock: Source of time for records.
        new_id: Source of nonces for records.
        threads: Concurrent requests; 0 sends them in the caller's thread.
        step: Called with the number of entries that were read.

    Raises:
        S3CommitError: The destination could not be read.

    """
    home = Destination.of(destination)
    layout = Layout.of(home, new_uuid())
    context = JobContext(store, layout, clock=clock or SystemClock(), new_id=new_id, threads=threads)
    report = RepairReport(destination=home.uri, dry_run=dry_run)
    try:
        run = _Repair.of(context, step)
    except NoSuchKey:
        return report
    report.entries = run.check.head
    if not run.is_log_whole:
        report.left += run.check.findings
        return report
    acted = run.cure(run.unfinished(), report)
    if acted:
        # That alone puts other things right.
        run = _Repair.of(context, step)
    acted += run.cure([*run.without_receipt(), *run.check.findings], report)
    if acted:
        # Only what is right now counts as repaired.
        wrong = {finding.where for finding in _Repair.of(context, step).check.findings}
        report.failures += [finding for finding in report.repaired if finding.where in wrong]
        report.repaired = [finding for finding in report.repaired if finding.where not in wrong]
    return report


@dataclass(frozen=True)
class _Repair:
    """What is wrong at a destination, and what puts it right.

    Attributes:
        context: Any job of the destination.
        check: What is wrong.

    """

    context: JobContext
    check: LogCheck

    @classmethod
    def of(cls, context: JobContext, step: Callable[[int], None]) -> _Repair:
        check = LogCheck(context.store, context.layout.destination, step=step).read()
        check.compare_lists(())
        return cls(context, check)

    @property
    def _home(self) -> Destination:
        return self.context.layout.destination

    @property
    def is_log_whole(self) -> bool:
        """Whether no entry is wrong: what one that was changed says must replace no good copy."""
        prefix = join_uri(self.context.bucket, log_prefix(self._home))
        return not any(finding.where.startswith(prefix) for finding in self.check.findings)

    def unfinished(self) -> list[LogFinding]:
        """Return the jobs that have ended, and still have a record."""
        return [
            LogFinding(
                where=join_uri(self.context.bucket, job_key(self._home, job_id)),
                problem=f"is still there, although entry {self.check.ended[job_id].number} has ended the job",
                harmless=True,
                remedy="run s3commit repair, or commit or abort the job again",
            )
            for job_id in sorted(self.check.open.keys() & self.check.ended.keys())
        ]

    def without_receipt(self) -> list[LogFinding]:
        """Return the newest end of a job if it has no receipt: the next entry would write it."""
        job_id, number = max(
            ((job_id, one.number) for job_id, one in self.check.ended.items()),
            key=lambda one: one[1],
            default=("", 0),
        )
        if not job_id or number != self.check.head:
            return []
        key = receipt_key(self._home, job_id)
        if exists(self.context.store, self.context.bucket, key):
            return []
        where = join_uri(self.context.bucket, key)
        remedy = "run s3commit repair; the next entry writes it too"
        return [LogFinding(where=where, problem="is missing", harmless=True, remedy=remedy)]

    def cure(self, findings: list[LogFinding], report: RepairReport) -> int:
        """Put findings right, unless it is a dry run, and add them to a report; return how many it tried."""
        tried = 0
        for finding in findings:
            act = self._cure_of(finding)
            if act is None:
                report.left.append(finding)
                continue
            try:
                if not report.dry_run:
                    tried += 1
                    act()
                    logger.info("%s: repaired: it %s", finding.where, finding.problem)
                report.repaired.append(finding)
            except S3CommitError as error:
                logger.warning("%s: not repaired: %s", finding.where, error)
                report.failures.append(msgspec.structs.replace(finding, problem=described(error)))
        return tried

    def _cure_of(self, finding: LogFinding) -> Callable[[], object] | None:
        """Return what puts a finding right; None if nothing here does."""
        _, key = split_uri(finding.where)
        home = self._home
        if (number := checkpoint_number(home, key)) is not None:
            return partial(self._rebuild_checkpoint, key, number)
        if key == home.key(SUCCESS):
            commits = [one.number for one in self.check.ended.values() if one.is_commit]
            return partial(self._rebuild_success, max(commits)) if commits else None
        if key in self.check.misplaced:
            misplaced = self.check.misplaced[key]
            return partial(self._rebuild_marker, misplaced.number, misplaced.partition)
        if key.startswith(receipts_prefix(home)):
            return self._cure_of_receipt(key)
        job_id = next((one for one in self.check.open if job_key(home, one) == key), "")
        if job_id in self.check.ended and finding.harmless:
            return partial(self._finish, job_id)
        return None

    def _cure_of_receipt(self, key: str) -> Callable[[], object] | None:
        """Return what writes a receipt again; None if it may be the one that is right."""
        job_id = key.removeprefix(receipts_prefix(self._home)).removesuffix(".json")
        number = self.check.ended[job_id].number
        if number == self.check.head:
            # No later entry has the digest of this one.
            with suppress(InvalidRecord):
                if find_receipt(self.context.store, self._home, job_id) is not None:
                    return None
        return partial(self._rebuild_receipt, key, number)

    def _entry(self, number: int) -> Entry:
        return read_entry(self.context.store, self._home, number).entry

    def _finish(self, job_id: str) -> None:
        """Do again all that follows the entry of a job."""
        entry, record = self._entry(self.check.ended[job_id].number), self.check.open[job_id].record
        layout = Layout(self._home, Destination.parse(entry.staging), job_id)
        job = replace(self.context, layout=layout)
        job = job if record is None else job.as_recorded(record)
        if entry.commit is not None:
            finish(job, entry)
        else:
            undo(job, entry)

    def _rebuild_receipt(self, key: str, number: int) -> None:
        """Write a receipt again, over a damaged one that is the same still."""
        store, bucket, entry = self.context.store, self.context.bucket, self._entry(number)
        try:
            found = store.head(bucket, key)
        except NoSuchKey:
            write_receipt(store, self._home, entry)
        else:
            store.put(bucket, key, encode(entry), if_match=found.etag)

    def _rebuild_checkpoint(self, key: str, number: int) -> None:
        """Write a checkpoint again, from all entries: an earlier one may be wrong too."""
        table = Table()
        for read in entries_after(self.context.store, self._home, Position(), number):
            table.apply(read.entry, read.sha256)
        body = checkpoint.to_bytes(table, self._home.uri)
        self.context.store.put(self.context.bucket, key, body, content_type="application/gzip")

    def _rebuild_success(self, number: int) -> None:
        entry = self._entry(number)
        key = self.context.layout.success
        write_marker(self.context, key, entry, lambda: first_keys(self.context, entry), over_others=True)

    def _rebuild_marker(self, number: int, partition: str) -> None:
        derive_markers(self.context, self._entry(number), [partition], over_others=True)

"""Repair a destination: derive again what follows from its log, and report what does not."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import msgspec
from msgspec import Struct

from airflow_s3commit._causes import described
from airflow_s3commit._clock import Clock, SystemClock
from airflow_s3commit.exceptions import NoSuchKey, S3CommitError
from airflow_s3commit.protocol.inspect.verify_log import Cure, LogCheck, LogFinding
from airflow_s3commit.protocol.metadata.context import JobContext, new_uuid
from airflow_s3commit.protocol.model.codec import Plain, largest
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.job import Position
from airflow_s3commit.protocol.model.layout import LOG, Layout, entry_key, job_key, partition_of
from airflow_s3commit.protocol.model.table import Entry, Table
from airflow_s3commit.protocol.steps import checkpoint
from airflow_s3commit.protocol.steps.finish import derive_markers, first_keys, write_marker
from airflow_s3commit.protocol.steps.fold import entries_after
from airflow_s3commit.protocol.steps.log import read_entry
from airflow_s3commit.protocol.steps.publish import publish
from airflow_s3commit.protocol.steps.sweep import carry_out
from airflow_s3commit.store.base import ObjectStore

logger = logging.getLogger(__name__)


class RepairReport(Plain, Struct, kw_only=True):
    """What a repair has derived again, or would, and what it cannot.

    Attributes:
        destination: URI of the destination.
        dry_run: Whether nothing was changed.
        entries: Number of the newest entry of the log; 0 without a log.
        repaired: What was put right, or in a dry run would be; each with what was wrong.
        left: What no repair derives, with what to do.
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

    A repair derives receipts, checkpoints, ``_SUCCESS`` (also in partitions), the versions that other engines
    read, and all that comes after the entry of a job. Entries of the log and lists of files follow from
    nothing: restore them from a backup or a version of the object. As long as an entry is wrong, nothing is
    derived from the log. Repeatable, also while jobs are at work.

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
        check = _checked(context, step)
    except NoSuchKey:
        return report
    report.entries = check.head
    log = join_uri(home.bucket, home.key(LOG))
    if any(finding.where.startswith(log) for finding in check.findings):
        # What follows from a changed entry must not replace a good copy.
        report.left = check.findings
        return report
    jobs = [(_unfinished(check, job_id), job_id) for job_id in sorted(check.open.keys() & check.ended.keys())]
    cures = {finding.where: partial(_finish, context, check, job_id) for finding, job_id in jobs}
    cures |= {where: partial(_derive, context, *cure) for where, cure in check.cures.items()}
    for finding in [*(one for one, _ in jobs), *check.findings]:
        act = cures.get(finding.where)
        if act is None:
            report.left.append(finding)
            continue
        try:
            if not dry_run:
                act()
                logger.info("%s: repaired: it %s", finding.where, finding.problem)
            report.repaired.append(finding)
        except S3CommitError as error:
            logger.warning("%s: not repaired: %s", finding.where, error)
            report.failures.append(msgspec.structs.replace(finding, problem=described(error)))
    if report.repaired and not dry_run:
        # Check again: only what is right by now counts as repaired.
        told = {finding.where for finding in (*report.left, *report.failures)}
        wrong = {one.where: one for one in _checked(context, step).findings if one.where not in told}
        report.failures += wrong.values()
        report.repaired = [finding for finding in report.repaired if finding.where not in wrong]
    return report


def _checked(context: JobContext, step: Callable[[int], None]) -> LogCheck:
    check = LogCheck(context.store, context.layout.destination, step).read()
    for _ in check.files():
        pass
    return check


def _unfinished(check: LogCheck, job_id: str) -> LogFinding:
    """Return what is wrong with a job that has ended, and still has a record."""
    return LogFinding(
        where=join_uri(check.destination.bucket, job_key(check.destination, job_id)),
        problem=f"is still there, although entry {check.ended[job_id].number} has ended the job",
        harmless=True,
        remedy="run s3commit repair, or commit or abort the job again",
    )


def _derive(context: JobContext, key: str, cure: Cure, number: int) -> None:
    """Derive a record again; a checkpoint from all entries, as an earlier checkpoint may be wrong too."""
    store, home, bucket = context.store, context.layout.destination, context.bucket
    if cure.kind == "checkpoint":
        table = Table()
        for read in entries_after(store, home, Position(), number):
            table.apply(read.entry, read.sha256)
        store.put(bucket, key, checkpoint.to_bytes(table, home.uri), content_type="application/gzip")
        return
    entry = read_entry(store, home, number).entry
    if cure.kind == "receipt":
        # The bytes of the entry: another release may have written fields that this one does not know.
        body = store.get(bucket, entry_key(home, number), limit=largest(Entry)).body
        etag = next((info.etag for info in store.list_objects(bucket, key) if info.key == key), None)
        store.put(bucket, key, body, if_match=etag, if_none_match=etag is None)
    elif cure.kind == "marker":
        names = partial(first_keys, context, entry)
        write_marker(context, context.layout.success, entry, names, over_others=True)
    elif cure.kind == "partition marker":
        derive_markers(context, entry, [partition_of(home.relative(key) or "")], over_others=True)
    elif cure.kind == "version":
        publish(context, entry)


def _finish(context: JobContext, check: LogCheck, job_id: str) -> None:
    """Do again all that follows the entry of a job."""
    entry = read_entry(context.store, context.layout.destination, check.ended[job_id].number).entry
    carry_out(context, replace(check.open[job_id], end=entry), "")

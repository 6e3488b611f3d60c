"""Repair a destination's records: rebuild what follows from its log, and report what does not."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from airflow_s3commit._causes import described
from airflow_s3commit._clock import Clock, SystemClock
from airflow_s3commit.exceptions import ForeignRecord, InvalidRecord, NoSuchKey, S3CommitError
from airflow_s3commit.protocol.inspect.staging import folders_below
from airflow_s3commit.protocol.inspect.verify_log import NO_LIST, LogCheck, LogFinding, Misplaced
from airflow_s3commit.protocol.lifecycle.finish import context_of
from airflow_s3commit.protocol.lifecycle.recover import read_or_rebuild_state
from airflow_s3commit.protocol.lifecycle.success import listed_keys, renew_marker, write_success
from airflow_s3commit.protocol.metadata.context import JobContext, new_uuid
from airflow_s3commit.protocol.metadata.log import newest_commit, read_entries, read_entry
from airflow_s3commit.protocol.metadata.manifests import manifests_at, read_manifest
from airflow_s3commit.protocol.metadata.state import find_job, read_state
from airflow_s3commit.protocol.model.codec import Plain, encode
from airflow_s3commit.protocol.model.destination import Destination, join_uri, split_uri
from airflow_s3commit.protocol.model.layout import (
    SUCCESS,
    Layout,
    aborted_prefix,
    checkpoint_number,
    entry_number,
    manifests_prefix,
)
from airflow_s3commit.protocol.model.snapshot import TableSnapshot
from airflow_s3commit.store.base import ObjectStore

logger = logging.getLogger(__name__)

_STATE = "rebuild it from the job's other records"


class RepairReport(Plain, Struct, kw_only=True):
    """What a repair has rebuilt, or would rebuild, and what it cannot.

    Attributes:
        destination: URI of the destination.
        dry_run: Whether nothing was changed.
        entries: Number of the newest entry of the log; 0 without a log.
        original: URI of the table whose log was copied here, if this one has no history of its own; else
            empty.
        repaired: Records that were rebuilt, or in a dry run that would be; each with what was wrong.
        left: What cannot be rebuilt, with what to do.
        failures: Records that could not be written or deleted; repair again.

    """

    destination: str
    dry_run: bool
    entries: int = 0
    original: str = ""
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
    """Rebuild the records of a destination that follow from others, and report those that do not.

    From the log it rebuilds manifests, records of aborts, checkpoints and ``_SUCCESS``, that of partitions
    too; from a job's other records its state. An entry of the log and a list of files follow from nothing:
    restore them from a backup or a version of the object. No data is touched. Repeatable, also beside jobs at
    work.

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
    place = Destination.of(destination)
    check = LogCheck(store, place, step=step).read()
    check.compare_lists(())
    settings = {"clock": clock or SystemClock(), "new_id": new_id, "threads": threads}
    run = _Repair(check, settings)
    report = RepairReport(
        destination=place.uri,
        dry_run=dry_run,
        entries=check.head,
        original=check.newest.original if check.newest is not None else "",
    )
    for finding in [*check.findings, *run.damaged_states()]:
        act = run.cure(finding)
        if act is None:
            report.left.append(run.with_dependants(finding))
            continue
        try:
            if not dry_run:
                act()
                logger.info("%s: rebuilt: it %s", finding.where, finding.problem)
            report.repaired.append(finding)
        except S3CommitError as error:
            logger.warning("%s: not rebuilt: %s", finding.where, error)
            report.failures.append(replace(finding, problem=described(error)))
    return report


@dataclass(frozen=True)
class _Repair:
    """What cures the findings about one destination.

    Attributes:
        check: The findings.
        settings: Settings of the contexts of jobs.

    """

    check: LogCheck
    settings: dict[str, Any]

    @property
    def _store(self) -> ObjectStore:
        return self.check.store

    @property
    def _home(self) -> Destination:
        return self.check.destination

    def _context(self, layout: Layout) -> JobContext:
        return JobContext(self._store, layout, **self.settings)

    def damaged_states(self) -> Iterator[LogFinding]:
        """Yield the states of jobs that cannot be read; not those that were copied here."""
        for folder in folders_below(self._store, self._home):
            layout = folder.layout(self._home)
            try:
                read_state(self._context(layout))
            except ForeignRecord:
                continue
            except InvalidRecord as error:
                where = join_uri(layout.staging.bucket, layout.state)
                problem = str(error).removeprefix(f"{where} ")
                yield LogFinding(where=where, problem=problem, harmless=False, remedy=_STATE)

    def cure(self, finding: LogFinding) -> Callable[[], object] | None:
        """Return what puts a finding right; None if nothing here does."""
        _, key = split_uri(finding.where)
        home = self._home
        if finding.remedy == _STATE:
            layouts = (folder.layout(home) for folder in folders_below(self._store, home))
            return partial(self._rebuild_state, next(one for one in layouts if one.state == key))
        if (number := checkpoint_number(home, key)) is not None:
            return partial(self._rebuild_checkpoint, key, number)
        if key == home.key(SUCCESS):
            return self._rebuild_success
        if key in self.check.misplaced:
            return partial(self._renew_marker, self.check.misplaced[key])
        for prefix in (manifests_prefix(home), aborted_prefix(home)):
            job_id = key.removeprefix(prefix).removesuffix(".json")
            if key == f"{prefix}{job_id}.json" and job_id in self.check.ended:
                return partial(self._rebuild_ending, key, self.check.ended[job_id][0])
        return None

    def with_dependants(self, finding: LogFinding) -> LogFinding:
        """Add to a finding about an entry which job's it was, if a manifest tells."""
        number = entry_number(self._home, split_uri(finding.where)[1])
        if number is None or finding.remedy == NO_LIST:
            return finding
        problem = f"{finding.problem}. Without it the table is known only from a later checkpoint on"
        for _, job_id in manifests_at(self._store, self._home):
            try:
                manifest = read_manifest(self._store, self._home, job_id)
            except (NoSuchKey, InvalidRecord):
                continue
            if manifest.generation == number:
                problem += f". By its manifest it is the commit of job {job_id} ({manifest.mode})"
        return replace(finding, problem=problem)

    def _rebuild_state(self, layout: Layout) -> None:
        context = self._context(layout)
        job = find_job(context)
        read_or_rebuild_state(context.as_recorded(job) if job is not None else context)

    def _rebuild_checkpoint(self, key: str, number: int) -> None:
        snapshot = TableSnapshot(self._home.uri)
        for entry in read_entries(self._store, self._home, 0):
            snapshot.apply(entry)
            if entry.number == number:
                break
        self._store.put(self._home.bucket, key, snapshot.to_bytes(), content_type="application/gzip")

    def _rebuild_success(self) -> None:
        entry = newest_commit(self._store, self._home)
        assert entry is not None, "a finding about the marker needs a commit"
        assert entry.manifest is not None, "commits have manifests"
        context = self._context(Layout.of(self._home, entry.job_id))
        write_success(context, entry.manifest, partial(listed_keys, context, entry.manifest))

    def _renew_marker(self, misplaced: Misplaced) -> None:
        """Write the marker of a partition again, or delete it where no commit's files are left."""
        manifest = None
        if misplaced.generation:
            manifest = read_entry(self._store, self._home, misplaced.generation).manifest
        context = context_of(self._store, self._home, **self.settings)
        renew_marker(context, misplaced.partition, misplaced.etag, manifest)

    def _rebuild_ending(self, key: str, number: int) -> None:
        """Write the manifest or record of abort again, as its entry has it."""
        entry = read_entry(self._store, self._home, number)
        record = entry.manifest or entry.aborted
        assert record is not None, "only jobs have such records"
        try:
            found = self._store.head(self._home.bucket, key)
        except NoSuchKey:
            self._store.put(self._home.bucket, key, encode(record), if_none_match=True)
        else:
            self._store.put(self._home.bucket, key, encode(record), if_match=found.etag)

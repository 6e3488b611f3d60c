"""Begin a dataset's history in the log, and enter what older versions commit to it later.

A dataset can be older than its log: versions without a log wrote it, or another program did, or it was copied
here with the log of the original. Then its first commit here creates a ``baseline`` entry before its own. The
baseline names no files, so that an append does not list the whole table. An empty destination gets none: its
history begins with the first commit.

From then on versions without a log can only append. Such an append names its manifest in ``_SUCCESS``, and
the next commit enters it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

import msgspec

from airflow_s3commit.exceptions import InvalidRecord, NoSuchKey
from airflow_s3commit.protocol.lifecycle.run import CommitRun, drive_other, settle_begun
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.listing import find_older_data
from airflow_s3commit.protocol.metadata.lock import bar_older_versions
from airflow_s3commit.protocol.metadata.log import Log, newest_entries, read_entry
from airflow_s3commit.protocol.metadata.manifests import (
    FileSummary,
    manifest_files,
    manifests_at,
    older_jobs,
    older_manifest,
)
from airflow_s3commit.protocol.metadata.snapshot import live_files, read_snapshot
from airflow_s3commit.protocol.model.destination import join_uri
from airflow_s3commit.protocol.model.job import SavedSuccess
from airflow_s3commit.protocol.model.layout import Layout, entry_key
from airflow_s3commit.protocol.model.log import Baseline, LiveCommit, LogEntry
from airflow_s3commit.protocol.model.manifest import ManifestRecord, older_job
from airflow_s3commit.protocol.model.ownership import sign
from airflow_s3commit.store.base import Head
from airflow_s3commit.store.execute import outcomes

logger = logging.getLogger(__name__)


def open_history(run: CommitRun) -> None:
    """Begin the destination's history, unless it has begun. Repeatable by any process.

    After: versions without a log can only append, and data that was there before has its baseline.

    Args:
        run: The commit; its log is read.

    Raises:
        LockHeld: A job of a version without a log is committing, and did so for all the time to wait.
        InvalidRecord: The lock of such versions, or an entry, is damaged.

    """
    context, log = run.context, run.log
    if log.epoch or run.is_history_open:
        return
    bar_older_versions(context, run.settle)
    while not log.epoch:
        reason = "copy" if is_copied(context, log) else find_older_data(context)
        if reason is None:
            break
        number = log.position + 1
        entry = LogEntry(
            **context.layout.place,
            number=number,
            kind="baseline",
            epoch=number,
            baseline=Baseline(reason=reason, since=context.now_ms()),
            nonce=context.new_id(),
        )
        if log.add(entry):
            logger.info("%s: the history begins with entry %d, a baseline (%s)", context.name, number, reason)
    run.is_history_open = True


def import_older_commits(run: CommitRun, marker: SavedSuccess | None) -> None:
    """Enter the commits of versions without a log since the newest entry, if ``_SUCCESS`` names one.

    Before: the history is open. Repeatable by any process: a commit is entered once.

    Args:
        run: The commit; its log is read.
        marker: The destination's ``_SUCCESS``, if no version with a log wrote it.

    Raises:
        InvalidRecord: An entry is damaged.

    """
    context, log = run.context, run.log
    if marker is None or older_job(marker.body, context.layout.destination) is None:
        return
    while True:
        found = next(_older_commits(run), None)
        if found is None:
            return
        imported = _entry_of(context, log, found)
        if log.add(imported):
            logger.warning(
                "%s: job %s of an older version has appended %d files (%d bytes) to %d partitions without the"
                " log; entry %d takes them over, by %s. Upgrade the package where that job runs",
                context.name,
                found.job_id,
                found.counts.files,
                found.counts.bytes,
                len(found.partitions),
                log.position,
                join_uri(context.bucket, Layout.of(context.layout.destination, found.job_id).manifest),
            )


def _older_commits(run: CommitRun) -> Iterator[ManifestRecord]:
    """Yield the manifests of older versions that are in no entry and no baseline, oldest first.

    ``_SUCCESS`` names only the last of them: others may have come since any earlier commit looked, and their
    jobs may have slept before they wrote it. So all manifests since the baseline are looked through, but for
    those of commits that the table consists of.
    """
    context, log = run.context, run.log
    store, home = context.store, context.layout.destination
    first = read_entry(store, home, log.epoch) if log.epoch else None
    before = _written(context, log.epoch) if first is not None and first.kind == "baseline" else -1.0
    snapshot = read_snapshot(store, home, at_least=log.position)
    table = snapshot.commits() if snapshot is not None else []
    entered = {commit.job_id for commit in table} | {context.job_id}
    found = {
        job_id: written
        for written, job_id in sorted(manifests_at(store, home))
        if written > before and job_id not in entered and not log.has_ended(job_id)
    }
    # In the fold a closed baseline has the number that the history begins with.
    closed = [commit for commit in table if commit.number == log.epoch]
    for job_id in older_jobs(store, home, found):
        manifest = older_manifest(store, home, job_id, signer=context.signer)
        if manifest is None or manifest.conflict_mode != "append":
            continue
        if not _is_to_be_entered(context, closed, manifest):
            continue
        _end_removals(run, manifest, found[job_id])
        if not log.has_ended(job_id) and _is_to_be_entered(context, closed, manifest):
            yield manifest


def _end_removals(run: CommitRun, manifest: ManifestRecord, written: float) -> None:
    """End the jobs that may still delete files of an older version's commit.

    They planned when its manifest was there. An entry that names its files would soon name files that are
    gone.
    """
    context = run.context
    settle_begun(run, manifest.partitions)
    for entry in newest_entries(context.store, context.layout.destination, 1):
        if _written(context, entry.number) < written:
            return
        if entry.kind == "commit" and entry.plan is not None:
            drive_other(run, entry)


def is_copied(context: JobContext, log: Log) -> bool:
    """Return whether the log was copied here with its dataset, and has no history of this place yet.

    Raises:
        InvalidRecord: So it was, with retained files, which a baseline would take for data.

    """
    home = context.layout.destination
    # Aborts at the copy may have followed: they begin no history.
    number = log.position - sum(1 for _ in newest_entries(context.store, home, before=log.position + 1))
    if not number:
        return False
    entry = read_entry(context.store, home, number)
    if entry.retaining:
        raise InvalidRecord(
            f"{context.name}: {home.uri} is a copy of {entry.destination}, which retains files that it has"
            " replaced: they would be taken for data. Copy it again: only the files of its newest generation,"
            " which airflow_s3commit.dataset names, and nothing of _s3commit/"
        )
    return True


def _written(context: JobContext, number: int) -> float:
    """Return the time at which an entry was created, in seconds by the store's clock."""
    home = context.layout.destination
    return context.store.head(home.bucket, entry_key(home, number)).modified


def _is_to_be_entered(context: JobContext, closed: list[LiveCommit], manifest: ManifestRecord) -> bool:
    """Return whether a commit's files are there, by one of each partition, and no list names them yet.

    A replace that began after the manifest was written has deleted all files of the partition.
    """
    first: dict[str, str] = {}
    try:
        for entry in manifest_files(context.store, manifest):
            first.setdefault(entry.partition, entry.key)
    except (NoSuchKey, InvalidRecord) as error:
        logger.warning("%s: job %s is not entered: %s", context.name, manifest.job_id, error)
        return False
    calls = ((key, Head(context.bucket, key)) for key in first.values())
    missing = [
        key for key, outcome in outcomes(context.store, calls, NoSuchKey) if isinstance(outcome, NoSuchKey)
    ]
    if missing:
        logger.warning(
            "%s: job %s of an older version is not entered: a later job has replaced %s",
            context.name,
            manifest.job_id,
            missing[0],
        )
    return not missing and not _are_listed(context, closed, first)


def _are_listed(context: JobContext, closed: list[LiveCommit], files: Mapping[str, str]) -> bool:
    """Return whether a closed baseline lists some of the files, given by their partitions.

    So it does where their job had not written ``_SUCCESS`` yet: only that shows that a commit is to be
    entered. Its entry would name files of the table a second time.
    """
    around = [commit for commit in closed if not files.keys().isdisjoint(commit.partitions)]
    keys = frozenset(files.values())
    lists = live_files(context.store, context.layout.destination, around, FileSummary)
    return any(file.key in keys for _, listed in lists for file in listed)


def _entry_of(context: JobContext, log: Log, manifest: ManifestRecord) -> LogEntry:
    home, number = context.layout.destination, log.position + 1
    staging = manifest.staging or Layout.of(home, manifest.job_id).staging.uri
    entered = msgspec.structs.replace(manifest, generation=number, nonce=context.new_id())
    return LogEntry(
        job_id=manifest.job_id,
        destination=home.uri,
        staging=staging,
        number=number,
        kind="commit",
        epoch=log.epoch or number,
        manifest=sign(entered, context.signer),
        imported=True,
        nonce=context.new_id(),
    )

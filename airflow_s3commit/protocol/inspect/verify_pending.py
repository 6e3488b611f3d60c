"""Verify a job before its commit: are the uploads that it is about to complete there, and whole?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from airflow_s3commit.exceptions import InvalidRecord, NoSuchKey
from airflow_s3commit.protocol.metadata.bulk import pending_parts
from airflow_s3commit.protocol.metadata.context import JobContext, naming
from airflow_s3commit.protocol.metadata.pending_index import tracked_uploads
from airflow_s3commit.protocol.metadata.removal import PendingId
from airflow_s3commit.protocol.metadata.seals import each_pendingset, load_seal, load_stage_seals
from airflow_s3commit.protocol.metadata.state import require_state
from airflow_s3commit.protocol.model.job import State, StateRecord
from airflow_s3commit.protocol.model.layout import owner_of
from airflow_s3commit.protocol.model.ownership import is_ours
from airflow_s3commit.protocol.model.pendingset import PendingUpload
from airflow_s3commit.protocol.model.seal import StageSealRecord
from airflow_s3commit.store.base import Head, ObjectInfo, Part
from airflow_s3commit.store.execute import in_batches, outcomes

_MAX_NAMED = 1_000
_BATCH = 1_000
_TASKS = 32


class PendingFinding(Struct, frozen=True, kw_only=True):
    """An upload that is not as the job's records say."""

    key: str
    upload_id: str
    problem: str


class PendingReport(Struct, kw_only=True):
    """What a job's records and the store say of its uploads.

    Attributes:
        job_id: The job.
        destination: URI of its destination.
        state: Its state.
        deep: Whether the parts of every upload were compared.
        files: Uploads that its records name: those that its seal counts or, before it is sealed, all.
        bytes: Their bytes, as the records say.
        pending: How many are pending on the store.
        completed: How many are complete already: their object is there, and theirs.
        missing_count: How many are neither: a commit will fail.
        missing: The first 1,000 of these.
        mismatched_count: How many have other parts than the records say; only looked for when ``deep``.
        mismatched: The first 1,000 of these.
        damaged: Records that cannot be read, were changed, or are missing, each with the reason.
        unrecorded: Pending uploads with the job's id in their key that no such record names: of attempts
            that are at work, died, or do not count. The commit or abort discards them.

    """

    job_id: str
    destination: str
    state: State
    deep: bool
    files: int = 0
    bytes: int = 0
    pending: int = 0
    completed: int = 0
    missing_count: int = 0
    missing: list[PendingFinding] = []
    mismatched_count: int = 0
    mismatched: list[PendingFinding] = []
    damaged: list[str] = []
    unrecorded: int = 0

    @property
    def sound(self) -> bool:
        """Whether a commit would find everything that it needs."""
        return not (self.missing_count or self.mismatched_count or self.damaged)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, with its verdict."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain | {"sound": self.sound}


def verify_pending(context: JobContext, *, deep: bool = False) -> PendingReport:
    """Compare what a job's records name with the uploads on the store; nothing is changed.

    Args:
        context: The job; it is ``open``, ``sealed`` or ``committing``.
        deep: Whether to compare the number and ETags of every upload's parts, one request an upload.

    Raises:
        AlreadyCommitted: It is committed; verify its manifest.
        JobClosed: It is aborted, or being so.
        NoSuchJob: It is not known.

    """
    with naming(context, "verify"):
        state = require_state(context, "open", "sealed", "committing").record
        report = PendingReport(
            job_id=context.job_id,
            destination=context.layout.destination.uri,
            state=state.state,
            deep=deep,
        )
        existing = {
            upload.upload_id: upload.key
            for upload in context.store.list_uploads(context.bucket, context.layout.destination.prefix)
        }
        seen: set[str] = set()
        for batch in in_batches(_recorded(context, state, report, seen), _BATCH):
            report.files += len(batch)
            report.bytes += sum(upload.length for upload in batch)
            _check(context, batch, existing, report)
        report.unrecorded = sum(
            upload_id not in seen and owner_of(key) == context.job_id for upload_id, key in existing.items()
        )
    return report


def _recorded(
    context: JobContext, state: StateRecord, report: PendingReport, seen: set[str]
) -> Iterator[PendingUpload]:
    """Yield every upload that the job's records name, once, and note the records that cannot be read."""
    uploads = _tracked(context, report) if state.state == "open" else _sealed(context, state, report)
    for upload in uploads:
        if upload.uploadId not in seen:
            seen.add(upload.uploadId)
            yield upload


def _tracked(context: JobContext, report: PendingReport) -> Iterator[PendingUpload]:
    unreadable = 0
    for upload in tracked_uploads(context):
        if upload is None:
            unreadable += 1
        else:
            yield upload
    if unreadable:
        report.damaged.append(
            f"{unreadable} records in {context.layout.staging.uri} cannot be read; see the log"
        )


def _sealed(context: JobContext, state: StateRecord, report: PendingReport) -> Iterator[PendingUpload]:
    try:
        stages = load_stage_seals(context, load_seal(context, state.seal_etag).record)
    except InvalidRecord as error:
        report.damaged.append(str(error))
        return
    for stage in stages:
        for tasks in in_batches(stage.tasks, _TASKS):
            yield from _readable(context, msgspec.structs.replace(stage, tasks=tasks), report)


def _readable(context: JobContext, stage: StageSealRecord, report: PendingReport) -> list[PendingUpload]:
    """Return the uploads of some tasks; if one's pendingset is damaged, of the others."""
    try:
        return [u for _, _, pendingset in each_pendingset(context, [stage]) for u in pendingset.commits]
    except InvalidRecord as error:
        if len(stage.tasks) == 1:
            report.damaged.append(str(error))
            return []
    return [
        upload
        for task in stage.tasks
        for upload in _readable(context, msgspec.structs.replace(stage, tasks=[task]), report)
    ]


def _check(
    context: JobContext, uploads: list[PendingUpload], existing: dict[str, str], report: PendingReport
) -> None:
    """Find out what became of some uploads; a listing that does not show one proves nothing."""
    unseen = [u for u in uploads if report.deep or existing.get(u.uploadId) != u.destinationKey]
    report.pending += len(uploads) - len(unseen)
    gone = []
    found = pending_parts(context.store, map(PendingId.of, unseen), threads=context.threads)
    for upload, (_, parts) in zip(unseen, found, strict=True):
        if parts is None:
            gone.append(upload)
            continue
        report.pending += 1
        problem = _difference(upload, parts) if report.deep else None
        if problem is not None:
            report.mismatched_count += 1
            _name(report.mismatched, upload, problem)
    calls = [(upload, Head(upload.bucket, upload.destinationKey)) for upload in gone]
    for upload, outcome in outcomes(context.store, calls, NoSuchKey):
        if isinstance(outcome, ObjectInfo) and is_ours(upload, outcome):
            report.completed += 1
        else:
            report.missing_count += 1
            other = (
                "an object of someone else is there" if isinstance(outcome, ObjectInfo) else "no object is"
            )
            _name(report.missing, upload, f"the upload is gone, and {other}")


def _difference(upload: PendingUpload, parts: list[Part]) -> str | None:
    """Say how the stored parts differ from the recorded ones; None if not, or if they are being sent."""
    if not upload.etags:
        return None
    numbers = [part.number for part in parts]
    if numbers != list(range(1, len(upload.etags) + 1)):
        return f"it has parts {_short(numbers)}; {len(upload.etags)} are recorded"
    for part, etag in zip(parts, upload.bare_etags, strict=True):
        if part.etag.strip('"') != etag:
            return f"part {part.number} has ETag {part.etag}; {etag} is recorded"
    size = sum(part.size for part in parts)
    return f"it has {size} bytes; {upload.length} are recorded" if size != upload.length else None


def _short(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:10]))
    return f"{shown}, … ({len(numbers)})" if len(numbers) > 10 else shown or "none"  # noqa: PLR2004


def _name(findings: list[PendingFinding], upload: PendingUpload, problem: str) -> None:
    if len(findings) < _MAX_NAMED:
        findings.append(PendingFinding(key=upload.destinationKey, upload_id=upload.uploadId, problem=problem))

"""Pending uploads of a job: their index, complete after any crash; their parts; their completion in bulk.

An upload is found in three ways. By its key, if the file name has the job's id (`owner_of`): a listing of the
destination shows it. By the pendingset of its task attempt. And, with ``track_pending="s3"``, by a record of
its own, ``<number>.pending``, written when the upload starts and again when it is whole.

The progress of their completion is counted, reported, and kept as a commit's metrics.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple, Protocol, TypeAlias

from airflow_s3commit._causes import noting, whole_text
from airflow_s3commit._clock import Clock, SystemClock
from airflow_s3commit._format import size
from airflow_s3commit.exceptions import (
    InvalidRecord,
    JobFailed,
    NoSuchKey,
    NoSuchUpload,
    OutcomeUnknown,
    S3CommitError,
    StoreRejected,
)
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.removal import PendingId, is_ours
from airflow_s3commit.protocol.model.destination import join_uri
from airflow_s3commit.protocol.model.layout import BASE, PENDING_SUFFIX, PENDINGSET_SUFFIX, owner_of
from airflow_s3commit.protocol.model.pendingset import PendingUpload, decode_uploads, pending_bytes
from airflow_s3commit.store.base import Complete, Head, ObjectInfo, ObjectStore, Part
from airflow_s3commit.store.execute import in_threads, outcomes

logger = logging.getLogger(__name__)


def tracked_uploads(
    context: JobContext,
    prefix: str | None = None,
    *,
    skip: Container[str] = (),
    listed: Iterable[str] | None = None,
) -> Iterator[PendingUpload | None]:
    """Yield every upload that a pendingset or its own record names; None for a record that cannot be read.

    ``listed`` has the keys below ``prefix``, by default that of all stages; with None they are listed. The
    pendingsets in ``skip``, given by key, are left out with the records of their task attempts.
    """
    # The listing shows an upload's own record right after the pendingset that may name it too.
    named: set[str] = set()
    if listed is None:
        found = context.store.list_objects(context.staging_bucket, prefix or context.layout.stages)
        listed = (info.key for info in found)
    for key in listed:
        if key.endswith(PENDINGSET_SUFFIX) and key not in skip:
            named.clear()
            for upload in _read(context, key):
                if upload is not None:
                    named.add(upload.uploadId)
                yield upload
        elif key.endswith(PENDING_SUFFIX) and _pendingset_of(key) not in skip:
            for upload in _read(context, key):
                if upload is None or upload.uploadId not in named:
                    yield upload


def untracked_uploads(context: JobContext) -> Iterator[PendingId]:
    """Yield the pending uploads that a listing shows, and whose keys say that they are the job's."""
    destination, is_own = context.layout.destination, context.layout.is_own_upload
    for upload in context.store.list_uploads(destination.bucket, destination.prefix):
        if owner_of(upload.key) == context.job_id or is_own(upload.key):
            yield PendingId(destination.bucket, upload.key, upload.upload_id)


def _read(context: JobContext, key: str) -> Iterator[PendingUpload | None]:
    try:
        body = context.store.get(context.staging_bucket, key, limit=pending_bytes(key)).body
        uploads = decode_uploads(body, context.staging_uri(key))
        for upload in uploads:
            context.layout.destination.check_data_key(upload.bucket, upload.destinationKey)
            # Some records of Hadoop name no job.
            if upload.jobId and upload.jobId != context.job_id:
                raise InvalidRecord(f"{context.staging_uri(key)} names an upload of job {upload.jobId}")
    except NoSuchKey:
        return
    except InvalidRecord:
        logger.warning("%s: a record of pending uploads cannot be read", context.name, exc_info=True)
        yield None
    else:
        yield from uploads


def _pendingset_of(pending_key: str) -> str:
    # S3A's own records are below BASE, which is in the attempt's directory.
    directory, base, _ = pending_key.partition(f"/{BASE}/")
    return (directory if base else pending_key.rpartition("/")[0]) + PENDINGSET_SUFFIX


_BATCH = 1_000

#: Codes with which a store rejects a completion for good. Others may pass, such as for a disabled KMS key.
_OF_PARTS = re.compile("EntityToo(Large|Small)|Invalid(Argument|Part|PartOrder|Request)|MalformedXML")


def complete_uploads(context: JobContext, uploads: Iterable[PendingUpload]) -> Iterator[PendingUpload]:
    """Complete every upload, and yield each completed one.

    Repeatable: a HEAD recognises an upload completed before. Raises `JobFailed` if an upload is gone and its
    object is missing or another writer's, or the store rejects its parts. After another failure, repeat it.
    """
    calls = (
        (upload, Complete(upload.bucket, upload.destinationKey, upload.uploadId, upload.part_etags))
        for upload in uploads
    )
    doubtful: list[PendingUpload] = []
    for upload, outcome in outcomes(context.store, calls, NoSuchUpload, OutcomeUnknown, StoreRejected):
        # Some stores fail, time after time, to complete an upload that was completed or aborted before; MinIO
        # finds no parts where another request completes it meanwhile.
        if isinstance(outcome, OutcomeUnknown | StoreRejected) and _is_completed(context, upload, outcome):
            yield upload
        elif isinstance(outcome, NoSuchUpload) or (
            isinstance(outcome, OutcomeUnknown) and _is_gone(context, upload)
        ):
            doubtful.append(upload)
            if len(doubtful) >= _BATCH:
                yield from _check_objects(context, doubtful)
                doubtful.clear()
        elif isinstance(outcome, StoreRejected) and _OF_PARTS.fullmatch(outcome.code):
            raise JobFailed(
                f"{context.name}: the store rejects the parts of {_name(upload)}: {whole_text(outcome)}"
            ) from outcome
        elif isinstance(outcome, OutcomeUnknown | StoreRejected):
            raise outcome
        else:
            yield upload
    if doubtful:
        yield from _check_objects(context, doubtful)


def _is_completed(context: JobContext, upload: PendingUpload, error: S3CommitError) -> bool:
    """Return whether an upload's object is certainly there. A failed HEAD becomes a note on ``error``."""
    with noting(error, f"looking for {_name(upload)}", "it may be complete"), suppress(NoSuchKey):
        return is_ours(upload, context.store.head(upload.bucket, upload.destinationKey))
    return False


def _is_gone(context: JobContext, upload: PendingUpload) -> bool:
    """Return whether an upload is certainly not pending: then its object says how it ended."""
    try:
        list(context.store.list_parts(upload.bucket, upload.destinationKey, upload.uploadId))
    except NoSuchUpload:
        return True
    except S3CommitError:
        # The completion's own error is the one to raise.
        return False
    return False


def _check_objects(context: JobContext, doubtful: list[PendingUpload]) -> Iterator[PendingUpload]:
    """HEAD the object of each upload that is gone, to see whether it was completed."""
    calls = [(upload, Head(upload.bucket, upload.destinationKey)) for upload in doubtful]
    for upload, outcome in outcomes(context.store, calls, NoSuchKey):
        if isinstance(outcome, NoSuchKey):
            raise JobFailed(
                f"{context.name}: the upload of {_name(upload)} is gone and no object is there:"
                " it was aborted, or a lifecycle rule removed it"
            )
        if not (isinstance(outcome, ObjectInfo) and is_ours(upload, outcome)):
            raise JobFailed(f"{context.name}: {_name(upload)} is an object of someone else")
        yield upload


def _name(upload: PendingUpload) -> str:
    return join_uri(upload.bucket, upload.destinationKey)


#: The parts of an upload, in order; None if the upload does not exist.
Parts: TypeAlias = list[Part] | None


def pending_parts(
    store: ObjectStore, uploads: Iterable[PendingId], *, threads: int = 16
) -> Iterator[tuple[PendingId, Parts]]:
    """Yield each upload with its parts, in the given order; 0 threads send from the caller's thread."""

    def parts_of(upload: PendingId) -> tuple[PendingId, Parts]:
        try:
            parts = list(store.list_parts(upload.bucket, upload.key, upload.upload_id))
        except NoSuchUpload:
            return upload, None
        return upload, sorted(parts, key=lambda part: part.number)

    return in_threads(parts_of, uploads, threads)


class Progress(NamedTuple):
    """Progress of completing uploads.

    Attributes:
        files_done: Files completed.
        files_total: Files to complete.
        bytes_done: Bytes of the completed files.
        seconds: Seconds since the start.
        concurrency: Current limit of concurrent requests.
        retries: Requests repeated since the start.
    """

    files_done: int
    files_total: int
    bytes_done: int
    seconds: float
    concurrency: int = 0
    retries: int = 0

    @property
    def files_per_second(self) -> float:
        """Average files completed per second; 0 at the start."""
        return self.files_done / self.seconds if self.seconds > 0 else 0.0

    def __str__(self) -> str:
        """Return the figures for people."""
        return f"{self.files_done:,} of {self.files_total:,} files, {self.pace}"

    @property
    def pace(self) -> str:
        """The rate, for people."""
        return (
            f"{size(self.bytes_done)}, {self.files_per_second:,.0f} files/s,"
            f" {self.concurrency} requests at once, {self.retries:,} sent again"
        )

    @property
    def metrics(self) -> dict[str, int]:
        """The figures as a commit's entry keeps them."""
        return {
            "complete_ms": int(self.seconds * 1000),
            "complete_files": self.files_done,
            "complete_bytes": self.bytes_done,
            "complete_files_per_second": round(self.files_per_second),
            "complete_concurrency": self.concurrency,
            "complete_retries": self.retries,
        }


def complete_counted(
    context: JobContext,
    uploads: Iterable[PendingUpload],
    total: int,
    report: Callable[[Progress], object] | None,
) -> Progress:
    """Complete every upload, as `complete_uploads`; report the progress after each, and return it."""
    clock, files, done = context.clock, 0, 0
    began, retries = clock.monotonic(), context.store.load.retries

    def now() -> Progress:
        seconds, load = clock.monotonic() - began, context.store.load
        return Progress(files, total, done, seconds, load.concurrency, load.retries - retries)

    for upload in complete_uploads(context, uploads):
        files, done = files + 1, done + upload.length
        if report is not None:
            report(now())
    return now()


class _Log(Protocol):
    """A log: Python's own, or Airflow's."""

    def info(self, msg: str, /, *args: object) -> object: ...


class ProgressLog:
    """Logs the progress every few seconds, and at the end."""

    def __init__(self, log: _Log, every: float = 5.0, clock: Clock | None = None) -> None:
        self._log = log
        self._every = every
        self._clock = clock or SystemClock()
        self._due = self._clock.monotonic() + every

    def __call__(self, progress: Progress) -> None:
        """Log the progress if a line is due."""
        now = self._clock.monotonic()
        if now >= self._due or progress.files_done == progress.files_total:
            self._due = now + self._every
            self._log.info("Completed %s", progress)

"""Status of a job of Hadoop's S3A committers: gather the facts once, then classify them.

A directory ``__magic_job-<id>`` does not show the status. It exists while a job runs, after its driver died
before, in or after its job commit, and, as of Hadoop 3.4.2, after a success if
``fs.s3a.committer.magic.cleanup.enabled`` is false. So every step that may end such a job checks its status
first.

The facts are the job's pendingsets, the leftovers of its attempts, ``_SUCCESS``, which of its uploads are
pending, and for the others whether their object exists. An object belongs to an upload if it has the
multipart ETag that follows from the upload's parts, and its size. Where a store computes ETags differently,
an object of the right size may belong to the upload: the job is left alone, and the object is not deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from airflow_s3commit.exceptions import (
    AlreadyCommitted,
    AuditFailed,
    InvalidDestination,
    InvalidRecord,
    JobClosed,
    NoSuchJob,
    NoSuchKey,
    S3CommitError,
)
from airflow_s3commit.protocol.hadoop.files import (
    HadoopFile,
    HadoopFiles,
    directory_files,
    magic_files,
    read_files,
)
from airflow_s3commit.protocol.metadata.pending_uploads import pending_parts
from airflow_s3commit.protocol.metadata.removal import PendingId
from airflow_s3commit.protocol.metadata.store_clock import STORE_CLOCK_SECONDS
from airflow_s3commit.protocol.model.codec import decode, largest, upload_digest
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.layout import SUCCESS
from airflow_s3commit.protocol.model.manifest import SuccessData
from airflow_s3commit.protocol.model.ownership import is_ours
from airflow_s3commit.protocol.model.pendingset import PendingUpload, pending_bytes
from airflow_s3commit.store.base import Head, ObjectInfo, ObjectStore
from airflow_s3commit.store.execute import in_batches, outcomes

#: Status of a Hadoop job.
Status: TypeAlias = Literal["successful", "unpublished", "half-published", "partial", "perhaps alive"]

_BATCH = 1_000


@dataclass(frozen=True, slots=True)
class HadoopJob:
    """Facts about a job of Hadoop's committers.

    Attributes:
        job_id: Its UUID.
        prefix: URI of the directory of its files.
        application_attempt: Number of the application's run whose tasks count: the last that committed any.
        files: Number of its files that list uploads, or may be data.
        pendingsets: Number of committed tasks of that run.
        uploads: Number of uploads of these tasks: those that count, which a commit would complete.
        bytes: Their size in bytes.
        others: Number of uploads that do not count, which a commit would abort.
        gaps: Number of missing task numbers: those below the greatest without a pendingset.
        missing: The first of these task numbers.
        pending: Number of uploads that count and are pending.
        published: Number of uploads that count and whose object exists.
        uncertain: Number of uploads that count and are gone, where an object of the same size exists whose
            ETag is no proof.
        lost: Number of uploads that count and are gone, without an object.
        others_published: Number of uploads that do not count and whose object exists.
        whole: Every upload was checked; otherwise the five numbers above are lower bounds.
        marker: The job of the ``_SUCCESS`` at the destination: ``own``, ``another's``, or ``none`` if there
            is no such object.
        modified: Time of its last file, in seconds since the epoch by the store's clock.
        silent: Seconds since then, or since the start of its last pending upload, if that is later; None if
            the store's time is not known.
        damaged: What is wrong with files that cannot be read, or are not Hadoop's.

    """

    job_id: str
    prefix: str
    application_attempt: int = 0
    files: int = 0
    pendingsets: int = 0
    uploads: int = 0
    bytes: int = 0
    others: int = 0
    gaps: int = 0
    missing: tuple[int, ...] = ()
    pending: int = 0
    published: int = 0
    uncertain: int = 0
    lost: int = 0
    others_published: int = 0
    whole: bool = True
    marker: Literal["own", "another's", "none"] = "none"
    modified: float = 0.0
    silent: float | None = None
    damaged: tuple[str, ...] = ()

    @property
    def missing_words(self) -> str:
        """The missing task numbers as text: ``3, 7, …``."""
        shown = ", ".join(map(str, self.missing))
        return f"{shown}, …" if self.gaps > len(self.missing) else shown


@dataclass(frozen=True, slots=True)
class Verdict:
    """Status of a job, and the reason in words."""

    status: Status
    reason: str


def find_hadoop_job(
    store: ObjectStore,
    destination: Destination,
    job_id: str,
    *,
    adopted_from: str | None = None,
    most: int | None = None,
) -> HadoopJob | None:
    """Return the facts about a Hadoop job; None if it has no files. Reads only.

    Args:
        store: The store of the destination.
        destination: The job's destination.
        job_id: The job's UUID.
        adopted_from: URI of its pendingsets' directory, from the record of its adoption. It is used if the
            job has no magic directory.
        most: As for `examine`.

    Raises:
        S3CommitError: A request failed.

    """
    files = magic_files(store, destination, job_id).get(job_id)
    if files is None and adopted_from is not None:
        try:
            files = directory_files(store, Destination.parse(adopted_from), job_id)
        except InvalidDestination:
            return None
    if files is None or not (files.found or files.unknown):
        return None
    return examine(store, destination, files, most=most)


def refuse_if_published(store: ObjectStore, destination: Destination, job_id: str) -> None:
    """Raise if a job that nobody adopted has published uploads, so that the rest must not be discarded.

    Args:
        store: The store of the destination.
        destination: The job's destination.
        job_id: The job's UUID.

    Raises:
        AlreadyCommitted: The Hadoop job is successful.
        JobClosed: It is half-published.
        S3CommitError: A request failed.

    """
    job = find_hadoop_job(store, destination, job_id)
    if job is None:
        return
    error = refusal(job, commit=False)
    if error is not None:
        raise error
    verdict = classify(job)
    if verdict.status == "half-published":
        raise JobClosed(
            f"Hadoop job {job_id} is half-published: {verdict.reason}. Finish it with: s3commit adopt …"
            " --commit, or take back what it published with: s3commit adopt … --abort"
        )


def examine(
    store: ObjectStore, destination: Destination, files: HadoopFiles, *, most: int | None = None
) -> HadoopJob:
    """Gather the facts about a job. Reads only.

    This takes a listing of the pending uploads, one GET per file, and two requests for each upload that is
    not listed, until the job turns out to be half-published.

    Args:
        store: The store of the destination.
        destination: The job's destination.
        files: The job's files.
        most: Maximum number of unlisted uploads to check; None for no limit.

    Raises:
        S3CommitError: A request failed.

    """
    listed = {
        upload_digest(upload.key, upload.upload_id): upload.initiated
        for upload in (store.list_uploads(destination.bucket, destination.prefix) if files.found else ())
    }
    count = _UploadCount(store, listed, most)
    damaged = [f"{uri} is no file of Hadoop's committers" for uri in files.unknown]
    for uploads in _uploads(store, destination, files.committed, files.job_id, damaged):
        count.add(uploads)
    for uploads in _uploads(store, destination, files.others, files.job_id, damaged):
        count.add_others(uploads)
    marker, now = _marker(store, destination, files)
    return HadoopJob(
        job_id=files.job_id,
        prefix=files.uri,
        application_attempt=files.application_attempt,
        files=len(files.found) + len(files.unknown),
        pendingsets=len(files.committed),
        uploads=len(count.counted),
        bytes=count.bytes,
        others=count.others,
        gaps=files.gaps,
        missing=files.missing,
        pending=count.by_outcome["pending"],
        published=count.by_outcome["published"],
        uncertain=count.by_outcome["uncertain"],
        lost=count.by_outcome["lost"],
        others_published=count.others_published,
        whole=count.whole,
        marker=marker,
        modified=files.modified,
        silent=max(now - max(files.modified, count.newest), 0.0) if now is not None else None,
        damaged=tuple(damaged),
    )


def classify(job: HadoopJob, *, older_than: float = 0.0) -> Verdict:
    """Return the status of a job.

    Args:
        job: The facts.
        older_than: Seconds without activity below which it may be alive.

    """
    visible = job.published + job.uncertain
    if job.marker == "own":
        return Verdict("successful", "its _SUCCESS is at the destination")
    if job.whole and visible == job.uploads > 0 and job.marker == "another's" and not job.damaged:
        return Verdict("successful", "all its uploads are published, and _SUCCESS is another job's")
    if job.silent is not None and job.silent < older_than:
        return Verdict("perhaps alive", f"its last sign of life was {job.silent:.0f} s ago")
    if visible or job.others_published:
        published = f"{visible} of its {job.uploads} uploads are published"
        if job.others_published:
            published += f", and {job.others_published} of attempts that do not count"
        return Verdict(
            "half-published", f"{published}, but it has no _SUCCESS: its job commit was interrupted"
        )
    return _unpublished(job)


def _unpublished(job: HadoopJob) -> Verdict:
    lost = f"; {job.lost} uploads are gone, so it cannot be finished" if job.lost else ""
    if job.gaps:
        return Verdict("partial", f"{job.gaps} task numbers have no pendingset: {job.missing_words}{lost}")
    if not job.pendingsets:
        return Verdict("unpublished", f"none of its tasks committed{lost}")
    return Verdict("unpublished", f"its tasks committed, and nothing is published{lost}")


def refusal(
    job: HadoopJob,
    *,
    commit: bool,
    accept_partial: bool = False,
    expect_tasks: int | None = None,
    older_than: float = 0.0,
    force: bool = False,
) -> S3CommitError | None:
    """Return the error that an adoption of a job must raise; None if the job may be adopted.

    Args:
        job: The facts.
        commit: Whether the adoption commits the job; otherwise it aborts it.
        accept_partial: Commit it although task numbers are missing.
        expect_tasks: Number of committed tasks without which it is not committed; None for any.
        older_than: Seconds without activity below which it may be alive.
        force: End it although it may be alive.

    """
    verdict, name = classify(job, older_than=older_than), f"Hadoop job {job.job_id}"
    if verdict.status == "successful":
        return AlreadyCommitted(
            f"{name} is successful: {verdict.reason}. There is nothing to commit or abort; remove what is"
            f" left in {job.prefix} with: s3commit adopt … --clean-up"
        )
    if verdict.status == "perhaps alive" and not force:
        return JobClosed(f"{name} may be alive: {verdict.reason}; stop it first, wait, or use --force")
    return _commit_refusal(job, name, accept_partial, expect_tasks) if commit else None


def _commit_refusal(
    job: HadoopJob, name: str, accept_partial: bool, expect_tasks: int | None
) -> S3CommitError | None:
    if not job.files:
        return NoSuchJob(
            f"{name} has no files in {job.prefix}: it was cleaned up, or its files are elsewhere (those of a"
            " staging committer: …/staging-uploads/_temporary/0/)"
        )
    if expect_tasks is not None and expect_tasks != job.pendingsets:
        return AuditFailed(
            f"{name}: {job.pendingsets} tasks committed in {job.prefix}, but {expect_tasks} are expected"
        )
    if not job.pendingsets:
        return JobClosed(
            f"{name}: no task committed in {job.prefix}, so there is nothing to commit; abort it"
        )
    if job.gaps and not accept_partial:
        return AuditFailed(
            f"{name} is partial: {job.gaps} task numbers have no pendingset in {job.prefix}:"
            f" {job.missing_words}. Tasks of the magic committer write one even without output, those of the"
            " staging committers do not. To commit it anyway: --accept-partial (accept_partial=True)"
        )
    return None


class _UploadCount:
    """Counts uploads by their outcome.

    Args:
        store: The store of the destination.
        listed: The start of each pending upload, in seconds since the epoch, by the upload's digest.
        most: Maximum number of unlisted uploads to check; None for no limit.

    """

    def __init__(self, store: ObjectStore, listed: dict[bytes, float], most: int | None) -> None:
        self._store = store
        self._listed = listed
        self._budget = most
        self.counted: set[bytes] = set()
        self.by_outcome = {"pending": 0, "published": 0, "uncertain": 0, "lost": 0}
        self.bytes = self.others = self.others_published = 0
        self.newest = 0.0
        self.whole = True

    def add(self, uploads: list[PendingUpload]) -> None:
        """Count uploads of files that count."""
        unlisted = []
        for upload in uploads:
            digest = upload_digest(upload.destinationKey, upload.uploadId)
            self.counted.add(digest)
            self.bytes += upload.length
            if self._is_listed(digest):
                self.by_outcome["pending"] += 1
            else:
                unlisted.append(upload)
        for outcome in self._checked(unlisted):
            self.by_outcome[outcome] += 1

    def add_others(self, uploads: list[PendingUpload]) -> None:
        """Count uploads of other files, except for those that `add` has counted."""
        unlisted = []
        for upload in uploads:
            digest = upload_digest(upload.destinationKey, upload.uploadId)
            if digest in self.counted:
                continue
            self.others += 1
            if not self._is_listed(digest):
                unlisted.append(upload)
        for outcome in self._checked(unlisted):
            self.others_published += outcome == "published"

    def _is_listed(self, digest: bytes) -> bool:
        initiated = self._listed.get(digest)
        self.newest = max(self.newest, initiated or 0.0)
        return initiated is not None

    def _checked(self, uploads: list[PendingUpload]) -> Iterator[str]:
        """Yield the outcomes of unlisted uploads; they may be pending, as some stores list none."""
        visible = self.by_outcome["published"] + self.by_outcome["uncertain"]
        if visible and self.by_outcome["pending"] + self.by_outcome["lost"]:
            # The job is half-published; the exact numbers do not matter.
            self.whole = self.whole and not uploads
            return
        if self._budget is not None:
            self.whole = self.whole and len(uploads) <= self._budget
            uploads = uploads[: self._budget]
            self._budget -= len(uploads)
        objects: dict[bytes, ObjectInfo] = {}
        calls = [(upload, Head(upload.bucket, upload.destinationKey)) for upload in uploads]
        for upload, outcome in outcomes(self._store, calls, NoSuchKey):
            if isinstance(outcome, ObjectInfo):
                objects[upload_digest(upload.destinationKey, upload.uploadId)] = outcome
        parts = pending_parts(self._store, map(PendingId.of, uploads))
        for upload, (_, found) in zip(uploads, parts, strict=True):
            info = objects.get(upload_digest(upload.destinationKey, upload.uploadId))
            yield "pending" if found is not None else _outcome_of_gone(upload, info)


def _outcome_of_gone(upload: PendingUpload, existing: ObjectInfo | None) -> str:
    if existing is None:
        return "lost"
    if is_ours(upload, existing):
        return "published"
    return "uncertain" if existing.size == upload.length else "lost"


def _uploads(
    store: ObjectStore, destination: Destination, files: list[HadoopFile], job_id: str, damaged: list[str]
) -> Iterator[list[PendingUpload]]:
    """Yield the uploads of files in batches; add the errors of invalid files to ``damaged``."""

    def uploads() -> Iterable[PendingUpload]:
        for _, outcome in read_files(store, files, job_id, destination):
            if isinstance(outcome, InvalidRecord):
                damaged.append(str(outcome))
            else:
                yield from outcome.commits

    return in_batches(uploads(), _BATCH)


def _marker(
    store: ObjectStore, destination: Destination, files: HadoopFiles
) -> tuple[Literal["own", "another's", "none"], float | None]:
    """Return `HadoopJob.marker`, and the store's time.

    A marker with the job's id that is older than its pendingsets is from an earlier job of the same id.
    """
    key = destination.key(SUCCESS)
    try:
        fetched = store.get(destination.bucket, key, limit=largest(SuccessData))
    except NoSuchKey:
        return "none", _time(store, files)
    except InvalidRecord:
        return "another's", _time(store, files)
    try:
        success = decode(SuccessData, fetched.body, join_uri(destination.bucket, key))
    except InvalidRecord:
        return "another's", fetched.date
    is_later = fetched.info.modified >= files.committed_at - STORE_CLOCK_SECONDS
    is_own = success.jobId == files.job_id and success.success and is_later
    return "own" if is_own else "another's", fetched.date


def _time(store: ObjectStore, files: HadoopFiles) -> float | None:
    for file in files.found[:1]:
        try:
            return store.get(file.bucket, file.key, limit=pending_bytes(file.key)).date
        except (NoSuchKey, InvalidRecord):
            return None
    return None

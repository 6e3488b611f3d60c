"""Status of a job of Hadoop's S3A committers: gather the facts once, then classify them.

A directory ``__magic_job-<id>`` alone proves nothing: it exists while a job runs, after its driver died
before, in or after its job commit, and, as of Hadoop 3.4.2, after a success if
``fs.s3a.committer.magic.cleanup.enabled`` is false. So every step that may end such a job checks its status
first.

The facts are its pendingsets, the leftovers of attempts, ``_SUCCESS``, which uploads are still pending, and
for those that are not, whether their object exists. An object is an upload's if it has the multipart ETag
that follows from the upload's parts, and its size. Where a store's ETags follow another rule, the size alone
is enough to leave the object and its job alone, and not enough to delete it.
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
from airflow_s3commit.protocol.hadoop.files import HadoopFiles, directory_files, magic_files, read_files
from airflow_s3commit.protocol.metadata.bulk import pending_parts
from airflow_s3commit.protocol.metadata.removal import PendingId
from airflow_s3commit.protocol.model.codec import decode, largest
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.digest import upload_digest
from airflow_s3commit.protocol.model.hadoop_pendingset import pending_bytes
from airflow_s3commit.protocol.model.layout import SUCCESS
from airflow_s3commit.protocol.model.ownership import is_ours
from airflow_s3commit.protocol.model.pendingset import PendingUpload
from airflow_s3commit.protocol.model.success import SuccessData
from airflow_s3commit.store.base import Head, ObjectInfo, ObjectStore
from airflow_s3commit.store.execute import in_batches, outcomes

#: Status of a Hadoop job.
Status: TypeAlias = Literal["successful", "unpublished", "half-published", "partial", "perhaps alive"]

_BATCH = 1_000

#: Stores tell times in whole seconds.
_STORE_CLOCK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class HadoopJob:
    """Facts about a job of Hadoop's committers.

    Attributes:
        job_id: Its UUID.
        prefix: URI of the directory its files are in.
        application_attempt: The run of the application whose tasks count: the last that committed any.
        files: How many files it left that name uploads, or may be data.
        pendingsets: Tasks that committed, in that run.
        uploads: Uploads that those tasks name; what a commit would complete.
        bytes: Their bytes.
        others: Uploads named by files that do not count; a commit would abort them.
        gaps: How many task numbers below the greatest one have no pendingset.
        missing: The first of these numbers.
        pending: Of the uploads that count, those that are still pending.
        published: Those whose object exists.
        uncertain: Those that are gone where an object of their size exists, with an ETag that proves nothing.
        lost: Those that are gone without an object.
        others_published: Uploads that do not count and whose object exists.
        whole: Every upload was checked; otherwise the four numbers are lower bounds.
        marker: Whose ``_SUCCESS`` exists: ``own``, ``another's`` or ``none``.
        modified: Time of its last file, in seconds by the store's clock.
        silent: Seconds since then, or since the start of its last pending upload; None if it has no files.
        damaged: Problems of files that cannot be read, or are not Hadoop's.

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
        """The missing task numbers, as people read them."""
        shown = ", ".join(map(str, self.missing))
        return f"{shown}, …" if self.gaps > len(self.missing) else shown


@dataclass(frozen=True, slots=True)
class Verdict:
    """Status of a job, with the reason for people."""

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
    """Examine what Hadoop left of a job; None if it left nothing.

    Args:
        store: The store of the destination.
        destination: The job's destination.
        job_id: Its id.
        adopted_from: Where the record of its adoption says that its pendingsets are.
        most: As for `examine`.

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


def refuse_to_cut(
    store: ObjectStore, destination: Destination, job_id: str, adopted_from: str | None
) -> None:
    """Refuse to discard the pending uploads of a Hadoop job that has published others.

    Raises:
        AlreadyCommitted: The Hadoop job is successful.
        JobClosed: It is half-published.

    """
    job = find_hadoop_job(store, destination, job_id, adopted_from=adopted_from)
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

    Costs a listing of the pending uploads, one GET per file, and two requests for each upload that is not
    listed, until it is clear that some are published and some are not.

    Args:
        store: The store of the destination.
        destination: The job's destination.
        files: Its files.
        most: How many uploads that are not listed it asks about at most; None for all.

    Raises:
        S3CommitError: A request failed.

    """
    listed = {
        upload_digest(upload.key, upload.upload_id): upload.initiated
        for upload in (store.list_uploads(destination.bucket, destination.prefix) if files.found else ())
    }
    count = _Count(store, listed, most)
    damaged = [f"{uri} is no file of Hadoop's committers" for uri in files.unknown]
    for uploads in _named(store, destination, files, damaged, counted=True):
        count.add(uploads)
    for uploads in _named(store, destination, files, damaged, counted=False):
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
        pending=count.became["pending"],
        published=count.became["published"],
        uncertain=count.became["uncertain"],
        lost=count.became["lost"],
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
        older_than: Seconds of silence before which it may be alive.

    """
    visible = job.published + job.uncertain
    if job.marker == "own":
        return Verdict("successful", "its _SUCCESS stands at the destination")
    if job.whole and visible == job.uploads > 0 and job.marker == "another's" and not job.damaged:
        return Verdict("successful", "every upload of it is published, and _SUCCESS is another job's")
    if job.silent is not None and job.silent < older_than:
        return Verdict("perhaps alive", f"it gave a sign of life {job.silent:.0f} s ago")
    if visible or job.others_published:
        words = f"{visible} of its {job.uploads} uploads are published"
        if job.others_published:
            words += f", and {job.others_published} of attempts that do not count"
        return Verdict("half-published", f"{words}, and no _SUCCESS names it: its job commit was cut short")
    return _unpublished(job)


def _unpublished(job: HadoopJob) -> Verdict:
    lost = f"; {job.lost} uploads are gone, so it cannot be finished" if job.lost else ""
    if job.gaps:
        return Verdict("partial", f"{job.gaps} task numbers have no pendingset: {job.missing_words}{lost}")
    words = "its tasks committed, and nothing is published" if job.pendingsets else "no task of it committed"
    return Verdict("unpublished", f"{words}{lost}")


def refusal(
    job: HadoopJob,
    *,
    commit: bool,
    accept_partial: bool = False,
    expect_tasks: int | None = None,
    older_than: float = 0.0,
    force: bool = False,
) -> S3CommitError | None:
    """Return why a job may not be finished, or taken back; None if it may. Dry and real runs both ask this.

    Args:
        job: The facts.
        commit: Whether it is to be finished; otherwise it is to be taken back.
        accept_partial: Finish it although task numbers are missing.
        expect_tasks: How many tasks it must have to be finished, if that is known.
        older_than: Seconds of silence before which it may be alive.
        force: End it although it may be alive.

    """
    verdict, name = classify(job, older_than=older_than), f"Hadoop job {job.job_id}"
    if verdict.status == "successful":
        return AlreadyCommitted(
            f"{name} is successful: {verdict.reason}. There is nothing to finish or take back; what is"
            f" left in {job.prefix} goes with: s3commit adopt … --clean-up"
        )
    if verdict.status == "perhaps alive" and not force:
        return JobClosed(f"{name} may be alive: {verdict.reason}; end it first, wait, or use --force")
    return _unfinishable(job, name, accept_partial, expect_tasks) if commit else None


def _unfinishable(
    job: HadoopJob, name: str, accept_partial: bool, expect_tasks: int | None
) -> S3CommitError | None:
    if not job.files:
        return NoSuchJob(
            f"{name}: Hadoop left nothing in {job.prefix}: it ended and was cleaned up, or its files are"
            " elsewhere (those of a staging committer: …/staging-uploads/_temporary/0/)"
        )
    if expect_tasks is not None and expect_tasks != job.pendingsets:
        return AuditFailed(
            f"{name}: {job.pendingsets} tasks committed in {job.prefix}, {expect_tasks} are expected"
        )
    if not job.pendingsets:
        return JobClosed(f"{name}: no task committed in {job.prefix}: there is nothing to finish; abort it")
    if job.gaps and not accept_partial:
        return AuditFailed(
            f"{name} is partial: {job.gaps} task numbers have no pendingset in {job.prefix}:"
            f" {job.missing_words}. Tasks of the magic committer write one even without output, those of the"
            " staging committers do not. To publish what is there: --accept-partial (accept_partial=True)"
        )
    return None


class _Count:
    """Counts uploads by their outcome."""

    def __init__(self, store: ObjectStore, listed: dict[bytes, float], most: int | None) -> None:
        self._store = store
        self._listed = listed
        self._left = most
        self.counted: set[bytes] = set()
        self.became = {"pending": 0, "published": 0, "uncertain": 0, "lost": 0}
        self.bytes = self.others = self.others_published = 0
        self.newest = 0.0
        self.whole = True

    def add(self, uploads: list[PendingUpload]) -> None:
        """Count uploads of tasks that count."""
        unlisted = []
        for upload in uploads:
            digest = upload_digest(upload.destinationKey, upload.uploadId)
            self.counted.add(digest)
            self.bytes += upload.length
            if not self._is_listed(digest):
                unlisted.append(upload)
                continue
            self.became["pending"] += 1
        for _, outcome in self._checked(unlisted):
            self.became[outcome] += 1

    def add_others(self, uploads: list[PendingUpload]) -> None:
        """Count uploads that do not count; those that a task names that does are counted already."""
        unlisted = []
        for upload in uploads:
            digest = upload_digest(upload.destinationKey, upload.uploadId)
            if digest in self.counted:
                continue
            self.others += 1
            if not self._is_listed(digest):
                unlisted.append(upload)
        for _, outcome in self._checked(unlisted):
            self.others_published += outcome == "published"

    def _is_listed(self, digest: bytes) -> bool:
        initiated = self._listed.get(digest)
        self.newest = max(self.newest, initiated or 0.0)
        return initiated is not None

    def _checked(self, uploads: list[PendingUpload]) -> Iterator[tuple[PendingUpload, str]]:
        """Yield what became of uploads that no listing shows: some stores do not list."""
        visible = self.became["published"] + self.became["uncertain"]
        if visible and self.became["pending"] + self.became["lost"]:
            # Half-published: the exact number does not matter.
            self.whole = self.whole and not uploads
            return
        if self._left is not None:
            self.whole = self.whole and len(uploads) <= self._left
            uploads = uploads[: self._left]
            self._left -= len(uploads)
        objects: dict[bytes, ObjectInfo] = {}
        calls = [(upload, Head(upload.bucket, upload.destinationKey)) for upload in uploads]
        for upload, outcome in outcomes(self._store, calls, NoSuchKey):
            if isinstance(outcome, ObjectInfo):
                objects[upload_digest(upload.destinationKey, upload.uploadId)] = outcome
        parts = pending_parts(self._store, map(PendingId.of, uploads))
        for upload, (_, found) in zip(uploads, parts, strict=True):
            info = objects.get(upload_digest(upload.destinationKey, upload.uploadId))
            yield upload, "pending" if found is not None else _became(upload, info)


def _became(upload: PendingUpload, existing: ObjectInfo | None) -> str:
    """Return what became of an upload that is gone."""
    if existing is None:
        return "lost"
    if is_ours(upload, existing):
        return "published"
    return "uncertain" if existing.size == upload.length else "lost"


def _named(
    store: ObjectStore, destination: Destination, files: HadoopFiles, damaged: list[str], *, counted: bool
) -> Iterator[list[PendingUpload]]:
    """Yield the uploads that files name, in batches; write down which files cannot be read."""

    def uploads() -> Iterable[PendingUpload]:
        chosen = files.committed if counted else files.others
        for _, outcome in read_files(store, chosen, files.job_id, destination):
            if isinstance(outcome, InvalidRecord):
                damaged.append(str(outcome))
            else:
                yield from outcome.commits

    return in_batches(uploads(), _BATCH)


def _marker(
    store: ObjectStore, destination: Destination, files: HadoopFiles
) -> tuple[Literal["own", "another's", "none"], float | None]:
    """Return whose ``_SUCCESS`` stands, and the store's time.

    A marker with the job's id that is older than its pendingsets is of an earlier job of this id.
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
    is_later = fetched.info.modified >= files.committed_at - _STORE_CLOCK_SECONDS
    is_own = success.jobId == files.job_id and success.success and is_later
    return "own" if is_own else "another's", fetched.date


def _time(store: ObjectStore, files: HadoopFiles) -> float | None:
    for file in files.found[:1]:
        try:
            return store.get(file.bucket, file.key, limit=pending_bytes(file.key)).date
        except (NoSuchKey, InvalidRecord):
            return None
    return None

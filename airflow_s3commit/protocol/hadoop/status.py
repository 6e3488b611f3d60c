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

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from typing import ClassVar, Literal, NamedTuple, TypeAlias

from airflow_s3commit._format import Column, age, number, size
from airflow_s3commit.exceptions import (
    AlreadyCommitted,
    AuditFailed,
    DuplicateOutput,
    InvalidRecord,
    JobClosed,
    NoSuchJob,
    NoSuchKey,
    S3CommitError,
)
from airflow_s3commit.protocol.hadoop.files import HadoopFile, HadoopFiles, files_of, magic_files
from airflow_s3commit.protocol.metadata.pending_uploads import pending_parts
from airflow_s3commit.protocol.metadata.removal import PendingId, is_ours
from airflow_s3commit.protocol.metadata.store_check import STORE_CLOCK_SECONDS
from airflow_s3commit.protocol.model.codec import decode, largest, text_digest, upload_digest
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.layout import SUCCESS, partition_of
from airflow_s3commit.protocol.model.manifest import SuccessData
from airflow_s3commit.protocol.model.pendingset import PendingSet, PendingUpload
from airflow_s3commit.store.base import Head, ObjectInfo, ObjectStore
from airflow_s3commit.store.execute import in_batches, outcomes

#: Status of a Hadoop job.
Status: TypeAlias = Literal["successful", "unpublished", "half-published", "partial", "perhaps alive"]

#: What became of an upload: see the fields of the same names of `HadoopJob`.
Fate: TypeAlias = Literal["pending", "published", "uncertain", "lost"]

_BATCH = 1_000

#: Missing task numbers to name in messages.
_MAX_NAMED = 20


@dataclass(slots=True)
class HadoopJob:
    """Facts about a job of Hadoop's committers.

    Attributes:
        prefix: URI of the directory of its files.
        application_attempt: Number of the application's run whose tasks count: the last that committed any.
        files: Number of its files that list uploads, or may be data.
        pendingsets: Number of committed tasks of that run.
        uploads: Number of uploads of these tasks: those that count, which a commit would complete.
        others: Number of uploads that do not count, which a commit would abort.
        gaps: Number of missing task numbers: those below the greatest without a pendingset.
        missing: The first of these task numbers.
        published: Number of uploads that count and whose object exists.
        uncertain: The same, of those that are gone, where an object of the same size exists whose ETag is no
            proof.
        lost: The same, without an object.
        others_published: Number of uploads that do not count and whose object exists.
        whole: Every upload was checked; otherwise the five numbers above are lower bounds.
        marker: The job of the ``_SUCCESS`` at the destination: ``own``, ``another's``, or ``none`` if there
            is no such object.
        modified: Time of its last file, in seconds since the epoch by the store's clock.
        silent: Seconds since then, or since the start of its last pending upload, if that is later; None if
            the store's time is not known.
        damaged: What is wrong with files that cannot be read, or are not Hadoop's.
    """

    columns: ClassVar[tuple[Column, ...]] = (
        Column("job", "job_id"),
        Column("status", "status"),
        Column("tasks", "pendingsets", number),
        Column("uploads", "uploads", number),
        Column("size", "bytes", size),
        Column("gaps", "gaps", number),
        Column("silent", "silent", age, room=100),
        Column("directory", "prefix", room=150, folds=True),
    )

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

    @property
    def status(self) -> Status:
        """What it is, if it is not alive."""
        return classify(self).status


class Verdict(NamedTuple):
    """Status of a job, and the reason in words."""

    status: Status
    reason: str


class Survey:
    """One reading of all files of a job, and of what became of the uploads that they list. Reads only.

    This takes a listing of the pending uploads, one GET per file, and two requests for each upload that is
    not listed.

    Args:
        most: Maximum number of unlisted uploads to ask about; None for no limit.

    Attributes:
        counted: Digests of the uploads that count.
        keys: Digests of their keys.
        partitions: The partitions that they write.
        listed: The start of each pending upload of the destination, by the upload's digest.
        own: Keys of the objects that Hadoop has made of uploads that count.
        others_own: Keys of the objects that it has made of other uploads.
        unreadable: What is wrong with files that count; ``others_unreadable`` with others.
        flaws: Why the output that counts cannot be committed.
    """

    def __init__(
        self, store: ObjectStore, destination: Destination, files: HadoopFiles, most: int | None = None
    ) -> None:
        self.files = files
        committed, gaps = files.committed, list(files.gaps())
        self.job = HadoopJob(
            files.job_id,
            files.uri,
            application_attempt=files.run,
            files=len(files.found) + len(files.unknown),
            pendingsets=len(committed),
            gaps=sum(map(len, gaps)),
            missing=tuple(islice(chain.from_iterable(gaps), _MAX_NAMED)),
            marker=_marker(store, destination, files),
            modified=files.modified,
        )
        self.counted: set[bytes] = set()
        self.keys: set[bytes] = set()
        self.partitions: set[str] = set()
        self.own: set[str] = set()
        self.others_own: set[str] = set()
        self.unreadable: list[InvalidRecord] = []
        self.others_unreadable: list[InvalidRecord] = []
        self.flaws: list[S3CommitError] = [
            DuplicateOutput(f"task {one.task} has two pendingsets in {files.uri}")
            for one, other in pairwise(committed)
            if one.task == other.task
        ]
        listed = store.list_uploads(destination.bucket, destination.prefix) if files.found else ()
        self.listed = {upload_digest(one.key, one.upload_id): one.initiated for one in listed}
        self._newest = files.modified
        unlisted = chain(
            self._unlisted(files.read(store, destination, committed), destination, count=True),
            self._unlisted(files.read(store, destination, files.others), destination, count=False),
        )
        for upload, fate, _ in fates(store, islice(unlisted, most)):
            counts = _digest(upload) in self.counted
            if counts:
                setattr(self.job, fate, getattr(self.job, fate) + 1)
            if fate == "published":
                (self.own if counts else self.others_own).add(upload.destinationKey)
        self.job.whole = not sum(1 for _ in unlisted)
        self.job.uploads = len(self.counted)
        self.job.others_published = len(self.others_own)
        self.job.silent = max(files.now - self._newest, 0.0) if files.now else None
        damaged = [f"{uri} is no file of Hadoop's committers" for uri in files.unknown]
        self.job.damaged = (*damaged, *map(str, self.unreadable), *map(str, self.others_unreadable))

    def _unlisted(
        self,
        read: Iterable[tuple[HadoopFile, PendingSet | InvalidRecord]],
        destination: Destination,
        *,
        count: bool,
    ) -> Iterator[PendingUpload]:
        """Note the uploads of files, which count or not; yield those that are not listed."""
        for file, outcome in read:
            if isinstance(outcome, InvalidRecord):
                (self.unreadable if count else self.others_unreadable).append(outcome)
                continue
            for upload in outcome.commits:
                if count:
                    self._count(file, upload, destination)
                elif _digest(upload) in self.counted:
                    # A crash between a task's commit and the removal of its directory leaves it in both.
                    continue
                else:
                    self.job.others += 1
                initiated = self.listed.get(_digest(upload))
                if initiated is None:
                    yield upload
                else:
                    self._newest = max(self._newest, initiated)
                    self.job.pending += count

    def _count(self, file: HadoopFile, upload: PendingUpload, destination: Destination) -> None:
        key = upload.destinationKey
        if not upload.etags:
            why = f"the upload of {key} has no parts, so no store can complete it; abort the job"
            self.flaws.append(InvalidRecord(f"{file.uri}: {why}"))
        if text_digest(key) in self.keys:
            self.flaws.append(DuplicateOutput(f"two uploads write {key}, one of them in {file.uri}"))
        self.keys.add(text_digest(key))
        self.counted.add(_digest(upload))
        self.partitions.add(partition_of(destination.relative(key) or ""))
        self.job.bytes += upload.length


def fates(
    store: ObjectStore, uploads: Iterable[PendingUpload], listed: Container[bytes] = ()
) -> Iterator[tuple[PendingUpload, Fate, bool]]:
    """Yield each upload with what became of it, and whether an object has its key. Reads only.

    An object with the ETag of an upload that is pending is of another writer: a rerun with the same names.
    ``listed`` are the digests of uploads that a listing shows as pending; some stores list none.
    """
    for batch in in_batches(uploads, _BATCH):
        asked = (PendingId.of(upload) for upload in batch if _digest(upload) not in listed)
        parts = pending_parts(store, asked)
        gone = {upload_digest(one.key, one.upload_id) for one, found in parts if found is None}
        calls = [(upload, Head(upload.bucket, upload.destinationKey)) for upload in batch]
        for upload, outcome in outcomes(store, calls, NoSuchKey):
            existing = outcome if isinstance(outcome, ObjectInfo) else None
            fate: Fate = "pending"
            if _digest(upload) in gone:
                fate = _fate_of_gone(upload, existing)
            yield upload, fate, existing is not None


def _fate_of_gone(upload: PendingUpload, existing: ObjectInfo | None) -> Fate:
    if existing is not None and is_ours(upload, existing):
        return "published"
    return "uncertain" if existing is not None and existing.size == upload.length else "lost"


def _digest(upload: PendingUpload) -> bytes:
    return upload_digest(upload.destinationKey, upload.uploadId)


def find_hadoop_jobs(store: ObjectStore, destination: Destination) -> list[HadoopJob]:
    """Return the jobs that Hadoop's magic committer left at a destination, oldest first. Reads only.

    Jobs of the staging committers have their files on their cluster, and are not found.
    """
    found = magic_files(store, destination).values()
    return sorted((Survey(store, destination, files).job for files in found), key=lambda job: job.modified)


def find_hadoop_job(
    store: ObjectStore,
    destination: Destination,
    job_id: str,
    *,
    pendingsets_uri: str | None = None,
    most: int | None = None,
) -> HadoopJob | None:
    """Return the facts about a Hadoop job; None if it has no files. Reads only."""
    files = files_of(store, destination, job_id, pendingsets_uri)
    return None if files.are_none else Survey(store, destination, files, most).job


def classify(job: HadoopJob, *, older_than: float = 0.0) -> Verdict:
    """Return the status of a job, which may be alive below ``older_than`` seconds without activity."""
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
    status: Status = "unpublished"
    why = "its tasks committed, and nothing is published"
    if job.gaps:
        status, why = "partial", f"{job.gaps} task numbers have no pendingset: {job.missing_words}"
    elif not job.pendingsets:
        why = "none of its tasks committed"
    lost = f"; {job.lost} uploads are gone, so it cannot be finished" if job.lost else ""
    return Verdict(status, f"{why}{lost}")


def refuse_end(job: HadoopJob, *, adopts: bool = False, older_than: float = 0.0, force: bool = False) -> None:
    """Raise if a job must not be ended: it is successful, or may be alive, which ``force`` ignores.

    Or it has published uploads, so that the rest must not be discarded, unless an adoption ends it, which
    finishes or takes back what it has published.
    """
    verdict, name = classify(job, older_than=older_than), f"Hadoop job {job.job_id}"
    if verdict.status == "successful":
        raise AlreadyCommitted(
            f"{name} is successful: {verdict.reason}. There is nothing to commit or abort; remove what is"
            f" left in {job.prefix} with: s3commit adopt … --clean-up"
        )
    if verdict.status == "perhaps alive" and not force:
        raise JobClosed(f"{name} may be alive: {verdict.reason}; stop it first, wait, or use --force")
    if verdict.status == "half-published" and not adopts:
        raise JobClosed(
            f"{name} is half-published: {verdict.reason}. Finish it with: s3commit adopt … --commit, or take"
            " back what it published with: s3commit adopt … --abort"
        )


def refuse_commit(job: HadoopJob, *, accept_partial: bool, expect_tasks: int | None) -> None:
    """Raise if a job lacks tasks that a commit needs."""
    name = f"Hadoop job {job.job_id}"
    if not job.files:
        raise NoSuchJob(
            f"{name} has no files in {job.prefix}: it was cleaned up, or its files are elsewhere (those of a"
            " staging committer: …/staging-uploads/_temporary/0/)"
        )
    if expect_tasks not in (None, job.pendingsets):
        raise AuditFailed(
            f"{name}: {job.pendingsets} tasks committed in {job.prefix}, but {expect_tasks} are expected"
        )
    if not job.pendingsets:
        raise JobClosed(f"{name}: no task committed in {job.prefix}, so there is nothing to commit; abort it")
    if job.gaps and not accept_partial:
        raise AuditFailed(
            f"{name} is partial: {job.gaps} task numbers have no pendingset in {job.prefix}:"
            f" {job.missing_words}. Tasks of the magic committer write one even without output, those of the"
            " staging committers do not. To commit it anyway: --accept-partial (accept_partial=True)"
        )


def _marker(
    store: ObjectStore, destination: Destination, files: HadoopFiles
) -> Literal["own", "another's", "none"]:
    """Return `HadoopJob.marker`.

    A marker with the job's id that is older than its pendingsets is from an earlier job of the same id.
    """
    key = destination.key(SUCCESS)
    try:
        fetched = store.get(destination.bucket, key, limit=largest(SuccessData))
        success = decode(SuccessData, fetched.body, join_uri(destination.bucket, key))
    except NoSuchKey:
        return "none"
    except InvalidRecord:
        return "another's"
    is_later = fetched.info.modified >= files.committed_at - STORE_CLOCK_SECONDS
    return "own" if success.jobId == files.job_id and success.success and is_later else "another's"

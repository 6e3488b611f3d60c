"""Jobs of Hadoop's S3A committers: their files, the fates of the uploads that the files list, their status.

There are two layouts of files, the same in Hadoop 3.3.7 to 3.5:

- *magic*: ``<destination>/__magic_job-<job>/job-<job>/NN/<task>.pendingset`` for every committed task, and
  ``…/NN/tasks/<attempt>/…/<file>.pending`` for every file of an attempt that has not committed. ``NN`` is the
  number of the application's run; each run repeats all tasks.
- *staging*: a directory ``…/<job>/staging-uploads/_temporary/N/`` on the cluster's file system, or a copy of
  it on S3. It has a file for every committed task, whose name is the task's id without a suffix. Its own
  ``_temporary/`` has one for every attempt that was about to commit.

Hadoop's committers name data as the application does, so only these files tell whose an upload is. The files
do not show the status: they are there while a job runs, after its driver died at any time, and, as of Hadoop
3.4.2, after a success if ``fs.s3a.committer.magic.cleanup.enabled`` is false.

An object belongs to an upload if it has its size and the multipart ETag that follows from the parts. Where a
store computes ETags differently, an object of the right size may belong to the upload, and is not deleted.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from typing import ClassVar, Literal, NamedTuple, TypeAlias

from airflow_s3commit._format import Column, age, number, size
from airflow_s3commit.exceptions import DuplicateOutput, InvalidRecord, NoSuchKey, S3CommitError
from airflow_s3commit.protocol.metadata.pending_uploads import pending_parts
from airflow_s3commit.protocol.metadata.removal import PendingId, is_ours
from airflow_s3commit.protocol.metadata.store_check import STORE_CLOCK_SECONDS
from airflow_s3commit.protocol.model.codec import decode, largest, text_digest, upload_digest
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.layout import (
    MAGIC_PREFIX,
    PENDING_SUFFIX,
    PENDINGSET_SUFFIX,
    SUCCESS,
    check_id,
    partition_of,
)
from airflow_s3commit.protocol.model.manifest import SuccessData
from airflow_s3commit.protocol.model.pendingset import PendingSet, PendingUpload, pending_bytes
from airflow_s3commit.store.base import Fetched, Get, Head, ObjectInfo, ObjectStore
from airflow_s3commit.store.execute import in_batches, outcomes

#: Status of a Hadoop job.
Status: TypeAlias = Literal["successful", "unpublished", "half-published", "partial", "perhaps alive"]

#: What became of an upload: see the fields of the same names of `HadoopJob`.
Fate: TypeAlias = Literal["pending", "published", "uncertain", "lost"]

#: Files to hold in memory at once, uploads to ask about at once, and missing task numbers to name.
_READ_AHEAD, _BATCH, _MAX_NAMED = 32, 1_000, 20

_IN_MAGIC = re.compile(r"job-([^/]+)/(\d{1,6})/(.+)", re.DOTALL)
_RUN_IN_PREFIX = re.compile(r"/(\d{1,6})/$", re.ASCII)
_TASK_NUMBER = re.compile(r"(_[mr])?_(\d{1,9})$")


@dataclass(frozen=True, slots=True)
class HadoopFile:
    """A file that lists pending uploads; it is committed if it is the pendingset of a committed task.

    ``task`` is the task's id, or the file's path in its directory if the attempt did not commit; ``run`` the
    number of the application's run that wrote it.
    """

    bucket: str
    key: str
    task: str
    run: int
    is_committed: bool

    @property
    def uri(self) -> str:
        """Its URI."""
        return join_uri(self.bucket, self.key)


#: Objects in a job's directory, each with the file that it is; None for one that does not list uploads.
_Listed: TypeAlias = list[tuple[ObjectInfo, HadoopFile | None]]


def _files_in(store: ObjectStore, directory: Destination, job_id: str, *, is_magic: bool) -> _Listed:
    """List the files of one job in a directory; in its magic directory, also other objects of its runs."""
    numbered, listed = _RUN_IN_PREFIX.search(directory.prefix), _Listed()
    run = int(numbered[1]) if numbered is not None else 0
    for info in store.list_objects(directory.bucket, directory.key("job-" if is_magic else "")):
        path, file = directory.relative(info.key) or "", None
        if not is_magic:
            file = _file_at(directory.bucket, info.key, run, path, is_magic=False)
            if file is None or path.rpartition("/")[2].startswith((".", "_")):
                continue
        elif (matched := _IN_MAGIC.fullmatch(path)) is not None and matched[1] == job_id:
            file = _file_at(directory.bucket, info.key, int(matched[2]), matched[3], is_magic=True)
        listed.append((info, file))
    return listed


def _file_at(bucket: str, key: str, run: int, path: str, *, is_magic: bool) -> HadoopFile | None:
    """Return the file at a path in a directory; None for others, such as empty markers of written files."""
    above, _, name = path.rpartition("/")
    # Only in a magic directory is a committed task's pendingset known by its suffix.
    if path and "/" not in path and (path.endswith(PENDINGSET_SUFFIX) or not is_magic):
        return HadoopFile(bucket, key, path.removesuffix(PENDINGSET_SUFFIX), run, is_committed=True)
    is_attempts = path.startswith("tasks/") and path.endswith(PENDING_SUFFIX)
    if is_attempts or (name and above == "_temporary" and not is_magic):
        return HadoopFile(bucket, key, path, run, is_committed=False)
    return None


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
        pending: Number of uploads that count and are pending. Those that are not pending are
        published: if their object exists;
        uncertain: if an object of the same size is at their key, whose ETag proves nothing;
        lost: or else gone without an object.
        whole: Whether every upload was checked; otherwise these four numbers are lower bounds.
        marker: Which job wrote the ``_SUCCESS`` at the destination.
        modified: Time of its last file, in seconds since the epoch by the store's clock.
        silent: Seconds since its last file or pending upload; None if the store's time is not known.
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
        return ", ".join([*map(str, self.missing), *(["…"] if self.gaps > len(self.missing) else [])])

    @property
    def status(self) -> Status:
        """The job's status, taking it to be dead."""
        return classify(self).status


class Verdict(NamedTuple):
    """Status of a job, and the reason in words."""

    status: Status
    reason: str


class Survey:
    """One reading of all files of a job, and of what became of the uploads that they list. Reads only.

    The files are in its magic directory, or in another directory of pendingsets. A survey takes a listing of
    the pending uploads, one GET per file, and two requests for each of up to ``most`` unlisted uploads.

    Attributes:
        unknown: URIs of objects that list no uploads. They may be data, which a clean-up would delete.
        run: The last run that committed a task. As in Hadoop, only the tasks of this run count.
        committed: The pendingsets that count, ordered by task; ``others`` are all other files.
        counted: Digests of the uploads that count; ``keys`` are the digests of their keys.
        partitions: The partitions that the uploads that count write to.
        listed: The start time of each pending upload of the destination, by the upload's digest.
        own: Keys of the objects that Hadoop has made of uploads that count, ``others_own`` of other uploads.
        unreadable: What is wrong with files that cannot be read, whether they count or not.
        flaws: Why the output that counts cannot be committed.

    Raises:
        InvalidDestination: ``pendingsets_uri`` is no URI of S3.
    """

    def __init__(
        self,
        store: ObjectStore,
        destination: Destination,
        job_id: str,
        pendingsets_uri: str | None = None,
        *,
        most: int | None = None,
    ) -> None:
        self._store, self._destination, self._job_id = store, destination, job_id
        magic = destination.below(MAGIC_PREFIX + job_id)
        directory = Destination.parse(pendingsets_uri) if pendingsets_uri is not None else magic
        objects = _files_in(store, directory, job_id, is_magic=directory == magic)
        self.uri = directory.uri
        self.found = [file for _, file in objects if file is not None]
        others = (info for info, file in objects if file is None and info.size)
        self.unknown = [join_uri(directory.bucket, info.key) for info in others]
        self.run = max((file.run for file in self.found if file.is_committed), default=0)
        counting = [file for file in self.found if file.is_committed and file.run == self.run]
        self.committed = sorted(counting, key=lambda file: file.task)
        self.others = [file for file in self.found if not file.is_committed or file.run != self.run]
        pendingsets = (info.modified for info, file in objects if file is not None and file.is_committed)
        gaps = _gaps(self.committed)
        self.job = HadoopJob(
            job_id,
            self.uri,
            application_attempt=self.run,
            files=len(self.found) + len(self.unknown),
            pendingsets=len(self.committed),
            gaps=sum(map(len, gaps)),
            missing=tuple(islice(chain.from_iterable(gaps), _MAX_NAMED)),
            marker=_marker(store, destination, job_id, max(pendingsets, default=0.0)),
            modified=max((info.modified for info, _ in objects), default=0.0),
        )
        self.counted: set[bytes] = set()
        self.keys: set[bytes] = set()
        self.partitions: set[str] = set()
        self.own: set[str] = set()
        self.others_own: set[str] = set()
        self.unreadable: list[InvalidRecord] = []
        self.flaws: list[S3CommitError] = [
            DuplicateOutput(f"task {one.task} has two pendingsets in {self.uri}")
            for one, other in pairwise(self.committed)
            if one.task == other.task
        ]
        listed = store.list_uploads(destination.bucket, destination.prefix) if self.found else ()
        self.listed = {upload_digest(one.key, one.upload_id): one.initiated for one in listed}
        #: Times of the newest file or upload, and when a file was last read; 0 if none was.
        self._newest, self._now = self.job.modified, 0.0
        unlisted = chain(self._unlisted(self.committed, count=True), self._unlisted(self.others, count=False))
        for upload, fate, _ in fates(store, islice(unlisted, most)):
            counts = _digest(upload) in self.counted
            if counts:
                setattr(self.job, fate, getattr(self.job, fate) + 1)
            if fate == "published":
                (self.own if counts else self.others_own).add(upload.destinationKey)
        self.job.whole = not sum(1 for _ in unlisted)
        self.job.uploads = len(self.counted)
        self.job.others_published = len(self.others_own)
        self.job.silent = max(self._now - self._newest, 0.0) if self._now else None
        damaged = [f"{uri} is no file of Hadoop's committers" for uri in self.unknown]
        self.job.damaged = (*damaged, *map(str, self.unreadable))

    def read(self, files: Iterable[HadoopFile]) -> Iterator[tuple[HadoopFile, PendingSet | InvalidRecord]]:
        """Yield some files with their pendingsets, or with the errors that make them invalid, in any order.

        A ``.pending`` file yields a pendingset of one upload, which is valid without parts, as for Hadoop.
        """
        for batch in in_batches(files, _READ_AHEAD):
            calls = [(file, Get(file.bucket, file.key, pending_bytes(file.key))) for file in batch]
            for file, outcome in outcomes(self._store, calls, InvalidRecord):
                if not isinstance(outcome, Fetched):
                    assert isinstance(outcome, InvalidRecord)
                    yield file, outcome
                    continue
                self._now = max(self._now, outcome.date)
                try:
                    yield file, self._checked(file, outcome.body)
                except InvalidRecord as error:
                    yield file, error

    def _checked(self, file: HadoopFile, body: bytes) -> PendingSet:
        if file.is_committed or not file.key.endswith(PENDING_SUFFIX):
            pendingset = decode(PendingSet, body, file.uri)
        else:
            upload = decode(PendingUpload, body, file.uri)
            pendingset = PendingSet(jobId=upload.jobId, commits=[upload])
        if pendingset.jobId not in (None, "", self._job_id):
            raise InvalidRecord(f"{file.uri} belongs to job {pendingset.jobId}, not to {self._job_id}")
        try:
            if file.is_committed:
                check_id(file.task, "task")
            for upload in pendingset.commits:
                self._destination.check_data_key(upload.bucket, upload.destinationKey)
        except InvalidRecord as error:
            raise InvalidRecord(f"{file.uri}: {error}") from error
        return pendingset

    def _unlisted(self, files: list[HadoopFile], *, count: bool) -> Iterator[PendingUpload]:
        """Note the uploads of files, as counting or not; yield those that no listing shows as pending."""
        for file, outcome in self.read(files):
            if isinstance(outcome, InvalidRecord):
                self.unreadable.append(outcome)
                self.flaws += [outcome] if count else []
                continue
            for upload in outcome.commits:
                if count:
                    self._count(file, upload)
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

    def _count(self, file: HadoopFile, upload: PendingUpload) -> None:
        key = upload.destinationKey
        if not upload.etags:
            why = f"the upload of {key} has no parts, so no store can complete it; abort the job"
            self.flaws.append(InvalidRecord(f"{file.uri}: {why}"))
        if text_digest(key) in self.keys:
            self.flaws.append(DuplicateOutput(f"two uploads write {key}, one of them in {file.uri}"))
        self.keys.add(text_digest(key))
        self.counted.add(_digest(upload))
        self.partitions.add(partition_of(self._destination.relative(key) or ""))
        self.job.bytes += upload.length


def _gaps(committed: list[HadoopFile]) -> list[range]:
    """Return the missing task numbers: those below the greatest without a pendingset."""
    # Map tasks and reduce tasks both count from 0.
    numbers: dict[str | None, set[int]] = {}
    for file in committed:
        if matched := _TASK_NUMBER.search(file.task):
            numbers.setdefault(matched[1], set()).add(int(matched[2]))
    pairs = (pair for found in numbers.values() for pair in pairwise([-1, *sorted(found)]))
    return [range(before + 1, after) for before, after in pairs]


def fates(
    store: ObjectStore, uploads: Iterable[PendingUpload], listed: Container[bytes] = ()
) -> Iterator[tuple[PendingUpload, Fate, bool]]:
    """Yield each upload with what became of it, and whether an object has its key. Reads only.

    An object with the ETag of an upload that is pending belongs to another writer: a rerun with the same
    names. ``listed`` are the digests of uploads that a listing shows as pending; some stores list none.
    """
    for batch in in_batches(uploads, _BATCH):
        parts = pending_parts(store, (PendingId.of(one) for one in batch if _digest(one) not in listed))
        gone = {upload_digest(one.key, one.upload_id) for one, found in parts if found is None}
        calls = [(upload, Head(upload.bucket, upload.destinationKey)) for upload in batch]
        for upload, outcome in outcomes(store, calls, NoSuchKey):
            existing = outcome if isinstance(outcome, ObjectInfo) else None
            fate: Fate = "pending"
            if _digest(upload) in gone:
                fate = "lost" if existing is None or existing.size != upload.length else "uncertain"
                fate = "published" if existing is not None and is_ours(upload, existing) else fate
            yield upload, fate, existing is not None


def _digest(upload: PendingUpload) -> bytes:
    return upload_digest(upload.destinationKey, upload.uploadId)


def find_hadoop_jobs(store: ObjectStore, destination: Destination) -> list[HadoopJob]:
    """Return the jobs that Hadoop's magic committer left at a destination, oldest first. Reads only."""
    prefix = destination.key(MAGIC_PREFIX)
    paths = (info.key[len(prefix) :] for info in store.list_objects(destination.bucket, prefix))
    parts = (path.partition("/") for path in paths)
    job_ids = sorted({job_id for job_id, _, rest in parts if rest.startswith("job-")})
    found = (find_hadoop_job(store, destination, job_id) for job_id in job_ids)
    return sorted((job for job in found if job is not None), key=lambda job: job.modified)


def find_hadoop_job(
    store: ObjectStore,
    destination: Destination,
    job_id: str,
    *,
    pendingsets_uri: str | None = None,
    most: int | None = None,
) -> HadoopJob | None:
    """Return the facts about a Hadoop job; None if it has no files. Reads only."""
    job = Survey(store, destination, job_id, pendingsets_uri, most=most).job
    return job if job.files else None


def classify(job: HadoopJob, *, older_than: float = 0.0) -> Verdict:
    """Return the status of a job; with less than ``older_than`` seconds of silence it may be alive."""
    visible = job.published + job.uncertain
    if job.marker == "own":
        return Verdict("successful", "its _SUCCESS is at the destination")
    if job.whole and visible == job.uploads > 0 and job.marker == "another's" and not job.damaged:
        return Verdict("successful", "all its uploads are published, and _SUCCESS is another job's")
    if job.silent is not None and job.silent < older_than:
        return Verdict("perhaps alive", f"its last sign of life was {job.silent:.0f} s ago")
    if visible or job.others_published:
        others = f", and {job.others_published} of attempts that do not count" if job.others_published else ""
        why = f"{visible} of its {job.uploads} uploads are published{others}"
        return Verdict("half-published", f"{why}, but it has no _SUCCESS: its job commit was interrupted")
    lost = f"; {job.lost} uploads are gone, so it cannot be finished" if job.lost else ""
    if job.gaps:
        why = f"{job.gaps} task numbers have no pendingset: {job.missing_words}"
        return Verdict("partial", f"{why}{lost}")
    why = "its tasks committed, and nothing is published"
    return Verdict("unpublished", f"{why if job.pendingsets else 'none of its tasks committed'}{lost}")


def _marker(
    store: ObjectStore, destination: Destination, job_id: str, committed_at: float
) -> Literal["own", "another's", "none"]:
    """Return `HadoopJob.marker`; one older than the pendingsets is of an earlier job with the same id."""
    try:
        fetched = store.get(destination.bucket, destination.key(SUCCESS), limit=largest(SuccessData))
        success = decode(SuccessData, fetched.body, SUCCESS)
    except NoSuchKey:
        return "none"
    except InvalidRecord:
        return "another's"
    is_later = fetched.info.modified >= committed_at - STORE_CLOCK_SECONDS
    return "own" if success.jobId == job_id and success.success and is_later else "another's"

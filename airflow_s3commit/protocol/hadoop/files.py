"""Find and read the files of jobs of Hadoop's S3A committers, and tell which uploads they claim.

There are two layouts, the same in Hadoop 3.3.7 to 3.5:

- *magic*: ``<destination>/__magic_job-<job>/job-<job>/NN/<task>.pendingset`` for every committed task, and
  ``…/NN/tasks/<attempt>/…/<file>.pending`` for every file of an attempt that has not committed. ``NN`` is the
  number of the application's run; each run repeats all tasks.
- *staging*: a directory ``…/<job>/staging-uploads/_temporary/N/`` on the cluster's file system, or a copy of
  it on S3. It has a file for every committed task, whose name is the task's id without a suffix. Its own
  ``_temporary/`` has one for every attempt that was about to commit.

Hadoop's committers name data as the application does, so only these files tell whose an upload is.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import NamedTuple

from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol.metadata.context import fetch_listed
from airflow_s3commit.protocol.model.codec import decode
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.layout import (
    MAGIC_PREFIX,
    PENDING_SUFFIX,
    PENDINGSET_SUFFIX,
    check_id,
    is_id,
)
from airflow_s3commit.protocol.model.pendingset import (
    PendingSet,
    PendingUpload,
    decode_uploads,
    pending_bytes,
)
from airflow_s3commit.store.base import Fetched, Get, ObjectInfo, ObjectStore
from airflow_s3commit.store.execute import in_batches, in_threads, outcomes

#: Files to fetch at once and hold in memory.
_READ_AHEAD = 32

_IN_MAGIC = re.compile(r"job-([^/]+)/(\d{1,6})/(.+)", re.DOTALL)
_JOB_IN_URI = re.compile(rf"/(?:{MAGIC_PREFIX}([^/]+)|([^/]+)/staging-uploads)/")
_RUN_IN_PREFIX = re.compile(r"/(\d{1,6})/$", re.ASCII)
_TASK_NUMBER = re.compile(r"(_[mr])?_(\d{1,9})$")


@dataclass(frozen=True, slots=True)
class HadoopFile:
    """A file that lists pending uploads; it is committed if it is the pendingset of a committed task.

    Attributes:
        task: The task's id; the file's path in its directory if the attempt did not commit.
        run: Number of the application's run that wrote it.
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


@dataclass(slots=True)
class HadoopFiles:
    """The files of a job, from a listing.

    Attributes:
        uri: URI of their directory.
        found: Every file that lists uploads.
        unknown: URIs of other objects that are not empty. They may be data, which a clean-up would delete.
        modified: Time of the last write in the directory, in seconds since the epoch by the store's clock.
        committed_at: Time of the last write of a committed task's pendingset, by the same clock.
        now: Time when a file was last read, by the same clock; 0 if none was.
    """

    job_id: str
    uri: str
    found: list[HadoopFile] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    modified: float = 0.0
    committed_at: float = 0.0
    now: float = 0.0

    @property
    def are_none(self) -> bool:
        """Whether the job has left nothing there."""
        return not (self.found or self.unknown)

    @property
    def run(self) -> int:
        """Number of the last run that committed a task. As in Hadoop, only the tasks of this run count."""
        return max((file.run for file in self.found if file.is_committed), default=0)

    @property
    def committed(self) -> list[HadoopFile]:
        """The pendingsets that count, ordered by task."""
        last = self.run
        return sorted(
            (file for file in self.found if file.is_committed and file.run == last),
            key=lambda file: file.task,
        )

    @property
    def others(self) -> list[HadoopFile]:
        """The files that do not count: of attempts that did not commit, and of earlier runs."""
        last = self.run
        return [file for file in self.found if not file.is_committed or file.run != last]

    def gaps(self) -> Iterator[range]:
        """Yield the missing task numbers: those below the greatest without a pendingset, one range per gap.

        With the magic committer these tasks did not commit. The staging committers write no pendingset for a
        task without output, so there a gap may be harmless.
        """
        # Map tasks and reduce tasks both count from 0.
        numbers: dict[str | None, set[int]] = {}
        for file in self.committed:
            if matched := _TASK_NUMBER.search(file.task):
                numbers.setdefault(matched[1], set()).add(int(matched[2]))
        for found in numbers.values():
            for before, after in pairwise([-1, *sorted(found)]):
                if after > before + 1:
                    yield range(before + 1, after)

    def read(
        self, store: ObjectStore, destination: Destination, files: Iterable[HadoopFile]
    ) -> Iterator[tuple[HadoopFile, PendingSet | InvalidRecord]]:
        """Yield some files with their pendingsets, or with the errors that make them invalid, in any order.

        A ``.pending`` file yields a pendingset of one upload. Each file must have a known format and version,
        the job's id, a valid task id if it is committed, and no key outside the destination. An upload
        without parts is valid, as it is for Hadoop.
        """
        for batch in in_batches(files, _READ_AHEAD):
            calls = [(file, Get(file.bucket, file.key, pending_bytes(file.key))) for file in batch]
            for file, outcome in outcomes(store, calls, InvalidRecord):
                if not isinstance(outcome, Fetched):
                    assert isinstance(outcome, InvalidRecord)
                    yield file, outcome
                    continue
                self.now = max(self.now, outcome.date)
                try:
                    yield file, _checked(file, outcome.body, self.job_id, destination)
                except InvalidRecord as error:
                    yield file, error

    def add(self, bucket: str, info: ObjectInfo, file: HadoopFile | None) -> None:
        """Note an object of the directory; None for one that does not list uploads."""
        self.modified = max(self.modified, info.modified)
        if file is not None:
            self.found.append(file)
            if file.is_committed:
                self.committed_at = max(self.committed_at, info.modified)
        elif info.size:
            self.unknown.append(join_uri(bucket, info.key))


def magic_files(
    store: ObjectStore, destination: Destination, job_id: str | None = None
) -> dict[str, HadoopFiles]:
    """Return what Hadoop wrote in the magic directories of a destination, or of one job, by job id."""
    prefix = destination.key(MAGIC_PREFIX if job_id is None else f"{MAGIC_PREFIX}{job_id}/job-")
    jobs: dict[str, HadoopFiles] = {}
    for info in store.list_objects(destination.bucket, prefix):
        directory, _, rest = (destination.relative(info.key) or "").partition("/")
        if rest.startswith("job-"):
            found_id = directory.removeprefix(MAGIC_PREFIX)
            if found_id not in jobs:
                jobs[found_id] = HadoopFiles(found_id, destination.below(directory).uri)
            file = _in_magic(destination.bucket, info.key, rest, found_id)
            jobs[found_id].add(destination.bucket, info, file)
    return jobs


def files_of(
    store: ObjectStore, destination: Destination, job_id: str, pendingsets_uri: str | None = None
) -> HadoopFiles:
    """Return the files of one job, by a listing.

    Args:
        pendingsets_uri: URI of a directory in which every file counts as a pendingset, except for hidden
            ones; None for the job's magic directory.

    Raises:
        InvalidDestination: ``pendingsets_uri`` is no URI of S3.
    """
    magic = destination.below(MAGIC_PREFIX + job_id)
    directory = Destination.parse(pendingsets_uri) if pendingsets_uri is not None else magic
    if directory == magic:
        return magic_files(store, destination, job_id).get(job_id) or HadoopFiles(job_id, magic.uri)
    job, bucket = HadoopFiles(job_id, directory.uri), directory.bucket
    numbered = _RUN_IN_PREFIX.search(directory.prefix)
    run = int(numbered[1]) if numbered is not None else 0
    for info in store.list_objects(bucket, directory.prefix):
        rest = directory.relative(info.key) or ""
        above, _, name = rest.rpartition("/")
        if not name or name.startswith((".", "_")):
            continue
        if not above:
            task = name.removesuffix(PENDINGSET_SUFFIX)
            job.add(bucket, info, HadoopFile(bucket, info.key, task, run, is_committed=True))
        elif above == "_temporary" or (rest.startswith("tasks/") and name.endswith(PENDING_SUFFIX)):
            job.add(bucket, info, HadoopFile(bucket, info.key, rest, run, is_committed=False))
    return job


def job_id_of(pendingsets_uri: str) -> str | None:
    """Return the job id in the path of a directory of pendingsets; None if there is none."""
    matched = _JOB_IN_URI.search(pendingsets_uri.rstrip("/") + "/")
    return (matched[1] or matched[2]) if matched is not None else None


def _checked(file: HadoopFile, body: bytes, job_id: str, destination: Destination) -> PendingSet:
    if file.is_committed or not file.key.endswith(PENDING_SUFFIX):
        pendingset = decode(PendingSet, body, file.uri)
    else:
        upload = decode(PendingUpload, body, file.uri)
        pendingset = PendingSet(jobId=upload.jobId, commits=[upload])
    if pendingset.jobId not in (None, "", job_id):
        raise InvalidRecord(f"{file.uri} belongs to job {pendingset.jobId}, not to {job_id}")
    try:
        if file.is_committed:
            check_id(file.task, "task")
        for upload in pendingset.commits:
            destination.check_data_key(upload.bucket, upload.destinationKey)
    except InvalidRecord as error:
        raise InvalidRecord(f"{file.uri}: {error}") from error
    return pendingset


def _in_magic(bucket: str, key: str, rest: str, job_id: str) -> HadoopFile | None:
    """Parse a key of a magic directory; None for other objects, as the empty markers of written files."""
    matched = _IN_MAGIC.fullmatch(rest)
    if matched is None or matched[1] != job_id:
        return None
    run, name = int(matched[2]), matched[3]
    if "/" not in name and name.endswith(PENDINGSET_SUFFIX):
        return HadoopFile(bucket, key, name.removesuffix(PENDINGSET_SUFFIX), run, is_committed=True)
    if name.startswith("tasks/") and name.endswith(PENDING_SUFFIX):
        return HadoopFile(bucket, key, name, run, is_committed=False)
    return None


logger = logging.getLogger(__name__)


class Claim(NamedTuple):
    """The job whose staging has a file of Hadoop that names an upload."""

    job_id: str
    staging: str


def claims_of_hadoop(
    store: ObjectStore, bucket: str, keys: Collection[str], roots: Iterable[Destination] = (), *, threads: int
) -> dict[str, Claim]:
    """Return whose files of Hadoop, or copies that an adoption made, name an upload, by its id. Reads only.

    Searched are ``roots``, and every directory above the uploads' keys, because destinations nest: a job on
    ``flights/dt=1/`` or on the whole bucket also uploads below ``flights/``. Without keys none is searched.
    """
    above, claims = directories_above(bucket, keys), dict[str, Claim]()
    searched = list(dict.fromkeys((*roots, *above))) if above else []
    listed = in_threads(lambda root: _files_of_hadoop(store, root), searched, threads)
    for root, files in zip(searched, listed, strict=True):
        for info, outcome in fetch_listed(store, root.bucket, files, pending_bytes):
            try:
                if isinstance(outcome, InvalidRecord):
                    raise outcome
                uploads = decode_uploads(outcome.body, join_uri(root.bucket, info.key))
            except InvalidRecord:
                logger.warning("%s cannot be read; it claims no upload", info.key, exc_info=True)
                continue
            job_id = _job_in(root, info.key)
            claim = Claim(job_id, root.below(MAGIC_PREFIX + job_id).uri)
            claims |= {upload.uploadId: claim for upload in uploads}
    return claims


def directories_above(bucket: str, keys: Collection[str]) -> list[Destination]:
    """Return every directory above some keys; none without keys."""
    above = {prefix for key in keys for prefix in accumulate(f"{one}/" for one in key.split("/")[:-1])}
    return [Destination(bucket, prefix) for prefix in sorted({"", *above})] if keys else []


def _files_of_hadoop(store: ObjectStore, root: Destination) -> list[ObjectInfo]:
    """List the files in stagings that name uploads; those of this package need not be read: names tell."""
    prefix = root.key(MAGIC_PREFIX)
    return [
        info
        for info in store.list_objects(root.bucket, prefix)
        if info.key.endswith((PENDING_SUFFIX, PENDINGSET_SUFFIX))
        and is_id(_job_in(root, info.key))
        and info.key[len(prefix) :].partition("/")[2].startswith(("job-", "stages/hadoop"))
    ]


def _job_in(root: Destination, key: str) -> str:
    return key[len(root.key(MAGIC_PREFIX)) :].partition("/")[0]

"""Find and read the files of a job of Hadoop's S3A committers.

There are two layouts, the same in Hadoop 3.3.7 to 3.5:

- *magic*: ``<destination>/__magic_job-<job>/job-<job>/NN/<task>.pendingset`` for every committed task, and
  ``…/NN/tasks/<attempt>/…/<file>.pending`` for every file of an attempt that has not committed. ``NN`` is the
  number of the application's run; each run repeats all tasks.
- *staging*: a directory ``…/<job>/staging-uploads/_temporary/N/`` on the cluster's file system, or a copy of
  it on S3. It has a file for every committed task, whose name is the task's id without a suffix. Its own
  ``_temporary/`` has one for every attempt that was about to commit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice, pairwise
from typing import Literal, TypeAlias

from airflow_s3commit.exceptions import InvalidRecord, S3CommitError
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.layout import MAGIC_PREFIX, PENDING_SUFFIX, PENDINGSET_SUFFIX, check_id
from airflow_s3commit.protocol.model.pendingset import (
    PendingSet,
    decode_pending,
    decode_pendingset,
    pending_bytes,
)
from airflow_s3commit.store.base import Fetched, Get, ObjectInfo, ObjectStore
from airflow_s3commit.store.execute import in_batches

#: Files to fetch at once and hold in memory.
_READ_AHEAD = 32

#: Missing task numbers to name in messages.
_MAX_NAMED = 20

_IN_MAGIC = re.compile(r"job-([^/]+)/(\d{1,6})/(.+)", re.DOTALL)
_JOB_IN_URI = re.compile(rf"/(?:{MAGIC_PREFIX}([^/]+)|([^/]+)/staging-uploads)/")
_TASK_NUMBER = re.compile(r"(_[mr])?_(\d{1,9})$")

Role: TypeAlias = Literal["committed", "leftover"]


@dataclass(frozen=True, slots=True)
class HadoopFile:
    """A file that lists pending uploads.

    Attributes:
        bucket: Its bucket.
        key: Its key.
        task: The task's id; for a leftover the file's path in its directory.
        application_attempt: Number of the application's run that wrote it.
        role: ``committed`` for the pendingset of a committed task; ``leftover`` for a file of an attempt that
            did not commit.

    """

    bucket: str
    key: str
    task: str
    application_attempt: int
    role: Role

    @property
    def uri(self) -> str:
        """Its URI."""
        return join_uri(self.bucket, self.key)


@dataclass(slots=True)
class HadoopFiles:
    """The files of a job, from a listing.

    Attributes:
        job_id: The job's UUID.
        uri: URI of their directory.
        found: Every file that lists uploads.
        unknown: URIs of other objects that are not empty. They may be data, which a clean-up would delete.
        modified: Time of the last write in the directory, in seconds since the epoch by the store's clock.
        committed_at: Time of the last write of a committed task's pendingset, likewise.

    """

    job_id: str
    uri: str
    found: list[HadoopFile] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    modified: float = 0.0
    committed_at: float = 0.0

    @property
    def application_attempt(self) -> int:
        """Number of the last run that committed a task. As in Hadoop, only the tasks of this run count."""
        return max((file.application_attempt for file in self.found if file.role == "committed"), default=0)

    @property
    def committed(self) -> list[HadoopFile]:
        """The pendingsets that count, ordered by task."""
        last = self.application_attempt
        chosen = (f for f in self.found if f.role == "committed" and f.application_attempt == last)
        return sorted(chosen, key=lambda file: file.task)

    @property
    def others(self) -> list[HadoopFile]:
        """The files that do not count: leftovers, and pendingsets of earlier runs."""
        last = self.application_attempt
        return [f for f in self.found if f.role != "committed" or f.application_attempt != last]

    @property
    def gaps(self) -> int:
        """The number of missing task numbers: those below the greatest without a pendingset.

        With the magic committer these tasks did not commit. The staging committers write no pendingset for a
        task without output, so there a gap may be harmless.
        """
        return sum(len(gap) for gap in self._gaps())

    @property
    def missing(self) -> tuple[int, ...]:
        """The first twenty missing task numbers; map tasks and reduce tasks both count from 0."""
        return tuple(islice(chain.from_iterable(self._gaps()), _MAX_NAMED))

    def _gaps(self) -> Iterator[range]:
        """Yield the missing task numbers, as one range per gap."""
        numbers: dict[str | None, set[int]] = {}
        for file in self.committed:
            matched = _TASK_NUMBER.search(file.task)
            if matched is not None:
                numbers.setdefault(matched[1], set()).add(int(matched[2]))
        for found in numbers.values():
            for before, after in pairwise([-1, *sorted(found)]):
                if after > before + 1:
                    yield range(before + 1, after)


def magic_files(
    store: ObjectStore, destination: Destination, job_id: str | None = None
) -> dict[str, HadoopFiles]:
    """List the magic directories of a destination, and return those that Hadoop wrote.

    Args:
        store: The store of the destination.
        destination: The destination.
        job_id: List the directory of this job only; None lists all.

    Returns:
        The files of each job, by job id.

    """
    prefix = destination.key(MAGIC_PREFIX if job_id is None else f"{MAGIC_PREFIX}{job_id}/job-")
    jobs: dict[str, HadoopFiles] = {}
    for info in store.list_objects(destination.bucket, prefix):
        relative = destination.relative(info.key) or ""
        directory, _, rest = relative.partition("/")
        if not rest.startswith("job-"):
            continue
        found_id = directory.removeprefix(MAGIC_PREFIX)
        job = jobs.get(found_id) or HadoopFiles(found_id, destination.below(directory).uri)
        jobs[found_id] = job
        _add(job, destination.bucket, info, _in_magic(destination.bucket, info.key, rest, found_id))
    return jobs


def directory_files(store: ObjectStore, directory: Destination, job_id: str) -> HadoopFiles:
    """List a directory of pendingsets. Every file in it counts as one, except for hidden files.

    Args:
        store: The store of the directory.
        directory: The directory; if its name is a number, that is the number of the application's run.
        job_id: The job's UUID.

    """
    job = HadoopFiles(job_id, directory.uri)
    number = directory.prefix.rstrip("/").rpartition("/")[2]
    attempt = int(number) if number.isascii() and number.isdigit() and len(number) < len("1000000") else 0
    for info in store.list_objects(directory.bucket, directory.prefix):
        rest = directory.relative(info.key)
        file = _in_directory(directory.bucket, info.key, rest or "/", attempt)
        if file is not None:
            _add(job, directory.bucket, info, file)
    return job


def job_id_of(pendingsets_uri: str) -> str | None:
    """Return the job id in the path of a directory of pendingsets; None if there is none."""
    matched = _JOB_IN_URI.search(pendingsets_uri.rstrip("/") + "/")
    return (matched[1] or matched[2]) if matched is not None else None


def read_files(
    store: ObjectStore, files: Iterable[HadoopFile], job_id: str, destination: Destination
) -> Iterator[tuple[HadoopFile, PendingSet | InvalidRecord]]:
    """Yield every file with its pendingset, or with the error that makes it invalid, in order.

    The files are fetched ahead. A ``.pending`` file yields a pendingset of one upload. Each file must have a
    known format and version, the job's id, a valid task id if it is committed, and no key outside the
    destination. An upload without parts is valid, as it is for Hadoop.

    Args:
        store: The store of the files.
        files: The files.
        job_id: The job's UUID.
        destination: The job's destination.

    Raises:
        S3CommitError: A file could not be fetched.

    """
    for batch in in_batches(files, _READ_AHEAD):
        calls = [
            (number, Get(file.bucket, file.key, pending_bytes(file.key))) for number, file in enumerate(batch)
        ]
        outcomes = dict(store.perform(calls))
        for number, file in enumerate(batch):
            outcome = outcomes.pop(number)
            if isinstance(outcome, InvalidRecord):
                yield file, outcome
                continue
            if isinstance(outcome, S3CommitError):
                raise outcome
            assert isinstance(outcome, Fetched)
            try:
                yield file, _checked(file, outcome.body, job_id, destination)
            except InvalidRecord as error:
                yield file, error


def _checked(file: HadoopFile, body: bytes, job_id: str, destination: Destination) -> PendingSet:
    pendingset = _decoded(file, body)
    if pendingset.jobId not in (None, "", job_id):
        raise InvalidRecord(f"{file.uri} belongs to job {pendingset.jobId}, not to {job_id}")
    try:
        if file.role == "committed":
            check_id(file.task, "task")
        for upload in pendingset.commits:
            destination.check_data_key(upload.bucket, upload.destinationKey)
    except InvalidRecord as error:
        raise InvalidRecord(f"{file.uri}: {error}") from error
    return pendingset


def _decoded(file: HadoopFile, body: bytes) -> PendingSet:
    if file.role == "committed" or not file.key.endswith(PENDING_SUFFIX):
        return decode_pendingset(body, file.uri)
    upload = decode_pending(body, file.uri)
    return PendingSet(jobId=upload.jobId, commits=[upload])


def _add(job: HadoopFiles, bucket: str, info: ObjectInfo, file: HadoopFile | None) -> None:
    if file is not None:
        job.found.append(file)
        if file.role == "committed":
            job.committed_at = max(job.committed_at, info.modified)
    elif info.size:
        job.unknown.append(join_uri(bucket, info.key))
    job.modified = max(job.modified, info.modified)


def _in_magic(bucket: str, key: str, rest: str, job_id: str) -> HadoopFile | None:
    """Parse a key of a magic directory; None for other objects, as the empty markers of written files."""
    matched = _IN_MAGIC.fullmatch(rest)
    if matched is None or matched[1] != job_id:
        return None
    attempt, name = int(matched[2]), matched[3]
    if "/" not in name and name.endswith(PENDINGSET_SUFFIX):
        return HadoopFile(bucket, key, name.removesuffix(PENDINGSET_SUFFIX), attempt, "committed")
    if name.startswith("tasks/") and name.endswith(PENDING_SUFFIX):
        return HadoopFile(bucket, key, name, attempt, "leftover")
    return None


def _in_directory(bucket: str, key: str, rest: str, attempt: int) -> HadoopFile | None:
    """Parse a key of a directory of pendingsets; None for files that Hadoop ignores."""
    above, _, name = rest.rpartition("/")
    if not name or name.startswith((".", "_")):
        return None
    if not above:
        return HadoopFile(bucket, key, name.removesuffix(PENDINGSET_SUFFIX), attempt, "committed")
    if above == "_temporary" or (rest.startswith("tasks/") and name.endswith(PENDING_SUFFIX)):
        return HadoopFile(bucket, key, rest, attempt, "leftover")
    return None

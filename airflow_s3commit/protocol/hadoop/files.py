"""What a dead job of Hadoop's S3A committers left behind: finding its files, and reading them.

Two layouts, both as of Hadoop 3.3.7 to 3.5:

- *magic*: ``<destination>/__magic_job-<job>/job-<job>/NN/<task>.pendingset`` for every committed task, and
  ``…/NN/tasks/<attempt>/…/<file>.pending`` for every file of an attempt that has not committed. ``NN`` counts
  the runs of the application; each run does all tasks again.
- *staging*: a directory ``…/<job>/staging-uploads/_temporary/N/`` on the cluster's file system, or copied
  from there to S3, with a file for every committed task, named by its id and nothing else; and below its
  own ``_temporary/`` one for every attempt that was about to commit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice, pairwise
from typing import Literal, TypeAlias

from airflow_s3commit.exceptions import InvalidRecord, S3CommitError
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.hadoop_pendingset import decode_pending, decode_pendingset, pending_bytes
from airflow_s3commit.protocol.model.layout import MAGIC_PREFIX, PENDING_SUFFIX, PENDINGSET_SUFFIX, check_id
from airflow_s3commit.protocol.model.pendingset import PendingSet
from airflow_s3commit.store.base import Fetched, Get, ObjectInfo, ObjectStore
from airflow_s3commit.store.execute import in_batches

#: Files that are fetched at once and held while the ones before them are used.
_AHEAD = 32

_IN_MAGIC = re.compile(r"job-([^/]+)/(\d{1,6})/(.+)", re.DOTALL)
_JOB_IN_URI = re.compile(rf"/(?:{MAGIC_PREFIX}([^/]+)|([^/]+)/staging-uploads)/")
#: Missing task numbers that are named.
_MAX_NAMED = 20

_TASK_NUMBER = re.compile(r"(_[mr])?_(\d{1,9})$")

Role: TypeAlias = Literal["committed", "leftover"]


@dataclass(frozen=True, slots=True)
class HadoopFile:
    """One file that names pending uploads.

    Attributes:
        bucket: Its bucket.
        key: Its key.
        task: The task's id, or for leftovers the name of the file.
        application_attempt: The run of the application that wrote it.
        role: ``committed`` for the pendingset of a task that committed; ``leftover`` for what was not.

    """

    bucket: str
    key: str
    task: str
    application_attempt: int
    role: Role

    @property
    def uri(self) -> str:
        """Where it is."""
        return join_uri(self.bucket, self.key)


@dataclass(slots=True)
class HadoopFiles:
    """The files of one job, as a listing shows them.

    Attributes:
        job_id: The job's UUID.
        uri: The directory that holds them.
        found: Every file that names uploads.
        unknown: URIs of objects with content that are none of Hadoop's; cleaning up would destroy them.
        modified: When the last of them was written, in seconds by the store's clock.
        committed_at: When the last pendingset of a task was.

    """

    job_id: str
    uri: str
    found: list[HadoopFile] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    modified: float = 0.0
    committed_at: float = 0.0

    @property
    def application_attempt(self) -> int:
        """The last run of the application that committed a task; only its tasks count, as for Hadoop."""
        return max((file.application_attempt for file in self.found if file.role == "committed"), default=0)

    @property
    def committed(self) -> list[HadoopFile]:
        """The pendingsets that count, by task."""
        last = self.application_attempt
        chosen = (f for f in self.found if f.role == "committed" and f.application_attempt == last)
        return sorted(chosen, key=lambda file: file.task)

    @property
    def others(self) -> list[HadoopFile]:
        """What does not count: leftovers, and pendingsets of earlier runs of the application."""
        last = self.application_attempt
        return [f for f in self.found if f.role != "committed" or f.application_attempt != last]

    @property
    def gaps(self) -> int:
        """How many task numbers below the greatest have no pendingset: tasks that did not commit.

        The staging committers commit nothing for a task without output, so there a gap may be harmless.
        """
        return sum(len(gap) for gap in self._gaps())

    @property
    def missing(self) -> tuple[int, ...]:
        """The first twenty of these numbers; those of map and of reduce tasks each begin with 0."""
        return tuple(islice(chain.from_iterable(self._gaps()), _MAX_NAMED))

    def _gaps(self) -> Iterator[range]:
        """Yield the task numbers that are missing, a range for each gap."""
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
    """List the magic directories of a destination, or one job's; return those that Hadoop wrote, by job."""
    prefix = destination.key(MAGIC_PREFIX if job_id is None else f"{MAGIC_PREFIX}{job_id}/job-")
    jobs: dict[str, HadoopFiles] = {}
    for info in store.list_objects(destination.bucket, prefix):
        relative = destination.relative(info.key) or ""
        directory, _, rest = relative.partition("/")
        if not rest.startswith("job-"):
            continue
        named = directory.removeprefix(MAGIC_PREFIX)
        job = jobs.get(named) or HadoopFiles(named, destination.below(directory).uri)
        jobs[named] = job
        _sort_in(job, destination.bucket, info, _in_magic(destination.bucket, info.key, rest, named))
    return jobs


def directory_files(store: ObjectStore, directory: Destination, job_id: str) -> HadoopFiles:
    """List a directory of pendingsets: every file in it that is not hidden is one, whatever it is called."""
    job = HadoopFiles(job_id, directory.uri)
    number = directory.prefix.rstrip("/").rpartition("/")[2]
    attempt = int(number) if number.isascii() and number.isdigit() and len(number) < len("1000000") else 0
    for info in store.list_objects(directory.bucket, directory.prefix):
        rest = directory.relative(info.key)
        file = _in_directory(directory.bucket, info.key, rest or "/", attempt)
        if file is not None:
            _sort_in(job, directory.bucket, info, file)
    return job


def job_id_of(pendingsets_uri: str) -> str | None:
    """Return the job id that a directory of pendingsets has in its path, or None."""
    matched = _JOB_IN_URI.search(pendingsets_uri.rstrip("/") + "/")
    return (matched[1] or matched[2]) if matched is not None else None


def read_files(
    store: ObjectStore, files: Iterable[HadoopFile], job_id: str, destination: Destination
) -> Iterator[tuple[HadoopFile, PendingSet | InvalidRecord]]:
    """Yield every file with the uploads it names, or with what is wrong with it; fetched ahead, in order.

    A ``.pending`` file comes as a set of one. Checked are the format and its version, the job, that a task id
    can be kept, and that every upload's key lies inside the destination. An upload without parts passes, as
    it does with Hadoop.

    Raises:
        S3CommitError: A file could not be fetched.

    """
    for batch in in_batches(files, _AHEAD):
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
        raise InvalidRecord(f"{file.uri} is of job {pendingset.jobId}, not of {job_id}")
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


def _sort_in(job: HadoopFiles, bucket: str, info: ObjectInfo, file: HadoopFile | None) -> None:
    if file is not None:
        job.found.append(file)
        if file.role == "committed":
            job.committed_at = max(job.committed_at, info.modified)
    elif info.size:
        job.unknown.append(join_uri(bucket, info.key))
    job.modified = max(job.modified, info.modified)


def _in_magic(bucket: str, key: str, rest: str, job_id: str) -> HadoopFile | None:
    """Recognise a file of a magic directory; None for the empty markers that stand in for written files."""
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
    """Recognise a file of a directory of pendingsets; None for those that Hadoop would not look at."""
    above, _, name = rest.rpartition("/")
    if not name or name.startswith((".", "_")):
        return None
    if not above:
        return HadoopFile(bucket, key, name.removesuffix(PENDINGSET_SUFFIX), attempt, "committed")
    if above == "_temporary" or (rest.startswith("tasks/") and name.endswith(PENDING_SUFFIX)):
        return HadoopFile(bucket, key, rest, attempt, "leftover")
    return None

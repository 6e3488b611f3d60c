"""Staging folders on a store, and the pending uploads that each of them claims.

A folder claims an upload if the file name contains the job id, or if one of its records names the
upload id. A sweep does not abort a claimed upload.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol.hadoop.status import HadoopJob, find_hadoop_job
from airflow_s3commit.protocol.metadata import records
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.log import Log
from airflow_s3commit.protocol.metadata.records import Stored, fetch_listed
from airflow_s3commit.protocol.metadata.state import read_state
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.job import BEFORE_COMMIT, JobRecord, State, StateRecord
from airflow_s3commit.protocol.model.layout import (
    MAGIC_PREFIX,
    PENDING_SUFFIX,
    PENDINGSET_SUFFIX,
    Layout,
    check_id,
    is_canonical,
    owner_of,
)
from airflow_s3commit.protocol.model.ownership import check_place
from airflow_s3commit.protocol.model.pendingset import decode_uploads, pending_bytes
from airflow_s3commit.store.base import Fetched, ObjectStore, Upload
from airflow_s3commit.store.execute import in_threads

logger = logging.getLogger(__name__)

#: The folders that claim an upload, by upload id.
Claims = dict[str, list["StagingFolder"]]


@dataclass(slots=True, eq=False)
class StagingFolder:
    """The staging folder of one job, from a listing.

    Attributes:
        staging: Directory of the folder.
        job_id: Job id in the folder's name.
        objects: Number of objects in the folder.
        newest: ``Last-Modified`` of the newest object, in seconds since the epoch; 0 without objects.
        names: Which of ``job.json``, ``state.json`` and ``sealed.json`` exist.
        recorded: Whether the folder has records that name uploads.

    """

    staging: Destination
    job_id: str
    objects: int = 0
    newest: float = 0.0
    names: set[str] = field(default_factory=set)
    recorded: bool = False

    @property
    def root(self) -> Destination:
        """The directory above the folder: the job's destination, or its option ``staging``."""
        prefix = self.staging.prefix.removesuffix(f"{MAGIC_PREFIX}{self.job_id}/")
        return Destination(self.staging.bucket, prefix)

    @property
    def is_older(self) -> bool:
        """Whether the job id is of Hadoop, and may be part of other file names."""
        return not is_canonical(self.job_id)

    def layout(self, destination: Destination) -> Layout:
        """Return the keys of the folder's job, on the assumption that this is its destination."""
        return Layout(destination, self.staging, self.job_id)


@dataclass(frozen=True, slots=True)
class JobFacts:
    """The record and state of a job, as far as they can be read.

    Attributes:
        job: The job record; None if missing or damaged.
        state: The state record; None if missing or damaged.
        problem: Why a record cannot be read, or that it was copied here; None if there is no problem.
        elsewhere: URI of the job's destination, if it is another one than expected.
        ended: State that the job's last entry implies, if its state says that it is committing.

    """

    job: JobRecord | None = None
    state: Stored[StateRecord] | None = None
    problem: str | None = None
    elsewhere: str | None = None
    ended: State | None = None

    @property
    def reached(self) -> State | None:
        """How far the job is, by its state and the log; None without a state."""
        return self.ended or (self.state.record.state if self.state is not None else None)


def folders_below(store: ObjectStore, root: Destination) -> list[StagingFolder]:
    """Return the staging folders in a directory, in order of their job ids."""
    folders: dict[str, StagingFolder] = {}
    prefix = root.key(MAGIC_PREFIX)
    for info in store.list_objects(root.bucket, prefix):
        job_id, slash, name = info.key[len(prefix) :].partition("/")
        if not slash or not _is_id(job_id):
            continue
        folder = folders.get(job_id)
        if folder is None:
            folder = folders[job_id] = StagingFolder(root.below(MAGIC_PREFIX + job_id), job_id)
        _count_object(folder, name, info.modified)
    return [folders[job_id] for job_id in sorted(folders)]


def folder_of(store: ObjectStore, layout: Layout) -> StagingFolder:
    """Return one job's staging folder; it has no objects if it does not exist."""
    folder = StagingFolder(layout.staging, layout.job_id)
    for info in store.list_objects(layout.staging.bucket, layout.staging.prefix):
        _count_object(folder, info.key[len(layout.staging.prefix) :], info.modified)
    return folder


def folders_around(
    store: ObjectStore, bucket: str, keys: Iterable[str], *, skip: Destination, threads: int
) -> list[StagingFolder]:
    """Return the staging folders in every directory above the keys.

    Destinations nest: a job on ``flights/dt=1/`` or on the whole bucket also uploads below ``flights/``. Its
    staging is in one of the directories above its keys, unless its option ``staging`` names another.

    Args:
        store: The store.
        bucket: The bucket of the keys.
        keys: Object keys of uploads.
        skip: A directory to leave out, because the caller lists it.
        threads: Number of directories to list at once; 0 lists in the caller's thread.

    """
    directories = {""}
    for key in keys:
        elements = key.split("/")[:-1]
        directories.update("/".join(elements[: n + 1]) + "/" for n in range(len(elements)))
    if skip.bucket == bucket:
        directories.discard(skip.prefix)
    roots = [Destination(bucket, prefix) for prefix in sorted(directories)]
    found = in_threads(lambda root: folders_below(store, root), roots, threads)
    return [folder for folders in found for folder in folders]


def job_facts(context: JobContext) -> JobFacts:
    """Return a job's record and state. A damaged or copied record does not raise: it is the ``problem``."""
    job, state, problem = None, None, None
    ended: State | None = None
    try:
        stored = records.find(context.store, context.staging_bucket, context.layout.job, JobRecord)
        if stored is not None:
            job = stored.record
            is_written_here = (job.job_id, job.staging) == (context.job_id, context.layout.staging.uri)
            if is_written_here and job.destination != context.layout.destination.uri:
                return JobFacts(elsewhere=job.destination)
            check_place(job, context.layout, context.staging_uri(context.layout.job))
    except InvalidRecord as error:
        job, problem = None, str(error)
    try:
        state = read_state(context)
        if job is not None and state is not None and state.record.state == "committing":
            entry = Log(replace(context, record=job)).ending()
            if entry is not None and entry.kind == "commit":
                ended = "committed"
    except InvalidRecord as error:
        problem = problem or str(error)
    return JobFacts(job, state, problem, ended=ended)


def left_by_hadoop(context: JobContext, facts: JobFacts, *, most: int | None = None) -> HadoopJob | None:
    """Return the files of Hadoop's committers for a job; None if there are none, or the job is ending.

    Args:
        context: The job.
        facts: Its record and state.
        most: Maximum number of uploads to check one by one; None for all.

    """
    if facts.state is not None and facts.state.record.state not in BEFORE_COMMIT:
        return None
    source = facts.job.context.get("adopted_from") if facts.job is not None else None
    place = context.layout.destination
    return find_hadoop_job(context.store, place, context.job_id, adopted_from=source, most=most)


def claims_by_key(folders: Sequence[StagingFolder], uploads: Iterable[Upload]) -> Claims:
    """Return the folders that claim each upload by the job id in its file name."""
    claims: Claims = {}
    for upload in uploads:
        owner, name = owner_of(upload.key), upload.key.rpartition("/")[2]
        claimants = [f for f in folders if f.job_id == owner or (f.is_older and f.job_id in name)]
        if claimants:
            claims[upload.upload_id] = claimants
    return claims


def claims_by_record(
    store: ObjectStore, folders: Iterable[StagingFolder], uploads: Iterable[Upload]
) -> Claims:
    """Return the folders that claim each upload by a record. Reads all records."""
    wanted = {upload.upload_id for upload in uploads}
    claims: Claims = {}
    if not wanted:
        return claims
    for folder in folders:
        for upload_id in _recorded_ids(store, folder) if folder.recorded else ():
            if upload_id in wanted and folder not in claims.setdefault(upload_id, []):
                claims[upload_id].append(folder)
    return claims


def _count_object(folder: StagingFolder, name: str, modified: float) -> None:
    folder.objects += 1
    folder.newest = max(folder.newest, modified)
    if name in ("job.json", "state.json", "sealed.json"):
        folder.names.add(name)
    elif name.endswith((PENDING_SUFFIX, PENDINGSET_SUFFIX)):
        folder.recorded = True


def _is_id(job_id: str) -> bool:
    try:
        check_id(job_id)
    except InvalidRecord:
        return False
    return True


def _recorded_ids(store: ObjectStore, folder: StagingFolder) -> Iterator[str]:
    bucket = folder.staging.bucket
    named = (
        info
        for info in store.list_objects(bucket, folder.staging.prefix)
        if info.key.endswith((PENDING_SUFFIX, PENDINGSET_SUFFIX))
    )
    for info, outcome in fetch_listed(store, bucket, named, pending_bytes):
        yield from _ids_in(outcome, join_uri(bucket, info.key))


def _ids_in(fetched: Fetched | InvalidRecord, where: str) -> list[str]:
    try:
        if isinstance(fetched, InvalidRecord):
            raise fetched
        return [upload.uploadId for upload in decode_uploads(fetched.body, where)]
    except InvalidRecord:
        logger.warning(
            "%s cannot be read; the uploads in it are judged by key and age alone", where, exc_info=True
        )
        return []

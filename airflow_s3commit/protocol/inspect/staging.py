"""Staging folders on a store, and the jobs that claim pending uploads.

A job claims an upload if the file name has its id, or if a record in its staging folder names the upload.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol.metadata.records import fetch_listed
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.layout import (
    MAGIC_PREFIX,
    PENDING_SUFFIX,
    PENDINGSET_SUFFIX,
    Layout,
    check_id,
    is_canonical,
    owner_of,
)
from airflow_s3commit.protocol.model.pendingset import decode_uploads, pending_bytes
from airflow_s3commit.store.base import Fetched, ObjectStore, Upload
from airflow_s3commit.store.execute import in_threads

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class StagingFolder:
    """The staging folder of one job, from a listing.

    Attributes:
        staging: Directory of the folder.
        job_id: Job id in the folder's name.
        objects: Number of objects in the folder.
        newest: ``Last-Modified`` of the newest object, in seconds since the epoch; 0 without objects.
        recorded: Whether the folder has records that name uploads.

    """

    staging: Destination
    job_id: str
    objects: int = 0
    newest: float = 0.0
    recorded: bool = False

    @property
    def root(self) -> Destination:
        """The directory above the folder: the job's destination, or its option ``staging``."""
        prefix = self.staging.prefix.removesuffix(f"{MAGIC_PREFIX}{self.job_id}/")
        return Destination(self.staging.bucket, prefix)

    def layout(self, destination: Destination) -> Layout:
        """Return the keys of the folder's job, on the assumption that this is its destination."""
        return Layout(destination, self.staging, self.job_id)

    def add(self, name: str, modified: float) -> None:
        """Count an object in the folder."""
        self.objects += 1
        self.newest = max(self.newest, modified)
        self.recorded = self.recorded or name.endswith((PENDING_SUFFIX, PENDINGSET_SUFFIX))


def folders_below(store: ObjectStore, root: Destination) -> list[StagingFolder]:
    """Return the staging folders in a directory, in order of their job ids."""
    folders: dict[str, StagingFolder] = {}
    prefix = root.key(MAGIC_PREFIX)
    for info in store.list_objects(root.bucket, prefix):
        job_id, slash, name = info.key[len(prefix) :].partition("/")
        if not slash or not is_id(job_id):
            continue
        folder = folders.get(job_id)
        if folder is None:
            folder = folders[job_id] = StagingFolder(root.below(MAGIC_PREFIX + job_id), job_id)
        folder.add(name, info.modified)
    return [folders[job_id] for job_id in sorted(folders)]


def folder_of(store: ObjectStore, staging: Destination, job_id: str) -> StagingFolder:
    """Return one job's staging folder; it has no objects if it does not exist."""
    folder = StagingFolder(staging, job_id)
    for info in store.list_objects(staging.bucket, staging.prefix):
        folder.add(info.key, info.modified)
    return folder


def claimants(
    store: ObjectStore,
    destination: Destination,
    uploads: Sequence[Upload],
    staging_root: Destination | None = None,
    *,
    threads: int = 16,
) -> dict[str, str]:
    """Return the job that claims each pending upload, by upload id; uploads that no job claims are left out.

    Names of this package's files tell. For others, such as Hadoop's, the staging folders are searched: those
    of the destination, those below ``staging_root``, and those in every directory above the uploads, because
    destinations nest: a job on ``flights/dt=1/`` or on the whole bucket also uploads below ``flights/``.

    Args:
        store: The store of the destination.
        destination: The destination.
        uploads: Its pending uploads.
        staging_root: Another directory to search.
        threads: Number of directories to list at once; 0 lists in the caller's thread.

    Raises:
        S3CommitError: A request failed.

    """
    claimed = {upload.upload_id: owner for upload in uploads if (owner := owner_of(upload.key)) is not None}
    unnamed = [upload for upload in uploads if upload.upload_id not in claimed]
    if not unnamed:
        return claimed
    above = directories_above(destination.bucket, (upload.key for upload in unnamed))
    roots = dict.fromkeys((destination, staging_root or destination, *above))
    found = in_threads(lambda root: folders_below(store, root), roots, threads)
    folders = [folder for folders in found for folder in folders]
    # Ids of Hadoop, which are no UUIDs, may be anywhere in a name.
    older = [folder.job_id for folder in folders if not is_canonical(folder.job_id)]
    for upload in unnamed:
        name = upload.key.rpartition("/")[2]
        if owner := next((job_id for job_id in older if job_id in name), None):
            claimed[upload.upload_id] = owner
    wanted = {upload.upload_id for upload in unnamed} - claimed.keys()
    for folder in folders if wanted else ():
        claimed |= {one: folder.job_id for one in uploads_of_hadoop(store, folder) if one in wanted}
    return claimed


def directories_above(bucket: str, keys: Iterable[str]) -> list[Destination]:
    """Return every directory above some keys."""
    found = {""}
    for key in keys:
        found.update(accumulate(f"{element}/" for element in key.split("/")[:-1]))
    return [Destination(bucket, prefix) for prefix in sorted(found)]


def is_id(job_id: str) -> bool:
    """Return whether this can be a job's id, so that keys can be made of it."""
    try:
        check_id(job_id)
    except InvalidRecord:
        return False
    return True


def uploads_of_hadoop(store: ObjectStore, folder: StagingFolder) -> Iterator[str]:
    """Yield the ids of the uploads that files of Hadoop in a folder name, or copies that an adoption made.

    Files of this package need not be read: the names of their uploads have the job's id.
    """
    bucket, prefix = folder.staging.bucket, folder.staging.prefix
    named = (
        info
        for info in (store.list_objects(bucket, prefix) if folder.recorded else ())
        if info.key[len(prefix) :].startswith(("job-", "stages/hadoop"))
        and info.key.endswith((PENDING_SUFFIX, PENDINGSET_SUFFIX))
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

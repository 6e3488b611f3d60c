"""Which manifest a reader goes by."""

from __future__ import annotations

from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING

from airflow_s3commit.exceptions import ForeignRecord, NoSuchKey
from airflow_s3commit.protocol.destination import join_uri
from airflow_s3commit.protocol.layout import manifests_prefix
from airflow_s3commit.protocol.manifest import named_job, read_manifest, read_success

if TYPE_CHECKING:
    from airflow_s3commit.protocol.destination import Destination
    from airflow_s3commit.protocol.records import ManifestRecord
    from airflow_s3commit.store.base import ObjectStore

__all__ = ["find_generation"]

_SUMMARY = ".json"


def find_generation(store: ObjectStore, destination: Destination, job_id: str | None) -> ManifestRecord:
    """Return the manifest of a job, or of the last job that committed.

    The last job is the one that ``_SUCCESS`` names. While a commit is under way there is no ``_SUCCESS``:
    then it is the one with the newest manifest, which is the old generation's until the new one is complete.

    Raises:
        NoSuchKey: The job has not committed to this destination, or none has.
        InvalidRecord: ``_SUCCESS`` was written by another committer, or a record is damaged.

    """
    if job_id is not None:
        return read_manifest(store, destination, job_id)
    try:
        success = read_success(store, destination)
    except NoSuchKey:
        return _newest(store, destination)
    # Not the newest one where this is gone: that would be an older generation.
    return read_manifest(store, destination, named_job(success, destination))


def _newest(store: ObjectStore, destination: Destination) -> ManifestRecord:
    """Return the manifest that was written last by the store's clock, and by the committers' in a tie."""
    prefix = manifests_prefix(destination)
    found = [
        info
        for info in store.list_objects(destination.bucket, prefix, recursive=False)
        if info.key.endswith(_SUMMARY)
    ]
    if not found:
        raise NoSuchKey(
            f"no job has committed to {destination.uri}: there is no _SUCCESS, and no manifest below"
            f" {join_uri(destination.bucket, prefix)}; see what is under way with: s3commit jobs"
            f" {destination.uri}"
        )
    found.sort(key=lambda info: info.modified, reverse=True)
    for _, tied in groupby(found, key=lambda info: info.modified):
        records = []
        for info in tied:
            # A copied dataset brings manifests along; they are no history of this place.
            with suppress(ForeignRecord):
                job_id = info.key.removeprefix(prefix).removesuffix(_SUMMARY)
                records.append(read_manifest(store, destination, job_id))
        if records:
            return max(records, key=lambda record: (record.committed, record.job_id))
    raise NoSuchKey(
        f"no job has committed to {destination.uri}:"
        f" the manifests below {join_uri(destination.bucket, prefix)}"
        " were copied from another place, whose history they are; read the files by listing, or commit to it"
    )

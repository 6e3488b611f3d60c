"""Read what jobs have committed: the manifest of a job, or of the last one, its files, and ``_SUCCESS``."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_s3commit.exceptions import NoSuchKey
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.layout import Layout
from airflow_s3commit.protocol.model.manifest import FileEntry, Manifest
from airflow_s3commit.protocol.steps.files import files_of
from airflow_s3commit.protocol.steps.fold import read_table
from airflow_s3commit.protocol.steps.log import read_entry
from airflow_s3commit.protocol.steps.marker import read_success
from airflow_s3commit.protocol.steps.state import look_up_end
from airflow_s3commit.store.base import ObjectStore

__all__ = [
    "find_manifest",
    "latest_manifest",
    "manifest_files",
    "manifest_of",
    "read_manifest",
    "read_success",
]


def read_manifest(store: ObjectStore, destination: str | Destination, job_id: str) -> Manifest:
    """Return the manifest of one job.

    Args:
        store: The store of the destination.
        destination: URI of the dataset's directory, or a `Destination`.
        job_id: The job.

    Raises:
        NoSuchKey: The job has not committed to this destination.
        InvalidRecord: A record is damaged, or was copied here with its dataset.

    """
    place = Destination.of(destination)
    found = find_manifest(JobContext(store, Layout.of(place, job_id)))
    if found is None:
        raise NoSuchKey(f"job {job_id} has not committed to {place.uri}; see: s3commit log {place.uri}")
    return found


def find_manifest(context: JobContext) -> Manifest | None:
    """Return the manifest of a job; None if it has not committed. Raises as `read_manifest` does."""
    end = look_up_end(context, None)
    return Manifest.of(end) if end is not None and end.kind == "commit" else None


def manifest_of(store: ObjectStore, destination: Destination, job_id: str | None) -> Manifest:
    """Return the manifest of a job, by default of the last one that committed.

    Raises as `read_manifest` and `latest_manifest` do.
    """
    if job_id is None:
        return latest_manifest(store, destination)
    return read_manifest(store, destination, job_id)


def latest_manifest(store: ObjectStore, destination: str | Destination) -> Manifest:
    """Return the manifest of the last commit. Works while another commit is running.

    Args:
        store: The store of the destination.
        destination: URI of the dataset's directory, or a `Destination`.

    Raises:
        NoSuchKey: Nothing has been committed to this destination.
        InvalidRecord: An entry of the log is damaged, or was copied here with the dataset.

    """
    home = Destination.of(destination)
    generation = read_table(store, home).generation
    entry = read_entry(store, home, generation).entry if generation else None
    if entry is None or entry.job_id is None:
        raise NoSuchKey(
            f"no job has committed to {home.uri}; see what is under way with: s3commit jobs {home.uri}"
        )
    return Manifest.of(entry)


def manifest_files(store: ObjectStore, manifest: Manifest) -> Iterator[FileEntry]:
    """Yield every file that a job committed, after checking the list against the manifest's digest.

    A long list is spooled to disk, so that memory is constant.

    Args:
        store: The store of the destination.
        manifest: The job's manifest.

    Raises:
        InvalidRecord: The list is gone, was changed, or one of its files is outside of the destination.

    """
    return files_of(store, Destination.parse(manifest.destination), manifest.source)

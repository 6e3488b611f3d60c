"""Read what jobs have committed: the manifest of one job, of the last or of all, and its files."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from airflow_s3commit.exceptions import HistoryRewound, NoSuchKey
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.layout import Layout
from airflow_s3commit.protocol.model.manifest import FileEntry, Manifest
from airflow_s3commit.protocol.steps.files import files_of
from airflow_s3commit.protocol.steps.finish import read_success
from airflow_s3commit.protocol.steps.fold import AT_ONCE, entries_after, newest_entries, read_table
from airflow_s3commit.protocol.steps.log import read_entry
from airflow_s3commit.protocol.steps.setup import look_up_end
from airflow_s3commit.store.base import ObjectStore

__all__ = [
    "find_manifest",
    "history",
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


def history(
    store: ObjectStore, destination: str | Destination, *, limit: int | None = None
) -> Iterator[Manifest]:
    """Yield the manifest of each commit to a destination, newest first; none without a log.

    A manifest's ``generation`` is the number of its commit in the log. Numbers in between are of jobs that
    were aborted, and of releases. Data that was there before the first job is a commit too. The log is read
    while the caller iterates: stopping early saves requests. May be repeated.

    Args:
        store: The store of the destination.
        destination: URI of the dataset's directory, or a `Destination`.
        limit: How many commits to return; None for all.

    Raises:
        InvalidRecord: An entry of the log is damaged or missing.
    """
    at_once = AT_ONCE if limit is None else max(1, min(limit, AT_ONCE))
    entries = newest_entries(store, Destination.of(destination), at_once=at_once)
    commits = (Manifest.of(read.entry) for read in entries if read.entry.commit is not None)
    # The first entry of a log is data that is older, or nothing.
    return islice((one for one in commits if one.is_of_job or one.counts.files), limit)


def refuse_rewound(store: ObjectStore, home: Destination, since: int, last: int) -> None:
    """Raise if a reader at a generation cannot go on to a later one by the files that were added since.

    After a rollback no rule tells by the generation alone which files a reader has seen: of two readers at
    one generation, one may have read a file that came back, and the other not.

    Args:
        since: The newest generation that the reader has read; 0 for none.
        last: Number of the entry to go on to; 0 for an empty log.

    Raises:
        HistoryRewound: A rollback came in between, or the log has no such entry. Read the whole table, and go
            on from its generation.
        InvalidRecord: An entry is damaged.
    """
    if not since:
        return
    try:
        begin = read_entry(store, home, since).position
    except NoSuchKey as error:
        raise HistoryRewound(
            f"{home.uri} has no generation {since}: its log was begun anew since. Read the whole table, and"
            " go on from its generation"
        ) from error
    for read in entries_after(store, home, begin, last):
        commit = read.entry.commit
        if commit is not None and commit.rolled_back_to:
            raise HistoryRewound(
                f"{home.uri} was rolled back to {commit.rolled_back_to} by generation {read.entry.number},"
                f" after generation {since}. Read the whole table, and go on from its generation"
            )

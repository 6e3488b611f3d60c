"""The commits of a table, newest first or as they come, and the progress of a job's commit."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from airflow_s3commit._clock import Clock
from airflow_s3commit.exceptions import Unavailable
from airflow_s3commit.protocol.inspect.jobs import JobSummary
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.entry import Entry
from airflow_s3commit.protocol.model.job import Position
from airflow_s3commit.protocol.model.layout import owner_of
from airflow_s3commit.protocol.model.manifest import Manifest
from airflow_s3commit.protocol.steps.fold import entries_after
from airflow_s3commit.protocol.steps.log import read_entry
from airflow_s3commit.protocol.steps.newest import AT_ONCE, newest_entries
from airflow_s3commit.store.base import ObjectStore

logger = logging.getLogger(__name__)


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
    return islice((Manifest.of(read.entry) for read in entries if _is_told(read.entry)), limit)


def follow(
    store: ObjectStore,
    destination: Destination,
    after: int,
    *,
    interval: float,
    clock: Clock,
    draw: Callable[[float, float], float] = random.uniform,
) -> Iterator[Manifest]:
    """Yield the manifest of each commit after a generation, 0 for all, for ever; waits for new ones.

    A look for new ones takes one request, ``interval`` seconds after the last one, give or take a fifth, so
    that many do not look at once. A store that is unavailable is asked again at the next look.

    Raises:
        NoSuchKey: There is no such generation.
        InvalidRecord: An entry of the log is damaged.
        S3CommitError: A request was refused.

    """
    position = read_entry(store, destination, after).position if after else Position()
    while True:
        try:
            for read in entries_after(store, destination, position):
                position = read.position
                if _is_told(read.entry):
                    yield Manifest.of(read.entry)
        except Unavailable as error:
            logger.warning("%s: trying again later: %s", destination.uri, error)
        clock.sleep(draw(0.8 * interval, 1.2 * interval))


def _is_told(entry: Entry) -> bool:
    """Return whether an entry is part of the history: the first one is not if it found no data."""
    return entry.commit is not None and (entry.job_id is not None or entry.commit.counts.files > 0)


#: Maximum number of uploads to list for the progress: twenty requests.
_MAX_LISTED = 20_000


class CommitProgress(NamedTuple):
    """How many of a job's uploads a commit that is running, or was interrupted, has completed."""

    completed: int
    files: int

    @property
    def share(self) -> float:
        """Completed share, from 0 to 1."""
        return self.completed / self.files if self.files else 1.0


def commit_progress(
    store: ObjectStore, destination: Destination, jobs: Iterable[JobSummary]
) -> dict[str, CommitProgress]:
    """Return the progress of the sealed jobs some of whose uploads are completed, by job id. Reads only.

    Omits jobs adopted from Hadoop, because the names of their files need not have the job's id. Omits all
    jobs if more than 20,000 uploads are pending.

    Raises:
        S3CommitError: A request failed.

    """
    sealed = [job for job in jobs if job.state == "sealed" and "adopted_from" not in job.context]
    if not sealed:
        return {}
    listed = list(islice(store.list_uploads(destination.bucket, destination.prefix), _MAX_LISTED + 1))
    if len(listed) > _MAX_LISTED:
        return {}
    pending = Counter(owner_of(upload.key) for upload in listed)
    return {
        job.job_id: CommitProgress(job.output.files - pending[job.job_id], job.output.files)
        for job in sealed
        if pending[job.job_id] < job.output.files
    }

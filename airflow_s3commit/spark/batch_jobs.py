"""The jobs of a streaming query's batches: which ids they have, and what became of earlier attempts.

A batch's jobs have ids that follow from the query, the batch's number and the number of the attempt. So
whichever driver runs the batch finds on the store what earlier attempts came to; what a process remembers
decides nothing.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING
from uuid import UUID, uuid5

from airflow_s3commit.causes import noting
from airflow_s3commit.exceptions import AlreadyCommitted, JobClosed, JobFailed, JobMismatch, NoSuchJob
from airflow_s3commit.protocol.destination import Destination
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.layout import Layout
from airflow_s3commit.protocol.records import JobReference

if TYPE_CHECKING:
    from airflow_s3commit.protocol.records import JobOptions, ManifestRecord
    from airflow_s3commit.store.base import ObjectStore

__all__ = ["STAGE", "Batch", "begin_batch", "commit_batch"]

logger = logging.getLogger(__name__)

#: The one stage of a batch's job.
STAGE = "batch"

#: Ids of batches' jobs are names in here.
_NAMESPACE = UUID("6f0d6d0c-9c0e-5d43-8a2b-4f7f1b6a3c55")

#: States from which a job's output is whole and may only be wanted.
_WHOLE = ("sealed", "committing", "committed")


_BEGUN_AGAIN = "the batch of the streaming query was begun again"


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch of one write of a query: what its jobs' ids follow from.

    Attributes:
        stream: The query's id, or the identity it was given.
        name: Which of the query's writes to this destination.
        destination: URI of the destination.
        number: Spark's number of the batch.

    """

    stream: str
    name: str
    destination: str
    number: int

    def job_id(self, attempt: int) -> str:
        """Return the id of the job that is the attempt of this number at the batch, from 0."""
        told = [self.stream, self.name, self.destination, self.number, attempt]
        return str(uuid5(_NAMESPACE, json.dumps(told)))

    def reference(self, attempt: int) -> JobReference:
        """Return that job's reference."""
        layout = Layout.of(Destination.parse(self.destination), self.job_id(attempt))
        return JobReference(
            job_id=layout.job_id, destination=layout.destination.uri, staging=layout.staging.uri
        )


def begin_batch(store: ObjectStore, batch: Batch, options: JobOptions, token: str) -> Job | None:
    """Set up the job of a new attempt at a batch; None if an earlier attempt is committed.

    Earlier attempts are brought to their end first, in their order: one whose output is whole is committed,
    any other aborted, also if the driver that began it still lives. So of all attempts at a batch one at
    most is committed: an attempt is begun only where every one before it is known to be aborted for ever.

    Args:
        store: Where everything is.
        batch: The batch.
        options: How the job commits.
        token: What tells this attempt from one that another driver begins at the same time: letters and
            digits, new at each call. It is the stage attempt to write as.

    Raises:
        S3CommitError: As `Job.setup`, `Job.commit` and `Job.abort` do.

    """
    for attempt in count():
        reference = batch.reference(attempt)
        while True:
            if _is_committed(Job.at(store, reference)):
                return None
            job = _set_up(store, reference, options, batch, token)
            if job is None:
                break
            if _is_own(job, token):
                return job
    raise AssertionError("unreachable: attempts are counted without end")


def commit_batch(job: Job, token: str, rows: int | None) -> ManifestRecord:
    """Commit a batch's job, whose stage attempt was sealed.

    Args:
        job: The job, as `begin_batch` returned it.
        token: The token it was begun with.
        rows: How many rows the stage attempt wrote. Without any its files are left out: a query with state
            has batches without rows, and each would leave a file that has a schema only.

    Raises:
        S3CommitError: As `Job.seal`, `Job.plan` and `Job.commit` do.

    """
    job.seal([] if rows == 0 else [(STAGE, token)])
    job.plan()
    return job.commit()


def _is_committed(job: Job) -> bool:
    """Bring an earlier attempt to its end, wherever it was left; tell whether it is committed."""
    while (state := job.state()) is not None:
        try:
            if state.state not in _WHOLE:
                job.abort(reason=_BEGUN_AGAIN)
                continue
            if state.state == "sealed":
                job.plan()
            job.commit()
        except (AlreadyCommitted, JobClosed, JobFailed, JobMismatch, NoSuchJob) as error:
            is_moved = False
            with noting(error, "reading the job's state again", "another process may have moved it on"):
                is_moved = job.state() != state
            if not is_moved:
                raise
    return job.manifest() is not None


def _set_up(
    store: ObjectStore, reference: JobReference, options: JobOptions, batch: Batch, token: str
) -> Job | None:
    """Set an attempt's job up; None if its id is spent."""
    context = {"engine": "spark", "stream": batch.stream, "batch": str(batch.number), "driver": token}
    if batch.name:
        context["write"] = batch.name
    try:
        return Job.setup(
            store,
            reference.destination,
            options=options,
            job_id=reference.job_id,
            context=context,
        )
    except JobClosed:
        return None
    except JobMismatch:
        # A driver died between its two records, and this one commits otherwise.
        Job.at(store, reference).abort(reason=_BEGUN_AGAIN)
        return None


def _is_own(job: Job, token: str) -> bool:
    """Tell whether it was this driver that set the job up, and not another one at the same time."""
    try:
        return job.record().context.get("driver") == token
    except NoSuchJob:
        return False

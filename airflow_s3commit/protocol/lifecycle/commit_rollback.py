"""Roll back a commit that cannot finish: take back what it has published, unless old data would be lost.

Not to be confused with `table_rollback`, which returns a table to an earlier commit.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from airflow_s3commit._causes import add_failure, noting
from airflow_s3commit.exceptions import (
    AlreadyCommitted,
    DestinationChanged,
    DestinationNotEmpty,
    InvalidRecord,
    JobFailed,
    NotReversible,
    OutcomeUnknown,
    S3CommitError,
)
from airflow_s3commit.protocol.lifecycle.abort import abort_job
from airflow_s3commit.protocol.lifecycle.run import CommitRun, Overtaken, Verdict
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.records import Stored
from airflow_s3commit.protocol.metadata.state import is_same_state, is_spent, load_job, read_state
from airflow_s3commit.protocol.model.job import JobRecord, StateRecord
from airflow_s3commit.protocol.model.plan import PlanRecord
from airflow_s3commit.protocol.model.seal import SealRecord

logger = logging.getLogger(__name__)


@contextmanager
def rolling_back(
    run: CommitRun, current: Stored[StateRecord]
) -> Iterator[tuple[JobRecord, SealRecord, PlanRecord]]:
    """Roll the job back if the block, which publishes, fails for good.

    Args:
        run: The commit.
        current: The state as it was read: ``committing``.

    Raises:
        Overtaken: Another process moved the job.
        Verdict: The job cannot be published and was rolled back, or its roll-back did not finish.
        NotReversible: The job has begun to overwrite or delete old data.

    """
    context, files = run.context, None
    # Outside of the try: a damaged state or plan says nothing about the uploads. An operator decides;
    # nothing is rolled back because of it.
    job, plan = load_job(context), run.pinned_plan(current.record)
    try:
        seal = run.pinned_seal(current.record)
        files = seal.counts.files
        yield job, seal, plan
    except (JobFailed, InvalidRecord, DestinationChanged, DestinationNotEmpty) as error:
        reason: S3CommitError | None = error
        try:
            if is_same_state(current, read_state(context)):
                _roll_back(run, current, error)
            else:
                reason = None
        except NotReversible:
            raise
        except AlreadyCommitted:
            # By another process, which leaves the state as it is.
            run.log.read()
            reason = None
        except S3CommitError as second:
            reason = _half_undone(context, files, error, second)
        if reason is None:
            raise Overtaken from error
        raise Verdict(reason) from error


def _roll_back(run: CommitRun, current: Stored[StateRecord], error: S3CommitError) -> None:
    context = run.context
    # States of older versions say it, and have no entry.
    if not current.record.reversible or run.log.begun() is not None:
        raise NotReversible(
            f"{context.name} can neither be finished ({error}) nor undone: old data is overwritten or"
            " deleted. Put back what is missing and commit again, or give up with: s3commit abort --force"
        ) from error
    logger.warning("%s: rolling back: %s", context.name, error)
    abort_job(context, reason=str(error))


def _half_undone(
    context: JobContext, files: int | None, error: S3CommitError, second: S3CommitError
) -> S3CommitError | None:
    """Return the error of a roll-back that failed, by the state it left; None if the job was moved on.

    Args:
        context: The job.
        files: How many files it has, if known.
        error: Why it cannot be committed.
        second: Why the roll-back failed.

    """
    state = "not known"
    with noting(second, "reading the job's state", "it is not known"):
        existing = read_state(context)
        if existing is not None:
            state = existing.record.state
        else:
            state = "aborted" if is_spent(context) else "committed"
    if state == "committed":
        return None
    if state == "aborted":
        left = "nothing of the job is visible or pending; records of it may be left until: s3commit recover"
        add_failure(error, second, "cleaning up after the roll-back", left)
        return error
    unfinished = OutcomeUnknown(
        f"{context.name} cannot be committed ({error}), and its roll-back did not end: its state is {state},"
        f" and {'files' if files is None else f'up to {files} files'} of it may be visible; end it with:"
        " s3commit recover"
    )
    unfinished.__cause__ = error
    add_failure(unfinished, second, "rolling back", f"the job's state is {state}")
    return unfinished

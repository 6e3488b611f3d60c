"""What tasks upload while Spark is killing them, after their job has been aborted or committed.

Spark calls a write's abort before it kills the tasks that still run, and a commit while the slower of two
attempts at a task is being killed; a Python worker is given two seconds more. So both look again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_s3commit.clock import SystemClock
from airflow_s3commit.exceptions import AlreadyCommitted, S3CommitError

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_s3commit.clock import Clock
    from airflow_s3commit.protocol.job import Job

__all__ = ["QUIET", "abort_twins", "abort_until_quiet"]

logger = logging.getLogger(__name__)

#: Seconds without anything new after which no task seems to be left.
QUIET = 4.0

#: Seconds after which there is no further look, and those between two.
_LONGEST_LOOK = 10.0
_PAUSE = 1.0


def abort_until_quiet(job: Job, clock: Clock | None = None, quiet: float = QUIET) -> int:
    """Abort a job whose tasks may still be running, and look again until they seem to have ended.

    What a task uploads afterwards, before it finds out that its job is gone, only a sweep finds.

    Args:
        job: The write's own job.
        clock: Where time comes from.
        quiet: Seconds without a find after which it is enough.

    Returns:
        How many uploads were aborted.

    Raises:
        S3CommitError: As `Job.abort` does.

    """
    try:
        return _look_until_quiet(lambda: job.abort(reason="the Spark write failed").uploads, clock, quiet)
    except AlreadyCommitted:
        logger.info("job %s is committed: not aborted", job.reference.job_id)
        return 0


def abort_twins(job: Job, clock: Clock | None = None) -> int:
    """Abort what speculative attempts upload after the job's commit, until Spark has killed them.

    A failure here is no failure of the write, which is committed: it is logged, and a sweep finds the rest.

    Args:
        job: The write's own job, committed.
        clock: Where time comes from.

    Returns:
        How many uploads were aborted.

    """
    try:
        return _look_until_quiet(job.abort_late, clock, QUIET)
    except S3CommitError:
        logger.warning(
            "job %s on %s is committed, but what its speculative tasks left pending could not be aborted; run"
            " `s3commit sweep`",
            job.reference.job_id, job.reference.destination, exc_info=True,
        )  # fmt: skip
        return 0


def _look_until_quiet(look: Callable[[], int], clock: Clock | None, quiet: float) -> int:
    """Look again and again until there was nothing to find for a while; return how much was found."""
    clock = clock or SystemClock()
    began = changed = clock.monotonic()
    total = 0
    while True:
        found = look()
        total += found
        now = clock.monotonic()
        if found:
            changed = now
        if now - changed >= quiet or now - began >= _LONGEST_LOOK:
            return total
        clock.sleep(_PAUSE)

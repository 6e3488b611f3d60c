"""Aborting a job whose writers may still be dying."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from airflow_s3commit.protocol.job import Job

__all__ = ["KILL_WINDOW", "abort_until_quiet"]

#: Seconds that a task which Airflow ends may live on: one heartbeat (5) and the time to SIGKILL (5).
KILL_WINDOW = 10.0

#: Looks after the first, as long as each finds something: whoever still writes then is not being killed.
_MORE_LOOKS = 5


def abort_until_quiet(job: Job, *, kill_window: float, reason: str, log: Logger) -> int:
    """Abort a job, and look again until a look finds nothing; return how many uploads were aborted.

    Airflow goes on with a run while a task that was marked failed, or cleared, is still being killed. What
    that task begins to upload after the abort is found by the next look.

    :param job: The job.
    :param kill_window: Seconds between two looks.
    :param reason: Why, for the job's record.
    :param log: Where to say what is waited for.
    :raises AlreadyCommitted: The job is committed.
    :raises NotReversible: Its commit has overwritten or deleted old data already.
    """
    uploads = job.abort(reason=reason).uploads
    for _ in range(_MORE_LOOKS):
        log.info("Looking again in %g s for uploads of dying tasks", kill_window)
        time.sleep(kill_window)
        found = job.abort(reason=reason).uploads
        uploads += found
        if not found:
            return uploads
    log.warning(
        "Something still uploads for job %s, which is aborted; the sweep will find what it leaves",
        job.reference.job_id,
    )
    return uploads

"""Which failures another try can mend, as an Airflow retry policy."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule

__all__ = ["commit_retry_policy"]

_ERRORS: Final = "airflow_s3commit.exceptions"


def commit_retry_policy(
    *,
    delay: timedelta = timedelta(seconds=30),
    lock_delay: timedelta = timedelta(minutes=2),
) -> ExceptionRetryPolicy:
    """Return the policy that decides by outcome. `s3_commit_task_group` gives it to its own tasks.

    A refusal is never tried again: it would be refused again. A store that turned the request away, and a
    call whose answer was lost, are, after ``delay``: every step of a commit may be run again. So is a wait
    for another job's lock, after ``lock_delay``. All else is left to the task's own ``retries`` and
    ``retry_delay``, which also say how often at most.

    :param delay: Time until the next try after throttling, lost connections and unknown outcomes.
    :param lock_delay: Time until the next try when another job holds the destination.
    """
    # The first rule that matches counts, and these two are refusals as well.
    passing = RetryRule(
        exception=[f"{_ERRORS}.LockHeld", f"{_ERRORS}.PreconditionFailed"],
        action=RetryAction.RETRY,
        retry_delay=lock_delay,
        reason="another writer was there first; it will be done by and by",
    )
    final = RetryRule(
        exception=[f"{_ERRORS}.Refused", f"{_ERRORS}.JobFailed"],
        action=RetryAction.FAIL,
        reason="refused, or rolled back: the same call would end the same way",
    )
    unsettled = RetryRule(
        exception=[f"{_ERRORS}.Unavailable", f"{_ERRORS}.OutcomeUnknown"],
        action=RetryAction.RETRY,
        retry_delay=delay,
        reason="the store did not answer, or not in time; the step may be run again",
    )
    return ExceptionRetryPolicy(rules=[passing, final, unsettled])

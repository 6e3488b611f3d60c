"""The retry policy of the commit's tasks: which errors a retry can resolve."""

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

    A refusal is not retried: it would be refused again. Throttling, lost connections and unknown outcomes are
    retried after ``delay``, since every step of a commit may be repeated; so is a wait for another job's
    lock, after ``lock_delay``. The task's own ``retries`` and ``retry_delay`` apply to all other errors, and
    ``retries`` limits the number of tries.

    :param delay: Time until the next try after throttling, lost connections and unknown outcomes.
    :param lock_delay: Time until the next try when another job holds the destination.
    """
    # The first rule that matches counts, and these two are refusals as well.
    passing = RetryRule(
        exception=[f"{_ERRORS}.LockHeld", f"{_ERRORS}.PreconditionFailed"],
        action=RetryAction.RETRY,
        retry_delay=lock_delay,
        reason="another writer was first; it ends after a while",
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

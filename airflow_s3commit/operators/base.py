"""What the steps of a commit have in common: a store, a job, and which errors a retry can mend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from airflow_s3commit.exceptions import LockHeld, PreconditionFailed, Refused
from airflow_s3commit.hooks.s3_commit import S3CommitHook
from airflow_s3commit.metrics import count_retry

if TYPE_CHECKING:
    from airflow_s3commit.protocol.job import Job

__all__ = ["CommitStepOperator", "S3CommitBaseOperator", "job_reference", "refusals_are_final"]

#: Refusals that another try may not meet: the lock's holder ends, the other writer is read.
_PASSING = (LockHeld, PreconditionFailed)


@contextmanager
def refusals_are_final() -> Iterator[None]:
    """Fail the task without retries when the protocol refuses: the same call would be refused again.

    Everything else (throttling, lost connections, unknown outcomes) keeps the task's retries.
    """
    try:
        yield
    except _PASSING:
        raise
    except Refused as error:
        raise AirflowFailException(f"{type(error).__name__}: {error}") from error


def job_reference(value: Any, task_id: str) -> Mapping[str, str]:
    """Return the job reference that a task was given, or say why there is none.

    :param value: The rendered ``job`` of a task.
    :param task_id: The task, for the message.
    """
    if isinstance(value, Mapping) and {"job_id", "destination", "staging"} <= value.keys():
        return value
    raise AirflowFailException(
        f"Task {task_id} was given no job reference but {value!r}. Pass the output of the "
        "S3CommitSetupOperator of this run; if its XCom was cleared, clear the setup task too."
    )


class S3CommitBaseOperator(BaseOperator):
    """A task that works on a store.

    :param aws_conn_id: The ``aws`` connection of the store; None means boto3's default chain. (templated)
    :param region_name: Overrides the connection's region. (templated)
    :param verify: Overrides the connection's check of TLS certificates. (templated)
    """

    template_fields: Sequence[str] = ("aws_conn_id", "region_name", "verify")

    def __init__(
        self,
        *,
        aws_conn_id: str | None = S3CommitHook.default_conn_name,
        region_name: str | None = None,
        verify: bool | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.aws_conn_id = aws_conn_id
        self.region_name = region_name
        self.verify = verify

    @cached_property
    def hook(self) -> S3CommitHook:
        """The hook of this task's connection."""
        return S3CommitHook(
            self.aws_conn_id, region_name=self.region_name, verify=self.verify, on_retry=count_retry
        )


class CommitStepOperator(S3CommitBaseOperator):
    """A task that takes a job one step further. All it needs is the job's reference; the rest is on S3.

    :param job: The job reference: the output of an `S3CommitSetupOperator`. (templated)
    """

    template_fields: Sequence[str] = (*S3CommitBaseOperator.template_fields, "job")

    def __init__(self, *, job: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.job = job

    def opened_job(self) -> Job:
        """Return the job this task was given. Asks nothing of the store."""
        return self.hook.job(job_reference(self.job, self.task_id))

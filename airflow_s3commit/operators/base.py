"""Base classes of operators, with a store, a table or a job; and how tasks note failures and refusals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_s3commit._format import plain
from airflow_s3commit.airflow_version import AirflowException, AirflowFailException, AirflowSkipException
from airflow_s3commit.exceptions import (
    AccessDenied,
    JobFailed,
    OutcomeUnknown,
    PreconditionFailed,
    Refused,
    Unavailable,
)
from airflow_s3commit.hooks import S3CommitHook
from airflow_s3commit.metrics import count_retry
from airflow_s3commit.protocol.model.destination import Destination, as_uri
from airflow_s3commit.templates import CheckedOperator, mapping, place, text

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_s3commit.protocol.job import Job
    from airflow_s3commit.protocol.model.manifest import Manifest
    from airflow_s3commit.protocol.model.sealed_job import SealReference

#: The XCom of a task that failed: why, whether the store caused it, and the ids of job and instance. Airflow
#: deletes it when the next try begins: if only tasks before this one were cleared, it is of an earlier job.
FAILURE = "failure"

#: Maximum characters of the reason in that XCom, which the UI and the job's entry repeat.
_LONGEST_REASON = 160

#: The XCom of a task that was skipped because the stages wrote no files: the job's id.
NO_OUTPUT = "no_output"


@contextmanager
def failures_are_noted(context: Context, job: Any) -> Iterator[None]:
    """Note why this task fails, for the teardown of the job with this reference; refusals are final."""
    try:
        with refusals_are_final():
            yield
    except AirflowSkipException:
        raise
    except Exception as error:
        from airflow.sdk.log import redact  # type: ignore[attr-defined]  # noqa: PLC0415 - keeps parsing light

        text = str(error) if isinstance(error, AirflowException) else f"{type(error).__name__}: {error}"
        # Redacted as logs are: the text is repeated in XComs and in the job's entry on S3.
        line = plain(str(redact(text)).strip().partition("\n")[0])
        why = line if len(line) <= _LONGEST_REASON else f"{line[: _LONGEST_REASON - 1]}…"
        by_store = isinstance(error, Unavailable | AccessDenied | OutcomeUnknown)
        job_id = job.get("job_id") if isinstance(job, Mapping) else None
        ti, note = context["ti"], {"why": why, "by_store": by_store, "job_id": job_id}
        ti.xcom_push(key=FAILURE, value={**note, "instance": f"{ti.task_id}_{ti.map_index}"})
        raise


@contextmanager
def refusals_are_final() -> Iterator[None]:
    """Fail the task without retries when the protocol refuses; other errors keep the retries."""
    try:
        yield
    except PreconditionFailed:
        # A retry reads the record that the other writer has written.
        raise
    except (Refused, JobFailed) as error:
        raise AirflowFailException(f"{type(error).__name__}: {error}") from error


def pulled(context: Context, task_ids: Sequence[str], key: str) -> list[Any]:
    """Return the XComs that tasks of this task's job pushed under a key, without empty ones.

    In a mapped group each map index has its own job; elsewhere all instances of mapped tasks share one.
    """
    ti: Any = context["ti"]
    if not task_ids:
        return []
    # Without map_indexes Airflow returns the XComs of all instances.
    own = {} if _item(ti) is None else {"map_indexes": _item(ti)}
    return [value for value in ti.xcom_pull(task_ids=list(task_ids), key=key, **own) if value]


def states_of(context: Context, task_ids: list[str]) -> dict[str, str]:
    """Return the states of tasks of this task's job.

    Not of a group: Airflow looks that up in the newest version of the DAG, which need not be the run's.
    Instances that a mapped task no longer has (``removed``) are left out. Outside a mapped group the name of
    an instance is its task's id, ``_`` and its map index.
    """
    ti = context["ti"]
    item = _item(ti)
    found = ti.get_task_states(dag_id=ti.dag_id, run_ids=[ti.run_id], map_index=item, task_ids=task_ids)
    ending = "" if item is None else f"_{item}"
    states = {name.removesuffix(ending): str(state) for name, state in found.get(ti.run_id, {}).items()}
    return {name: state for name, state in states.items() if state != "removed"}


def _item(ti: Any) -> int | None:
    """Return the map index that a task shares with the other tasks of its job; None outside mapped groups."""
    index = getattr(ti, "map_index", None)
    return None if index is None or index < 0 else int(index)


class S3CommitBaseOperator(CheckedOperator):
    """A task that uses a store: the base of the operators and the sensor.

    :param aws_conn_id: The ``aws`` connection of the store; None means boto3's default chain. (templated)
    """

    template_fields: Sequence[str] = ("aws_conn_id",)

    def __init__(self, *, aws_conn_id: str | None = S3CommitHook.default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.aws_conn_id = aws_conn_id
        self.check(aws_conn_id=text)

    @cached_property
    def hook(self) -> S3CommitHook:
        """The hook of this task's connection."""
        return S3CommitHook(self.aws_conn_id, on_retry=count_retry)


class TableOperator(S3CommitBaseOperator):
    """A task of one table.

    :param destination: The table's directory: ``s3://bucket/prefix/`` or a `Destination`. (templated)
    """

    template_fields: Sequence[str] = (*S3CommitBaseOperator.template_fields, "destination")

    def __init__(self, *, destination: str | Destination, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.destination = as_uri(destination)
        self.check(destination=place)


class CommitStepOperator(S3CommitBaseOperator):
    """A task of a job. It needs only the job's reference, because all state is on S3.

    :param job: The job reference: the output of an `S3CommitSetupOperator`. (templated)
    """

    template_fields: Sequence[str] = (*S3CommitBaseOperator.template_fields, "job")

    def __init__(self, *, job: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.check(job=mapping)

    def opened_job(self) -> Job:
        """Return the task's job. Makes no request to the store."""
        if isinstance(self.job, Mapping) and {"job_id", "destination", "staging"} <= self.job.keys():
            return self.hook.job(self.job)
        raise AirflowFailException(
            f"Task {self.task_id}: job is {self.job!r}, not a job reference. Pass the output of the "
            "S3CommitSetupOperator of this run; if its XCom was cleared, clear the setup task too."
        )


def totals(of: SealReference | Manifest) -> str:
    """Return the totals of a seal or a manifest as text, for the task log."""
    counts = of.counts
    rows = "an unknown number of" if counts.rows is None else counts.rows
    return f"{counts.files} files, {rows} rows, {counts.bytes} bytes in {len(of.partitions)} partitions"

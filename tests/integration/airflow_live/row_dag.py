"""What the DAGs of the rows share: callbacks that leave notes, and a destination of their own."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG

from airflow_s3commit.notifications import AbortUploadsNotifier
from airflow_s3commit.task_group import s3_commit_task_group
from tests.integration.airflow_live.stages import noting

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Seconds that a killed task may live on: one heartbeat (2 here), the time to SIGKILL (5), and some more.
KILL_WINDOW = 8.0


@contextmanager
def row(name: str, *, notifier_seconds: float | None = None, **arguments: Any) -> Iterator[DAG]:
    """Make the DAG of a row, whose callbacks leave notes; one of them is a notifier with a time limit."""
    failed = [noting("dag-failed")]
    if notifier_seconds is not None:
        failed = [AbortUploadsNotifier(kill_window=KILL_WINDOW, time_limit=notifier_seconds), *failed]
    with DAG(
        name,
        schedule=arguments.pop("schedule", None),
        on_failure_callback=failed,
        on_success_callback=noting("dag-succeeded"),
        **arguments,
    ) as dag:
        yield dag


def group(dag: DAG, **arguments: Any) -> Any:
    """Make the row's commit group, which streams its output to the store."""
    asked = {"committer": "magic", "kill_window": KILL_WINDOW, **arguments}
    return s3_commit_task_group("refresh", destination=f"s3://lake/{dag.dag_id}/", **asked)

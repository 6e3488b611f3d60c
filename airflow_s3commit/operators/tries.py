"""The jobs that the tries of one setup task have set up, by the facts of the task in the jobs' records.

All that a later try needs to know of an earlier one is on S3. Airflow keeps nothing of a task that is cleared
in every version and configuration.
"""

from __future__ import annotations

import re
from datetime import UTC
from typing import TYPE_CHECKING, Any

from airflow_s3commit.airflow_version import partition_key_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Context

#: The facts that all tries of one task instance share. Each index of a mapped task has its own jobs.
_TASK = ("dag_id", "run_id", "task_id", "map_index")


def job_context(context: Context) -> dict[str, str]:
    """Return the facts of a try for the job's record and manifest, without those that the run lacks.

    :param context: The task's context. A partitioned run has no logical date, other runs no partition key.
    """
    ti, dag_run = context.get("ti"), context.get("dag_run")
    task = context.get("task")
    group = getattr(task, "task_group", None)
    started = getattr(dag_run, "start_date", None)
    facts = {
        "dag_id": getattr(ti, "dag_id", None),
        "run_id": context.get("run_id") or getattr(dag_run, "run_id", None),
        "run_type": getattr(dag_run, "run_type", None),
        "run_started": started and started.astimezone(UTC).isoformat(timespec="microseconds"),
        "task_id": getattr(ti, "task_id", None),
        "task_group_id": getattr(group, "group_id", None),
        "map_index": getattr(ti, "map_index", None),
        "try_number": getattr(ti, "try_number", None),
        "try_id": getattr(ti, "id", None),
        "partition_key": partition_key_of(context),
        "logical_date": context.get("logical_date"),
    }
    return {name: _text(value) for name, value in facts.items() if value not in {None, ""}}


def is_same_task(facts: Mapping[str, str], others: Mapping[str, str]) -> bool:
    """Return whether two jobs were set up by tries of one task instance.

    :param facts: The facts of one job, as `job_context` returns them.
    :param others: Those of the other job.
    """
    return all(name in facts and facts[name] == others.get(name) for name in _TASK)


def place_in_order(facts: Mapping[str, str], job_id: str) -> tuple[str, int, str, str]:
    """Return a key by which the jobs of one task instance sort in the order of their tries.

    Tries count from one in a run that was deleted and made again under its old id, but that run has started
    later. ``dag.test()`` gives even the start of the deleted run to the new one; then Airflow's id of the
    try decides, which has its time in front.

    :param facts: The job's facts, as `job_context` returns them.
    :param job_id: The job, whose id decides if nothing else does.
    """
    # A record may have anything there.
    number = re.fullmatch("[0-9]{1,9}", facts.get("try_number", ""))
    return facts.get("run_started", ""), int(number[0]) if number else 0, facts.get("try_id", ""), job_id


def _text(value: Any) -> str:
    if hasattr(value, "isoformat"):
        return str(value.isoformat())
    return str(getattr(value, "value", value))

"""Hides the differences between Airflow 3.1, 3.2 and 3.3; no other module asks what the running version has.

From 3.1 to 3.3 Airflow moved names into its SDK, and added others. A name that the running version lacks can
still be imported from here: using it falls back to what that version has, or raises an error that names it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

try:
    from airflow.partition_mappers.base import PartitionMapper
    from airflow.sdk import conf
    from airflow.sdk.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSensorTimeout,
        AirflowSkipException,
        TaskDeferred,
    )
    from airflow.sdk.plugins_manager import AirflowPlugin
except ModuleNotFoundError:  # Airflow 3.1
    if not TYPE_CHECKING:
        from airflow.configuration import conf
        from airflow.exceptions import (
            AirflowException,
            AirflowFailException,
            AirflowNotFoundException,
            AirflowSensorTimeout,
            AirflowSkipException,
            TaskDeferred,
        )
        from airflow.plugins_manager import AirflowPlugin

        class PartitionMapper:
            """Stands in for the base class of mappers, which Airflow 3.1 lacks."""

            def __init__(self, **_arguments: Any) -> None:
                raise NotImplementedError(lacks("PartitionMapper", "3.2"))


if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta

    from airflow.sdk import Context

__all__ = [
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowPlugin",
    "AirflowSensorTimeout",
    "AirflowSkipException",
    "CronPartitionTimetable",
    "PartitionMapper",
    "conf",
    "has_partition_events",
    "lacks",
    "partition_key_of",
    "stats",
    "wait_for_answer",
]


def lacks(what: str, since: str) -> str:
    """Return a message that the running Airflow lacks something that version ``since`` has."""
    from airflow import __version__  # noqa: PLC0415 - keeps DAG parsing light

    return f"Airflow {__version__} has no {what}, which needs {since} or later"


def CronPartitionTimetable(cron: str, *, timezone: str, **given: Any) -> Any:  # noqa: N802 - Airflow's name
    """Return Airflow's timetable of this name; in 3.1, which has no partition keys, a timetable without them.

    In 3.1 a run's logical date is the start of the interval before the run. That is what the key would name
    with a ``run_offset`` of -1, so any other offset raises `NotImplementedError` there.
    """
    from airflow import sdk  # noqa: PLC0415 - the timetables import croniter

    if hasattr(sdk, "CronPartitionTimetable"):
        return sdk.CronPartitionTimetable(cron, timezone=timezone, **given)
    from airflow.timetables.interval import CronDataIntervalTimetable  # noqa: PLC0415

    if given.get("run_offset") != -1:
        raise NotImplementedError(lacks("CronPartitionTimetable with another run_offset than -1", "3.2"))
    return CronDataIntervalTimetable(cron, timezone=timezone)


def stats() -> Any:
    """Return Airflow's client for metrics, which has ``incr``, ``timing`` and ``gauge``."""
    known: Any
    try:
        from airflow.sdk.observability import stats as known  # noqa: PLC0415 - keeps DAG parsing light
    except ImportError:  # Airflow 3.1
        from airflow import stats as known  # noqa: PLC0415
    # From 3.3 on these are functions of the module; before, they are methods of its class Stats.
    return known if hasattr(known, "incr") else known.Stats


def has_partition_events() -> bool:
    """Return whether a task can send an event for each partition of an asset: from Airflow 3.3 on."""
    from airflow.sdk.execution_time.context import OutletEventAccessor  # noqa: PLC0415 - light DAG parsing

    return hasattr(OutletEventAccessor, "add_partitions")


def partition_key_of(context: Context) -> str | None:
    """Return the partition key of a task's run; None if it has none, which is always so in Airflow 3.1."""
    # From Airflow 3.3 on the context has the key itself.
    run: Any = context.get("dag_run")
    return context["partition_key"] if "partition_key" in context else getattr(run, "partition_key", None)


def wait_for_answer(
    ti_id: Any, options: list[str], method_name: str, kwargs: Mapping[str, Any], timeout: timedelta | None
) -> NoReturn:
    """Suspend a task until somebody has answered; before Airflow 3.3 the triggerer waits for the answer.

    The operator's ``method_name`` resumes it with ``kwargs`` (plain JSON values) and the answer as ``event``.
    """
    from airflow.sdk import exceptions  # noqa: PLC0415 - keeps DAG parsing light

    if hasattr(exceptions, "TaskAwaitingInput"):
        raise exceptions.TaskAwaitingInput(method_name=method_name, kwargs=dict(kwargs), timeout=timeout)
    from airflow.providers.standard.triggers.hitl import HITLTrigger  # noqa: PLC0415 - keeps parsing light
    from airflow.sdk.timezone import utcnow  # noqa: PLC0415

    until = None if timeout is None else utcnow() + timeout
    trigger = HITLTrigger(ti_id=ti_id, options=options, params={}, timeout_datetime=until)
    raise TaskDeferred(trigger=trigger, method_name=method_name, kwargs=dict(kwargs), timeout=None)

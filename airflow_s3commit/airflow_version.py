"""What the running version of Airflow has of what this package uses. No other module asks for it.

From 3.1 to 3.3 Airflow moved names into its SDK, and added others. This module finds each name where this
version has it. What a version lacks can be imported too, and says so by name when it is used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta
    from types import ModuleType

    from airflow.partition_mappers.base import PartitionMapper
    from airflow.sdk import Context, CronPartitionTimetable, conf
    from airflow.sdk.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSensorTimeout,
        AirflowSkipException,
    )
    from airflow.sdk.log import redact  # type: ignore[attr-defined]
    from airflow.sdk.plugins_manager import AirflowPlugin

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
    "redact",
    "stats",
    "wait_for_answer",
]

_ERRORS: Final = ("airflow.sdk.exceptions", "airflow.exceptions")

#: The modules that may have a name, that of the newest version first.
_HOMES: Final = {
    "AirflowException": _ERRORS,
    "AirflowFailException": _ERRORS,
    "AirflowNotFoundException": _ERRORS,
    "AirflowPlugin": ("airflow.sdk.plugins_manager", "airflow.plugins_manager"),
    "AirflowSensorTimeout": _ERRORS,
    "AirflowSkipException": _ERRORS,
    "CronPartitionTimetable": ("airflow.sdk",),
    "PartitionMapper": ("airflow.partition_mappers.base",),
    "conf": ("airflow.sdk", "airflow.configuration"),
    "redact": ("airflow.sdk.log",),
}


def lacks(what: str, since: str) -> str:
    """Return that this Airflow lacks something, for a message.

    :param what: Its name.
    :param since: The first version that has it.
    """
    from airflow import __version__  # noqa: PLC0415 - keeps DAG parsing light

    return f"Airflow {__version__} has no {what}, which needs {since} or later"


def stats() -> Any:
    """Return what counts metrics, with ``incr``, ``timing`` and ``gauge``."""
    known: Any = _module("airflow.sdk.observability.stats") or _module("airflow.stats")
    # From 3.3 on these are functions of the module, before of its class.
    return known if hasattr(known, "incr") else known.Stats


def has_partition_events() -> bool:
    """Return whether a task can send an event for each partition of an asset: from Airflow 3.3 on."""
    return hasattr(_found("airflow.sdk.execution_time.context", "OutletEventAccessor"), "add_partitions")


def partition_key_of(context: Context) -> str | None:
    """Return the partition key of a task's run; None without one, as always in Airflow 3.1.

    :param context: The task's context, which has the key itself from Airflow 3.3 on.
    """
    run: Any = context.get("dag_run")
    return context["partition_key"] if "partition_key" in context else getattr(run, "partition_key", None)


def wait_for_answer(
    ti_id: Any, options: list[str], method_name: str, kwargs: Mapping[str, Any], timeout: timedelta | None
) -> NoReturn:
    """Suspend a task until somebody has answered; before Airflow 3.3 the triggerer waits for it.

    :param ti_id: Airflow's id of the task instance, whose question is in the database.
    :param options: The possible answers.
    :param method_name: The operator's method to resume with; its argument ``event`` is the answer.
    :param kwargs: The method's other arguments: plain JSON values.
    :param timeout: Time to wait; None for no limit.
    :raises BaseException: Always; Airflow's own, which suspends the task.
    """
    waits = _found("airflow.sdk.exceptions", "TaskAwaitingInput")
    if waits is not None:
        raise waits(method_name=method_name, kwargs=dict(kwargs), timeout=timeout)
    from airflow.providers.standard.triggers.hitl import HITLTrigger  # noqa: PLC0415 - keeps parsing light
    from airflow.sdk.timezone import utcnow  # noqa: PLC0415

    until = None if timeout is None else utcnow() + timeout
    deferred = next(found for home in _ERRORS if (found := _found(home, "TaskDeferred")) is not None)
    trigger = HITLTrigger(ti_id=ti_id, options=options, params={}, timeout_datetime=until)
    raise deferred(trigger=trigger, method_name=method_name, kwargs=dict(kwargs), timeout=None)


def _found(home: str, name: str) -> Any:
    """Return what a module of Airflow has under a name; None if this version lacks the one or the other."""
    return getattr(_module(home), name, None)


def _module(name: str) -> ModuleType | None:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        return None


def _by_logical_date(cron: str, *, timezone: str, run_offset: int = 0, key_format: str = "") -> object:
    """Return what takes the place of a `CronPartitionTimetable` in Airflow 3.1, which has no partition keys.

    The logical date of a run is the start of the interval before it, which the key would name.
    """
    from airflow.timetables.interval import CronDataIntervalTimetable  # noqa: PLC0415 - light parsing

    del key_format
    if run_offset != -1:
        raise NotImplementedError(lacks(f"CronPartitionTimetable with run_offset={run_offset}", "3.2"))
    return CronDataIntervalTimetable(cron, timezone=timezone)


class _NoPartitionMapper:
    """The base class of mappers in Airflow 3.1."""

    def __init__(self, **_arguments: Any) -> None:
        raise NotImplementedError(lacks("PartitionMapper", "3.2"))


if not TYPE_CHECKING:
    #: What takes the place of a name that this Airflow lacks.
    _OTHERWISE = {"CronPartitionTimetable": _by_logical_date, "PartitionMapper": _NoPartitionMapper}

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            # Where it is not installed, this names it.
            import_module("airflow")
        found = (_found(home, name) for home in _HOMES.get(name, ()))
        value = next((one for one in found if one is not None), _OTHERWISE.get(name))
        if value is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        setattr(sys.modules[__name__], name, value)
        return value

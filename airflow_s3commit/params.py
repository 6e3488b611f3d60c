"""Arguments in the forms that DAG authors write: the conflict mode as a param, times in the DAG's zone."""

from __future__ import annotations

from contextlib import suppress
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pendulum

from airflow_s3commit._format import seconds_of

if TYPE_CHECKING:
    from airflow.sdk import Param
    from pendulum import FixedTimezone, Timezone

__all__ = ["CONFLICT_MODE", "SPARKS_CONFLICT_MODE", "conflict_mode_param", "moment_of"]

#: The modes, from the safest to the most destructive, and the one that leaves it to Spark's save modes.
_MODES: Final = ("fail", "append", "replace", "as-written")

#: A template of the param's mode (``fail`` in a DAG without the param), except in backfills, whose mode is
#: ``replace`` unless the backfill's conf sets another.
CONFLICT_MODE: Final = (
    "{{ 'replace' if dag_run.run_type == 'backfill' and 'conflict_mode' not in (dag_run.conf or {})"
    " else params.get('conflict_mode', 'fail') }}"
)

#: The template of a group whose Spark stages write with Spark's own writers: without the param the save modes
#: decide, in backfills too; with it `CONFLICT_MODE`.
SPARKS_CONFLICT_MODE: Final = (
    "{% if 'conflict_mode' not in params %}as-written{% else %}" + CONFLICT_MODE + "{% endif %}"
)


def conflict_mode_param(default: str = "fail") -> Param:
    """Return the DAG param ``conflict_mode``, the treatment of existing data.

    :param default: Mode of a run whose conf sets none: ``fail``, ``append``, ``replace`` or ``as-written``.
    :raises ValueError: The default is not one of these.
    """
    if default not in _MODES:
        raise ValueError(f"conflict_mode is {default!r}; it must be one of {', '.join(_MODES)}")
    from airflow.sdk import Param  # noqa: PLC0415 - operators import this module and need no param

    return Param(
        default,
        type="string",
        enum=list(_MODES),
        title="If partitions already have data",
        description=(
            "fail: refuse the commit. append: keep the old files beside the new ones. "
            "replace: replace the old files with the new ones. as-written: follow the save modes of Spark's"
            " own writers. "
            "Backfills replace unless their conf sets a mode."
        ),
    )


def moment_of(
    value: Any, *, before: datetime, zone: Timezone | FixedTimezone | str = "UTC"
) -> pendulum.DateTime:
    """Return the time that a value stands for.

    A time without a zone is in ``zone``, a date means the start of the day there, and a data interval means
    its start. A duration is counted back from ``before``: its days, and every 24 of its hours, are calendar
    days, of which one has 25 hours when clocks go back.

    :param value: A ``datetime``, ``date``, ``timedelta``, ``pendulum.Duration`` or data interval; or text: a
        time, a date, a duration or an interval in ISO 8601, or a duration such as ``1d12h``.
    :param before: The time from which durations are counted back.
    :param zone: The zone of the DAG.
    :raises ValueError: The value has another form.
    """
    known = _parsed(value, zone) if isinstance(value, str) else value
    known = getattr(known, "start", known)
    if isinstance(known, timedelta):
        day = pendulum.instance(before).in_timezone(zone).subtract(days=known.days)
        return day.subtract(seconds=known.seconds, microseconds=known.microseconds)
    if isinstance(known, datetime):
        return pendulum.instance(known, tz=zone)
    if isinstance(known, date):
        return pendulum.datetime(known.year, known.month, known.day, tz=zone)
    raise ValueError(
        f"{value!r} is neither a time, a date, a duration nor a data interval; write 2013-01-01,"
        " 2013-01-01T06:00:00, 1d12h or PT36H"
    )


def _parsed(text: str, zone: Timezone | FixedTimezone | str) -> Any:
    with suppress(OverflowError, ValueError):
        return timedelta(seconds=seconds_of(text))
    try:
        return pendulum.parse(text.strip(), tz=zone, exact=True)
    except ValueError:
        return text

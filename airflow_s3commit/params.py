"""The conflict mode as a DAG param, and the default template, which replaces in backfills."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from airflow.sdk import Param

__all__ = ["CONFLICT_MODE", "CONFLICT_MODES", "check_conflict_mode", "conflict_mode_param"]

#: The modes, in the order of how much they touch.
CONFLICT_MODES: Final = ("fail", "append", "replace")

#: The param's mode (``fail`` in a DAG without the param), except in backfills, which ``replace`` unless the
#: backfill's own conf names a mode.
CONFLICT_MODE: Final = (
    "{{ 'replace' if dag_run.run_type == 'backfill' and 'conflict_mode' not in (dag_run.conf or {})"
    " else params.get('conflict_mode', 'fail') }}"
)


def conflict_mode_param(default: str = "fail") -> Param:
    """Return the param ``conflict_mode``: what a commit does where the data it brings already exists.

    :param default: The mode of a run whose conf names none: ``fail``, ``append`` or ``replace``.
    """
    from airflow.sdk import Param  # noqa: PLC0415 - operators import this module without wanting a form

    return Param(
        check_conflict_mode(default),
        type="string",
        enum=list(CONFLICT_MODES),
        title="Where the partitions already have data",
        description=(
            "fail: refuse the commit. append: keep the old files beside the new ones. "
            "replace: the new files take the place of the old ones. "
            "Backfills replace unless their conf names a mode."
        ),
    )


def check_conflict_mode(mode: str) -> str:
    """Return ``mode`` if it is one; it is templated text until a task runs.

    :raises ValueError: It is not ``fail``, ``append`` or ``replace``.
    """
    if mode not in CONFLICT_MODES:
        raise ValueError(
            f"conflict_mode is {mode!r}; it must be one of {', '.join(CONFLICT_MODES)}. "
            "If it comes from a template, look at the rendered template of this task."
        )
    return mode

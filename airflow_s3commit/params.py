"""The conflict mode as a DAG param, and its default template, which means ``replace`` in backfills."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from airflow.sdk import Param

__all__ = [
    "CONFLICT_MODE",
    "CONFLICT_MODES",
    "SPARKS_CONFLICT_MODE",
    "check_conflict_mode",
    "conflict_mode_param",
]

#: The modes, from the safest to the most destructive, and that of the save modes of Spark's own writers.
CONFLICT_MODES: Final = ("fail", "append", "replace", "as-written")

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

    :param default: The mode of a run whose conf sets none: ``fail``, ``append``, ``replace`` or
        ``as-written``.
    :raises ValueError: The default is another word.
    """
    from airflow.sdk import Param  # noqa: PLC0415 - operators import this module and need no param

    return Param(
        check_conflict_mode(default),
        type="string",
        enum=list(CONFLICT_MODES),
        title="If partitions already have data",
        description=(
            "fail: refuse the commit. append: keep the old files beside the new ones. "
            "replace: replace the old files by the new ones. "
            "as-written: what the save modes of Spark's own writers mean. "
            "Backfills replace unless their conf sets a mode."
        ),
    )


def check_conflict_mode(mode: str) -> str:
    """Return the mode if it is valid. Call it on rendered text, not on a template.

    :param mode: The mode.
    :raises ValueError: The mode is not ``fail``, ``append``, ``replace`` or ``as-written``.
    """
    if mode not in CONFLICT_MODES:
        raise ValueError(
            f"conflict_mode is {mode!r}; it must be one of {', '.join(CONFLICT_MODES)}. "
            "If it comes from a template, look at the rendered template of this task."
        )
    return mode

"""The DAG run that a job's record names: a claim, which Airflow's own database confirms or not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

__all__ = ["Origin"]

#: What Airflow takes as the id of a DAG or a task, and how long any of its ids may be.
_ID = re.compile(r"[\w.-]+")
_LONGEST = 250


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a job says that it was set up. Only ids that Airflow itself accepts get here.

    Attributes:
        dag_id: The DAG.
        run_id: Its run; None if the record names none.
        task_id: The task that set the job up; None likewise.
        map_index: Which instance of a mapped task; -1 for one that is not mapped.

    """

    dag_id: str
    run_id: str | None = None
    task_id: str | None = None
    map_index: int = -1

    @classmethod
    def of(cls, context: Mapping[str, str]) -> Origin | None:
        """Return the origin that a job's context names; None if it names no DAG that there could be."""
        dag_id, run_id = context.get("dag_id", ""), context.get("run_id", "")
        task_id, map_index = context.get("task_id", ""), context.get("map_index", "")
        if not _is_id(dag_id) or not _ID.fullmatch(dag_id):
            return None
        return cls(
            dag_id,
            run_id if _is_id(run_id) else None,
            task_id if _is_id(task_id) and _ID.fullmatch(task_id) else None,
            int(map_index) if re.fullmatch(r"[0-9]{1,9}", map_index) else -1,
        )

    @property
    def url(self) -> str | None:
        """The address of the run in Airflow's UI, below Airflow's root; None without a run."""
        if self.run_id is None:
            return None
        return f"dags/{quote(self.dag_id, safe='')}/runs/{quote(self.run_id, safe='')}"


def _is_id(text: str) -> bool:
    # A browser takes "." and ".." for directions, however they are encoded. A database takes no NUL.
    return 0 < len(text) <= _LONGEST and text.isprintable() and text not in {".", ".."}

"""The page on plain Python: its DAG's tasks, run."""

from __future__ import annotations

import importlib.util
import io
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_s3commit.operators import (
    S3CommitJobOperator,
    S3CommitResolveConflictsOperator,
)
from tests.airflow.runs import new_context, pending, set_up, visible
from tests.docs.blocks import DOCS, blocks_of

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from airflow_s3commit import MemoryStore


@pytest.fixture
def page(tmp_path: Path) -> ModuleType:
    """Return the page's DAG file as a module."""
    (block,) = [each for each in blocks_of(DOCS / "how-to/plain-python.md") if each.mark == "dag"]
    path = tmp_path / "shown.py"
    path.write_text(block.text)
    spec = importlib.util.spec_from_file_location("shown_on_page", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load(
    page: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    reference: Any,
    day: str,
    *,
    number: int,
    try_number: int,
) -> dict[str, Any]:
    """Run one mapped instance of the page's task, as Airflow would."""
    context = new_context(try_number, map_index=number)
    monkeypatch.setattr(page, "get_current_context", lambda: context)
    written: dict[str, Any] = page.load.function(reference, day)
    return written


def test_mapped_tasks_write_and_one_commit_makes_them_visible(
    page: ModuleType, store: MemoryStore, context: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the commit nothing is visible, and afterwards exactly the rows of the tries that count."""
    reference = set_up(store)
    days = ["2013-01-01", "2013-01-02"]
    # A try that ended and whose result Airflow lost: its rows are written, but do not count.
    load(page, monkeypatch, reference, days[0], number=0, try_number=1)
    written = [load(page, monkeypatch, reference, day, number=n, try_number=2) for n, day in enumerate(days)]
    sealed = page.seal.function(reference, written)
    assert sealed == page.seal.function(reference, written)
    S3CommitResolveConflictsOperator(task_id="resolve", job=reference).execute(context)
    S3CommitResolveConflictsOperator(task_id="resolve", job=reference).execute(context)
    assert visible(store) == []
    S3CommitJobOperator(task_id="commit", job=reference).execute(context)
    assert sorted(key.rpartition("/")[0] for key in visible(store)) == [f"flights/dt={day}" for day in days]
    rows = [row for key in visible(store) for row in pq.read_table(_file(store, key)).to_pylist()]
    assert sorted(row["flights"] for row in rows) == [11, 11, 12, 12]
    assert pending(store) == []


def test_a_try_that_fails_leaves_nothing(
    page: ModuleType, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error between writing and the end of the block aborts what the try has uploaded."""
    reference = set_up(store)
    monkeypatch.setattr("airflow_s3commit.protocol.steps.task_attempt.TaskAttempt.commit", _refused)
    with pytest.raises(AirflowFailException):
        load(page, monkeypatch, reference, "2013-01-01", number=0, try_number=1)
    assert pending(store) == []


def _refused(_: object) -> None:
    raise AirflowFailException("the task's own check says no")


def _file(store: MemoryStore, key: str) -> Any:
    return io.BytesIO(store.get("lake", key).body)

"""A commit that several tasks share."""

from __future__ import annotations

import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_s3commit.operators import (
    S3CommitJobOperator,
    S3CommitPartOperator,
    S3CommitResolveConflictsOperator,
)
from tests.airflow.runs import pending, set_up, visible, write_stage


@pytest.fixture
def resolved(store, context) -> dict:
    """A sealed job of five files."""
    reference = set_up(store)
    for number in range(5):
        write_stage(store, reference, stage=f"s{number}", files={f"dt=2013-01-0{number + 1}/p": b"rows"})
    conflicts = S3CommitResolveConflictsOperator(task_id="resolve", job=reference).execute(context)
    return {"job": reference, "conflicts": conflicts}


def part(resolved: dict, number: int, parts: int) -> S3CommitPartOperator:
    """Return the task of one part."""
    return S3CommitPartOperator(task_id="parts", part=number, parts=parts, **resolved)


def commit(resolved: dict, context: dict, **arguments: object) -> dict:
    """Commit what the parts have left."""
    return S3CommitJobOperator(task_id="commit", **resolved, **arguments).execute(context)


def test_parts_and_the_commit_make_the_whole_visible(store, context, resolved) -> None:
    """Parts in any order, one of them twice, complete all, and the commit announces it."""
    table = Asset("flights")
    context["outlet_events"] = OutletEventAccessors()
    for number in (2, 0, 2, 1):
        part(resolved, number, 3).execute(context)
    assert (len(visible(store)), pending(store)) == (5, [])
    summary = commit(resolved, context, outlets=[table])
    assert (summary["files"], len(visible(store))) == (5, 5)
    assert context["outlet_events"][table].extra["job_id"] == summary["job_id"]


def test_the_commit_completes_what_parts_have_left(store, context, resolved) -> None:
    """A part that never ran, or that was killed, loses nothing."""
    part(resolved, 0, 3).execute(context)
    killed = part(resolved, 1, 3)
    killed.on_kill()
    with pytest.raises(AirflowException, match="killed"):
        killed.execute(context)
    assert commit(resolved, context)["files"] == 5
    assert (len(visible(store)), pending(store)) == (5, [])


def test_each_task_may_be_run_again(store, context, resolved) -> None:
    """After a clear, on a committed job, each task succeeds and changes nothing."""
    for number in (0, 1):
        part(resolved, number, 2).execute(context)
    summary, before = commit(resolved, context), visible(store)
    part(resolved, 0, 2).execute(context)
    assert commit(resolved, context) == summary
    assert visible(store) == before


def test_a_part_of_another_seal_than_the_one_handed_over_is_refused(store, context, resolved) -> None:
    """Its files would be visible, and those of no task that counts; so is a part that does not exist."""
    with pytest.raises(AirflowFailException, match="part 2 of 2"):
        part(resolved, 2, 2).execute(context)
    resolved["conflicts"]["seal"]["sha256"] = "0" * 64
    with pytest.raises(AirflowFailException, match="is not the seal"):
        part(resolved, 0, 2).execute(context)
    assert visible(store) == []

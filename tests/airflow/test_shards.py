"""A commit that several tasks share."""

from __future__ import annotations

import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_s3commit.operators import (
    S3CommitBeginOperator,
    S3CommitFinishOperator,
    S3CommitJobOperator,
    S3CommitResolveConflictsOperator,
    S3CommitShardOperator,
)
from tests.airflow.runs import pending, set_up, visible, write_stage


@pytest.fixture
def resolved(store, context) -> dict:
    """A sealed and planned job of five files."""
    reference = set_up(store)
    for number in range(5):
        write_stage(store, reference, stage=f"s{number}", files={f"dt=2013-01-0{number + 1}/p": b"rows"})
    conflicts = S3CommitResolveConflictsOperator(task_id="resolve", job=reference).execute(context)
    return {"job": reference, "conflicts": conflicts}


def begin(resolved: dict, shards: int | str, context: dict) -> list[int]:
    """Begin the commit and return the numbers of its shards."""
    return S3CommitBeginOperator(task_id="begin", shards=shards, **resolved).execute(context)


def complete(resolved: dict, shard: int, context: dict) -> None:
    """Complete one shard."""
    S3CommitShardOperator(task_id="shards", job=resolved["job"], shard=shard).execute(context)


def finish(resolved: dict, context: dict, **arguments: object) -> dict:
    """Finish the commit."""
    return S3CommitFinishOperator(task_id="commit", job=resolved["job"], **arguments).execute(context)


def test_shards_make_the_whole_visible(store, context, resolved) -> None:
    """Shards in any order, one of them twice, and the finish commit what one task would."""
    table = Asset("flights")
    context["outlet_events"] = OutletEventAccessors()
    numbers = begin(resolved, "3", context)
    assert numbers == [0, 1, 2]
    for shard in (2, 0, 2, 1):
        complete(resolved, shard, context)
    summary = finish(resolved, context, outlets=[table])
    assert (summary["files"], len(visible(store)), pending(store)) == (5, 5, [])
    assert context["outlet_events"][table].extra["job_id"] == summary["job_id"]


def test_each_task_may_be_run_again(store, context, resolved) -> None:
    """After a clear, on a committed job, each of the three tasks succeeds and changes nothing."""
    for shard in begin(resolved, 2, context):
        complete(resolved, shard, context)
    summary = finish(resolved, context)
    before = visible(store)
    assert begin(resolved, 2, context) == [0]
    complete(resolved, 0, context)
    assert finish(resolved, context) == summary
    assert visible(store) == before


def test_a_begin_that_is_retried_keeps_its_shards(context, resolved) -> None:
    """The commit keeps as many shards as the first try made."""
    assert begin(resolved, 3, context) == begin(resolved, 7, context) == [0, 1, 2]


def test_a_missing_shard_is_no_commit(store, context, resolved) -> None:
    """The finish fails while a shard is missing, and one task may still commit everything."""
    complete(resolved, begin(resolved, 2, context)[0], context)
    with pytest.raises(AirflowFailException, match=r"shards \[1\] are not complete"):
        finish(resolved, context)
    S3CommitJobOperator(task_id="commit", **resolved).execute(context)
    assert len(visible(store)) == 5


@pytest.mark.parametrize("shards", [0, -1, 1025, "many", None])
def test_a_number_that_cannot_be_mapped_is_refused(context, resolved, shards) -> None:
    """It is refused before anything is begun, and without retries."""
    with pytest.raises(AirflowFailException, match="from 1 to 1024"):
        begin(resolved, shards, context)


def test_another_plan_than_the_one_handed_over_is_refused(store, context, resolved) -> None:
    """The beginning of a sharded commit pins seal and plan as a whole commit does."""
    resolved["conflicts"]["plan"]["etag"] = "0" * 32
    with pytest.raises(AirflowFailException):
        begin(resolved, 2, context)
    assert visible(store) == []

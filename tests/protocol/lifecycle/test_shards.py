"""A commit in shards is the commit of the whole job, by several workers."""

from __future__ import annotations

import json

import pytest

from airflow_s3commit.exceptions import JobClosed, JobFailed, NoSuchJob
from tests.cases import each
from tests.protocol.building import Lake, named
from tests.protocol.lifecycle.test_commit import (
    OLD,
    check_as_before,
    check_committed,
    lose_upload,
    sealed_lake,
    state,
)
from tests.protocol.lifecycle.test_seal import refused


def test_shards_together_are_the_job() -> None:
    """Completed shard by shard, in any order and by any worker, the job is committed as in one piece."""
    lake = Lake()
    lake.put(OLD)
    lake.sealed(*({f"dt=1/{n}": b"x"} for n in range(7)))
    shards = lake.job(owner="begin").begin(3)
    assert shards == [0, 1, 2]
    assert lake.job(owner="begin again").begin(5) == shards
    for shard in (2, 0, 2, 1):
        lake.job(owner=f"worker {shard}").complete(shard)
    manifest = lake.job(owner="finish").finish()
    assert manifest.counts.files == 7
    assert lake.data() == {"dt=2/old": b"old 2", **{named(f"dt=1/{n}"): b"x" for n in range(7)}}
    assert lake.job().finish() == manifest
    assert lake.job().begin(3) == []
    lake.job().complete(1)
    assert (lake.pending(), lake.staging()) == ([], [])


def test_a_job_is_not_finished_before_its_shards() -> None:
    """While a shard is missing the job is not finished, and the message names it; a plain commit does all."""
    lake = sealed_lake()
    lake.job().begin(2)
    lake.job().complete(1)
    with pytest.raises(JobClosed, match=r"shards \[0\] are not complete"):
        lake.job().finish()
    assert state(lake) == "committing"
    lake.job().commit()
    check_committed(lake)


@each("field", ["seal_etag", "job_id"])
def test_the_record_of_a_shard_counts_for_its_own_seal(field: str) -> None:
    """What a worker says of another seal, or another job, completes no shard of this one."""
    lake = sealed_lake()
    for shard in lake.job().begin(2):
        lake.job().complete(shard)
    key = lake.context().layout.shard(0)
    lake.tamper(key, old=str(json.loads(lake.get(key))[field]).encode(), new=b"another")
    with pytest.raises(JobClosed, match=r"shards \[0\] are not complete"):
        lake.job().finish()
    lake.job().complete(0)
    lake.job().finish()
    check_committed(lake)


@pytest.mark.parametrize("shard", [-1, 2, 99])
def test_a_shard_that_does_not_exist_is_refused(shard: int) -> None:
    """Only the shards that the commit was cut into can be completed."""
    lake = sealed_lake()
    lake.job().begin(2)
    with pytest.raises(JobClosed, match="has no shard"):
        lake.job().complete(shard)


def test_more_shards_than_tasks_are_fine() -> None:
    """Shards without a task are complete at once."""
    lake = sealed_lake()
    for shard in lake.job().begin(10):
        lake.job().complete(shard)
    lake.job().finish()
    check_committed(lake)


def test_a_shard_before_the_begin_is_refused() -> None:
    """A shard of a job whose commit has not begun is refused and publishes nothing."""
    lake = sealed_lake()
    refused(lake, JobClosed, lambda: lake.job().complete(0))


def test_a_failing_shard_rolls_the_whole_job_back() -> None:
    """If one shard cannot be completed, the others' files are taken back too."""
    lake = sealed_lake()
    lake.job().begin(2)
    lake.job().complete(1)
    assert len(lake.data()) == 4
    lose_upload(lake, named("dt=1/a"))
    with pytest.raises(JobFailed):
        lake.job().complete(0)
    check_as_before(lake)
    for step in (lambda: lake.job().complete(1), lake.job().finish):
        with pytest.raises((JobClosed, NoSuchJob)):
            step()

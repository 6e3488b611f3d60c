"""Several contexts, threads and drivers that write through the doors in Python lose no rows silently."""

from __future__ import annotations

import json
from itertools import product
from typing import TYPE_CHECKING

import pytest

from airflow_s3commit import Job, JobOptions
from airflow_s3commit.spark import committer_conf
from tests.spark.conftest import Lake, Submit
from tests.spark.first_writes import TABLES, TASKS
from tests.spark.several import DOORS, STREAMS, WAYS

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.seaweedfs, pytest.mark.xdist_group("spark-submit")]

#: Spark finds no data source of Python in a thread that it did not start.
NOT_FOUND = ["format job threads", "format threads"]
FOR_A_JOB = [case for door, way in product(DOORS, WAYS) if (case := f"{door} job {way}") not in NOT_FOUND]
WITHOUT = [case for door, way in product(DOORS, WAYS) if (case := f"{door} {way}") not in NOT_FOUND]


@pytest.mark.all
def test_of_two_writes_both_count_or_one_fails(lake: Lake, submit_unchanged: Submit, tmp_path: Path) -> None:
    """Jobs of the writes' own commit all rows; a stage of a job takes one write, and any other one fails."""
    lakes = {
        case: Lake(lake.store, lake.server, f"{lake.uri}{case.replace(' ', '-')}/")
        for case in (*FOR_A_JOB, *WITHOUT, *NOT_FOUND, *STREAMS)
    }
    address = {"endpoint_url": lake.server.endpoint_url, "region": "us-east-1", "path_style": True}
    options = JobOptions(conflict_mode="append")
    jobs = {
        case: Job.setup(lake.store, lakes[case].uri, options=options) for case in (*FOR_A_JOB, NOT_FOUND[0])
    }
    confs = {case: committer_conf(job.reference, "load", "1", **address) for case, job in jobs.items()}
    places = {f"spark.{key}": value for key, value in _address(confs).items()}

    def run(start: int) -> dict[str, list[str]]:
        arguments = [json.dumps(confs), lake.uri, str(tmp_path), str(start)]
        done = submit_unchanged("several.py", arguments, places)
        assert done.returncode == 0, done.stdout[-4000:]
        errors: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
        return errors

    first = run(0)
    assert {case: len(errors) for case, errors in first.items()} == {
        **dict.fromkeys(FOR_A_JOB, 1),
        **dict.fromkeys(NOT_FOUND, 2),
        # Two contexts, and in each the second write of the batch.
        "stream unnamed": 2,
    }
    assert all("was sealed before, with other task attempts" in first[case][0] for case in FOR_A_JOB)
    assert all("give each write of a batch another name" in error for error in first["stream unnamed"])
    # Another driver, with the same conf.
    assert {case: len(errors) for case, errors in run(60).items()} == {
        **dict.fromkeys((*FOR_A_JOB, *NOT_FOUND), 2),
        "stream unnamed": 2,
    }
    assert all("DATA_SOURCE_NOT_FOUND" in error for case in NOT_FOUND for error in first[case])
    jobs.pop(NOT_FOUND[0]).abort()
    for case, job in jobs.items():
        job.seal()
        assert job.commit().counts.rows == 30
        assert len(lakes[case].table()) == 30
    for case in (*WITHOUT, "stream contexts", "stream named"):
        assert sorted(lakes[case].table().column("id").to_pylist()) == list(range(120)), case
    assert [case for case, table in lakes.items() if table.pending()] == []


@pytest.mark.all
def test_tasks_of_a_first_write_set_its_job_up_at_once(lake: Lake, submit_unchanged: Submit) -> None:
    """Eight tasks that find no table begin its log and set one job up, and refuse nothing, ten times."""
    address = {
        "endpoint.url": lake.server.endpoint_url, "endpoint.region": "us-east-1", "path.style": "true",
    }  # fmt: skip
    conf = {f"spark.s3commit.{name}": value for name, value in address.items()}
    done = submit_unchanged("first_writes.py", [lake.uri], conf)
    assert done.returncode == 0, done.stderr[-4000:]
    for table in range(TABLES):
        one = Lake(lake.store, lake.server, f"{lake.uri}{table}/")
        assert sorted(one.table().column("id").to_pylist()) == list(range(10 * TASKS))
        assert one.manifest().counts.rows == 10 * TASKS
    assert lake.pending() == []


def _address(confs: dict[str, dict[str, str]]) -> dict[str, str]:
    """Return what the confs of all jobs have in common: where the store is."""
    (first, *_) = confs.values()
    names = ("s3commit.endpoint.url", "s3commit.endpoint.region", "s3commit.path.style")
    return {name: first[f"spark.{name}"] for name in names}

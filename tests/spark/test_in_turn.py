"""Jobs that one application begins and ends for Spark's own writers, on each Spark that the jar is for."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_s3commit import Job, JobOptions, JobReference
from airflow_s3commit.protocol.inspect.jobs import list_jobs
from airflow_s3commit.spark import pending_conf
from tests.spark.conftest import Lake, Submit
from tests.spark.engines import ENGINES, Engine

if TYPE_CHECKING:
    from collections.abc import Iterable

pytestmark = [
    pytest.mark.all,
    pytest.mark.spark,
    pytest.mark.seaweedfs,
    pytest.mark.xdist_group("spark-submit"),
]

#: The ids of the rows that each table has in the end.
TABLES: dict[str, Iterable[int]] = {
    "write_pending-parquet": [*range(0, 20, 2), *range(101, 110, 2)],
    "block-outer": range(20),
    "block-inner": range(10),
    "thread-same": range(20),
    "thread-0": range(10),
    "thread-1": range(10, 20),
    "killed": range(10),
}

#: What each way to write ends with.
ERRORS = {
    "write_pending": "DestinationNotEmpty: ",
    "block": "DestinationNotEmpty: ",
    "nameless": "2 jobs write to ",
    "late": "1 writes for job ",
    "empty": "JobClosed: ",
    "aborted": "is aborted: nothing of it is or will become visible",
    "other_owner": "JobClosed: stage a-0 of job ",
}


@pytest.fixture(
    scope="module",
    params=[name if name == "installed" else pytest.param(name, marks=pytest.mark.all) for name in ENGINES],
)
def engine(request: pytest.FixtureRequest) -> Engine:
    """Return each Spark that the jar is for."""
    return ENGINES[request.param](request.config.cache)


def test_each_write_is_of_its_own_job(lake: Lake, submit_unchanged: Submit, tmp_path: Path) -> None:
    """Jobs in turn, within each other, in threads and before a kill commit their own rows, each once."""
    lakes = {name: Lake(lake.store, lake.server, f"{lake.uri}{name}/") for name in TABLES}
    other = Job.setup(lake.store, f"{lake.uri}other/", options=JobOptions(conflict_mode="append"))
    for end in ("in", "out"):
        os.mkfifo(tmp_path / end)
    arguments = [lake.uri, json.dumps(other.reference.to_dict()), str(tmp_path)]
    done = submit_unchanged(
        "in_turn.py", arguments, pending_conf(), PYTHONPATH=str(Path(__file__).parents[2])
    )
    assert done.returncode != 0
    errors = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert errors.keys() == ERRORS.keys(), errors
    assert [error for name, error in errors.items() if ERRORS[name] not in error] == []
    found = {name: sorted(one.table("dt").column("id").to_pylist()) for name, one in lakes.items()}
    assert found == {name: sorted(ids) for name, ids in TABLES.items()}
    # The driver died with a job open, whose output nobody sees, and which anybody can abort.
    (left,) = list_jobs(lake.store, lakes["killed"].destination)
    assert lakes["killed"].pending()
    staging = f"{lakes['killed'].uri}__magic_job-{left.job_id}/"
    reference = JobReference(job_id=left.job_id, destination=lakes["killed"].uri, staging=staging)
    Job.at(lake.store, reference).abort()
    other.seal()
    assert other.commit().counts.rows == 20
    # A thread that writes on after its job has failed leaves uploads to a sweep.
    left_over = [*lake.pending(), *(key for key in lake.everything() if "/__magic_job-" in key)]
    assert [key for key in left_over if "/late/" not in key] == []

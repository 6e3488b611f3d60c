"""The conflict mode, from form and template to the task; and times as authors of DAGs write them."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pendulum
import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import ParamValidationError

from airflow_s3commit import MemoryStore
from airflow_s3commit.operators import S3CommitSetupOperator
from airflow_s3commit.params import SPARKS_CONFLICT_MODE, conflict_mode_param, moment_of
from airflow_s3commit.sensors import S3SuccessManifestSensor
from tests.airflow.runs import FLIGHTS, new_context


@pytest.mark.parametrize(
    ("run_type", "conf", "params", "mode"),
    [
        ("scheduled", {}, {}, "fail"),
        ("scheduled", {}, {"conflict_mode": "append"}, "append"),
        ("manual", {"conflict_mode": "append"}, {"conflict_mode": "append"}, "append"),
        ("backfill", {}, {"conflict_mode": "fail"}, "replace"),
        ("backfill", None, {"conflict_mode": "fail"}, "replace"),
        ("backfill", {}, {}, "replace"),
        ("backfill", {"conflict_mode": "append"}, {"conflict_mode": "append"}, "append"),
        ("backfill", {"other": 1}, {"conflict_mode": "fail"}, "replace"),
    ],
)
def test_the_default_mode(run_type: str, conf: dict | None, params: dict, mode: str) -> None:
    """Runs take the param's mode, and backfills replace unless their conf names a mode."""
    operator = S3CommitSetupOperator(task_id="setup", destination="s3://lake/flights/")
    operator.render_template_fields(
        new_context(params=params, dag_run={"run_type": run_type, "conf": conf})  # type: ignore[arg-type]
    )
    assert operator.options["conflict_mode"] == mode


@pytest.mark.parametrize(
    ("run_type", "conf", "params", "mode"),
    [
        ("scheduled", {}, {}, "as-written"),
        ("backfill", {}, {}, "as-written"),
        ("scheduled", {}, {"conflict_mode": "append"}, "append"),
        ("scheduled", {}, {"conflict_mode": "fail"}, "fail"),
        ("backfill", {}, {"conflict_mode": "fail"}, "replace"),
        ("manual", {"conflict_mode": "replace"}, {"conflict_mode": "replace"}, "replace"),
    ],
)
def test_the_save_modes_decide_unless_a_mode_is_named(
    run_type: str, conf: dict, params: dict, mode: str
) -> None:
    """A group of Spark's own writers takes the param's mode if set, and the save modes otherwise."""
    operator = S3CommitSetupOperator(
        task_id="setup", destination="s3://lake/flights/", conflict_mode=SPARKS_CONFLICT_MODE
    )
    operator.render_template_fields(
        new_context(params=params, dag_run={"run_type": run_type, "conf": conf})  # type: ignore[arg-type]
    )
    assert operator.options["conflict_mode"] == mode


def test_the_param_takes_the_modes_only() -> None:
    """The form's field accepts the modes, each as its default too, and refuses anything else."""
    param = conflict_mode_param()
    assert param.resolve() == "fail"
    for mode in ("fail", "append", "replace", "as-written"):
        assert param.resolve(mode) == conflict_mode_param(mode).resolve() == mode
    with pytest.raises(ParamValidationError):
        param.resolve("overwrite")


def test_an_unknown_mode_is_named() -> None:
    """The error says what the mode was and what it may be."""
    with pytest.raises(ValueError, match="'overwrite'; it must be one of fail, append, replace"):
        conflict_mode_param("overwrite")


BERLIN = pendulum.timezone("Europe/Berlin")

#: Half an hour after the night in which the clocks of Berlin go back.
AFTER = datetime(2013, 10, 27, 23, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "utc"),
    [
        (datetime(2013, 7, 1, 6, tzinfo=UTC), "2013-07-01T06:00:00Z"),
        (datetime(2013, 7, 1, 6), "2013-07-01T04:00:00Z"),
        (pendulum.datetime(2013, 7, 1, 6, tz="Asia/Tokyo"), "2013-06-30T21:00:00Z"),
        ("2013-07-01T06:00:00", "2013-07-01T04:00:00Z"),
        ("2013-07-01 06:00:00+00:00", "2013-07-01T06:00:00Z"),
        (date(2013, 7, 1), "2013-06-30T22:00:00Z"),
        (" 2013-07-01 ", "2013-06-30T22:00:00Z"),
        ("2013-07-01/2013-07-02", "2013-06-30T22:00:00Z"),
        (SimpleNamespace(start=pendulum.datetime(2013, 7, 1), end=None), "2013-07-01T00:00:00Z"),
        # The day before has 25 hours.
        ("1d", "2013-10-26T22:30:00Z"),
        ("P1D", "2013-10-26T22:30:00Z"),
        (timedelta(days=1), "2013-10-26T22:30:00Z"),
        (pendulum.duration(days=1), "2013-10-26T22:30:00Z"),
        ("24h", "2013-10-26T22:30:00Z"),
        ("23h", "2013-10-27T00:30:00Z"),
        ("0.5s", "2013-10-27T23:29:59.500Z"),
        ("1d12h", "2013-10-26T10:30:00Z"),
        ("PT36H", "2013-10-26T10:30:00Z"),
    ],
    ids=str,
)
def test_a_time_is_one_of_the_dag_s_zone(value: Any, utc: str) -> None:
    """Times and dates without a zone are the DAG's, and days are those of its calendar."""
    # Times in the hour that occurs twice never equal those of another zone.
    assert moment_of(value, before=AFTER, zone=BERLIN).timestamp() == datetime.fromisoformat(utc).timestamp()


@pytest.mark.parametrize("value", ["yesterday", "a week", "12:00", "", 7, None, True])
def test_an_invalid_time_is_refused(value: Any) -> None:
    """The message says how to write one."""
    with pytest.raises(ValueError, match="write 2013-01-01"):
        moment_of(value, before=AFTER)


def test_the_sensor_counts_from_its_run(store: MemoryStore) -> None:
    """A duration ends at the run, so that a cleared sensor looks for the same manifest."""
    with DAG("nightly", schedule=None, start_date=pendulum.datetime(2013, 1, 1, tz="Europe/Berlin")):
        sensor = S3SuccessManifestSensor(task_id="wait", destination=FLIGHTS, newer_than="1d", timeout=0)
    context = new_context(dag_run={"run_after": AFTER})
    with pytest.raises(Exception, match=r"no manifest|absent"):
        sensor.execute(context)
    assert sensor._wanted.newer_than == datetime(2013, 10, 26, 22, 30, tzinfo=UTC).timestamp()

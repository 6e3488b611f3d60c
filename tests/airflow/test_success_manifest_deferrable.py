"""The sensor that waits in the triggerer."""

from __future__ import annotations

import time
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)

from airflow_s3commit.sensors import S3SuccessManifestSensor
from tests.airflow.runs import DAY, FLIGHTS, at, commit, new_context


def sensor(**arguments: object) -> S3SuccessManifestSensor:
    """Return a deferrable sensor for the day's partition."""
    asked = {"partitions": [DAY], "deferrable": True, "timeout": 600, **arguments}
    return S3SuccessManifestSensor(**{"task_id": "wait", "destination": FLIGHTS, **asked})


def test_an_existing_manifest_needs_no_triggerer(store, context) -> None:
    """The worker searches first; if it finds the manifest, nothing is deferred."""
    reference = commit(store)
    waiting = sensor()
    assert waiting.execute(context)["job_id"] == reference["job_id"]
    assert waiting.manifest_uri


def test_it_defers_with_its_conditions_and_a_timeout(store, context) -> None:
    """The trigger gets the sensor's conditions, and Airflow times the deferral out a little later."""
    before = time.time()
    asked = {"newer_than": "2013-01-01", "min_files": "2", "search_depth": 3}
    with pytest.raises(TaskDeferred) as deferred:
        sensor(**asked, poke_interval=7, aws_conn_id="lake").execute(context)
    trigger = deferred.value.trigger
    assert trigger.wanted["partitions"] == [DAY]
    assert trigger.wanted["min_files"] == 2
    assert trigger.wanted["newer_than"] == 1356998400.0
    assert (trigger.poke_interval, trigger.search_depth, trigger.aws_conn_id) == (7, 3, "lake")
    assert before + 600 <= trigger.give_up_at <= time.time() + 600
    assert deferred.value.timeout.total_seconds() > 600
    assert deferred.value.method_name == "execute_complete"


def test_a_duration_ends_where_the_run_begins(store) -> None:
    """A cleared run looks for the same commits as its first pass, however late it runs."""
    with pytest.raises(TaskDeferred) as deferred:
        sensor(newer_than="1d").execute(new_context(dag_run={"run_after": at(2013, 1, 2)}))
    assert deferred.value.trigger.wanted["newer_than"] == at(2013, 1, 1).timestamp()


def test_a_date_begins_in_the_zone_of_the_dag(store, context) -> None:
    """That of its runs, and not that of the worker."""
    with DAG("nightly", schedule=None, start_date=datetime(2013, 1, 1, tzinfo=ZoneInfo("Asia/Tokyo"))):
        waiting = sensor(newer_than="2013-01-02")
    with pytest.raises(TaskDeferred) as deferred:
        waiting.execute(context)
    assert deferred.value.trigger.wanted["newer_than"] == at(2013, 1, 1).timestamp() + 15 * 3600


def test_the_default_is_airflows(monkeypatch) -> None:
    """Without the argument, the sensor waits as the installation is configured, here on a worker."""
    waiting = S3SuccessManifestSensor(task_id="wait", destination=FLIGHTS, run_id="any")
    assert waiting.deferrable is False


def test_it_returns_what_the_trigger_found(context) -> None:
    """The summary from the event is the XCom, and the link leads to the manifest."""
    waiting = sensor()
    summary = {"manifest": "s3://lake/flights/_s3commit/jobs/j.json", "job_id": "j"}
    assert waiting.execute_complete(context, {"status": "success", "manifest": summary}) == summary
    assert waiting.manifest_uri == summary["manifest"]


@pytest.mark.parametrize(
    ("status", "outcome", "error"),
    [
        ("error", "missing-bucket", AirflowFailException),
        ("error", "no-permission", AirflowFailException),
        ("error", "refused", AirflowFailException),
        ("error", "error", AirflowException),
        ("timeout", "stale", AirflowSensorTimeout),
        ("timeout", "damaged", AirflowSensorTimeout),
        ("timeout", "absent", AirflowSensorTimeout),
    ],
)
def test_each_outcome_is_an_error_of_its_own(context, status, outcome, error) -> None:
    """The error has the trigger's outcome, and the task is retried only if a retry can help."""
    event = {"status": status, "outcome": outcome, "message": "as it is"}
    with pytest.raises(AirflowException, match=f"{outcome}: as it is") as raised:
        sensor().execute_complete(context, event)
    assert type(raised.value) is error


def test_a_resume_without_an_event_is_an_error(context) -> None:
    """Nothing is taken for a found manifest."""
    with pytest.raises(AirflowException, match="without an event"):
        sensor().execute_complete(context, None)


def test_a_hopeless_first_look_does_not_defer(store, context) -> None:
    """A missing bucket fails the task before a triggerer gets involved; skipping instead is respected."""
    with pytest.raises(AirflowFailException, match="missing-bucket: NoSuchBucket"):
        sensor(destination="s3://swamp/flights/").execute(context)
    with pytest.raises(AirflowSkipException):
        sensor(destination="s3://swamp/flights/", soft_fail=True).execute(context)


def test_a_worker_that_waits_in_vain_says_what_it_saw(store, context) -> None:
    """The timeout of a sensor on a worker names the last outcome too."""
    waiting = sensor(deferrable=False, timeout=0, poke_interval=0)
    with pytest.raises(AirflowSensorTimeout, match="Last outcome: absent: no commit in "):
        waiting.execute(context)

"""DAGs of the README and the pages, run as shown: by schedule, by hand and by backfill, with the audit."""

from __future__ import annotations

import json
import re
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.providers.amazon.aws.hooks.emr import EmrServerlessHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from botocore.awsrequest import AWSResponse

from tests.airflow.dag_runs import Scheduled
from tests.airflow.runs import pending, write_stage
from tests.docs.blocks import DOCS, ROOT, blocks_of

if TYPE_CHECKING:
    from airflow_s3commit import MemoryStore

pytestmark = pytest.mark.xdist_group("airflow-dag-runs")

#: Pages with a nightly DAG that has partitions.
NIGHTLIES = (ROOT / "README.md", DOCS / "index.md", DOCS / "how-to/backfill-with-replace.md")

DAY = datetime(2026, 11, 20, tzinfo=UTC)


@pytest.fixture
def spark(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Write one file for the application's last argument, a day; return the arguments of each start."""
    started: list[list[str]] = []

    def submit(operator: SparkSubmitOperator, _context: Any) -> None:
        arguments, conf = list(operator.application_args or []), dict(operator.conf or {})
        started.append(arguments)
        write_day(store, conf, arguments[-1])

    monkeypatch.setattr(SparkSubmitOperator, "execute", submit)
    return started


def write_day(store: MemoryStore, conf: dict[str, str], day: str) -> None:
    """Write what an application with this conf does for a day."""
    reference = {
        name: conf[f"spark.s3commit.job.{spelt}"]
        for name, spelt in (("job_id", "id"), ("destination", "destination"), ("staging", "staging"))
    }
    stage, attempt = conf["spark.s3commit.stage"], conf["spark.s3commit.stage.attempt"]
    files = {f"dt={day}/part-00000.parquet": b"rows"}
    write_stage(store, reference, stage=stage, attempt=attempt, files=files)


def shown(page: Path, folder: Path, *, audit: str = "", timezone: str = "UTC") -> Any:
    """Return the DAG that a page shows, perhaps with the audit that README offers, or in another zone."""
    texts = [block.text for block in blocks_of(page) if block.language == "python"]
    (text,) = [each for each in texts if "s3_commit_task_group(" in each and "@dag(" in each]
    if audit:
        text, number = re.subn(r'(destination="[^"]+")', rf"\1, {audit}", text)
        assert number == 1
    text = text.replace('timezone="UTC"', f'timezone="{timezone}"')
    # Pages show several DAGs of one name, and earlier tests have left runs of it.
    (name,) = re.findall(r"^def (\w+)\(\):", text, re.MULTILINE)
    folder.joinpath("shown.py").write_text(re.sub(rf"\b{name}\b", f"{name}_{folder.name}", text))
    bag = DagBag(str(folder), bundle_name="tests")
    assert bag.import_errors == {}
    (dag,) = bag.dags.values()
    return dag


def offered_audit() -> str:
    """Return the argument with the audit that the README offers."""
    (found,) = re.findall(r"`(audit=\{.*?\})`", (ROOT / "README.md").read_text())
    return str(found)


def days(store: MemoryStore) -> list[str]:
    """Return the days whose data readers see."""
    keys = [info.key.split("/") for info in store.list_objects("lake", "flights/")]
    return sorted(key[1].removeprefix("dt=") for key in keys if key[1].startswith("dt="))


@pytest.mark.parametrize("page", NIGHTLIES, ids=lambda page: page.name)
def test_a_nightly_dag_commits_the_day_that_its_run_names(
    page: Path, store: MemoryStore, spark: list[list[str]], tmp_path: Path
) -> None:
    """By schedule, by hand and by backfill with replace, its audit finds the day that Spark has written."""
    dag = shown(page, tmp_path, audit=offered_audit())
    scheduled = Scheduled([dag])
    night = scheduled.by_schedule(dag.dag_id, DAY)
    assert (night.state, night.partition_key, days(store)) == ("success", "2026-11-19", ["2026-11-19"])
    by_hand = scheduled.by_hand(dag.dag_id, "2026-11-20")
    assert (by_hand.state, days(store)) == ("success", ["2026-11-19", "2026-11-20"])
    first, last = datetime(2026, 11, 18, tzinfo=UTC), datetime(2026, 11, 19, tzinfo=UTC)
    again = scheduled.by_backfill(dag.dag_id, first, last)
    assert [run.state for run in again] == ["success", "success"]
    assert [run.partition_key for run in again] == ["2026-11-18", "2026-11-19"]
    assert days(store) == ["2026-11-18", "2026-11-19", "2026-11-20"]


@pytest.mark.parametrize(("month", "first"), [(3, 28), (10, 24)], ids=["to summer time", "from summer time"])
def test_each_day_around_a_change_of_the_clock_is_committed_once(
    store: MemoryStore, spark: list[list[str]], tmp_path: Path, month: int, first: int
) -> None:
    """The runs of a zone's midnights have its calendar's days as keys, also that of 23 or 25 hours."""
    dag = shown(ROOT / "README.md", tmp_path, audit=offered_audit(), timezone="Europe/Berlin")
    scheduled = Scheduled([dag])
    noons = [datetime(2026, month, first + day, 12, tzinfo=UTC) for day in range(3)]
    runs = [scheduled.by_schedule(dag.dag_id, noon) for noon in noons]
    keys = [f"{noon:%Y-%m-%d}" for noon in noons]
    assert [(run.state, run.partition_key) for run in runs] == [("success", key) for key in keys]
    assert days(store) == keys


@pytest.mark.parametrize("page", NIGHTLIES, ids=lambda page: page.name)
def test_a_run_without_a_partition_key_starts_no_spark(
    page: Path, store: MemoryStore, spark: list[list[str]], tmp_path: Path
) -> None:
    """Triggered by hand without a key, the stage fails before the application starts, and nothing is left."""
    dag = shown(page, tmp_path)
    run = Scheduled([dag]).by_hand(dag.dag_id)
    assert (run.state, run.tasks["refresh.spark_submit"], spark) == ("failed", "failed", [])
    assert (days(store), pending(store)) == ([], [])


def test_the_dag_of_the_tutorial_needs_no_key(
    store: MemoryStore, spark: list[list[str]], tmp_path: Path
) -> None:
    """It has no schedule, and refreshes the day on which it is started."""
    (text,) = [each.text for each in blocks_of(DOCS / "tutorial.md") if each.title == "dags/first.py"]
    (tmp_path / "shown.py").write_text(text)
    (dag,) = DagBag(str(tmp_path), bundle_name="tests").dags.values()
    assert Scheduled([dag]).by_hand(dag.dag_id).state == "success"
    (arguments,) = spark
    assert datetime.fromisoformat(arguments[0])


@pytest.mark.parametrize("state", ["SUCCESS", "FAILED"])
def test_the_dag_for_emr_commits_what_its_job_wrote(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, state: str
) -> None:
    """EMR accepts the operator's requests, the job gets the conf, and a failed one leaves nothing."""
    client = boto3.client("emr-serverless", "eu-central-1", aws_access_key_id="a", aws_secret_access_key="s")

    def answer(model: Any, params: dict[str, Any], **_: Any) -> tuple[AWSResponse, dict[str, Any]]:
        found: dict[str, Any] = {"application": {"state": "STARTED"}, "jobRun": {"state": state}}
        if model.name == "StartJobRun":
            job = json.loads(params["body"])["jobDriver"]["sparkSubmit"]
            words = shlex.split(job["sparkSubmitParameters"])
            assert words[::2] == ["--conf"] * (len(words) // 2)
            conf = dict(word.split("=", 1) for word in words[1::2])
            write_day(store, conf, job["entryPointArguments"][-1])
            found["jobRunId"] = "a-run"
        metadata = {"ResponseMetadata": {"HTTPStatusCode": 200}}
        return AWSResponse(params["url"], 200, {}, None), {**found, **metadata}

    # The operator's own requests, by EMR's own model of them, up to where they would be sent.
    client.meta.events.register("before-call.emr-serverless", answer)
    monkeypatch.setattr(EmrServerlessHook, "conn", client)
    dag = shown(DOCS / "how-to" / "other-engines.md", tmp_path)
    run = Scheduled([dag]).by_hand(dag.dag_id)
    assert run.tasks["refresh.load"] == state.lower()
    assert (run.state, len(days(store))) == (("success", 1) if state == "SUCCESS" else ("failed", 0))
    assert pending(store) == []

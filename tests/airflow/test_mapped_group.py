"""Commit groups that are mapped: each map index has a job of its own, and reads only what is its own."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import DAG, get_current_context, task, task_group
from airflow.sdk.exceptions import AirflowException, AirflowSkipException

import airflow_s3commit
from airflow_s3commit.hooks import S3CommitHook
from airflow_s3commit.task_group import s3_commit_task_group
from tests.airflow.dag_runs import Scheduled
from tests.airflow.runs import pending
from tests.docs.blocks import ROOT, pages

if TYPE_CHECKING:
    from airflow_s3commit import MemoryStore
    from tests.airflow.dag_runs import Finished

pytestmark = pytest.mark.xdist_group("airflow-dag-runs")


@task(retries=1, retry_delay=timedelta(0))
def load(job: dict[str, str], item: str) -> None:
    """Write and seal one file, as the item says: at once, in the second try, or not at all."""
    attempt = str(get_current_context()["ti"].try_number)
    if item == "skip":
        raise AirflowSkipException("there is nothing to load")
    opened = S3CommitHook().job(job)
    with opened.task_attempt("load", attempt, "00000", "0") as writing:
        with writing.open(f"item={item}/try-{attempt}.csv") as file:
            file.write(b"rows")
        written = writing.commit()
    opened.seal_stage("load", attempt, [written])
    if item == "fail" or (item == "retry" and attempt == "1"):
        raise AirflowException("the engine failed after it had sealed its output")


def finished(dag_id: str, *items: str) -> Finished:
    """Run a DAG whose commit group is mapped over the items."""
    with DAG(dag_id, schedule=None) as dag:

        @task_group
        def each(item: str) -> None:
            place = f"s3://lake/{dag_id}/{{{{ ti.map_index }}}}/"
            with s3_commit_task_group("refresh", destination=place, conflict_mode="append") as commit:
                commit.stage(load(commit.job, item), name="load")

        each.expand(item=list(items))
    return Scheduled([dag]).by_hand(dag_id)


def data(store: MemoryStore, dag_id: str) -> list[str]:
    """Return the files that readers see, without their jobs' ids."""
    keys = [info.key for info in store.list_objects("lake", f"{dag_id}/")]
    return [
        re.sub(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "", key).removeprefix(f"{dag_id}/")
        for key in keys
        if "/item=" in key
    ]


def test_each_item_commits_the_last_try_of_its_own_stage(store: MemoryStore) -> None:
    """Another item's number of tries does not decide which of two sealed attempts is committed."""
    run = finished("retried", "retry", "once", "once")
    assert run.state == "success", run.tasks
    assert data(store, "retried") == [
        "0/item=retry/try-2.csv",
        "1/item=once/try-1.csv",
        "2/item=once/try-1.csv",
    ]
    assert pending(store) == []


def test_a_skipped_item_ends_its_job_and_the_run_succeeds(store: MemoryStore) -> None:
    """The teardown of a skipped item finds nothing that was lost, as in a group that is not mapped."""
    run = finished("skipping", "once", "skip")
    assert (run.state, run.tasks["each.refresh.abort[1]"]) == ("success", "success")
    assert data(store, "skipping") == ["0/item=once/try-1.csv"]


def test_a_failed_item_fails_the_run_and_no_other_item(store: MemoryStore) -> None:
    """Its own teardown fails, and those of a skipped and of a committed item beside it do not."""
    run = finished("failing", "once", "skip", "fail")
    aborts = [run.tasks[f"each.refresh.abort[{index}]"] for index in range(3)]
    assert (run.state, aborts) == ("failed", ["success", "success", "failed"])
    assert data(store, "failing") == ["0/item=once/try-1.csv"]
    assert pending(store) == []


def test_a_program_in_a_mapped_group_finds_its_own_job() -> None:
    """The templates of ``environment`` read the setup with the stage's own map index."""
    found: dict[str, str] = {}
    with DAG("shell", schedule=None):

        @task_group
        def each(item: str) -> None:
            with s3_commit_task_group("refresh", destination="s3://lake/x/") as commit:
                commit.stage(load(commit.job, item))
                found.update(commit.environment("load"))

        each.expand(item=["a", "b"])
    assert "xcom_pull(task_ids='each.refresh.setup', map_indexes=ti.map_index)" in found["S3COMMIT_JOB"]


#: What asks Airflow for other tasks' XComs or states, and the argument that limits it to a map index.
_ASKS = {"xcom_pull": "map_indexes", "axcom_pull": "map_indexes", "get_task_states": "map_index"}

#: Reads the XComs of all items: it aborts every job of a run.
_ALL_ITEMS = "notifications.py"


def unlimited(tree: ast.Module) -> Iterator[str]:
    """Return the questions of a module to Airflow that name no map index."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            # ``**own`` is empty where the task is in no mapped group.
            named = {each.arg or "**" for each in node.keywords}
            if name in _ASKS and not named & {_ASKS[name], "**"}:
                yield f"line {node.lineno}: {name} without {_ASKS[name]}"
            if name in {"get_all", "get_one"} and ast.unparse(node.func.value) == "XCom":
                yield f"line {node.lineno}: XCom.{name}"
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from unlimited_templates(node.value)


def unlimited_templates(text: str) -> Iterator[str]:
    """Return the templates in a text that pull XComs of all map indexes."""
    for call in re.findall(r"\{\{[^}]*xcom_pull\(([^)]*)\)", text):
        if "map_indexes=" not in call:
            yield f"xcom_pull({call})"


def test_every_question_to_airflow_names_a_map_index() -> None:
    """No module, bundled DAG or page reads the XComs or states of another item of a mapped group."""
    package = Path(airflow_s3commit.__file__).parent
    asked = 0
    for file in [*package.rglob("*.py"), *(ROOT / "dags").rglob("*.py")]:
        text = file.read_text()
        asked += sum(text.count(f".{name}(") for name in _ASKS)
        found = list(unlimited(ast.parse(text)))
        assert found == [] or file.as_posix().endswith(_ALL_ITEMS), (file, found)
    assert asked >= len(_ASKS) - 1
    wrong: dict[str, Any] = {str(page): list(unlimited_templates(page.read_text())) for page in pages()}
    assert not any(wrong.values()), wrong

"""The DAGs of the documentation, as Airflow parses them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest

from tests.docs.blocks import ROOT, Block, all_blocks

pytestmark = [pytest.mark.airflow, pytest.mark.xdist_group("docs-dags")]

#: Parses each file by itself: pages show several DAGs of one name. Renders each template as in a run that
#: somebody starts by hand: without a logical date, and with a partition key only if the DAG has partitions.
PARSE = """
import json, sys
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from airflow.dag_processing.dagbag import DagBag


class Values(defaultdict):
    def __init__(self):
        super().__init__(lambda: "a-value")

    def __getattr__(self, name):
        return "a-value"

    def get(self, name, default=None):
        return default or "a-value"


def texts(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from texts(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from texts(each)


def rendered(dag):
    key = "2013-01-01" if "Partition" in type(dag.timetable).__name__ else None
    run = SimpleNamespace(run_id="manual__1", run_type="manual", logical_date=None, partition_key=key)
    run.run_after, run.conf = datetime(2013, 1, 1, tzinfo=UTC), {}
    ti = SimpleNamespace(try_number=1, map_index=-1, run_id=run.run_id, xcom_pull=lambda **_: Values())
    context = {
        "dag": dag, "dag_run": run, "run_id": run.run_id, "partition_key": key, "ti": ti, "task_instance": ti,
        "params": dag.params.dump(), "var": SimpleNamespace(value=Values()), "conn": defaultdict(Values),
        "triggering_asset_events": {},
    }
    environment = dag.get_template_env()
    for task in dag.tasks:
        ti.dag_id, ti.task_id = dag.dag_id, task.task_id
        given = {**getattr(task, "partial_kwargs", {}), **vars(task)}
        for name in task.template_fields:
            for text in texts(given.get(name)):
                if "{{" in text or "{%" in text:
                    try:
                        yield text, environment.from_string(text).render({**context, "task": task})
                    except Exception as error:
                        yield text, f"None: {error}"


told = {}
for path in sorted(Path(sys.argv[1]).iterdir()):
    bag = DagBag(str(path))
    told[path.stem] = {
        "errors": list(bag.import_errors.values()),
        "tasks": {dag_id: sorted(dag.task_ids) for dag_id, dag in bag.dags.items()},
        "rendered": [text for dag in bag.dags.values() for text in rendered(dag)],
    }
print("\\n" + json.dumps(told))
"""


#: Any file that imports this makes a DAG, and can be put into a folder unchanged.
IMPORTS_DAG = re.compile(r"^from airflow\S* import .*\b(dag|DAG)\b", re.MULTILINE)

#: Its DAG needs a provider that is not in this environment; test_kubernetes.py makes one for it.
KUBERNETES = "how-to/kubernetes.md"

DAGS = [
    block for block in all_blocks("python") if block.page != KUBERNETES and IMPORTS_DAG.search(block.text)
]

#: The project's own DAGs.
PROJECT = sorted((ROOT / "dags").glob("*.py"))


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Let one Airflow, with its own home, parse every DAG that a page shows."""
    home = tmp_path_factory.mktemp("airflow")
    folder = home / "dags"
    folder.mkdir()
    for number, block in enumerate(DAGS):
        (folder / f"shown_{number}.py").write_text(block.text)
    for file in PROJECT:
        (folder / f"project_{file.name}").write_text(file.read_text())
    done = subprocess.run(
        [sys.executable, "-c", PARSE, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ
        | {
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(folder),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        },
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.mark.parametrize(("number", "block"), list(enumerate(DAGS)), ids=str)
def test_a_dag_that_is_shown_can_be_used(parsed: dict[str, Any], number: int, block: Block) -> None:
    """A reader who copies it has a DAG with tasks and no import error."""
    told = parsed[f"shown_{number}"]
    assert told["errors"] == [], block
    assert told["tasks"], f"{block} defines no DAG"
    assert all(told["tasks"].values())


@pytest.mark.parametrize(
    "name",
    [*(f"shown_{number}" for number in range(len(DAGS))), *(f"project_{file.stem}" for file in PROJECT)],
)
def test_its_templates_need_no_logical_date(parsed: dict[str, Any], name: str) -> None:
    """They render in a run that is started by hand or by an asset, without a missing value."""
    for template, text in parsed[name]["rendered"]:
        assert "None" not in text, template


def test_there_are_some(parsed: dict[str, Any]) -> None:
    """The pages show DAGs and templates, and they are found."""
    assert len(DAGS) >= 5
    assert sum(len(told["rendered"]) for told in parsed.values()) >= 20

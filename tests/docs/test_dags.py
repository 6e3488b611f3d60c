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

#: Parses each file by itself: pages show several DAGs of one name.
PARSE = """
import json, sys
from pathlib import Path
from airflow.dag_processing.dagbag import DagBag
told = {}
for path in sorted(Path(sys.argv[1]).iterdir()):
    bag = DagBag(str(path))
    told[path.stem] = {
        "errors": list(bag.import_errors.values()),
        "tasks": {dag_id: sorted(dag.task_ids) for dag_id, dag in bag.dags.items()},
    }
print("\\n" + json.dumps(told))
"""


#: Whatever imports this makes a DAG by itself, and can be put into a folder as it is.
IMPORTS_DAG = re.compile(r"^from airflow\S* import .*\b(dag|DAG)\b", re.MULTILINE)

#: Its DAG needs a provider that is not in this environment; test_kubernetes.py makes one for it.
KUBERNETES = "how-to/kubernetes.md"

DAGS = [
    block for block in all_blocks("python") if block.page != KUBERNETES and IMPORTS_DAG.search(block.text)
]


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Let one Airflow, with a home of its own, parse every DAG that a page shows."""
    home = tmp_path_factory.mktemp("airflow")
    folder = home / "dags"
    folder.mkdir()
    for number, block in enumerate(DAGS):
        (folder / f"shown_{number}.py").write_text(block.text)
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


def test_there_are_some() -> None:
    """The pages show DAGs, and they are found."""
    assert len(DAGS) >= 5

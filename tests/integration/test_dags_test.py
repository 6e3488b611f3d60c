"""``airflow dags test``, as people try a DAG: every bundled one, and one of their own in a zip file.

The own one keeps its XComs in an object storage, and gives its stages secrets in templates.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_s3commit import Destination, latest_manifest
from dev.demo.servers import connections
from tests.integration.dag_steps import STAND_IN

if TYPE_CHECKING:
    from airflow_s3commit import S3Store
    from airflow_s3commit.testing import S3Server

pytestmark = [
    pytest.mark.all,
    pytest.mark.airflow,
    pytest.mark.seaweedfs,
    pytest.mark.xdist_group("dag_steps"),
    pytest.mark.timeout(900),  # the first test waits for all of the runs
]

ROOT = Path(__file__).parents[2]
DAY = "2013-01-01"

OWN = """
from airflow.sdk import dag, task
from airflow_s3commit.hooks import S3CommitHook
from airflow_s3commit.task_group import s3_commit_task_group


@task
def load(job, part, password, fail):
    opened = S3CommitHook().job(job)
    with opened.task_attempt(f"load-{part}", "1", "00000", "0") as writing:
        with writing.open(f"dt=2013-01-01/part-{part}.csv") as file:
            file.write(b"rows")
        written = writing.commit()
    if fail == "True":
        raise RuntimeError(f"cannot sign in with {password}")
    opened.seal_stage(f"load-{part}", "1", [written])


@dag(schedule=None, params={"fail": False})
def own():
    with s3_commit_task_group(
        "refresh", destination="s3://lake/own/", conflict_mode="replace", kill_window=0, parts=2
    ) as commit:
        given = {"job": commit.job, "password": "{{ conn.warehouse.password }}", "fail": "{{ params.fail }}"}
        commit.stage(load.partial(**given).expand(part=[0, 1]), name="load-{{ ti.map_index }}")
        commit.spark_submit(
            application="report.py",
            application_args=["--day", "2013-01-02"],
            env_vars={"PASSWORD": "{{ conn.warehouse.password }}", "TOKEN": "{{ var.value.api_token }}"},
            name="report",
        )

    @task
    def told(manifest):
        print("committed", manifest["files"], "files")

    told(commit.manifest)


own()
"""


@dataclass(frozen=True, slots=True)
class Played:
    """What the commands have left.

    Attributes:
        home: Airflow's home: its database and its logs.
        said: What each command has printed, by the name of its run.
        codes: Its exit code.
        hidden: What nobody may read anywhere: keys of the store, a password, a token.
    """

    home: Path
    said: dict[str, str]
    codes: dict[str, int]
    hidden: list[str]


#: Runs of the bundled DAGs, by name: the DAG and what is asked for beside destination and day.
BUNDLED: dict[str, tuple[str, dict[str, Any]]] = {
    "night": ("nightly_flights_refresh", {"conflict_mode": "fail"}),
    "report": ("flights_daily_report", {}),
    "report by hand": ("flights_report_on_commit", {}),
    "two tables": ("multi_stage_refresh", {"min_rows": 1}),
    "failing audit": ("multi_stage_refresh", {"min_rows": 1_000, "on_failed_audit": "fail"}),
    "sweep": ("sweep_orphan_uploads", {}),
}


@pytest.fixture(scope="module")
def played(seaweed: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Run every DAG once, one command after the other."""
    home = tmp_path_factory.mktemp("dags-test")
    dags = home / "dags"
    dags.mkdir()
    for one in (ROOT / "dags").iterdir():
        (dags / one.name).symlink_to(one)
    with zipfile.ZipFile(dags / "own.zip", "w") as packed:
        packed.writestr("own.py", OWN)
    password, token = secrets.token_hex(12), secrets.token_hex(12)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "AWS"))}
    environment = {
        **clean,
        **connections(seaweed.config),
        "PATH": os.pathsep.join([str(STAND_IN), str(Path(sys.executable).parent), clean["PATH"]]),
        "PYTHONPATH": str(ROOT),
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__XCOM_BACKEND": "airflow.providers.common.io.xcom.backend.XComObjectStorageBackend",
        "AIRFLOW__COMMON_IO__XCOM_OBJECTSTORAGE_PATH": f"file://{home}/xcoms",
        "AIRFLOW__COMMON_IO__XCOM_OBJECTSTORAGE_THRESHOLD": "0",
        "AIRFLOW_CONN_WAREHOUSE": json.dumps({"conn_type": "generic", "password": password}),
        "AIRFLOW_VAR_API_TOKEN": token,
    }
    runs = {
        name: (dag, {"destination": f"s3://lake/dags-test/{dag.partition('_')[0]}/", "day": DAY, **asked})
        for name, (dag, asked) in BUNDLED.items()
    }
    for name in ("night", "report", "report by hand"):
        runs[name][1]["destination"] = "s3://lake/dags-test/flights/"
    del runs["sweep"][1]["day"]
    runs["own"], runs["own, failing"] = ("own", {}), ("own", {"fail": True})
    commands = {"migrate": ["db", "migrate"]} | {
        name: ["dags", "test", dag, DAY, "--conf", json.dumps(conf)] for name, (dag, conf) in runs.items()
    }
    said, codes = {}, {}
    for name, command in commands.items():
        done = subprocess.run(
            [sys.executable, "-m", "airflow", *command],
            env=environment,
            cwd=home,
            capture_output=True,
            text=True,
            check=False,
        )
        said[name], codes[name] = done.stdout + done.stderr, done.returncode
    return Played(home, said, codes, [seaweed.secret_key, password, token])


@pytest.mark.parametrize("name", [name for name in BUNDLED if name != "failing audit"])
def test_a_bundled_dag_succeeds(played: Played, name: str) -> None:
    """Each DAG of the project runs with nothing but its params."""
    assert played.codes["migrate"] == 0, played.said["migrate"][-3000:]
    assert played.codes[name] == 0, played.said[name][-6000:]


def test_a_failed_audit_leaves_the_table_as_it_was(played: Played, seaweed_store: S3Store) -> None:
    """The second refresh of both tables is refused, and its job is aborted."""
    assert "min_rows: expected at least 1000, found 24" in played.said["failing audit"]
    manifest = latest_manifest(seaweed_store, Destination.parse("s3://lake/dags-test/multi/"))
    assert manifest is not None
    assert f"Job {manifest.job_id} is committed" in played.said["two tables"]
    assert not list(seaweed_store.list_uploads("lake", "dags-test/"))


def test_a_zipped_dag_with_xcoms_in_an_object_storage_commits(played: Played, seaweed_store: S3Store) -> None:
    """Each task finds the job and the stages by XComs, wherever those are kept."""
    said = played.said["own"]
    assert played.codes["own"] == 0, said[-6000:]
    manifest = latest_manifest(seaweed_store, Destination.parse("s3://lake/own/"))
    assert manifest is not None, said[-6000:]
    assert (manifest.counts.files, sorted(manifest.partitions)) == (3, ["dt=2013-01-01", "dt=2013-01-02"])
    assert "committed 3 files" in said
    assert list((played.home / "xcoms").rglob("*"))
    assert not list(seaweed_store.list_uploads("lake", "own/"))


def test_secrets_in_templates_are_nowhere(played: Played, seaweed_store: S3Store) -> None:
    """Neither output, database, logs and XComs nor any object have a password, a token or a key.

    The database has what templates were rendered to; the entry of a failed job has why it was ended. What the
    failing task itself raises is Airflow's to print, which this command does as it is.
    """
    failing = "own, failing"
    assert played.codes[failing] == 1
    assert "was aborted with" in played.said[failing]
    places = {f"output of {name}": text.encode() for name, text in played.said.items() if name != failing}
    places |= {str(path): path.read_bytes() for path in played.home.rglob("*") if path.is_file()}
    for prefix in ("own/", "dags-test/"):
        for info in seaweed_store.list_objects("lake", prefix):
            places[info.key] = seaweed_store.get("lake", info.key).body
    for hidden in played.hidden:
        found = {
            place: [line for line in content.splitlines() if hidden.encode() in line]
            for place, content in places.items()
            if hidden.encode() in content
        }
        assert found == {}

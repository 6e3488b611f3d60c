"""A DAG in a zip file, whose XComs are objects, under ``airflow dags test``."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_s3commit import Destination, latest_manifest
from dev.demo.servers import connections

if TYPE_CHECKING:
    from airflow_s3commit import S3Store
    from airflow_s3commit.testing import S3Server

pytestmark = [
    pytest.mark.all,
    pytest.mark.airflow,
    pytest.mark.seaweedfs,
    pytest.mark.xdist_group("dag_steps"),
]

ROOT = Path(__file__).parents[2]

DAG = """
from airflow.sdk import dag, task
from airflow_s3commit.hooks import S3CommitHook
from airflow_s3commit.task_group import s3_commit_task_group


@task
def load(job, part):
    opened = S3CommitHook().job(job)
    with opened.task_attempt(f"load-{part}", "1", "00000", "0") as writing:
        with writing.open(f"dt=2013-01-01/part-{part}.csv") as file:
            file.write(b"rows")
        written = writing.commit()
    opened.seal_stage(f"load-{part}", "1", [written])


@dag(schedule=None)
def zipped():
    with s3_commit_task_group(
        "refresh", destination="s3://lake/zipped/", conflict_mode="replace", kill_window=0, parts=2
    ) as commit:
        commit.stage(load.partial(job=commit.job).expand(part=[0, 1]), name="load-{{ ti.map_index }}")

    @task
    def told(manifest):
        print("committed", manifest["files"], "files")

    told(commit.manifest)


zipped()
"""


def test_a_zipped_dag_with_xcoms_in_an_object_storage_commits(
    seaweed: S3Server, seaweed_store: S3Store, tmp_path: Path
) -> None:
    """Each task finds the job and the stages by XComs, wherever those are kept; no key is printed."""
    with zipfile.ZipFile(tmp_path / "zipped.zip", "w") as packed:
        packed.writestr("zipped.py", DAG)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "AWS"))}
    environment = {
        **clean,
        **connections(seaweed.config),
        "PYTHONPATH": str(ROOT),
        "AIRFLOW_HOME": str(tmp_path / "home"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path),
        "AIRFLOW__CORE__XCOM_BACKEND": "airflow.providers.common.io.xcom.backend.XComObjectStorageBackend",
        "AIRFLOW__COMMON_IO__XCOM_OBJECTSTORAGE_PATH": f"file://{tmp_path}/xcoms",
        "AIRFLOW__COMMON_IO__XCOM_OBJECTSTORAGE_THRESHOLD": "0",
    }
    said = ""
    for command in (["db", "migrate"], ["dags", "test", "zipped", "2013-01-01"]):
        done = subprocess.run(
            [sys.executable, "-m", "airflow", *command],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        said += done.stdout + done.stderr
        assert done.returncode == 0, said[-6000:]
    assert seaweed.secret_key not in said
    manifest = latest_manifest(seaweed_store, Destination.parse("s3://lake/zipped/"))
    assert manifest is not None, said[-6000:]
    assert (manifest.counts.files, list(manifest.partitions)) == (2, ["dt=2013-01-01"])
    assert "committed 2 files" in said
    assert list((tmp_path / "xcoms").rglob("*"))
    assert not list(seaweed_store.list_uploads("lake", "zipped/"))

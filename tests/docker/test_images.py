"""The scripts that make the images make environments that work, outside Docker too, in the tried versions."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from dev.java import java_home

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.all,
    pytest.mark.timeout(1200),
    pytest.mark.xdist_group("packaging"),
]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return variables with a Java, with which the scripts need nothing of the system's packages."""
    java = java_home(tmp_path_factory.mktemp("java"))
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
    kept |= {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_", "SSL_"))}
    return kept | {
        # uv is a program of the environment of these tests.
        "PATH": f"{java / 'bin'}:/usr/local/bin:/usr/bin:/bin:{sysconfig.get_path('scripts')}",
        "JAVA_HOME": str(java),
        "PYTHON": sys.executable,
    }


def scripts(image: str) -> list[list[str]]:
    """Return what the Dockerfile runs to make the environment of an image, stage after stage."""
    stages = re.findall(r"^FROM (\S+) AS (\S+)\n((?:(?!FROM ).*\n?)*)", DOCKERFILE, re.MULTILINE)
    run: list[list[str]] = []
    wanted = f"{image}-packages"
    for base, name, lines in reversed(stages):
        if name == wanted:
            found = re.findall(r"^RUN /opt/source/(docker/install-python\.sh .*)$", lines, re.MULTILINE)
            run[:0] = [line.replace('"$SPARK_EXTRA"', "executor").split() for line in found]
            wanted = base
    return run


def install(image: str, directory: Path, environment: dict[str, str]) -> Path:
    """Run what makes an image's environment, with one below this directory as its target; return that."""
    venv = directory / image
    # What the machine keeps of its last installations is enough, mostly, and saves minutes and gigabytes:
    # pyspark is built from its sources wherever it comes anew.
    for script, *arguments in scripts(image):
        for offline in ("1", "0"):
            done = subprocess.run(
                [ROOT / script, *arguments],
                env=environment | {"VENV": str(venv), "UV_OFFLINE": offline},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode == 0:
                break
        assert done.returncode == 0, done.stdout + done.stderr
    return venv


def versions(venv: Path) -> dict[str, str]:
    """Return what is installed in an environment."""
    uv = Path(sysconfig.get_path("scripts")) / "uv"
    told = subprocess.run(
        [uv, "pip", "freeze", "--python", venv], capture_output=True, text=True, check=True
    ).stdout
    return dict(line.split("==") for line in told.splitlines() if "==" in line)


def check_versions(venv: Path) -> dict[str, str]:
    """Check that all packages have the tested versions, and that no installer is left."""
    tried = re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    found = versions(venv)
    assert not {"pip", "uv"} & set(found)
    assert {pair for pair in found.items() if pair not in set(tried)} == set()
    return found


def run(venv: Path, *command: str, home: Path, environment: dict[str, str]) -> str:
    """Run a program of an environment and return what it says."""
    done = subprocess.run(
        [str(venv / "bin" / command[0]), *command[1:]],
        env=environment | {"PATH": f"{venv / 'bin'}:{environment['PATH']}", "AIRFLOW_HOME": str(home)},
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_s3_image(tmp_path: Path, environment: dict[str, str]) -> None:
    """It has the server and the command line, and neither Airflow nor Spark."""
    venv = install("seaweedfs", tmp_path, environment)
    found = check_versions(venv)
    assert not {"pyspark", "apache-airflow", "pyarrow"} & set(found)
    assert "sweep" in run(venv, "s3commit", "--help", home=tmp_path, environment=environment)
    assert "version" in run(venv, "weed", "version", home=tmp_path, environment=environment)


def test_the_spark_image(tmp_path: Path, environment: dict[str, str]) -> None:
    """An executor has all that writing needs, Spark itself whole, and neither Airflow nor pandas."""
    venv = install("spark", tmp_path, environment)
    found = check_versions(venv)
    assert {"pyspark", "pyarrow", "numpy", "boto3"} <= set(found)
    assert not {"apache-airflow", "pyspark-client", "pandas"} & set(found)
    program = (
        "import airflow_s3commit.spark.datasource, airflow_s3commit.store.s3.store, pyspark_s3commit;"
        "import pyspark; print(pyspark.__version__)"
    )
    said = run(venv, "python", "-c", program, home=tmp_path, environment=environment)
    assert said.strip() == found["pyspark"]


def test_the_airflow_image(tmp_path: Path, environment: dict[str, str]) -> None:
    """Airflow lists the provider, from the package as it is installed, with Celery, PostgreSQL and Spark."""
    venv = install("airflow", tmp_path, environment)
    found = check_versions(venv)
    assert {"apache-airflow", "pyspark", "psycopg2-binary", "asyncpg", "celery", "redis"} <= set(found)
    assert "pyspark-client" not in found
    listed = run(venv, "airflow", "providers", "list", "-o", "json", home=tmp_path, environment=environment)
    assert '"package_name": "airflow-s3commit"' in listed
    got = run(
        venv,
        *("airflow", "providers", "get", "airflow-s3commit", "--full", "-o", "json"),
        home=tmp_path,
        environment=environment,
    )
    assert "airflow_s3commit.operators.commit" in got
    program = (
        "import airflow.providers.celery.executors.celery_executor, airflow_s3commit.operators.spark_submit"
    )
    run(venv, "python", "-c", program, home=tmp_path, environment=environment)


def test_a_file_with_another_hash_is_refused(tmp_path: Path, environment: dict[str, str]) -> None:
    """Every pinned package has hashes, and what has none of them is not installed."""
    pinned = (ROOT / "constraints.txt").read_text()
    assert [entry for entry in re.split(r"\n(?=\S)", pinned) if "--hash=sha256:" not in entry] == []
    checkout = tmp_path / "checkout"
    (checkout / "docker").mkdir(parents=True)
    for name in ("docker/install-python.sh", "pyproject.toml"):
        shutil.copy(ROOT / name, checkout / name)
    wrong = re.sub(r"(?m)^(msgspec==\S+).*(?:\n +--hash.*)*", rf"\1 --hash=sha256:{'0' * 64}", pinned)
    (checkout / "constraints.txt").write_text(wrong)
    done = subprocess.run(
        [checkout / "docker" / "install-python.sh", "libraries", "none"],
        env=environment | {"VENV": str(tmp_path / "venv")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "Hash mismatch for `msgspec" in done.stderr

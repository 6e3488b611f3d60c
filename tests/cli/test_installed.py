"""The installed program, in a separate process, on a real S3 server."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_s3commit import Job, JobOptions, S3Store
from airflow_s3commit.testing import S3Server
from tests.docs.blocks import all_blocks

pytestmark = pytest.mark.seaweedfs

Program = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def program(seaweed: S3Server) -> Program:
    """Return what runs the console script with the server's address and keys in its environment."""
    script = Path(sysconfig.get_path("scripts")) / "s3commit"
    if not script.exists():
        pytest.skip("the package is not installed with its console script")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [script, *args],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env=clean | seaweed.environment,
        )

    return run


@pytest.mark.all
def test_a_shell_script_is_a_stage(
    seaweed: S3Server, seaweed_store: S3Store, bucket: str, prefix: str, tmp_path: Path
) -> None:
    """After the page's script, run by sh with a program other than Python, all output is visible."""
    page = next(block for block in all_blocks("console") if block.page == "how-to/shell.md")
    commands = page.text.replace("$ ", "").replace("s3://lake/flights/", f"s3://{bucket}/{prefix}")
    (tmp_path / "out" / "dt=2013-01-03").mkdir(parents=True)
    (tmp_path / "out" / "dt=2013-01-03" / "part-1.parquet").write_text("one")
    (tmp_path / "part-0.parquet").write_text("nought")
    export = tmp_path / "export-flights"
    export.write_text("#!/bin/sh\nseq 1 200000\n")
    export.chmod(0o755)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    path = os.pathsep.join([sysconfig.get_path("scripts"), clean["PATH"]])
    done = subprocess.run(
        ["sh", "-eu"],
        input=commands,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env=clean | seaweed.environment | {"PATH": path},
    )
    assert done.returncode == 0, done.stderr
    bodies = {
        info.key.removeprefix(prefix).partition("/")[0]: seaweed_store.get(bucket, info.key).body
        for info in seaweed_store.list_objects(bucket, f"{prefix}dt=")
    }
    assert bodies == {
        "dt=2013-01-01": b"nought",
        "dt=2013-01-02": b"".join(b"%d\n" % number for number in range(1, 200_001)),
        "dt=2013-01-03": b"one",
    }
    assert list(seaweed_store.list_uploads(bucket, prefix)) == []


def _json(done: subprocess.CompletedProcess[str]) -> Any:
    return json.loads(done.stdout)


def test_a_pending_job_is_seen_and_aborted(
    program: Program, seaweed: S3Server, seaweed_store: S3Store, bucket: str, prefix: str
) -> None:
    """Jobs, show and pending agree on it, abort ends it, and manifest says that nothing is committed."""
    destination = f"s3://{bucket}/{prefix}"
    job = Job.setup(seaweed_store, destination, options=JobOptions(committer="magic"), context={"dag": "cli"})
    with job.task_attempt("spark", "1", "00000", "1") as attempt:
        file = attempt.open("dt=1/part-0.parquet")
        file.write(b"x" * 1000)
        file.close(rows=10)
        attempt.commit()
    job_id = job.reference.job_id
    listed = program("jobs", destination)
    assert (listed.returncode, listed.stderr) == (0, "")
    assert job_id in listed.stdout
    shown = _json(program("show", destination, job_id, "--json"))
    assert (shown["summary"]["state"], shown["uploads"]["pending"]) == ("open", 1)
    pending = _json(program("pending", destination, "--json"))
    assert [(u["job_id"], u["bytes"]) for u in pending["uploads"]] == [(job_id, 1000)]
    aborted = program("abort", destination, job_id)
    assert (aborted.returncode, aborted.stderr) == (0, "")
    assert list(seaweed_store.list_uploads(bucket, prefix)) == []
    assert program("manifest", destination).returncode == 1
    secrets = (seaweed.secret_key, seaweed.access_key)
    assert not any(secret in listed.stdout + aborted.stdout for secret in secrets)


def test_the_doctor_finds_the_server_fit(
    program: Program, seaweed_store: S3Store, bucket: str, prefix: str
) -> None:
    """Everything that the protocol needs is there, and the checks leave nothing."""
    done = program("doctor", f"s3://{bucket}/{prefix}", "--json")
    told = _json(done)
    assert {c["name"]: c["verdict"] for c in told["checks"] if c["verdict"] not in ("ok", "warning")} == {}
    assert done.returncode == 0
    assert list(seaweed_store.list_objects(bucket, prefix)) == []
    assert list(seaweed_store.list_uploads(bucket, prefix)) == []


def test_wrong_credentials_are_an_error_with_advice(bucket: str, prefix: str, seaweed: S3Server) -> None:
    """There are exit code 4, one message and the next command, but no traceback and no secret."""
    script = Path(sysconfig.get_path("scripts")) / "s3commit"
    environment = os.environ | seaweed.environment | {"AWS_SECRET_ACCESS_KEY": "not-the-one"}
    done = subprocess.run(
        [script, "jobs", f"s3://{bucket}/{prefix}"],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 4
    assert "s3commit doctor" in done.stderr
    assert "Traceback" not in done.stderr
    assert "not-the-one" not in done.stderr

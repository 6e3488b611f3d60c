"""`.ci/run` says what it will run, and fails where the whole takes too long."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]

#: What it would install if it were missing: here all of it is there.
PROGRAMS = ("curl", "ps", "pg_virtualenv", "mvn", "javac", "chromium", "spin", "cc", "apt-get")


def run(directory: Path, make: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `.ci/run` of a checkout whose `make` is this script."""
    (directory / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", directory / ".ci/run")
    programs = directory / "bin"
    programs.mkdir()
    for name, body in {**dict.fromkeys(PROGRAMS, "exit 0"), "make": make}.items():
        (programs / name).write_text(f"#!/bin/sh\n{body}\n")
        (programs / name).chmod(0o755)
    return subprocess.run(
        [str(directory / ".ci/run")],
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", **environment},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def test_every_step_is_listed_and_run(tmp_path: Path) -> None:
    """The steps are printed before the first one runs, and then each of them runs."""
    done = run(tmp_path, f'echo "make $*" >>{tmp_path}/made')
    assert done.returncode == 0, done.stderr
    made = (tmp_path / "made").read_text().splitlines()
    assert made[:2] == ["make lint", "make test"]
    listed = done.stdout.partition("== lint")[0].replace('"', "")
    assert all(f": {one}\n" in listed for one in made)


def test_a_step_that_hangs_is_named(tmp_path: Path) -> None:
    """A step that does not end in time is ended, and the message says which one it was."""
    done = run(tmp_path, "sleep 60", CI_BUDGET="10")
    assert done.returncode != 0
    assert "Over the budget of 10 s: 'lint' was still running (make lint)" in done.stderr


def test_a_step_that_fails_ends_the_run(tmp_path: Path) -> None:
    """The status of the first step that fails is the status of the run."""
    done = run(tmp_path, "exit 3")
    assert done.returncode == 3
    assert "make test" not in done.stdout.partition("== lint")[2]

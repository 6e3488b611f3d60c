"""The stack in containers, where the engine fails: what is shown, and what is tried again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airflow_s3commit.testing import ProgramFailed
from dev.stack.containers import ContainerStack

#: Notes each command in a file; the first downs after the start fail, as many as the file "busy" has lines.
DOCKER = """#!/bin/sh
home=$(dirname "$0")
for word in "$@"; do
  case "$word" in
    up|down) echo "$word" >>"$home/calls" ;;
  esac
  if [ "$word" = down ] && [ -s "$home/busy" ]; then
    sed -i 1d "$home/busy"
    echo "cannot stop container" >&2
    exit 1
  fi
done
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have a ``docker`` of ours first on the path; return where it keeps what it was asked."""
    program = tmp_path / "docker"
    program.write_text(DOCKER)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def test_a_removal_that_a_busy_engine_gives_up_is_tried_again(engine: Path) -> None:
    """One failed removal at the end is followed by another, and nothing is raised."""
    with ContainerStack(engine / "home"):
        (engine / "busy").write_text("once\n")
    assert (engine / "calls").read_text().split() == ["down", "up", "down", "down"]


def test_what_stopped_the_stack_is_not_hidden_by_a_failed_removal(engine: Path) -> None:
    """The first error comes out, and says in a note what is left."""

    def fails_and_cannot_be_removed() -> None:
        with ContainerStack(engine / "home"):
            (engine / "busy").write_text("once\ntwice\n")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as raised:
        fails_and_cannot_be_removed()
    assert "cannot stop container" in raised.value.__notes__[0]


def test_a_stack_that_cannot_be_removed_says_so(engine: Path) -> None:
    """Without another error the failed removal is the error."""
    with (
        pytest.raises(ProgramFailed, match="cannot stop container"),
        ContainerStack(engine / "home"),
    ):
        (engine / "busy").write_text("once\ntwice\n")

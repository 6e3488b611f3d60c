"""The program, run on a small lake in memory instead of a store."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Protocol

import pytest
from click.testing import CliRunner, Result

from airflow_s3commit.cli.app import program
from airflow_s3commit.cli.command import Connection
from tests.protocol.building import Lake

__all__ = ["FILES", "OLD", "RunProgram", "Terminal", "plain_json"]

FILES = {"dt=1/part-0.parquet": b"one", "dt=2/part-0.parquet": b"seven!!"}
OLD = {"dt=1/old.parquet": b"old 1", "dt=3/old.parquet": b"old 3"}

#: Stands for an open terminal: a function that takes what is typed.
Terminal = Callable[[], None]


class RunProgram(Protocol):
    """Runs the program with some arguments."""

    def __call__(self, *args: str, typed: str | None = None, **env: str) -> Result:
        """Run it; ``typed`` is what a person at a terminal enters."""
        ...


@pytest.fixture
def lake(monkeypatch: pytest.MonkeyPatch) -> Lake:
    """Return a lake that every command opens as its store."""
    made = Lake()
    opened: list[Connection] = []

    def open_store(connection: Connection) -> Any:
        opened.append(connection)
        return made.store

    monkeypatch.setattr("airflow_s3commit.cli.command.open_store", open_store)
    monkeypatch.setattr(made, "opened", opened, raising=False)
    return made


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> RunProgram:
    """Return what runs the program; results and errors are separate."""

    def run_program(*args: str, typed: str | None = None, **env: str) -> Result:
        if typed is not None:
            monkeypatch.setattr("airflow_s3commit.cli.output.Output.is_interactive", True)
        surroundings = {"COLUMNS": "200", **env}
        return CliRunner().invoke(program, list(args), input=typed, env=surroundings, prog_name="s3commit")

    return run_program


def plain_json(result: Result) -> Any:
    """Return the one JSON object that a command wrote, and nothing else, to the standard output."""
    return json.loads(result.stdout)

"""The installation's own settings, and the command line under Airflow's."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import airflow_s3commit
from airflow_s3commit import Job, S3Config, airflow_commands
from airflow_s3commit.airflow_commands import get_cli_commands
from airflow_s3commit.cli.command import Connection
from airflow_s3commit.exceptions import StoreRejected
from airflow_s3commit.hooks import S3CommitHook
from airflow_s3commit.provider_info import get_provider_info
from tests.airflow.runs import FLIGHTS, set_up


def test_every_option_is_read() -> None:
    """Operators, sensors and the sweep use what the configuration sets."""
    code = (
        "from airflow_s3commit.hooks import S3CommitHook\n"
        "from airflow_s3commit.operators.commit import S3CommitJobOperator\n"
        "from airflow_s3commit.operators.tables import S3CommitSweepOperator\n"
        "from airflow_s3commit.sensors import S3SuccessManifestSensor\n"
        "from airflow_s3commit.settings import REGISTRY, REGISTRY_CONNECTION\n"
        "print(S3CommitJobOperator(task_id='c', job={}).aws_conn_id, S3CommitHook().aws_conn_id,\n"
        "      S3SuccessManifestSensor(task_id='s', destination='s3://lake/x/', run_id='r').poke_interval,\n"
        "      S3CommitSweepOperator(task_id='w', destination='s3://lake/x/').older_than.days,\n"
        "      REGISTRY, REGISTRY_CONNECTION)"
    )
    options = {
        "AWS_CONN_ID": "lake",
        "POKE_INTERVAL": "7.5",
        "SWEEP_AGE_DAYS": "14",
        "REGISTRY": "s3://ops/all/",
        "REGISTRY_CONN_ID": "ops",
    }
    environment = {**os.environ, **{f"AIRFLOW__S3COMMIT__{name}": value for name, value in options.items()}}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.split() == ["lake", "lake", "7.5", "14", "s3://ops/all/", "ops"]
    known = get_provider_info()["config"]["s3commit"]["options"]
    assert {name.lower() for name in options} == known.keys() - {"destinations"}


def test_airflows_configuration_is_read_in_one_module() -> None:
    """No other module reads Airflow's configuration; another one only finds it in each version."""
    package = Path(airflow_s3commit.__file__).parent
    reads = re.compile(r"^ *(?:import airflow\.configuration|from airflow\S* import .*\bconf\b|"
                       r"from airflow\.configuration)", re.MULTILINE)  # fmt: skip
    readers = [path.name for path in package.rglob("*.py") if reads.search(path.read_text())]
    assert sorted(readers) == ["airflow_version.py", "settings.py"]


def test_airflows_command_line_passes_all_words_on() -> None:
    """Whatever follows ``airflow s3commit`` is the program's, but for a connection before it."""
    (command,) = get_cli_commands()
    parser = argparse.ArgumentParser()
    for arg in command.args:
        arg.add_to_parser(parser)
    for words in (["jobs", FLIGHTS, "--json"], ["jobs", "--help"], []):
        assert parser.parse_args(words).words == words
        asked = parser.parse_args(["--aws-conn-id", "lake", *words])
        assert (asked.aws_conn_id, asked.words) == ("lake", words)


def test_airflow_defines_the_commands_without_loading_them() -> None:
    """The definition is imported whenever ``airflow`` is called, so it brings in nothing heavy."""
    code = (
        "import sys\nfrom airflow.cli import cli_config\nbefore = set(sys.modules)\n"
        "from airflow_s3commit.airflow_commands import get_cli_commands\nget_cli_commands()\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    names = ("", "._names", ".airflow_commands")
    assert set(done.stdout.split()) <= {f"airflow_s3commit{name}" for name in names}


class Asked:
    """The result of Airflow's parser for a command line."""

    def __init__(self, command: str, *words: str, aws_conn_id: str | None = None) -> None:
        self.aws_conn_id = aws_conn_id
        self.words = [command, FLIGHTS, *words]


@pytest.fixture
def lake(monkeypatch) -> None:
    """The ``aws`` connection ``lake``."""
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "aws"}))
    monkeypatch.delenv("_AIRFLOW_PROCESS_CONTEXT", raising=False)
    monkeypatch.setattr(os, "environ", os.environ)


def ended(asked: Any) -> int:
    """Run a command and return its exit code."""
    with pytest.raises(SystemExit) as left:
        airflow_commands.run(asked)
    return left.value.code or 0


@pytest.mark.parametrize(
    "asked",
    [
        Asked("jobs", "--json", aws_conn_id="lake"),
        Asked("jobs", "--json", "--aws-conn-id", "lake"),
        Asked("jobs", "--aws-conn-id=lake", "--json"),
    ],
    ids=["before", "behind", "with an equals sign"],
)
def test_a_command_works_on_the_connections_store(store, lake, capsys, asked) -> None:
    """The connection may be named on either side of the destination; the words are the program's."""
    reference = set_up(store)
    assert ended(asked) == 0
    assert reference["job_id"] in capsys.readouterr().out


def test_what_it_suggests_can_be_pasted(store, lake, capsys) -> None:
    """Command lines that it prints call Airflow's program with the same connection."""
    job = Job.setup(store, FLIGHTS)
    ended(Asked("show", job.reference.job_id, aws_conn_id="lake"))
    told = capsys.readouterr()
    assert "airflow s3commit" in told.out + told.err
    assert "--aws-conn-id lake" in (told.out + told.err).replace("\n", " ")


def test_an_unknown_connection_is_refused(monkeypatch) -> None:
    """It is refused by its name, and the machine's own credentials are not used instead."""
    monkeypatch.setattr(
        S3CommitHook, "store", property(lambda self: pytest.fail("went on without the connection"))
    )
    with pytest.raises(StoreRejected, match="no connection 'nowhere'"):
        airflow_commands._open("nowhere", Connection(S3Config()))


@pytest.mark.parametrize(
    "config",
    [
        S3Config(endpoint_url="http://elsewhere"),
        S3Config(profile="p"),
        S3Config(path_style=True),
        S3Config(region="eu-west-1"),
        S3Config(verify=False),
    ],
)
def test_the_connection_configures_the_store(lake, config) -> None:
    """Options that configure a store are refused beside a connection."""
    with pytest.raises(StoreRejected, match="connection lake already configures"):
        airflow_commands._open("lake", Connection(config))

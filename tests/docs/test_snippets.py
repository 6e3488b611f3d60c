"""Every snippet of the documentation is run, or checked as far as it can be without being run."""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import click
import pytest
import yaml

from airflow_s3commit import Destination, Job, JobOptions, MemoryStore
from airflow_s3commit.cli.app import program
from airflow_s3commit.protocol.doctor.policy import iam_policies
from tests.cases import each
from tests.docs.blocks import ROOT, Block, all_blocks

#: Languages of blocks that are looked at in some way; a block without a language is a mistake.
LANGUAGES = {"bash", "console", "ini", "json", "python", "sh", "sql", "text", "toml", "yaml"}

DESTINATION = "s3://lake/flights/"

_EXPORT = re.compile(r"(S3COMMIT_\w+)=(\S+)")

_ENDS_COMMAND = {"|", ">", ">>", "&&", "||", ";", "&", "2>&1", "2>"}

PYTHON = all_blocks("python")
CONSOLE = all_blocks("bash", "console", "sh")


def test_every_block_says_what_it_is() -> None:
    """Every block of every page has a language, and one that a test checks."""
    everything = [block for language in ("", *LANGUAGES) for block in all_blocks(language)]
    assert len(everything) > 60
    unnamed = [block for block in everything if block.language not in LANGUAGES]
    assert [str(block) for block in unnamed if block.page != "README.md"] == []


@each("block", PYTHON)
def test_python_compiles_and_imports_what_there_is(block: Block) -> None:
    """A Python snippet is Python, and what it imports of this package is there."""
    tree = ast.parse(block.text, filename=str(block))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("airflow_s3commit"):
            module = importlib.import_module(node.module or "")
            missing = [name.name for name in node.names if not _has(module, name.name)]
            assert not missing, f"{node.module} has no {missing}"


def _has(module: Any, name: str) -> bool:
    if hasattr(module, name):
        return True
    try:
        importlib.import_module(f"{module.__name__}.{name}")
    except ModuleNotFoundError:
        return False
    return True


def _prepared(what: str) -> dict[str, Any]:
    """Return what a snippet finds: a store in memory, and a job on it, as far as its mark asks for."""
    store = MemoryStore(buckets=("lake",))
    names: dict[str, Any] = {"store": store}
    if what == "store":
        return names
    job = Job.setup(store, DESTINATION, options=JobOptions(conflict_mode="append"))
    with job.task_attempt("load", "1", "00000", "1", threads=0) as task:
        with task.open("dt=2013-01-01/part-00000.csv") as file:
            file.write(b"AA,11\n")
            file.close(rows=1)
        written = task.commit()
    job.seal_stage("load", "1", [written])
    job.seal()
    if what == "committed":
        names["manifest"] = job.commit()
    return names | {"reference": job.reference, "job": job}


MARKED = [block for block in PYTHON if block.mark == "run" or block.mark.startswith("memory ")]


@pytest.mark.parametrize("block", MARKED, ids=str)
def test_marked_python_runs(block: Block) -> None:
    """What is marked to be run does run, against the store in memory."""
    names = _prepared(block.mark.removeprefix("memory ")) if block.mark != "run" else {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(block.text, str(block), "exec"), names)


@pytest.mark.seaweedfs
@pytest.mark.parametrize("block", [block for block in PYTHON if block.mark == "seaweedfs"], ids=str)
def test_python_with_a_server_of_its_own_runs(block: Block) -> None:
    """What starts an S3 server does so, and stops it."""
    exec(compile(block.text, str(block), "exec"), {})


@pytest.mark.seaweedfs
def test_shown_tests_pass(tmp_path: Path) -> None:
    """The tests that a page shows pass in a directory with the page's ``conftest.py`` and nothing else."""
    (shown,) = (block for block in PYTHON if block.mark == "pytest")
    for block in PYTHON:
        if block.page == shown.page and block.title:
            (tmp_path / block.title).write_text(block.text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_some_python_is_run() -> None:
    """The marks are still read: a page that loses them all would go unnoticed."""
    assert len(MARKED) >= 5


def _lines(block: Block) -> Iterator[str]:
    joined = re.sub(r"\\\n\s*", " ", block.text)
    for line in joined.splitlines():
        yield line.strip().removeprefix("$ ")


def _commands(block: Block, name: str) -> Iterator[list[str]]:
    """Return the arguments of each call of a program, up to a pipe or another command."""
    for line in _lines(block):
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            continue
        while name in words:
            words = words[words.index(name) + 1 :]
            end = next((n for n, word in enumerate(words) if word in _ENDS_COMMAND), len(words))
            yield _without(words[:end], "--aws-conn-id") if line.startswith("airflow ") else words[:end]


def _without(words: list[str], option: str) -> list[str]:
    """Leave out an option with its value: what Airflow's command line takes for itself."""
    if option not in words:
        return words
    at = words.index(option)
    return words[:at] + words[at + 2 :]


COMMANDS = [(block, words) for block in CONSOLE for words in _commands(block, "s3commit")]


@each(("block", "words"), COMMANDS)
def test_commands_are_understood(block: Block, words: list[str]) -> None:
    """Every ``s3commit`` of a page parses: the command, its options and their values exist."""
    words = ["job-0" if word in ("JOB", "…") else word for word in words]
    exported = {name: "job-0" if "$(" in value else value for name, value in _EXPORT.findall(block.text)}
    with (
        mock.patch.dict(os.environ, exported),
        contextlib.suppress(click.exceptions.Exit),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        if not words or words[0].startswith("-"):
            program.make_context("s3commit", words)
            return
        command = program.commands[words[0]]
        command.make_context(words[0], list(words[1:]))


def test_every_command_is_on_some_page() -> None:
    """No command of the program is left out of the pages that people read."""
    named = {words[0] for _, words in COMMANDS if words}
    assert set(program.commands) <= named


@each("block", CONSOLE)
def test_make_targets_and_extras_exist(block: Block) -> None:
    """``make x`` names a target, and ``airflow-s3commit[x]`` extras that the package has."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for words in _commands(block, "make"):
        assert {word for word in words if "=" not in word} <= targets
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extras in re.findall(r"airflow-s3commit\[([a-z,-]+)\]", block.text):
        assert set(extras.split(",")) <= project["optional-dependencies"].keys()


@pytest.mark.parametrize("block", all_blocks("json", "yaml", "toml", "ini"), ids=str)
def test_data_parses(block: Block) -> None:
    """JSON, YAML and TOML of a page can be read."""
    if block.language == "json":
        json.loads(block.text)
    elif block.language == "yaml":
        assert list(yaml.safe_load_all(block.text))
    elif block.language == "toml":
        tomllib.loads(block.text)


@pytest.mark.parametrize(
    "block", [block for block in all_blocks("json") if " of s3://" in block.mark], ids=str
)
def test_shown_policies_are_the_ones_that_are_printed(block: Block) -> None:
    """The policies on the page are those that ``doctor`` prints."""
    kind, _, uri = block.mark.partition(" of ")
    assert json.loads(block.text) == iam_policies(Destination.parse(uri))[kind]


def test_no_secret_and_no_machine_is_shown() -> None:
    """No snippet has an absolute path of a machine, or something that looks like a key."""
    for block in all_blocks(*LANGUAGES):
        assert not re.search(r"/home/\w+|/root/|/work/|/Users/|AKIA[0-9A-Z]{16}", block.text), str(block)


def test_marks_are_known() -> None:
    """A mark that nothing reads would be a snippet that nothing checks."""
    known = re.compile(
        r"run|output|not run, .+|dag|memory (store|job|sealed|committed)|pytest|seaweedfs|"
        r"(executors|committer) of .+|"
    )
    assert [str(b) for b in all_blocks(*LANGUAGES) if not known.fullmatch(b.mark)] == []

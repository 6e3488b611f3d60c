"""The benchmarks run, and everything they import from the package exists."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MODULES = sorted(BENCHMARKS.glob("*.py"))
PROGRAMS = [path for path in MODULES if "ArgumentParser" in path.read_text()]

#: How each program is run once, as small as it can be.
SMALL: dict[str, list[str]] = {
    "commit_rate": [],
    "read": [],
    "requests": [],
    "scale": [],
    "table": [],
    "unchanged": ["--rows", "2000", "--rounds", "1"],
    "write": ["--rows", "2000", "--rounds", "1"],
}

#: The programs that take seconds: the others run only with all tests.
IN_SECONDS = {"requests"}


@pytest.mark.seaweedfs
@pytest.mark.spark
@pytest.mark.parametrize(
    "name",
    [
        name if name in IN_SECONDS else pytest.param(name, marks=[pytest.mark.all, pytest.mark.slow])
        for name in SMALL
    ],
)
def test_a_benchmark_runs(name: str) -> None:
    """Each program comes to its figures, and a quick run leaves the recorded results as they are."""
    recorded = (BENCHMARKS / "RESULTS.md").read_bytes()
    command = [sys.executable, BENCHMARKS / f"{name}.py", "--quick", "--json", *SMALL[name]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures.pop("benchmark") == name
    assert any(isinstance(figure, int | float) and figure > 0 for figure in figures.values())
    assert (BENCHMARKS / "RESULTS.md").read_bytes() == recorded


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_benchmark_explains_its_options(path: Path) -> None:
    """Each program imports all that it needs at its start, and ``--help`` lists its options."""
    done = subprocess.run([sys.executable, path, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--quick" in done.stdout


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_benchmark_imports_what_exists(path: Path) -> None:
    """Each name that a benchmark imports from the package exists, also inside functions and for types."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("airflow_s3commit"):
            module = importlib.import_module(str(node.module))
            assert not [alias.name for alias in node.names if not hasattr(module, alias.name)]


def test_every_benchmark_is_found() -> None:
    """Every program is run by a test."""
    assert {path.stem for path in PROGRAMS} == set(SMALL)

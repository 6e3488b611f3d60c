"""The benchmarks start, and everything they import from the package exists."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MODULES = sorted(BENCHMARKS.glob("*.py"))
PROGRAMS = [path for path in MODULES if "ArgumentParser" in path.read_text()]


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
    """The programs that ``make bench`` runs are among those that are tested."""
    assert {"commit_rate", "requests", "scale", "write"} <= {path.stem for path in PROGRAMS}

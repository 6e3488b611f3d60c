"""The Makefile says what it can do before anything is set up."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def make(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make in a directory that holds the Makefile and nothing else of the project."""
    shutil.copy(ROOT / "Makefile", directory)
    (directory / "pyproject.toml").touch()
    (directory / "constraints.txt").touch()
    return subprocess.run(
        ["make", *arguments], cwd=directory, capture_output=True, text=True, check=False, timeout=60
    )


def test_make_lists_its_targets(tmp_path: Path) -> None:
    """`make` alone lists every target with what it does, and makes nothing."""
    told = make(tmp_path)
    listed = dict(re.findall(r"^make (\S+) +(\S.*)$", told.stdout, re.MULTILINE))
    phony = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony is not None
    assert set(listed) == set(phony[1].split())
    assert {"demo", "test", "lint", "format", "clean"} <= set(listed)
    assert not (tmp_path / ".venv").exists()


def test_old_python_is_named(tmp_path: Path) -> None:
    """A Python that is too old stops the set-up with its name, before anything is made."""
    old = tmp_path / "old-python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    told = make(tmp_path, "test", f"PYTHON={old}")
    assert told.returncode != 0
    assert f"{old} is not Python 3.11 or newer" in told.stderr
    assert not (tmp_path / ".venv").exists()

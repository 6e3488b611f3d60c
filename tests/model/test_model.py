"""The protocol's models: what must hold holds in every state; each fault breaks the rule that it is about."""

from __future__ import annotations

import re
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest

from tests.model.checker import MODELS, check, missing_programs
from tests.model.runs import FAULTS, HOLDS, LARGE, LIVENESS, Run

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "model.md"

needs_spin = pytest.mark.skipif(
    bool(missing_programs()), reason=f"the model checker needs {', '.join(missing_programs())}"
)


@pytest.mark.all
@needs_spin
@pytest.mark.parametrize("run", [*HOLDS, *LIVENESS], ids=lambda run: run.name)
def test_it_holds(run: Run) -> None:
    """No rule breaks in any state, and no execution goes on for ever, within the bound."""
    outcome = check(run)
    assert not outcome.violations
    assert outcome.complete


@pytest.mark.all
@needs_spin
@pytest.mark.parametrize("run", FAULTS, ids=lambda run: run.name)
def test_a_fault_is_found(run: Run) -> None:
    """A protocol with this fault breaks the rule that the fault is about."""
    assert check(run).violations >= run.breaks


def test_the_page_names_every_search() -> None:
    """The documentation names each search and each rule that a fault breaks."""
    page = PAGE.read_text()
    for run in (*HOLDS, *LIVENESS, *FAULTS, *LARGE):
        assert f"`{run.name}`" in page
        assert all(f"`{rule}`" in page for rule in run.breaks)


def test_every_fault_of_a_model_is_put_back_by_a_run() -> None:
    """A switch that makes a model wrong is used by a search that must fail."""
    used = {switch for run in FAULTS for switch in run.switches}
    for model in MODELS.glob("*.pml"):
        switches = set(re.findall(r"\bFAULT_\w+", model.read_text()))
        assert switches <= used


def test_every_function_of_the_map_exists() -> None:
    """Each function that the page names as an action of the model is in the code under this name."""
    section = PAGE.read_text().partition("## Actions, and where they are")[2].partition("\n## ")[0]
    rows = [line.split("|")[3] for line in section.splitlines() if line.startswith("| ")]
    named = [re.findall(r"`([\w.]+)`", row) for row in rows[1:]]
    assert len(named) >= 14
    for names in named:
        assert names
        module = ""
        for name in names:
            *path, last = name.split(".")
            module = path[0] if path and path[0] != "model" else ".".join(path) or module
            where = name if path else f"{module}.{last}"
            assert _exists(where), where


def _exists(name: str) -> bool:
    """Return whether a name below one of the packages of the page is in the code."""
    parts = name.split(".")
    count = 2 if parts[0] == "model" else 1
    for package in ("steps.", "metadata.", "model.", ""):
        with suppress(ModuleNotFoundError, AttributeError):
            found = import_module(f"airflow_s3commit.protocol.{package}{'.'.join(parts[:count])}")
            for part in parts[count:]:
                found = getattr(found, part)
            return True
    return False

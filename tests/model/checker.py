"""Runs the models of docs/model with spin: ``python -m tests.model.checker [--large] [name …]``."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.model.runs import FAULTS, HOLDS, LARGE, LIVENESS, Run

__all__ = ["Outcome", "check", "missing_programs"]

MODELS = Path(__file__).parents[2] / "docs" / "model"

#: The most memory a search may use, in KiB.
_MEMORY_KIB = 4_000_000

#: Deeper than any model goes: a search that reaches it says so and is not complete.
_DEPTH = 200_000

_ERRORS = re.compile(r"depth reached (\d+), errors: (\d+)")
_STATES = re.compile(r"(\d[\d.e+]*) states, stored")
_VIOLATION = re.compile(r"pan:\d+: (?:assertion violated\s+!\((\w+)\)|(.+?) \(at depth)")


@dataclass(frozen=True)
class Outcome:
    """What a search found.

    Attributes:
        complete: Every state within the bound was visited.
        violations: Names of the rules that broke, or spin's own words: ``invalid end state``.
        states: How many states were stored.
        depth: Length of the longest path.
        seconds: How long it took, compilation included.
    """

    complete: bool
    violations: frozenset[str]
    states: int
    depth: int
    seconds: float


def missing_programs() -> list[str]:
    """Return which of the programs that a search needs are missing here."""
    return [program for program in ("spin", "cc") if shutil.which(program) is None]


def check(run: Run, *, large: bool = False) -> Outcome:
    """Search all states of a model.

    Args:
        run: The model, its switches, and what is looked for.
        large: For searches that take minutes: compile for speed, and keep a hash of each state instead of the
            state (hash-compact, ``-DHC4``: it may miss a state, with a small probability).
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        for model in MODELS.glob("*.pml"):
            shutil.copy(model, directory)
        switches = [f"-D{switch}" for switch in run.switches]
        _call(directory, "spin", "-a", *switches, f"{run.model}.pml")
        kind = "-DNP" if run.liveness else "-DSAFETY"
        # The compiler's own optimisation costs more than it saves where a search takes a second.
        speed = ["-O1", "-DHC4"] if large else ["-O0", "-DCOLLAPSE"]
        _call(directory, "cc", "-w", *speed, kind, "-DVECTORSZ=2048", "-o", "pan", "pan.c")
        arguments = [
            f"-m{_DEPTH}",
            f"-c{run.errors}",
            *(["-l"] if run.liveness else []),
            *(["-e"] * (run.errors > 1)),
        ]
        command = f"ulimit -v {_MEMORY_KIB}; exec nice -n 10 ./pan {' '.join(arguments)}"
        report = _call(directory, "sh", "-c", command)
    seconds = time.monotonic() - began
    reached = _ERRORS.search(report)
    stored = _STATES.search(report)
    if reached is None or stored is None:
        raise AssertionError(f"{run.name}: pan said\n{report}")
    named = frozenset(rule or words for rule, words in _VIOLATION.findall(report))
    complete = not any(
        sign in report for sign in ("max search depth too small", "Search not completed", "out of memory")
    )
    return Outcome(complete, named, int(float(stored[1])), int(reached[1]), seconds)


def _call(directory: str, *command: str) -> str:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    report = done.stdout + done.stderr
    if done.returncode != 0 and "pan:" not in report:
        raise AssertionError(f"{' '.join(command)}:\n{report}")
    return report


def main(arguments: list[str]) -> int:
    """Print what each search found; 1 if one was not as expected."""
    large = "--large" in arguments
    names = {argument for argument in arguments if not argument.startswith("-")}
    wrong = 0
    for run in LARGE if large else (*HOLDS, *LIVENESS, *FAULTS):
        if names and run.name not in names:
            continue
        outcome = check(run, large=large)
        expected = (
            outcome.violations >= run.breaks if run.breaks else not outcome.violations and outcome.complete
        )
        wrong += not expected
        found = ", ".join(sorted(outcome.violations)) or (
            "holds" if outcome.complete else "not searched to the end"
        )
        mark = " " if expected else "!"
        counted = f"{outcome.states:>11,} {outcome.depth:>5} {outcome.seconds:6.1f} s"
        print(f"{mark} {run.model:7} {run.name:34} {counted}  {found}", flush=True)
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

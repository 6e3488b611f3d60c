"""Where results, errors and progress go: tables for people, or exactly one JSON object for scripts."""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any, NamedTuple

import click
from rich import box
from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from airflow_s3commit.cli.exit_codes import ExitCode
from airflow_s3commit.cli.wording import cell, plain
from airflow_s3commit.protocol.context import STEP_NOTE
from airflow_s3commit.protocol.progress import Progress as Pace
from airflow_s3commit.protocol.progress import ProgressLog

__all__ = ["Column", "Declined", "NextStep", "Output", "facts", "table"]

log = logging.getLogger(__name__)

#: Seconds between two looks of a bar.
_REDRAW_SECONDS = 0.1

#: A list is kept in memory up to this length, then on disk.
_IN_MEMORY_BYTES = 16 * 1024 * 1024
_PIECE_CHARACTERS = 64 * 1024

#: Columns of output that goes into a file or a pipe: lines are not to be cut there.
_WIDTH_WITHOUT_TERMINAL = 160


class Declined(Exception):
    """The person at the terminal said no; nothing was done."""


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        title: Its heading.
        right: Whether it holds numbers.
        room: It is left out where the terminal has fewer columns than that.
        whole: Whether its cells are never folded.

    """

    title: str
    right: bool = False
    room: int = 0
    whole: bool = True


class NextStep(NamedTuple):
    """Something to do next, and if there is one the command line that does it."""

    words: str
    command: str | None = None


class Output:
    """What a command says, to whom.

    Results go to the standard output, everything else to the standard error.

    Args:
        as_json: One JSON object instead of tables; no colours, no progress.
        debug: Show where errors come from.

    """

    def __init__(self, *, as_json: bool = False, debug: bool = False) -> None:
        self.as_json = as_json
        self.debug = debug
        self._out = _console(stderr=False)
        self.err = _console(stderr=True)

    @property
    def width(self) -> int:
        """Columns that results have room for."""
        return self._out.width

    @property
    def is_interactive(self) -> bool:
        """Whether there is a person who could answer."""
        return sys.stdin is not None and sys.stdin.isatty()

    @property
    def shows_progress(self) -> bool:
        """Whether anybody sees how far something is."""
        return not self.as_json and self.err.is_terminal

    def result(self, value: Mapping[str, Any], *views: RenderableType | None) -> None:
        """Give the result: ``value`` to scripts, ``views`` to people."""
        if self.as_json:
            self.raw(json.dumps(value, indent=2))
            return
        for view in views:
            if view is not None:
                self._out.print(view, soft_wrap=isinstance(view, Text) and not self._out.is_terminal)

    def advise(self, steps: Iterable[NextStep], *, after_error: bool = False) -> None:
        """Tell people what to do next; commands stand on lines of their own, unbroken, to be pasted."""
        if self.as_json:
            return
        console, label = (self.err if after_error else self._out), "next: "
        for step in steps:
            console.print(Text.assemble((label, "bold"), plain(step.words)))
            if step.command is not None:
                console.print(Text(f"        {plain(step.command)}", style="cyan"), soft_wrap=True)
            label = "      "

    def stream(
        self,
        value: Mapping[str, Any],
        name: str,
        items: Iterable[Any],
        as_value: Callable[[Any], Any],
        as_line: Callable[[Any], str],
    ) -> None:
        """Give a result with a list too long to be held: ``name`` of the object, or a line an item.

        The object is written when its list is whole: an error on the way leaves no half of one.
        """
        if not self.as_json:
            for item in items:
                self.raw(plain(as_line(item)))
            return
        head = json.dumps(dict(value), indent=2)[:-2]
        with SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES, mode="w+", encoding="ascii") as spool:
            for n, item in enumerate(items):
                spool.write(f"{',' if n else ''}\n    {json.dumps(as_value(item))}")
            spool.seek(0)
            click.echo(f"{head}{',' if value else ''}\n  {json.dumps(name)}: [", nl=False)
            while piece := spool.read(_PIECE_CHARACTERS):
                click.echo(piece, nl=False)
        click.echo("\n  ]\n}")

    def raw(self, text: str) -> None:
        """Write a line to the standard output as it is."""
        click.echo(text)

    def discard(self) -> None:
        """Give up the standard output: whoever read it has seen enough, and has closed it.

        Otherwise Python would complain once more, when it closes the stream.
        """
        with suppress(OSError), Path(os.devnull).open("wb") as nothing:
            os.dup2(nothing.fileno(), sys.stdout.fileno())

    def note(self, text: str, style: str = "") -> None:
        """Tell people something that is no result."""
        if not self.as_json:
            self.err.print(Text(plain(text), style=style), soft_wrap=not self.err.is_terminal)

    def failure(
        self,
        value: Mapping[str, Any],
        code: ExitCode,
        steps: Sequence[NextStep] = (),
        error: BaseException | None = None,
    ) -> ExitCode:
        """Say what went wrong: its ``message``, its ``notes`` if it has any, and what to do next.

        Returns:
            The code that the program exits with, as given.

        """
        if self.debug and error is not None:
            click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
        if self.as_json:
            told = {**value, "exit_code": int(code), "next": [step._asdict() for step in steps]}
            self.raw(json.dumps({"error": told}, indent=2))
            return code
        self.err.print(_line("error: ", value["message"], "bold red"), soft_wrap=True)
        names_job = not self.debug and str(value.get("job_id")) in value["message"]
        for note in value.get("notes", ()):
            if names_job and note.startswith(STEP_NOTE):
                continue
            self.err.print(_line("       ", note, ""), soft_wrap=True)
        self.advise(steps, after_error=True)
        return code

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask the person at the terminal, if one is there and did not say yes before.

        Raises:
            Declined: They said no.

        """
        if yes or not self.is_interactive:
            return
        if not click.confirm(plain(question), err=True):
            raise Declined

    @contextmanager
    def working(self, what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        """Show on a terminal that something is done, and how far; what is yielded is told of each step.

        Args:
            what: What is done.
            total: How many steps it has; None if that is not known.

        """
        if not self.shows_progress:
            yield lambda _: None
            return
        columns = (
            (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
            if total is None
            else (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        )
        with Progress(*columns, console=self.err, transient=True) as progress:
            task = progress.add_task(what, total=total)
            yield lambda steps: progress.update(task, completed=steps)

    @contextmanager
    def completing(self, what: str) -> Iterator[Callable[[Pace], None]]:
        """Show how far and how fast uploads are completed: as a bar on a terminal, elsewhere in the log.

        Args:
            what: What is done.

        """
        if not self.shows_progress:
            yield ProgressLog(log)
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[pace]}"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self.err, transient=True) as progress:
            task = progress.add_task(what, total=None, pace="")
            shown = -_REDRAW_SECONDS

            def show(pace: Pace) -> None:
                nonlocal shown
                if pace.seconds - shown >= _REDRAW_SECONDS or pace.files_done == pace.files_total:
                    shown = pace.seconds
                    progress.update(task, completed=pace.files_done, total=pace.files_total, pace=pace.pace)

            yield show


def table(
    columns: Sequence[Column], rows: Iterable[Sequence[object]], *, width: int, title: str | None = None
) -> Table:
    """Return a table; columns that are only good to have are left out if there is no room for them."""
    made = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        title=title,
        title_justify="left",
        title_style="bold",
    )
    shown = [n for n, column in enumerate(columns) if width >= column.room]
    for n in shown:
        column = columns[n]
        made.add_column(
            column.title,
            justify="right" if column.right else "left",
            no_wrap=column.whole,
            overflow="fold",
        )
    for row in rows:
        made.add_row(*(_cell(row[n]) for n in shown))
    return made


def facts(pairs: Iterable[tuple[str, object]]) -> Table:
    """Return names and values, one a line; pairs without a value are left out."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for name, value in pairs:
        if value is not None and value != "":
            grid.add_row(name, _cell(value))
    return grid


def _cell(value: object) -> Text:
    return value if isinstance(value, Text) else cell(value)


def _line(label: str, text: str, style: str) -> Text:
    return Text.assemble((label, style), plain(text))


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    terminal = stream.isatty()
    width = None if terminal or os.environ.get("COLUMNS") else _WIDTH_WITHOUT_TERMINAL
    return Console(stderr=stderr, highlight=False, width=width, soft_wrap=False)

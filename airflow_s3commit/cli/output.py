"""The output of the program: results on stdout, messages on stderr, and an exit code for scripts.

Results are tables for people, or exactly one JSON object.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import IntEnum
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from airflow_s3commit._format import plain
from airflow_s3commit.cli.report import Line, View
from airflow_s3commit.exceptions import OutcomeUnknown, Refused, S3CommitError
from airflow_s3commit.present import NextStep
from airflow_s3commit.protocol.metadata.context import STEP_NOTE
from airflow_s3commit.protocol.steps.progress import Progress as Pace
from airflow_s3commit.protocol.steps.progress import ProgressLog


class ExitCode(IntEnum):
    """The exit codes, each with one meaning in every command."""

    OK = 0
    FINDINGS = 1
    USAGE = 2
    REFUSED = 3
    DID_NOT_HAPPEN = 4
    OUTCOME_UNKNOWN = 5
    INTERNAL = 70
    INTERRUPTED = 128 + signal.SIGINT
    BROKEN_PIPE = 128 + signal.SIGPIPE


#: Code and meaning, as the help shows them.
EXIT_CODES_HELP: tuple[tuple[str, str], ...] = (
    ("0", "Success; a check found no problems."),
    (
        "1",
        "Findings: differences, failed checks, or nothing committed. Also if you answered no.",
    ),
    ("2", "The command line is not valid."),
    ("3", "Refused by a rule of the protocol; the same command will be refused again."),
    (
        "4",
        "Failed without effect: store unreachable, no permission, or aborted. Safe to repeat.",
    ),
    (
        "5",
        "Unknown outcome: it may have happened in part. Run the same command again.",
    ),
    ("70", "A bug in this program."),
    ("130", "Interrupted. Every command may be repeated."),
)


def exit_code(error: S3CommitError) -> ExitCode:
    """Return the exit code of an error, by its kind: refused, without effect, or outcome unknown."""
    if isinstance(error, OutcomeUnknown):
        return ExitCode.OUTCOME_UNKNOWN
    return ExitCode.REFUSED if isinstance(error, Refused) else ExitCode.DID_NOT_HAPPEN


def outcome(error: S3CommitError) -> str:
    """Return the outcome of an error for scripts, such as ``did_not_happen``."""
    return exit_code(error).name.lower()


log = logging.getLogger(__name__)

_PACKAGE = "airflow_s3commit"

#: Seconds between two updates of a progress bar.
_REDRAW_SECONDS = 0.1

#: A streamed list is kept in memory up to this length, then on disk.
_IN_MEMORY_BYTES = 16 * 1024 * 1024
_PIECE_CHARACTERS = 64 * 1024

#: Columns of tables that go into a file or a pipe.
_WIDTH_WITHOUT_TERMINAL = 160


class Declined(Exception):
    """The user answered no; nothing was changed."""


class Output:
    """Writes results to stdout and messages to stderr.

    Args:
        as_json: Whether to write one JSON object, instead of tables, colours and progress.
        debug: Whether to write tracebacks.

    """

    def __init__(self, *, as_json: bool = False, debug: bool = False) -> None:
        self.as_json = as_json
        self.debug = debug
        self._out = _console(stderr=False)
        self.err = _console(stderr=True)

    @property
    def is_interactive(self) -> bool:
        """Whether stdin is a terminal, so that a person can answer."""
        return sys.stdin is not None and sys.stdin.isatty()

    @property
    def shows_progress(self) -> bool:
        """Whether a terminal shows progress."""
        return not self.as_json and self.err.is_terminal

    def result(self, value: Mapping[str, Any], *views: View, ok: bool = True) -> ExitCode:
        """Write the result: ``value`` as JSON with ``--json``, else ``views``.

        Args:
            value: The result for scripts.
            *views: The same result for people.
            ok: Whether there are no findings.

        Returns:
            The exit code: `ExitCode.OK`, or `ExitCode.FINDINGS` unless ``ok``.

        """
        if self.as_json:
            self.raw(json.dumps(value, indent=2))
        else:
            for view in views:
                wraps = isinstance(view, Line) and not self._out.is_terminal
                self._out.print(view.drawn(self._out.width), soft_wrap=wraps)
        return ExitCode.OK if ok else ExitCode.FINDINGS

    def advise(self, steps: Iterable[NextStep], *, after_error: bool = False) -> None:
        """Write next steps, each command on one unbroken line to paste; nothing with ``--json``."""
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
        """Write a result with a list that may not fit in memory.

        JSON is written once the list is complete, so that an error does not leave half an object.

        Args:
            value: The result for scripts, without the list.
            name: Name of the list in the result.
            items: The list.
            as_value: Returns the JSON value of an item.
            as_line: Returns the line of an item, for people.
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
        """Write a line to stdout unchanged."""
        click.echo(text)

    def discard(self) -> None:
        """Discard further output, because the reader of the pipe has closed it.

        Otherwise Python reports the closed pipe once more when it exits.
        """
        with suppress(OSError), Path(os.devnull).open("wb") as nothing:
            os.dup2(nothing.fileno(), sys.stdout.fileno())

    def note(self, text: str, style: str = "") -> None:
        """Write a message to stderr; nothing with ``--json``."""
        if not self.as_json:
            self.err.print(Text(plain(text), style=style), soft_wrap=not self.err.is_terminal)

    def failure(
        self,
        value: Mapping[str, Any],
        code: ExitCode,
        steps: Sequence[NextStep] = (),
        error: BaseException | None = None,
    ) -> ExitCode:
        """Write an error: its ``message``, its ``notes`` and the next steps.

        Args:
            value: The error for scripts.
            code: The exit code.
            steps: The next steps.
            error: The exception, whose traceback is written with ``--debug``.

        Returns:
            ``code``.

        """
        if self.debug and error is not None:
            click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
        if self.as_json:
            error_value = {**value, "exit_code": int(code), "next": [step._asdict() for step in steps]}
            self.raw(json.dumps({"error": error_value}, indent=2))
            return code
        self._message("error: ", value["message"], "bold red")
        names_job = not self.debug and str(value.get("job_id")) in value["message"]
        for note in value.get("notes", ()):
            if names_job and note.startswith(STEP_NOTE):
                continue
            self._message("       ", note)
        self.advise(steps, after_error=True)
        return code

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask for confirmation, unless ``yes`` is set or stdin is no terminal.

        Raises:
            Declined: The answer is no.

        """
        if yes or not self.is_interactive:
            return
        if not click.confirm(plain(question), err=True):
            raise Declined

    @contextmanager
    def working(self, what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        """Show progress on a terminal; yields a function that takes the number of completed steps.

        Args:
            what: Name of the activity.
            total: Number of steps; None if unknown.

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
        """Show the progress of completing uploads: a bar on a terminal, otherwise log lines.

        Args:
            what: Name of the activity.

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

    def _message(self, label: str, text: object, style: str = "") -> None:
        self.err.print(Text.assemble((label, style), plain(text)), soft_wrap=True)


class _Handler(logging.Handler):
    """Writes log records to stderr, above the progress bar if there is one."""

    def __init__(self, output: Output) -> None:
        super().__init__(logging.DEBUG if output.debug else logging.WARNING)
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        message = record.getMessage()
        if self._output.debug and record.exc_info:
            message += "\n" + logging.Formatter().formatException(record.exc_info)
        lines = "\n".join(map(plain, message.splitlines()))
        label = f"{record.levelname.lower()}: "
        self._output.err.print(Text.assemble((label, "yellow"), lines), soft_wrap=True)


@contextmanager
def logged_to(output: Output) -> Iterator[None]:
    """Write the package's warnings, or with ``--debug`` all of its log, while the block runs.

    Logs of other libraries are left out, because they contain whole requests.
    """
    logger, handler = logging.getLogger(_PACKAGE), _Handler(output)
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if output.debug else logging.WARNING)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    terminal = stream.isatty()
    width = None if terminal or os.environ.get("COLUMNS") else _WIDTH_WITHOUT_TERMINAL
    return Console(stderr=stderr, highlight=False, width=width, soft_wrap=False)

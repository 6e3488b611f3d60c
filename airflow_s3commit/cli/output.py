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
from contextlib import contextmanager
from enum import IntEnum
from tempfile import SpooledTemporaryFile
from typing import Any, TypeVar

import click
import msgspec
from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from airflow_s3commit._format import Column, facts, plain
from airflow_s3commit.exceptions import OutcomeUnknown, Refused, S3CommitError
from airflow_s3commit.present import NextStep
from airflow_s3commit.protocol.metadata.context import STEP_NOTE
from airflow_s3commit.protocol.metadata.pending_uploads import Progress as Pace
from airflow_s3commit.protocol.metadata.pending_uploads import ProgressLog


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
EXIT_CODES_HELP = (
    ("0", "Success; a check found no problems. Also if nothing is at DEST, as the message then says."),
    ("1", "Findings: differences, failed checks, or nothing committed. Also if you answered no."),
    ("2", "The command line is not valid."),
    ("3", "Refused by a rule of the protocol; the same command will be refused again."),
    ("4", "Did not happen: no store or permission, or aborted. It says if files may be visible. Repeat it."),
    ("5", "Unknown outcome: it may have happened in part. Run the same command again."),
    ("70", "A bug in this program."),
    ("130", "Interrupted. Every command may be repeated."),
)


def exit_code(error: S3CommitError) -> ExitCode:
    """Return the exit code of an error, by its kind: refused, without effect, or outcome unknown."""
    if isinstance(error, OutcomeUnknown):
        return ExitCode.OUTCOME_UNKNOWN
    return ExitCode.REFUSED if isinstance(error, Refused) else ExitCode.DID_NOT_HAPPEN


T = TypeVar("T")

log = logging.getLogger(__name__)

_PACKAGE = "airflow_s3commit"

#: A streamed list is kept in memory up to this length, then on disk.
_IN_MEMORY_BYTES = 16 * 1024 * 1024
_PIECE_BYTES = 64 * 1024

#: A width that no table exceeds, in characters.
_UNLIMITED = 100_000

#: Width of tables that go into a file or a pipe, in characters.
_WIDTH_WITHOUT_TERMINAL = 160


class Output:
    """Writes results to stdout and messages to stderr; with ``as_json`` one object and nothing else."""

    def __init__(self, *, as_json: bool = False, debug: bool = False) -> None:
        self.as_json = as_json
        self.debug = debug
        self._out = _console(stderr=False)
        self.err = _console(stderr=True)

    @property
    def is_interactive(self) -> bool:
        """Whether stdin is a terminal, so that a person can answer."""
        return sys.stdin is not None and sys.stdin.isatty()

    def result(self, value: Mapping[str, Any], *views: RenderableType, ok: bool = True) -> ExitCode:
        """Write the result, ``value`` as JSON with ``--json``, else ``views``; return its exit code."""
        if self.as_json:
            click.echo(json.dumps(value, indent=2))
        else:
            self.show(*views)
        return ExitCode.OK if ok else ExitCode.FINDINGS

    def show(self, *views: RenderableType) -> None:
        """Write a result for people; nothing with ``--json``."""
        for view in () if self.as_json else views:
            self._out.print(view, soft_wrap=isinstance(view, Text) and not self._out.is_terminal)

    def advise(self, steps: Iterable[NextStep], *, after_error: bool = False) -> None:
        """Write next steps, each command on one unbroken line to paste; nothing with ``--json``."""
        if self.as_json:
            return
        console, label = (self.err if after_error else self._out), "next: "
        for step in steps:
            console.print(Text.assemble((label, "bold"), plain(step.words)))
            if step.command is not None:
                console.print(line(f"        {step.command}", "cyan"), soft_wrap=True)
            label = "      "

    def stream(
        self, value: Mapping[str, Any], name: str, items: Iterable[Any], as_line: Callable[[Any], str]
    ) -> ExitCode:
        """Write a result with a list of structs that may not fit in memory: as lines, or all of it as JSON.

        JSON is written once the list is complete, so that an error does not leave half an object.
        """
        if not self.as_json:
            for item in items:
                click.echo(plain(as_line(item)))
            return ExitCode.OK
        head = json.dumps(dict(value), indent=2)[:-2]
        with SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES) as spool:
            for n, item in enumerate(items):
                spool.write((b",\n    " if n else b"\n    ") + msgspec.json.encode(item))
            spool.seek(0)
            click.echo(f"{head},\n  {json.dumps(name)}: [", nl=False)
            while piece := spool.read(_PIECE_BYTES):
                click.echo(piece, nl=False)
        click.echo("\n  ]\n}")
        return ExitCode.OK

    def note(self, text: str) -> None:
        """Write a message to stderr; nothing with ``--json``."""
        if not self.as_json:
            self.err.print(line(text), soft_wrap=not self.err.is_terminal)

    def failure(
        self,
        value: Mapping[str, Any],
        code: ExitCode,
        steps: Sequence[NextStep] = (),
        error: BaseException | None = None,
    ) -> ExitCode:
        """Write an error with its ``message``, its ``notes`` and the next steps; return its code.

        With ``--debug`` the traceback of the exception is written too.
        """
        if self.debug and error is not None:
            click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
        if self.as_json:
            told = {**value, "exit_code": int(code), "next": [step._asdict() for step in steps]}
            self.result({"error": told})
            return code
        self.err.print(line(value["message"], "bold red", "error"), soft_wrap=True)
        names_job = not self.debug and str(value.get("job_id")) in value["message"]
        for note in value.get("notes", ()):
            if not (names_job and note.startswith(STEP_NOTE)):
                self.err.print(line(f"       {note}"), soft_wrap=True)
        self.advise(steps, after_error=True)
        return code

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask for confirmation, unless ``yes`` is set or stdin is no terminal.

        Raises `click.exceptions.Exit` if the answer is no, which is reported.
        """
        if not yes and self.is_interactive and not click.confirm(plain(question), err=True):
            failure = {"type": "Declined", "outcome": "did_not_happen"}
            failure["message"] = "you answered no: nothing was deleted or discarded"
            raise click.exceptions.Exit(self.failure(failure, ExitCode.FINDINGS))

    @contextmanager
    def working(self, what: str, total: int | None = None) -> Iterator[Callable[..., None]]:
        """Show progress on a terminal.

        Yields a function of the number of completed steps and, optionally, of their total and more text.
        """
        words, hidden = TextColumn("{task.description}"), self.as_json or not self.err.is_terminal
        columns = words, BarColumn(), TextColumn("{task.fields[done]}"), TimeElapsedColumn()
        with Progress(*columns, console=self.err, transient=True, disable=hidden) as shown:
            task = shown.add_task(what, total=total, done="")

            def step(done: int, total: int | None = total, more: str = "") -> None:
                count = f"{done:,}" if total is None else f"{done:,}/{total:,}"
                shown.update(task, completed=done, total=total, done=f"{count} {more}")

            yield step

    def reading(self, what: str, items: Iterable[T]) -> list[T]:
        """Return items in a list, and show on a terminal how many were read so far."""
        found = []
        with self.working(what) as step:
            for item in items:
                found.append(item)
                step(len(found))
        return found

    @contextmanager
    def completing(self, what: str) -> Iterator[Callable[[Pace], None]]:
        """Show the progress of completing uploads: a bar on a terminal, otherwise log lines."""
        if self.as_json or not self.err.is_terminal:
            yield ProgressLog(log)
            return
        with self.working(what, 0) as step:
            yield lambda pace: step(pace.files_done, pace.files_total, pace.pace)


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
        for number, text in enumerate(message.splitlines() or [""]):
            label = "" if number else record.levelname.lower()
            self._output.err.print(line(text, "yellow" if label else "", label), soft_wrap=True)


@contextmanager
def logged_to(output: Output) -> Iterator[None]:
    """Write the package's warnings, or with ``--debug`` all of its log, while the block runs.

    Logs of other libraries are left out, because they contain whole requests.
    """
    logger, handler = logging.getLogger(_PACKAGE), _Handler(output)
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(handler.level)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


class _Console(Console):
    """A console that leaves a closed pipe to the command: rich would exit with 1, which means findings."""

    def on_broken_pipe(self) -> None:
        """Raise the error again."""
        raise  # noqa: PLE0704 - rich calls this in its handler


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    is_known = stream is None or stream.isatty() or os.environ.get("COLUMNS")
    width = None if is_known else _WIDTH_WITHOUT_TERMINAL
    return _Console(stderr=stderr, highlight=False, width=width, soft_wrap=False)


#: Colours of states.
_STATES = {"open": "cyan", "sealed": "cyan", "committed": "green", "aborted": "dim", "no state": "red"}

#: Maximum number of lines with one label.
_SHOWN = 20


def line(text: object, style: str = "", label: str = "") -> Text:
    """Return a line without control characters; with a label, the style is the label's."""
    if label:
        return Text.assemble((f"{label}: ", style), plain(text), overflow="fold")
    return Text(plain(text), style=style, overflow="fold")


BLANK = line("")
DRY_RUN = line("dry run: nothing was changed", "yellow")
NOT_APPLIED = line("dry run: nothing was changed; add --apply to do it", "yellow")


def labelled(label: str, texts: Iterable[object], style: str = "red", total: int = 0) -> Iterator[Text]:
    """Yield a line for each of the first texts, with one label, then how many more there are of the total."""
    named = list(texts)
    yield from (line(text, style, label) for text in named[:_SHOWN])
    if (more := max(total, len(named)) - _SHOWN) > 0:
        yield line(f"… and {more:,} more {label}; --json has up to {len(named):,}", "dim")


def described(columns: Sequence[Column], report: object) -> Table:
    """Return the facts of a report as a table, one labelled value per line."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for name, text in facts(columns, report):
        grid.add_row(line(name), _value(name, text))
    return grid


def _value(title: str, text: str) -> Text:
    """Return a value of a report: states have their colours, and problems are red."""
    if title == "state":
        return line(text, "yellow" if "publishing" in text else _STATES.get(text.partition(",")[0], ""))
    return line(text, "red" if title == "commit refused" or " MISSING" in text else "")


class Rows:
    """A table of reports, without the columns for which a terminal is too narrow.

    Rows beyond ``most`` are only counted.
    """

    def __init__(self, columns: Iterable[Column], reports: Sequence[object], most: int | None = None) -> None:
        self._columns, self._reports, self._most = columns, reports, most

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield the table, and a line if rows are left out."""
        grid = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        columns = [column for column in self._columns if options.max_width >= column.room]
        for one in columns:
            side = "right" if one.is_number else "left"
            grid.add_column(one.title, justify=side, no_wrap=not one.folds, overflow="fold")  # type: ignore[arg-type]
        for report in self._reports[: self._most]:
            grid.add_row(*(_value(column.title, column.text(report)) for column in columns))
        if Measurement.get(console, options.update_width(_UNLIMITED), grid).maximum > options.max_width:
            # Otherwise rich cuts what does not fit, and half a number is another number.
            for column in grid.columns:
                column.no_wrap = False
        yield grid
        if self._most is not None and (more := len(self._reports) - self._most) > 0:
            yield line(f"… and {more:,} more; --json has them all", "dim")

"""The program ``s3commit``: its commands, and the exit codes of errors."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from io import TextIOWrapper
from itertools import chain
from typing import Any, NoReturn

import click

from airflow_s3commit import __version__
from airflow_s3commit.cli.output import EXIT_CODES_HELP, ExitCode, Output
from airflow_s3commit.cli.reports import jobs, log, manifest, pending, show
from airflow_s3commit.cli.steps import abort, adopt, commit, put, recover, seal, setup
from airflow_s3commit.cli.table import compact, doctor, publish, repair, rollback, sweep, verify
from airflow_s3commit.present import NextStep

#: The commands by what they are for, in the order of the help.
COMMANDS = {
    "See what is there": (jobs, show, pending, log, manifest),
    "Write a job": (setup, put, seal),
    "End a job": (commit, abort, recover),
    "Let other engines read": (publish,),
    "Check": (verify, doctor),
    "Clean up and mend": (sweep, compact, rollback, repair, adopt),
}


class Program(click.Group):
    """The group of all commands."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the commands, by what they are for."""
        for title, commands in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{command.name:<8}", command.short_help or "") for command in commands])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the exit codes, then the examples."""
        with formatter.section("Exit codes"):
            formatter.write_dl(EXIT_CODES_HELP)
        super().format_epilog(ctx, formatter)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command, and end it with a code of its own if a reader closes the pipe."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # Otherwise Python reports the closed pipe once more when it exits.
            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return ExitCode.BROKEN_PIPE

    def main(self, args: Sequence[str] | None = None, *more: Any, **extra: Any) -> NoReturn:
        """Run a command, report every exception, and exit with the code; see `click.Command.main`."""
        words = list(sys.argv[1:] if args is None else args)
        for stream in (sys.stdout, sys.stderr):
            # What was done must be reported, also if the encoding lacks a character of a name.
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        output = Output(as_json="--json" in words, debug="--debug" in words)
        failure = {"type": "Interrupted", "outcome": "outcome_unknown"}
        try:
            code = super().main(words, *more, **{**extra, "standalone_mode": False})
        except click.ClickException as error:
            code = ExitCode.USAGE
            failure = {"type": "UsageError", "outcome": "usage", "message": error.format_message()}
            if output.as_json:
                output.failure(failure, code)
            else:
                error.show()
        except click.Abort:
            failure["message"] = "interrupted; it is safe to run the command again"
            code = output.failure(failure, ExitCode.INTERRUPTED)
        except Exception as error:
            where, kind = traceback.extract_tb(error.__traceback__)[-1], type(error).__name__
            failure["type"] = kind
            failure["message"] = f"a bug: {kind}: {error} ({where.name}, line {where.lineno})"
            steps = [NextStep("run it again with --debug, and report the output")]
            code = output.failure(failure, ExitCode.INTERNAL, steps, error)
        sys.exit(int(code or ExitCode.OK))


@click.group(
    name="s3commit",
    cls=Program,
    commands=[*chain.from_iterable(COMMANDS.values())],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True},
    epilog="""\b
Examples:
  s3commit jobs s3://lake/flights/                    which jobs are in progress?
  s3commit show s3://lake/flights/ JOB                what is the state of one, and what to do next?
  s3commit recover s3://lake/flights/ JOB             finish a commit or an abort that was interrupted
  s3commit verify s3://lake/flights/                  is the table as it was committed?
  s3commit sweep s3://lake/flights/ --older-than 7d   preview a clean-up; --apply performs it
  s3commit doctor s3://lake/flights/                  does the bucket support jobs?

s3commit COMMAND --help explains a command, with examples.
Credentials are found as boto3 finds them: in the environment, a profile, or the machine's role.
""",
)
@click.version_option(__version__, prog_name="s3commit", message="%(prog)s %(version)s")
def program() -> None:
    """Inspect zero-rename S3 commits, finish them, and clean up after them.

    A job writes pending multipart uploads below a destination, and one commit makes them all visible. The
    records of jobs are on the store, so every command works from any machine, and may be repeated.
    """


def main() -> NoReturn:
    """Run the program named ``s3commit``."""
    program.main(prog_name="s3commit")

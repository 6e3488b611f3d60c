"""How a command is made: its arguments, the options that all share, its help, and what becomes of errors."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal

import click

from airflow_s3commit.cli.advice import after_error
from airflow_s3commit.cli.connect import Connection, Door, store_options
from airflow_s3commit.cli.exit_codes import ExitCode, exit_code, outcome
from airflow_s3commit.cli.log import told_to
from airflow_s3commit.cli.output import Declined, Output
from airflow_s3commit.cli.parameters import (
    DescribedArgument,
    SectionedOption,
    as_destination,
    as_job_id,
)
from airflow_s3commit.cli.session import Session
from airflow_s3commit.exceptions import S3CommitError

__all__ = ["StoreCommand", "store_command"]

Body = Callable[..., ExitCode]


class StoreCommand(click.Command):
    """A command whose help groups its options and ends with examples."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write arguments and options, each group under its heading."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                title = "Output" if param.name == "help" else getattr(param, "section", "Options")
                sections.setdefault(title, []).append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def store_command(
    name: str,
    *,
    summary: str,
    examples: str,
    job: Literal["required", "optional", "none"] = "none",
    staging: bool = True,
    confirms: bool = False,
) -> Callable[[Body], StoreCommand]:
    """Make a command of a function, which gets a `Session` and the command's own options.

    Its docstring is the help. Errors of the package end the command with a message and the exit code that
    belongs to them.

    Args:
        name: What it is called.
        summary: What it does, in some sixty characters.
        examples: Command lines, shown at the end of the help.
        job: Whether it takes a job's id.
        staging: Whether it takes ``--staging``.
        confirms: Whether it asks before it destroys something, and takes ``--yes``.

    """

    def decorate(function: Body) -> StoreCommand:
        own: list[click.Parameter] = list(reversed(getattr(function, "__click_params__", [])))
        return StoreCommand(
            name,
            params=[
                *_arguments(job),
                *own,
                *_shared(staging=staging, confirms=confirms),
                *store_options(),
                *_outputs(),
            ],
            callback=_runner(function),
            help=inspect.getdoc(function),
            short_help=summary,
            epilog="\b\nExamples:\n"
            + "\n".join(f"  {line}" for line in inspect.cleandoc(examples).splitlines()),
        )

    return decorate


def run(session: Session, function: Body, values: dict[str, Any]) -> ExitCode:
    """Run a command's function, and turn its errors into words and an exit code."""
    try:
        return function(session, **values)
    except BrokenPipeError:
        session.output.discard()
        return ExitCode.BROKEN_PIPE
    except Declined:
        told = {"type": "Declined", "outcome": "did_not_happen"}
        told["message"] = "you said no: nothing was deleted or discarded"
        return session.output.failure(told, ExitCode.FINDINGS)
    except S3CommitError as error:
        steps = after_error(error, session)
        return session.output.failure(_told(error, session), exit_code(error), steps, error)


def _told(error: S3CommitError, session: Session) -> dict[str, Any]:
    return {
        "type": type(error).__name__,
        "outcome": outcome(error),
        "message": str(error) or type(error).__name__,
        "notes": list(getattr(error, "__notes__", ())),
        "destination": session.destination.uri,
        "bucket": session.destination.bucket,
        "job_id": session.job_id,
    }


def _runner(function: Body) -> Callable[..., ExitCode]:
    def callback(**values: Any) -> ExitCode:
        connection = Connection.taken_from(values)
        session = Session(
            connection,
            Output(as_json=values.pop("as_json"), debug=values.pop("debug")),
            values.pop("destination"),
            values.pop("job_id", None),
            values.pop("staging_root", None),
            values.pop("yes", False),
            click.get_current_context().find_object(Door),
        )
        with told_to(session.output):
            return run(session, function, values)

    return callback


def _arguments(job: str) -> list[click.Parameter]:
    found: list[click.Parameter] = [
        DescribedArgument(
            ["destination"],
            type=as_destination,
            metavar="DEST",
            description="The directory of a dataset: s3://bucket/prefix/ (s3a:// will do).",
        )
    ]
    if job != "none":
        found.append(
            DescribedArgument(
                ["job_id"],
                type=as_job_id,
                metavar="JOB" if job == "required" else "[JOB]",
                required=job == "required",
                description="A job's id, as s3commit jobs lists it.",
            )
        )
    return found


def _shared(*, staging: bool, confirms: bool) -> list[click.Option]:
    options = []
    if staging:
        options.append(
            click.Option(
                ["--staging", "staging_root"],
                type=as_destination,
                metavar="URI",
                help="Where jobs have their records, if not below DEST (the job option staging).",
            )
        )
    if confirms:
        options.append(
            click.Option(
                ["--yes", "-y", "yes"], is_flag=True, help="Don't ask. (Without a terminal nobody is asked.)"
            )
        )
    return options


def _outputs() -> list[click.Option]:
    return [
        SectionedOption(
            ["--json", "as_json"], is_flag=True, section="Output", help="Write one JSON object, for scripts."
        ),
        SectionedOption(
            ["--debug"], is_flag=True, section="Output", help="Show where errors come from, and what is done."
        ),
    ]

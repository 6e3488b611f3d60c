"""The building blocks of commands: arguments and shared options, sessions, help, and errors."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeVar

import click

from airflow_s3commit._format import seconds_of
from airflow_s3commit.cli import store_options
from airflow_s3commit.cli.output import Declined, ExitCode, Output, exit_code, logged_to, outcome
from airflow_s3commit.cli.store_options import Connection, SectionedOption, StoreProvider
from airflow_s3commit.exceptions import S3CommitError
from airflow_s3commit.present import CommandLines, after_error
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.registry import Registered, read_registry
from airflow_s3commit.protocol.model.destination import (
    Destination,
    RegisteredDestination,
    is_pattern,
    matches,
    split_uri,
)
from airflow_s3commit.protocol.model.job import JobReference
from airflow_s3commit.protocol.model.layout import Layout, check_attempt_id, check_id
from airflow_s3commit.protocol.steps.setup import recorded
from airflow_s3commit.store.base import ObjectStore
from airflow_s3commit.store.headers import with_headers

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., Any])

#: The environment variables of a destination and a job.
_VARIABLES = ("S3COMMIT_DESTINATION", "S3COMMIT_JOB")

_SCHEME = re.compile("s3[an]?://")


def _checked(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Return a click type that parses with a function, and turns its errors into usage errors."""

    def checked(text: str) -> T:
        try:
            return parse(text)
        except (S3CommitError, ValueError) as error:
            raise click.BadParameter(str(error)) from error

    return checked


def _uri(text: str) -> str:
    split_uri(text)
    return text


def _destinations(text: str) -> Destination | str:
    return text if is_pattern(text) else Destination.parse(text)


def _stage(text: str) -> tuple[str, str]:
    stage, _, attempt = text.rpartition(":")
    try:
        return check_id(stage, "stage"), check_attempt_id(attempt, "stage attempt")
    except S3CommitError as error:
        raise click.BadParameter(f"{error}; write it as stage:attempt") from error


#: Types of arguments and options.
as_destination = _checked(Destination.parse)
as_destinations = _checked(_destinations)
as_duration = _checked(seconds_of)
as_job_id = _checked(check_id)
as_stage = _checked(_stage)
as_uri = _checked(_uri)


def registry_option(description: str) -> Callable[[Command], Command]:
    """Add the option for the prefix of a registry, which an environment variable can set too."""
    return click.option(
        "--registry",
        type=as_destination,
        metavar="URI",
        envvar="S3COMMIT_REGISTRY",
        show_envvar=True,
        help=description,
    )


class DescribedArgument(click.Argument):
    """A positional argument with a description in the help."""

    section = "Arguments"

    def __init__(self, *args: Any, description: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.description = description

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:  # noqa: ARG002 - click's signature
        """Return the name and the description for the help."""
        return self.metavar or self.human_readable_name, self.description


@dataclass
class Opened:
    """The store of a run of a command, opened when it is first needed.

    Attributes:
        connection: The connection to the store.
        provider: Opens the store.

    """

    connection: Connection
    provider: StoreProvider

    @cached_property
    def store(self) -> ObjectStore:
        """The store."""
        store = self.provider.open(self.connection)
        return with_headers(store, self.connection.object_options.of_records)


@dataclass
class Session:
    """One run of a command, on one destination.

    Attributes:
        opened: The store, which sessions on several destinations share.
        output: Writes results and messages.
        destination: The destination.
        job_id: The job; None if the command takes none.
        staging_root: The root of the jobs' staging; None if it is the destination.
        yes: Whether ``--yes`` was given.
        registry: The registry with the destinations of the command; None for ``destination`` only.
        pattern: The pattern that these destinations match; None for all.

    """

    opened: Opened
    output: Output
    destination: Destination
    job_id: str | None
    staging_root: Destination | None
    yes: bool
    registry: Destination | None = None
    pattern: str | None = None

    def __post_init__(self) -> None:
        if self.staging_root == self.destination:
            self.staging_root = None

    @property
    def connection(self) -> Connection:
        """The connection to the store."""
        return self.opened.connection

    @property
    def store(self) -> ObjectStore:
        """The store, opened when it is first needed."""
        return self.opened.store

    @cached_property
    def context(self) -> JobContext:
        """The job's context, with the staging that its record names."""
        assert self.job_id is not None
        return recorded(JobContext(self.store, Layout.of(self.destination, self.job_id)))

    @property
    def commands(self) -> CommandLines:
        """Composes command lines about the same destination, job and store."""
        provider = self.opened.provider
        return CommandLines(
            self.destination,
            self.job_id,
            self.staging_root,
            provider.program,
            (*self.connection.arguments(), *provider.arguments),
        )

    def registered(self) -> Iterator[Registered]:
        """Yield the matching entries of the registry.

        With Airflow's connections, only entries of this command's connection.
        """
        assert self.registry is not None
        conn_id = self.opened.provider.aws_conn_id
        for entry in read_registry(self.store, self.registry):
            record = entry.record
            if self.pattern is not None and not matches(record.destination, self.pattern):
                continue
            if conn_id not in (None, record.aws_conn_id):
                self.output.note(f"left out: {record.destination} uses the connection {record.aws_conn_id}")
                continue
            yield entry

    def at(self, record: RegisteredDestination) -> Session:
        """Return a session on a destination of the registry, with the same store."""
        return replace(self, destination=record.place, staging_root=record.staging_root, registry=None)

    def job(self) -> Job:
        """Return the job; sends no request."""
        assert self.job_id is not None
        layout = Layout.of(self.destination, self.job_id)
        return Job.at(self.store, JobReference(**layout.place))


Body = Callable[..., ExitCode]


class StoreCommand(click.Command):
    """A command whose help groups its options and ends with examples.

    Attributes:
        environment: The variables that replace its leading arguments, for command lines without them.

    """

    environment: tuple[str, ...] = ()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the destination, and the job, from the environment if no argument is a destination."""
        given = [os.environ[name] for name in self.environment if name in os.environ]
        if len(given) == len(self.environment) and not any(_SCHEME.match(word) for word in args):
            args = [*given, *args]
        return super().parse_args(ctx, args)

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
    staging: bool = False,
    confirms: bool = False,
    environment: bool = False,
    registry: bool = False,
) -> Callable[[Body], StoreCommand]:
    """Turn a function of a `Session` and the command's own options into a command.

    The function's docstring is the help. An exception of the package ends the command with its message and
    its exit code.

    Args:
        name: The name of the command.
        summary: One line about the command, of about sixty characters.
        examples: Command lines for the end of the help.
        job: Whether the command takes a job id.
        staging: Whether the command takes ``--staging``.
        confirms: Whether the command asks for confirmation, and takes ``--yes``.
        environment: Whether variables may give destination and job, as for a program's task.
        registry: Whether the command takes the destinations of a registry too.

    """

    def decorate(function: Body) -> StoreCommand:
        own: list[click.Parameter] = list(reversed(getattr(function, "__click_params__", [])))
        command = StoreCommand(
            name,
            params=[
                *_arguments(job, environment=environment, registry=registry),
                *own,
                *_shared(staging=staging, confirms=confirms),
                *store_options.options(),
                *_outputs(),
            ],
            callback=_runner(function, registry=registry),
            help=inspect.getdoc(function),
            short_help=summary,
            epilog="\b\nExamples:\n"
            + "\n".join(f"  {line}" for line in inspect.cleandoc(examples).splitlines()),
        )
        if environment:
            command.environment = _VARIABLES[: 1 if job == "none" else 2]
        return command

    return decorate


def run(session: Session, function: Body, values: dict[str, Any]) -> ExitCode:
    """Run a command's function, report its errors, and return the exit code."""
    try:
        return function(session, **values)
    except BrokenPipeError:
        session.output.discard()
        return ExitCode.BROKEN_PIPE
    except Declined:
        failure = {"type": "Declined", "outcome": "did_not_happen"}
        failure["message"] = "you answered no: nothing was deleted or discarded"
        return session.output.failure(failure, ExitCode.FINDINGS)
    except S3CommitError as error:
        steps = after_error(error, session.commands)
        return session.output.failure(_described(error, session), exit_code(error), steps, error)


def _described(error: S3CommitError, session: Session) -> dict[str, Any]:
    return {
        "type": type(error).__name__,
        "outcome": outcome(error),
        "message": str(error) or type(error).__name__,
        "notes": list(getattr(error, "__notes__", ())),
        "destination": session.destination.uri,
        "bucket": session.destination.bucket,
        "job_id": session.job_id,
    }


def _runner(function: Body, *, registry: bool) -> Callable[..., ExitCode]:
    def callback(**values: Any) -> ExitCode:
        opened = Opened(
            Connection.taken_from(values),
            click.get_current_context().find_object(StoreProvider) or store_options.own_provider(),
        )
        given = values.pop("destination")
        among: Destination | None = values.pop("registry", None) if registry else None
        place = given if isinstance(given, Destination) else among
        if place is None:
            raise click.UsageError("give DEST, or the prefix of a registry with --registry")
        session = Session(
            opened,
            Output(as_json=values.pop("as_json"), debug=values.pop("debug")),
            place,
            values.pop("job_id", None),
            values.pop("staging_root", None),
            values.pop("yes", False),
            None if place is given else among,
            given if isinstance(given, str) else None,
        )
        with logged_to(session.output):
            return run(session, function, values)

    return callback


def _arguments(job: str, *, environment: bool, registry: bool) -> list[click.Parameter]:
    found: list[click.Parameter] = [
        DescribedArgument(
            ["destination"],
            type=as_destinations if registry else as_destination,
            metavar="[DEST]" if registry else "DEST",
            required=not registry,
            description="The directory of a dataset: s3://bucket/prefix/ or s3a://bucket/prefix/."
            + (" Default, with JOB: S3COMMIT_DESTINATION and S3COMMIT_JOB." if environment else "")
            + (" With --registry a pattern, such as 's3://lake/*'; default: all." if registry else ""),
        )
    ]
    if job != "none":
        found.append(
            DescribedArgument(
                ["job_id"],
                type=as_job_id,
                metavar="JOB" if job == "required" else "[JOB]",
                required=job == "required",
                description="The id of a job, as listed by s3commit jobs.",
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
                help="The root of the jobs' staging, if not DEST: the value of the job option staging.",
            )
        )
    if confirms:
        options.append(
            click.Option(
                ["--yes", "-y", "yes"],
                is_flag=True,
                help="Don't ask for confirmation. (Without a terminal, the command never asks.)",
            )
        )
    return options


def _outputs() -> list[click.Option]:
    return [
        SectionedOption(
            ["--json", "as_json"], is_flag=True, section="Output", help="Write one JSON object, for scripts."
        ),
        SectionedOption(["--debug"], is_flag=True, section="Output", help="Show tracebacks and debug logs."),
    ]

"""The building blocks of commands: arguments and shared options, sessions, help, and errors."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, TypeVar

import click

from airflow_s3commit._format import seconds_of
from airflow_s3commit.cli import store_options
from airflow_s3commit.cli.output import ExitCode, Output, exit_code, logged_to
from airflow_s3commit.cli.store_options import Connection, StoreProvider
from airflow_s3commit.exceptions import S3CommitError
from airflow_s3commit.present import CommandLines, after_error
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.registry import Registered, read_registry
from airflow_s3commit.protocol.model.destination import Destination, is_pattern, matches, split_uri
from airflow_s3commit.protocol.model.job import JobReference
from airflow_s3commit.protocol.model.layout import Layout, check_attempt_id, check_id
from airflow_s3commit.protocol.steps.setup import recorded
from airflow_s3commit.store.base import ObjectStore
from airflow_s3commit.store.headers import with_headers
from airflow_s3commit.tables.options import parse_bytes

Command = TypeVar("Command", bound=Callable[..., Any])

#: The environment variables of a destination and a job.
_VARIABLES = ("S3COMMIT_DESTINATION", "S3COMMIT_JOB")

_SCHEME = re.compile("s3[an]?://")


def _type(name: str, parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a type for click, named so in the help, that parses with a function."""

    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except S3CommitError as error:
            raise ValueError(str(error)) from error

    parsed.__name__ = name
    return parsed


def _uri(text: str) -> str:
    split_uri(text)
    return text


def _stage(text: str) -> tuple[str, str]:
    stage, _, attempt = text.rpartition(":")
    try:
        return check_id(stage, "stage"), check_attempt_id(attempt, "stage attempt")
    except S3CommitError as error:
        raise ValueError(f"{error}; write it as stage:attempt") from error


#: Types of arguments and options.
as_destination = _type("uri", Destination.parse)
as_destinations = _type("uri", lambda text: text if is_pattern(text) else Destination.parse(text))
as_duration = _type("duration", seconds_of)
as_job_id = _type("uuid", check_id)
as_size = _type("size", parse_bytes)
as_stage = _type("stage:attempt", _stage)
as_uri = _type("uri", _uri)


#: An option whose default the help shows.
option = partial(click.option, show_default=True)


def flag(name: str, does: str, parameter: str | None = None) -> Callable[[Command], Command]:
    """Add an option without a value, for the parameter of its name or another one."""
    names = [name] if parameter is None else [name, parameter]
    return click.option(*names, is_flag=True, help=does)


def registry_option(description: str) -> Callable[[Command], Command]:
    """Add the option for the prefix of a registry, which an environment variable can set too."""
    return click.option(
        "--registry",
        type=as_destination,
        envvar="S3COMMIT_REGISTRY",
        show_envvar=True,
        help=description,
    )


def apply_option(does: str) -> Callable[[Command], Command]:
    """Add the option without which a command is a dry run."""
    return flag("--apply", f"{does}; without this option it is a dry run.")


class DescribedArgument(click.Argument):
    """A positional argument with a description in the help, which click has only from 8.5 on."""

    def __init__(self, *args: Any, description: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.description = description

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:  # noqa: ARG002 - click's signature
        """Return the name and the description for the help."""
        return self.metavar or self.human_readable_name, self.description


def argument(name: str, metavar: str, description: str, **settings: Any) -> Callable[[Command], Command]:
    """Add a positional argument."""
    return click.argument(name, cls=DescribedArgument, metavar=metavar, description=description, **settings)


@dataclass
class Session:
    """One run of a command, on one destination.

    Attributes:
        staging_root: The root of the jobs' staging; None if it is the destination.
        registry: The registry with the destinations of the command; None for ``destination`` only.
        pattern: The pattern that these destinations match; None for all.
    """

    connection: Connection
    provider: StoreProvider
    output: Output
    destination: Destination
    job_id: str | None = None
    staging_root: Destination | None = None
    yes: bool = False
    registry: Destination | None = None
    pattern: str | None = None

    def __post_init__(self) -> None:
        if self.staging_root == self.destination:
            self.staging_root = None

    @cached_property
    def store(self) -> ObjectStore:
        """The store, opened when it is first needed."""
        store = self.provider.open(self.connection)
        return with_headers(store, self.connection.object_options.of_records)

    @property
    def job(self) -> Job:
        """The job; sends no request."""
        return Job.at(self.store, JobReference(**self._layout.place))

    @cached_property
    def context(self) -> JobContext:
        """The job's context, with the staging that its record names."""
        return recorded(JobContext(self.store, self._layout))

    @property
    def _layout(self) -> Layout:
        assert self.job_id is not None
        return Layout.of(self.destination, self.job_id)

    @property
    def commands(self) -> CommandLines:
        """Composes command lines about the same destination, job and store."""
        options = (*store_options.given_options(click.get_current_context()), *self.provider.arguments)
        program = self.provider.program
        return CommandLines(self.destination, self.job_id, self.staging_root, program, options)

    def registered(self) -> Iterator[Registered]:
        """Yield the matching entries of the registry.

        With Airflow's connections, only entries of this command's connection.
        """
        assert self.registry is not None
        conn_id = self.provider.aws_conn_id
        for entry in read_registry(self.store, self.registry):
            record = entry.record
            if self.pattern is not None and not matches(record.destination, self.pattern):
                continue
            if conn_id in (None, record.aws_conn_id):
                yield entry
            else:
                self.output.note(f"left out: {record.destination} uses the connection {record.aws_conn_id}")


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
        records: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if (record := param.get_help_record(ctx)) is not None:
                records.setdefault(section_of(param), []).append(record)
        for title in ("Arguments", "Options", "Store", "Output"):
            if title in records:
                with formatter.section(title):
                    formatter.write_dl(records[title])


def section_of(param: click.Parameter) -> str:
    """Return the heading in the help under which a parameter of a command is."""
    if isinstance(param, click.Argument):
        return "Arguments"
    if param in store_options.OPTIONS:
        return "Store"
    return "Output" if {"--json", "--debug", "--help"} & {*param.opts} else "Options"


def store_command(
    examples: str,
    *,
    job: Literal["required", "optional", "none"] = "none",
    staging: bool = False,
    confirms: bool = False,
    environment: bool = False,
    registry: bool = False,
) -> Callable[[Body], StoreCommand]:
    """Turn a function of a `Session` and the command's own options into a command with the function's name.

    The function's docstring is the help; its first line is what the list of commands says. An exception of
    the package ends the command with its message and its exit code.

    Args:
        examples: Command lines for the end of the help.
        confirms: Whether the command asks for confirmation, and takes ``--yes``.
        environment: Whether variables may give destination and job, as for a program's task.
        registry: Whether the command takes the destinations of a registry too.
    """

    def decorate(function: Body) -> StoreCommand:
        own: list[click.Parameter] = list(reversed(getattr(function, "__click_params__", [])))
        says = inspect.getdoc(function) or ""
        lines = inspect.cleandoc(examples).splitlines()
        command = StoreCommand(
            function.__name__,
            params=[
                _destination(has_job=job != "none", environment=environment, registry=registry),
                *([] if job == "none" else [_job(is_required=job == "required")]),
                *own,
                *([_STAGING] if staging else []),
                *([_YES] if confirms else []),
                *store_options.OPTIONS,
                *_OUTPUTS,
            ],
            callback=_runner(function, registry=registry),
            help=says,
            short_help=says.partition("\n")[0],
            epilog="\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines),
        )
        if environment:
            command.environment = _VARIABLES[: 1 if job == "none" else 2]
        return command

    return decorate


def _runner(function: Body, *, registry: bool) -> Callable[..., ExitCode]:
    """Return what runs a command's function, reports its errors, and returns the exit code."""

    def callback(**values: Any) -> ExitCode:
        connection = Connection.taken_from(values)
        own = StoreProvider(("s3commit",), (), store_options.open_store)
        provider = click.get_current_context().find_object(StoreProvider) or own
        given = values.pop("destination")
        among: Destination | None = values.pop("registry", None) if registry else None
        place = given if isinstance(given, Destination) else among
        if place is None:
            raise click.UsageError("give DEST, or the prefix of a registry with --registry")
        session = Session(
            connection,
            provider,
            Output(as_json=values.pop("as_json"), debug=values.pop("debug")),
            place,
            values.pop("job_id", None),
            values.pop("staging_root", None),
            values.pop("yes", False),
            None if place is given else among,
            given if isinstance(given, str) else None,
        )
        try:
            with logged_to(session.output):
                return function(session, **values)
        except BrokenPipeError:
            session.output.discard()
            return ExitCode.BROKEN_PIPE
        except S3CommitError as error:
            code = exit_code(error)
            described = {
                "type": type(error).__name__,
                "outcome": code.name.lower(),
                "message": str(error) or type(error).__name__,
                "notes": list(getattr(error, "__notes__", ())),
                "destination": place.uri,
                "bucket": place.bucket,
                "job_id": session.job_id,
            }
            return session.output.failure(described, code, after_error(error, session.commands), error)

    return callback


def _destination(*, has_job: bool, environment: bool, registry: bool) -> DescribedArgument:
    variables = "Default, with JOB: S3COMMIT_DESTINATION and S3COMMIT_JOB."
    variables = variables if has_job else "Default: S3COMMIT_DESTINATION."
    return DescribedArgument(
        ["destination"],
        type=as_destinations if registry else as_destination,
        metavar="[DEST]" if registry else "DEST",
        required=not registry,
        description="The directory of a dataset: s3://bucket/prefix/ or s3a://bucket/prefix/."
        + (f" {variables}" if environment else "")
        + (" With --registry a pattern, such as 's3://lake/*'; default: all." if registry else ""),
    )


def _job(*, is_required: bool) -> DescribedArgument:
    return DescribedArgument(
        ["job_id"],
        type=as_job_id,
        metavar="JOB" if is_required else "[JOB]",
        required=is_required,
        description="The id of a job, as s3commit jobs and s3commit log list it.",
    )


_STAGING = click.Option(
    ["--staging", "staging_root"],
    type=as_destination,
    help="Where jobs keep their records until they end, if their option staging names another place than"
    " DEST.",
)
_YES = click.Option(
    ["--yes", "-y", "yes"],
    is_flag=True,
    help="Don't ask for confirmation. (Without a terminal, the command never asks.)",
)
_OUTPUTS = (
    click.Option(["--json", "as_json"], is_flag=True, help="Write one JSON object, for scripts."),
    click.Option(["--debug"], is_flag=True, help="Show tracebacks and debug logs."),
)

"""The building blocks of commands: the store, arguments and shared options, sessions, help, and errors.

Credentials are found as boto3 finds them, not in options: other users of the machine can read a command line.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple, TypeVar

import click
from click.core import ParameterSource

from airflow_s3commit._format import seconds_of
from airflow_s3commit.cli.output import ExitCode, Output, exit_code, line, logged_to
from airflow_s3commit.exceptions import S3CommitError
from airflow_s3commit.present import CommandLines, after_error
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.metadata.context import JobContext, recorded
from airflow_s3commit.protocol.metadata.registry import Registered, read_registry
from airflow_s3commit.protocol.model.destination import Destination, is_pattern, matches
from airflow_s3commit.protocol.model.job import JobOptions, JobReference, ObjectOptions
from airflow_s3commit.protocol.model.layout import Layout, check_id
from airflow_s3commit.protocol.steps.log import find_head
from airflow_s3commit.store.base import ObjectStore
from airflow_s3commit.store.execute import RetryPolicy
from airflow_s3commit.store.forwarding import with_headers
from airflow_s3commit.store.s3.config import S3Config
from airflow_s3commit.store.s3.store import S3Store
from airflow_s3commit.tables.options import FLAGS

Command = TypeVar("Command", bound=Callable[..., Any])

#: The environment variables of a destination and a job.
_VARIABLES = ("S3COMMIT_DESTINATION", "S3COMMIT_JOB")

_SCHEME = re.compile("s3[an]?://")


class Parsed(click.ParamType):  # type: ignore[type-arg]  # older releases take no argument
    """A type of arguments and options with a name for the help, whose values a function parses.

    With a plain function, older releases of click show the value, which may have a password, not the fault.
    """

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse a text; what is wrong with it becomes a usage error."""
        try:
            return self._parse(value)
        except (S3CommitError, ValueError) as error:
            self.fail(str(error), param, ctx)


as_destination = Parsed("uri", Destination.parse)
as_duration = Parsed("duration", seconds_of)


def flag(name: str, does: str, parameter: str | None = None) -> Callable[[Command], Command]:
    """Add an option without a value; ``parameter`` is for a parameter of another name."""
    names = [name] if parameter is None else [name, parameter]
    return click.option(*names, is_flag=True, help=does)


def registry_option(does: str) -> Callable[[Command], Command]:
    """Add the option for the prefix of a registry, which an environment variable can set too."""
    variable = "S3COMMIT_REGISTRY"
    return click.option("--registry", type=as_destination, envvar=variable, show_envvar=True, help=does)


def apply_option(does: str) -> Callable[[Command], Command]:
    """Add the option without which a command is a dry run."""
    return flag("--apply", f"{does}; without this option it is a dry run.")


def retain_option(files: str) -> Callable[[Command], Command]:
    """Add the option for how long files that left the table are retained."""
    does = f"How long {files} stay in place: 7d, 36h. By default they are deleted at once."
    return click.option("--retain", default="0s", metavar="DURATION", help=does)


def stage_options(function: Command) -> Command:
    """Add the options that name a stage attempt; variables of the environment can set them too."""
    for name, what, does in (
        ("attempt", "stage attempt", "The attempt: letters and digits, such as the number of the try."),
        ("stage", "stage", "The stage: a name for this program, the same in each attempt."),
    ):
        kind, variable = Parsed("name", partial(check_id, what=what)), f"S3COMMIT_{name.upper()}"
        function = click.option(
            f"--{name}", type=kind, envvar=variable, show_envvar=True, required=True, help=does
        )(function)
    return function


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


class Connection(NamedTuple):
    """How to connect to a store, by the options of a command; ``patience`` is in seconds."""

    config: S3Config
    patience: float = 30.0
    object_options: ObjectOptions = ObjectOptions()


def open_store(connection: Connection) -> ObjectStore:
    """Return the store, as `S3Store.connect` does; sends no request."""
    return S3Store.connect(connection.config, retry=RetryPolicy(deadline=connection.patience))


class StoreProvider(NamedTuple):
    """Opens the store of a command, by an Airflow connection if there is one; click's context object."""

    open: Callable[[Connection], ObjectStore]
    aws_conn_id: str | None = None


#: The options of the connection to the store.
_STORE = (
    click.Option(
        ["--endpoint-url"],
        type=Parsed("url", lambda text: S3Config(endpoint_url=text).endpoint_url),
        help="The store's address. Default: AWS_ENDPOINT_URL_S3, the profile, or AWS.",
    ),
    click.Option(["--region"], help="The bucket's region. Default: AWS_DEFAULT_REGION or the profile."),
    click.Option(["--profile"], help="A profile of the AWS configuration files. Default: AWS_PROFILE."),
    click.Option(
        ["--path-style/--virtual-hosted"],
        default=None,
        help="Address keys as endpoint/bucket/key or bucket.endpoint/key. Default: the latter on AWS.",
    ),
    click.Option(
        ["--verify-ssl/--no-verify-ssl"], default=True, help="Whether to verify the store's certificate."
    ),
    click.Option(
        ["--ca-bundle"],
        type=click.Path(exists=True, dir_okay=False),
        help="A file with the certificate authorities to trust.",
    ),
    click.Option(["--patience"], default=30.0, metavar="SECONDS", help="How long to retry a failed request."),
    click.Option(
        ["--object-option", "object_options"],
        multiple=True,
        metavar="NAME=VALUE",
        help="Option of the objects that this command writes, unless the job has options: sse=aws:kms, "
        "sse_kms_key_id=…, acl=…; for doctor also storage_class=…, tags.NAME=…, headers.NAME=….",
    ),
)


def _connection(values: dict[str, Any]) -> Connection:
    """Remove the values of the store's options from those of a command, and return the connection."""
    verify, bundle, patience, texts = (
        values.pop(name) for name in ("verify_ssl", "ca_bundle", "patience", "object_options")
    )
    if not verify and bundle is not None:
        raise click.UsageError("use only one of --no-verify-ssl and --ca-bundle")
    address = {name: values.pop(name) for name in ("endpoint_url", "region", "profile", "path_style")}
    return Connection(S3Config(**address, verify=verify and bundle), patience, _object_options(texts))


def _object_options(texts: Iterable[str]) -> ObjectOptions:
    """Parse object options such as ``sse=aws:kms``, ``tags.team=flights`` or ``headers.expires=…``."""
    fields: dict[str, Any] = {}
    groups: dict[str, dict[str, str]] = {}
    for text in texts:
        name, _, value = text.partition("=")
        group, dot, entry = name.partition(".")
        if dot:
            groups.setdefault(group, {})[entry] = value
        else:
            fields[name] = FLAGS.get(value.lower(), value) if name == "sse_bucket_key" else value
    try:
        return ObjectOptions.from_dict(fields | groups)
    except S3CommitError as error:
        raise click.BadParameter(str(error), param_hint="--object-option") from error


def _given_options(context: click.Context) -> Iterator[str]:
    """Yield the options with which this command line connects to its store, to repeat them in another."""
    for param in _STORE:
        if context.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE:
            value = context.params[param.name or ""]
            if param.is_flag:
                yield (param.opts if value else param.secondary_opts)[0]
            else:
                for one in value if param.multiple else [value]:
                    yield from (param.opts[0], f"{one:g}" if isinstance(one, float) else str(one))


@dataclass
class Session:
    """One run of a command, on one destination.

    Attributes:
        destination: The destination; the registry, if the command is about the destinations in it.
        staging_root: The root of the jobs' staging; None if it is the destination.
        registry: The prefix of a registry.
        pattern: Pattern of the registry's destinations to work on, empty for all; None for one destination.
    """

    connection: Connection
    provider: StoreProvider
    output: Output
    destination: Destination
    job_id: str | None
    staging_root: Destination | None
    yes: bool
    registry: Destination | None
    pattern: str | None

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
        program, options = ["s3commit"], [*_given_options(click.get_current_context())]
        if (conn_id := self.provider.aws_conn_id) is not None:
            program, options = ["airflow", "s3commit"], [*options, "--aws-conn-id", conn_id]
        return CommandLines(self.destination, self.job_id, self.staging_root, (*program,), (*options,))

    def no_log(self) -> str:
        """Return a warning if there is no log, because DEST may be mistyped; empty if there is a log."""
        if find_head(self.store, self.destination):
            return ""
        where = f"there is no log at {self.destination.uri}"
        return f"{where}: no job was ever set up there; check the bucket and the prefix"

    def nothing(self, value: dict[str, Any], words: str) -> ExitCode:
        """Report in these words that nothing was found; if there is no log, report that instead."""
        if warning := self.no_log():
            return self.output.result({**value, "message": warning}, line(warning, "yellow"))
        return self.output.result(value, line(words))

    def job_options(self, **own: Any) -> JobOptions:
        """Return options of a job, with the staging and the object options of the command line."""
        staging = self.staging_root.uri if self.staging_root is not None else None
        return JobOptions(**own, staging=staging, object_options=self.connection.object_options)

    def registered(self) -> Iterator[Registered]:
        """Yield the matching entries of the registry.

        With an Airflow connection, only the entries that use this connection.
        """
        conn_id = self.provider.aws_conn_id
        for entry in read_registry(self.store, self.destination):
            record = entry.record
            if self.pattern and not matches(record.destination, self.pattern):
                continue
            if conn_id in (None, record.aws_conn_id):
                yield entry
            else:
                self.output.note(f"left out: {record.destination} uses the connection {record.aws_conn_id}")


def _session(ctx: click.Context, values: dict[str, Any]) -> Session:
    """Remove the values of shared arguments and options from those of a command, and return the session."""
    given, registry, root = (values.pop(name, None) for name in ("destination", "registry", "staging_root"))
    place = given if isinstance(given, Destination) else registry
    if place is None or (root is not None and place is not given):
        raise click.UsageError(
            "give DEST; or the prefix of a registry with --registry, a pattern or no DEST, and no --staging"
        )
    return Session(
        _connection(values),
        ctx.find_object(StoreProvider) or StoreProvider(open_store),
        Output(as_json=values.pop("as_json"), debug=values.pop("debug")),
        place,
        values.pop("job_id", None),
        staging_root=root if root != place else None,
        yes=values.pop("yes", False),
        registry=registry,
        pattern=None if place is given else given or "",
    )


class StoreCommand(click.Command):
    """A command whose callback takes a `Session` and the values of its own options.

    Its help groups the options and ends with examples. If a command line lacks the leading arguments, the
    environment variables that ``environment`` names supply them.
    """

    environment: tuple[str, ...] = ()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the destination, and the job, from the environment if no argument is a destination."""
        given = [os.environ[name] for name in self.environment if name in os.environ]
        if given and len(given) == len(self.environment):
            # Options may have URIs too.
            found, more, _ = self.make_parser(ctx).parse_args([*args])
            words = [found.get(each.name or "") for each in self.params if isinstance(each, click.Argument)]
            if not any(_SCHEME.match(str(word)) for word in (*words, *more)):
                args = [*given, *args]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> ExitCode:
        """Run the command, report its errors, and return the exit code."""
        assert self.callback is not None
        values = dict(ctx.params)
        session = _session(ctx, values)
        try:
            with logged_to(session.output):
                code: ExitCode = self.callback(session, **values)
                return code
        except S3CommitError as error:
            code = exit_code(error)
            described = {
                "type": type(error).__name__,
                "outcome": code.name.lower(),
                "message": str(error) or type(error).__name__,
                "notes": list(getattr(error, "__notes__", ())),
                "destination": session.destination.uri,
                "bucket": session.destination.bucket,
                "job_id": session.job_id,
            }
            return session.output.failure(described, code, after_error(error, session.commands), error)

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
    """Return the heading under which the help shows a parameter of a command."""
    if isinstance(param, click.Argument):
        return "Arguments"
    if param in _STORE:
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
) -> Callable[[Callable[..., ExitCode]], StoreCommand]:
    """Turn a function of a `Session` and the command's own options into a command with the function's name.

    The function's docstring is the help; its first line is what the list of commands says.

    Args:
        confirms: Whether the command asks for confirmation, and takes ``--yes``.
        environment: Whether environment variables may name destination and job, as in a task's program.
        registry: Whether the command takes the destinations of a registry too.
    """
    where = "The directory of a dataset: s3://bucket/prefix/ or s3a://bucket/prefix/."
    if environment:
        variables = " and ".join(_VARIABLES[: 1 if job == "none" else 2])
        where += f" Default{'' if job == 'none' else ', with JOB'}: {variables}."
    if registry:
        where += " With --registry a pattern, such as 's3://lake/*'; default: all."
    places = DescribedArgument(
        ["destination"],
        type=Parsed("uri", lambda text: text if registry and is_pattern(text) else Destination.parse(text)),
        metavar="[DEST]" if registry else "DEST",
        required=not registry,
        description=where,
    )
    a_job = DescribedArgument(
        ["job_id"],
        type=Parsed("uuid", check_id),
        metavar="JOB" if job == "required" else "[JOB]",
        required=job == "required",
        description="The id of a job, as s3commit jobs and s3commit log list it.",
    )

    def decorate(function: Callable[..., ExitCode]) -> StoreCommand:
        own: list[click.Parameter] = list(reversed(getattr(function, "__click_params__", [])))
        arguments = [places] if job == "none" else [places, a_job]
        shared = [*([_STAGING] if staging else []), *([_YES] if confirms else [])]
        says = inspect.getdoc(function) or ""
        lines = inspect.cleandoc(examples).splitlines()
        command = StoreCommand(
            function.__name__,
            params=[*arguments, *own, *shared, *_STORE, *_OUTPUTS],
            callback=function,
            help=says,
            short_help=says.partition("\n")[0],
            epilog="\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines),
        )
        if environment:
            command.environment = _VARIABLES[: len(arguments)]
        return command

    return decorate


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

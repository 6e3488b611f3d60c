"""The options for the connection to the store.

None of them takes credentials, because other users of the machine can read a command line. Credentials are
found as boto3 finds them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import click
from click.core import ParameterSource

from airflow_s3commit.exceptions import S3CommitError, StoreUnsuitable
from airflow_s3commit.protocol.model.job import ObjectOptions
from airflow_s3commit.store.base import ObjectStore
from airflow_s3commit.store.execute import RetryPolicy
from airflow_s3commit.store.s3.config import S3Config
from airflow_s3commit.store.s3.store import S3Store
from airflow_s3commit.tables.options import FLAGS

#: Default number of seconds for which to retry a request.
DEFAULT_PATIENCE = 30.0


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection to a store, from the options of a command; ``patience`` is in seconds."""

    config: S3Config
    patience: float = DEFAULT_PATIENCE
    object_options: ObjectOptions = field(default_factory=ObjectOptions)

    @classmethod
    def taken_from(cls, values: dict[str, Any]) -> Connection:
        """Return the connection in a command's option values, and remove these values from ``values``.

        Raises:
            click.UsageError: The endpoint is not a URL, or contains a user name or password.
        """
        verify_ssl, bundle = values.pop("verify_ssl"), values.pop("ca_bundle")
        patience, object_options = values.pop("patience"), as_object_options(values.pop("object_options"))
        if not verify_ssl and bundle is not None:
            raise click.UsageError("use only one of --no-verify-ssl and --ca-bundle")
        address = {name: values.pop(name) for name in ("endpoint_url", "region", "profile", "path_style")}
        try:
            return cls(S3Config(**address, verify=bundle if verify_ssl else False), patience, object_options)
        except StoreUnsuitable as error:
            raise click.BadParameter(str(error), param_hint="--endpoint-url") from error


@dataclass(frozen=True, slots=True)
class StoreProvider:
    """Provides commands with their store; the context object of the program.

    Attributes:
        program: The words that start the program, for the command lines in next steps.
        arguments: The options at the end of these command lines, to connect to the same store.
        aws_conn_id: Airflow's connection of the store; None without Airflow.
    """

    program: tuple[str, ...]
    arguments: tuple[str, ...]
    open: Callable[[Connection], ObjectStore]
    aws_conn_id: str | None = None


def open_store(connection: Connection) -> ObjectStore:
    """Return the store; sends no request.

    Raises:
        AccessDenied: The profile does not exist, or the credentials are incomplete.
        StoreRejected: Another part of the configuration is not usable.
    """
    return S3Store.connect(connection.config, retry=RetryPolicy(deadline=connection.patience))


#: The options that `Connection.taken_from` reads.
OPTIONS = (
    click.Option(
        ["--endpoint-url"],
        metavar="URL",
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
        ["--verify-ssl/--no-verify-ssl"],
        default=True,
        help="Whether to verify the store's certificate. Default: yes.",
    ),
    click.Option(
        ["--ca-bundle"],
        type=click.Path(exists=True, dir_okay=False),
        help="A file with the certificate authorities to trust.",
    ),
    click.Option(
        ["--patience"],
        type=float,
        default=DEFAULT_PATIENCE,
        show_default=True,
        metavar="SECONDS",
        help="How long to retry a failed request.",
    ),
    click.Option(
        ["--object-option", "object_options"],
        multiple=True,
        metavar="NAME=VALUE",
        help="Option of the objects that this command writes, unless the job has options: sse=aws:kms, "
        "sse_kms_key_id=…, acl=…; for doctor also storage_class=…, tags.NAME=…, headers.NAME=….",
    ),
)


def as_object_options(texts: Iterable[str]) -> ObjectOptions:
    """Parse object options such as ``sse=aws:kms``, ``tags.team=flights`` or ``headers.expires=…``."""
    fields: dict[str, Any] = {}
    groups: dict[str, dict[str, str]] = {}
    try:
        for text in texts:
            name, _, value = text.partition("=")
            group, dot, entry = name.partition(".")
            if dot:
                groups.setdefault(group, {})[entry] = value
            else:
                fields[name] = FLAGS.get(value.lower(), value) if name == "sse_bucket_key" else value
        return ObjectOptions.from_dict(fields | groups)
    except S3CommitError as error:
        raise click.BadParameter(str(error), param_hint="--object-option") from error


def given_options(context: click.Context) -> Iterator[str]:
    """Yield the words with which a command line connects to its store, for another one."""
    for param in OPTIONS:
        if context.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE:
            value = context.params[param.name or ""]
            if param.is_flag:
                yield (param.opts if value else param.secondary_opts)[0]
            else:
                for one in value if param.multiple else [value]:
                    yield from (param.opts[0], f"{one:g}" if isinstance(one, float) else str(one))

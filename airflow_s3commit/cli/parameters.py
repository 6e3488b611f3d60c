"""What people write on the command line, and what it becomes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import click
import msgspec

from airflow_s3commit.cli.wording import seconds_of
from airflow_s3commit.exceptions import S3CommitError
from airflow_s3commit.protocol.destination import Destination, split_uri
from airflow_s3commit.protocol.layout import check_attempt_id, check_id
from airflow_s3commit.protocol.records import ObjectOptions

__all__ = [
    "DescribedArgument",
    "SectionedOption",
    "as_destination",
    "as_duration",
    "as_job_id",
    "as_object_options",
    "as_stage",
    "as_uri",
    "object_option_texts",
]


def as_destination(text: str) -> Destination:
    """Read the directory of a dataset from its URI."""
    try:
        return Destination.parse(text)
    except S3CommitError as error:
        raise click.BadParameter(str(error)) from error


def as_uri(text: str) -> str:
    """Check that something is an S3 URI."""
    try:
        split_uri(text)
    except S3CommitError as error:
        raise click.BadParameter(str(error)) from error
    return text


def as_job_id(text: str) -> str:
    """Read the id of a job."""
    try:
        return check_id(text)
    except S3CommitError as error:
        raise click.BadParameter(str(error)) from error


def as_duration(text: str) -> float:
    """Read a length of time; returns seconds."""
    try:
        return seconds_of(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def as_stage(text: str) -> tuple[str, str]:
    """Read a stage and which attempt of it: ``spark:1``."""
    stage, _, attempt = text.rpartition(":")
    try:
        return check_id(stage, "stage"), check_attempt_id(attempt, "stage attempt")
    except S3CommitError as error:
        raise click.BadParameter(f"{error}; write it as stage:attempt") from error


def as_object_options(texts: Iterable[str]) -> ObjectOptions:
    """Read how objects are kept: ``sse=aws:kms``, ``tags.team=flights``, ``headers.expires=…``."""
    fields: dict[str, Any] = {}
    groups: dict[str, dict[str, str]] = {}
    try:
        for text in texts:
            name, _, value = text.partition("=")
            group, dot, entry = name.partition(".")
            if dot:
                groups.setdefault(group, {})[entry] = value
            elif name == "sse_bucket_key":
                fields[name] = {"true": True, "false": False}.get(value, value)
            else:
                fields[name] = value
        return ObjectOptions.from_dict(fields | groups)
    except S3CommitError as error:
        raise click.BadParameter(str(error), param_hint="--object-option") from error


def object_option_texts(options: ObjectOptions) -> Iterator[str]:
    """Yield what `as_object_options` reads as these options."""
    for name, value in msgspec.to_builtins(options).items():
        if isinstance(value, dict):
            yield from (f"{name}.{entry}={text}" for entry, text in value.items())
        else:
            yield f"{name}={str(value).lower() if isinstance(value, bool) else value}"


class DescribedArgument(click.Argument):
    """A positional argument that the help explains."""

    section = "Arguments"

    def __init__(self, *args: Any, description: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.description = description

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:  # noqa: ARG002 - click's shape
        """See `click.Parameter.get_help_record`."""
        return self.metavar or self.human_readable_name, self.description


class SectionedOption(click.Option):
    """An option that the help shows under a heading of its own."""

    def __init__(self, *args: Any, section: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section

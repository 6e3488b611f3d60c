"""How the program reaches a store: the options that all commands share.

Credentials are not among them: what stands on a command line is seen by everybody on the machine. They come
from where boto3 takes them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from airflow_s3commit.cli.parameters import SectionedOption, as_object_options, object_option_texts
from airflow_s3commit.exceptions import InvalidOption, StoreUnsuitable
from airflow_s3commit.protocol.records import ObjectOptions
from airflow_s3commit.protocol.signing import HmacSigner, Signer
from airflow_s3commit.store.base import ObjectStore
from airflow_s3commit.store.retry import RetryPolicy
from airflow_s3commit.store.s3 import S3Config, S3Store

__all__ = ["Connection", "Door", "environments_signer", "open_store", "store_options"]

SECTION = "Store"

#: The environment variable with the keys that records are signed with.
SIGNING_KEY = "S3COMMIT_SIGNING_KEY"

#: Seconds for which a request is sent again before it is given up, unless told otherwise.
DEFAULT_PATIENCE = 30.0


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach the store.

    Attributes:
        config: Its address, and whose credentials to use.
        patience: Seconds for which a request is sent again.
        object_options: How the store keeps what a command writes.

    """

    config: S3Config
    patience: float = DEFAULT_PATIENCE
    object_options: ObjectOptions = field(default_factory=ObjectOptions)

    @classmethod
    def taken_from(cls, values: dict[str, Any]) -> Connection:
        """Take the store's options out of a command's values.

        Raises:
            click.UsageError: The endpoint is no URL, or holds a user name or password.

        """
        endpoint = values.pop("endpoint_url")
        verify_ssl, bundle = values.pop("verify_ssl"), values.pop("ca_bundle")
        patience = values.pop("patience")
        object_options = as_object_options(values.pop("object_options"))
        if not verify_ssl and bundle is not None:
            raise click.UsageError("--no-verify-ssl and --ca-bundle contradict each other")
        try:
            config = S3Config(
                endpoint_url=endpoint,
                region=values.pop("region"),
                profile=values.pop("profile"),
                verify=False if not verify_ssl else bundle,
                path_style=values.pop("path_style"),
            )
        except StoreUnsuitable as error:
            raise click.BadParameter(str(error), param_hint="--endpoint-url") from error
        return cls(config, patience, object_options)

    def arguments(self) -> list[str]:
        """Return the options that lead another command to the same store."""
        config, said = self.config, []
        for name, value in (
            ("--endpoint-url", config.endpoint_url),
            ("--region", config.region),
            ("--profile", config.profile),
            ("--ca-bundle", config.verify if isinstance(config.verify, str) else None),
        ):
            if value is not None:
                said += [name, value]
        if config.verify is False:
            said.append("--no-verify-ssl")
        if config.path_style is not None:
            said.append("--path-style" if config.path_style else "--virtual-hosted")
        for text in object_option_texts(self.object_options):
            said += ["--object-option", text]
        return said


def open_store(connection: Connection) -> ObjectStore:
    """Return the store; nothing is sent yet.

    Raises:
        AccessDenied: The profile does not exist, or the credentials are incomplete.
        StoreRejected: Another part of the configuration is not usable.

    """
    return S3Store.connect(connection.config, retry=RetryPolicy(deadline=connection.patience))


def environments_signer() -> Signer | None:
    """Return who signs the records of jobs, by the keys in ``S3COMMIT_SIGNING_KEY``; None without it.

    Raises:
        InvalidOption: A key has less than 32 bytes.

    """
    text = os.environ.get(SIGNING_KEY)
    if text is None:
        return None
    try:
        return HmacSigner.of_text(text)
    except InvalidOption as error:
        raise InvalidOption(f"{SIGNING_KEY}: {error}") from None


@dataclass(frozen=True, slots=True)
class Door:
    """Another way to the store than the command line's own options; a program's context object.

    Attributes:
        program: How the program was called, for the command lines that it suggests.
        arguments: What such a command line ends with to come in by the same door.
        open: Makes the store.
        signer: Returns who signs the records of jobs, if somebody does.

    """

    program: tuple[str, ...]
    arguments: tuple[str, ...]
    open: Callable[[Connection], ObjectStore]
    signer: Callable[[], Signer | None]


def store_options() -> list[click.Option]:
    """Return the options of `Connection`, for a command."""
    options: tuple[tuple[list[str], Mapping[str, Any]], ...] = (
        (
            ["--endpoint-url"],
            {
                "metavar": "URL",
                "help": "The store's address. Default: AWS_ENDPOINT_URL_S3, the profile, or AWS.",
            },
        ),
        (["--region"], {"help": "The bucket's region. Default: AWS_DEFAULT_REGION or the profile."}),
        (["--profile"], {"help": "A profile of the AWS configuration files. Default: AWS_PROFILE."}),
        (
            ["--path-style/--virtual-hosted", "path_style"],
            {
                "default": None,
                "help": "Ask for endpoint/bucket/key or bucket.endpoint/key. Default: virtual on AWS only.",
            },
        ),
        (
            ["--verify-ssl/--no-verify-ssl", "verify_ssl"],
            {"default": True, "help": "Whether to check the store's certificate. Default: yes."},
        ),
        (
            ["--ca-bundle"],
            {
                "type": click.Path(exists=True, dir_okay=False, path_type=Path),
                "callback": lambda _ctx, _param, path: str(path) if path is not None else None,
                "help": "A file with the authorities to trust.",
            },
        ),
        (
            ["--patience"],
            {
                "type": float,
                "default": DEFAULT_PATIENCE,
                "show_default": True,
                "metavar": "SECONDS",
                "help": "How long a request that gets no answer is sent again.",
            },
        ),
        (
            ["--object-option", "object_options"],
            {
                "multiple": True,
                "metavar": "NAME=VALUE",
                "help": "How what this command writes is kept, where no job says it: sse=aws:kms, "
                "sse_kms_key_id=…, acl=…; for doctor also storage_class=…, tags.NAME=…, headers.NAME=….",
            },
        ),
    )
    return [SectionedOption(names, section=SECTION, **settings) for names, settings in options]

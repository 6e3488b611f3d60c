"""How to reach a store: its address, whose credentials to use, and how the client should behave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    PartialCredentialsError,
    ProfileNotFound,
    UnknownSignatureVersionError,
)

from airflow_s3commit import __version__
from airflow_s3commit.exceptions import AccessDenied, S3CommitError, StoreRejected
from airflow_s3commit.store.credentials import check_keys, plain_endpoint

if TYPE_CHECKING:
    from botocore.signers import RequestSigner
    from mypy_boto3_s3.client import S3Client

__all__ = ["S3Config", "client_config", "made_by_boto3", "named_endpoint", "new_client", "watch_keys"]

T = TypeVar("T")

CONNECT_SECONDS = 10
READ_SECONDS = 60

#: Endpoints below these domains are Amazon's own; they want the bucket in the host name.
AWS_DOMAINS = (".amazonaws.com", ".amazonaws.com.cn", ".amazonaws.eu")


@dataclass(frozen=True, slots=True)
class S3Config:
    """Where a store is and who asks. Whatever is None comes from boto3's default chain.

    Its ``repr`` shows neither keys nor token.

    Attributes:
        endpoint_url: ``https://host[:port]`` of the store; None for AWS, or what ``AWS_ENDPOINT_URL_S3``,
            ``AWS_ENDPOINT_URL`` or the profile say.
        region: The bucket's region.
        access_key: The access key.
        secret_key: The secret key.
        session_token: The token of temporary credentials.
        profile: A profile of the AWS configuration files.
        verify: False not to check the store's certificate, or a file with the authorities to trust.
        path_style: True for ``endpoint/bucket/key``, False for ``bucket.endpoint/key``; None for path style
            everywhere but on AWS.
        max_connections: Connections that are kept open; the store uses no more threads than that.

    Raises:
        StoreUnsuitable: The endpoint holds a user name or password, or is no URL of a store.
        AccessDenied: A key, or the token, cannot be signed with.

    """

    endpoint_url: str | None = None
    region: str | None = None
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    profile: str | None = None
    verify: bool | str | None = None
    path_style: bool | None = None
    max_connections: int = 64

    def __post_init__(self) -> None:
        plain_endpoint(self.endpoint_url, "that was given")
        check_keys(self.access_key, self.secret_key, self.session_token, "that was given")


def client_config(
    endpoint_url: str | None,
    max_connections: int = 64,
    path_style: bool | None = None,
    timeout: float | None = None,
) -> Config:
    """Return the configuration with which a boto3 client serves the protocol best.

    One attempt a call, because retries are ours. A fixed user agent and no parameter validation, which
    together save a quarter of the client's time. No checksums beyond those a request must have, and over
    https no hashing of bodies for the signature: the connection protects them, and the time for it doubles
    the cost of an upload.

    Args:
        endpoint_url: Where the client will send to; None for AWS. A client that was made for None may
            turn out to send elsewhere: ask `named_endpoint`.
        max_connections: Connections that are kept open.
        path_style: See `S3Config`.
        timeout: Seconds to wait for a connection, and for an answer, at most; None waits long enough for
            large uploads.

    """
    if path_style is None:
        path_style = not _is_aws(endpoint_url)
    return Config(
        user_agent=f"airflow-s3commit/{__version__}",
        signature_version="s3v4",
        retries={"total_max_attempts": 1, "mode": "standard"},
        parameter_validation=False,
        max_pool_connections=max_connections,
        connect_timeout=CONNECT_SECONDS if timeout is None else min(timeout, CONNECT_SECONDS),
        read_timeout=READ_SECONDS if timeout is None else min(timeout, READ_SECONDS),
        tcp_keepalive=True,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={
            "addressing_style": "path" if path_style else "virtual",
            "payload_signing_enabled": endpoint_url is not None and urlsplit(endpoint_url).scheme != "https",
        },
    )


def named_endpoint(client: S3Client) -> str | None:
    """Return the endpoint that the environment or the profile named, for a client that was given none.

    Only a client that is made already knows it. If there is one, the client is to be made again, with the
    `client_config` for it.

    Returns:
        The endpoint; None if it is AWS's own over https, which ``client_config(None)`` is for.

    Raises:
        StoreUnsuitable: It holds a user name or password, or is no URL of a store.

    """
    actual = plain_endpoint(client.meta.endpoint_url, "in the environment (AWS_ENDPOINT_URL…) or profile")
    return None if _is_aws(actual) and actual.startswith("https:") else actual


def new_client(config: S3Config) -> S3Client:
    """Return a client for ``config``; nothing is sent yet.

    Raises:
        AccessDenied: The profile does not exist, or the credentials are incomplete.
        StoreRejected: Another part of the configuration is not usable.
        StoreUnsuitable: The endpoint of the environment or profile holds a user name or password.

    """

    def make() -> S3Client:
        session = boto3.Session(profile_name=config.profile, region_name=config.region)
        client = _client(session, config, config.endpoint_url)
        named = named_endpoint(client) if config.endpoint_url is None else None
        if named is not None:
            client.close()
            client = _client(session, config, named)
        return client

    return made_by_boto3(make, str(config))


def made_by_boto3(make: Callable[[], T], what: str) -> T:
    """Return what boto3 makes of a configuration, or say what is wrong with that in our own words.

    Args:
        make: Makes it.
        what: The configuration, for messages.

    Raises:
        AccessDenied: The profile does not exist, or the credentials are incomplete.
        StoreRejected: Another part of the configuration is not usable.

    """
    failure: S3CommitError
    try:
        return make()
    except (PartialCredentialsError, ProfileNotFound) as error:
        failure = AccessDenied(
            f"no usable credentials in {what} ({type(error).__name__}): give both keys or neither, and a"
            " profile of the AWS configuration files or none"
        )
    except (BotoCoreError, ValueError) as error:
        name = type(error).__name__
        failure = StoreRejected(
            f"no S3 client can be made from {what} ({name}): look at its endpoint, region and verify, and at"
            " those of the environment and the profile",
            code=name,
        )
    # Not while the other one is handled: it would hang on as the context, and may show a URL with a password.
    raise failure


def watch_keys(client: S3Client) -> None:
    """Have a client refuse, before each request, credentials that it cannot sign with.

    Only there all of them come by: those of the environment, a profile, a role or a process too.
    """
    events: Any = client.meta.events
    events.register_first("before-sign.s3", _check_signer, unique_id="s3commit-check-keys")


def _check_signer(
    request_signer: RequestSigner, signing_name: str, region_name: str, signature_version: str, **_: object
) -> None:
    signer: Any = request_signer
    try:
        keys = signer.get_auth_instance(signing_name, region_name, signature_version).credentials
    except UnknownSignatureVersionError:
        return  # it signs nothing
    if keys is not None:
        check_keys(keys.access_key, keys.secret_key, keys.token, "that the client found")


def _client(session: boto3.Session, config: S3Config, endpoint_url: str | None) -> S3Client:
    return session.client(
        "s3",
        endpoint_url=endpoint_url,
        verify=config.verify,
        aws_access_key_id=config.access_key,
        aws_secret_access_key=config.secret_key,
        aws_session_token=config.session_token,
        config=client_config(endpoint_url, config.max_connections, config.path_style),
    )


def _is_aws(endpoint_url: str | None) -> bool:
    return endpoint_url is None or (urlsplit(endpoint_url).hostname or "").endswith(AWS_DOMAINS)

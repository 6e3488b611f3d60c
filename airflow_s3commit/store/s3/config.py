"""The configuration of a store: address, credentials, and the boto3 client made from them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urljoin, urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    HTTPClientError,
    PartialCredentialsError,
    ProfileNotFound,
    UnknownSignatureVersionError,
)

from airflow_s3commit import __version__
from airflow_s3commit.exceptions import AccessDenied, S3CommitError, StoreRejected
from airflow_s3commit.store.credentials import StoreAddress, check_keys, is_aws_host, plain_endpoint

if TYPE_CHECKING:
    from botocore.signers import RequestSigner
    from mypy_boto3_s3.client import S3Client

T = TypeVar("T")

CONNECT_SECONDS = 10
READ_SECONDS = 60

#: Maximum bytes of a response that is read as a whole, such as a page of a listing.
LONGEST_RESPONSE = 16 * 1024 * 1024

# Replaces references to characters that XML cannot represent.
_find_unfit = re.compile(rb"&#x0*([0-8bcef]|1[0-9a-f]);", re.IGNORECASE).sub

_REDIRECTS = frozenset({301, 302, 303, 307, 308})


class UnsupportedClient(Exception):
    """libcurl cannot replace this boto3 client; the message says why."""


@dataclass(frozen=True, slots=True)
class S3Config(StoreAddress):
    """Address and credentials of a store. Every field that is None comes from boto3's default chain.

    Its ``repr`` shows no key or token. Endpoint, region and path style are those of `StoreAddress`.

    Attributes:
        access_key: The access key. Give both keys or neither.
        secret_key: The secret key.
        session_token: The token of temporary credentials.
        profile: A profile of the AWS configuration files.
        verify: False skips checking the store's certificate; a path names the authorities to trust.
        max_connections: Connections to keep open, and the maximum number of threads that a store uses.

    Raises:
        StoreUnsuitable: The endpoint holds a user name or password, or is not an HTTP URL.
        AccessDenied: A key or the token cannot sign a request, for example because it has a line break.
    """

    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    profile: str | None = None
    verify: bool | str | None = None
    max_connections: int = 64

    def __post_init__(self) -> None:
        StoreAddress.__post_init__(self)
        check_keys(self.access_key, self.secret_key, self.session_token, "that was given")


def client_config(
    endpoint_url: str | None,
    max_connections: int = 64,
    path_style: bool | None = None,
    timeout: float | None = None,
    given: Config | None = None,
) -> Config:
    """Return the boto3 client configuration that suits the protocol.

    One attempt per call, because `RetryPolicy` retries. A fixed user agent and no parameter validation save a
    quarter of the client's time. Checksums are sent only where S3 requires them, and over https no body is
    signed: the connection protects them, and hashing doubles the cost of an upload.

    Args:
        endpoint_url: None for AWS; `configured_endpoint` returns one that the environment or profile sets.
        path_style: Path-style URLs; None for all stores but AWS.
        timeout: Maximum seconds to wait for a connection, or a response; the defaults suit large uploads.
        given: The user's own configuration, such as proxies. It takes precedence, except for the retries and
            the user agent, and for the timeouts if ``timeout`` is given.
    """
    if path_style is None:
        path_style = not is_aws_host(endpoint_url)
    given = given or Config()
    own: Any = Config(
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
    s3: Any = {**own.s3, **(getattr(given, "s3", None) or {}), "addressing_style": own.s3["addressing_style"]}
    ours: Any = Config(user_agent=own.user_agent, retries=own.retries, parameter_validation=False, s3=s3)
    if timeout is not None:
        ours = ours.merge(Config(connect_timeout=own.connect_timeout, read_timeout=own.read_timeout))
    merged: Config = own.merge(given).merge(ours)
    return merged


def configured_endpoint(client: S3Client) -> str | None:
    """Return the endpoint that a client created without one got from the environment or the profile.

    Only an existing client knows it. If there is one, create the client again with its `client_config`. None
    stands for AWS's own over https, which ``client_config(None)`` suits.

    Raises `StoreUnsuitable` if it holds a user name or password, or is not an HTTP URL.
    """
    actual = plain_endpoint(client.meta.endpoint_url, "in the environment (AWS_ENDPOINT_URL…) or profile")
    return None if is_aws_host(actual) and actual.startswith("https:") else actual


def new_client(config: S3Config) -> S3Client:
    """Return a client for ``config``; sends no request. It raises what `S3Store.connect` raises."""

    def make() -> S3Client:
        session = boto3.Session(profile_name=config.profile, region_name=config.region)
        client = _client(session, config, config.endpoint_url)
        named = configured_endpoint(client) if config.endpoint_url is None else None
        if named is not None:
            client.close()
            client = _client(session, config, named)
        return client

    return made_by_boto3(make, str(config))


def made_by_boto3(make: Callable[[], T], what: str) -> T:
    """Return what ``make`` creates with boto3; translate boto3's errors about the configuration ``what``.

    Raises `AccessDenied` if the profile does not exist, or the credentials are incomplete; `StoreRejected`
    if another part of the configuration is invalid.
    """
    failure: S3CommitError
    try:
        return make()
    except (PartialCredentialsError, ProfileNotFound) as error:
        failure = AccessDenied(
            f"no usable credentials in {what} ({type(error).__name__}): give both keys or neither, and a"
            " profile of the AWS configuration files or none"
        )
    except (BotoCoreError, AttributeError, NotImplementedError, TypeError, ValueError) as error:
        name = type(error).__name__
        failure = StoreRejected(
            f"no S3 client can be made from {what} ({name}): check its endpoint, region and verify, and"
            " those of the environment and the profile",
            code=name,
        )
    # Outside the except block, so not chained: boto3's error may show a URL with a password.
    raise failure


def guard_client(client: S3Client) -> S3Client:
    """Make a client check its keys, bound responses and, off AWS, refuse redirects; return it. Repeatable.

    Credentials from the environment, a profile, a role or a process are known only when the client signs.
    On a redirect, a client looks up the bucket's region, which AWS names in a header: a store that redirects
    http to https would redirect that request too, again and again.
    """
    events: Any = client.meta.events
    events.register_first("before-sign.s3", _check_signer, unique_id="s3commit-check-keys")
    if not is_aws_host(client.meta.endpoint_url):
        events.register_first("needs-retry.s3", _refuse_redirect, unique_id="s3commit-refuse-redirects")
    for operation in ("ListMultipartUploads", "ListParts"):
        # This pattern comes before botocore's own, whose handler takes what it cannot parse for an error.
        events.register(f"before-parse.*.{operation}", _quote, unique_id=f"s3commit-quote-{operation}")
    events.register("after-call.s3.ListMultipartUploads", _unquote, unique_id="s3commit-unquote")
    # There is no public way to see a response before it is read.
    session = getattr(getattr(client, "_endpoint", None), "http_session", None)
    if session is not None and not isinstance(session.send, partial):
        session.send = partial(_send_bounded, session.send)
    return client


def _send_bounded(send: Callable[[Any], Any], request: Any) -> Any:
    """Send a request, and read its response if botocore would, but no more than `LONGEST_RESPONSE`."""
    is_streamed, request.stream_output = request.stream_output, True
    response = send(request)
    raw, stream = response.raw, response.raw.stream

    def bounded() -> Iterator[bytes]:
        size = 0
        for piece in stream():
            size += len(piece)
            if size > LONGEST_RESPONSE:
                raw.close()
                raise HTTPClientError(error=f"the response has more than {LONGEST_RESPONSE} bytes")
            yield piece

    raw.stream = bounded
    if not is_streamed:
        _ = response.content
    return response


def _quote(response_dict: dict[str, Any], **_: object) -> None:
    """Percent-encode references to characters that XML cannot represent, and so the percent sign too."""
    body = response_dict["body"].replace(b"%", b"%25")
    response_dict["body"] = _find_unfit(lambda one: b"%%%02x" % int(one[1], 16), body)


def _unquote(parsed: dict[str, Any], **_: object) -> None:
    for fields in (parsed, *parsed.get("Uploads", ())):
        fields.update({name: unquote(text) for name, text in fields.items() if isinstance(text, str)})


def _refuse_redirect(response: Any, request_dict: Mapping[str, Any], **_: object) -> None:
    if response is None:
        return
    http = response[0]
    location = http.headers.get("Location")
    if http.status_code not in _REDIRECTS or not location or "x-amz-bucket-region" in http.headers:
        return
    asked, led = urlsplit(request_dict["url"]), urlsplit(urljoin(request_dict["url"], location))
    raise StoreRejected(
        f"the endpoint {asked.scheme}://{asked.netloc} redirects to {led.scheme}://{led.netloc}: give that as"
        " the endpoint, if it is the store",
        code="Redirect",
    )


def _check_signer(
    request_signer: RequestSigner, signing_name: str, region_name: str, signature_version: str, **_: object
) -> None:
    signer: Any = request_signer
    try:
        keys = signer.get_auth_instance(signing_name, region_name, signature_version).credentials
    except UnknownSignatureVersionError:
        return  # an unsigned request
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

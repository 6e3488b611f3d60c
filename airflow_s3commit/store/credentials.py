"""Validates endpoints and credentials from any source. No error message shows a secret."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import urlsplit

from airflow_s3commit.exceptions import AccessDenied, StoreUnsuitable

Url = TypeVar("Url", str, str | None)

#: Endpoints below these domains are Amazon's own; they want the bucket in the host name.
_AWS_DOMAINS = (".amazonaws.com", ".amazonaws.com.cn", ".amazonaws.eu")

_VISIBLE = re.compile(r"[!-~]*")
#: Paths that every client signs unchanged.
_PLAIN_PATH = re.compile(r"(?:/(?!\.{1,2}(?:/|$))[\w.~-]+)*", re.ASCII)
#: Secret keys: any text in UTF-8, without control characters and without spaces around it.
_SECRET = re.compile(r"(?!\s)[^\x00-\x1f\x7f\ud800-\udfff]+(?<!\s)")
_USERINFO = re.compile(r"(?:(?<=//)|\A(?!.*//)).*(?:@|%40)", re.DOTALL)
_QUERY = re.compile(r"\?.*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Address of a store. Holds no credentials, so it may be logged and put into a Spark configuration.

    Attributes:
        endpoint_url: ``https://host[:port][/path]`` of the store, without trailing slashes; None for AWS, or
            for the endpoint that ``AWS_ENDPOINT_URL_S3``, ``AWS_ENDPOINT_URL`` or the profile sets.
        region: The bucket's region; None for the one that boto3's default chain finds.
        path_style: Use ``endpoint/bucket/key``, not ``bucket.endpoint/key``; None uses it except on AWS.

    Raises:
        StoreUnsuitable: The endpoint holds a user name or password, or is not an HTTP URL.
    """

    endpoint_url: str | None = None
    region: str | None = None
    path_style: bool | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        # The dataclass is frozen. Records name the endpoint, so a store must have only one spelling.
        object.__setattr__(self, "endpoint_url", plain_endpoint(self.endpoint_url, "that was given"))

    def or_else(self, other: StoreAddress) -> StoreAddress:
        """Return this address, with its unset fields taken from ``other``."""
        return StoreAddress(
            self.endpoint_url or other.endpoint_url,
            self.region or other.region,
            path_style=other.path_style if self.path_style is None else self.path_style,
        )


def plain_endpoint(url: Url, where: str) -> Url:
    """Check that an endpoint's URL is valid, and safe to log and to put into a Spark conf; None passes.

    The URL is returned without trailing slashes: with and without them it is the same store. Raises
    `StoreUnsuitable` if it holds a user name or password, or is not an HTTP URL. The message does not show
    the URL, but says ``where`` it is from.
    """
    if url is None:
        return url
    why = None
    if "@" in url or "%40" in url:
        why = (
            "holds a user name or password, which would end up in logs and Spark's conf: give them as the"
            " access key and secret key (of an Airflow connection: its login and password)"
        )
    elif not _is_address(url):
        why = (
            "is not the URL of a store: write it as http://host[:port] or https://host[:port], followed by a"
            " path of letters, digits, '.', '_', '~', '-' and '/' if the store has one"
        )
    if why is not None:
        raise StoreUnsuitable(f"the endpoint {where} {why}")
    return url.rstrip("/")


def is_aws_host(address: str | None) -> bool:
    """Return whether a URL, or a host with or without its port, is Amazon's own; True for None."""
    if address is None:
        return True
    try:
        host = urlsplit(address if "//" in address else f"//{address}").hostname
    except ValueError:
        return False
    return (host or "").endswith(_AWS_DOMAINS)


def check_keys(access_key: str | None, secret_key: str | None, token: str | None, where: str) -> None:
    """Refuse credentials that cannot sign a request.

    Access key and token are sent in headers, so they must be visible ASCII. A secret key is any text without
    control characters and without spaces around it; requests are signed with its UTF-8 encoding.

    Raises `AccessDenied` if one of them is not usable. The message names it without its value.
    """
    named = (("access key", access_key), ("secret key", secret_key), ("session token", token))
    for name, value in named:
        plain = _SECRET if name == "secret key" else _VISIBLE
        if value and not plain.fullmatch(value):
            raise AccessDenied(
                f"the {name} {where} has a space, a line break or a character that no {name} has: copy it"
                " again, completely and without anything else"
            )


def without_userinfo(text: str) -> str:
    """Return a URI that is safe to show: without user name and password, and without a signed URL's query."""
    return _QUERY.sub("?…", _USERINFO.sub("…@", text))


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        is_complete = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    is_plain = bool(_VISIBLE.fullmatch(url) and _PLAIN_PATH.fullmatch(parts.path.rstrip("/")))
    return is_complete and is_plain and "?" not in url and "#" not in url

"""Where a boto3 client sends requests and how it signs them, learned from the client itself.

A client applies endpoint rules, addressing style, redirects to other regions, and headers that its owner
added. None of that is reimplemented here: the client prepares one request per bucket and operation, which is
not sent. Every further request differs from it only in key, upload and body.
"""

from __future__ import annotations

import io
import threading
from dataclasses import dataclass, field
from http import HTTPStatus
from math import inf
from typing import TYPE_CHECKING, Any

from botocore.awsrequest import AWSResponse
from botocore.exceptions import ClientError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from botocore.awsrequest import AWSPreparedRequest, AWSRequest
    from botocore.credentials import ReadOnlyCredentials
    from botocore.signers import RequestSigner
    from mypy_boto3_s3.client import S3Client

    from airflow_s3commit._clock import Clock

#: The key of the prepared request; the URL of other requests is the same before it.
KEY = "s3commit-address"

#: A header of the response that stands in for the store's.
PREPARED = "s3commit-prepared"

#: The client method that prepares each operation, and its arguments besides bucket and key.
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "CompleteMultipartUpload": ("complete_multipart_upload", {"UploadId": "u", "MultipartUpload": {}}),
    "AbortMultipartUpload": ("abort_multipart_upload", {"UploadId": "u"}),
    "HeadObject": ("head_object", {}),
    "GetObject": ("get_object", {}),
    "CreateMultipartUpload": ("create_multipart_upload", {}),
    "UploadPart": ("upload_part", {"UploadId": "u", "PartNumber": 1}),
}

#: Services and versions of signatures that libcurl makes too: version 4, for one region.
SIGNATURES = frozenset({("s3", "s3v4"), ("s3", "v4")})

#: Headers of one attempt or body, which are not kept.
REQUEST_HEADERS = (
    "amz-sdk-",
    "content-",
    "expect",
    "user-agent",
    "x-amz-checksum-",
    "x-amz-sdk-checksum-",
    "x-amzn-trace-id",
)

#: Seconds after which the client prepares a request anew: it renews its credentials in time, and it may have
#: been redirected to another region.
ROUTE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Route:
    """Where and how one operation on one bucket is sent.

    Attributes:
        url: The URL up to the key.
        region: The region to sign for.
        agent: The user agent.
        headers: Further headers that the client's owner adds, as ``Name: value``.
        keys: The credentials to sign with.
    """

    url: str
    region: str
    agent: str
    headers: tuple[str, ...]
    keys: ReadOnlyCredentials = field(repr=False)


class Routes:
    """The routes to a client's buckets; safe to use from several threads.

    Args:
        client: The client. Its event handlers that change requests take effect; where a handler responds in
            place of the store, as test doubles do, there is no route.
    """

    def __init__(self, client: S3Client, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._known: dict[tuple[str, str], tuple[float, Route | None]] = {}
        events: Any = client.meta.events
        events.register_last("before-sign.s3", _before_sign, unique_id="s3commit-before-sign")
        events.register_last("before-send", _before_send, unique_id="s3commit-before-send")

    def find(self, bucket: str, operation: str) -> Route | None:
        """Return the route of an operation on a bucket; None if only the client can send it.

        It is the same object until something changes.
        """
        now, (due, known) = self._clock.monotonic(), self._known.get((bucket, operation), (0.0, None))
        if now < due:
            return known
        try:
            route = self._learn(bucket, operation)
        except Exception:
            # No credentials, unusable ones, or an invalid name: the client itself reports it.
            return None
        route = known if route == known else route
        self._known[bucket, operation] = (inf if route is None else now + ROUTE_SECONDS, route)
        return route

    def _learn(self, bucket: str, operation: str) -> Route | None:
        method, arguments = METHODS[operation]
        seen: dict[str, Any] = {}
        _prepared.seen = seen
        try:
            response = getattr(self._client, method)(Bucket=bucket, Key=KEY, **arguments)
        except ClientError:
            return None
        finally:
            _prepared.seen = None
        is_ours = PREPARED in response["ResponseMetadata"]["HTTPHeaders"]
        if not is_ours or bucket.startswith("arn:") or seen.pop("signature") not in SIGNATURES:
            return None
        return Route(**seen)


#: What this thread prepares, as `_before_sign` saw it; None while it prepares nothing.
_prepared = threading.local()


class _EmptyBody(io.BytesIO):
    """An empty response body with urllib3's interface."""

    def stream(self, **_: object) -> Iterator[bytes]:
        return iter(())


def _before_sign(
    request: AWSRequest,
    signing_name: str,
    region_name: str,
    signature_version: str,
    request_signer: RequestSigner,
    **_: object,
) -> None:
    seen = getattr(_prepared, "seen", None)
    if seen is None:
        return
    # What the client learned from a redirect takes precedence over its own region.
    signing = {"region": region_name, "signing_name": signing_name} | (request.context.get("signing") or {})
    signer: Any = request_signer.get_auth_instance(signing_name, region_name, signature_version)
    found: list[tuple[str, Any]] = list(request.headers.items())
    headers = {name: text.decode("latin-1") if isinstance(text, bytes) else text for name, text in found}
    seen.update(
        url=str(request.url).partition(KEY)[0],
        region=signing["region"],
        agent=headers.get("User-Agent", ""),
        headers=tuple(
            f"{name}: {value}"
            for name, value in headers.items()
            if not name.lower().startswith(REQUEST_HEADERS)
        ),
        keys=signer.credentials,
        signature=(signing["signing_name"], signature_version),
    )


def _before_send(request: AWSPreparedRequest, **_: object) -> AWSResponse | None:
    # Registered last, and the client takes the first response: if it takes this one, no other handler
    # responds in place of the store.
    if getattr(_prepared, "seen", None) is None:
        return None
    headers: Any = {PREPARED: "yes"}
    raw: Any = _EmptyBody()
    return AWSResponse(request.url, HTTPStatus.OK, headers, raw)

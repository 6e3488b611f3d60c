"""Where a boto3 client sends requests and how it signs them, learned from the client itself.

A client applies endpoint rules, addressing style, redirects to other regions, and headers that its owner
added. None of that is reimplemented here: the client prepares one request per bucket and operation, which is
not sent. Every further request differs from it only in key, upload and body.
"""

from __future__ import annotations

import io
import threading
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from botocore.awsrequest import AWSResponse
from botocore.exceptions import ClientError
from botocore.utils import get_environ_proxies

from airflow_s3commit.store.credentials import check_keys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from botocore.awsrequest import AWSPreparedRequest, AWSRequest
    from botocore.credentials import ReadOnlyCredentials
    from botocore.signers import RequestSigner
    from mypy_boto3_s3.client import S3Client

#: The key of the prepared request; the endpoint's URL ends before it.
KEY = "s3commit-address"

#: A header of the response that stands in for the store's.
PREPARED = "s3commit-prepared"

#: The client method that prepares each operation, and its arguments besides the bucket.
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "CompleteMultipartUpload": (
        "complete_multipart_upload",
        {"Key": KEY, "UploadId": "u", "MultipartUpload": {}},
    ),
    "AbortMultipartUpload": ("abort_multipart_upload", {"Key": KEY, "UploadId": "u"}),
    "HeadObject": ("head_object", {"Key": KEY}),
    "GetObject": ("get_object", {"Key": KEY}),
    "DeleteObjects": ("delete_objects", {"Delete": {"Objects": [{"Key": KEY}]}}),
}

#: Signature version 4 for one region, which libcurl supports too.
SIGNATURES = frozenset({"s3v4", "v4"})

#: Headers of one attempt or body, and those that signing adds.
REQUEST_HEADERS = (
    "amz-sdk-",
    "authorization",
    "content-",
    "expect",
    "host",
    "x-amz-checksum-",
    "x-amz-content-",
    "x-amz-date",
    "x-amz-sdk-checksum-",
    "x-amz-security-token",
    "x-amzn-trace-id",
)


@dataclass(frozen=True, slots=True, eq=False)
class Endpoint:
    """Where and how one operation on one bucket is sent.

    Attributes:
        url: The URL up to the key; the whole URL for an operation on a bucket.
        region: The region to sign for.
        agent: The user agent.
        headers: Further headers that the client's owner adds, as ``Name: value``.

    """

    url: str
    region: str
    agent: str
    headers: tuple[str, ...]
    _signature: tuple[RequestSigner, str, str]

    def credentials(self) -> ReadOnlyCredentials | None:
        """Return the client's credentials, renewed if they are about to expire; None without usable ones."""
        signer, service, version = self._signature
        try:
            auth: Any = signer.get_auth_instance(service, self.region, version)
            found: ReadOnlyCredentials | None = auth.credentials
            if found is not None:
                check_keys(found.access_key, found.secret_key, found.token, "that the client found")
        except Exception:
            # The client itself reports it.
            return None
        return found


class EndpointCache:
    """The endpoints of a client's buckets; safe to use from several threads.

    Args:
        client: The client. Its event handlers that change requests take effect; where a handler responds in
            place of the store, as test doubles do, there is no endpoint.

    """

    def __init__(self, client: S3Client) -> None:
        self._client = client
        self._known: dict[tuple[str, str], Endpoint | None] = {}
        events: Any = client.meta.events
        events.register_last("before-sign.s3", _before_sign, unique_id="s3commit-before-sign")
        events.register_last("before-send", _before_send, unique_id="s3commit-before-send")

    def find(self, bucket: str, operation: str) -> Endpoint | None:
        """Return the endpoint of an operation on a bucket; None if only the client can send it."""
        try:
            return self._known[bucket, operation]
        except KeyError:
            pass
        try:
            endpoint = self._learn(bucket, operation)
        except Exception:
            # No credentials, unusable ones, or an invalid name: the client itself reports it.
            return None
        self._known[bucket, operation] = endpoint
        return endpoint

    def forget(self, bucket: str) -> None:
        """Forget a bucket's endpoints, because the client was redirected."""
        for known in list(self._known):
            if known[0] == bucket:
                self._known.pop(known, None)

    def _learn(self, bucket: str, operation: str) -> Endpoint | None:
        method, arguments = METHODS[operation]
        seen: dict[str, Any] = {}
        _prepared.seen = seen
        try:
            response = getattr(self._client, method)(Bucket=bucket, **arguments)
        except ClientError:
            return None
        finally:
            _prepared.seen = None
        is_ours = PREPARED in response["ResponseMetadata"]["HTTPHeaders"]
        return _read(bucket, seen) if is_ours else None


#: The request that this thread prepares, as the handlers below saw it; None while it prepares none.
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
    if seen is not None:
        seen.update(
            url=request.url,
            headers=dict(request.headers.items()),
            region=region_name,
            signature=(request_signer, signing_name, signature_version),
        )


def _before_send(request: AWSPreparedRequest, **_: object) -> AWSResponse | None:
    # Registered last, and the client takes the first response: if it takes this one, no other handler
    # responds in place of the store.
    if getattr(_prepared, "seen", None) is None:
        return None
    headers: Any = {PREPARED: "yes"}
    raw: Any = _EmptyBody()
    return AWSResponse(request.url, HTTPStatus.OK, headers, raw)


def _read(bucket: str, seen: dict[str, Any]) -> Endpoint | None:
    url = str(seen.get("url", "")).partition(KEY)[0]
    if not url or bucket.startswith("arn:") or get_environ_proxies(url):
        return None
    signer, service, version = seen["signature"]
    if version not in SIGNATURES or service != "s3":
        return None
    headers = {name: _text(value) for name, value in seen["headers"].items()}
    agent = headers.pop("User-Agent", "")
    kept = [f"{n}: {value}" for n, value in headers.items() if not n.lower().startswith(REQUEST_HEADERS)]
    return Endpoint(url, seen["region"], agent, tuple(kept), (signer, service, version))


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value

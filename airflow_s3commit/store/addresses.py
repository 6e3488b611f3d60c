"""Where a client sends a request to and how it signs it, learnt from the client itself.

A boto3 client decides much before a request goes out: endpoint rules, addressing style, redirects to other
regions, headers that its owner added. None of it is worked out here again. The client prepares one request
for each bucket and operation, which is kept from being sent; every further one differs from it in key,
upload and body alone.
"""

from __future__ import annotations

import io
import threading
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from botocore.awsrequest import AWSResponse
from botocore.exceptions import BotoCoreError, ClientError
from botocore.utils import get_environ_proxies

from airflow_s3commit.exceptions import AccessDenied
from airflow_s3commit.store.credentials import check_keys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from botocore.awsrequest import AWSPreparedRequest, AWSRequest
    from botocore.credentials import ReadOnlyCredentials
    from botocore.signers import RequestSigner
    from mypy_boto3_s3.client import S3Client

__all__ = ["Address", "AddressBook"]

#: The key that a request is prepared with; its URL is cut there.
KEY = "s3commit-address"

#: The header of an answer that did not come from a store.
OURS = "s3commit-prepared"

#: The method of the client that each operation is prepared with, and what it needs besides the bucket.
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

#: Signature version 4, for one region: what libcurl can do too.
SIGNATURES = frozenset({"s3v4", "v4"})

#: Headers that belong to one attempt or one body, or that the signature brings.
OWN_HEADERS = (
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
class Address:
    """How one operation on one bucket is sent.

    Attributes:
        url: What stands before the key; all of it, for an operation on a bucket.
        region: The region it is signed for.
        agent: The user agent.
        headers: What else the client's owner adds, as ``Name: value``.

    """

    url: str
    region: str
    agent: str
    headers: tuple[str, ...]
    _signature: tuple[RequestSigner, str, str]

    def credentials(self) -> ReadOnlyCredentials | None:
        """Return the client's credentials, renewed if they are about to expire.

        None if it has none, or some that cannot be signed with: the client itself then says so.

        Raises:
            BotoCoreError: They could not be had.
            ClientError: The service that they come from refused.

        """
        signer, service, version = self._signature
        auth: Any = signer.get_auth_instance(service, self.region, version)
        found: ReadOnlyCredentials | None = auth.credentials
        try:
            if found is not None:
                check_keys(found.access_key, found.secret_key, found.token, "that the client found")
        except AccessDenied:
            return None
        return found


class AddressBook:
    """The addresses of a client's buckets; safe to use from several threads.

    Args:
        client: The client. Handlers of its events that change requests are heeded; where one answers
            requests in place of the store, there is no address.

    """

    def __init__(self, client: S3Client) -> None:
        self._client = client
        self._known: dict[tuple[str, str], Address | None] = {}
        events: Any = client.meta.events
        events.register_last("before-sign.s3", _before_sign, unique_id="s3commit-before-sign")
        events.register_last("before-send", _before_send, unique_id="s3commit-before-send")

    def find(self, bucket: str, operation: str) -> Address | None:
        """Return how an operation on a bucket is sent; None if only the client itself can."""
        try:
            return self._known[bucket, operation]
        except KeyError:
            pass
        try:
            address = self._learn(bucket, operation)
        except (BotoCoreError, AccessDenied):
            # No credentials, or unusable ones, or an impossible name: the client will say it, this time.
            return None
        self._known[bucket, operation] = address
        return address

    def forget(self, bucket: str) -> None:
        """Learn a bucket's addresses anew: the client has found it elsewhere."""
        for known in list(self._known):
            if known[0] == bucket:
                self._known.pop(known, None)

    def _learn(self, bucket: str, operation: str) -> Address | None:
        method, arguments = METHODS[operation]
        seen: dict[str, Any] = {}
        _prepared.seen = seen
        try:
            answer = getattr(self._client, method)(Bucket=bucket, **arguments)
        except ClientError:
            return None
        finally:
            _prepared.seen = None
        is_ours = OURS in answer["ResponseMetadata"]["HTTPHeaders"]
        return _read(bucket, seen) if is_ours else None


#: What the handlers below saw of the request that this thread is preparing; None while it prepares none.
_prepared = threading.local()


class _Nothing(io.BytesIO):
    """The body of an answer without one, as urllib3 offers it."""

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
    # Registered last, and the client takes the first answer: where it takes this one nobody else answers
    # requests in the store's place, as test doubles do.
    if getattr(_prepared, "seen", None) is None:
        return None
    headers: Any = {OURS: "yes"}
    raw: Any = _Nothing()
    return AWSResponse(request.url, HTTPStatus.OK, headers, raw)


def _read(bucket: str, seen: dict[str, Any]) -> Address | None:
    url = str(seen.get("url", "")).partition(KEY)[0]
    if not url or bucket.startswith("arn:") or get_environ_proxies(url):
        return None
    signer, service, version = seen["signature"]
    if version not in SIGNATURES or service != "s3":
        return None
    headers = {name: _text(value) for name, value in seen["headers"].items()}
    agent = headers.pop("User-Agent", "")
    kept = [f"{n}: {value}" for n, value in headers.items() if not n.lower().startswith(OWN_HEADERS)]
    return Address(url, seen["region"], agent, tuple(kept), (signer, service, version))


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value

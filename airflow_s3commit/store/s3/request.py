"""S3 requests as errors describe them, and responses, as botocore parsed them, as our values."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from airflow_s3commit.exceptions import OutcomeUnknown, StoreRejected, Unavailable
from airflow_s3commit.store.base import ObjectInfo, object_headers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Request:
    """What a request is about, without its options.

    Attributes:
        operation: Its name in S3's API, such as ``PutObject``.
        key: Its object; None for a request on a bucket.

    Raises:
        StoreRejected: The key or the upload id is empty. On the wire that is another request: deleting the
            object ``""`` deletes the bucket, aborting the upload ``""`` deletes the object.
    """

    operation: str
    bucket: str
    key: str | None = None
    upload_id: str | None = None

    def __post_init__(self) -> None:
        if self.key == "" or self.upload_id == "":
            raise StoreRejected(f"{self} has an empty key or upload id", code="InvalidArgument")

    def __str__(self) -> str:
        where = f"s3://{self.bucket}/{self.key or ''}"
        upload = f" (upload {self.upload_id})" if self.upload_id else ""
        return f"{self.operation} of {where}{upload}"

    @property
    def parameters(self) -> dict[str, str]:
        """Bucket, key and upload as boto3 takes them."""
        named = {"Bucket": self.bucket, "Key": self.key, "UploadId": self.upload_id}
        return {name: value for name, value in named.items() if value is not None}

    @property
    def permission(self) -> str:
        """The permission that a policy must grant for this request."""
        return CHANGES.get(self.operation) or READS.get(self.operation, "it")

    def unconfirmed(self, why: str) -> OutcomeUnknown | Unavailable:
        """Return the error for a request whose response is missing or incomplete."""
        if self.operation in CHANGES:
            return OutcomeUnknown(
                f"{self}: {why}; it may or may not have taken effect, so check before you repeat it"
            )
        return Unavailable(f"{self}: {why}")


#: Requests that change something, and the permission of each.
CHANGES = {
    "PutObject": "s3:PutObject",
    "DeleteObject": "s3:DeleteObject and, for conditional deletes, s3:GetObject",
    "DeleteObjects": "s3:DeleteObject and, for conditional deletes, s3:GetObject",
    "CreateMultipartUpload": "s3:PutObject",
    "UploadPart": "s3:PutObject",
    "CompleteMultipartUpload": "s3:PutObject",
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
}

#: Requests that change nothing. Without s3:ListBucket a missing object gets "access denied".
READS = {
    "HeadBucket": "s3:ListBucket",
    "HeadObject": "s3:GetObject and s3:ListBucket",
    "GetObject": "s3:GetObject and s3:ListBucket",
    "ListObjectsV2": "s3:ListBucket",
    "ListMultipartUploads": "s3:ListBucketMultipartUploads",
    "ListParts": "s3:ListMultipartUploadParts",
    "GetBucketLifecycleConfiguration": "s3:GetLifecycleConfiguration",
}


def response_time(response: Mapping[str, Any]) -> float | None:
    """Return a response's Date, in seconds since the epoch by the store's clock; None if it has none."""
    return _http_date(_header(response, "date"))


def retry_after(response: Mapping[str, Any]) -> float | None:
    """Return a response's Retry-After in seconds; None if it has none.

    The header holds seconds or a date, which is relative to the response's own Date.
    """
    asked = _header(response, "retry-after").strip()
    if asked.isdecimal() and asked.isascii():
        return float(asked)
    until, now = _http_date(asked), response_time(response)
    return None if until is None or now is None else max(0.0, until - now)


def etag_of(request: Request, response: Mapping[str, Any]) -> str:
    """Return the ETag of a response, without quotes.

    Raises:
        OutcomeUnknown: There is none, and the request changes something.
        Unavailable: There is none, and the request only reads.
    """
    raw = str(response.get("ETag", ""))
    etag = raw.strip('"')
    # A single quote is left where a header was cut off.
    if not etag or raw.startswith('"') != raw.endswith('"'):
        raise request.unconfirmed("the response has no ETag")
    return etag


def quoted(etag: str) -> str:
    """Return an ETag in quotes, whether it has them or not."""
    return '"{}"'.format(etag.strip('"'))


def unquoted(etag: str) -> str:
    """Return an ETag without quotes, whether it has them or not."""
    return etag.strip('"')


def content_md5(body: bytes | bytearray | memoryview) -> str:
    """Return the value of a body's Content-MD5 header, by which the store detects damage.

    Buckets with a default retention (Object Lock) refuse a write without a checksum.
    """
    return base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()


def object_info(request: Request, response: Mapping[str, Any]) -> ObjectInfo:
    """Return the object of a HEAD's or GET's response.

    Raises:
        Unavailable: Headers are missing.
    """
    if "ContentLength" not in response or "LastModified" not in response:
        raise request.unconfirmed("the response has no length or time")
    return ObjectInfo(
        request.key or "",
        response["ContentLength"],
        etag_of(request, response),
        response["LastModified"].timestamp(),
        {name.lower(): value for name, value in response.get("Metadata", {}).items()},
        object_headers(response.get("ResponseMetadata", {}).get("HTTPHeaders", {})),
    )


def entries(
    request: Request, page: Mapping[str, Any], name: str, fields: Sequence[str]
) -> Iterator[Mapping[str, Any]]:
    """Yield the entries of a page of a listing, in its field ``name``.

    Raises:
        Unavailable: An entry lacks one of ``fields``.
    """
    for entry in page.get(name, ()):
        for field in fields:
            if field not in entry:
                raise request.unconfirmed(f"an entry of the response has no {field}")
        yield entry


def _header(response: Mapping[str, Any], name: str) -> str:
    return str(response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get(name, ""))


def _http_date(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None

"""The base of `S3Store`: sends requests through a boto3 client, lists by page, and uploads in parts.

Requests are retried, and errors translated. A listing continues with the unchanged markers of its last page,
because stores differ in which markers they name and in what order they list. Parts are sent without checksums
unless the bucket requires them: TLS protects the parts, or without TLS the hash in the signature does.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from botocore import xform_name
from msgspec.structs import replace

from airflow_s3commit.exceptions import AccessDenied, NoSuchUpload, OutcomeUnknown, StoreRejected, Unavailable
from airflow_s3commit.store.base import METADATA_PREFIX, Part, StoreProfile, Upload, boto3_parameters
from airflow_s3commit.store.s3.request import (
    NOT_KNOWN,
    Request,
    completed_part,
    content_md5,
    entries,
    etag_of,
    response_time,
    translate,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mypy_boto3_s3.client import S3Client

    from airflow_s3commit.store.base import PartEtag
    from airflow_s3commit.store.execute import RetryPolicy
    from airflow_s3commit.store.s3.fast_path import FastPath

T = TypeVar("T")

log = logging.getLogger(__name__)

#: The code of the error for a listing that cannot be finished.
ENDLESS = "EndlessListing"

#: One page of a listing, as botocore parsed it.
Page: TypeAlias = Mapping[str, Any]

#: How to continue a kind of listing: for each request parameter, the response field with its next value.
Listing: TypeAlias = Mapping[str, str]

OBJECTS: Listing = {"ContinuationToken": "NextContinuationToken"}
UPLOADS: Listing = {"KeyMarker": "NextKeyMarker", "UploadIdMarker": "NextUploadIdMarker"}
PARTS: Listing = {"PartNumberMarker": "NextPartNumberMarker"}


def pages(request: Request, listing: Listing, fetch: Callable[[dict[str, Any]], Page]) -> Iterator[Page]:
    """Yield the pages of a listing. ``fetch`` gets the markers of the next page, which are empty at first.

    Raises `StoreRejected` after earlier pages if the store has more without saying where, or repeats markers.
    """
    markers: dict[str, Any] = {}
    seen = set()
    while True:
        page = fetch(markers)
        yield page
        if not page["IsTruncated"]:
            return
        markers = {ours: page[theirs] for ours, theirs in listing.items() if page.get(theirs)}
        position = tuple(sorted(markers.items()))
        if not markers or position in seen:
            raise StoreRejected(f"{request}: the listing does not continue after {markers}", code=ENDLESS)
        seen.add(position)


class RetryingStore:
    """The half of `S3Store` that sends requests, retries them, counts the retries, and implements uploads."""

    def __init__(
        self, client: S3Client, retry: RetryPolicy, origin: str, make: Callable[[], S3Client] | None
    ) -> None:
        self._clients = [client]
        self._make = make
        self._process = os.getpid()
        self._retry = retry
        self._origin = origin
        self._retries = 0
        self.profiles: defaultdict[str, StoreProfile] = defaultdict(StoreProfile)
        # Buckets that refuse a part without a checksum, as those with a default retention do.
        self._digest_buckets: set[str] = set()
        self._curl: FastPath | None = None

    @property
    def _client(self) -> S3Client:
        """The client of this process: two processes that share a connection would mix their responses."""
        if self._process != os.getpid():
            if self._make is not None:
                # The parent's client is kept: closing it could end TLS sessions that the parent still uses.
                self._clients.append(self._make())
            else:
                self._clients[-1].close()
            self._process = os.getpid()
        return self._clients[-1]

    @property
    def endpoint(self) -> str:
        """Implement `ObjectStore.endpoint`."""
        return self._client.meta.endpoint_url.rstrip("/")

    @property
    def region(self) -> str:
        """The store's region; sends no request."""
        return self._client.meta.region_name

    def _learn(self, bucket: str, message: str, **facts: bool) -> None:
        """Change the profile of a bucket, and log why."""
        self.profiles[bucket] = replace(self.profiles[bucket], **facts)
        log.info("s3://%s %s", bucket, message)

    def _send(self, request: Request, attempt: Callable[[], T]) -> T:
        is_first = True

        def translated() -> T:
            nonlocal is_first
            self._retries += not is_first
            is_first = False
            try:
                return attempt()
            except Exception as error:
                failure = translate(error, request)
            if isinstance(failure, OutcomeUnknown | Unavailable | AccessDenied):
                # A wrong address is the most frequent cause, and it may come from where nobody looks.
                where = ", ".join(filter(None, [f"the store is {self.endpoint}", self._origin]))
                failure.args = (f"{failure} ({where})",)
            # Outside the except block, so not chained: botocore's error may show a session token.
            raise failure

        return self._retry.run(translated)

    def _call(self, request: Request, **parameters: Any) -> Any:
        """Make one attempt through boto3, and return its response."""
        return getattr(self._client, xform_name(request.operation))(**request.parameters, **parameters)

    def _ask(self, request: Request, read: Callable[[Any], T], **parameters: Any) -> T:
        """Make a request through boto3 until it succeeds; return what ``read`` makes of its response."""
        return self._send(request, lambda: read(self._call(request, **parameters)))

    def _page(self, request: Request, **parameters: Any) -> Page:
        """Return one page of a listing."""

        def read(response: Page) -> Page:
            if "IsTruncated" not in response:
                raise request.unconfirmed("the response is no listing")
            return response

        return self._ask(request, read, **parameters)

    def _date(self, response: Mapping[str, Any]) -> float:
        # A response without a Date was made when it arrived (RFC 9110, section 6.6.1).
        date = response_time(response)
        return self._retry.clock.time() if date is None else date

    def create_upload(
        self,
        bucket: str,
        key: str,
        *,
        metadata: Mapping[str, str],
        content_type: str,
        headers: Mapping[str, str] | None = None,
    ) -> str:
        """Implement `ObjectStore.create_upload`.

        A lost response leaves an upload whose id is unknown; a listing finds it.
        """
        request = Request("CreateMultipartUpload", bucket, key)
        named = {f"{METADATA_PREFIX}{name}": value for name, value in metadata.items()}
        lines = {**named, **(headers or {})}
        options = {**boto3_parameters(lines), "ContentType": content_type}
        lines["content-type"] = content_type

        def attempt() -> str:
            sent = self._curl.send(request, "uploads", lines, memoryview(b"")) if self._curl else {}
            upload_id = sent.get("UploadId") or self._call(request, **options).get("UploadId")
            if not upload_id:
                raise request.unconfirmed("the response names no upload")
            return str(upload_id)

        return self._send(request, attempt)

    def upload_part(
        self, bucket: str, key: str, upload_id: str, number: int, body: bytes | bytearray | memoryview
    ) -> str:
        """Implement `ObjectStore.upload_part`."""
        request = Request("UploadPart", bucket, key, upload_id)
        # Not sent by default: computing it takes as long as all the rest of an upload.
        digest = content_md5(body) if bucket in self._digest_buckets else ""

        def attempt() -> str:
            response: Any = {}
            if self._curl is not None:
                lines = {"content-md5": digest} if digest else {}
                response = self._curl.send(request, f"partNumber={number}", lines, memoryview(body))
            if "ETag" not in response:
                # boto3 can send bytes and bytearrays again by itself, for example after a redirect.
                content = body if isinstance(body, bytes | bytearray) else bytes(body)
                options = {"ContentMD5": digest} if digest else {}
                response = self._call(request, PartNumber=number, Body=content, **options)
            return etag_of(request, response)

        try:
            return self._send(request, attempt)
        except StoreRejected as error:
            if digest or error.code not in NOT_KNOWN:
                raise
        digest = content_md5(body)
        etag = self._send(request, attempt)
        self._digest_buckets.add(bucket)
        return etag

    def complete_upload(self, bucket: str, key: str, upload_id: str, etags: Sequence[PartEtag]) -> str:
        """Implement `ObjectStore.complete_upload`."""
        request = Request("CompleteMultipartUpload", bucket, key, upload_id)
        parts = [completed_part(number, etag) for number, etag in enumerate(etags, start=1)]
        return self._ask(request, partial(etag_of, request), MultipartUpload={"Parts": parts})

    def abort_upload(self, bucket: str, key: str, upload_id: str) -> None:
        """Implement `ObjectStore.abort_upload`."""
        request = Request("AbortMultipartUpload", bucket, key, upload_id)
        try:
            self._ask(request, bool)
        except NoSuchUpload:
            return
        except StoreRejected as error:
            # Some stores reject an unknown id as invalid.
            if error.code not in NOT_KNOWN or any(
                upload.upload_id == upload_id for upload in self.list_uploads(bucket, key)
            ):
                raise

    def list_uploads(self, bucket: str, prefix: str, *, page: int | None = None) -> Iterator[Upload]:
        """Implement `ObjectStore.list_uploads`.

        Some stores ignore ``prefix``: other keys are skipped. Some refuse the upload id at which they said to
        continue: it continues at the key alone. Some repeat pages: a stuck listing ends with a warning.
        """
        request = Request("ListMultipartUploads", bucket, prefix=prefix)
        options = {} if page is None else {"MaxUploads": page}

        def fetch(at: Mapping[str, Any]) -> Page:
            try:
                return self._page(request, Prefix=prefix, **options, **at)
            except StoreRejected as error:
                if error.code not in NOT_KNOWN or not at.keys() >= UPLOADS.keys():
                    raise
            # Continuing at the key alone skips all uploads of that key, so they are listed by prefix.
            key = at["KeyMarker"]
            below = entries(request, self._page(request, Prefix=key), "Uploads", ("Key",))
            same = [entry for entry in below if entry["Key"] == key]
            following = self._page(request, Prefix=prefix, KeyMarker=key, **options)
            return {**following, "Uploads": [*same, *following.get("Uploads", ())]}

        known: set[str] = set()
        try:
            for found in pages(request, UPLOADS, fetch):
                listed = entries(request, found, "Uploads", ("Key", "UploadId", "Initiated"))
                uploads = [
                    Upload(one["Key"], one["UploadId"], one["Initiated"].timestamp())
                    for one in listed
                    if one["Key"].startswith(prefix) and one["UploadId"] not in known
                ]
                yield from uploads
                known = {one.upload_id for one in uploads}
        except StoreRejected as error:
            if error.code != ENDLESS:
                raise
            log.warning("The list of pending uploads below %s may be incomplete: %s", prefix, error)

    def list_parts(self, bucket: str, key: str, upload_id: str) -> Iterator[Part]:
        """Implement `ObjectStore.list_parts`."""
        request = Request("ListParts", bucket, key, upload_id)
        for page in pages(request, PARTS, lambda at: self._page(request, **at)):
            for entry in entries(request, page, "Parts", ("PartNumber", "ETag", "Size")):
                yield Part(entry["PartNumber"], entry["ETag"].strip('"'), entry["Size"])

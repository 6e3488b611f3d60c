"""The base of `S3Store`: sends requests through a boto3 client, lists by page, and uploads in parts.

Requests are retried, and errors translated. A listing continues with the unchanged markers of its last page,
because stores differ in which markers they name and in what order they list. Uploads have checksums where the
store supports them.
"""

from __future__ import annotations

import base64
import io
import logging
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from botocore import xform_name
from msgspec.structs import replace

from airflow_s3commit.exceptions import (
    AccessDenied,
    NoSuchUpload,
    OutcomeUnknown,
    S3CommitError,
    StoreRejected,
    Unavailable,
)
from airflow_s3commit.store.base import Part, StoreProfile, Upload, boto3_parameters
from airflow_s3commit.store.s3.request import (
    NOT_KNOWN,
    Request,
    content_md5,
    entries,
    etag_of,
    quoted,
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

#: How to continue a kind of listing: the response field of each request parameter.
Listing: TypeAlias = Mapping[str, str]

OBJECTS: Listing = {"ContinuationToken": "NextContinuationToken"}
UPLOADS: Listing = {"KeyMarker": "NextKeyMarker", "UploadIdMarker": "NextUploadIdMarker"}
#: A listing whose own markers are useless: one page, then `ENDLESS`.
FIRST_PAGE: Listing = {}
PARTS: Listing = {"PartNumberMarker": "NextPartNumberMarker"}


def pages(request: Request, listing: Listing, fetch: Callable[[dict[str, Any]], Page]) -> Iterator[Page]:
    """Yield the pages of a listing, each fetched on demand.

    Args:
        fetch: Fetches the page at the given markers; empty for the first.

    Raises:
        StoreRejected: The store says that there is more but not where, or repeats earlier markers. Earlier
            pages were yielded.
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


class BufferBody:
    """A buffer as the body of a request: a seekable file of known length, in bytes.

    `read` returns views of the buffer, not copies, so the buffer must not change during the request.
    """

    def __init__(self, content: bytes | bytearray | memoryview) -> None:
        view = memoryview(content)
        # An empty view cannot be cast.
        self._view = view.cast("B") if view.nbytes else memoryview(b"")
        self._position = 0

    def __len__(self) -> int:
        return len(self._view)

    def read(self, size: int | None = -1) -> memoryview:
        """Return the next ``size`` bytes, or all that remain."""
        end = None if size is None or size < 0 else self._position + size
        block = self._view[self._position : end]
        self._position += len(block)
        return block

    def tell(self) -> int:
        """Return the position in bytes."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to another position and return it."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: len(self._view)}[whence]
        self._position = start + offset
        return self._position


def crc32_text(body: bytes | bytearray | memoryview) -> str:
    """Return the CRC-32 of a part in Base64, as S3 expects it."""
    return base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()


class RetryingStore:
    """The half of `S3Store` that sends requests, retries them and counts the retries, and its uploads."""

    def __init__(
        self, client: S3Client, retry: RetryPolicy, origin: str, make: Callable[[], S3Client] | None
    ) -> None:
        self._clients = [client]
        self._make = make
        self._process = os.getpid()
        self._retry = retry
        self._origin = origin
        self._retries = 0
        self._profiles: dict[str, StoreProfile] = {}
        # Without TLS the body's hash is signed, which is stronger.
        self._has_checksums = client.meta.endpoint_url.startswith("https:")
        # Whether each bucket supports it, and uploads of supporting buckets that were started without it.
        self._checksum_buckets: dict[str, bool] = {}
        self._without_checksum: set[str] = set()
        # Buckets that refuse a part without a checksum, as those with a default retention do.
        self._digest_buckets: set[str] = set()
        self._curl: FastPath | None = None

    @property
    def _client(self) -> S3Client:
        """The client, with connections of this process: two processes on one would mix their responses."""
        if self._process != os.getpid():
            if self._make is not None:
                # The parent's is kept: its end could close TLS sessions that the parent still uses.
                self._clients.append(self._make())
            else:
                self._clients[-1].close()
            self._process = os.getpid()
        return self._clients[-1]

    @property
    def endpoint(self) -> str:
        """Implement `ObjectStore.endpoint`."""
        return self._client.meta.endpoint_url.rstrip("/")

    def profile(self, bucket: str) -> StoreProfile:
        """Implement `ObjectStore.profile`."""
        return self._profiles.get(bucket, StoreProfile())

    def follow(self, bucket: str, profile: StoreProfile) -> None:
        """Implement `ObjectStore.follow`."""
        self._profiles[bucket] = profile

    def _learn(self, bucket: str, message: str, **facts: bool) -> None:
        """Change the profile of a bucket, and log why."""
        self._profiles[bucket] = replace(self.profile(bucket), **facts)
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
                # The address is what is wrong most often, and it may come from where nobody looks.
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
        options = {**boto3_parameters(headers, metadata), "ContentType": content_type}
        if not self._has_checksums or self._checksum_buckets.get(bucket) is False:
            return self._create(bucket, key, options)[0]
        asked = {"ChecksumAlgorithm": "CRC32", "ChecksumType": "FULL_OBJECT"}
        try:
            upload_id, kind = self._create(bucket, key, options | asked)
        except StoreRejected as error:
            if error.code not in NOT_KNOWN:
                raise
            upload_id, kind = self._create(bucket, key, options)[0], None
        if kind == "FULL_OBJECT":
            self._checksum_buckets[bucket] = True
            return upload_id
        if kind is not None:
            # Completing this upload would need the checksums of its parts, which are not recorded.
            try:
                self.abort_upload(bucket, key, upload_id)
            except S3CommitError as error:
                log.warning("An empty upload of %s stays pending: %s", key, error)
            upload_id = self._create(bucket, key, options)[0]
        self._skip_checksum(bucket, upload_id)
        return upload_id

    def _skip_checksum(self, bucket: str, upload_id: str) -> None:
        """Remember that an upload has no checksum; other uploads of its bucket may have one."""
        if self._checksum_buckets.setdefault(bucket, False):
            self._without_checksum.add(upload_id)
            return
        log.info(
            "Parts are sent to %s of %s without a checksum: it does not support CRC-32 of whole objects",
            bucket,
            self._client.meta.endpoint_url,
        )

    def upload_part(
        self, bucket: str, key: str, upload_id: str, number: int, body: bytes | bytearray | memoryview
    ) -> str:
        """Implement `ObjectStore.upload_part`."""
        request = Request("UploadPart", bucket, key, upload_id)
        options: Any = {}
        if self._checksum_buckets.get(bucket) and upload_id not in self._without_checksum:
            options = {"ChecksumCRC32": crc32_text(body)}
        elif bucket in self._digest_buckets:
            options = {"ContentMD5": content_md5(body)}

        def attempt() -> str:
            response: Any = self._curl and self._curl.send_part(request, number, body, options)
            response = response or self._call(request, PartNumber=number, Body=BufferBody(body), **options)
            return etag_of(request, response)

        try:
            return self._send(request, attempt)
        except StoreRejected as error:
            if options or error.code not in NOT_KNOWN:
                raise
        # Not sent by default: computing it takes as long as all the rest of an upload.
        options = {"ContentMD5": content_md5(body)}
        etag = self._send(request, attempt)
        self._digest_buckets.add(bucket)
        return etag

    def complete_upload(self, bucket: str, key: str, upload_id: str, etags: Sequence[PartEtag]) -> str:
        """Implement `ObjectStore.complete_upload`."""
        request = Request("CompleteMultipartUpload", bucket, key, upload_id)
        parts = [_completed(number, etag) for number, etag in enumerate(etags, start=1)]
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

        Some stores ignore ``prefix``, refuse the markers that they named, or repeat pages: other keys are
        skipped, the listing continues at the last key instead, and one that does not advance ends with a
        warning.
        """
        request = Request("ListMultipartUploads", bucket)
        options = {} if page is None else {"MaxUploads": page}

        def fetch(at: Mapping[str, Any], below: str = prefix) -> Page:
            return self._page(request, Prefix=below, **options, **at)

        listing = UPLOADS if self.profile(bucket).upload_markers else FIRST_PAGE
        last: Page = {}
        try:
            try:
                for last in pages(request, listing, fetch):
                    yield from _uploads(request, last, prefix)
            except StoreRejected as error:
                if not last or error.code not in {ENDLESS} | NOT_KNOWN:
                    raise
                yield from self._uploads_after(request, prefix, last, fetch)
                if listing is UPLOADS:
                    self._learn(
                        bucket, "refuses the markers of its listings of uploads", upload_markers=False
                    )
        except StoreRejected as error:
            if error.code != ENDLESS:
                raise
            log.warning("The list of pending uploads below %s may be incomplete: %s", prefix, error)

    @staticmethod
    def _uploads_after(
        request: Request, prefix: str, page: Page, fetch: Callable[..., Page]
    ) -> Iterator[Upload]:
        """Yield the pending uploads after a page, by the key marker alone.

        Raises:
            StoreRejected: The listing is in another order than that of the keys, or does not advance.
        """
        while page["IsTruncated"]:
            listed = list(_uploads(request, page, ""))
            keys = [upload.key for upload in listed]
            if not keys or keys != sorted(keys):
                raise StoreRejected(
                    f"{request}: the listing does not continue after {keys[-1:]}", code=ENDLESS
                )
            # The page may end between the uploads of one key, and the marker skips the others.
            known = {upload.upload_id for upload in listed}
            for upload in _uploads(request, fetch({}, keys[-1]), keys[-1]):
                if upload.key == keys[-1] and upload.upload_id not in known:
                    yield upload
            page = fetch({"KeyMarker": keys[-1]})
            if any(upload.key <= keys[-1] for upload in _uploads(request, page, "")):
                raise StoreRejected(f"{request}: the listing repeats {keys[-1]}", code=ENDLESS)
            yield from _uploads(request, page, prefix)

    def list_parts(self, bucket: str, key: str, upload_id: str) -> Iterator[Part]:
        """Implement `ObjectStore.list_parts`."""
        request = Request("ListParts", bucket, key, upload_id)
        for page in pages(request, PARTS, lambda at: self._page(request, **at)):
            for entry in entries(request, page, "Parts", ("PartNumber", "ETag", "Size")):
                yield Part(entry["PartNumber"], entry["ETag"].strip('"'), entry["Size"])

    def _create(self, bucket: str, key: str, options: Mapping[str, Any]) -> tuple[str, str | None]:
        """Start an upload; return its id and its checksum type, if the store returns one."""
        request = Request("CreateMultipartUpload", bucket, key)

        def attempt() -> tuple[str, str | None]:
            response: Any = self._curl and self._curl.start_upload(request, options)
            response = response or self._call(request, **options)
            if not response.get("UploadId"):
                raise request.unconfirmed("the response names no upload")
            return response["UploadId"], response.get("ChecksumType")

        return self._send(request, attempt)


def _uploads(request: Request, page: Page, prefix: str) -> Iterator[Upload]:
    """Yield the pending uploads of a page whose key begins with ``prefix``."""
    for entry in entries(request, page, "Uploads", ("Key", "UploadId", "Initiated")):
        if entry["Key"].startswith(prefix):
            yield Upload(entry["Key"], entry["UploadId"], entry["Initiated"].timestamp())


def _completed(number: int, etag: PartEtag) -> dict[str, Any]:
    """Return one part of a completion, as boto3 expects it."""
    if isinstance(etag, str):
        return {"PartNumber": number, "ETag": quoted(etag)}
    return {
        "PartNumber": number,
        "ETag": quoted(etag.etag),
        f"Checksum{etag.algorithm}": etag.checksum,
    }

"""Multipart uploads through boto3."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from airflow_s3commit.exceptions import NoSuchUpload, S3CommitError, StoreRejected
from airflow_s3commit.store.answers import etag_of, quoted
from airflow_s3commit.store.base import Part, Upload
from airflow_s3commit.store.body import BufferBody
from airflow_s3commit.store.checksums import best_checksum
from airflow_s3commit.store.client_calls import ClientCalls
from airflow_s3commit.store.errors import NOT_KNOWN, Request
from airflow_s3commit.store.headers import parameters_of
from airflow_s3commit.store.listing import ENDLESS, PARTS, UPLOADS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mypy_boto3_s3.client import S3Client

    from airflow_s3commit.store.base import PartEtag
    from airflow_s3commit.store.checksums import PartChecksum
    from airflow_s3commit.store.retry import RetryPolicy

__all__ = ["UploadVerbs"]

log = logging.getLogger(__name__)


class UploadVerbs(ClientCalls):
    """The verbs of an `ObjectStore` that are about multipart uploads.

    Args:
        client: The client.
        retry: How often and how long a request is sent again.

    """

    def __init__(self, client: S3Client, retry: RetryPolicy) -> None:
        super().__init__(client, retry)
        is_safe = client.meta.endpoint_url.startswith("https:")
        # Without TLS the body's hash is signed, which says more.
        self._checksum: PartChecksum | None = best_checksum() if is_safe else None
        # What buckets said of it, and the uploads of a bucket that knows it which were begun without.
        self._known_to: dict[str, bool] = {}
        self._without: set[str] = set()

    def create_upload(
        self,
        bucket: str,
        key: str,
        *,
        metadata: Mapping[str, str],
        content_type: str,
        headers: Mapping[str, str] | None = None,
    ) -> str:
        """See `ObjectStore.create_upload`.

        An answer that was lost leaves an upload of which nobody knows the id; a listing finds it.
        """
        options = {**parameters_of(headers, metadata), "ContentType": content_type}
        checksum = self._checksum
        if checksum is None or self._known_to.get(bucket) is False:
            return self._create(bucket, key, options)[0]
        asked = {"ChecksumAlgorithm": checksum.algorithm, "ChecksumType": "FULL_OBJECT"}
        try:
            upload_id, kind = self._create(bucket, key, options | asked)
        except StoreRejected as error:
            if error.code not in NOT_KNOWN:
                raise
            upload_id, kind = self._create(bucket, key, options)[0], None
        if kind == "FULL_OBJECT":
            self._known_to[bucket] = True
            return upload_id
        if kind is not None:
            # Such an upload could only be completed by someone who knows the checksums of its parts.
            self._discard(bucket, key, upload_id)
            upload_id = self._create(bucket, key, options)[0]
        self._do_without(bucket, upload_id, checksum)
        return upload_id

    def _do_without(self, bucket: str, upload_id: str, checksum: PartChecksum) -> None:
        """Remember that an upload was begun without a checksum; its bucket's others may have one."""
        if self._known_to.setdefault(bucket, False):
            self._without.add(upload_id)
            return
        log.info(
            "Parts are sent to %s of %s without a checksum: it knows no %s of whole objects",
            bucket,
            self._client.meta.endpoint_url,
            checksum.algorithm,
        )

    def upload_part(
        self, bucket: str, key: str, upload_id: str, number: int, body: bytes | bytearray | memoryview
    ) -> str:
        """See `ObjectStore.upload_part`."""
        request = Request("UploadPart", bucket, key, upload_id)
        checksum = self._checksum
        options: Any = {}
        if checksum is not None and self._known_to.get(bucket) and upload_id not in self._without:
            options = {checksum.parameter: checksum.text(body)}

        def attempt() -> str:
            content: Any = BufferBody(body)
            answer = self._client.upload_part(
                Bucket=bucket, Key=key, UploadId=upload_id, PartNumber=number, Body=content, **options
            )
            return etag_of(request, answer)

        return self._send(request, attempt)

    def complete_upload(self, bucket: str, key: str, upload_id: str, etags: Sequence[PartEtag]) -> str:
        """See `ObjectStore.complete_upload`."""
        request = Request("CompleteMultipartUpload", bucket, key, upload_id)
        parts: list[Any] = [_completed(number, etag) for number, etag in enumerate(etags, start=1)]

        def attempt() -> str:
            answer = self._client.complete_multipart_upload(
                Bucket=bucket, Key=key, UploadId=upload_id, MultipartUpload={"Parts": parts}
            )
            return etag_of(request, answer)

        return self._send(request, attempt)

    def abort_upload(self, bucket: str, key: str, upload_id: str) -> None:
        """See `ObjectStore.abort_upload`."""
        try:
            self._send(
                Request("AbortMultipartUpload", bucket, key, upload_id),
                lambda: self._client.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload_id),
            )
        except NoSuchUpload:
            return

    def list_uploads(self, bucket: str, prefix: str) -> Iterator[Upload]:
        """See `ObjectStore.list_uploads`.

        Stores are known that list all of a bucket, or go round in circles: what does not begin with
        ``prefix`` is left out, and a listing that doesn't go on is ended with a warning.
        """
        request = Request("ListMultipartUploads", bucket)
        try:
            for page in self._pages(
                request,
                UPLOADS,
                lambda at: self._client.list_multipart_uploads(Bucket=bucket, Prefix=prefix, **at),
            ):
                for entry in page.get("Uploads", ()):
                    if entry["Key"].startswith(prefix):
                        yield Upload(entry["Key"], entry["UploadId"], entry["Initiated"].timestamp())
        except StoreRejected as error:
            if error.code != ENDLESS:
                raise
            log.warning("The list of pending uploads below %s may be incomplete: %s", prefix, error)

    def list_parts(self, bucket: str, key: str, upload_id: str) -> Iterator[Part]:
        """See `ObjectStore.list_parts`.

        Raises:
            StoreRejected: The store breaks the listing off.

        """
        request = Request("ListParts", bucket, key, upload_id)
        for page in self._pages(
            request,
            PARTS,
            lambda at: self._client.list_parts(Bucket=bucket, Key=key, UploadId=upload_id, **at),
        ):
            for entry in page.get("Parts", ()):
                yield Part(entry["PartNumber"], entry["ETag"].strip('"'), entry["Size"])

    def _create(self, bucket: str, key: str, options: Mapping[str, Any]) -> tuple[str, str | None]:
        """Start an upload; return its id and, if the store says it, the kind of its checksum."""
        request = Request("CreateMultipartUpload", bucket, key)

        def attempt() -> tuple[str, str | None]:
            answer = self._client.create_multipart_upload(Bucket=bucket, Key=key, **options)
            if not answer.get("UploadId"):
                raise request.unanswered("the answer names no upload")
            return answer["UploadId"], answer.get("ChecksumType")

        return self._send(request, attempt)

    def _discard(self, bucket: str, key: str, upload_id: str) -> None:
        try:
            self.abort_upload(bucket, key, upload_id)
        except S3CommitError as error:
            log.warning("An empty upload of %s stays pending: %s", key, error)


def _completed(number: int, etag: PartEtag) -> dict[str, Any]:
    """Return what a completion says of one part, as boto3 takes it."""
    if isinstance(etag, str):
        return {"PartNumber": number, "ETag": quoted(etag)}
    return {
        "PartNumber": number,
        "ETag": quoted(etag.etag),
        f"Checksum{etag.algorithm}": etag.checksum,
    }

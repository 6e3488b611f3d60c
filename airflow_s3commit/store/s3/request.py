"""Description of an S3 request for its errors: operation, bucket, key, upload, permission."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_s3commit.exceptions import (
    OutcomeUnknown,
    StoreRejected,
    TooLarge,
    Unavailable,
)


@dataclass(frozen=True, slots=True)
class Request:
    """Description of a request for its errors.

    Attributes:
        operation: Its name in S3's API, such as ``PutObject``.
        bucket: Its bucket.
        key: Its object; None for a request on a bucket.
        upload_id: Its multipart upload, if any.

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

    def check_size(self, size: int, limit: int | None) -> None:
        """Raise if the object has more bytes than ``limit``.

        Raises:
            TooLarge: It has.

        """
        if limit is not None and size > limit:
            raise TooLarge.of(f"s3://{self.bucket}/{self.key}", size, limit)

    @property
    def permission(self) -> str:
        """The permission that a policy must grant for this request."""
        return CHANGES.get(self.operation) or READS.get(self.operation, "it")

    def unconfirmed(self, why: str) -> OutcomeUnknown | Unavailable:
        """Return the error for a request whose response is missing or incomplete."""
        if self.operation in CHANGES:
            return OutcomeUnknown(
                f"{self}: {why}; it may or may not have taken effect, look before redoing it"
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

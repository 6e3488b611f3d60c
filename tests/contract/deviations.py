"""Where a store behaves otherwise than the seam's contract says: all of it, with the reason.

A test of such a behaviour asks `Subject.deviates` and asserts what the store does instead, so that a store
that mends its ways is noticed too. The code is not bent to any of these: they end in an error that says less
than it could, or they concern only what a test server forgets to check.
"""

from __future__ import annotations

from enum import Enum

__all__ = ["DEVIATIONS", "Behaviour"]


class Behaviour(Enum):
    """Parts of the contract that some store does not keep."""

    GONE_UPLOAD_IS_NAMED = "a part for, or the completion of, an upload that is gone is NoSuchUpload"
    UPLOAD_BELONGS_TO_KEY = "an upload's id is good for its own key only"
    BULK_DELETE_HEEDS_ETAG = "a bulk delete leaves objects whose ETag is another"
    BUCKET_IS_NAMED_BY_HEAD = "describing an object of a bucket that is not there is NoSuchBucket"
    NO_PARTS_IS_REJECTED = "completing with no parts at all is StoreRejected"
    ENCRYPTS_AS_ASKED = "an object is encrypted as its writer asks, or its write is rejected"
    INITIATED_IS_TRUE = "a pending upload tells when it was begun"


#: For each store that deviates: why.
DEVIATIONS: dict[tuple[str, Behaviour], str] = {
    ("moto", Behaviour.GONE_UPLOAD_IS_NAMED): "it fails with HTTP 500 (KeyError): the outcome is unknown",
    ("moto", Behaviour.UPLOAD_BELONGS_TO_KEY): "it looks uploads up by id alone",
    ("moto", Behaviour.BULK_DELETE_HEEDS_ETAG): "it ignores ETag in DeleteObjects and deletes",
    ("moto", Behaviour.BUCKET_IS_NAMED_BY_HEAD): "S3 itself: HEAD has no body, so 404 is NoSuchKey",
    ("moto", Behaviour.INITIATED_IS_TRUE): "it says 2010-11-10 of every upload",
    ("seaweedfs", Behaviour.ENCRYPTS_AS_ASKED): "it ignores aws:kms:dsse (and answers 500 to aws:kms here)",
    ("seaweedfs", Behaviour.BUCKET_IS_NAMED_BY_HEAD): "S3 itself: HEAD has no body, so 404 is NoSuchKey",
    ("seaweedfs", Behaviour.NO_PARTS_IS_REJECTED): "it says NoSuchUpload, and keeps the upload",
}

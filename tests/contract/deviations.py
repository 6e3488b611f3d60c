"""Where a store behaves otherwise than the seam's contract says: all of it, with the reason.

A test of such a behaviour asks `Subject.deviates` and asserts what the store does instead, so that a store
that mends its ways is noticed too. The code is not bent to any of these: they end in an error that says less
than it could, or they concern only what a test server forgets to check.
"""

from __future__ import annotations

from enum import Enum

__all__ = ["DEVIATIONS", "FAILS", "RACES", "Behaviour"]


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
    ("s3mock", Behaviour.BUCKET_IS_NAMED_BY_HEAD): "S3 itself: HEAD has no body, so 404 is NoSuchKey",
    ("s3mock", Behaviour.BULK_DELETE_HEEDS_ETAG): "it ignores ETag in DeleteObjects and deletes",
    ("s3mock", Behaviour.UPLOAD_BELONGS_TO_KEY): "it looks uploads up by id alone",
    ("localstack", Behaviour.BUCKET_IS_NAMED_BY_HEAD): "S3 itself: HEAD has no body, so 404 is NoSuchKey",
    ("localstack", Behaviour.BULK_DELETE_HEEDS_ETAG): "it ignores ETag in DeleteObjects and deletes",
    ("versitygw", Behaviour.BUCKET_IS_NAMED_BY_HEAD): "S3 itself: HEAD has no body, so 404 is NoSuchKey",
    ("versitygw", Behaviour.BULK_DELETE_HEEDS_ETAG): "it ignores ETag in DeleteObjects and deletes",
    ("ceph", Behaviour.BUCKET_IS_NAMED_BY_HEAD): "S3 itself: HEAD has no body, so 404 is NoSuchKey",
    ("ceph", Behaviour.BULK_DELETE_HEEDS_ETAG): "it ignores ETag in DeleteObjects and deletes",
    ("minio", Behaviour.BUCKET_IS_NAMED_BY_HEAD): "S3 itself: HEAD has no body, so 404 is NoSuchKey",
    ("minio", Behaviour.BULK_DELETE_HEEDS_ETAG): "it ignores ETag in DeleteObjects and deletes",
    ("gofakes3", Behaviour.BUCKET_IS_NAMED_BY_HEAD): "S3 itself: HEAD has no body, so 404 is NoSuchKey",
    ("gofakes3", Behaviour.BULK_DELETE_HEEDS_ETAG): "it ignores ETag in DeleteObjects and deletes",
    ("s3proxy", Behaviour.BUCKET_IS_NAMED_BY_HEAD): "S3 itself: HEAD has no body, so 404 is NoSuchKey",
}

_BUCKET = "it finds fault with the upload's id first: 400"
_HEADERS = "it drops or rejects storage classes, tags or encryption"
_EMPTY = "it refuses a part without content, before anything else: 411"
_BY_KEY = "it lists pending uploads by their exact key only"
_PARTS = "it finds no parts where another request completes the upload meanwhile: 400"
_GONE = "500 once the object is gone: the outcome is unknown"

#: For each store of ``dev.stores``, the tests that it fails, as their ids begin without its name; why.
#: They are expected to fail, strictly: a store that mends its ways is noticed too.
FAILS: dict[tuple[str, str], str] = {
    ("s3mock", "test_a_missing_bucket_is_named[complete_upload]"): _BUCKET,
    ("s3mock", "test_a_missing_bucket_is_named[list_parts]"): _BUCKET,
    ("s3mock", "test_a_missing_bucket_is_named[upload_part]"): _BUCKET,
    ("s3mock", "test_headers_are_the_objects"): _HEADERS,
    ("s3mock", "test_one_of_many_creates"): "it compares first and writes then: two concurrent writes win",
    ("s3mock", "test_one_of_many_swaps"): "it compares first and writes then: two concurrent writes win",
    ("s3mock", "test_one_upload_completed_by_many"): _PARTS,
    ("s3mock", "test_no_parts_are_rejected"): "it fails with HTTP 500",
    ("s3mock", "test_completing_after_the_object_went"): _GONE,
    ("localstack", "test_completing_again_changes_nothing"): "404 to a repeated completion",
    ("localstack", "test_one_upload_completed_by_many"): "of concurrent completions one empties the object",
    ("localstack", "test_pages_of_quoted_names"): "it compares quoted names with one that is not: pages end",
    ("versitygw", "test_headers_are_the_objects"): _HEADERS,
    ("versitygw", "test_encryption_is_told"): _HEADERS,
    ("ceph", "test_headers_are_the_objects"): _HEADERS,
    ("ceph", "test_encryption_is_told"): _HEADERS,
    ("ceph", "test_part_numbers_end"): "it takes part 10,001",
    ("ceph", "test_completing_after_the_object_went"): _GONE,
    ("ceph", "test_an_aborted_upload_is_gone"): "500 to completing it: the outcome is unknown",
    ("minio", "test_a_missing_bucket_is_named[abort_upload]"): "it aborts nothing there: 204",
    ("minio", "test_a_missing_bucket_is_named[complete_upload]"): "it finds no such upload: 404",
    ("minio", "test_a_missing_bucket_is_named[list_parts]"): "it finds no such upload: 404",
    ("minio", "test_a_missing_bucket_is_named[upload_part]"): "it finds no such upload: 404",
    ("minio", "test_an_id_is_good_for_its_key_only"): _BY_KEY,
    ("minio", "test_an_upload_tells_its_age"): _BY_KEY,
    ("minio", "test_completing_again_changes_nothing"): "404 to a repeated completion",
    ("minio", "test_encryption_is_told"): _HEADERS,
    ("minio", "test_headers_are_the_objects"): _HEADERS,
    ("minio", "test_no_parts_are_rejected"): _BY_KEY,
    ("minio", "test_pages_of_quoted_uploads"): _BY_KEY,
    ("minio", "test_pending_is_invisible"): _BY_KEY,
    ("minio", "test_pending_uploads_are_listed_by_prefix"): _BY_KEY,
    ("minio", "test_two_uploads_of_one_key"): _BY_KEY,
    ("gofakes3", "test_a_listing_describes_as_head_does"): "HEAD says when the upload began",
    ("gofakes3", "test_a_missing_bucket_is_named[abort_upload]"): "it aborts nothing there: 204",
    ("gofakes3", "test_a_missing_bucket_is_named[complete_upload]"): "it finds no such upload: 404",
    ("gofakes3", "test_a_missing_bucket_is_named[upload_part]"): _EMPTY,
    ("gofakes3", "test_a_small_part_is_rejected"): "it takes small parts",
    ("gofakes3", "test_an_empty_part"): _EMPTY,
    ("gofakes3", "test_completing_again_changes_nothing"): "404 to a repeated completion",
    ("gofakes3", "test_completion_makes_the_object"): "the object has another ETag than its completion says",
    ("gofakes3", "test_every_error_is_the_verbs_own"): _EMPTY,
    ("gofakes3", "test_headers_are_the_objects"): _HEADERS,
    ("gofakes3", "test_no_parts_are_rejected"): "it completes an upload without parts",
    ("gofakes3", "test_parts_are_listed"): _EMPTY,
    ("s3proxy", "test_a_missing_bucket_is_named[delete]"): "it deletes nothing there: 204",
    ("s3proxy", "test_a_missing_bucket_is_named[delete_many]"): "it deletes nothing there: 200",
    ("s3proxy", "test_a_missing_bucket_is_named[stale_upload_days]"): "it has no lifecycle rules",
    ("s3proxy", "test_an_aborted_upload_is_gone"): "it takes a part for it",
    ("s3proxy", "test_encryption_is_told"): _HEADERS,
    ("s3proxy", "test_headers_are_the_objects"): _HEADERS,
    ("s3proxy", "test_one_of_many_swaps"): "it compares first and writes then: two concurrent writes win",
}

#: Of `FAILS`, what depends on the moment.
RACES = frozenset(
    {
        ("localstack", "test_one_upload_completed_by_many"),
        ("s3mock", "test_one_of_many_creates"),
        ("s3mock", "test_one_of_many_swaps"),
        ("s3mock", "test_one_upload_completed_by_many"),
        ("s3proxy", "test_one_of_many_swaps"),
        ("gofakes3", "test_a_listing_describes_as_head_does"),
    }
)

"""Bulk deletes: a thousand objects per request, each only with its ETag, also on stores that ignore ETags."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from airflow_s3commit.exceptions import NoSuchKey, PreconditionFailed, StoreRejected
from airflow_s3commit.store.base import DeleteFailure, ObjectToDelete
from airflow_s3commit.store.execute import in_threads
from airflow_s3commit.store.s3.errors import NOT_KNOWN
from airflow_s3commit.store.s3.request import Request, delete_failures, quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mypy_boto3_s3.client import S3Client

    from airflow_s3commit.store.base import ObjectStore

# XML 1.0 cannot represent these, not even as references (https://www.w3.org/TR/xml/#charsets).
_NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")

#: Objects per bulk delete at most (S3's limit).
MAX_DELETES = 1000


def fits_in_bulk(target: ObjectToDelete) -> bool:
    """Return whether XML, and so a bulk delete, can hold an object's key."""
    return _NOT_IN_XML.search(target.key) is None


def check_bulk(bucket: str, objects: Sequence[ObjectToDelete]) -> None:
    """Validate the arguments of a bulk delete.

    Raises:
        ValueError: More than `MAX_DELETES` objects.
        StoreRejected: A key is empty.

    """
    if len(objects) > MAX_DELETES:
        raise ValueError(f"one bulk delete takes {MAX_DELETES} objects, not {len(objects)}")
    for target in objects:
        Request("DeleteObject", bucket, target.key)


def delete_in_bulk(
    client: S3Client,
    send: Callable[[Request, Callable[[], list[DeleteFailure]]], list[DeleteFailure]],
    bucket: str,
    objects: Sequence[ObjectToDelete],
) -> list[DeleteFailure]:
    """Delete objects in one request, and return those that were not deleted.

    Args:
        client: The client that sends it.
        send: Sends a request by the given attempt, with retries.
        bucket: The bucket.
        objects: The objects.

    """
    request = Request("DeleteObjects", bucket)
    targets: list[Any] = [
        {"Key": target.key} if target.etag is None else {"Key": target.key, "ETag": quoted(target.etag)}
        for target in objects
    ]

    def attempt() -> list[DeleteFailure]:
        # Not quiet: an empty response to a quiet request looks like one that was cut off.
        response = client.delete_objects(Bucket=bucket, Delete={"Objects": targets})
        return delete_failures(request, response.get("Deleted", ()), response.get("Errors", ()))

    return send(request, attempt)


def refuses_etags(error: object, objects: Sequence[ObjectToDelete]) -> bool:
    """Return whether a bulk delete may have been refused because of its ETags."""
    return (
        isinstance(error, StoreRejected)
        and error.code in NOT_KNOWN
        and any(target.etag is not None for target in objects)
    )


def delete_singly(
    store: ObjectStore, bucket: str, objects: Sequence[ObjectToDelete], threads: int
) -> list[DeleteFailure]:
    """Delete objects one by one, for stores without ETags in bulk deletes; return those not deleted.

    On stores without conditional deletes, each object's ETag is compared right before the delete.

    Raises:
        S3CommitError: A request failed.

    """

    def delete(target: ObjectToDelete) -> DeleteFailure | None:
        try:
            _delete(store, bucket, target)
        except PreconditionFailed as error:
            return DeleteFailure(target.key, "PreconditionFailed", str(error))
        return None

    return [failure for failure in in_threads(delete, objects, threads) if failure is not None]


def _delete(store: ObjectStore, bucket: str, target: ObjectToDelete) -> None:
    try:
        store.delete(bucket, target.key, if_match=target.etag)
    except StoreRejected as error:
        if target.etag is None or error.code not in NOT_KNOWN:
            raise
        try:
            current = store.head(bucket, target.key)
        except NoSuchKey:
            return
        if current.etag != target.etag.strip('"'):
            raise PreconditionFailed(f"s3://{bucket}/{target.key} has the ETag {current.etag}") from error
        store.delete(bucket, target.key)

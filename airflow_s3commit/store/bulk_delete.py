"""Bulk deletes: a thousand objects a request, each only as it was seen, on stores of every kind."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from airflow_s3commit.exceptions import NoSuchKey, PreconditionFailed, StoreRejected
from airflow_s3commit.store.answers import left_in_place, quoted
from airflow_s3commit.store.base import DeleteFailure, Doomed
from airflow_s3commit.store.errors import NOT_KNOWN, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mypy_boto3_s3.client import S3Client

    from airflow_s3commit.store.base import ObjectStore

__all__ = ["MAX_DELETES", "check_bulk", "delete_in_bulk", "delete_singly", "fits_in_bulk", "refuses_etags"]

# XML 1.0 has no way to write these, not even as a reference (https://www.w3.org/TR/xml/#charsets).
_NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")

#: A bulk delete names at most this many objects (S3's limit).
MAX_DELETES = 1000


def fits_in_bulk(target: Doomed) -> bool:
    """Tell whether an object's key can be named in a bulk delete, which is a document of XML."""
    return _NOT_IN_XML.search(target.key) is None


def check_bulk(bucket: str, doomed: Sequence[Doomed]) -> None:
    """Refuse what one bulk delete cannot be.

    Raises:
        ValueError: More than `MAX_DELETES` objects.
        StoreRejected: An object without a name.

    """
    if len(doomed) > MAX_DELETES:
        raise ValueError(f"one bulk delete takes {MAX_DELETES} objects, not {len(doomed)}")
    for target in doomed:
        Request("DeleteObject", bucket, target.key)


def delete_in_bulk(
    client: S3Client,
    send: Callable[[Request, Callable[[], list[DeleteFailure]]], list[DeleteFailure]],
    bucket: str,
    doomed: Sequence[Doomed],
) -> list[DeleteFailure]:
    """Delete objects in one request, and return those that were left.

    Args:
        client: The client that sends it.
        send: Makes an attempt, again and again.
        bucket: The bucket.
        doomed: The objects.

    """
    request = Request("DeleteObjects", bucket)
    targets: list[Any] = [
        {"Key": target.key} if target.etag is None else {"Key": target.key, "ETag": quoted(target.etag)}
        for target in doomed
    ]

    def attempt() -> list[DeleteFailure]:
        # Not quiet: a quiet answer that says nothing cannot be told from one that was cut off.
        answer = client.delete_objects(Bucket=bucket, Delete={"Objects": targets})
        return left_in_place(request, answer.get("Deleted", ()), answer.get("Errors", ()))

    return send(request, attempt)


def refuses_etags(error: object, doomed: Sequence[Doomed]) -> bool:
    """Tell whether a bulk delete may have been refused for the ETags in it."""
    return (
        isinstance(error, StoreRejected)
        and error.code in NOT_KNOWN
        and any(target.etag is not None for target in doomed)
    )


def delete_singly(
    store: ObjectStore, bucket: str, doomed: Sequence[Doomed], threads: int
) -> list[DeleteFailure]:
    """Delete objects each by itself, for a store that knows no ETags in bulk; return those that were left.

    Where the store knows no conditions at all, an object is looked at right before it is deleted.

    Raises:
        S3CommitError: The store could not be asked.

    """

    def delete(target: Doomed) -> DeleteFailure | None:
        try:
            _delete(store, bucket, target)
        except PreconditionFailed as error:
            return DeleteFailure(target.key, "PreconditionFailed", str(error))
        return None

    with ThreadPoolExecutor(threads, thread_name_prefix="s3commit-delete") as pool:
        return [failure for failure in pool.map(delete, doomed) if failure is not None]


def _delete(store: ObjectStore, bucket: str, target: Doomed) -> None:
    try:
        store.delete(bucket, target.key, if_match=target.etag)
    except StoreRejected as error:
        if target.etag is None or error.code not in NOT_KNOWN:
            raise
        try:
            standing = store.head(bucket, target.key)
        except NoSuchKey:
            return
        if standing.etag != target.etag.strip('"'):
            raise PreconditionFailed(f"s3://{bucket}/{target.key} has the ETag {standing.etag}") from error
        store.delete(bucket, target.key)

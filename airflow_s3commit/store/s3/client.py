"""Sends requests through a boto3 client: retries, translated errors, listings by page, bulk deletes.

A listing continues with the unchanged markers of its last page, because stores differ in which markers they
name and in what order they list. A bulk delete takes a thousand objects, and deletes each only with its ETag,
also on stores that ignore ETags.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from msgspec.structs import replace

from airflow_s3commit.exceptions import (
    AccessDenied,
    OutcomeUnknown,
    PreconditionFailed,
    StoreRejected,
    Unavailable,
)
from airflow_s3commit.store.base import DeleteFailure, ObjectToDelete, StoreProfile
from airflow_s3commit.store.execute import in_threads
from airflow_s3commit.store.s3.errors import NOT_KNOWN, translate
from airflow_s3commit.store.s3.request import Request, delete_failures, quoted, response_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mypy_boto3_s3.client import S3Client

    from airflow_s3commit.store.base import ObjectStore
    from airflow_s3commit.store.execute import RetryPolicy

T = TypeVar("T")

log = logging.getLogger(__name__)

#: The code of the error for a listing that cannot be finished.
ENDLESS = "EndlessListing"

#: One page of a listing, as botocore parsed it.
Page: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Listing:
    """How to continue a kind of listing: request parameters by the response field that each comes from."""

    markers: Mapping[str, str]


OBJECTS = Listing({"ContinuationToken": "NextContinuationToken"})
UPLOADS = Listing({"KeyMarker": "NextKeyMarker", "UploadIdMarker": "NextUploadIdMarker"})
#: A listing whose own markers are useless: one page, then `ENDLESS`.
FIRST_PAGE = Listing({})
PARTS = Listing({"PartNumberMarker": "NextPartNumberMarker"})


def pages(request: Request, listing: Listing, fetch: Callable[[dict[str, Any]], Page]) -> Iterator[Page]:
    """Yield the pages of a listing, each fetched on demand.

    Args:
        request: The request, for errors.
        listing: The kind of listing.
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
        markers = {ours: page[theirs] for ours, theirs in listing.markers.items() if page.get(theirs)}
        position = tuple(sorted(markers.items()))
        if not markers or position in seen:
            raise StoreRejected(f"{request}: the listing does not continue after {markers}", code=ENDLESS)
        seen.add(position)


class RetryingClient:
    """Base of a store on a boto3 client: sends requests, retries them, and counts the retries.

    Args:
        retry: How often and how long a request is retried.
        origin: Where the client's address and credentials come from, for errors.
        make: Makes the client again, in a process that was forked; None to close its connections there.
    """

    def __init__(
        self,
        client: S3Client,
        retry: RetryPolicy,
        origin: str = "",
        make: Callable[[], S3Client] | None = None,
    ) -> None:
        self._clients = [client]
        self._make = make
        self._process = os.getpid()
        self._retry = retry
        self._origin = origin
        self._retries = 0
        self._profiles: dict[str, StoreProfile] = {}

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

    def _pages(
        self, request: Request, listing: Listing, fetch: Callable[[dict[str, Any]], Any]
    ) -> Iterator[Page]:
        def page(markers: dict[str, Any]) -> Page:
            response: Page = fetch(markers)
            if "IsTruncated" not in response:
                raise request.unconfirmed("the response is no listing")
            return response

        return pages(request, listing, lambda markers: self._send(request, lambda: page(markers)))

    def _date(self, response: Mapping[str, Any]) -> float:
        # A response without a Date was made when it arrived (RFC 9110, section 6.6.1).
        date = response_time(response)
        return self._retry.clock.time() if date is None else date


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

    Raises:
        S3CommitError: A request failed.
    """

    def delete(target: ObjectToDelete) -> DeleteFailure | None:
        try:
            store.delete(bucket, target.key, if_match=target.etag)
        except PreconditionFailed as error:
            return DeleteFailure(target.key, "PreconditionFailed", str(error))
        return None

    return [failure for failure in in_threads(delete, objects, threads) if failure is not None]

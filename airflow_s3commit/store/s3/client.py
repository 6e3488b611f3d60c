"""Sends requests through a boto3 client: retries, translated errors, listings by page.

A listing continues with the unchanged markers of its last page, because stores differ in which markers they
name and in what order they list.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from msgspec.structs import replace

from airflow_s3commit.exceptions import AccessDenied, OutcomeUnknown, StoreRejected, Unavailable
from airflow_s3commit.store.base import StoreProfile
from airflow_s3commit.store.s3.errors import translate
from airflow_s3commit.store.s3.request import Request, response_time

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

    from airflow_s3commit.store.execute import RetryPolicy

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


class RetryingClient:
    """Base of a store on a boto3 client: sends requests, retries them, and counts the retries.

    Args:
        origin: Where the client's address and credentials come from, for errors.
        make: Makes the client again, in a process that was forked; None to close its connections there.
    """

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

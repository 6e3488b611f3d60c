"""Walking a listing page by page, by the store's own markers.

No marker is ever made up: what the last page named goes back as it came, whatever it looks like, because
stores differ in which markers they name and in what order they list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow_s3commit.exceptions import StoreRejected

if TYPE_CHECKING:
    from airflow_s3commit.store.errors import Request

__all__ = ["ENDLESS", "OBJECTS", "PARTS", "UPLOADS", "Listing", "Page", "pages"]

#: The code of the error for a listing that cannot be finished.
ENDLESS = "EndlessListing"

#: One answer to a listing request, as botocore parsed it.
Page: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Listing:
    """How a kind of listing goes on: request parameters, each with the answer's field it is taken from."""

    markers: Mapping[str, str]


OBJECTS = Listing({"ContinuationToken": "NextContinuationToken"})
UPLOADS = Listing({"KeyMarker": "NextKeyMarker", "UploadIdMarker": "NextUploadIdMarker"})
PARTS = Listing({"PartNumberMarker": "NextPartNumberMarker"})


def pages(request: Request, listing: Listing, fetch: Callable[[dict[str, Any]], Page]) -> Iterator[Page]:
    """Yield the pages of a listing, each fetched when it is asked for.

    Args:
        request: What is listed, for errors.
        listing: Its kind.
        fetch: Gets the page at the given markers; none for the first.

    Raises:
        StoreRejected: The store says that there is more, but not where, or names markers that it named
            before. The pages so far were yielded.

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
            raise StoreRejected(
                f"{request}: the listing does not go on after {markers}", code="EndlessListing"
            )
        seen.add(position)

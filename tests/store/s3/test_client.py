"""Listings go on by the store's own markers, and end when these lead nowhere."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from airflow_s3commit.exceptions import StoreRejected
from airflow_s3commit.store.s3.client import ENDLESS, PARTS, UPLOADS, Listing, pages
from airflow_s3commit.store.s3.request import Request

REQUEST = Request("ListMultipartUploads", "lake")


class Shelf:
    """Pages that are handed out in order, with a note of the markers they were asked for by."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self.answers = list(answers)
        self.asked: list[dict[str, Any]] = []

    def __call__(self, markers: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(markers)
        return self.answers[min(len(self.asked), len(self.answers)) - 1]


def test_one_page() -> None:
    """A listing of one page is asked for once, without markers."""
    shelf = Shelf({"IsTruncated": False, "NextKeyMarker": "k"})
    assert list(pages(REQUEST, UPLOADS, shelf)) == shelf.answers
    assert shelf.asked == [{}]


def test_pages_are_fetched_when_wanted() -> None:
    """The second page is not fetched before the first was used."""
    shelf = Shelf({"IsTruncated": True, "NextKeyMarker": "k"}, {"IsTruncated": False})
    walk = pages(REQUEST, UPLOADS, shelf)
    next(walk)
    assert len(shelf.asked) == 1
    assert len(list(walk)) == 1


@pytest.mark.parametrize(
    ("listing", "page", "markers"),
    [
        (
            UPLOADS,
            {"NextKeyMarker": "k", "NextUploadIdMarker": "u"},
            {"KeyMarker": "k", "UploadIdMarker": "u"},
        ),
        (UPLOADS, {"NextUploadIdMarker": "u"}, {"UploadIdMarker": "u"}),
        (UPLOADS, {"NextKeyMarker": "k", "NextUploadIdMarker": ""}, {"KeyMarker": "k"}),
        (PARTS, {"NextPartNumberMarker": 1000}, {"PartNumberMarker": 1000}),
    ],
)
def test_markers_go_back_as_they_came(
    listing: Listing, page: dict[str, Any], markers: dict[str, Any]
) -> None:
    """Exactly the markers that a page named are sent for the next, and none that it did not."""
    shelf = Shelf({"IsTruncated": True, **page}, {"IsTruncated": False})
    list(pages(REQUEST, listing, shelf))
    assert shelf.asked == [{}, markers]


@pytest.mark.parametrize(
    ("answers", "asked"),
    [
        ([{"IsTruncated": True}], 1),
        ([{"IsTruncated": True, "NextKeyMarker": "k"}], 2),
        ([{"IsTruncated": True, "NextKeyMarker": key} for key in ("a", "b", "c", "a")], 4),
    ],
    ids=["no marker", "the same marker", "a circle"],
)
def test_a_listing_that_does_not_end(answers: list[dict[str, Any]], asked: int) -> None:
    """A listing that claims to go on, but not where or in a circle, is broken off after its pages."""
    shelf = Shelf(*answers)
    walk = pages(REQUEST, UPLOADS, shelf)
    assert len(list(islice(walk, asked))) == asked
    with pytest.raises(StoreRejected) as caught:
        next(walk)
    assert caught.value.code == ENDLESS
    assert len(shelf.asked) == asked

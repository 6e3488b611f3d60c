"""Everything that jobs rely on is tried, and a store that fails a check is refused with the reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import pytest

from airflow_s3commit import MemoryStore
from airflow_s3commit.exceptions import NoSuchKey, StoreRejected, StoreUnsuitable
from airflow_s3commit.protocol.metadata.fitness import (
    ODD_NAME,
    check_abort,
    check_abort_over,
    check_completion,
    check_objects,
    check_pages,
)

BUCKET, KEY = "lake", "flights/probe"


class Lying(MemoryStore):
    """A store one of whose verbs lies.

    Args:
        verb: The verb.
        lie: Makes the answer, given the true verb and its arguments.

    """

    def __init__(self, verb: str, lie: Callable[..., Any]) -> None:
        super().__init__()
        truth = getattr(self, verb)
        setattr(self, verb, lambda *args, **arguments: lie(truth, *args, **arguments))


def _nothing(*_args: Any, **_arguments: Any) -> None:
    """Claim success."""


def _found(truth: Any, *args: Any, **arguments: Any) -> Any:
    try:
        return truth(*args, **arguments)
    except NoSuchKey:
        return MemoryStore().put(BUCKET, KEY, b"")


def _missing(*_args: Any, **_arguments: Any) -> Any:
    raise NoSuchKey("gone")


def _endless(*_args: Any, **_arguments: Any) -> Any:
    raise StoreRejected("it goes on")


LIES: dict[str, tuple[Callable[..., Any], str, Callable[..., Any], str]] = {
    "other content": (
        check_objects,
        "get",
        lambda truth, *a, **k: replace(truth(*a, **k), body=b"S3COMMIT DOCTOR"),
        "other content",
    ),
    "other ETags in HEAD": (
        check_objects,
        "head",
        lambda truth, *a: replace(truth(*a), etag="another"),
        "HEAD says.*another",
    ),
    "other sizes in a listing": (
        check_objects,
        "list_objects",
        lambda truth, *a: (replace(info, size=0) for info in truth(*a)),
        "a listing says.*0 bytes",
    ),
    "new objects are not listed": (
        check_objects,
        "list_objects",
        lambda *_: iter(()),
        "missing from a listing",
    ),
    "keys from elsewhere are listed": (
        check_objects,
        "list_objects",
        lambda truth, *a: (replace(info, key="elsewhere") for info in truth(*a)),
        "names keys that are elsewhere",
    ),
    "only the first page is listed": (
        check_pages,
        "list_objects",
        lambda truth, *a, page: islice(truth(*a), page),
        "lacks 3 of 5, and repeats 0: jobs, verify and sweep would see only a part",
    ),
    "a key is on two pages": (
        check_pages,
        "list_objects",
        lambda truth, *a, page: chain(islice(truth(*a), page), islice(truth(*a), page - 1, None)),
        "lacks 0 of 5, and repeats 1",
    ),
    "the first page is listed for ever": (check_pages, "list_objects", _endless, "has no end: .*goes on"),
    "deletes do nothing": (check_objects, "delete", _nothing, "still there after its deletion"),
    "pending uploads are visible": (check_completion, "head", _found, "visible before its upload"),
    "completions do nothing": (check_completion, "complete_upload", _nothing, "missing after its upload"),
    "metadata is lost": (
        check_completion,
        "head",
        lambda truth, *a: replace(truth(*a), metadata={}),
        "lacks its upload's metadata",
    ),
    "parts are cut": (
        check_completion,
        "upload_part",
        lambda truth, *a: truth(*a[:-1], a[-1][:-1]),
        "14 bytes",
    ),
    "deletes remove what begins with the key": (
        check_objects,
        "delete",
        lambda truth, *a: [truth(BUCKET, name) for name in (a[1], a[1] + ODD_NAME)],
        "went when .* was deleted: deletes remove other objects too",
    ),
    "an aborted upload changes the object": (
        check_abort_over,
        "head",
        lambda truth, *a: replace(truth(*a), etag="another"),
        "changed by an upload that was not completed",
    ),
    "an aborted upload removes the object": (check_abort_over, "head", _missing, "changed by an upload"),
    "aborts do nothing": (check_abort, "abort_upload", _nothing, "still exists after its abort"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_detected(lie: str) -> None:
    """The reason says what is wrong, and no upload is left if the store aborts any."""
    check, verb, answer, reason = LIES[lie]
    store = Lying(verb, answer)
    with pytest.raises(StoreUnsuitable, match=reason):
        check(store, BUCKET, KEY)
    assert bool(list(store.list_uploads(BUCKET, ""))) == (verb == "abort_upload")


def test_a_good_store_passes() -> None:
    """Every check passes, and the object that a completion returns is the stored one."""
    store = MemoryStore()
    check_objects(store, BUCKET, KEY)
    check_pages(store, BUCKET, KEY)
    assert check_completion(store, BUCKET, KEY) == store.head(BUCKET, KEY)
    store.delete(BUCKET, KEY)
    check_abort(store, BUCKET, KEY)
    check_abort_over(store, BUCKET, KEY)
    assert (list(store.list_objects(BUCKET, "")), list(store.list_uploads(BUCKET, ""))) == ([], [])

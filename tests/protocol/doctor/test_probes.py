"""Everything that jobs rely on is tried, and a store that fails a check is refused with the reason."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, islice
from typing import Any
from urllib.parse import quote

import pytest
from msgspec.structs import replace

from airflow_s3commit import MemoryStore
from airflow_s3commit.exceptions import NoSuchKey, StoreRejected, StoreUnsuitable
from airflow_s3commit.protocol.doctor.probes import DATA_PROBES, ODD_NAME, RECORD_PROBES, Sandbox
from airflow_s3commit.protocol.model.destination import Destination
from tests.fakes import ManualClock

BUCKET, HOME = "lake", Destination("lake", "flights/_s3commit/doctor/")
OBJECT, ABORTED, COMPLETED = (HOME.key(name) for name in ("object", "aborted", "upload"))

PROBES = {probe.name: probe for probe in (*RECORD_PROBES, *DATA_PROBES)}


def sandbox(store: MemoryStore) -> Sandbox:
    """Return a directory for probes."""
    return Sandbox(store, Destination(BUCKET, "flights/"), HOME, ManualClock())


class Lying(MemoryStore):
    """A store one of whose verbs lies.

    Args:
        verb: The verb.
        lie: Makes the answer, given the true verb and its arguments.
    """

    def __init__(self, verb: str, lie: Callable[..., Any]) -> None:
        super().__init__(min_part_bytes=1)
        truth = getattr(self, verb)
        setattr(self, verb, lambda *args, **arguments: lie(truth, *args, **arguments))


def _nothing(*_args: Any, **_arguments: Any) -> None:
    """Claim success."""


def _found(truth: Any, *args: Any, **arguments: Any) -> Any:
    try:
        return truth(*args, **arguments)
    except NoSuchKey:
        return MemoryStore().put(BUCKET, COMPLETED, b"")


def _missing(*_args: Any, **_arguments: Any) -> Any:
    raise NoSuchKey("gone")


def _endless(*_args: Any, **_arguments: Any) -> Any:
    raise StoreRejected("it goes on")


def _cut_where_quoted(truth: Any, *args: Any, page: int | None, **_: Any) -> Any:
    """Cut pages as LocalStack 4.12 does: names as URLs have them are compared with the next one as it is."""
    found = list(truth(*args))
    while page and found:
        yield from found[:page]
        begin = found[page].key if len(found) > page else ""
        found = [info for info in found[page:] if quote(info.key) >= begin]
    yield from found


LIES: dict[str, tuple[str, str, Callable[..., Any], str]] = {
    "other content": (
        "objects",
        "get",
        lambda truth, *a, **k: replace(truth(*a, **k), body=b"S3COMMIT DOCTOR"),
        "other content",
    ),
    "other ETags in HEAD": (
        "objects",
        "head",
        lambda truth, *a: replace(truth(*a), etag="another"),
        "HEAD says.*another",
    ),
    "other sizes in a listing": (
        "objects",
        "list_objects",
        lambda truth, *a: (replace(info, size=0) for info in truth(*a)),
        "a listing says.*0 bytes",
    ),
    "other times in a listing": (
        "objects",
        "list_objects",
        lambda truth, *a: (replace(info, modified=info.modified + 1000) for info in truth(*a)),
        "apart from that of a response",
    ),
    "new objects are not listed": (
        "objects",
        "list_objects",
        lambda *_: iter(()),
        "missing from a listing",
    ),
    "keys from elsewhere are listed": (
        "objects",
        "list_objects",
        lambda truth, *a: (replace(info, key="elsewhere") for info in truth(*a)),
        "names keys that are elsewhere",
    ),
    "only the first page is listed": (
        "pages of objects",
        "list_objects",
        lambda truth, *a, page, **_: islice(truth(*a), page),
        "lacks 3 of 5, and has 0 too many: jobs, verify and sweep would see only a part",
    ),
    "only the first page of names that URLs quote is listed": (
        "pages of objects",
        "list_objects",
        _cut_where_quoted,
        "in pages of 2 objects lacks 3 of 5",
    ),
    "a key is on two pages": (
        "pages of objects",
        "list_objects",
        lambda truth, *a, page, **_: chain(islice(truth(*a), page), islice(truth(*a), page - 1, None)),
        "lacks 0 of 5, and has 1 too many",
    ),
    "a listing does not begin where it is asked to": (
        "pages of objects",
        "list_objects",
        lambda truth, *a, **_: truth(*a),
        "after .*listed=0.* lacks 0 of 4, and has 1 too many",
    ),
    "the first page is listed for ever": (
        "pages of objects",
        "list_objects",
        _endless,
        "has no end: .*goes on",
    ),
    "deletes do nothing": ("objects", "delete", _nothing, "still there after its deletion"),
    "pending uploads are visible": ("complete uploads", "head", _found, "visible before its upload"),
    "completions do nothing": ("complete uploads", "complete_upload", _nothing, "missing after its upload"),
    "metadata is lost": (
        "complete uploads",
        "head",
        lambda truth, *a: replace(truth(*a), metadata={}),
        "lacks its upload's metadata",
    ),
    "parts are cut": (
        "complete uploads",
        "upload_part",
        lambda truth, *a: truth(*a[:-1], a[-1][:-1]),
        "listed parts of an upload of .* are not those that were sent",
    ),
    "deletes remove what begins with the key": (
        "objects",
        "delete",
        lambda truth, *a: [truth(BUCKET, name) for name in (a[1], a[1] + ODD_NAME)],
        "went when .* was deleted: deletes remove other objects too",
    ),
    "an aborted upload changes the object": (
        "abort uploads",
        "head",
        lambda truth, *a: replace(truth(*a), etag="another"),
        "changed by an upload that was not completed",
    ),
    "an aborted upload removes the object": ("abort uploads", "head", _missing, "changed by an upload"),
    "aborts do nothing": ("abort uploads", "abort_upload", _nothing, "still exists after its abort"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_detected(lie: str) -> None:
    """The reason says what is wrong, and no upload is left if the store aborts any."""
    name, verb, answer, reason = LIES[lie]
    store = Lying(verb, answer)
    probed = sandbox(store)
    with pytest.raises(StoreUnsuitable, match=reason):
        PROBES[name].run(probed)
    probed.clear()
    assert bool(list(store.list_uploads(BUCKET, ""))) == (verb == "abort_upload")


def test_a_good_store_passes() -> None:
    """Every probe passes but that for a lifecycle rule, which is not there; nothing is left."""
    store = MemoryStore(min_part_bytes=1)
    probed = sandbox(store)
    found = {name: probe.run(probed).verdict for name, probe in PROBES.items()}
    assert {name for name, verdict in found.items() if verdict != "ok"} == {"lifecycle rule"}
    probed.clear()
    assert (list(store.list_objects(BUCKET, "")), list(store.list_uploads(BUCKET, ""))) == ([], [])

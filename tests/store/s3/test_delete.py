"""Bulk deletes keep their condition on stores that know none in bulk, or none at all."""

from __future__ import annotations

import pytest

from airflow_s3commit.exceptions import StoreRejected
from airflow_s3commit.store.base import DeleteFailure, DeleteMany, ObjectToDelete
from airflow_s3commit.store.execute import RetryPolicy
from airflow_s3commit.store.s3.store import S3Store, TransportName
from tests.store.s3.fault_server import DATE_TEXT, FaultServer, Say, Seen
from tests.store.s3.wire import error_body

pytestmark = pytest.mark.loopback

TRANSPORTS: tuple[TransportName, ...] = ("boto3", "curl")
DELETED = Say(body=b"<DeleteResult><Deleted><Key>a</Key></Deleted></DeleteResult>")
DOOMED = [ObjectToDelete("same", "e"), ObjectToDelete("changed", "f"), ObjectToDelete("gone", "g")]


class OldStore:
    """Answers as a store that knows no ETags in bulk deletes.

    Args:
        conditions: Whether it knows them in single ones.
    """

    def __init__(self, *, conditions: bool) -> None:
        self._conditions = conditions
        self.objects = {"same": "e", "changed": "other"}

    def answer(self, seen: Seen) -> Say:
        """Answer a request."""
        if seen.method == "POST":
            return Say(501, error_body("NotImplemented")) if b"<ETag>" in seen.body else DELETED
        key = seen.path.removeprefix("/lake/")
        if seen.method == "HEAD":
            if key not in self.objects:
                return Say(404)
            return Say(headers={"ETag": f'"{self.objects[key]}"', "Last-Modified": DATE_TEXT})
        condition = seen.headers.get("if-match")
        if condition is not None and not self._conditions:
            return Say(501, error_body("NotImplemented"))
        if condition is not None and key in self.objects and condition.strip('"') != self.objects[key]:
            return Say(412, error_body("PreconditionFailed"))
        self.objects.pop(key, None)
        return Say(204)


def store_on(server: FaultServer, transport: TransportName) -> S3Store:
    """Return a store that gives up at once."""
    if transport == "curl":
        pytest.importorskip("pycurl")
    return S3Store.connect(server.config, retry=RetryPolicy(deadline=0.0), transport=transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("conditions", [True, False])
def test_a_store_without_etags_in_bulk(transport: TransportName, conditions: bool) -> None:
    """Objects are deleted singly, and one that changed is left, with conditions or by looking first."""
    old = OldStore(conditions=conditions)
    with FaultServer(decide=old.answer) as server:
        store = store_on(server, transport)
        ((_, left),) = store.perform([(0, DeleteMany("lake", DOOMED))])
        assert isinstance(left, list)
        assert [(failure.key, failure.code) for failure in left] == [("changed", "PreconditionFailed")]
        assert old.objects == {"changed": "other"}
        bulks = sum(seen.method == "POST" for seen in server.seen)
        assert store.delete_many("lake", [ObjectToDelete("changed", "other")]) == []
        assert sum(seen.method == "POST" for seen in server.seen) == bulks
        assert old.objects == {}


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_another_refusal_is_an_error(transport: TransportName) -> None:
    """Where no ETag was in it, a bulk delete that is refused is refused, and nothing is deleted singly."""
    with FaultServer(Say(501, error_body("NotImplemented"))) as server:
        ((_, outcome),) = store_on(server, transport).perform(
            [(0, DeleteMany("lake", [ObjectToDelete("a")]))]
        )
        assert isinstance(outcome, StoreRejected)
        assert {(seen.method, seen.path) for seen in server.seen} == {("POST", "/lake?delete")}


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_what_a_bulk_delete_says(transport: TransportName) -> None:
    """A bulk delete names keys as they are, with a checksum, and says which objects it left."""
    left = b"<Error><Key>b&amp;c</Key><Code>PreconditionFailed</Code><Message>m</Message></Error>"
    answer = Say(body=DELETED.body.replace(b"</DeleteResult>", left + b"</DeleteResult>"))
    with FaultServer(answer) as server:
        objects = [ObjectToDelete("a"), ObjectToDelete("b&c", "e"), ObjectToDelete("d\re")]
        ((_, outcome),) = store_on(server, transport).perform([(0, DeleteMany("lake", objects))])
        (seen,) = server.seen
    assert outcome == [DeleteFailure("b&c", "PreconditionFailed", "m")]
    assert b"<Key>b&amp;c</Key><ETag>" in seen.body
    assert b"<Key>d&#xD;e</Key>" in seen.body
    assert b"Quiet" not in seen.body
    assert {"content-md5", "x-amz-checksum-crc32"} & set(seen.headers)

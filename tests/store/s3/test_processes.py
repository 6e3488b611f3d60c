"""One store in several processes, and behind a server that sends its clients elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from airflow_s3commit.exceptions import StoreRejected
from airflow_s3commit.store.base import Fetched, Get
from airflow_s3commit.store.execute import RetryPolicy
from airflow_s3commit.store.s3.config import S3Config, new_client
from airflow_s3commit.store.s3.store import S3Store
from tests.store.s3.fault_server import FaultServer, Say, Seen

pytestmark = pytest.mark.loopback

_ONCE = RetryPolicy(deadline=0)


def _echo(seen: Seen) -> Say:
    """Answer with the path that was asked for."""
    return Say(
        body=seen.path.encode(), headers={"ETag": '"e"', "Last-Modified": "Sun, 06 Nov 1994 08:49:37 GMT"}
    )


def _connected(config: S3Config) -> S3Store:
    return S3Store.connect(config, retry=_ONCE, transport="boto3")


def _given(config: S3Config) -> S3Store:
    return S3Store(new_client(config), retry=_ONCE, transport="boto3")


@pytest.mark.parametrize("make", [_connected, _given])
def test_a_forked_process_uses_connections_of_its_own(make: Callable[[S3Config], S3Store]) -> None:
    """A store that was used before a fork works in both processes, and no connection is in both."""
    with FaultServer(decide=_echo) as server:
        store = make(server.config)
        assert store.get("lake", "before").body == b"/lake/before"
        before = len(server.open)
        child = os.fork()
        if child == 0:
            right = all(
                store.get("lake", f"child-{n}").body == f"/lake/child-{n}".encode() for n in range(20)
            )
            os._exit(0 if right else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert len(server.open) == before + 1
        assert store.get("lake", "after").body == b"/lake/after"
        assert len(server.open) == before + 1


def test_a_forked_process_has_a_fast_path_of_its_own() -> None:
    """Many calls made in two processes with one store get their own answers, on their own connections."""
    pytest.importorskip("pycurl")

    def is_right(store: S3Store, name: str) -> bool:
        found = dict(store.perform((n, Get("lake", f"{name}-{n}")) for n in range(20)))
        return all(
            isinstance(one, Fetched) and one.body == f"/lake/{name}-{n}".encode() for n, one in found.items()
        )

    with FaultServer(decide=_echo) as server:
        store = S3Store.connect(server.config, retry=_ONCE, transport="curl", connections=1)
        assert is_right(store, "before")
        before = len(server.open)
        child = os.fork()
        if child == 0:
            os._exit(0 if is_right(store, "child") else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert len(server.open) == before + 1
        assert is_right(store, "after")
        assert len(server.open) == before + 1


@pytest.mark.parametrize("status", [301, 302, 307, 308])
@pytest.mark.parametrize("transport", ["boto3", "auto"])
def test_a_redirect_is_named_after_one_request(status: int, transport: str) -> None:
    """A store that sends its clients elsewhere fails at once, and says where it sends them."""
    elsewhere = {"Location": "https://store.example.test:9443/lake/k?X-Amz-Signature=abc"}
    with FaultServer(Say(status, headers=elsewhere)) as server:
        store = S3Store.connect(server.config, transport=transport)  # type: ignore[arg-type]
        calls: list[Callable[[], object]] = [
            lambda: store.head("lake", "k"),
            lambda: store.put("lake", "k", b""),
            lambda: store.check_bucket("lake"),
        ]
        for sent, call in enumerate(calls, start=1):
            with pytest.raises(
                StoreRejected, match=r"redirects to https://store\.example\.test:9443:"
            ) as why:
                call()
            assert server.endpoint_url in str(why.value)
            assert "Signature" not in str(why.value)
            assert len(server.seen) == sent
        ((_, outcome),) = store.perform([(None, Get("lake", "k"))])
        assert isinstance(outcome, StoreRejected)

"""What is between a client and a real server: a proxy, a gateway that throttles, a bucket that moved."""

from __future__ import annotations

from dataclasses import replace
from http.client import HTTPConnection
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tests.store.s3.fault_server import FaultServer, Say

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.store.s3.fault_server import Cut, Seen

__all__ = ["gateway", "relay"]

#: Headers that concern one connection only.
_HOP = frozenset({"connection", "expect", "transfer-encoding", "proxy-connection"})


def relay(endpoint_url: str, decide: Callable[[Seen], Say | Cut | None] = lambda _: None) -> FaultServer:
    """Return a server that passes requests on to another one, and its answers back.

    Args:
        endpoint_url: The other server.
        decide: Answers a request itself, or returns None to pass it on.
    """
    address = urlsplit(endpoint_url).netloc

    def answer(seen: Seen) -> Say | Cut:
        return decide(seen) or _passed_on(address, seen)

    return FaultServer(decide=answer)


def gateway(endpoint_url: str, path: str) -> FaultServer:
    """Return a server that has another one below a path, as reverse proxies do, and nothing beside it."""
    address = urlsplit(endpoint_url).netloc

    def answer(seen: Seen) -> Say:
        if not seen.path.startswith(f"{path}/"):
            return Say(502, b"there is no store here")
        # The signature is over the path that the client sees.
        headers = {**seen.headers, "x-forwarded-prefix": path}
        return _passed_on(address, replace(seen, path=seen.path.removeprefix(path), headers=headers))

    return FaultServer(decide=answer)


def _passed_on(address: str, seen: Seen) -> Say:
    connection = HTTPConnection(address, timeout=60)
    try:
        parts = urlsplit(seen.path)
        # A client of a proxy names the server too. The Host header is signed, so it stays.
        path = seen.path.removeprefix(f"{parts.scheme}://{parts.netloc}")
        connection.putrequest(seen.method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in seen.headers.items():
            if name not in _HOP:
                connection.putheader(name, value)
        connection.endheaders(seen.body)
        answer = connection.getresponse()
        body = answer.read()
        headers = {name: value for name, value in answer.getheaders() if name.lower() not in _HOP}
        return Say(answer.status, body, headers)
    finally:
        connection.close()

"""A server on this machine that responds as the test scripts it, or not at all: faults on the wire."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Self

from airflow_s3commit.store.s3.config import S3Config

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

__all__ = ["COMPLETED", "DATE_TEXT", "Cut", "FaultServer", "Say", "Seen"]

DATE_TEXT = "Sun, 06 Nov 1994 08:49:37 GMT"


@dataclass(frozen=True, slots=True)
class Say:
    """An answer; ``missing`` bytes of what its length promises never come, ``wait`` seconds pass before.

    With ``trickle`` its body comes byte by byte, ``trickle`` seconds apart.
    """

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    missing: int = 0
    wait: float = 0.0
    trickle: float = 0.0


@dataclass(frozen=True, slots=True)
class Cut:
    """No response: the connection is reset, and the server is down for a number of seconds."""

    down: float = 0.0


@dataclass(frozen=True, slots=True)
class Seen:
    """A request as it arrived, headers by name in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


COMPLETED = Say(
    body=b'<?xml version="1.0"?><CompleteMultipartUploadResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
    b"<ETag>&quot;e-1&quot;</ETag></CompleteMultipartUploadResult>"
)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.server.owner.open.append(self.connection)

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except OSError:
            self.close_connection = True

    def answer(self) -> None:
        asked = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        step = self.server.owner.decide(Seen(self.command, self.path, headers, asked))
        if isinstance(step, Cut):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            return
        time.sleep(step.wait)
        head = {"Date": DATE_TEXT, "Content-Length": str(len(step.body) + step.missing)} | step.headers
        lines = [f"HTTP/1.1 {step.status} X", *(f"{name}: {value}" for name, value in head.items()), "", ""]
        body = b"" if self.command == "HEAD" else step.body
        at_once = 0 if step.trickle else len(body)
        self.wfile.write("\r\n".join(lines).encode() + body[:at_once])
        for byte in body[at_once:]:
            time.sleep(step.trickle)
            self.wfile.write(bytes((byte,)))
        self.close_connection = step.missing > 0

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer  # noqa: N815 - the names that http.server asks for

    def log_message(self, *_: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def __init__(self, owner: FaultServer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.owner = owner

    def verify_request(self, *_: object) -> bool:
        return not self.owner.is_down

    def handle_error(self, *_: object) -> None:
        pass


class FaultServer:
    """The server, while its context lasts.

    Args:
        script: What becomes of each request, the last step for all that follow; or what decides it.

    Attributes:
        seen: The requests that arrived, in order.
        open: The connections so far.
    """

    def __init__(self, *script: Say | Cut, decide: Callable[[Seen], Say | Cut] | None = None) -> None:
        self.seen: list[Seen] = []
        self.open: list[socket.socket] = []
        self._script = list(script)
        self._decide = decide
        self._lock = threading.Lock()
        self._down_until = 0.0
        self._server = _Server(self)

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def is_down(self) -> bool:
        """Whether it does not respond at present."""
        return time.monotonic() < self._down_until

    @property
    def endpoint_url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def config(self) -> S3Config:
        """What a store needs to reach it."""
        return S3Config(self.endpoint_url, "us-east-1", "the-access-key", "the-secret-key")

    def hang_up(self) -> None:
        """Close all connections, from this side."""
        while self.open:
            with contextlib.suppress(OSError):
                self.open.pop().shutdown(socket.SHUT_RDWR)

    def decide(self, seen: Seen) -> Say | Cut:
        """Say what becomes of a request."""
        with self._lock:
            self.seen.append(seen)
            if self.is_down:
                return Cut()
            if self._decide is not None:
                step = self._decide(seen)
            else:
                step = self._script.pop(0) if len(self._script) > 1 else self._script[0]
            if isinstance(step, Cut) and step.down:
                self._down_until = time.monotonic() + step.down
            return step

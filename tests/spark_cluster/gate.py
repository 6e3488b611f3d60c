"""A gate in front of an S3 server: every request passes through it, and may be turned away, held or followed.

It signs requests anew with the server's own keys, so that clients can have keys that the gate makes up, and
lets expire; a request that is signed with the server's keys passes as it is. A rule runs in the thread of its
request: what it waits for, or kills, happens at exactly that request.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Protocol, Self
from urllib.parse import urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from airflow_s3commit.testing import S3Server

__all__ = ["Gate", "Request", "Rule", "TurnedAway"]

#: Headers that the gate sets itself.
_OWN = frozenset(
    {"authorization", "connection", "content-length", "expect", "host", "x-amz-date", "x-amz-security-token"}
)


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it arrives: method, path with its query, and the access key of who asks."""

    method: str
    path: str
    access_key: str

    def writes(self, ending: str) -> bool:
        """Tell whether it puts an object whose key ends so."""
        return self.method == "PUT" and urlsplit(self.path).path.endswith(ending)

    @property
    def uploads_part(self) -> bool:
        """Whether it uploads a part."""
        return self.method == "PUT" and "partNumber=" in self.path

    @property
    def completes(self) -> bool:
        """Whether it completes an upload."""
        return self.method == "POST" and "uploadId=" in self.path


class TurnedAway(Exception):
    """A rule's answer in place of the server's: a status and S3's name for it."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status = status
        self.code = code


class Rule(Protocol):
    """What becomes of requests."""

    def before(self, request: Request) -> None:
        """Let it pass, or raise `TurnedAway`."""

    def after(self, request: Request) -> None:
        """Run between the server's answer and the client's seeing it."""


class _Open:
    def before(self, request: Request) -> None:
        pass

    def after(self, request: Request) -> None:
        pass


class Gate:
    """The gate, while its context lasts.

    Args:
        server: The server behind it.

    Attributes:
        rule: What becomes of requests; by default all pass.
        server: As given.
    """

    def __init__(self, server: S3Server) -> None:
        self.rule: Rule = _Open()
        self.server = server
        self._target = urlsplit(server.endpoint_url).netloc
        self._signer = S3SigV4Auth(Credentials(server.access_key, server.secret_key), "s3", "us-east-1")
        self._listener = _Server(self)

    def __enter__(self) -> Self:
        threading.Thread(target=self._listener.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown()
        self._listener.server_close()

    @property
    def endpoint_url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._listener.server_port}"

    @contextlib.contextmanager
    def ruled_by(self, rule: Rule) -> Iterator[None]:
        """Let a rule decide for a while."""
        self.rule = rule
        try:
            yield
        finally:
            self.rule = _Open()

    def signed(self, method: str, path: str, headers: dict[str, str], body: bytes) -> dict[str, str]:
        """Return the headers that the server wants to see."""
        request = AWSRequest(method, f"http://{self._target}{path}", headers, body)
        self._signer.add_auth(request)
        return dict(request.headers.items())

    def connection(self) -> http.client.HTTPConnection:
        """Return a connection to the server."""
        return http.client.HTTPConnection(self._target, timeout=60)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.upstream = self.server.gate.connection()

    def finish(self) -> None:
        self.upstream.close()
        with contextlib.suppress(OSError):
            super().finish()

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except OSError:
            self.close_connection = True

    def pass_on(self) -> None:
        gate = self.server.gate
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        found = re.search(r"Credential=([^/]+)/", self.headers.get("authorization", ""))
        request = Request(self.command, self.path, found[1] if found else "")
        rule = gate.rule
        try:
            rule.before(request)
        except TurnedAway as why:
            text = f"<Error><Code>{why.code}</Code><Message>by the gate</Message></Error>".encode()
            self._answer(why.status, {"Content-Type": "application/xml"}, text)
            return
        if request.access_key == gate.server.access_key:
            headers = {n: v for n, v in self.headers.items() if n.lower() not in ("connection", "expect")}
        else:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _OWN}
            headers = gate.signed(self.command, self.path, headers, body)
        self.upstream.request(self.command, self.path, body, headers)
        answer = self.upstream.getresponse()
        content = answer.read()
        rule.after(request)
        kept = {n: v for n, v in answer.getheaders() if n.lower() not in ("transfer-encoding", "connection")}
        self._answer(answer.status, kept, content)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = pass_on  # noqa: N815 - names that http.server asks for

    def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
        headers = {name: value for name, value in headers.items() if name.lower() != "content-length"} | (
            {"Content-Length": next((v for n, v in headers.items() if n.lower() == "content-length"), "0")}
            if self.command == "HEAD"
            else {"Content-Length": str(len(content))}
        )
        lines = [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        self.wfile.write("\r\n".join(lines).encode() + (b"" if self.command == "HEAD" else content))

    def log_message(self, *_: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def __init__(self, gate: Gate) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.gate = gate

    def handle_error(self, *_: object) -> None:
        pass

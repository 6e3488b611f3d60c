"""An S3 that makes no objects: it answers every CompleteMultipartUpload as S3 would, after a given time.

    python benchmarks/null_server.py MILLISECONDS [AFTER SECONDS]

It prints its port and ends when its standard input does. It checks no signature, because it serves to measure
clients. Requests are delimited by their ``Content-Length``, which clients of S3 send. The records of jobs are
kept, see `record_server`. With AFTER and SECONDS it fails once: after AFTER completions it
resets all connections, and accepts no new ones for SECONDS.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from email.utils import formatdate
from functools import partial
from typing import cast

from record_server import KEPT, Asked, Records

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"

BODY = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n<CompleteMultipartUploadResult xmlns="'
    + NAMESPACE.encode()
    + b'"><Location>http://127.0.0.1/lake/%b</Location><Bucket>lake</Bucket><Key>%b</Key>'
    b"<ETag>&quot;3858f62230ac3c915f300c664312c11f-1&quot;</ETag></CompleteMultipartUploadResult>"
)
HEAD = (
    b"HTTP/1.1 200 OK\r\nDate: "
    + formatdate(usegmt=True).encode()
    + b"\r\nServer: null\r\nx-amz-request-id: 4442587FB7D0A2F9\r\nContent-Type: application/xml\r\n"
    b"Content-Length: %d\r\n\r\n%b"
)

KEPT_ID = f"uploadId={KEPT}".encode()


class Server:
    """State that connections share.

    Args:
        seconds: How long an answer to a completion takes.
        after: Completions after which the server is gone for a while; 0 if it stays.
        down: Seconds for which it is gone.

    Attributes:
        seconds: As given.
        records: The records of jobs.
        connections: The open connections.
    """

    def __init__(self, seconds: float, after: int, down: float) -> None:
        self.seconds = seconds
        self.records = Records()
        self.connections: set[asyncio.Transport] = set()
        self._left = after
        self._down = down
        self._listener: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, port: int = 0) -> int:
        """Begin to accept connections, and return the port."""
        loop = asyncio.get_running_loop()
        make = partial(Connection, self)
        self._listener = await loop.create_server(make, "127.0.0.1", port, backlog=1024)
        found: int = self._listener.sockets[0].getsockname()[1]
        return found

    def completed(self) -> None:
        """Count a completion, and begin the outage if it is time."""
        if self._left:
            self._left -= 1
            if not self._left:
                self._tasks.add(asyncio.get_running_loop().create_task(self._go_and_come_back()))

    async def _go_and_come_back(self) -> None:
        assert self._listener is not None
        port: int = self._listener.sockets[0].getsockname()[1]
        self._listener.close()
        for transport in list(self.connections):
            transport.abort()
        await asyncio.sleep(self._down)
        await self.listen(port)


class Connection(asyncio.Protocol):
    """One connection; its answers go out in the order of its requests.

    Args:
        server: The server that it belongs to.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._received = bytearray()
        self._wanted = 0
        self._answers: deque[bytes] = deque()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection."""
        self._transport = cast("asyncio.Transport", transport)
        self._server.connections.add(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's shape
        """Forget the connection."""
        if self._transport is not None:
            self._server.connections.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        """Answer every complete request."""
        self._received += data
        while len(self._received) >= self._wanted and (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._received[:end])
            _, _, rest = head.lower().partition(b"\r\ncontent-length:")
            self._wanted = end + 4 + int(rest.partition(b"\r\n")[0] or 0)
            if len(self._received) < self._wanted:
                if b"\r\nexpect:" in head.lower() and self._transport is not None:
                    self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                return
            body = bytes(self._received[end + 4 : self._wanted])
            del self._received[: self._wanted]
            self._wanted = 0
            self._take(head, body)

    def _take(self, head: bytes, content: bytes) -> None:
        method, target, _ = head.split(b" ", 2)
        path, _, query = target.partition(b"?")
        if method != b"POST" or not query.startswith(b"uploadId=") or query.startswith(KEPT_ID):
            headers = _headers(head)
            asked = Asked(method.decode(), target.decode(), headers, content)
            self._answers.append(self._server.records.answer(asked))
            self._answer()
            return
        key = path.removeprefix(b"/lake/")
        body = BODY % (key, key)
        self._answers.append(HEAD % (len(body), body))
        self._server.completed()
        if self._server.seconds:
            self._loop.call_later(self._server.seconds, self._answer)
        else:
            self._answer()

    def _answer(self) -> None:
        answer = self._answers.popleft()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(answer)


def _headers(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").split("\r\n")[1:]
    return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


async def serve(server: Server) -> None:
    """Serve until standard input ends."""
    print(await server.listen(), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def main() -> None:
    """Serve."""
    after, down = (int(sys.argv[2]), float(sys.argv[3])) if len(sys.argv) > 2 else (0, 0.0)
    asyncio.run(serve(Server(float(sys.argv[1]) / 1000, after, down)))
    os._exit(0)


if __name__ == "__main__":
    main()

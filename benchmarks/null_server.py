"""An S3 that stores nothing: it answers every CompleteMultipartUpload as S3 would, after a given time.

    python benchmarks/null_server.py MILLISECONDS

It prints its port and ends when its standard input does. It checks no signature: what it measures is the
client. Requests are told apart by their ``Content-Length``, as clients of S3 send them.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from email.utils import formatdate
from functools import partial
from typing import cast

__all__ = ["main"]

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


class Connection(asyncio.Protocol):
    """One connection; its answers go out in the order of its requests.

    Args:
        seconds: How long an answer takes.

    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._received = b""
        self._answers: deque[bytes] = deque()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Answer every request that has arrived whole."""
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = self._received[:end]
            _, _, rest = head.lower().partition(b"\r\ncontent-length:")
            length = int(rest.partition(b"\r\n")[0] or 0)
            if len(self._received) < end + 4 + length:
                return
            self._received = self._received[end + 4 + length :]
            key = head.split(b" ", 2)[1].partition(b"?")[0].removeprefix(b"/lake/")
            body = BODY % (key, key)
            self._answers.append(HEAD % (len(body), body))
            if self._seconds:
                self._loop.call_later(self._seconds, self._answer)
            else:
                self._answer()

    def _answer(self) -> None:
        answer = self._answers.popleft()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(answer)


async def serve(seconds: float) -> None:
    """Serve until standard input ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(partial(Connection, seconds), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


def main() -> None:
    """Serve."""
    asyncio.run(serve(float(sys.argv[1]) / 1000))
    os._exit(0)


if __name__ == "__main__":
    main()

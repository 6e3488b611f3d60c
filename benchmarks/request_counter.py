"""A proxy in front of an S3 server that counts the requests that pass it, and can delay each."""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit

#: S3's requests with a name of their own, by method and query.
_NAMED = (
    ("POST", "uploads", "initiate"),
    ("POST", "uploadId", "complete"),
    ("POST", "delete", "bulk delete"),
    ("PUT", "partNumber", "part"),
    ("DELETE", "uploadId", "abort"),
    ("GET", "uploads", "list uploads"),
    ("GET", "uploadId", "list parts"),
    ("GET", "list-type", "list"),
)


class RequestCounter:
    """Passes connections on, and counts the requests on them, while its context lasts.

    Args:
        endpoint_url: The server's address.
        latency: Seconds by which each request is delayed.

    Attributes:
        endpoint_url: The address of the proxy.
        seen: Requests since `take` was last called, by S3's name for them.
    """

    def __init__(self, endpoint_url: str, latency: float = 0.0) -> None:
        self._server = urlsplit(endpoint_url)
        self._latency = latency
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.endpoint_url = ""
        self.seen: Counter[str] = Counter()
        # Keeps the tasks of connections that neither side closes alive; the loop itself does not.
        self._served: set[asyncio.Task[None] | None] = set()

    def __enter__(self) -> Self:
        listener = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.endpoint_url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        # The clients' idle connections are still being served; to end them like this is no error to report.
        self._loop.set_exception_handler(lambda *_: None)
        if tasks := asyncio.all_tasks(self._loop):
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.wait(tasks))
        self._loop.close()

    def take(self) -> Counter[str]:
        """Return the requests so far, and start over."""
        seen, self.seen = self.seen, Counter()
        return seen

    async def _serve(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        self._served.add(asyncio.current_task())
        server, requests = await asyncio.open_connection(self._server.hostname, self._server.port)
        back = asyncio.create_task(_pump(server, answers))
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await client.readuntil(b"\r\n\r\n")
                self.seen[_kind(head)] += 1
                await asyncio.sleep(self._latency)
                requests.write(head)
                length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
                left = int(length[1]) if length else 0
                while left and (block := await client.read(min(left, 1 << 18))):
                    left -= len(block)
                    requests.write(block)
                    await requests.drain()
        requests.close()
        await back


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while block := await source.read(1 << 18):
            target.write(block)
            await target.drain()
    target.close()


def _kind(head: bytes) -> str:
    method, path = head.split(b" ", 2)[:2]
    words = {word.partition("=")[0] for word in urlsplit(path.decode()).query.split("&")}
    for of, word, name in _NAMED:
        if of == method.decode() and word in words:
            return name
    return method.decode()

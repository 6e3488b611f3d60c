"""Hundreds of kept-alive connections in one thread: libcurl's multi interface.

libcurl also signs: the same signature version 4 as botocore, to the byte (tests/store/test_curl.py compares
them), for a tenth of the time.
"""

from __future__ import annotations

import resource
import select
import time
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pycurl

from airflow_s3commit.store.line import Line, LineSettings

if TYPE_CHECKING:
    from botocore.credentials import ReadOnlyCredentials

    from airflow_s3commit.store.addresses import Address
    from airflow_s3commit.store.replies import Reply

__all__ = ["Lines", "is_able", "room_for_connections"]

#: From this libcurl on its signatures are known to be botocore's.
OLDEST = (8, 19, 0)


def is_able() -> bool:
    """Tell whether the libcurl at hand signs as it must."""
    return _version() >= OLDEST and "https" in pycurl.version_info()[8]


def room_for_connections(wanted: int) -> int:
    """Return how many connections this process may well open: at most half of its file descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft // 2))


#: What libcurl asks to be told of a socket, in the system's terms.
WAITED_FOR = {
    pycurl.POLL_IN: select.POLLIN,
    pycurl.POLL_OUT: select.POLLOUT,
    pycurl.POLL_INOUT: select.POLLIN | select.POLLOUT,
}


class Lines:
    """Exchanges under way, for one thread at a time. Connections outlive them, for the next ones.

    Args:
        settings: How connections are made.
        connections: How many connections are kept open.

    Attributes:
        busy: Exchanges under way.

    """

    def __init__(self, settings: LineSettings, connections: int) -> None:
        self._settings = settings
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_MAXCONNECTS, connections)
        # Not libcurl's own waiting, which is select(): that overlooks descriptors from 1024 on, which a
        # process with many open files has.
        self._poller: Any
        self._poller, self._per_second = _poller()
        # What is waited for at each socket; and the sockets at rest, which libcurl does not ask about now.
        self._watched: dict[int, int] = {}
        self._resting: set[int] = set()
        self._alarm: float | None = None
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._watch)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._set_alarm)
        self._free: defaultdict[str, list[Line]] = defaultdict(list)
        self._lines: dict[Any, Line] = {}
        self.busy = 0

    def start(
        self,
        of: object,
        operation: str,
        address: Address,
        keys: ReadOnlyCredentials,
        *,
        path: str,
        body: bytes = b"",
        header: str | None = None,
        limit: int | None = None,
    ) -> None:
        """Begin an exchange.

        Args:
            of: What `turn` returns its end with.
            operation: S3's name of the operation.
            address: How it is sent.
            keys: Whose it is.
            path: The key, and the query if there is one, as they stand in a URL.
            body: What a completion or a bulk delete sends.
            header: A header that this request alone has.
            limit: Bytes of a body that are read at most; None for no limit.

        """
        free = self._free[operation]
        line = free.pop() if free else self._new_line(operation)
        line.of, line.limit = of, limit
        if address is not line.address or keys is not line.keys or header is not None:
            line.sign_as(address, keys, header)
        handle = line.handle
        if line.has_body:
            handle.setopt(pycurl.POSTFIELDS, body)
        handle.setopt(pycurl.URL, address.url + path)
        self._multi.add_handle(handle)
        self.busy += 1

    def turn(self, seconds: float) -> list[tuple[Any, Reply | Exception]]:
        """Wait ``seconds`` at most for anything to happen, and return the exchanges that have ended."""
        multi, resting = self._multi, self._resting
        if self._alarm is not None:
            seconds = min(seconds, max(0.0, self._alarm - time.monotonic()))
        for descriptor, events in self._poller.poll(seconds * self._per_second):
            if events == select.POLLIN and descriptor not in resting:
                multi.socket_action(descriptor, pycurl.CSELECT_IN)
            else:
                self._tell(descriptor, events)
        if self._alarm is not None and self._alarm <= time.monotonic():
            self._alarm = None
            multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)
        ended: list[tuple[Any, Reply | Exception]] = []
        left = self.busy
        while left:
            left, good, bad = multi.info_read()
            for handle in good:
                line = self._release(handle)
                ended.append((line.of, line.reply()))
            for handle, code, message in bad:
                line = self._release(handle)
                ended.append((line.of, line.failure(code, message)))
        return ended

    def close(self) -> None:
        """Close all connections, also those that are in use."""
        for handle in self._lines:
            handle.close()
        self._multi.close()
        if hasattr(self._poller, "close"):
            self._poller.close()

    def _new_line(self, operation: str) -> Line:
        line = Line(operation, self._settings, self._free[operation])
        line.handle.setopt(pycurl.SOCKOPTFUNCTION, self._forget)
        self._lines[line.handle] = line
        return line

    def _tell(self, descriptor: int, events: int) -> None:
        """Tell libcurl what happened at a socket."""
        if descriptor in self._resting:
            # Nothing was asked: the store has closed a connection, which libcurl sees before its next use.
            self._resting.discard(descriptor)
            del self._watched[descriptor]
            # If libcurl closed it in this moment there is nothing to take out.
            with suppress(OSError):
                self._poller.unregister(descriptor)
            return
        # Errors and hang-ups are both: libcurl reads or writes, and finds out.
        ready = pycurl.CSELECT_IN if events & ~select.POLLOUT else 0
        if events & ~select.POLLIN:
            ready |= pycurl.CSELECT_OUT
        self._multi.socket_action(descriptor, ready)

    def _watch(self, events: int, descriptor: int, *_: object) -> None:
        """Do as libcurl asks: wait for a socket to become readable, writable or both, or no more.

        No more is only until the connection's next exchange, nearly always: its socket stays as it is,
        because to take it out and put it back is two calls of the system, a tenth of what an exchange costs.
        """
        if events == pycurl.POLL_REMOVE:
            self._resting.add(descriptor)
            return
        self._resting.discard(descriptor)
        if self._watched.get(descriptor) == events:
            return
        self._watched[descriptor] = events
        try:
            self._poller.register(descriptor, WAITED_FOR[events])
        except FileExistsError:
            self._poller.modify(descriptor, WAITED_FOR[events])

    def _forget(self, descriptor: int, _: int) -> int:
        """Take note of a new socket: what is known of its number is of one that was closed."""
        self._resting.discard(descriptor)
        self._watched.pop(descriptor, None)
        return int(pycurl.SOCKOPT_OK)

    def _set_alarm(self, milliseconds: int) -> None:
        self._alarm = None if milliseconds < 0 else time.monotonic() + milliseconds / 1000

    def _release(self, handle: Any) -> Line:
        line = self._lines[handle]
        self._multi.remove_handle(handle)
        self.busy -= 1
        line.free.append(line)
        return line


def _poller() -> tuple[Any, int]:
    """Return what waits for sockets, and in how many parts of a second."""
    return (select.epoll(), 1) if hasattr(select, "epoll") else (select.poll(), 1000)


def _version() -> tuple[int, ...]:
    number: int = pycurl.version_info()[2]
    return number >> 16, number >> 8 & 0xFF, number & 0xFF

"""Hundreds of kept-alive connections in one thread: libcurl's multi interface.

libcurl also signs: the same signature version 4 as botocore, to the byte (tests/store/test_curl.py compares
them), for a tenth of the time.
"""

from __future__ import annotations

import resource
import select
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from ssl import CertificateError
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pycurl
from botocore.exceptions import ConnectionClosedError, EndpointConnectionError, ReadTimeoutError, SSLError

from airflow_s3commit.store.replies import Reply

if TYPE_CHECKING:
    from collections.abc import Iterator

    from botocore.credentials import ReadOnlyCredentials

    from airflow_s3commit.store.addresses import Address

__all__ = ["LineSettings", "Lines", "is_able", "room_for_connections"]

#: From this libcurl on its signatures are known to be botocore's.
OLDEST = (8, 19, 0)

NOT_TRUSTED = frozenset({pycurl.E_PEER_FAILED_VERIFICATION, pycurl.E_SSL_CACERT_BADFILE})

#: Operations that send a document.
WITH_BODY = frozenset({"CompleteMultipartUpload", "DeleteObjects"})

#: Options that make a request's method, by S3's name of the operation.
METHODS: dict[str, tuple[tuple[int, Any], ...]] = {
    "CompleteMultipartUpload": ((pycurl.POST, True),),
    "AbortMultipartUpload": ((pycurl.CUSTOMREQUEST, "DELETE"),),
    "HeadObject": ((pycurl.NOBODY, True),),
    "GetObject": ((pycurl.HTTPGET, True),),
    "DeleteObjects": ((pycurl.POST, True),),
}


@dataclass(frozen=True, slots=True)
class LineSettings:
    """How connections are made.

    Attributes:
        authorities: File or folder with the authorities to trust; None not to check certificates.
        connect_seconds: How long connecting may take.
        silent_seconds: How long a store may say nothing; some seconds more if it was sent a body, because
            libcurl averages.

    """

    authorities: str | None
    connect_seconds: float
    silent_seconds: float


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
        self._alarm: float | None = None
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._watch)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._set_alarm)
        self._free: defaultdict[str, list[_Line]] = defaultdict(list)
        self._lines: dict[Any, _Line] = {}
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

        """
        free = self._free[operation]
        line = free.pop() if free else self._new_line(operation)
        line.of = of
        if address is not line.address or keys is not line.keys or header is not None:
            line.sign_as(address, keys, header)
        if operation in WITH_BODY:
            line.handle.setopt(pycurl.POSTFIELDS, body)
        line.handle.setopt(pycurl.URL, address.url + path)
        self._multi.add_handle(line.handle)
        self.busy += 1

    def turn(self, seconds: float) -> list[tuple[Any, Reply | Exception]]:
        """Wait ``seconds`` at most for anything to happen, and return the exchanges that have ended."""
        multi = self._multi
        if self._alarm is not None:
            seconds = min(seconds, max(0.0, self._alarm - time.monotonic()))
        for descriptor, events in self._poller.poll(seconds * self._per_second):
            # Errors and hang-ups are both: libcurl reads or writes, and finds out.
            ready = pycurl.CSELECT_IN if events & ~select.POLLOUT else 0
            if events & ~select.POLLIN:
                ready |= pycurl.CSELECT_OUT
            multi.socket_action(descriptor, ready)
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

    def _new_line(self, operation: str) -> _Line:
        line = _Line(operation, self._settings)
        self._lines[line.handle] = line
        return line

    def _watch(self, events: int, descriptor: int, *_: object) -> None:
        """Do as libcurl asks: wait for a socket to become readable, writable or both, or no more."""
        if events == pycurl.POLL_REMOVE:
            self._poller.unregister(descriptor)
            return
        try:
            self._poller.register(descriptor, WAITED_FOR[events])
        except FileExistsError:
            self._poller.modify(descriptor, WAITED_FOR[events])

    def _set_alarm(self, milliseconds: int) -> None:
        self._alarm = None if milliseconds < 0 else time.monotonic() + milliseconds / 1000

    def _release(self, handle: Any) -> _Line:
        line = self._lines[handle]
        self._multi.remove_handle(handle)
        self.busy -= 1
        self._free[line.operation].append(line)
        return line


class _Line:
    """One handle of libcurl, which serves one operation; what stays the same is set only once."""

    __slots__ = ("_body", "_head", "address", "handle", "keys", "of", "operation")

    def __init__(self, operation: str, settings: LineSettings) -> None:
        self.operation = operation
        self.of: object = None
        self.address: Address | None = None
        self.keys: ReadOnlyCredentials | None = None
        self._head: list[bytes] = []
        self._body: list[bytes] = []
        self.handle = handle = pycurl.Curl()
        for option, value in (*_options(settings), *METHODS[operation]):
            handle.setopt(option, value)
        handle.setopt(pycurl.HEADERFUNCTION, self._head.append)
        handle.setopt(pycurl.WRITEFUNCTION, self._body.append)

    def reply(self) -> Reply:
        head, body = self._head, self._body
        reply = Reply(
            self.handle.getinfo(pycurl.RESPONSE_CODE),
            b"".join(head),
            body[0] if len(body) == 1 else b"".join(body),
        )
        head.clear()
        body.clear()
        return reply

    def failure(self, code: int, message: str) -> Exception:
        """Return botocore's error for one of libcurl's."""
        self._head.clear()
        self._body.clear()
        url = _place(self.handle.getinfo(pycurl.EFFECTIVE_URL))
        if code in NOT_TRUSTED:
            return SSLError(endpoint_url=url, error=CertificateError("CERTIFICATE_VERIFY_FAILED"))
        if self.handle.getinfo(pycurl.REQUEST_SIZE) == 0:
            # Not a byte of the request went out, also not on a connection that was tried before this one.
            return EndpointConnectionError(endpoint_url=url, error=message)
        if code == pycurl.E_OPERATION_TIMEDOUT:
            return ReadTimeoutError(endpoint_url=url, error=message)
        return ConnectionClosedError(endpoint_url=url, error=message)

    def sign_as(self, address: Address, keys: ReadOnlyCredentials, header: str | None) -> None:
        handle = self.handle
        headers = [*address.headers, "Accept:", "Expect:"]
        if header is not None:
            headers.append(header)
        if self.operation in WITH_BODY:
            headers.append("Content-Type: application/xml")
        if address.url.startswith("https:"):
            # The connection protects the body. Without TLS libcurl signs its hash.
            headers.append("X-Amz-Content-SHA256: UNSIGNED-PAYLOAD")
        if keys.token:
            headers.append(f"X-Amz-Security-Token: {keys.token}")
        handle.setopt(pycurl.HTTPHEADER, headers)
        handle.setopt(pycurl.USERAGENT, address.agent)
        handle.setopt(pycurl.AWS_SIGV4, f"aws:amz:{address.region}:s3")
        handle.setopt(pycurl.USERNAME, keys.access_key)
        handle.setopt(pycurl.PASSWORD, keys.secret_key)
        self.address, self.keys = address, keys


def _options(settings: LineSettings) -> Iterator[tuple[int, Any]]:
    yield pycurl.NOSIGNAL, True
    yield pycurl.NOPROXY, "*"
    yield pycurl.PROXY, ""
    yield pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1
    yield pycurl.TCP_NODELAY, True
    yield pycurl.TCP_KEEPALIVE, True
    yield pycurl.CONNECTTIMEOUT_MS, int(settings.connect_seconds * 1000)
    yield pycurl.LOW_SPEED_LIMIT, 1
    yield pycurl.LOW_SPEED_TIME, max(1, round(settings.silent_seconds))
    if settings.authorities is None:
        yield pycurl.SSL_VERIFYPEER, False
        yield pycurl.SSL_VERIFYHOST, 0
    elif Path(settings.authorities).is_dir():
        yield pycurl.CAPATH, settings.authorities
        yield pycurl.CAINFO, None
    else:
        yield pycurl.CAINFO, settings.authorities


def _poller() -> tuple[Any, int]:
    """Return what waits for sockets, and in how many parts of a second."""
    return (select.epoll(), 1) if hasattr(select, "epoll") else (select.poll(), 1000)


def _place(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _version() -> tuple[int, ...]:
    number: int = pycurl.version_info()[2]
    return number >> 16, number >> 8 & 0xFF, number & 0xFF

"""Hundreds of kept-alive connections in one thread, through libcurl's multi interface.

libcurl also signs, with exactly the same signature version 4 as botocore, in a tenth of the time
(tests/store/s3/curl/test_connections.py compares them).
"""

from __future__ import annotations

import resource
import select
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pycurl
from botocore.httpsession import get_cert_path

from airflow_s3commit.store.s3.curl.messages import Response

if TYPE_CHECKING:
    from collections.abc import Iterator

    from botocore.credentials import ReadOnlyCredentials
    from mypy_boto3_s3.client import S3Client

    from airflow_s3commit.store.s3.curl.endpoints import Endpoint

#: Operations with a request body.
WITH_BODY = frozenset({"CompleteMultipartUpload", "DeleteObjects"})

#: Operations whose response headers are not needed. They come by the thousand, and a callback per header line
#: costs a thirtieth of the whole request.
WITHOUT_HEADERS = frozenset({"CompleteMultipartUpload", "AbortMultipartUpload"})

#: The libcurl options that set the HTTP method, by S3's name of the operation.
METHODS: dict[str, tuple[tuple[int, Any], ...]] = {
    "CompleteMultipartUpload": ((pycurl.POST, True),),
    "AbortMultipartUpload": ((pycurl.CUSTOMREQUEST, "DELETE"),),
    "HeadObject": ((pycurl.NOBODY, True),),
    "GetObject": ((pycurl.HTTPGET, True),),
    "DeleteObjects": ((pycurl.POST, True),),
}


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """How connections are made.

    Attributes:
        authorities: File with the authorities to trust; None not to check certificates.
        connect_seconds: How long connecting may take.
        silent_seconds: How long a store may send nothing; some seconds more after a request with a body,
            because libcurl averages.
        attempt_seconds: How long one attempt may take in total: a store that trickles bytes would otherwise
            hold a connection for ever.

    """

    authorities: str | None
    connect_seconds: float
    silent_seconds: float
    attempt_seconds: float


class Connection:
    """A libcurl handle for one operation. Options that do not change are set once.

    Args:
        operation: S3's name of the operation.
        settings: How connections are made.
        free: The list it returns to when its request ends.

    Attributes:
        handle: The libcurl handle.
        has_body: Whether its requests have a body.
        free: The list it returns to when its request ends.
        tag: The caller's tag of the request in flight.
        limit: Maximum bytes of the response's body to read; None for no limit.
        endpoint: Where its last request was sent.
        keys: The credentials that signed it.

    """

    __slots__ = (
        "_body",
        "_head",
        "_size",
        "endpoint",
        "free",
        "handle",
        "has_body",
        "keys",
        "limit",
        "tag",
    )

    def __init__(self, operation: str, settings: ConnectionSettings, free: list[Connection]) -> None:
        self.has_body = operation in WITH_BODY
        self.free = free
        self.tag: object = None
        self.limit: int | None = None
        self.endpoint: Endpoint | None = None
        self.keys: ReadOnlyCredentials | None = None
        self._head: list[bytes] = []
        self._body: list[bytes] = []
        self._size = 0
        self.handle = handle = pycurl.Curl()
        for option, value in (*_options(settings), *METHODS[operation]):
            handle.setopt(option, value)
        if operation not in WITHOUT_HEADERS:
            handle.setopt(pycurl.HEADERFUNCTION, self._head.append)
        # Only GETs are limited in size: a check per piece would cost each of a million completions.
        handle.setopt(pycurl.WRITEFUNCTION, self._keep if operation == "GetObject" else self._body.append)

    def response(self, *, is_whole: bool) -> Response | None:
        """Return the response, or None if it was cut off; make room for the next one."""
        head, body = self._head, self._body
        response = None
        if is_whole:
            status = self.handle.getinfo(pycurl.RESPONSE_CODE)
            response = Response(status, b"".join(head), body[0] if len(body) == 1 else b"".join(body))
        elif self.handle.getinfo(pycurl.REQUEST_SIZE) == 0:
            # No byte of the request was sent, on this connection or one tried before it.
            response = Response(0, b"", b"")
        head.clear()
        body.clear()
        self._size = 0
        return response

    def _keep(self, piece: bytes) -> int:
        """Buffer a piece of the body; return 0 beyond the limit, which makes libcurl end the transfer."""
        if not self._size and self.limit is not None and _content_length(self._head) > self.limit:
            # Before the first byte is kept: an object that is too long costs only its headers.
            return 0
        self._size += len(piece)
        if self.limit is not None and self._size > self.limit:
            return 0
        self._body.append(piece)
        return len(piece)

    def authorize(self, endpoint: Endpoint, keys: ReadOnlyCredentials, header: str | None) -> None:
        """Set the headers and credentials of the next requests; ``header`` is for the next one only."""
        handle = self.handle
        headers = [*endpoint.headers, "Accept:", "Expect:"]
        if header is not None:
            headers.append(header)
        if self.has_body:
            headers.append("Content-Type: application/xml")
        if endpoint.url.startswith("https:"):
            # The connection protects the body. Without TLS libcurl signs its hash.
            headers.append("X-Amz-Content-SHA256: UNSIGNED-PAYLOAD")
        if keys.token:
            headers.append(f"X-Amz-Security-Token: {keys.token}")
        handle.setopt(pycurl.HTTPHEADER, headers)
        handle.setopt(pycurl.USERAGENT, endpoint.agent)
        handle.setopt(pycurl.AWS_SIGV4, f"aws:amz:{endpoint.region}:s3")
        handle.setopt(pycurl.USERNAME, keys.access_key)
        # As bytes: pycurl takes ASCII text only, and botocore signs with the UTF-8 too.
        handle.setopt(pycurl.PASSWORD, (keys.secret_key or "").encode())
        self.endpoint, self.keys = endpoint, keys


def _options(settings: ConnectionSettings) -> Iterator[tuple[int, Any]]:
    yield pycurl.NOSIGNAL, True
    yield pycurl.NOPROXY, "*"
    yield pycurl.PROXY, ""
    yield pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1
    yield pycurl.TCP_NODELAY, True
    yield pycurl.TCP_KEEPALIVE, True
    yield pycurl.CONNECTTIMEOUT_MS, int(settings.connect_seconds * 1000)
    yield pycurl.LOW_SPEED_LIMIT, 1
    yield pycurl.LOW_SPEED_TIME, max(1, round(settings.silent_seconds))
    yield pycurl.TIMEOUT_MS, int(settings.attempt_seconds * 1000)
    if settings.authorities is None:
        yield pycurl.SSL_VERIFYPEER, False
        yield pycurl.SSL_VERIFYHOST, 0
    else:
        yield pycurl.CAINFO, settings.authorities


def _content_length(head: list[bytes]) -> int:
    """Return the Content-Length of the last response in a block of headers; 0 if it has none."""
    for line in reversed(head):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length" and value.strip().isdigit():
            return int(value)
    return 0


#: The first libcurl whose signatures are known to equal botocore's.
MIN_VERSION = (8, 19, 0)


def is_supported() -> bool:
    """Return whether this libcurl speaks TLS and signs as botocore does."""
    return _version() >= MIN_VERSION and "https" in pycurl.version_info()[8]


def max_connections(wanted: int) -> int:
    """Return how many connections to open at most: no more than half of the process's file descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft // 2))


#: What the time before each wait counts for in `Connections.idle`: about the last fifty waits decide.
FADING = 0.98

#: The poll events of libcurl's.
POLL_EVENTS = {
    pycurl.POLL_IN: select.POLLIN,
    pycurl.POLL_OUT: select.POLLOUT,
    pycurl.POLL_INOUT: select.POLLIN | select.POLLOUT,
}


class Connections:
    """A pool of connections for one thread at a time; they stay open between requests.

    Args:
        settings: How connections are made.
        connections: How many connections are kept open.

    Attributes:
        in_flight: Requests in flight.
        idle: The share of its recent time for which the thread waited for the store, from 0 to 1.

    """

    def __init__(self, settings: ConnectionSettings, connections: int) -> None:
        self._settings = settings
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_MAXCONNECTS, connections)
        # Not libcurl's own select(), which fails on file descriptors from 1024 on.
        self._poller: Any
        self._poller, self._per_second = _poller()
        # The registered events of each socket, and the sockets that libcurl does not ask about at present.
        self._events: dict[int, int] = {}
        self._idle_sockets: set[int] = set()
        self._timer: float | None = None
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._set_events)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._set_timer)
        self._free: defaultdict[str, list[Connection]] = defaultdict(list)
        self._connections: dict[Any, Connection] = {}
        self.in_flight = 0
        self.idle = 1.0
        self._last_wait = time.monotonic()
        self._waited = self._passed = 0.0

    def start(
        self,
        tag: object,
        operation: str,
        endpoint: Endpoint,
        keys: ReadOnlyCredentials,
        *,
        path: str,
        body: bytes = b"",
        header: str | None = None,
        limit: int | None = None,
    ) -> None:
        """Send a request; `wait` returns its response.

        Args:
            tag: Returned by `wait` with the response.
            operation: S3's name of the operation.
            endpoint: Where it is sent.
            keys: The credentials to sign it with.
            path: The key, and the query if there is one, quoted for a URL.
            body: The body of a completion or a bulk delete.
            header: A header of this request only.
            limit: Maximum bytes of the response's body to read; None for no limit.

        """
        if not self.in_flight:
            # The time since the last run says nothing about this one.
            self._last_wait = time.monotonic()
        free = self._free[operation]
        connection = free.pop() if free else self._new_connection(operation)
        connection.tag, connection.limit = tag, limit
        if endpoint is not connection.endpoint or keys is not connection.keys or header is not None:
            connection.authorize(endpoint, keys, header)
        handle = connection.handle
        if connection.has_body:
            handle.setopt(pycurl.POSTFIELDS, body)
        handle.setopt(pycurl.URL, endpoint.url + path)
        self._multi.add_handle(handle)
        self.in_flight += 1

    def wait(self, seconds: float) -> list[tuple[Any, Response | None]]:
        """Wait at most ``seconds`` for anything to happen; return the ended requests' tags and responses.

        None stands for a response that did not come, or not whole.
        """
        multi, idle = self._multi, self._idle_sockets
        if self._timer is not None:
            seconds = min(seconds, max(0.0, self._timer - time.monotonic()))
        for descriptor, events in self._poll(seconds):
            if events == select.POLLIN and descriptor not in idle:
                multi.socket_action(descriptor, pycurl.CSELECT_IN)
            else:
                self._notify(descriptor, events)
        if self._timer is not None and self._timer <= time.monotonic():
            self._timer = None
            multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)
        ended: list[tuple[Any, Response | None]] = []
        left = self.in_flight
        while left:
            left, good, bad = multi.info_read()
            for handle in good:
                connection = self._release(handle)
                ended.append((connection.tag, connection.response(is_whole=True)))
            for handle, _, _ in bad:
                connection = self._release(handle)
                ended.append((connection.tag, connection.response(is_whole=False)))
        return ended

    def close(self) -> None:
        """Close all connections, including those in use."""
        for handle in self._connections:
            handle.close()
        self._multi.close()
        if hasattr(self._poller, "close"):
            self._poller.close()

    def _poll(self, seconds: float) -> list[tuple[int, int]]:
        """Wait for sockets, and update `idle`."""
        began = time.monotonic()
        events: list[tuple[int, int]] = self._poller.poll(seconds * self._per_second)
        ended = time.monotonic()
        self._waited = FADING * self._waited + ended - began
        self._passed = FADING * self._passed + ended - self._last_wait
        self._last_wait = ended
        self.idle = self._waited / self._passed if self._passed else 1.0
        return events

    def _new_connection(self, operation: str) -> Connection:
        connection = Connection(operation, self._settings, self._free[operation])
        connection.handle.setopt(pycurl.SOCKOPTFUNCTION, self._socket_opened)
        self._connections[connection.handle] = connection
        return connection

    def _notify(self, descriptor: int, events: int) -> None:
        """Report a socket's events to libcurl."""
        if descriptor in self._idle_sockets:
            # The store closed an idle connection; libcurl notices before it uses it again.
            self._idle_sockets.discard(descriptor)
            del self._events[descriptor]
            # libcurl may have closed it at the same moment.
            with suppress(OSError):
                self._poller.unregister(descriptor)
            return
        # On errors and hang-ups libcurl reads and writes, and finds out.
        ready = pycurl.CSELECT_IN if events & ~select.POLLOUT else 0
        if events & ~select.POLLIN:
            ready |= pycurl.CSELECT_OUT
        self._multi.socket_action(descriptor, ready)

    def _set_events(self, events: int, descriptor: int, *_: object) -> None:
        """Start or stop polling a socket for the events that libcurl asks for.

        A socket that libcurl lets go stays registered: it is nearly always used again by the connection's
        next request, and two system calls are a tenth of a request's cost.
        """
        if events == pycurl.POLL_REMOVE:
            self._idle_sockets.add(descriptor)
            return
        self._idle_sockets.discard(descriptor)
        if self._events.get(descriptor) == events:
            return
        self._events[descriptor] = events
        try:
            self._poller.register(descriptor, POLL_EVENTS[events])
        except FileExistsError:
            self._poller.modify(descriptor, POLL_EVENTS[events])

    def _socket_opened(self, descriptor: int, _: int) -> int:
        """Forget the registration of a closed socket with the same number as a new one."""
        self._idle_sockets.discard(descriptor)
        self._events.pop(descriptor, None)
        return int(pycurl.SOCKOPT_OK)

    def _set_timer(self, milliseconds: int) -> None:
        self._timer = None if milliseconds < 0 else time.monotonic() + milliseconds / 1000

    def _release(self, handle: Any) -> Connection:
        connection = self._connections[handle]
        self._multi.remove_handle(handle)
        self.in_flight -= 1
        connection.free.append(connection)
        return connection


def _poller() -> tuple[Any, int]:
    """Return the system's poller, and its time units per second."""
    return (select.epoll(), 1) if hasattr(select, "epoll") else (select.poll(), 1000)


def _version() -> tuple[int, ...]:
    number: int = pycurl.version_info()[2]
    return number >> 16, number >> 8 & 0xFF, number & 0xFF


#: Seconds used where there is no timeout: a day.
NO_TIMEOUT = 86_400.0

#: An attempt may take the connect timeout and this many read timeouts. By default five minutes: enough for
#: the largest object read, a pendingset of 50 MiB, at 170 kB per second.
SILENCES = 5


class UnsupportedClient(Exception):
    """The fast path cannot replace this boto3 client; the message says why."""


def connection_settings(client: S3Client) -> ConnectionSettings:
    """Return a client's connection settings.

    Raises:
        Unfit: The client has settings that libcurl is not given, or libcurl is too old.

    """
    config: Any = client.meta.config
    if not is_supported():
        raise UnsupportedClient("this libcurl is too old")
    if config.proxies or config.client_cert:
        raise UnsupportedClient("it has a proxy or a certificate of its own")
    # There is no public attribute. If this one goes away, so does the fast path, and nothing else.
    session = getattr(getattr(client, "_endpoint", None), "http_session", None)
    verify = getattr(session, "_verify", None)
    if verify is None:
        raise UnsupportedClient("its authorities are not known")
    authorities = get_cert_path(verify) if verify else None
    connect, silent = _seconds(config.connect_timeout), _seconds(config.read_timeout)
    return ConnectionSettings(authorities, connect, silent, connect + SILENCES * silent)


def _seconds(timeout: float | None) -> float:
    return NO_TIMEOUT if timeout is None else float(timeout)

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
from typing import TYPE_CHECKING, Any

import pycurl
from botocore.httpsession import get_cert_path
from botocore.utils import get_environ_proxies

from airflow_s3commit.store.base import Complete, Get
from airflow_s3commit.store.s3.curl.messages import OPERATIONS, Response, SingleCall, part_list, path_of

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

    from airflow_s3commit.store.s3.curl.messages import FastCall
    from airflow_s3commit.store.s3.curl.routes import Route

#: The libcurl options of each operation. The headers of responses to a completion or an abort, which come by
#: the thousand, are not read: a callback for each costs a thirtieth of the whole request.
METHODS: dict[str, tuple[int, Any]] = {
    "CompleteMultipartUpload": (pycurl.POST, True),
    "AbortMultipartUpload": (pycurl.CUSTOMREQUEST, "DELETE"),
    "HeadObject": (pycurl.NOBODY, True),
    "GetObject": (pycurl.HTTPGET, True),
    "UploadPart": (pycurl.POST, True),
}

#: Maximum bytes of a response to a completion or an abort.
LONGEST_RESULT = 1 << 16

#: The first libcurl whose signatures are known to equal botocore's.
MIN_VERSION = (8, 19, 0)

#: Seconds used where there is no timeout: a day.
NO_TIMEOUT = 86_400.0

#: An attempt may take the connect timeout and this many read timeouts, because a store that trickles bytes
#: would otherwise hold a connection for ever. By default five minutes: enough for the largest object read, a
#: pendingset of 50 MiB, at 170 kB per second.
SILENCES = 5


class UnsupportedClient(Exception):
    """The fast path cannot replace this boto3 client; the message says why."""


def connection_options(client: S3Client) -> dict[int, Any]:
    """Return the libcurl options that make connections as a client makes them.

    Raises:
        UnsupportedClient: The client has settings that libcurl is not given, or libcurl is too old.
    """
    if not hasattr(select, "epoll"):
        raise UnsupportedClient("this system has no epoll")
    config: Any = client.meta.config
    number: int = pycurl.version_info()[2]
    version = (number >> 16, number >> 8 & 0xFF, number & 0xFF)
    if version < MIN_VERSION or "https" not in pycurl.version_info()[8]:
        raise UnsupportedClient("this libcurl is too old, or has no TLS")
    if config.proxies or config.client_cert or get_environ_proxies(client.meta.endpoint_url):
        raise UnsupportedClient("it has a proxy or a certificate of its own")
    # There is no public attribute. If this one goes away, so does the fast path, and nothing else.
    session = getattr(getattr(client, "_endpoint", None), "http_session", None)
    verify = getattr(session, "_verify", None)
    if verify is None:
        raise UnsupportedClient("its authorities are not known")
    connect, silent = config.connect_timeout or NO_TIMEOUT, config.read_timeout or NO_TIMEOUT
    return {
        pycurl.NOSIGNAL: True,
        pycurl.PROXY: "",
        pycurl.HTTP_VERSION: pycurl.CURL_HTTP_VERSION_1_1,
        pycurl.TCP_NODELAY: True,
        pycurl.TCP_KEEPALIVE: True,
        pycurl.CONNECTTIMEOUT_MS: int(connect * 1000),
        # A silent store. It may be silent some seconds longer after a request's body: libcurl averages.
        pycurl.LOW_SPEED_LIMIT: 1,
        pycurl.LOW_SPEED_TIME: max(1, round(silent)),
        pycurl.TIMEOUT_MS: int((connect + SILENCES * silent) * 1000),
        pycurl.SSL_VERIFYPEER: bool(verify),
        pycurl.SSL_VERIFYHOST: 2 if verify else 0,
    } | ({pycurl.CAINFO: get_cert_path(verify)} if verify else {})


def max_connections(wanted: int) -> int:
    """Return how many connections to open at most: no more than half of the process's file descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft // 2))


class Connection:
    """A libcurl handle for one operation. Options that do not change are set once.

    Args:
        operation: S3's name of the operation.
        options: The libcurl options of all connections.

    Attributes:
        handle: The libcurl handle.
        free: The list it returns to when its request ends.
        tag: The caller's tag of the request in flight.
        route: Where its last request was sent, and how it was signed.
    """

    __slots__ = ("_body", "_head", "_headers", "_lines", "free", "handle", "route", "tag")

    def __init__(self, operation: str, options: dict[int, Any], free: list[Connection]) -> None:
        self.free = free
        self.tag: object = None
        self.route: Route | None = None
        self._head: list[bytes] = []
        self._body: list[bytes] = []
        self._headers = ["Accept:", "Expect:"]
        self._lines: list[str] = []
        self.handle = handle = pycurl.Curl()
        for option, value in options.items():
            handle.setopt(option, value)
        handle.setopt(*METHODS[operation])
        handle.setopt(pycurl.WRITEFUNCTION, self._body.append)
        if operation in ("HeadObject", "GetObject", "UploadPart"):
            handle.setopt(pycurl.HEADERFUNCTION, self._head.append)
        if operation not in ("HeadObject", "GetObject"):
            handle.setopt(pycurl.MAXFILESIZE, LONGEST_RESULT)
        if operation == "CompleteMultipartUpload":
            self._headers.append("Content-Type: application/xml")

    def prepare(self, tag: object, route: Route, call: FastCall | SingleCall) -> None:
        """Set the options of the next request."""
        self.tag, handle = tag, self.handle
        if route is not self.route:
            self._authorize(route)
        if isinstance(call, Complete):
            handle.setopt(pycurl.POSTFIELDS, part_list(call.etags))
        elif isinstance(call, Get):
            # libcurl compares it with the announced length, before the first byte, and with what comes.
            handle.setopt(pycurl.MAXFILESIZE_LARGE, 0 if call.limit is None else max(call.limit, 1))
        elif isinstance(call, SingleCall):
            handle.setopt(pycurl.CUSTOMREQUEST, "PUT" if call.upload_id else "POST")
            handle.setopt(pycurl.POSTFIELDS, call.body)
            # libcurl would name the media type of a form.
            own = [*call.headers, "Content-Type:"] if call.upload_id else call.headers
            handle.setopt(pycurl.HTTPHEADER, [*self._lines, *own])
        handle.setopt(pycurl.URL, route.url + path_of(call))

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
        return response

    def _authorize(self, route: Route) -> None:
        """Set the headers and credentials of further requests."""
        handle, keys = self.handle, route.keys
        self._lines = headers = [*route.headers, *self._headers]
        if route.url.startswith("https:"):
            # The connection protects the body. Without TLS libcurl signs its hash.
            headers.append("X-Amz-Content-SHA256: UNSIGNED-PAYLOAD")
        if keys.token:
            headers.append(f"X-Amz-Security-Token: {keys.token}")
        handle.setopt(pycurl.HTTPHEADER, headers)
        handle.setopt(pycurl.USERAGENT, route.agent)
        handle.setopt(pycurl.AWS_SIGV4, f"aws:amz:{route.region}:s3")
        handle.setopt(pycurl.USERNAME, keys.access_key)
        # As bytes: pycurl takes ASCII text only, and botocore signs with the UTF-8 too.
        handle.setopt(pycurl.PASSWORD, (keys.secret_key or "").encode())
        self.route = route


class Connections:
    """A pool of connections for one thread at a time; they stay open between requests.

    Args:
        options: The libcurl options of all connections.
        connections: How many connections are kept open.

    Attributes:
        has_waited: Whether the last `wait` had to wait for the store.
    """

    def __init__(self, options: dict[int, Any], connections: int) -> None:
        self._options = {**options, pycurl.SOCKOPTFUNCTION: self._forget}
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_MAXCONNECTS, connections)
        # Not libcurl's own select(), which fails on file descriptors from 1024 on.
        self._poller = select.epoll()
        # The registered events of each socket, and the sockets that libcurl does not ask about at present.
        self._events: dict[int, int] = {}
        self._idle: set[int] = set()
        self._timer: float | None = None
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._set_events)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._set_timer)
        self._free: defaultdict[str, list[Connection]] = defaultdict(list)
        self._busy: dict[Any, Connection] = {}
        self.has_waited = False

    @property
    def in_flight(self) -> int:
        """The number of requests in flight."""
        return len(self._busy)

    def start(self, tag: object, route: Route, call: FastCall) -> None:
        """Make a call; `wait` returns its tag with the response."""
        operation = OPERATIONS[type(call)]
        free = self._free[operation]
        connection = free.pop() if free else Connection(operation, self._options, free)
        self._busy[connection.handle] = connection
        connection.prepare(tag, route, call)
        self._multi.add_handle(connection.handle)

    def wait(self, seconds: float) -> list[tuple[Any, Response | None]]:
        """Wait at most ``seconds`` for anything to happen; return the ended requests' tags and responses.

        None stands for a response that did not come, or not whole.
        """
        multi = self._multi
        if self._timer is not None:
            seconds = min(seconds, max(0.0, self._timer - time.monotonic()))
        polled = self._poller.poll(0)
        self.has_waited = not polled
        for descriptor, events in polled or self._poller.poll(seconds):
            if descriptor in self._idle:
                # The store closed the connection; libcurl notices before it uses it again.
                self._forget(descriptor)
                continue
            # On errors and hang-ups libcurl reads and writes, and finds out.
            ready = pycurl.CSELECT_IN if events & ~select.EPOLLOUT else 0
            multi.socket_action(descriptor, ready | (pycurl.CSELECT_OUT if events & ~select.EPOLLIN else 0))
        if self._timer is not None and self._timer <= time.monotonic():
            self._timer = None
            multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)
        ended: list[tuple[Any, Response | None]] = []
        left = self.in_flight
        while left:
            left, good, bad = multi.info_read()
            ended.extend(self._release(handle, is_whole=True) for handle in good)
            ended.extend(self._release(handle, is_whole=False) for handle, *_ in bad)
        return ended

    def close(self) -> None:
        """Close all connections, including those in use."""
        self._multi.close()
        self._poller.close()

    def _release(self, handle: Any, *, is_whole: bool) -> tuple[Any, Response | None]:
        connection = self._busy.pop(handle)
        self._multi.remove_handle(handle)
        connection.free.append(connection)
        return connection.tag, connection.response(is_whole=is_whole)

    def _set_events(self, events: int, descriptor: int, *_: object) -> None:
        """Start or stop polling a socket for the events that libcurl asks for.

        A socket that libcurl lets go stays registered: it is nearly always used again by the connection's
        next request, and two system calls are a tenth of a request's cost.
        """
        if events == pycurl.POLL_REMOVE:
            self._idle.add(descriptor)
            return
        self._idle.discard(descriptor)
        if self._events.get(descriptor) != events:
            self._events[descriptor] = events
            wanted = select.EPOLLIN if events & pycurl.POLL_IN else 0
            wanted |= select.EPOLLOUT if events & pycurl.POLL_OUT else 0
            try:
                self._poller.register(descriptor, wanted)
            except FileExistsError:
                self._poller.modify(descriptor, wanted)

    def _forget(self, descriptor: int, _: int = 0) -> int:
        """Stop polling a socket, if it still exists; called with its number when a new one has it, too."""
        self._idle.discard(descriptor)
        if self._events.pop(descriptor, None) is not None:
            with suppress(OSError):
                self._poller.unregister(descriptor)
        return int(pycurl.SOCKOPT_OK)

    def _set_timer(self, milliseconds: int) -> None:
        self._timer = None if milliseconds < 0 else time.monotonic() + milliseconds / 1000

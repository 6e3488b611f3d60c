"""HTTP requests on hundreds of kept-alive connections in one thread, through libcurl, which also signs them.

Its signatures of version 4 equal botocore's, and take a tenth of the time
(tests/store/s3/test_connections.py compares them).
"""

from __future__ import annotations

import resource
import select
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pycurl
from botocore.httpsession import get_cert_path
from botocore.utils import get_environ_proxies
from msgspec import Struct

from airflow_s3commit.store.s3.config import UnsupportedClient

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from mypy_boto3_s3.client import S3Client

#: The first libcurl whose signatures are known to equal botocore's: 8.19.0.
_MIN_VERSION = 0x081300

#: An attempt may take the connect timeout and this many read timeouts, because a store that trickles bytes
#: would otherwise hold a connection for ever. By default five minutes: enough for the largest object read, a
#: pendingset of 50 MiB, at 170 kB per second.
_SILENCES = 5

# libcurl's events (none, in, out, both) as epoll's, which have the same numbers as poll's.
_EVENTS = (0, select.POLLIN, select.POLLOUT, select.POLLIN | select.POLLOUT)

# Statuses of our own: nothing of the request was sent; the response did not come, or not whole.
_UNSENT, _LOST = 0, 599


class Response(Struct, frozen=True, gc=False):
    """One HTTP response; ``head`` is the status line and the headers, empty where nobody needs them."""

    status: int
    head: bytes = b""
    body: bytes = b""

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the last response in ``head``, by name in lower case."""
        block = self.head.rstrip(b"\r\n").rpartition(b"\r\n\r\n")[2].decode("latin-1")
        pairs = (line.partition(":") for line in block.split("\r\n")[1:])
        return {name.strip().lower(): value.strip() for name, _, value in pairs}


@dataclass(frozen=True, slots=True)
class Route:
    """Where and how one operation on one bucket is sent: the URL up to the key, and options of libcurl."""

    url: str
    options: dict[int, Any] = field(repr=False)


def connection_options(client: S3Client) -> dict[int, Any]:
    """Return the libcurl options for connections like those of a boto3 client.

    Raises `UnsupportedClient` if the client, libcurl or the system does not suit; the message says why.
    """
    config: Any = client.meta.config
    if not hasattr(select, "epoll") or pycurl.version_info()[2] < _MIN_VERSION:
        raise UnsupportedClient("this libcurl is too old, or this system has no epoll")
    if config.proxies or config.client_cert or get_environ_proxies(client.meta.endpoint_url):
        raise UnsupportedClient("it has a proxy or a certificate of its own")
    # There is no public attribute. If this one goes away, so does the fast path, and nothing else.
    session = getattr(getattr(client, "_endpoint", None), "http_session", None)
    verify, connect, silent = getattr(session, "_verify", None), config.connect_timeout, config.read_timeout
    if verify is None or not connect or not silent:
        raise UnsupportedClient("its authorities are not known, or it has no timeouts")
    return {
        pycurl.NOSIGNAL: True,
        pycurl.PROXY: "",
        pycurl.HTTP_VERSION: pycurl.CURL_HTTP_VERSION_1_1,
        pycurl.CONNECTTIMEOUT_MS: int(connect * 1000),
        # For a silent store. After a request's body it gets some seconds more, because libcurl averages.
        pycurl.LOW_SPEED_LIMIT: 1,
        pycurl.LOW_SPEED_TIME: max(1, round(silent)),
        pycurl.TIMEOUT_MS: int((connect + _SILENCES * silent) * 1000),
        pycurl.SSL_VERIFYPEER: bool(verify),
        pycurl.SSL_VERIFYHOST: 2 if verify else 0,
    } | ({pycurl.CAINFO: get_cert_path(verify)} if verify else {})


def most_connections(wanted: int) -> int:
    """Return how many of the wanted connections to open: at most half of the files this process may open."""
    return max(1, min(wanted, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2))


class Handle:
    """A libcurl handle, ``curl``, for requests of one kind. Options that do not change are set once."""

    def __init__(self, kind: Hashable, options: Mapping[int, Any]) -> None:
        self.curl = pycurl.Curl()
        self.kind = kind
        self.tag: object = None
        self._route: Route | None = None
        self._head: list[bytes] = []
        self._body: list[bytes] = []
        functions = {pycurl.HEADERFUNCTION: self._head.append, pycurl.WRITEFUNCTION: self._body.append}
        for option, value in {**functions, **options}.items():
            self.curl.setopt(option, value)

    def aim(self, route: Route, path: str) -> None:
        """Set where the next request goes."""
        if route is not self._route:
            for option, value in route.options.items():
                self.curl.setopt(option, value)
            self._route = route
        self.curl.setopt(pycurl.URL, route.url + path)

    def ask(self) -> Response:
        """Send the request, and wait for its response; Python handles signals only after that."""
        try:
            self.curl.perform()
        except pycurl.error:
            return self.response(is_whole=False)
        return self.response(is_whole=True)

    def response(self, *, is_whole: bool) -> Response:
        """Return the response, or what is known of one that was cut off; clear the buffers for the next."""
        if is_whole:
            status = self.curl.getinfo(pycurl.RESPONSE_CODE)
            response = Response(status, b"".join(self._head), b"".join(self._body))
        else:
            # Whether a byte of the request was sent, on this connection or one tried before it.
            response = Response(_LOST if self.curl.getinfo(pycurl.REQUEST_SIZE) else _UNSENT)
        self._head.clear()
        self._body.clear()
        return response


class Connections:
    """A pool for one thread at a time, which keeps up to ``connections`` open between requests.

    ``busy`` has the handles in flight; ``has_waited`` tells whether the last `wait` found no socket ready.
    """

    def __init__(self, options: Mapping[Hashable, Mapping[int, Any]], connections: int) -> None:
        self._options = options
        # Not libcurl's own select(), which fails on file descriptors from 1024 on.
        self._poller = select.epoll()
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_MAXCONNECTS, connections)
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, partial(_poll, self._poller))
        self._free: defaultdict[Hashable, list[Handle]] = defaultdict(list)
        self.busy: dict[pycurl.Curl, Handle] = {}
        self.has_waited = False

    def handle(self, kind: Hashable) -> Handle:
        """Return a handle for a kind of request, with the options of that kind."""
        free = self._free[kind]
        return free.pop() if free else Handle(kind, self._options[kind])

    def start(self, handle: Handle) -> None:
        """Send a request; `wait` returns the handle's tag with the response."""
        self.busy[handle.curl] = handle
        self._multi.add_handle(handle.curl)

    def wait(self, seconds: float) -> list[tuple[Any, Response]]:
        """Wait at most ``seconds`` for anything to happen; return the ended requests' tags and responses."""
        due = self._multi.timeout()
        ready = self._poller.poll(0)
        self.has_waited = not ready
        if not ready:
            ready = self._poller.poll(seconds if due < 0 else min(seconds, due / 1000))
        # Each of these calls also does what is due, such as beginning a request or giving one up. The call
        # with SOCKET_TIMEOUT, after a wait in vain, does so even if libcurl named no time.
        for descriptor, _ in ready or [(pycurl.SOCKET_TIMEOUT, 0)]:
            self._multi.socket_action(descriptor, 0)
        _, good, bad = self._multi.info_read()
        ended = [self._release(curl, is_whole=True) for curl in good]
        return ended + [self._release(curl, is_whole=False) for curl, *_ in bad]

    def _release(self, curl: pycurl.Curl, *, is_whole: bool) -> tuple[Any, Response]:
        self._multi.remove_handle(curl)
        handle = self.busy.pop(curl)
        self._free[handle.kind].append(handle)
        return handle.tag, handle.response(is_whole=is_whole)


def _poll(poller: select.epoll, events: int, descriptor: int, *_: object) -> None:
    """Watch a socket for the events that libcurl requests; only the poller knows which sockets it has."""
    try:
        if events == pycurl.POLL_REMOVE:
            poller.unregister(descriptor)
        else:
            poller.register(descriptor, _EVENTS[events])
    except FileExistsError:
        poller.modify(descriptor, _EVENTS[events])
    except OSError:
        # The socket is closed already, so the poller has dropped it.
        return

"""Calls as HTTP requests on hundreds of kept-alive connections in one thread, through libcurl.

Only plain successes settle a call, and the answer that an upload is gone, which a repeated commit gets by the
million. Whatever else a store may say is left to the boto3 store, which makes the call again: it knows
redirects, renewed credentials, throttling and errors. libcurl also signs, with exactly the same signature
version 4 as botocore, in a tenth of the time (tests/store/s3/test_connections.py compares them).
"""

from __future__ import annotations

import re
import select
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote
from xml.sax.saxutils import escape

import pycurl
from botocore.httpsession import get_cert_path
from botocore.utils import get_environ_proxies
from msgspec import Struct

from airflow_s3commit.exceptions import NoSuchUpload, S3CommitError
from airflow_s3commit.store.base import Abort, Complete, Fetched, Get, Head, ObjectInfo
from airflow_s3commit.store.s3.config import UnsupportedClient
from airflow_s3commit.store.s3.request import Request, completed_part, object_info, response_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from botocore.credentials import ReadOnlyCredentials
    from mypy_boto3_s3.client import S3Client

    from airflow_s3commit.store.base import Outcome, PartEtag

#: The calls of `ObjectStore.perform` that libcurl makes.
FastCall: TypeAlias = Complete | Abort | Head | Get


class SingleCall(Struct, frozen=True, gc=False):
    """A request that starts an upload, which has no id yet, or sends a part of one.

    The URL also has ``query``; the headers are ``Name: value``.
    """

    bucket: str
    key: str
    upload_id: str
    query: str
    headers: list[str]
    body: bytes


#: S3's names of the operations of `FastCall`, and the libcurl options of all.
OPERATIONS: dict[type, str] = {
    Complete: "CompleteMultipartUpload",
    Abort: "AbortMultipartUpload",
    Head: "HeadObject",
    Get: "GetObject",
}
_METHODS: dict[type, tuple[int, Any]] = {
    Complete: (pycurl.POST, True),
    Abort: (pycurl.CUSTOMREQUEST, "DELETE"),
    Head: (pycurl.NOBODY, True),
    Get: (pycurl.HTTPGET, True),
    SingleCall: (pycurl.POST, True),
}

#: Path segments that HTTP clients and servers resolve instead of taking literally.
_DOT_SEGMENTS = frozenset({".", ".."})

#: Quotes a directory; cached, because a job's files are in few.
_quoted_folder = lru_cache(4096)(quote)

OK, _NO_CONTENT, _NOT_FOUND = 200, 204, 404
_NO_UPLOAD = b"<Code>NoSuchUpload</Code>"

# Templates: a completion around its parts, and one of a single part.
_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_COMPLETION = f'<CompleteMultipartUpload xmlns="{_NAMESPACE}">%s</CompleteMultipartUpload>'
_ONE_PART = _COMPLETION % '<Part><PartNumber>1</PartNumber><ETag>"%s"</ETag></Part>'

# Most names and ids need no quoting; to see that costs less than a call of `quote`.
_is_unreserved = re.compile(r"[A-Za-z0-9._~-]*", re.ASCII).fullmatch

# The usual result of a completion: elements without attributes or children, one of them an ETag of letters,
# digits and hyphens. Possessive quantifiers prevent backtracking; the usual declaration and namespace are
# literal, which match several times as fast as character sets.
_DECLARATION = rb"(?:<\?xml version=\"1\.0\" encoding=\"UTF-8\"\?>|<\?xml [^<>&]*\?>)"
_XMLNS = rb"(?: xmlns=\"(?:http://s3\.amazonaws\.com/doc/2006-03-01/|[^\"<>&]*+)\")"
_LEAF = rb"\s*+<(?!ETag>)([A-Za-z0-9]++)>[^<>&]*+</\%d>"
_whole_result = re.compile(
    rb"\s*+(?:%b\s*+)?+<CompleteMultipartUploadResult%b?+>(?:%b)*+"
    rb"\s*+<ETag>(&quot;|&#34;|\"|)([A-Za-z0-9-]++)\2</ETag>(?:%b)*+"
    rb"\s*+</CompleteMultipartUploadResult>\s*+" % (_DECLARATION, _XMLNS, _LEAF % 1, _LEAF % 4)
).fullmatch

#: Maximum bytes of a response without an object.
_LONGEST_RESULT = 1 << 16

#: The first libcurl whose signatures are known to equal botocore's: 8.19.0.
_MIN_VERSION = 0x081300

#: Seconds used where there is no timeout: a day.
_NO_TIMEOUT = 86_400.0

#: An attempt may take the connect timeout and this many read timeouts, because a store that trickles bytes
#: would otherwise hold a connection for ever. By default five minutes: enough for the largest object read, a
#: pendingset of 50 MiB, at 170 kB per second.
_SILENCES = 5


@dataclass(frozen=True, slots=True)
class Route:
    """Where and how one operation on one bucket is sent: the URL up to the key, and what to sign with.

    The headers are those that the client's owner adds, as ``Name: value``; ``agent`` is the user agent.
    """

    url: str
    region: str
    agent: str
    headers: tuple[str, ...]
    keys: ReadOnlyCredentials = field(repr=False)


class Response(Struct, frozen=True, gc=False):
    """One HTTP response; its status is 0 if nothing of the request was sent.

    ``head`` is the status line and the headers; empty where nobody needs them.
    """

    status: int
    head: bytes
    body: bytes

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the last response in ``head``, by name in lower case."""
        block = self.head.rstrip(b"\r\n").rpartition(b"\r\n\r\n")[2].decode("latin-1")
        pairs = (line.partition(":") for line in block.split("\r\n")[1:])
        return {name.strip().lower(): value.strip() for name, _, value in pairs}


class NotPlain(Exception):
    """A response does not settle the outcome of its call by itself."""


def is_sendable(call: FastCall | SingleCall) -> bool:
    """Return whether libcurl sends this call to the right place.

    It would resolve dot segments, and a call without a key or an upload is another request on the wire.
    """
    if not call.key or (isinstance(call, Complete | Abort) and not call.upload_id):
        return False
    return "/." not in f"/{call.key}" or _DOT_SEGMENTS.isdisjoint(call.key.split("/"))


def _path_of(call: FastCall | SingleCall) -> str:
    """Return a call's key, and its query if it has one, quoted for a URL."""
    folder, slash, name = call.key.rpartition("/")
    if not _is_unreserved(name):
        name = quote(name)
    path = f"{_quoted_folder(folder)}/{name}" if slash else name
    if isinstance(call, Head | Get):
        return path
    upload = call.upload_id
    query = f"uploadId={upload if _is_unreserved(upload) else quote(upload, safe='')}" if upload else ""
    if isinstance(call, SingleCall):
        query = "&".join(filter(None, [query, call.query]))
    return f"{path}?{query}"


def _part_list(etags: Sequence[PartEtag]) -> bytes:
    """Return the body of a completion's request."""
    if len(etags) == 1 and isinstance(etags[0], str) and etags[0].isalnum():
        # The usual case: a file of one part, whose ETag is an MD5 in hexadecimal.
        return (_ONE_PART % etags[0]).encode()
    parts = (completed_part(number, etag).items() for number, etag in enumerate(etags, start=1))
    listed = ["".join(f"<{name}>{escape(str(value))}</{name}>" for name, value in part) for part in parts]
    return (_COMPLETION % "".join(f"<Part>{part}</Part>" for part in listed)).encode()


def plain_outcome(call: FastCall, response: Response | None, now: float) -> Outcome:
    """Return the outcome that a response settles by itself; None is one that did not come, or not whole.

    A response without a Date was made ``now``, in seconds since the epoch.

    Raises:
        NotPlain: It settles none.
    """
    if response is None:
        raise NotPlain
    if response.status == OK:
        if isinstance(call, Complete) and (result := _whole_result(response.body)):
            return result[3].decode()
        if isinstance(call, Head | Get):
            try:
                return _found(call, response, now)
            except (S3CommitError, ValueError, OverflowError) as error:
                raise NotPlain from error
    is_gone = response.status == _NOT_FOUND and _NO_UPLOAD in response.body
    if is_gone and isinstance(call, Complete):
        request = Request(OPERATIONS[Complete], call.bucket, call.key, call.upload_id)
        return NoSuchUpload(f"{request}: NoSuchUpload")
    if isinstance(call, Abort) and (is_gone or response.status == _NO_CONTENT):
        return None
    raise NotPlain


def _found(call: Head | Get, response: Response, now: float) -> ObjectInfo | Fetched:
    headers, body = response.headers, response.body
    parsed: dict[str, Any] = {
        "ResponseMetadata": {"HTTPHeaders": headers},
        "ETag": headers.get("etag", ""),
        "ContentLength": int(headers.get("content-length", "")),
        "LastModified": parsedate_to_datetime(headers.get("last-modified", "")),
    }
    info = object_info(Request(OPERATIONS[type(call)], call.bucket, call.key), parsed)
    if isinstance(call, Head):
        return info
    if len(body) != info.size or (call.limit is not None and info.size > call.limit):
        raise NotPlain
    date = response_time(parsed)
    return Fetched(info, body, now if date is None else date)


def connection_options(client: S3Client) -> dict[int, Any]:
    """Return the libcurl options that make connections as a client makes them.

    Raises:
        UnsupportedClient: The client has settings that libcurl is not given, or libcurl is too old.
    """
    if not hasattr(select, "epoll"):
        raise UnsupportedClient("this system has no epoll")
    config: Any = client.meta.config
    if pycurl.version_info()[2] < _MIN_VERSION or "https" not in pycurl.version_info()[8]:
        raise UnsupportedClient("this libcurl is too old, or has no TLS")
    if config.proxies or config.client_cert or get_environ_proxies(client.meta.endpoint_url):
        raise UnsupportedClient("it has a proxy or a certificate of its own")
    # There is no public attribute. If this one goes away, so does the fast path, and nothing else.
    session = getattr(getattr(client, "_endpoint", None), "http_session", None)
    verify = getattr(session, "_verify", None)
    if verify is None:
        raise UnsupportedClient("its authorities are not known")
    connect, silent = config.connect_timeout or _NO_TIMEOUT, config.read_timeout or _NO_TIMEOUT
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
        pycurl.TIMEOUT_MS: int((connect + _SILENCES * silent) * 1000),
        pycurl.SSL_VERIFYPEER: bool(verify),
        pycurl.SSL_VERIFYHOST: 2 if verify else 0,
    } | ({pycurl.CAINFO: get_cert_path(verify)} if verify else {})


class _Connection(pycurl.Curl):  # type: ignore[misc]
    """A libcurl handle for one type of call. Options that do not change are set once.

    When its request ends, the caller's tag of which it holds, it returns to the list ``free``.
    """

    def __init__(self, kind: type, options: dict[int, Any], free: list[_Connection]) -> None:
        super().__init__()
        self.free = free
        self.tag: object = None
        self._route: Route | None = None
        self._head: list[bytes] = []
        self._body: list[bytes] = []
        self._headers = ["Accept:", "Expect:"]
        self._lines: list[str] = []
        for option, value in options.items():
            self.setopt(option, value)
        self.setopt(*_METHODS[kind])
        self.setopt(pycurl.WRITEFUNCTION, self._body.append)
        if kind not in (Complete, Abort):
            # Of these, which come by the thousand, nobody needs the headers: a callback for each costs a
            # thirtieth of the whole request.
            self.setopt(pycurl.HEADERFUNCTION, self._head.append)
        if kind not in (Head, Get):
            self.setopt(pycurl.MAXFILESIZE, _LONGEST_RESULT)
        if kind is Complete:
            self._headers.append("Content-Type: application/xml")

    def prepare(self, tag: object, route: Route, call: FastCall | SingleCall) -> None:
        """Set the options of the next request."""
        self.tag = tag
        if route is not self._route:
            self._authorize(route)
        if isinstance(call, Complete):
            self.setopt(pycurl.POSTFIELDS, _part_list(call.etags))
        elif isinstance(call, Get):
            # libcurl compares it with the announced length, before the first byte, and with what comes.
            self.setopt(pycurl.MAXFILESIZE_LARGE, 0 if call.limit is None else max(call.limit, 1))
        elif isinstance(call, SingleCall):
            self.setopt(pycurl.CUSTOMREQUEST, "PUT" if call.upload_id else "POST")
            self.setopt(pycurl.POSTFIELDS, call.body)
            # libcurl would name the media type of a form.
            own = [*call.headers, "Content-Type:"] if call.upload_id else call.headers
            self.setopt(pycurl.HTTPHEADER, [*self._lines, *own])
        self.setopt(pycurl.URL, route.url + _path_of(call))

    def response(self, *, is_whole: bool) -> Response | None:
        """Return the response, or None if it was cut off; make room for the next one."""
        head, body = self._head, self._body
        response = None
        if is_whole:
            status = self.getinfo(pycurl.RESPONSE_CODE)
            response = Response(status, b"".join(head), body[0] if len(body) == 1 else b"".join(body))
        elif self.getinfo(pycurl.REQUEST_SIZE) == 0:
            # No byte of the request was sent, on this connection or one tried before it.
            response = Response(0, b"", b"")
        head.clear()
        body.clear()
        return response

    def _authorize(self, route: Route) -> None:
        """Set the headers and credentials of further requests."""
        keys = route.keys
        self._lines = headers = [*route.headers, *self._headers]
        if route.url.startswith("https:"):
            # The connection protects the body. Without TLS libcurl signs its hash.
            headers.append("X-Amz-Content-SHA256: UNSIGNED-PAYLOAD")
        if keys.token:
            headers.append(f"X-Amz-Security-Token: {keys.token}")
        self.setopt(pycurl.HTTPHEADER, headers)
        self.setopt(pycurl.USERAGENT, route.agent)
        self.setopt(pycurl.AWS_SIGV4, f"aws:amz:{route.region}:s3")
        self.setopt(pycurl.USERNAME, keys.access_key)
        # As bytes: pycurl takes ASCII text only, and botocore signs with the UTF-8 too.
        self.setopt(pycurl.PASSWORD, (keys.secret_key or "").encode())
        self._route = route


class Connections:
    """A pool for one thread at a time, which keeps up to ``connections`` open between requests.

    ``has_waited`` tells whether the last `wait` had to wait for the store.
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
        self._free: defaultdict[type, list[_Connection]] = defaultdict(list)
        self.in_flight = 0
        self.has_waited = False

    def start(self, tag: object, route: Route, call: FastCall | SingleCall) -> None:
        """Make a call; `wait` returns its tag with the response."""
        free = self._free[type(call)]
        connection = free.pop() if free else _Connection(type(call), self._options, free)
        connection.prepare(tag, route, call)
        self._multi.add_handle(connection)
        self.in_flight += 1

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
            ended.extend(self._release(connection, is_whole=True) for connection in good)
            ended.extend(self._release(connection, is_whole=False) for connection, *_ in bad)
        return ended

    def close(self) -> None:
        """Close all connections, including those in use."""
        self._multi.close()
        self._poller.close()

    def _release(self, connection: _Connection, *, is_whole: bool) -> tuple[Any, Response | None]:
        self.in_flight -= 1
        self._multi.remove_handle(connection)
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

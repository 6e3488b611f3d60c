"""The fast path of `ObjectStore.perform`: thousands of small requests from one thread, through libcurl.

boto3 spends about a millisecond of CPU on a request, which limits a commit to under a thousand files per
second, whatever the store can do. Here one loop in the caller's thread draws calls, sends each once, and
yields what its response settles. Any other call goes to the boto3 store, in a thread of its own, with that
store's retries. Code that runs once per file is kept short, because a commit may have a million of them.

Uploads are started, and small parts sent, each in the thread that calls. boto3 spends about two milliseconds
of processor time on these two requests of a small file, libcurl less than a third of that. Only a plain
success counts here: after anything else boto3 sends the request.
"""

from __future__ import annotations

import os
import re
import threading
from collections import defaultdict, deque
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pycurl

from airflow_s3commit.exceptions import OutcomeUnknown, Unavailable
from airflow_s3commit.store.base import Abort, Call, Complete, Get, Head, Outcome
from airflow_s3commit.store.execute import make_call
from airflow_s3commit.store.s3.curl.connections import (
    Connection,
    Connections,
    connection_options,
    max_connections,
)
from airflow_s3commit.store.s3.curl.messages import (
    BUSY,
    FAILED,
    OK,
    OPERATIONS,
    NotPlain,
    Response,
    SingleCall,
    completed_etag,
    is_sendable,
    plain_outcome,
)
from airflow_s3commit.store.s3.curl.routes import Routes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from mypy_boto3_s3.client import S3Client

    from airflow_s3commit._clock import Clock
    from airflow_s3commit.store.base import ObjectStore
    from airflow_s3commit.store.s3.request import Request

#: Maximum seconds that the loop sleeps; and while boto3 makes calls too, which do not wake it.
MAX_WAIT, SHORT_WAIT = 1.0, 0.02

SLOW_DOWN = b"<Code>SlowDown</Code>"

#: Requests in flight before the store has answered any.
FIRST_WINDOW = 32

#: Seconds in which the window is halved at most once.
CUT_SECONDS = 1.0

#: Seconds' worth of requests that may go out together after a lull.
BURST_SECONDS = 0.02

#: The shortest pause in seconds: a few requests together cost less CPU than each by itself.
BATCH_SECONDS = 0.005

#: Seconds below which there is no pause: finer than a sleep is accurate.
SHORTEST_PAUSE = 0.0001

#: Bytes of the largest part that is sent here: libcurl copies it.
SMALL = 1 << 20

# Headers that libcurl sends as they are: it removes one without a value.
_is_plain = re.compile(r"[!-~]+: [!-~](?:[ -~]*[!-~])?", re.ASCII).fullmatch

# An id with entities is left to boto3.
_find_upload = re.compile(rb"<UploadId>([^<>&]+)</UploadId>").search

T = TypeVar("T")


class Throttle:
    """The rate that a store can take, shared by all runs on it; safe to use from several threads.

    The number in flight is bounded by TCP's congestion window (RFC 5681): each success widens it by one,
    which doubles it every round trip, until the store says "slow down". Then it is halved, at most once per
    second because all requests in flight get the same response, and widened by one per window of successes.

    Args:
        most: Maximum requests in flight.
        per_second: Maximum requests per second; None for no bound.

    Attributes:
        window: Requests that may be in flight now.
    """

    def __init__(self, clock: Clock, *, most: int, per_second: float | None) -> None:
        self._clock = clock
        self._most = float(most)
        self._width = min(float(FIRST_WINDOW), self._most)
        self.window = int(self._width)
        self._interval = 1 / per_second if per_second else 0.0
        self._due = clock.monotonic() - BURST_SECONDS
        self._cut: float | None = None
        self._lock = threading.Lock()

    def succeeded(self, calls: int) -> None:
        """Widen the window after this many successes."""
        with self._lock:
            growth = calls if self._cut is None else calls / self._width
            self._width = min(self._width + growth, self._most)
            self.window = int(self._width)

    def slow_down(self) -> None:
        """Halve the window, unless that was done within the last second."""
        with self._lock:
            now = self._clock.monotonic()
            if self._cut is None or now - self._cut >= CUT_SECONDS:
                self._cut = now
                self._width = max(1.0, self._width / 2)
                self.window = int(self._width)

    def pause(self) -> float:
        """Return 0 and count a request that goes out now, or the seconds until one may."""
        if not self._interval:
            return 0.0
        with self._lock:
            now = self._clock.monotonic()
            if self._due - now > SHORTEST_PAUSE:
                return max(self._due - now, BATCH_SECONDS)
            self._due = max(self._due, now - BURST_SECONDS) + self._interval
            return 0.0


class FastPath:
    """The state that all runs on one client share; safe to use from several threads.

    Args:
        client: The boto3 client whose routes, credentials and settings are used.
        fallback: The store that makes the calls which libcurl cannot make.
        threads: Threads in which ``fallback`` makes calls.
        connections: Maximum requests in flight, each on a connection.
        per_second: Maximum requests per second; None for no bound.

    Attributes:
        routes: The client's routes, by bucket and operation.
        throttle: The rate at which requests are sent.
        retries: Calls that were left to ``fallback`` after a response so far.

    Raises:
        UnsupportedClient: The client has settings that libcurl is not given, or libcurl is too old.
    """

    def __init__(
        self,
        client: S3Client,
        fallback: ObjectStore,
        clock: Clock,
        *,
        threads: int,
        connections: int,
        per_second: float | None,
    ) -> None:
        self._options = connection_options(client)
        self._model: Any = client.meta.service_model
        self._most = max_connections(connections)
        self.routes = Routes(client, clock)
        self.fallback = fallback
        self.clock = clock
        self.threads = threads
        self.throttle = Throttle(clock, most=self._most, per_second=per_second)
        self.retries = 0
        # By process: a forked one leaves its parent's connections alone. It does not close them either, which
        # would end TLS sessions that the parent still uses.
        self._idle: defaultdict[int, deque[Connections]] = defaultdict(deque)
        self._idle_single: defaultdict[int, deque[Connection]] = defaultdict(deque)

    def start_upload(self, request: Request, options: Mapping[str, Any]) -> dict[str, str] | None:
        """Start an upload; return the response as boto3 does, or None if boto3 has to send the request.

        Args:
            options: Its parameters, as boto3 names them, besides bucket and key.

        Raises:
            OutcomeUnknown: The upload may have been started.
        """
        response = self._send(request, "uploads", options)
        found = _find_upload(response.body) if response is not None else None
        if response is None or found is None:
            return None
        kind = response.headers.get("x-amz-checksum-type")
        return {"UploadId": found[1].decode()} | ({"ChecksumType": kind} if kind else {})

    def send_part(
        self, request: Request, number: int, body: bytes | bytearray | memoryview, options: Mapping[str, Any]
    ) -> dict[str, str] | None:
        """Send a part of at most `SMALL` bytes; return the response or None, as for `start_upload`.

        Raises:
            OutcomeUnknown: The part may have been stored.
        """
        content = memoryview(body)
        if content.nbytes > SMALL:
            return None
        response = self._send(request, f"partNumber={number}", options, content.tobytes())
        etag = response.headers.get("etag") if response is not None else None
        return {"ETag": etag} if etag else None

    def _send(
        self, request: Request, query: str, options: Mapping[str, Any], body: bytes = b""
    ) -> Response | None:
        headers = [*self._headers(request.operation, options)]
        call = SingleCall(request.bucket, request.key or "", request.upload_id or "", query, headers, body)
        route = None
        if is_sendable(call) and all(map(_is_plain, headers)):
            route = self.routes.find(request.bucket, request.operation)
        if route is None:
            return None
        idle = self._idle_single[os.getpid()]
        try:
            connection = idle.pop()
        except IndexError:
            connection = Connection("UploadPart", self._options, [])
        connection.prepare(None, route, call)
        try:
            connection.handle.perform()
            response = connection.response(is_whole=True)
        except pycurl.error:
            response = connection.response(is_whole=False)
        idle.append(connection)
        if _is_unknown(response):
            raise request.unconfirmed("the response is missing, or an error of the store")
        return response if response is not None and response.status == OK else None

    def _headers(self, operation: str, options: Mapping[str, Any]) -> Iterator[str]:
        """Yield the header lines that boto3 makes of a request's parameters."""
        members = self._model.operation_model(operation).input_shape.members
        for name, value in options.items():
            header = members[name].serialization["name"]
            if isinstance(value, dict):
                yield from (f"{header}{key}: {text}" for key, text in value.items())
            else:
                yield f"{header}: {str(value).lower() if isinstance(value, bool) else value}"

    def perform(self, calls: Iterable[tuple[T, Call]]) -> Iterator[tuple[T, Outcome]]:
        """Make many calls; see `ObjectStore.perform`.

        Closing the iterator draws no further call, and waits for those that were sent.
        """
        with self._connections() as connections:
            yield from _Run(self, connections, iter(calls)).outcomes()

    @contextmanager
    def _connections(self) -> Iterator[Connections]:
        """Lend connections to one run, and keep them open for the next one."""
        idle = self._idle[os.getpid()]
        try:
            connections = idle.pop()
        except IndexError:
            connections = Connections(self._options, self._most)
        try:
            yield connections
        finally:
            if connections.in_flight:
                connections.close()
            else:
                idle.append(connections)


class _Run(Generic[T]):
    """One run of `FastPath.perform`, on connections that no other run uses meanwhile."""

    def __init__(self, path: FastPath, connections: Connections, calls: Iterator[tuple[T, Call]]) -> None:
        self._path = path
        self._throttle = path.throttle
        self._connections = connections
        self._done: deque[tuple[T, Outcome]] = deque()
        self._source = calls
        self._is_drawn = False
        self._held_back = 0.0
        self._pool: ThreadPoolExecutor | None = None
        self._left: dict[Future[Outcome], T] = {}

    def outcomes(self) -> Iterator[tuple[T, Outcome]]:
        """Make the calls, and yield each one's tag with its outcome."""
        done = self._done
        try:
            while True:
                self._fill()
                while done:
                    yield done.popleft()
                if self._connections.in_flight or self._left or self._held_back:
                    self._wait()
                elif self._is_drawn:
                    return
        finally:
            while self._connections.in_flight:
                self._connections.wait(MAX_WAIT)
            if self._pool is not None:
                self._pool.shutdown(wait=True, cancel_futures=True)

    def _fill(self) -> None:
        """Send while there is room."""
        throttle, connections, left = self._throttle, self._connections, self._left
        self._held_back = 0.0
        while (
            not self._is_drawn and max(connections.in_flight + len(left), len(self._done)) < throttle.window
        ):
            self._held_back = throttle.pause()
            if self._held_back:
                return
            try:
                tag, call = next(self._source)
            except StopIteration:
                self._is_drawn = True
                return
            self._send(tag, call)

    def _send(self, tag: T, call: Call) -> None:
        if isinstance(call, Complete | Abort | Head | Get) and is_sendable(call):
            route = self._path.routes.find(call.bucket, OPERATIONS[type(call)])
            if route is not None:
                self._connections.start((tag, call), route, call)
                return
        self._leave(tag, call)

    def _wait(self) -> None:
        longest = SHORT_WAIT if self._left else MAX_WAIT
        seconds = min(longest, self._held_back) if self._held_back else longest
        if self._connections.in_flight:
            self._take(self._connections.wait(seconds))
        elif not self._left:
            self._path.clock.sleep(seconds)
        if self._left:
            timeout = 0.0 if self._connections.in_flight else seconds
            for future in wait(self._left, timeout, FIRST_COMPLETED).done:
                self._done.append((self._left.pop(future), future.result()))

    def _take(self, ended: list[tuple[tuple[T, Complete | Abort | Head | Get], Response | None]]) -> None:
        """Take the responses that ended."""
        done, left = self._done, 0
        for (tag, call), response in ended:
            etag = completed_etag(response) if type(call) is Complete else None
            try:
                if response is None:
                    raise NotPlain
                done.append((tag, etag or plain_outcome(call, response, self._path.clock.time())))
            except NotPlain:
                left += 1
                if response is not None and (response.status in BUSY or SLOW_DOWN in response.body):
                    # A completion may get it in the body of a 200.
                    self._throttle.slow_down()
                self._leave(tag, call, _may_have_happened(call, response))
        self._path.retries += left
        if self._connections.has_waited:
            # A thread that never waits for the store would send no faster on more connections.
            self._throttle.succeeded(len(ended) - left)

    def _leave(self, tag: T, call: Call, may_have_happened: bool = False) -> None:
        """Leave a call to the boto3 store."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._path.threads, thread_name_prefix="s3commit")
        self._left[self._pool.submit(self._make, call, may_have_happened)] = tag

    def _make(self, call: Call, may_have_happened: bool) -> Outcome:
        outcome = make_call(self._path.fallback, call)
        if may_have_happened and isinstance(outcome, Unavailable):
            # The first attempt may have taken effect all the same.
            return OutcomeUnknown(f"{outcome}; an earlier attempt may or may not have taken effect")
        return outcome


def _may_have_happened(call: Call, response: Response | None) -> bool:
    """Return whether a call that changes something may have done so, although it was not confirmed."""
    if isinstance(call, Get | Head):
        return False
    is_odd_success = response is not None and response.status == OK and SLOW_DOWN not in response.body
    return is_odd_success or _is_unknown(response)


def _is_unknown(response: Response | None) -> bool:
    """Return whether the store may have done what was asked for: no response came, or it failed midway."""
    return response is None or (response.status >= FAILED and response.status not in BUSY)

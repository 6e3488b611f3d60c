"""The fast path of `ObjectStore.perform`: thousands of small requests from one thread, through libcurl.

boto3 spends about a millisecond of CPU on a request, which limits a commit to under a thousand files per
second, whatever the store can do. Here one loop in the caller's thread draws calls, sends each once, and
yields what its response settles. Any other call goes to the boto3 store, with that store's threads and
retries. Code that runs once per file is kept short, because a commit may have a million of them.

Uploads are started, and parts of up to a mebibyte sent, each in the thread that calls, for a third of the
processor time of boto3. Only a plain success counts here: after anything else boto3 sends the request.

Where a request goes and how it is signed is learned from the client itself, which knows endpoint rules,
addressing style, redirects and headers that its owner added. It prepares one request per bucket and
operation, which is not sent. Every further one differs from it only in key, upload and body.
"""

from __future__ import annotations

import os
import re
import resource
import threading
from collections import defaultdict, deque
from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from uuid import uuid4

from botocore import xform_name

from airflow_s3commit.exceptions import OutcomeUnknown, Unavailable
from airflow_s3commit.store.base import Abort, Call, Complete, Get, Head, Outcome
from airflow_s3commit.store.execute import with_threads
from airflow_s3commit.store.s3.connections import (
    OK,
    OPERATIONS,
    Connections,
    NotPlain,
    Response,
    Route,
    SingleCall,
    connection_options,
    is_sendable,
    plain_outcome,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from botocore.awsrequest import AWSRequest
    from botocore.signers import RequestSigner
    from mypy_boto3_s3.client import S3Client

    from airflow_s3commit._clock import Clock
    from airflow_s3commit.store.base import ObjectStore
    from airflow_s3commit.store.s3.request import Request

#: The key of the prepared request, and no other's; the URL of other requests is the same before it.
_KEY = f"s3commit-address-{uuid4().hex}"

#: Services and versions of signatures that libcurl makes too: version 4, for one region.
_SIGNATURES = frozenset({("s3", "s3v4"), ("s3", "v4")})

#: Headers of one attempt or body, which are not kept.
_OF_REQUESTS = (
    "amz-sdk-",
    "content-",
    "expect",
    "user-agent",
    "x-amz-checksum-",
    "x-amz-sdk-checksum-",
    "x-amzn-trace-id",
)

#: Seconds after which the client prepares a request anew: it renews its credentials in time, and it may have
#: been redirected to another region.
ROUTE_SECONDS = 1.0

#: Maximum seconds that the loop sleeps.
_MAX_WAIT = 1.0

#: Statuses of a store that gets too many requests; with one of these it has not done what was asked for. A
#: completion may get the code in the body of a 200.
_BUSY = frozenset({429, 503})
_SLOW_DOWN = b"<Code>SlowDown</Code>"
_FAILED = 500

#: Requests in flight before the store has answered any.
FIRST_WINDOW = 32

#: Seconds in which the window is halved at most once.
_CUT_SECONDS = 1.0

#: Seconds' worth of requests that may go out together after a lull.
_BURST_SECONDS = 0.02

#: The shortest pause in seconds: a few requests together cost less CPU than each by itself.
_BATCH_SECONDS = 0.005

#: Bytes of the largest part that is sent here: libcurl copies it.
SMALL = 1 << 20

# Headers that libcurl sends as they are: it removes one without a value.
_is_plain = re.compile(r"[!-~]+: [!-~](?:[ -~]*[!-~])?", re.ASCII).fullmatch

# An id with entities is left to boto3.
_find_upload = re.compile(rb"<UploadId>([^<>&]+)</UploadId>").search

T = TypeVar("T")

#: A call that is left to boto3, with its tag and whether it may have happened already.
_Left: TypeAlias = tuple[tuple[T, bool], Call]

#: Calls for each of boto3's threads that are left at most before it makes them.
_MOST_LEFT = 4


class Throttle:
    """The rate that a store can take, shared by all runs on it; safe to use from several threads.

    The number in flight is bounded by TCP's congestion window (RFC 5681): each success widens it by one,
    which doubles it every round trip, until the store says "slow down". Then it is halved, at most once per
    second because all requests in flight get the same response, and widened by one per window of successes.

    At most ``window`` requests may be in flight now, ``most`` at any time; ``per_second`` bounds their rate.
    """

    def __init__(self, clock: Clock, *, most: int, per_second: float | None) -> None:
        self._clock = clock
        self._most = float(most)
        self._width = min(float(FIRST_WINDOW), self._most)
        self.window = int(self._width)
        self._interval = 1 / per_second if per_second else 0.0
        self._due = clock.monotonic() - _BURST_SECONDS
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
            if self._cut is None or now - self._cut >= _CUT_SECONDS:
                self._cut = now
                self._width = max(1.0, self._width / 2)
                self.window = int(self._width)

    def pause(self) -> float:
        """Return 0 and count a request that goes out now, or the seconds until one may."""
        if not self._interval:
            return 0.0
        with self._lock:
            now = self._clock.monotonic()
            if self._due > now:
                return max(self._due - now, _BATCH_SECONDS)
            self._due = max(self._due, now - _BURST_SECONDS) + self._interval
            return 0.0


class FastPath:
    """The state that all runs on one client share; safe to use from several threads.

    The client's routes, credentials and settings are used, and its event handlers that change requests take
    effect. ``fallback`` makes the calls which libcurl cannot make, in ``threads`` threads: all of them where
    a handler responds in place of the store, as test doubles do. ``retries`` counts those after a response.

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
        self._client = client
        # Each needs a file descriptor: at most half of the process's.
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        is_bounded = most != resource.RLIM_INFINITY
        self._most = max(1, min(connections, most // 2)) if is_bounded else connections
        self._routes: dict[tuple[str, str], tuple[float, Route | None]] = {}
        self.fallback = fallback
        self.clock = clock
        self.threads = threads
        self.throttle = Throttle(clock, most=self._most, per_second=per_second)
        self.retries = 0
        # By process: a forked one leaves its parent's connections alone. It does not close them either, which
        # would end TLS sessions that the parent still uses.
        self._idle: defaultdict[int, deque[Connections]] = defaultdict(deque)
        events: Any = client.meta.events
        events.register_last("before-sign.s3", _before_sign, unique_id="s3commit-before-sign")

    def route(self, bucket: str, operation: str) -> Route | None:
        """Return the route of an operation on a bucket; None if only the client can send it.

        It is the same object until something changes.
        """
        now, (due, known) = self.clock.monotonic(), self._routes.get((bucket, operation), (0.0, None))
        if now < due:
            return known
        try:
            route = _learn(self._client, bucket, operation)
        except Exception:
            # No credentials, unusable ones, or an invalid name: the client itself reports it.
            return None
        route = known if route == known else route
        self._routes[bucket, operation] = (inf if route is None else now + ROUTE_SECONDS, route)
        return route

    def send(
        self,
        request: Request,
        query: str,
        headers: Mapping[str, str],
        body: bytes | bytearray | memoryview = b"",
    ) -> dict[str, str]:
        """Start an upload, or send a part of one; return the id or the ETag, as boto3 names them.

        An empty result leaves the request to boto3, as any body of more than `SMALL` bytes.

        Raises:
            OutcomeUnknown: The request may have taken effect.
        """
        route, lines = None, [f"{name}: {value}" for name, value in headers.items()]
        content = memoryview(body)
        if content.nbytes <= SMALL and all(map(_is_plain, lines)):
            route = self.route(request.bucket, request.operation)
        if route is None:
            return {}
        key, upload = request.key or "", request.upload_id or ""
        call = SingleCall(request.bucket, key, upload, query, lines, content.tobytes())
        if not is_sendable(call):
            return {}
        with self._connections() as connections:
            connections.start(None, route, call)
            while not (ended := connections.wait(_MAX_WAIT)):
                pass
        response: Response | None = ended[0][1]
        if _is_unknown(response):
            raise request.unconfirmed("the response is missing, or an error of the store")
        if response is None or response.status != OK:
            return {}
        started, etag = _find_upload(response.body), response.headers.get("etag")
        return ({"UploadId": started[1].decode()} if started else {}) | ({"ETag": etag} if etag else {})

    def perform(self, calls: Iterable[tuple[T, Call]]) -> Iterator[tuple[T, Outcome]]:
        """Make many calls; see `ObjectStore.perform`.

        Closing the iterator draws no further call, and waits for those that were sent.
        """
        source = iter(calls)
        # Seconds until more may be sent; None where there is no more.
        pause: float | None = 0.0
        left: list[_Left[T]] = []
        done: list[tuple[T, Outcome]] = []
        with self._connections() as connections:
            try:
                while pause is not None or connections.in_flight or left or done:
                    if pause is not None:
                        pause = self._start(connections, source, left)
                    yield from done
                    is_waiting = connections.in_flight or (pause and not left)
                    done = self._settle(connections, left, pause or _MAX_WAIT) if is_waiting else []
                    if left and not (connections.in_flight or done):
                        # With nothing in flight, because nothing is read meanwhile.
                        yield from self._fall_back(left)
                        left.clear()
            finally:
                while connections.in_flight:
                    connections.wait(_MAX_WAIT)

    def _start(
        self, connections: Connections, source: Iterator[tuple[T, Call]], left: list[_Left[T]]
    ) -> float | None:
        """Send while there is room; return the seconds until more may be sent; None if that is all."""
        most_left = _MOST_LEFT * self.threads
        while len(left) < most_left and connections.in_flight + len(left) < self.throttle.window:
            if pause := self.throttle.pause():
                return pause
            try:
                tag, call = next(source)
            except StopIteration:
                return None
            if isinstance(call, Complete | Abort | Head | Get) and is_sendable(call):
                route = self.route(call.bucket, OPERATIONS[type(call)])
                if route is not None:
                    connections.start((tag, call), route, call)
                    continue
            left.append(((tag, False), call))
        return 0.0

    def _settle(
        self, connections: Connections, left: list[_Left[T]], seconds: float
    ) -> list[tuple[T, Outcome]]:
        """Wait for responses; return the outcomes that they settle, and leave the other calls."""
        done: list[tuple[T, Outcome]] = []
        ended = connections.wait(seconds)
        now = self.clock.time()
        for (tag, call), response in ended:
            try:
                done.append((tag, plain_outcome(call, response, now)))
            except NotPlain:
                if response is not None and (response.status in _BUSY or _SLOW_DOWN in response.body):
                    self.throttle.slow_down()
                left.append(((tag, _may_have_happened(call, response)), call))
        self.retries += len(ended) - len(done)
        if connections.has_waited:
            # A thread that never waits for the store would send no faster on more connections.
            self.throttle.succeeded(len(done))
        return done

    def _fall_back(self, left: Iterable[_Left[T]]) -> Iterator[tuple[T, Outcome]]:
        """Make calls through the boto3 store."""
        for (tag, may_have_happened), outcome in with_threads(self.fallback, left, self.threads):
            if may_have_happened and isinstance(outcome, Unavailable):
                # The first attempt may have taken effect all the same.
                outcome = OutcomeUnknown(f"{outcome}; an earlier attempt may or may not have taken effect")  # noqa: PLW2901
            yield tag, outcome

    @contextmanager
    def _connections(self) -> Iterator[Connections]:
        """Lend connections to one thread, and keep them open for the next one."""
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


def _may_have_happened(call: Call, response: Response | None) -> bool:
    """Return whether a call that changes something may have done so, although it was not confirmed."""
    if isinstance(call, Get | Head):
        return False
    is_odd_success = response is not None and response.status == OK and _SLOW_DOWN not in response.body
    return is_odd_success or _is_unknown(response)


def _is_unknown(response: Response | None) -> bool:
    """Return whether the store may have done what was asked for: no response came, or it failed midway."""
    return response is None or (response.status >= _FAILED and response.status not in _BUSY)


class _Prepared(Exception):
    """A request is prepared, and is not sent. It comes with its route; None if libcurl cannot sign it."""


def _learn(client: S3Client, bucket: str, operation: str) -> Route | None:
    meta: Any = client.meta
    taken = meta.service_model.operation_model(operation).input_shape.members
    arguments = {name: value for name, value in (("UploadId", "u"), ("PartNumber", 1)) if name in taken}
    try:
        getattr(client, xform_name(operation))(Bucket=bucket, Key=_KEY, **arguments)
    except _Prepared as prepared:
        request, route = prepared.args
    else:
        return None
    answers = meta.events.emit(f"before-send.s3.{operation}", request=request.prepare())
    is_stood_in_for = any(answer is not None for _, answer in answers)
    return None if is_stood_in_for or bucket.startswith("arn:") else route


def _before_sign(
    request: AWSRequest,
    signing_name: str,
    region_name: str,
    signature_version: str,
    request_signer: RequestSigner,
    **_: object,
) -> None:
    url, key = str(request.url).partition(_KEY)[:2]
    if not key:
        return
    # What the client learned from a redirect takes precedence over its own region.
    signing = {"region": region_name, "signing_name": signing_name} | (request.context.get("signing") or {})
    signer: Any = request_signer.get_auth_instance(signing_name, region_name, signature_version)
    found: list[tuple[str, Any]] = list(request.headers.items())
    headers = {name: text.decode("latin-1") if isinstance(text, bytes) else text for name, text in found}
    own = (f"{name}: {text}" for name, text in headers.items() if not name.lower().startswith(_OF_REQUESTS))
    route = Route(url, signing["region"], headers.get("User-Agent", ""), tuple(own), signer.credentials)
    raise _Prepared(request, route if (signing["signing_name"], signature_version) in _SIGNATURES else None)

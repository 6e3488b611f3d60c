"""The fast path of `ObjectStore.perform`: thousands of small requests from one thread, through libcurl.

boto3 spends about a millisecond of CPU on a request, which limits a commit to under a thousand files per
second, whatever the store can do. Here one loop in the caller's thread draws calls, sends each once, and
yields what its response settles: plain successes, and the answer that an upload is gone, which a repeated
commit gets by the million. After anything else the boto3 store makes the call again: it knows redirects,
renewed credentials, throttling and errors. Uploads are started, and small parts sent, by the same rule.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import pycurl

from airflow_s3commit.exceptions import NoSuchUpload, OutcomeUnknown, S3CommitError, Unavailable
from airflow_s3commit.store.base import Abort, Call, Complete, Get, Head, Outcome
from airflow_s3commit.store.execute import Throttle, with_threads
from airflow_s3commit.store.s3.connections import Connections, Handle, Response, connection_options
from airflow_s3commit.store.s3.request import Request, completion_body, fetched_object
from airflow_s3commit.store.s3.route import Route, are_plain, learn_route, target_of

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

    from airflow_s3commit.store.base import ObjectStore

#: The calls of `ObjectStore.perform` that libcurl makes.
FastCall: TypeAlias = Complete | Abort | Head | Get

# Responses without an object are short. Nobody needs the headers of those that come by the thousand, and a
# callback for each costs a thirtieth of the whole request.
_SHORT = {pycurl.MAXFILESIZE: 1 << 16}
_HEADLESS = {pycurl.HEADERFUNCTION: None, **_SHORT}

# S3's name of each kind of call, and its own options of libcurl. `Request` starts an upload, or sends a part.
_KINDS: dict[type, tuple[str, dict[int, Any]]] = {
    Complete: ("CompleteMultipartUpload", {pycurl.POST: True, **_HEADLESS}),
    Abort: ("AbortMultipartUpload", {pycurl.CUSTOMREQUEST: "DELETE", **_HEADLESS}),
    Head: ("HeadObject", {pycurl.NOBODY: True}),
    Get: ("GetObject", {pycurl.HTTPGET: True}),
    Request: ("", {pycurl.POST: True, **_SHORT}),
}

#: Seconds for which a prepared request serves: the client renews its credentials in time, and it may have
#: been redirected to another region.
ROUTE_SECONDS = 1.0

#: Maximum seconds that the loop sleeps.
_MAX_WAIT = 1.0

_OK, _NO_CONTENT, _NOT_FOUND, _FAILED = 200, 204, 404, 500

#: Statuses of a store that gets too many requests; with one of these it has not done what was asked for. A
#: completion may get the code in the body of a 200.
_BUSY = frozenset({429, 503})
_SLOW_DOWN = b"<Code>SlowDown</Code>"

#: Bytes of the largest part that is sent here: libcurl copies it.
SMALL = 1 << 20

# An id with entities is left to boto3.
_find_upload = re.compile(rb"<UploadId>([^<>&]+)</UploadId>").search

# The usual result of a completion: elements without attributes or children, one of them an ETag of letters,
# digits and hyphens. Possessive quantifiers prevent backtracking, except of groups: before Python 3.11.5 such
# never match. The usual declaration and namespace are literal: several times as fast as character sets.
_DECLARATION = rb"(?:<\?xml version=\"1\.0\" encoding=\"UTF-8\"\?>|<\?xml [^<>&]*\?>)"
_XMLNS = rb"(?: xmlns=\"(?:http://s3\.amazonaws\.com/doc/2006-03-01/|[^\"<>&]*+)\")"
_LEAF = rb"\s*+<(?!ETag>)([A-Za-z0-9]++)>[^<>&]*+</\%d>"
_whole_result = re.compile(
    rb"\s*+(?:%b\s*+)?<CompleteMultipartUploadResult%b?>(?:%b)*"
    rb"\s*+<ETag>(&quot;|&#34;|\"|)([A-Za-z0-9-]++)\2</ETag>(?:%b)*"
    rb"\s*+</CompleteMultipartUploadResult>\s*+" % (_DECLARATION, _XMLNS, _LEAF % 1, _LEAF % 4)
).fullmatch

T = TypeVar("T")
Lent = TypeVar("Lent", Connections, Handle)

#: Calls that are left to boto3, each with its tag and whether it may have happened already.
_Left: TypeAlias = list[tuple[tuple[T, bool], Call]]


class FastPath:
    """The state that all runs on one client share; safe to use from several threads.

    ``fallback`` makes the calls that libcurl cannot make, in ``threads`` threads: all of them where a handler
    of the client's events responds in place of the store, as test doubles do. ``retries`` counts responses
    that settled nothing.

    Raises:
        UnsupportedClient: The client has settings that libcurl is not given.
    """

    def __init__(self, client: S3Client, fallback: ObjectStore, threads: int, throttle: Throttle) -> None:
        common = connection_options(client)
        self._options = {kind: common | own for kind, (_, own) in _KINDS.items()}
        self._learned = lru_cache(64)(lambda bucket, operation, _: learn_route(client, bucket, operation))
        self.fallback = fallback
        self.threads = threads
        self.throttle = throttle
        self.retries = 0
        # By process: a forked one leaves its parent's connections alone. It does not close them either, which
        # would end TLS sessions that the parent still uses.
        self._idle: defaultdict[tuple[int, object], deque[Any]] = defaultdict(deque)

    def route(self, bucket: str, operation: str) -> Route | None:
        """Return the route of an operation on a bucket; None if only the client can send it."""
        return self._learned(bucket, operation, int(self.throttle.clock.monotonic() / ROUTE_SECONDS))

    def send(
        self, request: Request, query: str, headers: Mapping[str, str], body: memoryview
    ) -> dict[str, str]:
        """Start an upload, or send a part of one; return the id or the ETag, as boto3 names them.

        An empty result leaves the request to boto3, as any body of more than `SMALL` bytes.

        Raises:
            OutcomeUnknown: The request may have taken effect.
        """
        target = target_of(request, query)
        is_ours = target and body.nbytes <= SMALL and are_plain(headers)
        route = self.route(request.bucket, request.operation) if is_ours else None
        if route is None:
            return {}
        with self._lent(Handle, Request, self._options[Request]) as handle:
            handle.aim(route, target, body.tobytes(), headers)
            handle.curl.setopt(pycurl.CUSTOMREQUEST, route.method)
            response = handle.ask()
        if response.status >= _FAILED and not _is_busy(response):
            raise request.unconfirmed("the response is missing, or an error of the store")
        if response.status != _OK:
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
        left: _Left[T] = []
        done: list[tuple[T, Outcome]] = []
        with self._lent(Connections, self._options, self.throttle.most) as pool:
            try:
                while pause is not None or pool.busy or left or done:
                    if pause is not None:
                        pause = self._start(pool, source, left)
                    yield from done
                    is_waiting = pool.busy or (pause and not left)
                    done = self._settle(pool, left, pause or _MAX_WAIT) if is_waiting else []
                    if left and not (pool.busy or done):
                        # With nothing in flight, because nothing is read meanwhile.
                        yield from self._fall_back(left)
                        left.clear()
            finally:
                while pool.busy:
                    pool.wait(_MAX_WAIT)

    def _start(self, pool: Connections, source: Iterator[tuple[T, Call]], left: _Left[T]) -> float | None:
        """Send while there is room; return the seconds until more may be sent; None if that is all."""
        # boto3's threads make a few each of the calls that are left, with nothing else in flight.
        while len(left) < 4 * self.threads and len(pool.busy) + len(left) < self.throttle.window:
            if pause := self.throttle.pause():
                return pause
            drawn = next(source, None)
            if drawn is None:
                return None
            tag, call = drawn
            target = target_of(call) if isinstance(call, FastCall) else ""
            route = self.route(call.bucket, _KINDS[type(call)][0]) if target else None
            if route is None:
                left.append(((tag, False), call))
                continue
            handle = pool.handle(type(call))
            handle.tag = drawn
            handle.aim(route, target, completion_body(call.etags) if isinstance(call, Complete) else b"", {})
            if isinstance(call, Get):
                # libcurl compares it with the announced length, before the first byte, and with what comes.
                handle.curl.setopt(pycurl.MAXFILESIZE_LARGE, 0 if call.limit is None else max(call.limit, 1))
            pool.start(handle)
        return 0.0

    def _settle(self, pool: Connections, left: _Left[T], seconds: float) -> list[tuple[T, Outcome]]:
        """Wait for responses; return the outcomes that they settle, and leave the other calls."""
        done: list[tuple[T, Outcome]] = []
        ended = pool.wait(seconds)
        now = self.throttle.clock.time()
        for (tag, call), response in ended:
            try:
                done.append((tag, plain_outcome(call, response, now)))
            except UNSETTLED:
                if is_busy := _is_busy(response):
                    self.throttle.slow_down()
                is_open = response.status == _OK or response.status >= _FAILED
                may_have_happened = is_open and not is_busy and not isinstance(call, Get | Head)
                left.append(((tag, may_have_happened), call))
        self.retries += len(ended) - len(done)
        if pool.has_waited:
            # A thread that never waits for the store would send no faster on more pool.
            self.throttle.succeeded(len(done))
        return done

    def _fall_back(self, left: _Left[T]) -> Iterator[tuple[T, Outcome]]:
        """Make calls through the boto3 store."""
        for (tag, may_have_happened), outcome in with_threads(self.fallback, left, self.threads):
            if may_have_happened and isinstance(outcome, Unavailable):
                # The first attempt may have taken effect all the same.
                outcome = OutcomeUnknown(f"{outcome}; an earlier attempt may or may not have taken effect")  # noqa: PLW2901
            yield tag, outcome

    @contextmanager
    def _lent(self, make: Callable[..., Lent], *arguments: Any) -> Iterator[Lent]:
        """Lend connections to one thread, and keep them for the next one unless there is an error."""
        idle = self._idle[os.getpid(), make]
        try:
            lent = idle.pop()
        except IndexError:
            lent = make(*arguments)
        yield lent
        idle.append(lent)


#: What `plain_outcome` raises.
UNSETTLED = (OverflowError, S3CommitError, ValueError)


def plain_outcome(call: FastCall, response: Response, now: float) -> Outcome:
    """Return the outcome that a response settles by itself; raise one of `UNSETTLED` if it settles none.

    A response without a Date was made ``now``, in seconds since the epoch.
    """
    status, body = response.status, response.body
    is_gone = status == _NOT_FOUND and b"<Code>NoSuchUpload</Code>" in body
    match call:
        case Complete() if status == _OK and (result := _whole_result(body)):
            return result[3].decode()
        case Complete() if is_gone:
            request = Request("CompleteMultipartUpload", call.bucket, call.key, call.upload_id)
            return NoSuchUpload(f"{request}: NoSuchUpload")
        case Abort() if is_gone or status == _NO_CONTENT:
            return None
        case Head() | Get() if status == _OK:
            request = Request(_KINDS[type(call)][0], call.bucket, call.key)
            fetched = fetched_object(request, response.headers, body, now)
            if isinstance(call, Head):
                return fetched.info
            if len(body) == fetched.info.size and (call.limit is None or len(body) <= call.limit):
                return fetched
    raise ValueError("no plain success")


def _is_busy(response: Response) -> bool:
    """Return whether the store has refused a request for now, and not done what was asked for."""
    return response.status in _BUSY or _SLOW_DOWN in response.body

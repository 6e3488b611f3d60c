"""The fast path of `ObjectStore.perform`: thousands of small requests from one thread, through libcurl.

boto3 spends about two milliseconds of CPU on a request, which limits a commit to some four hundred files per
second, whatever the store can do. Here one loop in the caller's thread draws calls, sends each once, and
yields what its response settles. Any other call goes to the boto3 store, in a thread of its own, with that
store's retries. Code that runs once per file is kept short, because a commit may have a million of them.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import chain
from typing import TYPE_CHECKING, Generic, TypeVar

from airflow_s3commit.exceptions import OutcomeUnknown, Unavailable
from airflow_s3commit.store.base import Call, Complete, DeleteMany, Get, Head, Outcome, Put
from airflow_s3commit.store.execute import make_call, with_threads
from airflow_s3commit.store.s3.client import fits_in_bulk
from airflow_s3commit.store.s3.curl.messages import (
    OK,
    OPERATIONS,
    NotPlain,
    Response,
    body_of,
    completed_etag,
    is_sendable,
    path_of,
    plain_outcome,
)
from airflow_s3commit.store.s3.request import content_md5

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow_s3commit.store.s3.curl.connections import Connections
    from airflow_s3commit.store.s3.curl.session import CurlSession, Route

#: Maximum seconds that the loop sleeps; and while boto3 makes calls too, which do not wake it.
MAX_WAIT, SHORT_WAIT = 1.0, 0.02

#: Statuses by which a store says that a bucket, or a signature's region, is another one.
REDIRECTS = frozenset({301, 302, 307, 308, 400})

#: Statuses of a store that gets too many requests; with one of these it has not done what was asked for.
BUSY = frozenset({429, 503})
SLOW_DOWN = b"<Code>SlowDown</Code>"
FAILED = 500

T = TypeVar("T")


def perform(session: CurlSession, calls: Iterable[tuple[T, Call]]) -> Iterator[tuple[T, Outcome]]:
    """Make many calls; see `ObjectStore.perform`.

    Closing the iterator draws no further call, and waits for those that were sent.
    """
    source = iter(calls)
    first = next(source, None)
    if first is None:
        return
    everything = chain((first,), source)
    kind = type(first[1])
    if kind is Put or session.endpoints.find(first[1].bucket, OPERATIONS[kind]) is None:
        yield from with_threads(session.fallback, everything, session.threads)
        return
    with session.connections() as connections:
        yield from EventLoop(session, connections, everything).run()


class EventLoop(Generic[T]):
    """One run of `perform`.

    Args:
        session: The state shared with the store's other runs.
        connections: The connections to send on; no other run uses them meanwhile.
        calls: The calls, each with its caller's tag.

    """

    def __init__(
        self, session: CurlSession, connections: Connections, calls: Iterator[tuple[T, Call]]
    ) -> None:
        self._session = session
        self._throttle = session.throttle
        self._clock = session.retry.clock
        self._connections = connections
        self._done: deque[tuple[T, Outcome]] = deque()
        self._source = calls
        self._is_drawn = False
        self._held_back = 0.0
        self._routes: dict[tuple[str, type[Call]], Route] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._left: dict[Future[Outcome], T] = {}

    def run(self) -> Iterator[tuple[T, Outcome]]:
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
        self._routes.clear()
        self._held_back = 0.0
        while (
            not self._is_drawn and max(connections.in_flight + len(left), len(self._done)) < throttle.window
        ):
            if throttle.is_bounded:
                self._held_back = throttle.pause()
                if self._held_back:
                    return
                throttle.sent()
            try:
                tag, call = next(self._source)
            except StopIteration:
                self._is_drawn = True
                return
            self._send(tag, call)

    def _send(self, tag: T, call: Call) -> None:
        kind = type(call)
        try:
            route = self._routes[call.bucket, kind]
        except KeyError:
            route = self._routes[call.bucket, kind] = (
                None if kind is Put else self._session.route(call.bucket, OPERATIONS[kind])
            )
        if route is None or not is_sendable(call) or (kind is DeleteMany and not self._is_in_bulk(call)):
            self._leave(tag, call)
            return
        body = body_of(call)
        self._connections.start(
            (tag, call),
            OPERATIONS[kind],
            *route,
            path=path_of(call),
            body=body,
            header=f"Content-MD5: {content_md5(body)}" if kind is DeleteMany else None,
            limit=call.limit if isinstance(call, Get) else None,
        )

    def _is_in_bulk(self, call: Call) -> bool:
        """Return whether one request can delete all objects, by their ETags if they have some."""
        assert isinstance(call, DeleteMany)
        return self._session.fallback.profile(call.bucket).bulk_etags and all(map(fits_in_bulk, call.objects))

    def _wait(self) -> None:
        longest = SHORT_WAIT if self._left else MAX_WAIT
        seconds = min(longest, self._held_back) if self._held_back else longest
        if self._connections.in_flight:
            self._take(self._connections.wait(seconds))
        elif not self._left:
            self._clock.sleep(seconds)
        if self._left:
            timeout = 0.0 if self._connections.in_flight else seconds
            for future in wait(self._left, timeout, FIRST_COMPLETED).done:
                self._done.append((self._left.pop(future), future.result()))

    def _take(self, ended: list[tuple[tuple[T, Call], Response | None]]) -> None:
        """Take the responses that ended."""
        done, succeeded = self._done, 0
        for (tag, call), response in ended:
            etag = completed_etag(response) if type(call) is Complete else None
            try:
                if response is None:
                    raise NotPlain
                outcome = etag or plain_outcome(call, response, self._clock.time())
            except NotPlain:
                self._learn(call, response)
                self._leave(tag, call, _may_have_happened(call, response))
                continue
            done.append((tag, outcome))
            succeeded += 1
        if succeeded:
            self._throttle.succeeded(succeeded, self._connections.idle)

    def _learn(self, call: Call, response: Response | None) -> None:
        """Send less at once, or look anew where requests go, after a response that asks for it."""
        self._session.retries += 1
        if response is None:
            return
        if response.status in REDIRECTS:
            self._session.endpoints.forget(call.bucket)
            self._routes.clear()
        elif response.status in BUSY or SLOW_DOWN in response.body:
            # A completion may get it in the body of a 200.
            self._throttle.slow_down()

    def _leave(self, tag: T, call: Call, may_have_happened: bool = False) -> None:
        """Leave a call to the boto3 store."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._session.threads, thread_name_prefix="s3commit")
        self._left[self._pool.submit(self._make, call, may_have_happened)] = tag

    def _make(self, call: Call, may_have_happened: bool) -> Outcome:
        outcome = make_call(self._session.fallback, call)
        if may_have_happened and isinstance(outcome, Unavailable):
            # The first attempt may have taken effect all the same.
            return OutcomeUnknown(f"{outcome}; an earlier attempt may or may not have taken effect")
        return outcome


def _may_have_happened(call: Call, response: Response | None) -> bool:
    """Return whether a call that changes something may have done so, although it was not confirmed."""
    if isinstance(call, Get | Head):
        return False
    if response is None or (response.status == OK and SLOW_DOWN not in response.body):
        return True
    return response.status >= FAILED and response.status not in BUSY

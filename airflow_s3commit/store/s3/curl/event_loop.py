"""The fast path of `ObjectStore.perform`: thousands of small requests from one thread, through libcurl.

boto3 spends about two milliseconds of CPU on a request, which limits a commit to some four hundred files per
second, whatever the store can do. Here one loop in the caller's thread draws calls, sends, retries and
yields. Calls that libcurl cannot make go to the boto3 store. Code that runs once per file is kept short,
because a commit may have a million of them.
"""

from __future__ import annotations

from collections import deque
from itertools import chain
from typing import TYPE_CHECKING, Generic, TypeVar

from airflow_s3commit.exceptions import (
    AccessDenied,
    NoSuchUpload,
    OutcomeUnknown,
    S3CommitError,
    Unavailable,
)
from airflow_s3commit.store.base import Abort, Call, Complete, DeleteMany, Outcome, Put
from airflow_s3commit.store.execute import make_call, with_threads
from airflow_s3commit.store.s3.client import fits_in_bulk, refuses_etags
from airflow_s3commit.store.s3.curl.decoding import (
    Response,
    completed_etag,
    is_redirect,
    is_throttled,
    read_response,
)
from airflow_s3commit.store.s3.curl.request import (
    OPERATIONS,
    ActiveCall,
    Pauses,
    body_of,
    is_plain_path,
    path_of,
)
from airflow_s3commit.store.s3.errors import NOT_KNOWN, translate
from airflow_s3commit.store.s3.request import content_md5

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow_s3commit.store.s3.curl.connections import Connections
    from airflow_s3commit.store.s3.curl.session import CurlSession, Route

#: Maximum seconds that the loop sleeps.
MAX_WAIT = 1.0

#: Seconds that a pause may be shortened by: finer than a sleep is accurate.
TICK = 0.001

T = TypeVar("T")


def perform(session: CurlSession, calls: Iterable[tuple[T, Call]]) -> Iterator[tuple[T, Outcome]]:
    """Make many calls; see `ObjectStore.perform`.

    Closing the iterator waits for the attempts in flight and retries none of them.
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
        self._ready: deque[ActiveCall] = deque()
        self._pauses = Pauses()
        self._done: deque[tuple[T, Outcome]] = deque()
        self._source = calls
        self._is_drawn = False
        self._held_back = 0.0
        self._now = self._clock.monotonic()
        self._routes: dict[tuple[str, type[Call]], Route] = {}

    def run(self) -> Iterator[tuple[T, Outcome]]:
        """Make the calls, and yield each one's tag with its outcome."""
        done = self._done
        try:
            while True:
                self._fill()
                while done:
                    yield done.popleft()
                if self._connections.in_flight or self._pauses or self._held_back:
                    self._wait()
                elif self._is_drawn:
                    return
        finally:
            while self._connections.in_flight:
                self._connections.wait(MAX_WAIT)

    def _fill(self) -> None:
        """Send while there is room: retries first, then new calls."""
        throttle, connections, ready = self._throttle, self._connections, self._ready
        self._now = self._clock.monotonic()
        ready.extend(self._pauses.over(self._now + TICK))
        self._routes.clear()
        self._held_back = 0.0
        while connections.in_flight < throttle.window:
            if throttle.is_bounded:
                self._held_back = throttle.pause()
                if self._held_back:
                    return
            active = ready.popleft() if ready else self._draw()
            if active is None:
                return
            if throttle.is_bounded:
                throttle.sent()
            self._send(active)

    def _draw(self) -> ActiveCall | None:
        window = self._throttle.window
        if (
            self._is_drawn
            or self._connections.in_flight + len(self._pauses) >= window
            or len(self._done) >= window
        ):
            return None
        try:
            tag, call = next(self._source)
        except StopIteration:
            self._is_drawn = True
            return None
        return ActiveCall(tag, call, self._now)

    def _send(self, active: ActiveCall) -> None:
        call = active.call
        kind = type(call)
        if active.endpoint is None:
            # The first attempt: an invalid call is never sent.
            try:
                active.check()
            except S3CommitError as error:
                self._done.append((active.tag, error))
                return
        route: Route = None
        failure: Exception | None = None
        try:
            route = self._routes[call.bucket, kind]
        except KeyError:
            try:
                route = self._routes[call.bucket, kind] = self._session.route(call.bucket, OPERATIONS[kind])
            except Exception as error:
                failure = error
        if failure is not None:
            # Outside the except block: an error created there would have this one as its context.
            self._finish(active, failure)
            return
        if isinstance(call, DeleteMany):
            self._send_deletes(active, call, route)
        elif isinstance(call, Put) or route is None or not is_plain_path(call.key):
            self._fall_back(active)
        else:
            active.endpoint, active.keys = route
            self._connections.start(
                active, OPERATIONS[kind], *route, path=path_of(call), body=body_of(call), limit=active.limit
            )

    def _send_deletes(self, active: ActiveCall, call: DeleteMany, route: Route) -> None:
        if not call.objects:
            self._done.append((active.tag, []))
        elif (
            route is None
            or not self._session.fallback.profile(call.bucket).bulk_etags
            or not all(map(fits_in_bulk, call.objects))
        ):
            self._fall_back(active)
        else:
            active.endpoint, active.keys = route
            body = body_of(call)
            self._connections.start(
                active,
                OPERATIONS[DeleteMany],
                *route,
                path="",
                body=body,
                header=f"Content-MD5: {content_md5(body)}",
            )

    def _wait(self) -> None:
        waits = [MAX_WAIT]
        if self._held_back:
            waits.append(self._held_back)
        if self._pauses:
            waits.append(max(0.0, self._pauses.next_due - self._clock.monotonic()))
        if not self._connections.in_flight:
            self._clock.sleep(min(waits))
            return
        done, succeeded = self._done, 0
        for active, response in self._connections.wait(min(waits)):
            etag = completed_etag(response) if type(active.call) is Complete else None
            if etag is not None:
                done.append((active.tag, etag))
                succeeded += 1
            else:
                succeeded += self._finish(active, response)
        if succeeded:
            self._throttle.succeeded(succeeded, self._connections.idle)
            self._pauses.store_answered(self._clock.monotonic())

    def _finish(self, active: ActiveCall, response: Response | Exception) -> bool:
        """Handle the end of an attempt, and return whether the call succeeded."""
        if is_redirect(response):
            self._redirect(active)
            return False
        outcome: Outcome
        try:
            outcome = read_response(active.request, response, self._clock.time(), active.limit)
        except (OutcomeUnknown, Unavailable) as error:
            if is_throttled(response, error):
                self._throttle.slow_down()
            self._retry(active, error, cut_off=isinstance(response, Exception))
            return False
        except S3CommitError as error:
            if isinstance(error, AccessDenied) and self._reauthenticates(active):
                self._ready.append(active)
                return False
            if isinstance(active.call, DeleteMany) and refuses_etags(error, active.call.objects):
                self._fall_back(active)
                return False
            if isinstance(active.call, Abort) and getattr(error, "code", None) in NOT_KNOWN:
                self._fall_back(active)
                return False
            outcome = None if _is_aborted_already(active.call, error) else error
        self._done.append((active.tag, outcome))
        return not isinstance(outcome, S3CommitError)

    def _retry(self, active: ActiveCall, error: OutcomeUnknown | Unavailable, *, cut_off: bool) -> None:
        try:
            pause = active.retries(self._session.retry).pause_after(error)
        except S3CommitError as last:
            self._done.append((active.tag, last))
        else:
            self._session.retries += 1
            self._pauses.add(active, self._clock.monotonic() + pause, cut_off=cut_off)

    def _reauthenticates(self, active: ActiveCall) -> bool:
        """Return whether the credentials have changed since a refused call: it is retried once then."""
        if active.was_reauthenticated or active.endpoint is None:
            return False
        active.was_reauthenticated = True
        self._routes.clear()
        try:
            return self._session.credentials(active.endpoint, refresh=True) != active.keys
        except Exception as error:
            translate(error, active.request)
            return False

    def _redirect(self, active: ActiveCall) -> None:
        endpoints = self._session.endpoints
        if active.endpoint is not endpoints.find(active.call.bucket, active.request.operation):
            self._ready.append(active)
            return
        # The client follows redirects and remembers where they led.
        self._fall_back(active)
        endpoints.forget(active.call.bucket)
        self._routes.clear()

    def _fall_back(self, active: ActiveCall) -> None:
        self._done.append((active.tag, make_call(self._session.fallback, active.call)))


def _is_aborted_already(call: Call, error: S3CommitError) -> bool:
    return isinstance(call, Abort) and isinstance(error, NoSuchUpload)

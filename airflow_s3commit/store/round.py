"""One run of many calls over libcurl: draw, send, pause and send again, yield.

Whatever takes place once for each file is written to be short: a commit is a million of them.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from airflow_s3commit.exceptions import AccessDenied, NoSuchUpload, OutcomeUnknown, S3CommitError, Unavailable
from airflow_s3commit.store.base import Abort, Call, Complete, DeleteMany, Outcome
from airflow_s3commit.store.bulk_delete import fits_in_bulk, refuses_etags
from airflow_s3commit.store.calls import make_call
from airflow_s3commit.store.errands import Errand, Recess
from airflow_s3commit.store.errors import CLIENT_ERRORS
from airflow_s3commit.store.replies import Reply, completed_etag, is_misdirected, is_too_much, read_reply
from airflow_s3commit.store.spelling import OPERATIONS, body_of, content_md5, is_plain, path_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from botocore.credentials import ReadOnlyCredentials

    from airflow_s3commit.store.addresses import Address
    from airflow_s3commit.store.curl import Lines
    from airflow_s3commit.store.transport import CurlTransport

    #: How and as whom an operation is sent; None if only the client itself can.
    Way: TypeAlias = tuple[Address, ReadOnlyCredentials] | None

__all__ = ["Round"]

#: Seconds that the loop sleeps at most.
LONGEST_WAIT = 1.0

#: Seconds that a pause may be shortened by: less than a clock can be trusted to sleep.
TICK = 0.001

T = TypeVar("T")


class Round(Generic[T]):
    """One run of `CurlTransport.perform`.

    Args:
        transport: Whose run it is.
        lines: What it sends on; nobody else uses them meanwhile.
        calls: The calls, each with its caller's tag.

    """

    def __init__(self, transport: CurlTransport, lines: Lines, calls: Iterator[tuple[T, Call]]) -> None:
        self._transport = transport
        self._throttle = transport.throttle
        self._clock = transport.retry.clock
        self._lines = lines
        self._ready: deque[Errand] = deque()
        self._recess = Recess()
        self._done: deque[tuple[T, Outcome]] = deque()
        self._source = calls
        self._is_drawn = False
        self._held_back = 0.0
        self._now = self._clock.monotonic()
        self._ways: dict[tuple[str, type[Call]], Way] = {}

    def run(self) -> Iterator[tuple[T, Outcome]]:
        """Make the calls, and yield each one's tag with what became of it."""
        done = self._done
        self._throttle.begin()
        try:
            while True:
                self._fill()
                while done:
                    yield done.popleft()
                if self._lines.busy or self._recess or self._held_back:
                    self._turn()
                elif self._is_drawn:
                    return
        finally:
            while self._lines.busy:
                self._lines.turn(LONGEST_WAIT)

    def _fill(self) -> None:
        """Send what may be sent: first what waited for it, then new calls."""
        throttle, lines, ready = self._throttle, self._lines, self._ready
        self._now = self._clock.monotonic()
        ready.extend(self._recess.over(self._now + TICK))
        self._ways.clear()
        self._held_back = 0.0
        while lines.busy < throttle.window:
            if throttle.is_bounded:
                self._held_back = throttle.pause()
                if self._held_back:
                    return
            errand = ready.popleft() if ready else self._draw()
            if errand is None:
                return
            if throttle.is_bounded:
                throttle.sent()
            self._send(errand)

    def _draw(self) -> Errand | None:
        window = self._throttle.window
        if self._is_drawn or self._lines.busy + len(self._recess) >= window or len(self._done) >= window:
            return None
        try:
            tag, call = next(self._source)
        except StopIteration:
            self._is_drawn = True
            return None
        return Errand(tag, call, self._now)

    def _send(self, errand: Errand) -> None:
        call = errand.call
        kind = type(call)
        if errand.address is None:
            # On the first attempt: what may not be sent at all is found out before it is.
            try:
                errand.check()
            except S3CommitError as error:
                self._done.append((errand.tag, error))
                return
        way: Way = None
        failure: Exception | None = None
        try:
            way = self._ways[call.bucket, kind]
        except KeyError:
            try:
                way = self._ways[call.bucket, kind] = self._way(call.bucket, OPERATIONS[kind])
            except CLIENT_ERRORS as error:
                failure = error
        if failure is not None:
            # Only now: an error made while this one is handled would keep it as its context.
            self._settle(errand, failure)
            return
        if isinstance(call, DeleteMany):
            self._send_deletes(errand, call, way)
        elif way is None or not is_plain(call.key):
            self._refer(errand)
        else:
            errand.address, errand.keys = way
            self._lines.start(
                errand, OPERATIONS[kind], *way, path=path_of(call), body=body_of(call), limit=errand.limit
            )

    def _send_deletes(self, errand: Errand, call: DeleteMany, way: Way) -> None:
        if not call.doomed:
            self._done.append((errand.tag, []))
        elif (
            way is None
            or call.bucket in self._transport.without_etags
            or not all(map(fits_in_bulk, call.doomed))
        ):
            self._refer(errand)
        else:
            errand.address, errand.keys = way
            body = body_of(call)
            self._lines.start(
                errand, OPERATIONS[DeleteMany], *way, path="", body=body, header=content_md5(body)
            )

    def _way(self, bucket: str, operation: str) -> Way:
        """Return how and as whom an operation is sent; None if only the client itself can."""
        address = self._transport.book.find(bucket, operation)
        keys = None if address is None else self._transport.keys(address)
        return None if address is None or keys is None else (address, keys)

    def _turn(self) -> None:
        waits = [LONGEST_WAIT]
        if self._held_back:
            waits.append(self._held_back)
        if self._recess:
            waits.append(max(0.0, self._recess.ends - self._clock.monotonic()))
        if not self._lines.busy:
            self._clock.sleep(min(waits))
            return
        done, answered = self._done, 0
        for errand, reply in self._lines.turn(min(waits)):
            etag = completed_etag(reply) if type(errand.call) is Complete else None
            if etag is not None:
                done.append((errand.tag, etag))
                answered += 1
            else:
                answered += self._settle(errand, reply)
        if answered:
            self._throttle.succeeded(answered)
            self._ready.extend(self._recess.cut_short(answered, self._clock.monotonic()))

    def _settle(self, errand: Errand, reply: Reply | Exception) -> bool:
        """Take an attempt's end in, and tell whether the store did what it was asked."""
        if is_misdirected(reply):
            self._redirect(errand)
            return False
        outcome: Outcome
        try:
            outcome = read_reply(errand.request, reply, self._clock.time(), errand.limit)
        except (OutcomeUnknown, Unavailable) as error:
            if is_too_much(reply, error):
                self._throttle.slow_down()
            self._retry(errand, error, cut_off=isinstance(reply, Exception))
            return False
        except S3CommitError as error:
            if isinstance(error, AccessDenied) and self._renews(errand):
                self._ready.append(errand)
                return False
            if isinstance(errand.call, DeleteMany) and refuses_etags(error, errand.call.doomed):
                self._transport.without_etags.add(errand.call.bucket)
                self._refer(errand)
                return False
            outcome = None if _is_done_already(errand.call, error) else error
        self._done.append((errand.tag, outcome))
        return not isinstance(outcome, S3CommitError)

    def _retry(self, errand: Errand, error: OutcomeUnknown | Unavailable, *, cut_off: bool) -> None:
        try:
            pause = errand.retries(self._transport.retry).pause_after(error)
        except S3CommitError as last:
            self._done.append((errand.tag, last))
        else:
            self._transport.sent_again += 1
            self._recess.add(errand, self._clock.monotonic() + pause, cut_off=cut_off)

    def _renews(self, errand: Errand) -> bool:
        """Tell whether a refused call is worth another attempt, with other credentials than before."""
        if errand.was_renewed or errand.address is None:
            return False
        errand.was_renewed = True
        self._ways.clear()
        try:
            return self._transport.keys(errand.address, afresh=True) != errand.keys
        except CLIENT_ERRORS:
            return False

    def _redirect(self, errand: Errand) -> None:
        book = self._transport.book
        if errand.address is not book.find(errand.call.bucket, errand.request.operation):
            self._ready.append(errand)
            return
        # The client follows redirects and remembers where they led.
        self._refer(errand)
        book.forget(errand.call.bucket)
        self._ways.clear()

    def _refer(self, errand: Errand) -> None:
        self._done.append((errand.tag, make_call(self._transport.reference, errand.call)))


def _is_done_already(call: Call, error: S3CommitError) -> bool:
    return isinstance(call, Abort) and isinstance(error, NoSuchUpload)

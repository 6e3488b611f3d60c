"""The fast path of `ObjectStore.perform`: thousands of small requests from one thread.

boto3 spends about two milliseconds of processor time on a request, which bounds a commit at some four
hundred files a second whatever the store could do. Here libcurl carries the requests, and one loop in the
caller's thread draws calls, sends, retries and yields. What it cannot carry it hands to the reference path.
"""

from __future__ import annotations

import os
from collections import deque
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Generic, TypeVar

from airflow_s3commit.exceptions import AccessDenied, NoSuchUpload, OutcomeUnknown, S3CommitError, Unavailable
from airflow_s3commit.store.addresses import Address, AddressBook
from airflow_s3commit.store.base import Abort, Call, Complete, DeleteMany, Outcome
from airflow_s3commit.store.bulk_delete import refuses_etags
from airflow_s3commit.store.calls import make_call, with_threads
from airflow_s3commit.store.curl import Lines, room_for_connections
from airflow_s3commit.store.errands import Errand, Recess
from airflow_s3commit.store.errors import CLIENT_ERRORS
from airflow_s3commit.store.line_settings import settings_of
from airflow_s3commit.store.replies import Reply, completed_etag, is_misdirected, is_too_much, read_reply
from airflow_s3commit.store.spelling import OPERATIONS, body_of, content_md5, is_plain, path_of
from airflow_s3commit.store.throttle import Throttle

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from botocore.credentials import ReadOnlyCredentials
    from mypy_boto3_s3.client import S3Client

    from airflow_s3commit.store.base import ObjectStore
    from airflow_s3commit.store.retry import RetryPolicy

__all__ = ["CurlTransport"]

#: Seconds after which the client is asked for its credentials again: it renews them in time.
KEYS_SECONDS = 1.0

#: Seconds that the loop sleeps at most.
LONGEST_WAIT = 1.0

#: Seconds that a pause may be shortened by: less than a clock can be trusted to sleep.
TICK = 0.001

T = TypeVar("T")


class CurlTransport:
    """Makes the calls of one store with libcurl; safe to use from several threads.

    Args:
        client: The boto3 client whose addresses, credentials and settings are used.
        reference: The store that makes the calls which cannot be made here.
        retry: How often and how long a request is sent again.
        threads: Threads in which ``reference`` makes calls when it has to make all of them.
        connections: Calls under way at once at most, each on a connection.
        per_second: Requests a second at most; None for no bound.

    Attributes:
        sent_again: Requests that were sent again so far.
        without_etags: Buckets whose store refuses ETags in bulk deletes.

    Raises:
        Unfit: The client has settings that are not carried over, or libcurl is too old.

    """

    def __init__(
        self,
        client: S3Client,
        reference: ObjectStore,
        *,
        retry: RetryPolicy,
        threads: int,
        connections: int,
        per_second: float | None,
    ) -> None:
        self._settings = settings_of(client)
        self.book = AddressBook(client)
        self.reference = reference
        self.retry = retry
        self.without_etags: set[str] = set()
        self.sent_again = 0
        self._threads = threads
        self._connections = room_for_connections(connections)
        self.throttle = Throttle(retry.clock, most=self._connections, per_second=per_second)
        self._idle: deque[tuple[int, Lines]] = deque()
        self._foreign: list[Lines] = []
        self._keys: tuple[Address, float, ReadOnlyCredentials | None] | None = None

    def perform(self, calls: Iterable[tuple[T, Call]]) -> Iterator[tuple[T, Outcome]]:
        """See `ObjectStore.perform`. On closing, an attempt under way is waited for and not repeated."""
        source = iter(calls)
        first = next(source, None)
        if first is None:
            return
        everything = chain((first,), source)
        if self.book.find(first[1].bucket, OPERATIONS[type(first[1])]) is None:
            yield from with_threads(self.reference, everything, self._threads)
            return
        with self._lines() as lines:
            yield from _Round(self, lines, everything).run()

    def keys(self, address: Address, *, afresh: bool = False) -> ReadOnlyCredentials | None:
        """Return the credentials to sign with; None if there are none.

        Raises:
            BotoCoreError: They could not be had.
            ClientError: The service that they come from refused.

        """
        now = self.retry.clock.monotonic()
        known = self._keys
        if known is not None and known[0] is address and now < known[1] and not afresh:
            return known[2]
        found = address.credentials()
        if known is not None and known[2] == found:
            found = known[2]
        self._keys = (address, now + KEYS_SECONDS, found)
        return found

    @contextmanager
    def _lines(self) -> Iterator[Lines]:
        lines = self._take_lines()
        try:
            yield lines
        except Exception:
            lines.close()
            raise
        except BaseException:
            if lines.busy:
                lines.close()
            else:
                self._idle.append((os.getpid(), lines))
            raise
        self._idle.append((os.getpid(), lines))

    def _take_lines(self) -> Lines:
        while True:
            try:
                process, lines = self._idle.pop()
            except IndexError:
                return Lines(self._settings, self._connections)
            # Connections that were open when a process forked stay with the one that opened them.
            if process == os.getpid():
                return lines
            # Kept, unused: to close them would say goodbye on connections that the other one still uses.
            self._foreign.append(lines)


class _Round(Generic[T]):
    """One run of `CurlTransport.perform`."""

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
        self._ways: dict[tuple[str, type[Call]], tuple[Address, ReadOnlyCredentials] | None] = {}

    def run(self) -> Iterator[tuple[T, Outcome]]:
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
        throttle, lines = self._throttle, self._lines
        self._now = self._clock.monotonic()
        self._ready.extend(self._recess.over(self._now + TICK))
        self._ways.clear()
        self._held_back = 0.0
        while lines.busy < throttle.window:
            if throttle.is_bounded:
                self._held_back = throttle.pause()
                if self._held_back:
                    return
            errand = self._ready.popleft() if self._ready else self._draw()
            if errand is None:
                return
            throttle.sent()
            self._send(errand)

    def _draw(self) -> Errand | None:
        if self._is_drawn:
            return None
        if max(self._lines.busy + len(self._recess), len(self._done)) >= self._throttle.window:
            return None
        try:
            tag, call = next(self._source)
        except StopIteration:
            self._is_drawn = True
            return None
        return Errand(tag, call, self._now)

    def _send(self, errand: Errand) -> None:
        call = errand.call
        if errand.address is None:
            # On the first attempt: what may not be sent at all is found out before it is.
            try:
                errand.check()
            except S3CommitError as error:
                self._done.append((errand.tag, error))
                return
        kind = type(call)
        if isinstance(call, DeleteMany) and not call.doomed:
            self._done.append((errand.tag, []))
            return
        try:
            way = self._ways[call.bucket, kind]
        except KeyError:
            try:
                way = self._ways[call.bucket, kind] = self._way(call.bucket, OPERATIONS[kind])
            except CLIENT_ERRORS as error:
                self._settle(errand, error)
                return
        if way is None or (kind is DeleteMany and call.bucket in self._transport.without_etags):
            self._refer(errand)
            return
        errand.address, errand.keys = way
        body = body_of(call)
        if isinstance(call, DeleteMany):
            header = content_md5(body)
            self._lines.start(errand, OPERATIONS[kind], *way, path="", body=body, header=header)
        elif is_plain(call.key):
            self._lines.start(errand, OPERATIONS[kind], *way, path=path_of(call), body=body)
        else:
            self._refer(errand)

    def _way(self, bucket: str, operation: str) -> tuple[Address, ReadOnlyCredentials] | None:
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
            outcome = read_reply(errand.request, reply, self._clock.time())
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

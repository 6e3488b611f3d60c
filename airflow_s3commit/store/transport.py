"""The fast path of `ObjectStore.perform`: thousands of small requests from one thread.

boto3 spends about two milliseconds of processor time on a request, which bounds a commit at some four
hundred files a second whatever the store could do. Here libcurl carries the requests, and one loop in the
caller's thread draws calls, sends, retries and yields. What it cannot carry it hands to the reference path.
"""

from __future__ import annotations

import os
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import chain, count
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import quote
from xml.sax.saxutils import escape

from botocore.httpsession import get_cert_path

from airflow_s3commit.exceptions import AccessDenied, NoSuchUpload, OutcomeUnknown, S3CommitError, Unavailable
from airflow_s3commit.store.addresses import Address, AddressBook
from airflow_s3commit.store.answers import quoted
from airflow_s3commit.store.base import Abort, Call, Complete, Get, Head, ObjectStore, Outcome
from airflow_s3commit.store.calls import make_call, with_threads
from airflow_s3commit.store.curl import Lines, LineSettings, is_able, room_for_connections
from airflow_s3commit.store.errors import CLIENT_ERRORS, Request
from airflow_s3commit.store.replies import Reply, is_misdirected, is_too_much, read_reply
from airflow_s3commit.store.throttle import Throttle

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from botocore.credentials import ReadOnlyCredentials
    from mypy_boto3_s3.client import S3Client

    from airflow_s3commit.store.retry import Retries, RetryPolicy

__all__ = ["CurlTransport", "Unfit"]

OPERATIONS: dict[type[Call], str] = {
    Complete: "CompleteMultipartUpload",
    Abort: "AbortMultipartUpload",
    Head: "HeadObject",
    Get: "GetObject",
}

#: Seconds after which the client is asked for its credentials again: it renews them in time.
KEYS_SECONDS = 1.0

#: Seconds that the loop sleeps at most.
LONGEST_WAIT = 1.0

#: Seconds that a pause may be shortened by: less than a clock can be trusted to sleep.
TICK = 0.001

#: Path segments that libcurl takes for directions instead of names.
DIRECTIONS = frozenset({".", ".."})

#: The namespace of S3's documents.
NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"

#: Seconds that stand for no limit: a day.
NEVER = 86_400.0

T = TypeVar("T")


class Unfit(Exception):
    """This client's requests can only be sent by itself; the message says why."""


@dataclass(slots=True, eq=False)
class _Errand(Generic[T]):
    """A call on its way."""

    tag: T
    call: Call
    request: Request
    retries: Retries
    address: Address | None = None
    keys: ReadOnlyCredentials | None = None
    was_renewed: bool = False


class CurlTransport:
    """Makes the calls of one store with libcurl; safe to use from several threads.

    Args:
        client: The boto3 client whose addresses, credentials and settings are used.
        reference: The store that makes the calls which cannot be made here.
        retry: How often and how long a request is sent again.
        threads: Threads in which ``reference`` makes calls when it has to make all of them.
        connections: Calls under way at once at most, each on a connection.
        per_second: Requests a second at most; None for no bound.

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
        self._settings = _settings(client)
        self.book = AddressBook(client)
        self.reference = reference
        self.retry = retry
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
        self._ready: deque[_Errand[T]] = deque()
        self._waiting: list[tuple[float, int, _Errand[T]]] = []
        self._order = count()
        self._done: deque[tuple[T, Outcome]] = deque()
        self._source = calls
        self._is_drawn = False
        self._held_back = 0.0

    def run(self) -> Iterator[tuple[T, Outcome]]:
        try:
            while True:
                self._fill()
                while self._done:
                    yield self._done.popleft()
                if self._lines.busy or self._waiting or self._held_back:
                    self._turn()
                elif self._is_drawn:
                    return
        finally:
            while self._lines.busy:
                for _ in self._lines.turn(LONGEST_WAIT):
                    pass

    def _fill(self) -> None:
        """Send what may be sent: first what waited for it, then new calls."""
        now = self._clock.monotonic() + TICK
        while self._waiting and self._waiting[0][0] <= now:
            self._ready.append(heappop(self._waiting)[2])
        self._held_back = 0.0
        while self._lines.busy < self._throttle.window:
            self._held_back = self._throttle.pause()
            if self._held_back:
                return
            errand = self._ready.popleft() if self._ready else self._draw()
            if errand is None:
                return
            self._throttle.sent()
            self._send(errand)

    def _draw(self) -> _Errand[T] | None:
        while not self._is_drawn:
            if max(self._lines.busy + len(self._waiting), len(self._done)) >= self._throttle.window:
                return None
            try:
                tag, call = next(self._source)
            except StopIteration:
                self._is_drawn = True
                return None
            try:
                upload = call.upload_id if isinstance(call, Complete | Abort) else None
                request = Request(OPERATIONS[type(call)], call.bucket, call.key, upload)
            except S3CommitError as error:
                self._done.append((tag, error))
                continue
            return _Errand(tag, call, request, self._transport.retry.begin())
        return None

    def _send(self, errand: _Errand[T]) -> None:
        call, operation = errand.call, errand.request.operation
        errand.address = self._transport.book.find(call.bucket, operation)
        try:
            errand.keys = None if errand.address is None else self._transport.keys(errand.address)
        except CLIENT_ERRORS as error:
            self._settle(errand, error)
            return
        if errand.address is None or errand.keys is None or not DIRECTIONS.isdisjoint(call.key.split("/")):
            self._refer(errand)
            return
        path = quote(call.key, safe="/~")
        body = b""
        if isinstance(call, Complete | Abort):
            path = f"{path}?uploadId={quote(call.upload_id, safe='-._~')}"
        if isinstance(call, Complete):
            body = _part_list(call)
        self._lines.start(errand, operation, errand.address, errand.keys, path=path, body=body)

    def _turn(self) -> None:
        waits = [LONGEST_WAIT]
        if self._held_back:
            waits.append(self._held_back)
        if self._waiting:
            waits.append(max(0.0, self._waiting[0][0] - self._clock.monotonic()))
        if not self._lines.busy:
            self._clock.sleep(min(waits))
            return
        for errand, reply in self._lines.turn(min(waits)):
            self._settle(errand, reply)

    def _settle(self, errand: _Errand[T], reply: Reply | Exception) -> None:
        if is_misdirected(reply):
            self._redirect(errand)
            return
        outcome: Outcome
        try:
            outcome = read_reply(errand.request, reply, self._clock.time())
            self._throttle.succeeded()
        except (OutcomeUnknown, Unavailable) as error:
            if is_too_much(reply, error):
                self._throttle.slow_down()
            self._retry(errand, error)
            return
        except S3CommitError as error:
            if isinstance(error, AccessDenied) and self._renews(errand):
                self._ready.append(errand)
                return
            outcome = None if _is_done_already(errand.call, error) else error
        self._done.append((errand.tag, outcome))

    def _retry(self, errand: _Errand[T], error: OutcomeUnknown | Unavailable) -> None:
        try:
            due = self._clock.monotonic() + errand.retries.pause_after(error)
        except S3CommitError as last:
            self._done.append((errand.tag, last))
        else:
            heappush(self._waiting, (due, next(self._order), errand))

    def _renews(self, errand: _Errand[T]) -> bool:
        """Tell whether a refused call is worth another attempt, with other credentials than before."""
        if errand.was_renewed or errand.address is None:
            return False
        errand.was_renewed = True
        try:
            return self._transport.keys(errand.address, afresh=True) != errand.keys
        except CLIENT_ERRORS:
            return False

    def _redirect(self, errand: _Errand[T]) -> None:
        book = self._transport.book
        if errand.address is not book.find(errand.call.bucket, errand.request.operation):
            self._ready.append(errand)
            return
        # The client follows redirects and remembers where they led.
        self._refer(errand)
        book.forget(errand.call.bucket)

    def _refer(self, errand: _Errand[T]) -> None:
        self._done.append((errand.tag, make_call(self._transport.reference, errand.call)))


def _part_list(call: Complete) -> bytes:
    parts = "".join(
        f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(quoted(etag))}</ETag></Part>"
        for number, etag in enumerate(call.etags, start=1)
    )
    return f'<CompleteMultipartUpload xmlns="{NAMESPACE}">{parts}</CompleteMultipartUpload>'.encode()


def _is_done_already(call: Call, error: S3CommitError) -> bool:
    return isinstance(call, Abort) and isinstance(error, NoSuchUpload)


def _settings(client: S3Client) -> LineSettings:
    config: Any = client.meta.config
    if not is_able():
        raise Unfit("this libcurl is too old")
    if config.proxies or config.client_cert:
        raise Unfit("it has a proxy or a certificate of its own")
    # There is no public way to ask; where this one ends, so does the fast path, and nothing else.
    session = getattr(getattr(client, "_endpoint", None), "http_session", None)
    verify = getattr(session, "_verify", None)
    if verify is None:
        raise Unfit("its authorities are not known")
    authorities = get_cert_path(verify) if verify else None
    return LineSettings(authorities, _seconds(config.connect_timeout), _seconds(config.read_timeout))


def _seconds(timeout: float | None) -> float:
    return NEVER if timeout is None else float(timeout)

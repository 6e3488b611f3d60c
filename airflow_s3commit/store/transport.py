"""The fast path of `ObjectStore.perform`: thousands of small requests from one thread.

boto3 spends about two milliseconds of processor time on a request, which bounds a commit at some four
hundred files a second whatever the store could do. Here libcurl carries the requests, and one loop in the
caller's thread, `round`, draws calls, sends, retries and yields. What it cannot carry it hands to the
reference path.
"""

from __future__ import annotations

import os
from collections import deque
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from airflow_s3commit.store.addresses import Address, AddressBook
from airflow_s3commit.store.base import Call, Outcome
from airflow_s3commit.store.calls import with_threads
from airflow_s3commit.store.curl import Lines, room_for_connections
from airflow_s3commit.store.line_settings import settings_of
from airflow_s3commit.store.round import Round
from airflow_s3commit.store.spelling import OPERATIONS
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
            yield from Round(self, lines, everything).run()

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

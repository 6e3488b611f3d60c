"""The state of the fast path of one store: endpoints, credentials, the rate, and connections to reuse."""

from __future__ import annotations

import os
import threading
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

from airflow_s3commit.store.s3.curl.connections import Connections, connection_settings, max_connections
from airflow_s3commit.store.s3.curl.endpoints import Endpoint, EndpointCache

if TYPE_CHECKING:
    from collections.abc import Iterator

    from botocore.credentials import ReadOnlyCredentials
    from mypy_boto3_s3.client import S3Client

    from airflow_s3commit._clock import Clock
    from airflow_s3commit.store.base import ObjectStore
    from airflow_s3commit.store.execute import RetryPolicy

    #: Endpoint and credentials of an operation; None if only the boto3 client can send it.
    Route: TypeAlias = tuple[Endpoint, ReadOnlyCredentials] | None

#: Requests in flight before the store has answered any.
FIRST_WINDOW = 32

#: The share of its time for which the thread must wait for the store before the window is widened. A thread
#: that waits less limits the rate itself, and more connections make each request cost it more time.
MIN_IDLE = 0.4

#: Seconds in which the window is halved at most once.
CUT_SECONDS = 1.0

#: Seconds' worth of requests that may go out together after a lull.
BURST_SECONDS = 0.02

#: The shortest pause in seconds: a few requests together cost less CPU than each by itself.
BATCH_SECONDS = 0.005

#: Seconds below which there is no pause: finer than a sleep is accurate.
SHORTEST_PAUSE = 0.0001

#: Seconds after which the client is asked for its credentials again: it renews them in time.
CREDENTIALS_SECONDS = 1.0


class Throttle:
    """The rate that a store can take, shared by all runs on it; safe to use from several threads.

    The number in flight is bounded by TCP's congestion window (RFC 5681): each success widens it by one,
    which doubles it every round trip, until the store says "slow down". Then it is halved, at most once per
    second because all requests in flight get the same response, and widened by one per window of successes.
    It is widened only while the sending thread waits for the store: a busy one would send no faster.

    Args:
        clock: Source of time.
        most: Maximum requests in flight.
        per_second: Maximum requests per second; None for no bound.

    Attributes:
        window: Requests that may be in flight now.
        is_bounded: Whether requests per second are bounded.

    """

    def __init__(self, clock: Clock, *, most: int, per_second: float | None) -> None:
        self._clock = clock
        self._most = float(most)
        self._width = min(float(FIRST_WINDOW), self._most)
        self.window = int(self._width)
        self.is_bounded = bool(per_second)
        self._interval = 1 / per_second if per_second else 0.0
        self._due = clock.monotonic() - BURST_SECONDS
        self._cut = clock.monotonic() - CUT_SECONDS
        self._was_cut = False
        self._lock = threading.Lock()

    def succeeded(self, calls: int, idle: float) -> None:
        """Widen the window after successes.

        Args:
            calls: How many calls succeeded.
            idle: The share of its recent time that the thread waited for the store, from 0 to 1.

        """
        if idle < MIN_IDLE:
            return
        with self._lock:
            growth = calls / self._width if self._was_cut else calls
            self._width = min(self._width + growth, self._most)
            self.window = int(self._width)

    def slow_down(self) -> None:
        """Halve the window, unless that was done within the last second."""
        with self._lock:
            now = self._clock.monotonic()
            if now - self._cut >= CUT_SECONDS:
                self._cut, self._was_cut = now, True
                self._width = max(1.0, self._width / 2)
                self.window = int(self._width)

    def pause(self) -> float:
        """Return the seconds until the next request may go out; 0 if it may now."""
        if not self._interval:
            return 0.0
        pause = self._due - self._clock.monotonic()
        return max(pause, BATCH_SECONDS) if pause > SHORTEST_PAUSE else 0.0

    def sent(self) -> None:
        """Count a request that went out."""
        if self._interval:
            with self._lock:
                self._due = max(self._due, self._clock.monotonic() - BURST_SECONDS) + self._interval


class CurlSession:
    """The state that all runs of `event_loop.perform` on one store share; safe to use from several threads.

    Args:
        client: The boto3 client whose endpoints, credentials and settings are used.
        fallback: The store that makes the calls which libcurl cannot make.
        retry: How often and how long a request is retried.
        threads: Threads in which ``fallback`` makes calls when it has to make all of them.
        connections: Maximum requests in flight, each on a connection.
        per_second: Maximum requests per second; None for no bound.

    Attributes:
        endpoints: The client's endpoints, by bucket and operation.
        throttle: The rate at which requests are sent.
        retries: Requests that were retried so far.

    Raises:
        UnsupportedClient: The client has settings that libcurl is not given, or libcurl is too old.

    """

    def __init__(
        self,
        client: S3Client,
        fallback: ObjectStore,
        *,
        retry: RetryPolicy,
        threads: int,
        connections: int,
        per_second: float | None,
    ) -> None:
        self._settings = connection_settings(client)
        self._max_connections = max_connections(connections)
        self.endpoints = EndpointCache(client)
        self.fallback = fallback
        self.retry = retry
        self.threads = threads
        self.throttle = Throttle(retry.clock, most=self._max_connections, per_second=per_second)
        self.retries = 0
        self._idle: deque[tuple[int, Connections]] = deque()
        self._inherited: list[Connections] = []
        self._credentials: tuple[Endpoint, float, ReadOnlyCredentials | None] | None = None

    def route(self, bucket: str, operation: str) -> Route:
        """Return where an operation is sent and how it is signed; None if only the client can send it."""
        endpoint = self.endpoints.find(bucket, operation)
        keys = None if endpoint is None else self._keys(endpoint)
        return None if endpoint is None or keys is None else (endpoint, keys)

    def _keys(self, endpoint: Endpoint) -> ReadOnlyCredentials | None:
        """Return the credentials to sign with; None without usable ones, which the client then reports."""
        now = self.retry.clock.monotonic()
        cached = self._credentials
        if cached is not None and cached[0] is endpoint and now < cached[1]:
            return cached[2]
        found = endpoint.credentials()
        if cached is not None and cached[2] == found:
            # The same object: connections compare by identity, to see that nothing has changed.
            found = cached[2]
        self._credentials = (endpoint, now + CREDENTIALS_SECONDS, found)
        return found

    @contextmanager
    def connections(self) -> Iterator[Connections]:
        """Lend connections to one run, and keep them open for the next one if it ends well."""
        connections = self._take_connections()
        try:
            yield connections
        except Exception:
            connections.close()
            raise
        except BaseException:
            if connections.in_flight:
                connections.close()
            else:
                self._idle.append((os.getpid(), connections))
            raise
        self._idle.append((os.getpid(), connections))

    def _take_connections(self) -> Connections:
        while True:
            try:
                process, connections = self._idle.pop()
            except IndexError:
                return Connections(self._settings, self._max_connections)
            # A forked process leaves its parent's connections alone.
            if process == os.getpid():
                return connections
            # Kept, because closing them would end TLS sessions that the parent still uses.
            self._inherited.append(connections)

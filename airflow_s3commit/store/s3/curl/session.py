"""What the fast path of one store keeps: endpoints, credentials, the rate, and connections to reuse."""

from __future__ import annotations

import os
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

from airflow_s3commit.store.s3.curl.connections import Connections, connection_settings, max_connections
from airflow_s3commit.store.s3.curl.endpoints import Endpoint, EndpointCache
from airflow_s3commit.store.s3.curl.rate import Throttle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from botocore.credentials import ReadOnlyCredentials
    from mypy_boto3_s3.client import S3Client

    from airflow_s3commit.store.base import ObjectStore
    from airflow_s3commit.store.retry import RetryPolicy

    #: Endpoint and credentials of an operation; None if only the boto3 client can send it.
    Route: TypeAlias = tuple[Endpoint, ReadOnlyCredentials] | None

#: Seconds after which the client is asked for its credentials again: it renews them in time.
CREDENTIALS_SECONDS = 1.0


class CurlSession:
    """The state that all runs of `event_loop.perform` on one store share; safe to use from several threads.

    Args:
        client: The boto3 client whose endpoints, credentials and settings are used.
        fallback: The store that makes the calls which libcurl cannot make.
        retry: How often and how long a request is retried.
        threads: Threads in which ``fallback`` makes calls when it has to make all of them.
        connections: Requests in flight at most, each on a connection.
        per_second: Requests per second at most; None for no bound.

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
        """Return where an operation is sent and how it is signed; None if only the client can send it.

        Raises:
            BotoCoreError: The credentials could not be loaded.
            ClientError: The credentials service refused.

        """
        endpoint = self.endpoints.find(bucket, operation)
        keys = None if endpoint is None else self.credentials(endpoint)
        return None if endpoint is None or keys is None else (endpoint, keys)

    def credentials(self, endpoint: Endpoint, *, refresh: bool = False) -> ReadOnlyCredentials | None:
        """Return the credentials to sign with; None if there are none.

        Raises:
            BotoCoreError: The credentials could not be loaded.
            ClientError: The credentials service refused.

        """
        now = self.retry.clock.monotonic()
        cached = self._credentials
        if cached is not None and cached[0] is endpoint and now < cached[1] and not refresh:
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

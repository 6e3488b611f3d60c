"""The stores behind the connections, opened so that a page need not wait long for them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

from airflow.sdk.exceptions import AirflowException

from airflow_s3commit.clock import Clock, SystemClock
from airflow_s3commit.exceptions import AccessDenied, S3CommitError, StoreRejected
from airflow_s3commit.hooks.s3_commit import S3CommitHook

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_s3commit.store.base import ObjectStore

__all__ = ["StoreBook"]

#: Seconds for which an opened store is used again; then the connection is read anew.
_FRESH = 60.0

T = TypeVar("T")


class StoreBook:
    """Opens each connection's store once a minute.

    Args:
        timeout: Seconds that one request may take.
        clock: Where time comes from.

    """

    def __init__(self, timeout: float, clock: Clock | None = None) -> None:
        self._timeout = timeout
        self._clock = clock or SystemClock()
        self._hooks: dict[str | None, tuple[float, S3CommitHook]] = {}
        self._lock = threading.Lock()

    def open(self, aws_conn_id: str | None) -> ObjectStore:
        """Return the store of a connection.

        Raises:
            AccessDenied: There is no such connection, or its credentials are incomplete.
            StoreRejected: The connection cannot be used.

        """
        return self._asked(aws_conn_id, lambda hook: hook.store)

    def endpoint_url(self, aws_conn_id: str | None) -> str | None:
        """Return where a connection's store answers; None for AWS. Raises as `open` does."""
        return self._asked(aws_conn_id, lambda hook: hook.address.endpoint_url)

    def _asked(self, aws_conn_id: str | None, ask: Callable[[S3CommitHook], T]) -> T:
        try:
            return ask(self._hook(aws_conn_id))
        except S3CommitError:
            raise
        except AirflowException as error:
            raise AccessDenied(f"the connection {aws_conn_id!r} cannot be used: {error}") from error
        except Exception as error:
            # Whatever else boto3 or the connection's own settings say of themselves.
            failure = StoreRejected(f"the connection {aws_conn_id!r} cannot be used ({type(error).__name__})")
        # Not while the other one is handled: its text may show what the connection holds.
        raise failure

    def _hook(self, aws_conn_id: str | None) -> S3CommitHook:
        now = self._clock.monotonic()
        with self._lock:
            known = self._hooks.get(aws_conn_id)
            if known is None or now - known[0] > _FRESH:
                hook = S3CommitHook(aws_conn_id, retry_deadline=self._timeout, timeout=self._timeout)
                known = self._hooks[aws_conn_id] = (now, hook)
            return known[1]

"""What sends the parts of a task attempt's files: a few threads, and a bound on what may wait for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from airflow_s3commit.exceptions import S3CommitError

__all__ = ["PartSender"]


class PartSender:
    """Sends parts from a few threads, and makes writers wait while too many bytes are on their way.

    What was given to it first is begun first, so a request may wait for one that was given to it before.

    Args:
        threads: How many parts go up at once; 0 sends each part in the writer's own thread.
        buffered_bytes: Bytes that may be on their way before a writer has to wait.

    """

    def __init__(self, threads: int, buffered_bytes: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="s3commit-part") if threads else None
        self._room = threading.Condition()
        self._limit = buffered_bytes
        self._waiting = 0

    def send(self, request: Callable[[], str], size: int) -> Future[str]:
        """Send one request as soon as there is room for its ``size`` bytes, and return its answer to come."""
        if self._pool is None:
            future: Future[str] = Future()
            try:
                future.set_result(request())
            except S3CommitError as error:
                future.set_exception(error)
            return future
        with self._room:
            self._room.wait_for(lambda: self._waiting == 0 or self._waiting + size <= self._limit)
            self._waiting += size
        future = self._pool.submit(request)
        future.add_done_callback(lambda _: self._release(size))
        return future

    def close(self) -> None:
        """Wait for what is on its way and end the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _release(self, size: int) -> None:
        with self._room:
            self._waiting -= size
            self._room.notify_all()

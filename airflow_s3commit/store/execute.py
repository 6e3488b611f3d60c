"""Making calls given as values, and returning their outcomes as values."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import islice
from typing import TypeVar

from airflow_s3commit.exceptions import S3CommitError
from airflow_s3commit.store.base import (
    Abort,
    Call,
    Complete,
    DeleteMany,
    Get,
    Head,
    ObjectStore,
    Outcome,
    Put,
)

T = TypeVar("T")
R = TypeVar("R")


def in_batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of ``size``, the last one possibly shorter; draws one list at a time."""
    source = iter(items)
    while batch := list(islice(source, size)):
        yield batch


def in_threads(function: Callable[[T], R], items: Iterable[T], threads: int) -> Iterator[R]:
    """Yield a function's results in the order of its arguments, from several threads at once.

    An exception of the function is raised in its turn; calls that have not begun by then are not made.

    Args:
        function: Called once for each item.
        items: The arguments; at most twice as many as threads are drawn ahead.
        threads: Number of calls at once; 0 makes each in the caller's thread.

    """
    if not threads:
        yield from map(function, items)
        return
    source = iter(items)
    pool = ThreadPoolExecutor(threads, thread_name_prefix="s3commit")
    try:
        running = deque(pool.submit(function, item) for item in islice(source, 2 * threads))
        while running:
            result = running.popleft().result()
            running.extend(pool.submit(function, item) for item in islice(source, 1))
            yield result
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def make_call(store: ObjectStore, call: Call) -> Outcome:  # noqa: PLR0911 - one for each verb
    """Make one call and return its outcome; an `S3CommitError` is returned, not raised."""
    try:
        match call:
            case Complete(bucket, key, upload_id, etags):
                return store.complete_upload(bucket, key, upload_id, etags)
            case Abort(bucket, key, upload_id):
                store.abort_upload(bucket, key, upload_id)
                return None
            case Head(bucket, key):
                return store.head(bucket, key)
            case Get(bucket, key, limit):
                return store.get(bucket, key, limit=limit)
            case DeleteMany(bucket, objects):
                return store.delete_many(bucket, objects)
            case Put(bucket, key, body, if_none_match, if_match, headers):
                return store.put(
                    bucket, key, body, if_none_match=if_none_match, if_match=if_match, headers=headers
                ).etag
    except S3CommitError as error:
        return error


def outcomes(
    store: ObjectStore, calls: Iterable[tuple[T, Call]], *expected: type[S3CommitError]
) -> Iterator[tuple[T, Outcome]]:
    """Make the calls and yield their outcomes in any order; raise any error that is not an expected one."""
    for tag, outcome in store.perform(calls):
        if isinstance(outcome, S3CommitError) and not isinstance(outcome, expected):
            raise outcome
        yield tag, outcome


def one_by_one(store: ObjectStore, calls: Iterable[tuple[T, Call]]) -> Iterator[tuple[T, Outcome]]:
    """Make the calls in order, in the caller's thread."""
    for tag, call in calls:
        yield tag, make_call(store, call)


def with_threads(
    store: ObjectStore, calls: Iterable[tuple[T, Call]], threads: int
) -> Iterator[tuple[T, Outcome]]:
    """Make the calls from ``threads`` threads; draw at most twice as many calls ahead."""
    source = iter(calls)
    pool = ThreadPoolExecutor(threads, thread_name_prefix="s3commit")
    running: dict[Future[Outcome], T] = {}
    try:
        while True:
            for tag, call in islice(source, 2 * threads - len(running)):
                running[pool.submit(make_call, store, call)] = tag
            if not running:
                return
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield running.pop(future), future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)

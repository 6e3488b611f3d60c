"""The stores behind the page: finds the configured destinations, and opens and reads their stores.

The destinations are those in ``[s3commit] destinations`` of Airflow's configuration. A store is read within a
time limit. Each reading runs on a thread, and HTTP requests for the same reading share it. It stops at its
next call of the store once its time is up. Each destination gets few threads, so a slow destination does not
delay the others.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar, cast

from airflow_s3commit._clock import Clock, SystemClock
from airflow_s3commit.airflow_version import AirflowException
from airflow_s3commit.exceptions import (
    AccessDenied,
    InvalidDestination,
    S3CommitError,
    StoreRejected,
    Unavailable,
)
from airflow_s3commit.hooks.s3_commit import S3CommitHook
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.settings import page_destinations
from airflow_s3commit.store.base import Call, ObjectStore, Outcome
from airflow_s3commit.store.forwarding import ForwardingStore

if TYPE_CHECKING:
    from airflow_s3commit.protocol.metadata.registry import Registered

_KEYS = frozenset({"destination", "aws_conn_id", "staging"})


@dataclass(frozen=True, slots=True)
class Place:
    """A configured destination, and how to reach it.

    Attributes:
        destination: The dataset's directory.
        aws_conn_id: The ``aws`` connection of the store; None for boto3's default credentials.
        staging_root: The root of the jobs' staging; None if it is the destination.

    """

    destination: Destination
    aws_conn_id: str | None = S3CommitHook.default_conn_name
    staging_root: Destination | None = None

    @property
    def uri(self) -> str:
        """The destination's URI."""
        return self.destination.uri


def configured_places() -> list[Place]:
    """Return the destinations in Airflow's configuration.

    Raises:
        InvalidDestination: The configuration is not valid.

    """
    return read_places(page_destinations())


def with_registered(configured: Iterable[Place], entries: Iterable[Registered]) -> list[Place]:
    """Return the configured destinations and those of a registry, one for each URI."""
    places = {place.uri: place for place in configured}
    for entry in entries:
        record = entry.record
        place = Place(record.place, record.aws_conn_id, record.staging_root)
        places.setdefault(place.uri, place)
    return list(places.values())


def read_places(text: str) -> list[Place]:
    """Parse the text of the option into destinations, without duplicates.

    The text is a JSON list of URIs, or of objects with the keys ``destination``, ``aws_conn_id`` and
    ``staging``; or a list of URIs, separated by commas or white space.

    Raises:
        InvalidDestination: The text has another form, or a URI is not a destination.

    """
    places: dict[str, Place] = {}
    for entry in _entries(text.strip()):
        place = _place(entry)
        places.setdefault(place.uri, place)
    return list(places.values())


def _entries(text: str) -> Iterator[Any]:
    if not text.startswith(("[", "{")):
        yield from filter(None, re.split(r"[\s,]+", text))
        return
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidDestination(f"[s3commit] destinations is not valid JSON: {error}") from error
    yield from found if isinstance(found, list) else [found]


def _place(entry: Any) -> Place:
    if isinstance(entry, str):
        return Place(Destination.parse(entry))
    if not isinstance(entry, Mapping) or not isinstance(entry.get("destination"), str):
        raise InvalidDestination(
            f"[s3commit] destinations: {entry!r} is neither a URI nor an object with the key destination"
        )
    if unknown := sorted(entry.keys() - _KEYS):
        raise InvalidDestination(
            f"[s3commit] destinations: unknown key {', '.join(unknown)}; use {', '.join(sorted(_KEYS))}"
        )
    staging = entry.get("staging")
    destination = Destination.parse(entry["destination"])
    root = Destination.parse(str(staging)) if staging else None
    return Place(
        destination,
        entry.get("aws_conn_id", S3CommitHook.default_conn_name),
        None if root == destination else root,
    )


def load_clients() -> None:
    """Import what opens stores, and create a first client, which takes seconds. Sends no request.

    Otherwise the first page after a restart spends its time on this, and cannot read everything.
    """
    from airflow.providers.amazon.aws.hooks.s3 import S3Hook  # noqa: F401, PLC0415

    from airflow_s3commit.store.s3.config import S3Config  # noqa: PLC0415
    from airflow_s3commit.store.s3.store import S3Store  # noqa: PLC0415

    nowhere = S3Config(
        endpoint_url="http://127.0.0.1:9",
        region="us-east-1",
        access_key="none",
        secret_key="none",  # noqa: S106 - no key
    )
    S3Store.connect(nowhere, transport="boto3", threads=1)


#: Seconds for which to reuse an opened store; then the connection is read again.
_REUSE_SECONDS = 60.0

T = TypeVar("T")


class StoreCache:
    """Opens the store of each connection, and reuses it for a minute.

    Args:
        timeout: Maximum seconds of a request, with its retries.
        clock: The clock; None for the system's.

    """

    def __init__(self, timeout: float, clock: Clock | None = None) -> None:
        self._timeout = timeout
        self._clock = clock or SystemClock()
        self._hooks: dict[str | None, tuple[float, S3CommitHook]] = {}
        self._lock = threading.Lock()

    def open(self, aws_conn_id: str | None) -> ObjectStore:
        """Return the store of a connection.

        Raises:
            AccessDenied: The connection does not exist, or its credentials are incomplete.
            StoreRejected: The connection cannot be used.

        """
        return self._with_hook(aws_conn_id, lambda hook: hook.store)

    def endpoint_url(self, aws_conn_id: str | None) -> str | None:
        """Return the endpoint of a connection's store; None for AWS.

        Raises:
            AccessDenied: The connection does not exist, or its credentials are incomplete.
            StoreRejected: The connection cannot be used.

        """
        return self._with_hook(aws_conn_id, lambda hook: hook.address.endpoint_url)

    def _with_hook(self, aws_conn_id: str | None, get: Callable[[S3CommitHook], T]) -> T:
        try:
            return get(self._hook(aws_conn_id))
        except S3CommitError:
            raise
        except AirflowException as error:
            raise AccessDenied(f"the connection {aws_conn_id!r} cannot be used: {error}") from error
        except Exception as error:
            # boto3 or the connection's settings may raise anything.
            failure = StoreRejected(f"the connection {aws_conn_id!r} cannot be used ({type(error).__name__})")
        # Raised outside of the handler, because the text of its exception may contain credentials.
        raise failure

    def _hook(self, aws_conn_id: str | None) -> S3CommitHook:
        now = self._clock.monotonic()
        with self._lock:
            known = self._hooks.get(aws_conn_id)
            if known is None or now - known[0] > _REUSE_SECONDS:
                hook = S3CommitHook(aws_conn_id, retry_deadline=self._timeout, timeout=self._timeout)
                known = self._hooks[aws_conn_id] = (now, hook)
            return known[1]


#: The phase of a reading: it waits for a thread, connects, or reads the store.
Step: TypeAlias = Literal["queued", "connecting", "reading"]


class StillRunning(Unavailable):
    """A reading did not end within the time that a page waits.

    Args:
        message: The message.
        of_store: Whether it waited for the store, not for a thread or a connection.

    """

    def __init__(self, message: str, *, of_store: bool) -> None:
        super().__init__(message)
        self.of_store = of_store


class Budget:
    """The time that a reading may take.

    Args:
        seconds: Length of the budget, from now.
        clock: The clock; None for the system's.

    """

    def __init__(self, seconds: float, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._seconds = seconds
        self._end = self._clock.monotonic() + seconds
        self.step: Step = "queued"

    def check(self) -> None:
        """Raise an error unless there is time left.

        Raises:
            StillRunning: There is no time left.

        """
        if self._clock.monotonic() > self._end:
            raise self.exceeded()

    def exceeded(self) -> StillRunning:
        """Return the error of a reading that takes too long; it blames the store only for its own time."""
        match self.step:
            case "queued":
                why = (
                    f"earlier readings of this store did not end within {self._seconds:g} s; reload the page"
                )
            case "connecting":
                why = f"the API server was still connecting after {self._seconds:g} s; reload the page"
            case "reading":
                why = f"the store did not respond within {self._seconds:g} s"
        return StillRunning(why, of_store=self.step == "reading")


class _BoundedStore(ForwardingStore):
    """A store that checks a budget before every call, and for every item that a call yields."""

    def __init__(self, inner: ObjectStore, budget: Budget) -> None:
        super().__init__(inner)
        self._budget = budget

    def forward(self, verb: str, bucket: str, key: str, make: Callable[[], T]) -> T:
        """Make the call if there is time left."""
        self._budget.check()
        result = super().forward(verb, bucket, key, make)
        return cast("T", self._each(result)) if isinstance(result, Iterator) else result

    def perform(self, calls: Iterable[tuple[T, Call]]) -> Iterator[tuple[T, Outcome]]:
        """Make the calls while there is time left."""
        self._budget.check()
        return self._each(super().perform(calls))

    def _each(self, items: Iterator[T]) -> Iterator[T]:
        for item in items:
            self._budget.check()
            yield item


def within(store: ObjectStore, budget: Budget) -> ObjectStore:
    """Return a store that forwards calls while there is time left, and raises `Unavailable` afterwards."""
    budget.step = "reading"
    return _BoundedStore(store, budget)


@dataclass(eq=False)
class _Reading(Generic[T]):
    """A reading."""

    lane: Hashable
    key: Hashable
    work: Callable[[Budget], T]
    budget: Budget
    future: Future[T] = field(default_factory=Future)


class Reader:
    """Runs readings on its own threads.

    Args:
        seconds: Seconds that a request waits, in the queue and for the reading together.
        lane: Maximum number of readings of one lane, such as a destination, at once; the others queue.
        threads: Maximum number of readings at once.
        clock: The clock of the budgets; None for the system's.

    """

    def __init__(
        self,
        seconds: float,
        *,
        lane: int = 2,
        threads: int = 64,
        clock: Clock | None = None,
    ) -> None:
        self.seconds = seconds
        self._most = {"lane": lane, "all": threads}
        self._clock = clock or SystemClock()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="s3commit-page")
        self._lock = threading.Lock()
        self._running: Counter[Hashable] = Counter()
        self._queue: list[_Reading[Any]] = []
        self._known: dict[tuple[Hashable, Hashable], _Reading[Any]] = {}

    async def read(self, lane: Hashable, key: Hashable, work: Callable[[Budget], T]) -> T:
        """Start a reading, or join the running one with the same key, and return its result.

        Args:
            lane: The lane whose threads the reading uses.
            key: Identifies the reading within its lane.
            work: Reads the store; checks the budget regularly, as the store from `within` does.

        Raises:
            StillRunning: The reading takes too long.
            Exception: The exception of the reading.

        """
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def wake(_: Future[T]) -> None:
            with suppress(RuntimeError):  # The loop is closed.
                loop.call_soon_threadsafe(done.set)

        reading = self._join(lane, key, work)
        try:
            reading.future.add_done_callback(wake)
            async with asyncio.timeout(self.seconds):
                await done.wait()
        except TimeoutError:
            raise reading.budget.exceeded() from None
        return reading.future.result()

    def _join(self, lane: Hashable, key: Hashable, work: Callable[[Budget], T]) -> _Reading[T]:
        with self._lock:
            reading = self._known.get((lane, key))
            if reading is None:
                reading = _Reading(lane, key, work, Budget(self.seconds, self._clock))
                self._known[lane, key] = reading
                self._queue.append(reading)
                self._begin_some()
        return reading

    def _begin_some(self) -> None:
        """Start queued readings in order while threads are free; the lock is held."""
        for reading in list(self._queue):
            if self._running.total() >= self._most["all"]:
                return
            if self._running[reading.lane] < self._most["lane"]:
                self._queue.remove(reading)
                self._running[reading.lane] += 1
                self._pool.submit(self._run, reading)

    def _run(self, reading: _Reading[Any]) -> None:
        settle: Callable[[], None]
        reading.budget.step = "connecting"
        try:
            settle = partial(reading.future.set_result, reading.work(reading.budget))
        except BaseException as error:
            settle = partial(reading.future.set_exception, error)
        with self._lock:
            del self._known[reading.lane, reading.key]
            self._running[reading.lane] -= 1
            if not self._running[reading.lane]:
                del self._running[reading.lane]
            self._begin_some()
        # Last, so that a request that has the result and reads again gets a new reading.
        settle()

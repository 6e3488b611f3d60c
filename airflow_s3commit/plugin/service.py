"""Reads the page's destinations for as long as a page waits, and ends jobs there.

Stores are read on threads, a few for each connection, so that a slow store delays no other. A reading for
which no page waits any more stops at its next call of the store, or before it begins.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from time import monotonic
from typing import TypeVar, cast

import msgspec

from airflow_s3commit._causes import described
from airflow_s3commit._clock import Clock, SystemClock
from airflow_s3commit._format import several
from airflow_s3commit.airflow_version import AirflowException
from airflow_s3commit.exceptions import (
    AccessDenied,
    InvalidDestination,
    InvalidRecord,
    OutcomeUnknown,
    S3CommitError,
    StoreRejected,
    Unavailable,
)
from airflow_s3commit.hooks import S3CommitHook
from airflow_s3commit.plugin.views import DestinationView, Offer, read_destination
from airflow_s3commit.present import amount
from airflow_s3commit.protocol.inspect.jobs import JobSummary
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.metadata.registry import Registered, read_registry
from airflow_s3commit.protocol.model.destination import Destination, RegisteredDestination, is_pattern
from airflow_s3commit.protocol.model.job import AbortReport, JobReference
from airflow_s3commit.protocol.model.manifest import Manifest
from airflow_s3commit.settings import DEFAULT_CONNECTION, REGISTRY, REGISTRY_CONNECTION, page_destinations
from airflow_s3commit.store.base import Call, ObjectStore, Outcome
from airflow_s3commit.store.forwarding import ForwardingStore
from airflow_s3commit.store.s3.config import S3Config
from airflow_s3commit.store.s3.store import S3Store

#: Seconds that a page waits for its stores, and for a step that ends a job.
WAIT = 8.0

#: Seconds for which a page reuses the registry, a destination that failed, and each of many destinations.
FRESH = 30.0

#: Maximum number of destinations to read again, with their ended jobs, at each load of the list of jobs.
FEW_PLACES = 12

#: Maximum seconds of a request of a step that ends a job, with its retries.
_END_WAIT = 60.0

#: Maximum number of readings of a connection at once, and of steps that end jobs.
_THREADS = 16

_NEVER = float("-inf")

logger = logging.getLogger(__name__)

T = TypeVar("T")


class _Configured(msgspec.Struct, forbid_unknown_fields=True):
    """An object in the option's JSON list."""

    destination: str
    aws_conn_id: str | None = DEFAULT_CONNECTION
    staging: str | None = None


def read_places(text: str) -> list[RegisteredDestination]:
    """Parse ``[s3commit] destinations`` into destinations, one for each URI.

    The text is a JSON list of URIs, or of objects with the keys ``destination``, ``aws_conn_id`` and
    ``staging``; or a list of URIs, separated by commas or white space. Other text is an `InvalidDestination`.
    """
    entries: list[str | _Configured] = [*filter(None, re.split(r"[\s,]+", text))]
    found: dict[str, RegisteredDestination] = {}
    try:
        if text.strip().startswith(("[", "{")):
            entries = msgspec.convert(json.loads(text), list[str | _Configured])
        for entry in (_Configured(one) if isinstance(one, str) else one for one in entries):
            uri = Destination.parse(entry.destination).uri
            if is_pattern(uri):
                raise ValueError(f"{entry.destination} is a pattern: name each, or set [s3commit] registry")
            staging = Destination.parse(entry.staging).uri if entry.staging else uri
            home = RegisteredDestination(
                destination=uri, aws_conn_id=entry.aws_conn_id, staging=staging if staging != uri else None
            )
            found.setdefault(uri, home)
    except (ValueError, InvalidDestination) as error:
        raise InvalidDestination(
            "[s3commit] destinations is no list of URIs, or JSON list of URIs and of objects with the keys"
            f" destination, aws_conn_id and staging: {error}"
        ) from error
    return list(found.values())


#: Seconds for which to reuse a connection; then its settings are read again.
_REUSE_SECONDS = 60


@lru_cache(maxsize=1)
def _hooks(_period: int) -> Callable[..., S3CommitHook]:
    """Return a cache of hooks that goes away, with their connections, when another period begins."""
    return lru_cache(maxsize=256)(S3CommitHook)


def connect(aws_conn_id: str | None, seconds: float) -> ObjectStore:
    """Return the store of an Airflow connection, None for boto3's default; it is reused for up to a minute.

    A request takes at most these seconds, with its retries. Raises `S3CommitError`.
    """
    try:
        hooks = _hooks(int(monotonic() // _REUSE_SECONDS))
        return hooks(aws_conn_id, retry_deadline=seconds, timeout=seconds).store
    except S3CommitError:
        raise
    except AirflowException as error:
        raise AccessDenied(f"the connection {aws_conn_id!r} cannot be used: {error}") from error
    except Exception as error:
        # boto3 or the connection's settings may raise anything.
        failure = StoreRejected(f"the connection {aws_conn_id!r} cannot be used ({type(error).__name__})")
    # Raised outside of the handler, because the text of its exception may contain credentials.
    raise failure


def load_clients() -> None:
    """Import what opens stores, and create a first client, which takes seconds; sends no request."""
    from airflow.providers.amazon.aws.hooks.s3 import S3Hook  # noqa: F401, PLC0415

    nowhere = S3Config(endpoint_url="http://127.0.0.1:9", region="us-east-1", access_key="-", secret_key="-")  # noqa: S106
    S3Store.connect(nowhere, transport="boto3")


class StillRunning(Unavailable):
    """A reading or a step did not end within the time that a page waits."""


@contextmanager
def _expecting(verb: str, what: str, unexpected: type[S3CommitError]) -> Iterator[None]:
    """Turn an error that is not ours into ``unexpected``; its text, which may be anything, is only logged."""
    try:
        yield
    except S3CommitError:
        # Logged, because perhaps no page waits for it any more.
        logger.info("%s %s failed", verb, what, exc_info=True)
        raise
    except Exception as error:
        logger.exception("%s %s failed", verb, what)
        words = f"{verb} failed with {type(error).__name__}; the API server's log has the details"
        raise unexpected(words) from error


class TimedStore(ForwardingStore):
    """A store that makes a check before every call, and for every item that a call yields."""

    def __init__(self, inner: ObjectStore, check: Callable[[], None]) -> None:
        super().__init__(inner)
        self._check = check

    def forward(self, verb: str, bucket: str, key: str, make: Callable[[], T]) -> T:
        """Make the call if there is time left."""
        self._check()
        result = super().forward(verb, bucket, key, make)
        return cast("T", self._each(result)) if isinstance(result, Iterator) else result

    def perform(self, calls: Iterable[tuple[T, Call]]) -> Iterator[tuple[T, Outcome]]:
        """Make the calls while there is time left."""
        return self._each(super().perform(calls))

    def _each(self, items: Iterator[T]) -> Iterator[T]:
        self._check()
        for item in items:
            yield item
            self._check()


class DestinationService:
    """Reads the destinations that are configured or in the registry, and ends jobs there."""

    def __init__(
        self,
        places: Callable[[], list[RegisteredDestination]] = lambda: read_places(page_destinations()),
        connect: Callable[[str | None, float], ObjectStore] = connect,
        wait: float = WAIT,
        *,
        registry: str | None = REGISTRY,
        clock: Clock | None = None,
    ) -> None:
        self._places = places
        self._connect = connect
        self._wait = wait
        self._registry = registry
        self._clock = clock or SystemClock()
        self._readers = defaultdict[str | None, ThreadPoolExecutor](lambda: ThreadPoolExecutor(_THREADS))
        self._enders = ThreadPoolExecutor(_THREADS)
        self._registered: tuple[float, list[Registered], str | None] = (_NEVER, [], None)
        self._views: dict[RegisteredDestination, tuple[float, DestinationView]] = {}

    async def places(self) -> tuple[list[RegisteredDestination], str | None]:
        """Return the destinations that the page knows, and why the registry could not be read, or None.

        The page reads no others. If the registry cannot be read, its destinations are those read before.
        """
        known = {home.destination: home for home in self._places()}
        at, entries, problem = self._registered
        if self._registry is not None and self._clock.monotonic() - at >= FRESH:
            before = {(one.key, one.etag): one for one in entries}
            try:
                registry = Destination.parse(self._registry)
                home = RegisteredDestination(destination=registry.uri, aws_conn_id=REGISTRY_CONNECTION)
                entries = await self.read(home, lambda store: read_registry(store, registry, before))
                problem = None
            except S3CommitError as error:
                problem = f"[s3commit] registry {self._registry}: {described(error)}"
            self._registered = (self._clock.monotonic(), entries, problem)
        for entry in entries:
            known.setdefault(entry.record.destination, entry.record)
        return list(known.values()), problem

    async def views(self, homes: Sequence[RegisteredDestination]) -> list[DestinationView]:
        """Read the jobs of several destinations, within the time of a page.

        Up to `FEW_PLACES` are read now, with their ended jobs. If there are more, each is read every `FRESH`
        seconds, without its ended jobs. One that cannot be read has a ``problem`` and what was read before,
        and is tried again after `FRESH` seconds. Those that time ran out for are read first at the next load.
        """
        whole, now = len(homes) <= FEW_PLACES, self._clock.monotonic()
        due = {home: at for home in homes if (at := self._last(home)[0]) <= now}
        await asyncio.gather(*(self.view(home, whole=whole) for home in sorted(due, key=due.__getitem__)))
        views = [self._last(home)[1] for home in homes]
        return views if whole else [replace(view, ended=()) for view in views]

    async def view(self, home: RegisteredDestination, *, whole: bool = True) -> DestinationView:
        """Read the jobs of one destination now, as `views` does; with ``whole`` those that ended too."""
        due, view = self._last(home)
        now = self._clock.monotonic()
        try:
            view = await self.read(home, lambda store: read_destination(store, home, ended=whole))
            due = now if whole else now + FRESH
        except S3CommitError as error:
            view = replace(view, problem=described(error))
            due = due if isinstance(error, StillRunning) else now + FRESH
        self._views[home] = (due, view)
        return view

    def _last(self, home: RegisteredDestination) -> tuple[float, DestinationView]:
        """Return when a destination is due to be read, and what was read before."""
        return self._views.get(home, (_NEVER, DestinationView(home)))

    async def read(self, home: RegisteredDestination, reading: Callable[[ObjectStore], T]) -> T:
        """Read a destination on a thread of its connection.

        Raises:
            StillRunning: The reading takes longer than a page waits.
            S3CommitError: The reading failed; if unexpectedly, it was logged and is an `InvalidRecord`.
        """
        end = self._clock.monotonic() + self._wait
        too_long = StillRunning(
            f"it could not be read within {self._wait:g} s: the store or the API server is busy; try again"
        )

        def check() -> None:
            if self._clock.monotonic() > end:
                raise too_long

        def work() -> T:
            with _expecting("reading", home.destination, InvalidRecord):
                return reading(TimedStore(self._connect(home.aws_conn_id, self._wait / 2), check))

        try:
            async with asyncio.timeout(self._wait):
                return await asyncio.get_running_loop().run_in_executor(self._readers[home.aws_conn_id], work)
        except TimeoutError:
            raise too_long from None

    async def end(self, home: RegisteredDestination, job: JobSummary, offer: Offer, reason: str) -> str:
        """End a job of which something is left, and return a message about the result. Repeatable.

        Raises `StillRunning` if it takes longer than a page waits, and continues in the background.
        """

        def work() -> str:
            with _expecting(offer, f"of job {job.job_id} on {home.destination}", OutcomeUnknown):
                store = self._connect(home.aws_conn_id, _END_WAIT)
                return end_job(store, home.destination, job, offer, reason)

        ending = asyncio.get_running_loop().run_in_executor(self._enders, work)
        await asyncio.wait([ending], timeout=self._wait)
        self._views.pop(home, None)
        if not ending.done():
            raise StillRunning("This continues in the background. The job's page shows the progress.")
        return ending.result()


def end_job(store: ObjectStore, destination: str, summary: JobSummary, offer: Offer, reason: str) -> str:
    """End a job, and return a message about the result. Raises as `protocol.job.Job` does."""
    assert summary.staging is not None
    job = Job.at(store, JobReference(job_id=summary.job_id, destination=destination, staging=summary.staging))
    ended: Manifest | AbortReport
    if offer in {"abort", "undo"}:
        ended = job.abort(reason=reason)
    else:
        ended = job.commit() if offer == "commit" else job.recover()
    if isinstance(ended, Manifest):
        return f"Committed: {amount(ended.counts)} in {several(len(ended.partitions), 'partition')}."
    return (
        f"Aborted: {several(ended.uploads, 'upload')} discarded, {several(ended.objects, 'object')} deleted."
    )

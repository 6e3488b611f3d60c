"""Triggers that wait for a manifest, for a deferred sensor and for an ``AssetWatcher``.

Every request runs in a thread, with the connection's ordinary client, so that it does not block the
triggerer's event loop. An asynchronous client would pin the version of boto3.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, cast
from weakref import WeakValueDictionary

from airflow.triggers.base import BaseEventTrigger, BaseTrigger, TriggerEvent

from airflow_s3commit._causes import described
from airflow_s3commit.exceptions import AccessDenied
from airflow_s3commit.hooks import S3CommitHook
from airflow_s3commit.metrics import count_retry
from airflow_s3commit.protocol.model.destination import Destination, as_uri
from airflow_s3commit.settings import DEFAULT_POKE_INTERVAL
from airflow_s3commit.templates import at_least, check_value, place, text

if TYPE_CHECKING:
    from airflow_s3commit.protocol.watch import Criteria, ManifestFeed, SearchResult, Snapshot

__all__ = ["S3SuccessManifestEventTrigger", "S3SuccessManifestTrigger"]

#: Seconds for which a search retries its requests; the next search is due soon after.
_RETRY_DEADLINE = 20.0

#: Makes an event of plain JSON values.
trigger_event: Callable[[dict[str, Any]], TriggerEvent] = TriggerEvent


class ManifestTrigger(BaseTrigger):
    """A trigger that watches one destination.

    :param destination: The dataset's directory: ``s3://bucket/prefix/`` or a `Destination`.
    :param poke_interval: Seconds between two searches.
    :param aws_conn_id: The ``aws`` connection of the store; None means boto3's default chain.
    """

    #: Names of the arguments that a subclass adds: attributes with plain JSON values.
    arguments: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        *,
        destination: str | Destination,
        poke_interval: float = DEFAULT_POKE_INTERVAL,
        aws_conn_id: str | None = S3CommitHook.default_conn_name,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.destination = as_uri(destination)
        self.poke_interval = poke_interval
        self.aws_conn_id = aws_conn_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class's path and its arguments, all of them plain JSON values."""
        shared = ("destination", "poke_interval", "aws_conn_id")
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        return path, {name: getattr(self, name) for name in (*self.arguments, *shared)}

    def hook(self) -> S3CommitHook:
        """Return a hook with a short retry deadline, because the next search is due soon."""
        return S3CommitHook(self.aws_conn_id, retry_deadline=_RETRY_DEADLINE, on_retry=count_retry)


class SharedPoller:
    """Polls one destination for all waiters of this event loop; ``open_view`` is called in a thread.

    A triggerer runs thousands of triggers in one event loop. The first trigger whose poll is due polls the
    store in a thread; the others reuse its snapshot while it is younger than their own interval. So a
    destination costs one poll per interval and at most one thread.
    """

    def __init__(
        self, open_view: Callable[[], Snapshot], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._open_view = open_view
        self._clock = clock
        self._turn = asyncio.Lock()
        # A cancelled waiter releases its turn while its thread is still polling.
        self._polling = threading.Lock()
        self._view: Snapshot | None = None
        self._polled_at = -math.inf

    def next_due(self, interval: float) -> float:
        """Return the seconds until the next poll at this interval."""
        return max(0.0, self._polled_at + interval - self._clock())

    async def look(self, wanted: Criteria, max_age: float) -> SearchResult:
        """Search the snapshot for one waiter, after a poll if it is older than ``max_age`` seconds."""
        async with self._turn:
            return await asyncio.to_thread(self._look, wanted, max_age)

    def _look(self, wanted: Criteria, max_age: float) -> SearchResult:
        with self._polling:
            if self._view is None or self._clock() - self._polled_at >= max_age:
                # Set before the request, so that after a failed poll the next one is due an interval later.
                self._polled_at = self._clock()
                self._view = self._view or self._open_view()
                self._view.refresh()
            try:
                return self._view.search(wanted)
            except AccessDenied:
                # The connection may have other keys by now.
                self._view = self._open_view()
                self._view.refresh()
                return self._view.search(wanted)


#: The pollers by event loop and key. A poller lives as long as one of its waiters.
_POLLERS: WeakValueDictionary[Hashable, SharedPoller] = WeakValueDictionary()


def shared_poller(key: Hashable, open_view: Callable[[], Snapshot]) -> SharedPoller:
    """Return the event loop's poller for a key, or create it; the key must have all settings that matter."""
    place = (asyncio.get_running_loop(), key)
    return _POLLERS.get(place) or _POLLERS.setdefault(place, SharedPoller(open_view))


#: Maximum age of the last search at the timeout, in seconds; an older search is repeated.
_LAST_SEARCH_AGE = 5.0


class S3SuccessManifestTrigger(ManifestTrigger):
    """Waits for a manifest on behalf of a deferred `S3SuccessManifestSensor`. Yields one event.

    The event is ``{"status": "success", "manifest": {…summary…}}``, or ``{"status": "error" | "timeout",
    "outcome": …, "message": …}`` with the outcome of the failed search, or of the last search before the
    timeout: ``absent``, ``stale``, ``damaged``, ``missing-bucket``, ``no-permission``, ``refused``,
    ``unavailable``, ``error``.

    Triggers of one triggerer with the same destination and search depth share one search per interval.

    :param wanted: The conditions that the manifest must meet, as ``Criteria.to_dict`` returns them.
    :param give_up_at: The time to stop waiting, in seconds since the epoch; None for never.
    :param search_depth: Maximum number of manifests that one search reads, newest first.
    """

    arguments = ("wanted", "give_up_at", "search_depth")

    def __init__(
        self,
        *,
        wanted: Mapping[str, Any],
        give_up_at: float | None = None,
        search_depth: int = 100,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.wanted = dict(wanted)
        self.give_up_at = give_up_at
        self.search_depth = search_depth

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Search until a manifest meets the conditions, the time is up, or an error is final."""
        from airflow_s3commit.protocol.watch import Criteria, outcome_of  # noqa: PLC0415 - light DAG parsing

        poller = shared_poller((self.destination, self.search_depth, self.aws_conn_id), self._open)
        wanted = Criteria(**self.wanted)
        while True:
            left = None if self.give_up_at is None else self.give_up_at - time.time()
            last = left is not None and left <= 0
            age = min(self.poke_interval, _LAST_SEARCH_AGE) if last else self.poke_interval
            try:
                look = await poller.look(wanted, age)
            except Exception as error:  # the task must fail with any error
                seen, outcome = described(error), outcome_of(error)
                if outcome != "unavailable":
                    self.log.error("Giving up: %s: %s", outcome, seen)  # noqa: TRY400 - the task fails with it
                    yield trigger_event({"status": "error", "outcome": outcome, "message": seen})
                    return
            else:
                seen, outcome = look.seen, look.outcome
                if look.manifest is not None:
                    yield trigger_event({"status": "success", "manifest": look.manifest.to_dict()})
                    return
            self.log.info("Not yet: %s: %s", outcome, seen)
            if last:
                yield trigger_event({"status": "timeout", "outcome": outcome, "message": seen})
                return
            due = poller.next_due(self.poke_interval)
            await asyncio.sleep(due if left is None else min(due, left))

    def _open(self) -> Snapshot:
        from airflow_s3commit.protocol.watch import Snapshot  # noqa: PLC0415

        return Snapshot(self.hook().store, Destination.parse(self.destination), depth=self.search_depth)


class S3SuccessManifestEventTrigger(ManifestTrigger, BaseEventTrigger):
    """Yields one event for every commit to a destination except compactions; for an ``AssetWatcher``.

    ::

        trigger = S3SuccessManifestEventTrigger(destination="s3://lake/flights/")
        flights = Asset("flights", watchers=[AssetWatcher(name="commits", trigger=trigger)])

    The event's payload is the manifest's summary. Commits before the trigger's first run are ignored. The
    asset's state store keeps the last commit, so that the trigger finds commits that were made while no
    triggerer ran; before Airflow 3.3 there is no such store, and those are missed. If the triggerer dies
    between sending an event and storing the commit, the commit may cause two events. Errors are logged, and
    the trigger continues, so that an unreadable bucket does not end a schedule.

    :param context: Facts of the run that committed, such as ``dag_id``; other commits are ignored.
    :param newer_than: Ignore commits up to this time: a datetime or ISO 8601 text, in UTC if it has no zone.
    :param partitions: Partitions that the commit must have added files to, such as ``dt=2013-01-01``.
    :param min_files: Minimum number of files in the manifest.
    """

    arguments = ("context", "newer_than", "partitions", "min_files")
    #: The asset's state store; None before Airflow 3.3, and for a watcher that several assets share.
    asset_state_store: Any = None

    def __init__(
        self,
        *,
        context: Mapping[str, str] | None = None,
        newer_than: datetime | str | None = None,
        partitions: Sequence[str] | str | None = None,
        min_files: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.context = dict(context or {})
        self.newer_than = newer_than.isoformat() if isinstance(newer_than, datetime) else newer_than
        self.partitions = [partitions] if isinstance(partitions, str) else list(partitions or [])
        self.min_files = min_files
        # In the triggerer a watcher would only log the error, at every search, for ever.
        readers = {"destination": place, "poke_interval": at_least(0), "aws_conn_id": text}
        for name, reader in readers.items():
            check_value("S3SuccessManifestEventTrigger", name, reader, getattr(self, name))
        self._wanted()

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield an event for every new manifest, forever."""
        from airflow_s3commit.protocol.watch import outcome_of  # noqa: PLC0415 - keeps DAG parsing light

        feed: ManifestFeed | None = None
        seen = remembered = cast("Mapping[str, Any] | None", None)
        while True:
            try:
                if feed is None:
                    feed = await asyncio.to_thread(self._open, seen or await self._recall())
                    remembered = remembered or feed.memory
                looking = feed.look()
                while (manifest := await asyncio.to_thread(next, looking, None)) is not None:
                    self.log.info("Job %s committed to %s", manifest.job_id, self.destination)
                    yield trigger_event(manifest.to_dict())
                if self.asset_state_store is not None and feed.memory not in (None, remembered):
                    await self.asset_state_store.aset(self._key, feed.memory)
                    remembered = feed.memory
            except Exception as error:  # a watcher that ends is a schedule that silently stops
                what = f"{outcome_of(error)}: {described(error)}"
                self.log.warning("Searching again in %g s: %s", self.poke_interval, what)
                if feed is not None and isinstance(error, AccessDenied):
                    # The connection may have other keys by now.
                    seen, feed = feed.memory, None
            await asyncio.sleep(self.poke_interval)

    @property
    def _key(self) -> str:
        """The key of this watcher in the asset's state store; an asset may have several watchers."""
        conditions = [self.destination, self.context, self.newer_than, self.partitions, self.min_files]
        digest = hashlib.sha256(json.dumps(conditions, sort_keys=True).encode()).hexdigest()
        return f"s3commit.last_manifest.{digest[:16]}"

    async def _recall(self) -> Mapping[str, Any] | None:
        if (state := self.asset_state_store) is None:
            self.log.warning(
                "There is no state store of the asset: commits made while no triggerer runs will be missed"
            )
            return None
        try:
            known = await state.aget(self._key)
        except ValueError as error:
            # Several assets share the watcher.
            self.log.warning("Commits made while no triggerer runs will be missed: %s", error)
            self.asset_state_store = None
            return None
        if known is None or (isinstance(known, Mapping) and {"number", "sha256"} <= known.keys()):
            return known
        self.log.warning("Commits since the last one may be missed: %r does not say which that was", known)
        return None

    def _wanted(self) -> Criteria:
        from airflow_s3commit.protocol.watch import Criteria  # noqa: PLC0415 - importing needs none

        return Criteria.of(
            context=self.context or None,
            newer_than=self.newer_than,
            partitions=self.partitions or None,
            min_files=self.min_files,
        )

    def _open(self, memory: Mapping[str, Any] | None) -> ManifestFeed:
        from airflow_s3commit.protocol.watch import ManifestFeed  # noqa: PLC0415

        place = Destination.parse(self.destination)
        return ManifestFeed(self.hook().store, place, self._wanted().unmet, memory)

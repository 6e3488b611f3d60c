"""Triggers that wait for *the* manifest: one for a deferred sensor, one for an ``AssetWatcher``.

Every look runs in a thread, with the connection's ordinary client: nothing blocks the triggerer's loop, and
no asynchronous client, which would pin boto3 down, is needed.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_s3commit.triggers.base import ManifestTrigger, failure, summary_of, trigger_event

if TYPE_CHECKING:
    from airflow_s3commit.sensors.feed import ManifestFeed
    from airflow_s3commit.sensors.lookout import Lookout, Wait
    from airflow_s3commit.sensors.view import DestinationView
    from airflow_s3commit.xcom import JsonObject

__all__ = ["S3SuccessManifestEventTrigger", "S3SuccessManifestTrigger"]

#: When time is up, what was seen so many seconds ago is no longer good enough to give up on.
_LAST_LOOK = 5.0


class S3SuccessManifestTrigger(ManifestTrigger):
    """Waits for a manifest on behalf of a deferred `S3SuccessManifestSensor`. Yields one event.

    ``{"status": "success", "manifest": {…summary…}}``; or ``{"status": "error" | "timeout", "outcome": …,
    "message": …}``, where the outcome is that of the look that failed, or of the last look before time was
    up: ``absent``, ``stale``, ``empty``, ``half-written``, ``foreign``, ``missing-bucket``,
    ``no-permission``, ``refused``, ``unavailable``, ``error``.

    All of them that wait at one destination in one triggerer share their looks: the store is asked once an
    interval, however many wait.

    :param destination: The dataset's directory, ``s3://bucket/prefix/``.
    :param wanted: What the manifest must be, as ``Wanted.to_dict`` says it.
    :param poke_interval: Seconds between two looks.
    :param give_up_at: When to stop waiting, in seconds since the epoch; None waits on.
    :param search_depth: How many of the newest manifests one look reads at most.
    :param aws_conn_id: The ``aws`` connection of the store; None means boto3's default chain.
    :param region_name: Overrides the connection's region.
    :param verify: Overrides the connection's check of TLS certificates.
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
        """Look until the manifest is there, the time is up, or looking makes no sense any more."""
        lookout, wait = self._join()
        while True:
            left = self._left()
            last = left is not None and left <= 0
            try:
                look = await lookout.look(wait, self._max_age(last))
            except Exception as error:  # whatever it is, the task has to hear of it
                failed, seen, outcome = failure(error)
                if failed:
                    self.log.error("Giving up: %s: %s", outcome, seen)  # noqa: TRY400 - the task fails with it
                    yield _unsuccessful("error", outcome, seen)
                    return
            else:
                seen, outcome = look.seen, look.outcome
                if look.manifest is not None:
                    yield trigger_event({"status": "success", "manifest": summary_of(look.manifest)})
                    return
            self.log.info("Not yet: %s: %s", outcome, seen)
            if last:
                yield _unsuccessful("timeout", outcome, seen)
                return
            due = lookout.next_due(self.poke_interval)
            await asyncio.sleep(due if left is None else min(due, left))

    def _join(self) -> tuple[Lookout, Wait]:
        """Take part in the looks at the destination."""
        from airflow_s3commit.sensors.lookout import Wait, lookout_for  # noqa: PLC0415
        from airflow_s3commit.sensors.wanted import Wanted  # noqa: PLC0415

        key = (self.destination, self.aws_conn_id, self.region_name, self.verify)
        wait = Wait(Wanted.from_dict(self.wanted), depth=self.search_depth)
        return lookout_for(key, self._open), wait

    def _max_age(self, last: bool) -> float:
        return min(self.poke_interval, _LAST_LOOK) if last else self.poke_interval

    def _left(self) -> float | None:
        return None if self.give_up_at is None else self.give_up_at - time.time()

    def _open(self) -> DestinationView:
        from airflow_s3commit.protocol.destination import Destination  # noqa: PLC0415
        from airflow_s3commit.sensors.view import DestinationView  # noqa: PLC0415

        return DestinationView(self.hook().store, Destination.parse(self.destination), shared=True)


class S3SuccessManifestEventTrigger(ManifestTrigger, BaseEventTrigger):
    """Yields one event for every commit to a destination; for an ``AssetWatcher``.

    ::

        trigger = S3SuccessManifestEventTrigger(destination="s3://lake/flights/")
        flights = Asset("flights", watchers=[AssetWatcher(name="commits", trigger=trigger)])

    The event's payload is the manifest's summary. Only commits count that are made after the trigger first
    ran. Which one it met last is kept in the asset's state store, so commits made while no triggerer ran are
    met later; a commit may be met twice if the triggerer dies at that moment. Errors are logged, and it goes
    on looking: a schedule is not to end because a bucket could not be read for a while.

    :param destination: The dataset's directory, ``s3://bucket/prefix/``.
    :param context: Facts of the run that committed, such as ``dag_id``; other commits are passed over.
    :param newer_than: Commits up to this time don't count: a datetime or ISO 8601 text, UTC by default.
    :param partitions: Partitions that the commit must have brought data to, such as ``dt=2013-01-01``.
    :param min_files: The least number of files in the manifest.
    :param poke_interval: Seconds between two looks.
    :param aws_conn_id: The ``aws`` connection of the store; None means boto3's default chain.
    :param region_name: Overrides the connection's region.
    :param verify: Overrides the connection's check of TLS certificates.
    """

    arguments = ("context", "newer_than", "partitions", "min_files")

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

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look for ever, and yield an event for every new manifest."""
        feed: ManifestFeed | None = None
        remembered: JsonObject | None = None
        while True:
            try:
                if feed is None:
                    feed = await asyncio.to_thread(self._open, await self._recall())
                    remembered = feed.memory
                looking = feed.look()
                while (manifest := await asyncio.to_thread(next, looking, None)) is not None:
                    self.log.info("Job %s committed to %s", manifest.job_id, self.destination)
                    yield trigger_event(summary_of(manifest))
                if feed.memory != remembered:
                    await self._remember(feed.memory)
                    remembered = feed.memory
            except Exception as error:  # a watcher that ends is a schedule that silently stops
                _, seen, outcome = failure(error)
                self.log.warning("Looking again in %g s: %s: %s", self.poke_interval, outcome, seen)
            await asyncio.sleep(self.poke_interval)

    @property
    def _key(self) -> str:
        """Name this watcher's entry in the asset's state store: an asset may have several."""
        conditions = [self.destination, self.context, self.newer_than, self.partitions, self.min_files]
        digest = hashlib.sha256(json.dumps(conditions, sort_keys=True).encode()).hexdigest()
        return f"s3commit.last_manifest.{digest[:16]}"

    async def _recall(self) -> Mapping[str, Any] | None:
        if self.asset_state_store is None:
            return None
        try:
            known = await self.asset_state_store.aget(self._key)
        except ValueError as error:
            # Several assets share the watcher, and the state of no single one is its own.
            self.log.warning("Commits made while no triggerer runs will be missed: %s", error)
            self.asset_state_store = None
            return None
        return known if isinstance(known, Mapping) and "met" in known else None

    async def _remember(self, memory: JsonObject | None) -> None:
        if self.asset_state_store is not None and memory is not None:
            await self.asset_state_store.aset(self._key, memory)

    def _open(self, memory: Mapping[str, Any] | None) -> ManifestFeed:
        from airflow_s3commit.protocol.destination import Destination  # noqa: PLC0415
        from airflow_s3commit.sensors.feed import ManifestFeed  # noqa: PLC0415
        from airflow_s3commit.sensors.wanted import Wanted  # noqa: PLC0415

        wanted = Wanted.of(
            context=self.context,
            newer_than=self.newer_than,
            partitions=self.partitions,
            min_files=self.min_files,
        )
        return ManifestFeed(self.hook().store, Destination.parse(self.destination), wanted, memory)


def _unsuccessful(status: str, outcome: str, message: str) -> TriggerEvent:
    return trigger_event({"status": status, "outcome": outcome, "message": message})

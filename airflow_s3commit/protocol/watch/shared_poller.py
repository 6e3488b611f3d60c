"""Polls a destination once for all waiters of an event loop.

A triggerer runs thousands of triggers in one event loop. Triggers on one destination share a `SharedPoller`:
the first trigger whose poll is due polls the store in a thread; the others reuse its snapshot while it is
younger than their own interval. So a destination costs one poll per interval and at most one thread.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakValueDictionary

from airflow_s3commit.protocol.watch.search import ManifestSearch
from airflow_s3commit.protocol.watch.snapshot import Snapshot

if TYPE_CHECKING:
    from airflow_s3commit.protocol.watch.criteria import Criteria, SearchResult


class SharedPoller:
    """Polls one destination for all waiters of this event loop.

    Args:
        open_view: Returns the snapshot; called once, in a thread.
        clock: Returns monotonic seconds.

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
        self._polled_at: float | None = None

    def next_due(self, interval: float) -> float:
        """Return the seconds until the next poll at this interval."""
        if self._polled_at is None:
            return 0.0
        return max(0.0, self._polled_at + interval - self._clock())

    async def look(self, waiter: Waiter, max_age: float) -> SearchResult:
        """Search the snapshot for a waiter, after a poll if it is older than ``max_age`` seconds.

        Raises:
            S3CommitError: As `ManifestSearch.look`.

        """
        async with self._turn:
            return await asyncio.to_thread(self._look, waiter, max_age)

    def _look(self, waiter: Waiter, max_age: float) -> SearchResult:
        with self._polling:
            is_due = self._polled_at is None or self._clock() - self._polled_at >= max_age
            if is_due:
                # Set before the request, so that after a failed poll the next one is due an interval later.
                self._polled_at = self._clock()
            if self._view is None:
                self._view = self._open_view()
            self._view.depth = max(self._view.depth, waiter.depth)
            if is_due:
                self._view.refresh()
            return waiter.search_in(self._view).look()


class Waiter:
    """One waiter: its criteria, and the state of its search.

    Args:
        criteria: What the manifest must meet.
        depth: Maximum number of manifests to read in one search, newest first.

    """

    def __init__(self, criteria: Criteria, *, depth: int = 100) -> None:
        self.depth = depth
        self._criteria = criteria
        self._search: ManifestSearch | None = None

    def search_in(self, view: Snapshot) -> ManifestSearch:
        """Return this waiter's search; the first call creates it."""
        if self._search is None:
            self._search = ManifestSearch(view, self._criteria, depth=self.depth)
        return self._search


#: The pollers of each event loop. A poller lives as long as one of its waiters.
_POLLERS: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakValueDictionary[Hashable, SharedPoller]] = (
    WeakKeyDictionary()
)
_GUARD = threading.Lock()


def shared_poller(key: Hashable, open_view: Callable[[], Snapshot]) -> SharedPoller:
    """Return the running event loop's poller for a key; create it if there is none.

    Args:
        key: The destination, with all settings of its connection.
        open_view: Creates the snapshot of a new poller.

    """
    with _GUARD:
        pollers = _POLLERS.setdefault(asyncio.get_running_loop(), WeakValueDictionary())
        poller = pollers.get(key)
        if poller is None:
            poller = pollers[key] = SharedPoller(open_view)
        return poller

"""One look for all who wait at the same destination in one process.

A triggerer runs thousands of triggers in one event loop. Those that wait at one destination share a
`Lookout`: the first whose look is due asks the store, in a thread; the others take what it saw, if that is
no older than their own interval. So the store is asked once a destination and interval, however many wait,
and no destination that answers slowly takes more than one thread.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakValueDictionary

from airflow_s3commit.sensors.search import ManifestSearch
from airflow_s3commit.sensors.view import DestinationView

if TYPE_CHECKING:
    from airflow_s3commit.sensors.wanted import Look, Wanted

__all__ = ["Lookout", "Wait", "lookout_for"]


class Lookout:
    """Looks at one destination on behalf of everybody in this event loop who waits there.

    Args:
        open_view: Makes the view, in a thread.
        clock: Seconds that only grow.

    """

    def __init__(
        self, open_view: Callable[[], DestinationView], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._open_view = open_view
        self._clock = clock
        self._turn = asyncio.Lock()
        # A waiter that is cancelled gives its turn up while its thread still looks.
        self._looking = threading.Lock()
        self._view: DestinationView | None = None
        self._looked: float | None = None

    def next_due(self, interval: float) -> float:
        """Return in how many seconds the next look is due, for those who look so often."""
        if self._looked is None:
            return 0.0
        return max(0.0, self._looked + interval - self._clock())

    async def look(self, wait: Wait, max_age: float) -> Look:
        """Return what a waiter finds in what was seen less than ``max_age`` seconds ago, or is seen now.

        Raises:
            S3CommitError: As `ManifestSearch.look`.

        """
        async with self._turn:
            return await asyncio.to_thread(self._look, wait, max_age)

    def _look(self, wait: Wait, max_age: float) -> Look:
        with self._looking:
            is_due = self._looked is None or self._clock() - self._looked >= max_age
            if is_due:
                # Before anything is asked: after a look that fails, the next one is due an interval later.
                self._looked = self._clock()
            if self._view is None:
                self._view = self._open_view()
            self._view.depth = max(self._view.depth, wait.depth)
            if is_due:
                self._view.refresh()
            return wait.search_in(self._view).look()


class Wait:
    """One who waits: what for, and what it has judged so far.

    Args:
        wanted: What to look for.
        depth: How many of the newest manifests to read at most in one look.

    """

    def __init__(self, wanted: Wanted, *, depth: int = 100) -> None:
        self.depth = depth
        self._wanted = wanted
        self._search: ManifestSearch | None = None

    def search_in(self, view: DestinationView) -> ManifestSearch:
        """Return this waiter's search."""
        if self._search is None:
            self._search = ManifestSearch(view, self._wanted, depth=self.depth)
        return self._search


#: The lookouts of each event loop. Waiters hold theirs; when the last has gone, so has the lookout.
_LOOKOUTS: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakValueDictionary[Hashable, Lookout]] = (
    WeakKeyDictionary()
)
_GUARD = threading.Lock()


def lookout_for(key: Hashable, open_view: Callable[[], DestinationView]) -> Lookout:
    """Return the lookout of the running event loop that has this key; a new one if there is none.

    Args:
        key: The destination, and everything that says how to reach it.
        open_view: Makes the view of a new lookout.

    """
    with _GUARD:
        lookouts = _LOOKOUTS.setdefault(asyncio.get_running_loop(), WeakValueDictionary())
        lookout = lookouts.get(key)
        if lookout is None:
            lookout = lookouts[key] = Lookout(open_view)
        return lookout

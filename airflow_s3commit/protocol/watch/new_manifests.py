"""Find a destination's new commits in its log: a view for those who wait, and a feed of each commit once.

Whoever knows the newest entry learns with one request whether there is another one: the key of the next
number is there or not. Only the first look lists the log. A log that was deleted and begun anew is noticed at
every twentieth look.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from airflow_s3commit._clock import Clock
from airflow_s3commit.exceptions import InvalidRecord, NoSuchKey, S3CommitError, Unavailable
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.job import Position
from airflow_s3commit.protocol.model.layout import log_prefix, receipt_key
from airflow_s3commit.protocol.model.manifest import Manifest
from airflow_s3commit.protocol.model.table import Entry
from airflow_s3commit.protocol.steps.fold import entries_after, entries_before, newest_entries, newest_entry
from airflow_s3commit.protocol.steps.log import Read, find_receipt, read_entry
from airflow_s3commit.store.base import ObjectStore

logger = logging.getLogger(__name__)

#: Looks from one that makes sure of the known entry to the next.
_CHECK_EVERY = 20

#: Older entries to read at once: most searches end with the newest few.
_AT_ONCE = 8


class Snapshot:
    """The newest commits of a destination as of the last `refresh`, each entry of the log read once.

    An error is kept until the next `refresh`, so that of many waiters only one asks a failing store. Not
    thread-safe.

    Args:
        depth: How many commits to know at most.
    """

    def __init__(self, store: ObjectStore, destination: Destination, *, depth: int = 100) -> None:
        self.destination = destination
        self._depth = depth
        self._store = store
        self._looks = 0
        self._failure: S3CommitError | None = None
        #: The newest entry that was read; None before, and without a log.
        self._newest: Read | None = None
        #: The newest commits of jobs, newest first, and the entries before them.
        self._commits: list[Manifest] = []
        self._older: Iterator[Read] = iter(())
        #: How each job that somebody asked for has ended; None if it has not.
        self._ends: dict[str, Entry | None] = {}

    def refresh(self) -> None:
        """Read what is new in the log. Never raises: calls that need what could not be read do."""
        self._failure = None
        self._looks += 1
        try:
            if not self._goes_on():
                self._begin()
        except S3CommitError as error:
            self._failure = error

    def _begin(self) -> None:
        store, home = self._store, self.destination
        self._newest, self._commits, self._older, self._ends = None, [], iter(()), {}
        read = newest_entry(store, home)
        if read is not None:
            self._older = entries_before(store, home, read, at_once=_AT_ONCE)
            self._take(read)

    def newest(self) -> Iterator[Manifest]:
        """Yield the newest commits of jobs; reads older entries of the log only as the caller goes on.

        Raises what the refresh did, or that an older entry cannot be read.
        """
        self._raise_failure()
        yield from self._commits
        while len(self._commits) < self._depth:
            try:
                read = next(self._older, None)
            except S3CommitError as error:
                # The next refresh begins anew at the end of the log.
                self._failure, self._newest = error, None
                raise
            if read is None:
                return
            if _is_commit(read.entry):
                self._commits.append(Manifest.of(read.entry))
                yield self._commits[-1]

    def end_of(self, job_id: str) -> Entry | None:
        """Return the entry that ended a job; None if it has not ended. Raises what the refresh did."""
        self._raise_failure()
        if job_id not in self._ends:
            newest = self._newest.entry if self._newest is not None else None
            # The newest entry alone may lack its receipt.
            is_newest = newest is None or newest.job_id == job_id
            self._ends[job_id] = newest if is_newest else find_receipt(self._store, self.destination, job_id)
        return self._ends[job_id]

    def where(self, job_id: str | None = None) -> str:
        """Return the URI of the log, or of a job's receipt, whether it exists or not."""
        home = self.destination
        return join_uri(home.bucket, log_prefix(home) if job_id is None else receipt_key(home, job_id))

    def _raise_failure(self) -> None:
        if self._failure is not None:
            # Each waiter raises the same exception: drop the traceback of the waiter before.
            raise self._failure.with_traceback(None)

    def _goes_on(self) -> bool:
        """Read the entries that follow; return whether the log is the one that was read before."""
        known = self._newest.position if self._newest is not None else None
        is_due = not self._looks % _CHECK_EVERY
        if known is None or (is_due and not _is_there(self._store, self.destination, known)):
            return False
        try:
            for read in entries_after(self._store, self.destination, known):
                self._take(read)
        except InvalidRecord:
            # The log was begun anew, or its new entry is damaged; the newest one may be readable.
            return False
        return True

    def _take(self, read: Read) -> None:
        self._newest = read
        if read.entry.job_id in self._ends:
            self._ends[read.entry.job_id] = read.entry
        if _is_commit(read.entry):
            self._commits = [Manifest.of(read.entry), *self._commits][: self._depth]


def _is_commit(entry: Entry) -> bool:
    """Return whether an entry is the commit of a job or a rollback, and not data older than the log."""
    return entry.commit is not None and entry.job_id is not None


class ManifestFeed:
    """Yields each new commit of a destination once.

    A new feed skips the commits that exist at its first look. If the log is deleted and begun anew, the feed
    goes on with its newest commit.

    Args:
        unmet: Returns why to skip a commit, such as `Criteria.unmet`; nothing to yield it.
        memory: The `memory` of an earlier feed; None for a new feed.
    """

    def __init__(
        self,
        store: ObjectStore,
        destination: Destination,
        unmet: Callable[[Manifest], list[str]],
        memory: Mapping[str, Any] | None = None,
    ) -> None:
        self._store = store
        self._destination = destination
        self._unmet = unmet
        self._looks = 0
        self._position: Position | None = None
        if memory is not None:
            self._position = Position(int(memory["number"]), str(memory["sha256"]))

    @property
    def memory(self) -> dict[str, Any] | None:
        """The last entry that was read, as JSON values, to continue in another process; None at first."""
        if self._position is None:
            return None
        return {"number": self._position.number, "sha256": self._position.sha256}

    def look(self) -> Iterator[Manifest]:
        """Look once, and yield the new commits, oldest first. Reads only.

        A commit counts as seen once the next one is requested.

        Raises:
            InvalidRecord: An entry of the log is damaged.
        """
        store, home = self._store, self._destination
        if self._position is None:
            newest = newest_entry(store, home)
            self._position = newest.position if newest is not None else Position()
            return
        self._looks += 1
        if not self._looks % _CHECK_EVERY and not _is_there(store, home, self._position):
            yield from self._begin_anew()
        try:
            for read in entries_after(store, home, self._position):
                yield from self._take(read)
        except InvalidRecord:
            if _is_there(store, home, self._position):
                raise
            yield from self._begin_anew()

    def _begin_anew(self) -> Iterator[Manifest]:
        """Yield the newest commit of another log than the one that was read before."""
        logger.warning("%s: the log was begun anew; going on with its newest commit", self._destination.uri)
        position = Position()
        for read in newest_entries(self._store, self._destination, at_once=_AT_ONCE):
            position = position if position.number else read.position
            if _is_commit(read.entry):
                yield from self._take(read)
                break
        self._position = position

    def _take(self, read: Read) -> Iterator[Manifest]:
        if read.entry.commit is not None:
            manifest = Manifest.of(read.entry)
            unmet = self._unmet(manifest)
            if not unmet:
                yield manifest
            else:
                logger.info("skipping the commit of job %s: %s", manifest.job_id, "; ".join(unmet))
        self._position = read.position


def follow(
    store: ObjectStore,
    destination: Destination,
    after: int,
    *,
    interval: float,
    clock: Clock,
    draw: Callable[[float, float], float] = random.uniform,
) -> Iterator[Manifest]:
    """Yield the manifest of each commit after a generation, 0 for all, for ever; waits for new ones.

    A look for new ones takes one request, ``interval`` seconds after the last one, give or take a fifth, so
    that many do not look at once. A store that is unavailable is asked again at the next look.

    Raises:
        NoSuchKey: There is no such generation.
        InvalidRecord: An entry of the log is damaged.
        S3CommitError: A request was refused.
    """
    sha256 = read_entry(store, destination, after).sha256 if after else ""
    feed = ManifestFeed(store, destination, lambda _: [], {"number": after, "sha256": sha256})
    while True:
        try:
            yield from (one for one in feed.look() if one.is_of_job or one.counts.files)
        except Unavailable as error:
            logger.warning("%s: trying again later: %s", destination.uri, error)
        clock.sleep(draw(0.8 * interval, 1.2 * interval))


def _is_there(store: ObjectStore, destination: Destination, position: Position) -> bool:
    """Return whether a log still has an entry that was read before; true before the first entry."""
    try:
        return not position.number or read_entry(store, destination, position.number).position == position
    except (NoSuchKey, InvalidRecord):
        return False

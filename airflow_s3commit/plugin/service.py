"""Reads the destinations of the page within its time limit, and ends jobs there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Literal, NamedTuple, TypeAlias, TypeVar

from airflow_s3commit._causes import described
from airflow_s3commit._clock import Clock, SystemClock
from airflow_s3commit._format import several
from airflow_s3commit.exceptions import DidNotHappen, InvalidDestination, OutcomeUnknown, S3CommitError
from airflow_s3commit.plugin.history import HistoryView, read_history
from airflow_s3commit.plugin.stores import (
    Budget,
    Place,
    Reader,
    StillRunning,
    StoreCache,
    configured_places,
    with_registered,
    within,
)
from airflow_s3commit.plugin.views import DestinationView, JobView, read_destination, read_job
from airflow_s3commit.present import amount, published
from airflow_s3commit.protocol.inspect.jobs import JobSummary, UploadSummary, pending_uploads
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.metadata.registry import Registered, read_registry
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import AbortReport, JobReference
from airflow_s3commit.protocol.model.manifest import Manifest
from airflow_s3commit.settings import REGISTRY, REGISTRY_CONNECTION
from airflow_s3commit.store.base import ObjectStore

Step: TypeAlias = Literal["commit", "abort", "recover"]

#: Seconds that a page waits for all of its stores in total.
WAIT = 8.0

#: Seconds for which the page of all destinations reuses what it read, and any page the registry.
FRESH = 30.0

#: Maximum number of concurrent readings for the page of all destinations: per connection, and in total.
_FLEET_LANE, _FLEET_THREADS = 16, 128

#: Maximum number of pending uploads on a page.
MOST_UPLOADS = 500

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Offer(NamedTuple):
    """A button that ends a job.

    Attributes:
        step: The step that it runs.
        label: Label of the button.
        effect: Description of the effect, for the confirmation.
        destroys: Whether it discards uploads or objects.

    """

    step: Step
    label: str
    effect: str
    destroys: bool


_ABORT = Offer(
    "abort",
    "Abort the job",
    "This discards all pending uploads of the job. None of its output becomes visible, and tasks that still"
    " write for it fail. This cannot be undone.",
    True,
)

_COMMIT = Offer(
    "commit",
    "Commit the job",
    "This makes the output of the job visible, as its commit task would; its conflict mode is respected. No"
    " audit runs, and no asset event is sent: for these, clear the commit task in Airflow instead.",
    False,
)

_CONTINUE = Offer(
    "recover",
    "Continue the commit",
    "This completes the remaining uploads, and the output becomes visible. It is safe even if the original"
    " process is still alive: nothing is committed twice.",
    False,
)

_UNDO = Offer(
    "abort",
    "Undo the commit",
    "This aborts the job: it discards the pending uploads, and deletes the files that the commit has"
    " published. It is refused if the commit is in the log by then.",
    True,
)

_FINISH = Offer(
    "recover", "Finish the remaining steps", "This completes the steps that an earlier process began.", False
)


def offers(job_view: JobView) -> list[Offer]:
    """Return the buttons for a job in its state; no commit if its run has ended with another job."""
    summary = job_view.summary
    if summary.staging is None:
        return []
    if job_view.successor is not None:
        return [_ABORT]
    if summary.has_ended:
        return [_FINISH]
    if published(job_view.details):
        return [_CONTINUE, _UNDO]
    return [_COMMIT, _ABORT] if summary.state == "sealed" else [_ABORT]


def end_job(
    store: ObjectStore,
    place: Place,
    summary: JobSummary,
    step: Step,
    reason: str,
) -> str:
    """End a job, and return a message about the result. Repeatable.

    Args:
        store: The store of the destination.
        place: The destination of the job.
        summary: The job; it has a staging.
        step: The step to run.
        reason: The reason, for the record of an abort.

    Raises:
        S3CommitError: The step was refused or failed, as in `airflow_s3commit.protocol.job.Job.abort` and
            ``recover``.

    """
    assert summary.staging is not None
    reference = JobReference(job_id=summary.job_id, destination=place.uri, staging=summary.staging)
    job = Job.at(store, reference)
    match step:
        case "commit":
            ended: Manifest | AbortReport = job.commit()
        case "abort":
            ended = job.abort(reason=reason)
        case "recover":
            ended = job.recover()
    if isinstance(ended, Manifest):
        return f"Committed: {amount(ended.counts)} in {several(len(ended.partitions), 'partition')}."
    message = f"Aborted: {several(ended.uploads, 'upload')} discarded"
    return f"{message}, {several(ended.objects, 'object')} deleted." if ended.objects else f"{message}."


class Unreadable(DidNotHappen):
    """Reading failed with an unexpected exception; nothing was changed."""


class Known(NamedTuple):
    """The destinations that the page knows.

    Attributes:
        places: The configured destinations, and those of the registry.
        configured: Only the configured destinations.
        problem: Why the registry could not be read now; None if it was read, or if there is none.

    """

    places: list[Place]
    configured: list[Place]
    problem: str | None = None


class DestinationService:
    """Reads the destinations that are configured or in the registry, and ends jobs there.

    Args:
        places: Returns the configured destinations; called for each page.
        open_store: Opens the store of a connection.
        endpoint_url: Returns the endpoint of a connection's store; None for AWS.
        wait: Seconds that a page waits.
        registry: The registry's prefix; None for none. Its connection is ``[s3commit] registry_conn_id``.
        clock: The clock; None for the system's.

    """

    def __init__(
        self,
        places: Callable[[], list[Place]] = configured_places,
        open_store: Callable[[str | None], ObjectStore] | None = None,
        endpoint_url: Callable[[str | None], str | None] | None = None,
        wait: float = WAIT,
        *,
        registry: str | None = REGISTRY,
        clock: Clock | None = None,
    ) -> None:
        readers, writers = StoreCache(timeout=wait / 2), StoreCache(timeout=60.0)
        self._places = places
        self._open = open_store or readers.open
        self._open_to_end = open_store or writers.open
        self.endpoint_url = endpoint_url or readers.endpoint_url
        self._reader = Reader(wait)
        self._ender = Reader(wait)
        self._fleet_reader = Reader(wait, lane=_FLEET_LANE, threads=_FLEET_THREADS)
        self._registry = registry
        self._clock = clock or SystemClock()
        self._registered: tuple[float, list[Registered]] = (-FRESH, [])
        self._fleet: dict[Place, tuple[float, DestinationView]] = {}

    async def places(self) -> Known:
        """Return the destinations that the page knows; if the registry cannot be read, those read before.

        Raises:
            InvalidDestination: The configuration is not valid.

        """
        configured = self._places()
        if self._registry is None:
            return Known(configured, configured)
        registry, problem = Destination.parse(self._registry), None
        at, entries = self._registered
        if self._clock.monotonic() - at >= FRESH:
            place = Place(registry, REGISTRY_CONNECTION)
            known = {(entry.key, entry.etag): entry for entry in entries}
            try:
                entries = await self._read(
                    place, "registry", lambda store: read_registry(store, registry, known)
                )
                self._registered = (self._clock.monotonic(), entries)
            except S3CommitError as error:
                problem = f"{registry.uri}: {described(error)}"
        return Known(with_registered(configured, entries), configured, problem)

    async def place(self, uri: str) -> Place:
        """Return a destination that the page knows, by its URI. The page reads no other destinations.

        Raises:
            InvalidDestination: The destination is neither configured nor in the registry.

        """
        known = await self.places()
        for place in known.places:
            if place.uri == uri:
                return place
        also = " nor in the registry" if self._registry is not None else ""
        why = f"; the registry could not be read: {known.problem}" if known.problem is not None else ""
        raise InvalidDestination(f"{uri!r} is not in [s3commit] destinations{also}{why}")

    async def destination_views(
        self, places: Sequence[Place], *, whole: bool = True
    ) -> list[DestinationView]:
        """Read the jobs of several destinations, within the time of a page.

        A destination that cannot be read now has a ``problem`` and what was read before. Those that have not
        been read for the longest time come first, so that reloading the page completes it.

        Args:
            places: The destinations.
            whole: Whether to read the jobs that ended too, and all of it now. Without this, a destination
                without jobs takes two requests, and what was read in the last `FRESH` seconds is reused.

        """
        fresh = 0.0 if whole else FRESH
        now, never = self._clock.monotonic(), float("-inf")
        read = {place: self._fleet[place][0] if place in self._fleet else never for place in places}
        due = sorted((place for place in places if now - read[place] >= fresh), key=read.__getitem__)
        await asyncio.gather(*(self._refresh(place, whole=whole) for place in due))
        views = [self._fleet[place][1] for place in places]
        return views if whole else [replace(view, ended=()) for view in views]

    async def _refresh(self, place: Place, *, whole: bool) -> None:
        def work(budget: Budget) -> DestinationView:
            return self._bounded(place, budget, "fleet", partial(read_destination, place=place, ended=whole))

        at = self._clock.monotonic()
        try:
            view = await self._fleet_reader.read(place.aws_conn_id, (place, whole), work)
        except S3CommitError as error:
            before = self._fleet[place][1] if place in self._fleet else DestinationView(place)
            view = replace(before, problem=described(error))
            if isinstance(error, StillRunning) and not error.of_store:
                # Read it first when the page is loaded again.
                at -= FRESH
        self._fleet[place] = (at, view)

    async def job_view(self, place: Place, job_id: str) -> JobView:
        """Read one job in detail.

        Raises:
            NoSuchJob: The job does not exist.
            S3CommitError: The store did not respond in time, or a record cannot be read.

        """
        return await self._read(place, "job", lambda store: read_job(store, place, job_id), job_id)

    async def history(self, place: Place, before: int | None) -> HistoryView:
        """Read a page of the history of a destination's table.

        Args:
            place: The destination.
            before: Leave out the entries from this number on; None for the newest page.

        Raises:
            S3CommitError: The store did not respond in time, or an entry cannot be read.

        """
        return await self._read(
            place, "history", lambda store: read_history(store, place, before), str(before)
        )

    async def uploads(self, place: Place) -> list[UploadSummary]:
        """Read up to ``MOST_UPLOADS + 1`` pending uploads of a destination, oldest first.

        Raises:
            S3CommitError: The store did not respond in time, or a record cannot be read.

        """
        return await self._read(place, "uploads", lambda store: _uploads(store, place))

    async def end(self, place: Place, summary: JobSummary, step: Step, reason: str) -> str:
        """End a job, and return a message about the result.

        Raises:
            StillRunning: The step takes longer than a page waits, and continues in the background.
            S3CommitError: The step failed or was refused.

        """

        def work(_: Budget) -> str:
            try:
                store = self._open_to_end(place.aws_conn_id)
                return end_job(store, place, summary, step, reason)
            except S3CommitError:
                raise
            except Exception as error:
                logger.exception("%s of job %s on %s failed", step, summary.job_id, place.uri)
                raise OutcomeUnknown(
                    f"{step} failed with {type(error).__name__}; the API server's log has the details,"
                    " and the job's page shows its state"
                ) from error

        return await self._ender.read(place, (step, summary.job_id), work)

    async def _read(
        self, place: Place, kind: str, reading: Callable[[ObjectStore], T], job_id: str | None = None
    ) -> T:
        def work(budget: Budget) -> T:
            return self._bounded(place, budget, job_id or kind, reading)

        return await self._reader.read(place, (kind, job_id), work)

    def _bounded(self, place: Place, budget: Budget, what: str, reading: Callable[[ObjectStore], T]) -> T:
        try:
            return reading(within(self._open(place.aws_conn_id), budget))
        except S3CommitError:
            raise
        except Exception as error:
            logger.exception("reading %r at %s failed", what, place.uri)
            raise Unreadable(
                f"reading failed with {type(error).__name__}; the API server's log has the details"
            ) from error


def _uploads(store: ObjectStore, place: Place) -> list[UploadSummary]:
    found = pending_uploads(store, place.destination, place.staging_root, measure=True, most=MOST_UPLOADS + 1)
    return sorted(islice(found, MOST_UPLOADS + 1), key=lambda upload: upload.initiated)

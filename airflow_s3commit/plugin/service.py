"""Reads the configured destinations within the time that a user waits, and ends jobs there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Literal, NamedTuple, TypeAlias, TypeVar

from airflow_s3commit._causes import described
from airflow_s3commit._format import several
from airflow_s3commit.exceptions import DidNotHappen, InvalidDestination, OutcomeUnknown, S3CommitError
from airflow_s3commit.hooks.s3_commit import configured_signer
from airflow_s3commit.plugin.config import Place, StoreCache, configured_places
from airflow_s3commit.plugin.reading import Budget, Reader, StillRunning, within
from airflow_s3commit.plugin.views import DestinationView, JobView, read_destination, read_job
from airflow_s3commit.present.facts import amount
from airflow_s3commit.protocol.inspect.jobs import JobSummary, UploadSummary, pending_uploads
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.model.job import JobReference
from airflow_s3commit.protocol.model.manifest import ManifestRecord
from airflow_s3commit.protocol.model.signing import Signer
from airflow_s3commit.store.base import ObjectStore

Step: TypeAlias = Literal["abort", "recover", "rollback"]

#: Seconds to wait for another job's commit lock. The user waits meanwhile, and can try again.
_LOCK_WAIT = 5.0


class Offer(NamedTuple):
    """A way to end a job.

    Attributes:
        step: What to do.
        label: The words on the button.
        effect: What it does, for the confirmation.
        destroys: Whether it discards work.

    """

    step: Step
    label: str
    effect: str
    destroys: bool


_ABORT = Offer(
    "abort",
    "Abort the job",
    "All of its pending uploads are discarded, and none of its output becomes visible. Tasks that still"
    " write for it fail. This cannot be undone.",
    True,
)

_GO_ON = Offer(
    "recover",
    "Go on with the commit",
    "Its remaining uploads are completed, and its output becomes visible. If its own process is still alive,"
    " both continue: nothing is committed twice.",
    False,
)

_UNDO = Offer(
    "rollback",
    "Undo the commit",
    "The objects that it has published are deleted, and its pending uploads are discarded. This is refused if"
    " old data was already overwritten or deleted.",
    True,
)

_FINISH = Offer(
    "recover", "Finish what is left", "The steps that its last process left unfinished are done.", False
)


def offers(summary: JobSummary) -> list[Offer]:
    """Return the ways to end a job in its state."""
    if summary.staging is None:
        return []
    match summary.state:
        case "committing":
            return [_GO_ON, _UNDO]
        case "committed" | "aborting" | "aborted":
            return [_FINISH]
        case _:
            return [_ABORT]


def end_job(
    store: ObjectStore,
    place: Place,
    summary: JobSummary,
    step: Step,
    reason: str,
    *,
    signer: Signer | None = None,
) -> str:
    """End a job, and return in words what was done. May be repeated.

    Args:
        store: The store of the destination.
        place: The destination of the job.
        summary: The job; it still has a staging.
        step: What to do.
        reason: The reason for the record.
        signer: Signs the records of jobs; None if they are not signed.

    Raises:
        S3CommitError: As `airflow_s3commit.protocol.job.Job.abort` and ``recover``.

    """
    assert summary.staging is not None
    reference = JobReference(job_id=summary.job_id, destination=place.uri, staging=summary.staging)
    job = Job.at(store, reference, lock_wait=_LOCK_WAIT, signer=signer)
    ended = (
        job.abort(reason=reason)
        if step == "abort"
        else job.recover(rollback=step == "rollback", reason=reason)
    )
    if isinstance(ended, ManifestRecord):
        return f"It is committed: {amount(ended.counts)} in {several(len(ended.partitions), 'partition')}."
    words = f"It is aborted: {several(ended.uploads, 'upload')} discarded"
    return f"{words}, {several(ended.objects, 'object')} taken back." if ended.objects else f"{words}."


logger = logging.getLogger(__name__)

#: Seconds that a page waits for all of its stores together.
WAIT = 8.0

#: Pending uploads that a page reads.
MOST_UPLOADS = 500

T = TypeVar("T")


class Unreadable(DidNotHappen):
    """Reading failed with an unexpected exception; nothing was changed."""


class DestinationService:
    """Reads the configured destinations, and ends jobs there.

    Args:
        places: Returns the destinations; called for each page.
        open_store: Opens the store of a connection.
        endpoint_url: Returns the endpoint of a connection's store.
        wait: Seconds that a page waits.

    """

    def __init__(
        self,
        places: Callable[[], list[Place]] = configured_places,
        open_store: Callable[[str | None], ObjectStore] | None = None,
        endpoint_url: Callable[[str | None], str | None] | None = None,
        wait: float = WAIT,
    ) -> None:
        readers, writers = StoreCache(timeout=wait / 2), StoreCache(timeout=60.0)
        self._places = places
        self._open = open_store or readers.open
        self._open_to_end = open_store or writers.open
        self.endpoint_url = endpoint_url or readers.endpoint_url
        self._reader = Reader(wait)
        self._ender = Reader(wait, forsakes=False)

    def places(self) -> list[Place]:
        """Return the destinations.

        Raises:
            InvalidDestination: The configuration is not valid.

        """
        return self._places()

    def place(self, uri: str) -> Place:
        """Return a configured destination; no other one is ever read.

        Raises:
            InvalidDestination: It is not configured.

        """
        for place in self._places():
            if place.uri == uri:
                return place
        raise InvalidDestination(f"{uri!r} is not among the destinations in [s3commit] destinations")

    async def destination_views(self, places: Sequence[Place]) -> list[DestinationView]:
        """Read several destinations at once; one that cannot be read has a ``problem``."""
        return await asyncio.gather(*map(self._destination_view, places))

    async def job_view(self, place: Place, job_id: str) -> JobView:
        """Read one job in detail.

        Raises:
            NoSuchJob: The job is not known.
            S3CommitError: The store did not answer in time, or a record cannot be read.

        """
        return await self._read(place, "job", lambda store: read_job(store, place, job_id), job_id)

    async def uploads(self, place: Place) -> list[UploadSummary]:
        """Read up to ``MOST_UPLOADS + 1`` pending uploads of a destination, sorted by age, the oldest first.

        Raises:
            S3CommitError: The store did not answer in time, or a record cannot be read.

        """
        return await self._read(place, "uploads", lambda store: _uploads(store, place))

    async def end(self, place: Place, summary: JobSummary, step: Step, reason: str) -> str:
        """End a job, and return in words what was done.

        Raises:
            StillRunning: It takes longer than a page waits, and continues in the background.
            S3CommitError: It failed or was refused.

        """

        def work(_: Budget) -> str:
            try:
                store = self._open_to_end(place.aws_conn_id)
                return end_job(store, place, summary, step, reason, signer=configured_signer())
            except S3CommitError:
                raise
            except Exception as error:
                logger.exception("%s of job %s on %s failed", step, summary.job_id, place.uri)
                raise OutcomeUnknown(
                    f"it failed with {type(error).__name__}; the API server's log has the details,"
                    " and the job's page shows how far it came"
                ) from error

        return await self._ender.read(place, (step, summary.job_id), work)

    async def _destination_view(self, place: Place) -> DestinationView:
        try:
            return await self._read(place, "destination", lambda store: read_destination(store, place))
        except StillRunning as error:
            return DestinationView(place, problem=str(error))
        except S3CommitError as error:
            return DestinationView(place, problem=described(error))

    async def _read(
        self, place: Place, kind: str, reading: Callable[[ObjectStore], T], job_id: str | None = None
    ) -> T:
        def work(budget: Budget) -> T:
            try:
                return reading(within(self._open(place.aws_conn_id), budget))
            except S3CommitError:
                raise
            except Exception as error:
                logger.exception("reading %r of %s failed", job_id or kind, place.uri)
                raise Unreadable(
                    f"{type(error).__name__} while it was read; the API server's log has the details"
                ) from error

        return await self._reader.read(place, (kind, job_id), work)


def _uploads(store: ObjectStore, place: Place) -> list[UploadSummary]:
    found = pending_uploads(store, place.destination, place.staging_root, measure=True, most=MOST_UPLOADS + 1)
    return sorted(islice(found, MOST_UPLOADS + 1), key=lambda upload: upload.initiated)

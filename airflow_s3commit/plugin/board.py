"""What the pages are made from: the configured destinations, read within the time that a person waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TypeVar

from airflow_s3commit.exceptions import DidNotHappen, InvalidDestination, OutcomeUnknown, S3CommitError
from airflow_s3commit.hooks.signing import configured_signer
from airflow_s3commit.plugin.dossier import Dossier, look_closely
from airflow_s3commit.plugin.ending import Step, end_job
from airflow_s3commit.plugin.glance import Glance, look
from airflow_s3commit.plugin.places import Place, configured_places
from airflow_s3commit.plugin.reading import Budget, Reader, StillRunning, within
from airflow_s3commit.plugin.stores import StoreBook
from airflow_s3commit.protocol.survey import JobSummary, UploadSummary, pending_uploads
from airflow_s3commit.store.base import ObjectStore

__all__ = ["MOST_UPLOADS", "WAIT", "Board", "Unreadable"]

logger = logging.getLogger(__name__)

#: Seconds that a page waits for its stores, all of them together.
WAIT = 8.0

#: Pending uploads that are looked at.
MOST_UPLOADS = 500

T = TypeVar("T")


class Unreadable(DidNotHappen):
    """Reading failed in a way that nothing here foresees; nothing was changed."""


class Board:
    """Reads the configured destinations, and ends jobs there.

    Args:
        places: Returns the destinations; read anew for each page.
        open_store: Returns the store of a connection.
        endpoint_url: Returns where a connection's store answers.
        wait: Seconds that a page waits.

    """

    def __init__(
        self,
        places: Callable[[], list[Place]] = configured_places,
        open_store: Callable[[str | None], ObjectStore] | None = None,
        endpoint_url: Callable[[str | None], str | None] | None = None,
        wait: float = WAIT,
    ) -> None:
        readers, writers = StoreBook(timeout=wait / 2), StoreBook(timeout=60.0)
        self._places = places
        self._open = open_store or readers.open
        self._open_to_end = open_store or writers.open
        self.endpoint_url = endpoint_url or readers.endpoint_url
        self._reader = Reader(wait)
        self._ender = Reader(wait, forsakes=False)

    def places(self) -> list[Place]:
        """Return the destinations.

        Raises:
            InvalidDestination: The configuration cannot be read.

        """
        return self._places()

    def place(self, uri: str) -> Place:
        """Return one of the configured destinations; no other is ever read.

        Raises:
            InvalidDestination: It is not among them.

        """
        for place in self._places():
            if place.uri == uri:
                return place
        raise InvalidDestination(f"{uri!r} is not among the destinations in [s3commit] destinations")

    async def glances(self, places: Sequence[Place]) -> list[Glance]:
        """Look at several destinations at once; one that cannot be read says so in its ``problem``."""
        return await asyncio.gather(*map(self._glance, places))

    async def dossier(self, place: Place, job_id: str) -> Dossier:
        """Look at one job closely.

        Raises:
            NoSuchJob: Nothing is known of it.
            S3CommitError: Its store could not be asked in time, or what it holds could not be read.

        """
        return await self._read(place, "job", lambda store: look_closely(store, place, job_id), job_id)

    async def uploads(self, place: Place) -> list[UploadSummary]:
        """Look at the first `MOST_UPLOADS` pending uploads of a destination and one more, the oldest first.

        Raises:
            S3CommitError: The store could not be asked in time, or what it holds could not be read.

        """
        return await self._read(place, "uploads", lambda store: _uploads(store, place))

    async def end(self, place: Place, summary: JobSummary, step: Step, reason: str) -> str:
        """End a job, and return in words what was done.

        Raises:
            StillRunning: It takes longer than a page waits, and goes on.
            S3CommitError: It could not be done, or was refused.

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
                    f"it ended with {type(error).__name__}, which the API server's log explains;"
                    " the job's page shows how far it came"
                ) from error

        return await self._ender.read(place, (step, summary.job_id), work)

    async def _glance(self, place: Place) -> Glance:
        try:
            return await self._read(place, "glance", lambda store: look(store, place))
        except StillRunning as error:
            return Glance(place, problem=str(error))
        except S3CommitError as error:
            return Glance(place, problem=f"{type(error).__name__}: {error}")

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
                    f"{type(error).__name__} while it was read, which the API server's log explains"
                ) from error

        return await self._reader.read(place, (kind, job_id), work)


def _uploads(store: ObjectStore, place: Place) -> list[UploadSummary]:
    found = pending_uploads(store, place.destination, place.staging_root, measure=True, most=MOST_UPLOADS + 1)
    return sorted(islice(found, MOST_UPLOADS + 1), key=lambda upload: upload.initiated)

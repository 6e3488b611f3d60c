"""What the pages are made from: the configured destinations, read within the time that a person waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TypeVar

from airflow_s3commit.exceptions import InvalidDestination, S3CommitError
from airflow_s3commit.plugin.dossier import Dossier, look_closely
from airflow_s3commit.plugin.ending import Step, end_job
from airflow_s3commit.plugin.glance import Glance, look
from airflow_s3commit.plugin.places import Place, configured_places
from airflow_s3commit.plugin.reading import Reader, within
from airflow_s3commit.plugin.stores import StoreBook
from airflow_s3commit.protocol.survey import JobSummary, UploadSummary, pending_uploads
from airflow_s3commit.store.base import ObjectStore

__all__ = ["MOST_UPLOADS", "WAIT", "Board"]

#: Seconds that a page waits for its stores, all of them together.
WAIT = 8.0

#: Pending uploads that are looked at.
MOST_UPLOADS = 500

T = TypeVar("T")


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
        self._ender = Reader(wait, threads=2)

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

    def glances(self, places: Sequence[Place]) -> list[Glance]:
        """Look at several destinations at once; one that does not answer says so in its ``problem``."""
        running = [(place, self._reader.begin(("glance", place), self._looking(place))) for place in places]
        end = time.monotonic() + self._reader.seconds
        found = []
        for place, future in running:
            try:
                found.append(self._reader.result(future, max(end - time.monotonic(), 0.0)))
            except S3CommitError as error:
                found.append(Glance(place, problem=f"{type(error).__name__}: {error}"))
        return found

    def dossier(self, place: Place, job_id: str) -> Dossier:
        """Look at one job closely.

        Raises:
            NoSuchJob: Nothing is known of it.
            S3CommitError: Its store could not be asked in time.

        """
        return self._reader.read(
            ("job", place, job_id), lambda: look_closely(self._bounded(place), place, job_id)
        )

    def uploads(self, place: Place) -> list[UploadSummary]:
        """Look at the pending uploads of a destination, so many of them, the oldest first.

        Raises:
            S3CommitError: The store could not be asked in time.

        """
        return self._reader.read(("uploads", place), lambda: self._uploads(place))

    def end(self, place: Place, summary: JobSummary, step: Step, reason: str) -> str:
        """End a job, and return in words what was done.

        Raises:
            StillRunning: It takes longer than a page waits, and goes on.
            S3CommitError: It could not be done, or was refused.

        """
        return self._ender.read(
            (step, place, summary.job_id),
            lambda: end_job(self._open_to_end(place.aws_conn_id), place, summary, step, reason),
        )

    def _looking(self, place: Place) -> Callable[[], Glance]:
        return lambda: look(self._bounded(place), place)

    def _uploads(self, place: Place) -> list[UploadSummary]:
        found = pending_uploads(
            self._bounded(place), place.destination, place.staging_root, measure=True, most=MOST_UPLOADS + 1
        )
        return sorted(islice(found, MOST_UPLOADS + 1), key=lambda upload: upload.initiated)

    def _bounded(self, place: Place) -> ObjectStore:
        return within(self._open(place.aws_conn_id), self._reader.seconds)

"""The history of a table: its commits, newest first."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from itertools import islice

from airflow_s3commit._clock import Clock
from airflow_s3commit.exceptions import Unavailable
from airflow_s3commit.protocol.metadata.log import newest_entries, next_entries
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.manifest import ManifestRecord
from airflow_s3commit.store.base import ObjectStore

logger = logging.getLogger(__name__)


def history(
    store: ObjectStore, destination: str | Destination, *, limit: int | None = None
) -> Iterator[ManifestRecord]:
    """Yield the manifest of each commit to a destination, newest first; none without a log.

    A manifest's ``generation`` is the number of its commit in the log. Numbers in between are of jobs that
    were aborted. The log is read while the caller iterates: stopping early saves requests. May be repeated.

    Args:
        store: The store of the destination.
        destination: URI of the dataset's directory, or a `Destination`.
        limit: How many commits to return; None for all.

    Raises:
        InvalidRecord: An entry of the log is damaged or missing.

    """
    place = Destination.of(destination)
    entries = newest_entries(store, place, limit, limit) if limit else newest_entries(store, place)
    return islice((entry.manifest for entry in entries if entry.manifest is not None), limit)


def follow(
    store: ObjectStore,
    destination: Destination,
    after: int,
    *,
    interval: float,
    clock: Clock,
    draw: Callable[[float, float], float] = random.uniform,
) -> Iterator[ManifestRecord]:
    """Yield the manifest of each commit after a generation, in their order, for ever; waits for new ones.

    A look for new ones takes one request. A store that is unavailable is asked again at the next look.

    Args:
        store: The store of the destination.
        destination: The destination.
        after: The generation; 0 for all.
        interval: Seconds from one look to the next, give or take a fifth, so that many do not look at once.
        clock: Waits.
        draw: Returns a random number between two.

    Raises:
        InvalidRecord: An entry of the log is damaged or missing.
        S3CommitError: A request was refused.

    """
    while True:
        try:
            for entry in next_entries(store, destination, after):
                after = entry.number
                if entry.manifest is not None:
                    yield entry.manifest
        except Unavailable as error:
            logger.warning("%s: trying again later: %s", destination.uri, error)
        clock.sleep(draw(0.8 * interval, 1.2 * interval))

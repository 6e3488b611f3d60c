"""Writes and reads a registry: one small object for each destination, below a prefix.

The first setup of a job creates the object of its destination, so the tasks of many DAGs share no object.
An object that was deleted is created again by the destination's next job.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

from airflow_s3commit._causes import described
from airflow_s3commit.exceptions import (
    InvalidDestination,
    InvalidRecord,
    NoSuchKey,
    PreconditionFailed,
    S3CommitError,
)
from airflow_s3commit.protocol.metadata.context import fetch_listed
from airflow_s3commit.protocol.model.codec import decode, encode, largest
from airflow_s3commit.protocol.model.destination import Destination, RegisteredDestination, join_uri
from airflow_s3commit.protocol.model.layout import entry_key
from airflow_s3commit.protocol.model.table import Entry
from airflow_s3commit.store.base import ObjectStore

logger = logging.getLogger(__name__)

#: Maximum number of destinations to read: ten requests for their listing.
MOST_DESTINATIONS = 10_000


@dataclass(frozen=True, slots=True)
class Registered:
    """An object of a registry; ``age`` is its age when it was read, in seconds by the store's clock."""

    key: str
    etag: str
    age: float
    record: RegisteredDestination


#: Objects by key and ETag, as an earlier reading found them.
KnownDestinations: TypeAlias = Mapping[tuple[str, str], Registered]


def register_destination(
    store: ObjectStore,
    registry: str | Destination,
    destination: str | Destination,
    *,
    staging: str | Destination | None = None,
    aws_conn_id: str | None = None,
) -> None:
    """Enter a destination in a registry, unless it is there: one create-only request. Repeatable.

    Args:
        store: The store of the registry.
        registry: The prefix of the registry: ``s3://bucket/prefix/``.
        destination: The destination of jobs.
        staging: The jobs' option ``staging``; None if it is the destination.
        aws_conn_id: Airflow's connection of the destination's store; None outside Airflow.

    Raises:
        InvalidDestination: One of these URIs is not a directory on S3.
    """
    place, here = Destination.of(registry), Destination.of(destination)
    root = Destination.of(staging) if staging is not None else here
    record = RegisteredDestination(
        destination=here.uri, aws_conn_id=aws_conn_id, staging=root.uri if root != here else None
    )
    key, body = place.key(record.name), encode(record)
    with suppress(PreconditionFailed):
        store.put(place.bucket, key, body, if_none_match=True)


@contextmanager
def failures_logged(registry: str, destination: str) -> Iterator[None]:
    """Log a failure to enter a destination instead of raising it: a job does not depend on a registry."""
    try:
        yield
    except Exception as error:
        logger.warning(
            "%s could not be entered in the registry %s; its next job tries again: %s",
            destination,
            registry,
            described(error) if isinstance(error, S3CommitError) else type(error).__name__,
        )


def read_registry(
    store: ObjectStore, registry: Destination, known: KnownDestinations | None = None
) -> list[Registered]:
    """Return the destinations of a registry, in order of their URIs: a listing, and a read for each new one.

    Objects ``known`` from an earlier reading need not be read again. Objects that are damaged, or that were
    changed or copied, are left out with a warning.
    """
    known, found = known or {}, []
    listed = store.list_objects(registry.bucket, registry.prefix, recursive=False)
    objects = list(islice((info for info in listed if info.key.endswith(".json")), MOST_DESTINATIONS + 1))
    if len(objects) > MOST_DESTINATIONS:
        logger.warning("%s: only the first %d destinations are read", registry.uri, MOST_DESTINATIONS)
    fresh = []
    for info in objects[:MOST_DESTINATIONS]:
        entry = known.get((info.key, info.etag))
        if entry is None:
            fresh.append(info)
        else:
            found.append(entry)
    limit = largest(RegisteredDestination)
    for info, outcome in fetch_listed(store, registry.bucket, fresh, lambda _: limit):
        where = join_uri(registry.bucket, info.key)
        try:
            if isinstance(outcome, InvalidRecord):
                raise outcome
            record = decode(RegisteredDestination, outcome.body, where)
            if info.key != registry.key(record.name):
                raise InvalidRecord(f"{where} is not the object of {record.destination}")
            _ = record.place, record.staging_root
        except (InvalidRecord, InvalidDestination) as error:
            logger.warning("left out of the registry: %s", error)
            continue
        found.append(Registered(info.key, info.etag, outcome.date - info.modified, record))
    return sorted(found, key=lambda entry: (entry.record.destination, entry.key))


def has_records(store: ObjectStore, record: RegisteredDestination) -> bool:
    """Return whether jobs of this package have this destination, by the first entry of its log.

    The first setup there creates that entry, and nothing deletes it. Without a valid one that names the
    destination, a registry is not believed: a sweep there would abort the uploads of other programs. Another
    object at the entry's key proves nothing, nor does a copy.
    """
    place = record.place
    key = entry_key(place, 1)
    with suppress(InvalidRecord, NoSuchKey):
        body = store.get(place.bucket, key, limit=largest(Entry)).body
        return decode(Entry, body, join_uri(place.bucket, key)).destination == place.uri
    return False


def is_gone(store: ObjectStore, record: RegisteredDestination) -> bool:
    """Return whether nothing is left of a destination: no object and no pending upload. Reads only.

    A missing bucket, which may be another store's, is an error.
    """
    return all(
        next(store.list_objects(root.bucket, root.prefix), None) is None
        and next(store.list_uploads(root.bucket, root.prefix, page=1), None) is None
        for root in (record.place, record.staging_root)
        if root is not None
    )

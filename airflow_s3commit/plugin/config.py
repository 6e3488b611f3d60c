"""The destinations in ``[s3commit] destinations`` of Airflow's configuration, and the stores they are on."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.sdk.exceptions import AirflowException

from airflow_s3commit._clock import Clock, SystemClock
from airflow_s3commit.exceptions import (
    AccessDenied,
    InvalidDestination,
    S3CommitError,
    StoreRejected,
)
from airflow_s3commit.hooks.s3_commit import S3CommitHook
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.settings import page_destinations

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_s3commit.protocol.metadata.registry import Registered
    from airflow_s3commit.store.base import ObjectStore

_KEYS = frozenset({"destination", "aws_conn_id", "staging"})


@dataclass(frozen=True, slots=True)
class Place:
    """A configured destination, and how to reach it.

    Attributes:
        destination: The dataset's directory.
        aws_conn_id: The ``aws`` connection of the store; None for boto3's default credentials.
        staging_root: The root of the jobs' staging; None if it is the destination.

    """

    destination: Destination
    aws_conn_id: str | None = S3CommitHook.default_conn_name
    staging_root: Destination | None = None

    @property
    def uri(self) -> str:
        """The destination's URI."""
        return self.destination.uri


def configured_places() -> list[Place]:
    """Return the destinations in Airflow's configuration.

    Raises:
        InvalidDestination: The configuration is not valid.

    """
    return read_places(page_destinations())


def with_registered(configured: Iterable[Place], entries: Iterable[Registered]) -> list[Place]:
    """Return the configured destinations, and those of a registry, one of each URI."""
    places = {place.uri: place for place in configured}
    for entry in entries:
        record = entry.record
        place = Place(record.place, record.aws_conn_id, record.staging_root)
        places.setdefault(place.uri, place)
    return list(places.values())


def read_places(text: str) -> list[Place]:
    """Parse the text of the option into destinations, without duplicates.

    The text is a JSON list of URIs, or of objects with the keys ``destination``, ``aws_conn_id`` and
    ``staging``; or a list of URIs, separated by commas or white space.

    Raises:
        InvalidDestination: The text has another form, or a URI is not a destination.

    """
    places: dict[str, Place] = {}
    for entry in _entries(text.strip()):
        place = _place(entry)
        places.setdefault(place.uri, place)
    return list(places.values())


def _entries(text: str) -> Iterator[Any]:
    if not text.startswith(("[", "{")):
        yield from filter(None, re.split(r"[\s,]+", text))
        return
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidDestination(f"[s3commit] destinations is not valid JSON: {error}") from error
    yield from found if isinstance(found, list) else [found]


def _place(entry: Any) -> Place:
    if isinstance(entry, str):
        return Place(Destination.parse(entry))
    if not isinstance(entry, Mapping) or not isinstance(entry.get("destination"), str):
        raise InvalidDestination(
            f"[s3commit] destinations: {entry!r} is neither a URI nor an object with the key destination"
        )
    if unknown := sorted(entry.keys() - _KEYS):
        raise InvalidDestination(
            f"[s3commit] destinations: unknown key {', '.join(unknown)}; use {', '.join(sorted(_KEYS))}"
        )
    staging = entry.get("staging")
    destination = Destination.parse(entry["destination"])
    root = Destination.parse(str(staging)) if staging else None
    return Place(
        destination,
        entry.get("aws_conn_id", S3CommitHook.default_conn_name),
        None if root == destination else root,
    )


def load_clients() -> None:
    """Import what opens stores, and make a first client, which takes a process seconds. Sends no request.

    Else the first page after a restart spends its time on this, and lacks what it would have read.
    """
    from airflow.providers.amazon.aws.hooks.s3 import S3Hook  # noqa: F401, PLC0415

    from airflow_s3commit.store.s3.config import S3Config  # noqa: PLC0415
    from airflow_s3commit.store.s3.store import S3Store  # noqa: PLC0415

    nowhere = S3Config(
        endpoint_url="http://127.0.0.1:9",
        region="us-east-1",
        access_key="none",
        secret_key="none",  # noqa: S106 - no key
    )
    S3Store.connect(nowhere, transport="boto3", threads=1)


#: Seconds for which to reuse an opened store; then the connection is read again.
_REUSE_SECONDS = 60.0

T = TypeVar("T")


class StoreCache:
    """Opens the store of each connection, and reuses it for a minute.

    Args:
        timeout: Maximum seconds of a request, with its retries.
        clock: The clock; None for the system's.

    """

    def __init__(self, timeout: float, clock: Clock | None = None) -> None:
        self._timeout = timeout
        self._clock = clock or SystemClock()
        self._hooks: dict[str | None, tuple[float, S3CommitHook]] = {}
        self._lock = threading.Lock()

    def open(self, aws_conn_id: str | None) -> ObjectStore:
        """Return the store of a connection.

        Raises:
            AccessDenied: The connection does not exist, or its credentials are incomplete.
            StoreRejected: The connection cannot be used.

        """
        return self._with_hook(aws_conn_id, lambda hook: hook.store)

    def endpoint_url(self, aws_conn_id: str | None) -> str | None:
        """Return the endpoint of a connection's store; None for AWS.

        Raises:
            AccessDenied: The connection does not exist, or its credentials are incomplete.
            StoreRejected: The connection cannot be used.

        """
        return self._with_hook(aws_conn_id, lambda hook: hook.address.endpoint_url)

    def _with_hook(self, aws_conn_id: str | None, get: Callable[[S3CommitHook], T]) -> T:
        try:
            return get(self._hook(aws_conn_id))
        except S3CommitError:
            raise
        except AirflowException as error:
            raise AccessDenied(f"the connection {aws_conn_id!r} cannot be used: {error}") from error
        except Exception as error:
            # boto3 or the connection's settings may raise anything.
            failure = StoreRejected(f"the connection {aws_conn_id!r} cannot be used ({type(error).__name__})")
        # Raised outside of the handler, because the text of its exception may contain credentials.
        raise failure

    def _hook(self, aws_conn_id: str | None) -> S3CommitHook:
        now = self._clock.monotonic()
        with self._lock:
            known = self._hooks.get(aws_conn_id)
            if known is None or now - known[0] > _REUSE_SECONDS:
                hook = S3CommitHook(aws_conn_id, retry_deadline=self._timeout, timeout=self._timeout)
                known = self._hooks[aws_conn_id] = (now, hook)
            return known[1]

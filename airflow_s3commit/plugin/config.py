"""The destinations in ``[s3commit] destinations`` of Airflow's configuration, and the stores they are on."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping
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

    from airflow_s3commit.store.base import ObjectStore

_KEYS = frozenset({"destination", "aws_conn_id", "staging"})


@dataclass(frozen=True, slots=True)
class Place:
    """A configured destination, and how to reach it.

    Attributes:
        destination: The dataset's directory.
        aws_conn_id: The ``aws`` connection of its store; None means boto3's default chain.
        staging_root: Where jobs have their records, if not below the destination.

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


def read_places(text: str) -> list[Place]:
    """Parse the text of the option into destinations, each once.

    The text is a JSON list of URIs, or of objects with the keys ``destination``, ``aws_conn_id`` and
    ``staging``; or URIs alone with commas or white space between them.

    Raises:
        InvalidDestination: It is neither, or one of them is not a destination.

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
            f"[s3commit] destinations: {entry!r} is neither a URI nor an object with a destination"
        )
    if strange := sorted(entry.keys() - _KEYS):
        raise InvalidDestination(
            f"[s3commit] destinations: no key {', '.join(strange)} is known, but {', '.join(sorted(_KEYS))}"
        )
    staging = entry.get("staging")
    destination = Destination.parse(entry["destination"])
    root = Destination.parse(str(staging)) if staging else None
    return Place(
        destination,
        entry.get("aws_conn_id", S3CommitHook.default_conn_name),
        None if root == destination else root,
    )


#: Seconds for which an opened store is reused; then the connection is read again.
_FRESH = 60.0

T = TypeVar("T")


class StoreCache:
    """Opens the store of each connection, and reuses it for a minute.

    Args:
        timeout: Seconds that a request may take, retries included.
        clock: The clock.

    """

    def __init__(self, timeout: float, clock: Clock | None = None) -> None:
        self._timeout = timeout
        self._clock = clock or SystemClock()
        self._hooks: dict[str | None, tuple[float, S3CommitHook]] = {}
        self._lock = threading.Lock()

    def open(self, aws_conn_id: str | None) -> ObjectStore:
        """Return the store of a connection.

        Raises:
            AccessDenied: There is no such connection, or its credentials are incomplete.
            StoreRejected: The connection cannot be used.

        """
        return self._asked(aws_conn_id, lambda hook: hook.store)

    def endpoint_url(self, aws_conn_id: str | None) -> str | None:
        """Return the endpoint of a connection's store; None for AWS. Raises as `open` does."""
        return self._asked(aws_conn_id, lambda hook: hook.address.endpoint_url)

    def _asked(self, aws_conn_id: str | None, ask: Callable[[S3CommitHook], T]) -> T:
        try:
            return ask(self._hook(aws_conn_id))
        except S3CommitError:
            raise
        except AirflowException as error:
            raise AccessDenied(f"the connection {aws_conn_id!r} cannot be used: {error}") from error
        except Exception as error:
            # Anything else that boto3 or the connection's settings raise.
            failure = StoreRejected(f"the connection {aws_conn_id!r} cannot be used ({type(error).__name__})")
        # Raised outside of the handler, because the other error's text may contain credentials.
        raise failure

    def _hook(self, aws_conn_id: str | None) -> S3CommitHook:
        now = self._clock.monotonic()
        with self._lock:
            known = self._hooks.get(aws_conn_id)
            if known is None or now - known[0] > _FRESH:
                hook = S3CommitHook(aws_conn_id, retry_deadline=self._timeout, timeout=self._timeout)
                known = self._hooks[aws_conn_id] = (now, hook)
            return known[1]

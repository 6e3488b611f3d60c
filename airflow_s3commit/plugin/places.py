"""The destinations that the page is about: ``[s3commit] destinations`` of Airflow's configuration."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from airflow.configuration import conf

from airflow_s3commit.exceptions import InvalidDestination
from airflow_s3commit.hooks.s3_commit import S3CommitHook
from airflow_s3commit.protocol.destination import Destination

__all__ = ["Place", "configured_places", "read_places"]

_KEYS = frozenset({"destination", "aws_conn_id", "staging"})


@dataclass(frozen=True, slots=True)
class Place:
    """A destination, and how to reach it.

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
    """Return the destinations that Airflow's configuration names.

    Raises:
        InvalidDestination: The configuration cannot be read; the message says what is wrong.

    """
    return read_places(conf.get("s3commit", "destinations", fallback="") or "")


def read_places(text: str) -> list[Place]:
    """Read destinations from a configuration's text, each once.

    The text is a JSON list of URIs, or of objects with the keys ``destination``, ``aws_conn_id`` and
    ``staging``; or URIs alone with commas or white space between them.

    Raises:
        InvalidDestination: It is neither, or one of them is no destination.

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
        raise InvalidDestination(f"[s3commit] destinations is no JSON: {error}") from error
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

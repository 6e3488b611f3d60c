"""The destinations of the page, from Airflow's configuration, and how their stores are reached."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from time import monotonic
from typing import NamedTuple

import msgspec

from airflow_s3commit.airflow_version import AirflowException
from airflow_s3commit.exceptions import AccessDenied, InvalidDestination, S3CommitError, StoreRejected
from airflow_s3commit.hooks.s3_commit import S3CommitHook
from airflow_s3commit.protocol.model.destination import Destination, RegisteredDestination
from airflow_s3commit.settings import DEFAULT_CONNECTION, page_destinations
from airflow_s3commit.store.base import ObjectStore


class _Configured(msgspec.Struct, forbid_unknown_fields=True):
    """An object in the option's JSON list."""

    destination: str
    aws_conn_id: str | None = DEFAULT_CONNECTION
    staging: str | None = None


def configured_places() -> list[RegisteredDestination]:
    """Return the destinations in Airflow's configuration as it is now. Raises as `read_places` does."""
    return read_places(page_destinations())


def read_places(text: str) -> list[RegisteredDestination]:
    """Parse ``[s3commit] destinations`` into destinations, one for each URI.

    The text is a JSON list of URIs, or of objects with the keys ``destination``, ``aws_conn_id`` and
    ``staging``; or a list of URIs, separated by commas or white space.

    Raises:
        InvalidDestination: The text has another form, or a URI is not a destination.
    """
    entries: list[str | _Configured] = [*filter(None, re.split(r"[\s,]+", text))]
    if text.strip().startswith(("[", "{")):
        try:
            entries = msgspec.convert(json.loads(text), list[str | _Configured])
        except (ValueError, msgspec.ValidationError) as error:
            raise InvalidDestination(
                "[s3commit] destinations is not a JSON list of URIs and of objects with the keys destination,"
                f" aws_conn_id and staging: {error}"
            ) from error
    found: dict[str, RegisteredDestination] = {}
    for entry in (_Configured(one) if isinstance(one, str) else one for one in entries):
        uri = Destination.parse(entry.destination).uri
        staging = Destination.parse(entry.staging).uri if entry.staging else uri
        home = RegisteredDestination(
            destination=uri, aws_conn_id=entry.aws_conn_id, staging=staging if staging != uri else None
        )
        found.setdefault(uri, home)
    return list(found.values())


class Connection(NamedTuple):
    """An opened connection.

    Attributes:
        store: Its store.
        endpoint_url: The store's endpoint, for command lines; None for AWS.
    """

    store: ObjectStore
    endpoint_url: str | None = None


#: Seconds for which to reuse a connection; then its settings are read again.
_REUSE_SECONDS = 60


@lru_cache(maxsize=256)
def _hook(aws_conn_id: str | None, seconds: float, _period: int) -> S3CommitHook:
    return S3CommitHook(aws_conn_id, retry_deadline=seconds, timeout=seconds)


def connect(aws_conn_id: str | None, seconds: float) -> Connection:
    """Open a connection of Airflow, or the one that was opened within the last minute.

    Args:
        aws_conn_id: The connection; None for boto3's default credentials.
        seconds: Maximum seconds of a request, with its retries.

    Raises:
        AccessDenied: The connection does not exist, or its credentials are incomplete.
        StoreRejected: The connection cannot be used.
    """
    try:
        hook = _hook(aws_conn_id, seconds, int(monotonic() // _REUSE_SECONDS))
        return Connection(hook.store, hook.address.endpoint_url)
    except S3CommitError:
        raise
    except AirflowException as error:
        raise AccessDenied(f"the connection {aws_conn_id!r} cannot be used: {error}") from error
    except Exception as error:
        # boto3 or the connection's settings may raise anything.
        failure = StoreRejected(f"the connection {aws_conn_id!r} cannot be used ({type(error).__name__})")
    # Raised outside of the handler, because the text of its exception may contain credentials.
    raise failure


def load_clients() -> None:
    """Import what opens stores, and create a first client, which takes seconds. Sends no request.

    Otherwise the first page after a restart spends its time on this, and cannot read everything.
    """
    from airflow.providers.amazon.aws.hooks.s3 import S3Hook  # noqa: F401, PLC0415

    from airflow_s3commit.store.s3.config import S3Config  # noqa: PLC0415
    from airflow_s3commit.store.s3.store import S3Store  # noqa: PLC0415

    nowhere = S3Config(endpoint_url="http://127.0.0.1:9", region="us-east-1", access_key="-", secret_key="-")  # noqa: S106
    S3Store.connect(nowhere, transport="boto3", threads=1)

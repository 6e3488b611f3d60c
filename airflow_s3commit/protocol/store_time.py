"""What time the store thinks it is: ages are differences of its own times, never of two machines' clocks.

A store says the time with every answer, but only records are read through an answer that is kept. So this
reads some small record of the destination; where there is none, it may write one and remove it.
"""

from __future__ import annotations

from collections.abc import Iterator

from airflow_s3commit.causes import ending
from airflow_s3commit.exceptions import NoSuchKey, TooLarge
from airflow_s3commit.protocol.destination import Destination, join_uri
from airflow_s3commit.protocol.layout import (
    MAGIC_PREFIX,
    PENDING_SUFFIX,
    PENDINGSET_SUFFIX,
    SUCCESS,
    aborted_prefix,
    lock_key,
    manifests_prefix,
    time_key,
)
from airflow_s3commit.protocol.limits import MIB
from airflow_s3commit.store.base import ObjectStore

__all__ = ["asked_time", "known_time", "tells_when_uploads_began"]

#: Stores tell times in whole seconds, and answer from several machines.
_TOLERANCE_SECONDS = 60.0

_SMALL = (".json", PENDING_SUFFIX, PENDINGSET_SUFFIX)

#: Nothing of the record is wanted but the time at which it was read.
_SMALL_BYTES = MIB


def known_time(store: ObjectStore, destination: Destination) -> float | None:
    """Return the store's time, in seconds since the epoch, by reading; None if there is no record to read."""
    for bucket, key in _small_records(store, destination):
        try:
            return store.get(bucket, key, limit=_SMALL_BYTES).date
        except (NoSuchKey, TooLarge):
            continue
    return None


def asked_time(store: ObjectStore, destination: Destination) -> float:
    """Return the store's time by writing a small hidden object and removing it again."""
    bucket, key = destination.bucket, time_key(destination)
    with ending(lambda: store.delete(bucket, key), f"deleting {join_uri(bucket, key)}", "it may be left"):
        return store.put(bucket, key, b"what time is it?", content_type="text/plain").date


def tells_when_uploads_began(store: ObjectStore, destination: Destination) -> bool:
    """Find out whether a listing of uploads tells the truth about when they began.

    Some stores say the same time of every upload; going by it would take the newest one for an orphan. An
    upload is started, listed and aborted; whoever did so before and died is cleaned up after. An upload that
    is not listed, or by its time was not begun just now, is a no.
    """
    bucket, key = destination.bucket, time_key(destination)
    now = asked_time(store, destination)
    upload_id = store.create_upload(bucket, key, metadata={}, content_type="application/octet-stream")
    with ending(
        lambda: store.abort_upload(bucket, key, upload_id),
        f"aborting the probe's upload of {join_uri(bucket, key)}",
        "it may stay pending until the next sweep",
    ):
        probes = [upload for upload in store.list_uploads(bucket, key) if upload.key == key]
    for probe in probes:
        if probe.upload_id != upload_id and now - probe.initiated > _TOLERANCE_SECONDS:
            store.abort_upload(bucket, key, probe.upload_id)
    began = [probe.initiated for probe in probes if probe.upload_id == upload_id]
    return bool(began) and all(abs(initiated - now) <= _TOLERANCE_SECONDS for initiated in began)


def _small_records(store: ObjectStore, destination: Destination) -> Iterator[tuple[str, str]]:
    yield destination.bucket, destination.key(SUCCESS)
    yield destination.bucket, lock_key(destination)
    for prefix in (destination.key(MAGIC_PREFIX), manifests_prefix(destination), aborted_prefix(destination)):
        for info in store.list_objects(destination.bucket, prefix):
            if info.key.endswith(_SMALL) and info.size <= _SMALL_BYTES:
                yield destination.bucket, info.key
                break

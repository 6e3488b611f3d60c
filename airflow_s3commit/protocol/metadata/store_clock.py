"""The store's clock, and the ages that it shows.

Ages are differences of the store's own times, never of two machines' clocks. The time is the ``Date`` of a
response. It is read with a small record of the destination; if there is none, a probe object is written and
deleted.
"""

from __future__ import annotations

from collections.abc import Iterator

from airflow_s3commit._causes import ending
from airflow_s3commit.exceptions import NoSuchKey, TooLarge
from airflow_s3commit.protocol.model.codec import MIB
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.layout import (
    MAGIC_PREFIX,
    PENDING_SUFFIX,
    PENDINGSET_SUFFIX,
    SUCCESS,
    entry_key,
)
from airflow_s3commit.store.base import ObjectStore

#: Times of one store differ by up to this many seconds: they are whole seconds, from several machines.
STORE_CLOCK_SECONDS = 1.0

#: Maximum error, in seconds, of the start time of an upload in a listing; beyond it the time is useless.
_UPLOAD_TIME_SECONDS = 60.0

_SMALL = (".json", PENDING_SUFFIX, PENDINGSET_SUFFIX)

#: Maximum size of a record that is read for the time of its response.
_SMALL_BYTES = MIB


def read_time(store: ObjectStore, destination: Destination) -> float | None:
    """Return the store's time in seconds since the epoch, by a read; None if there is no record to read."""
    for bucket, key in _small_records(store, destination):
        try:
            return store.get(bucket, key, limit=_SMALL_BYTES).date
        except (NoSuchKey, TooLarge):
            continue
    return None


def probe_time(store: ObjectStore, bucket: str, key: str) -> float:
    """Return the store's time in seconds since the epoch, by writing and deleting a probe object."""
    with ending(lambda: store.delete(bucket, key), f"deleting {join_uri(bucket, key)}", "it may be left"):
        return store.put(bucket, key, b"what time is it?", content_type="text/plain").date


def has_true_upload_times(store: ObjectStore, bucket: str, key: str) -> bool | None:
    """Return whether a listing of uploads has their true start times, by a probe; None if it lacks the probe.

    Some stores report one time for every upload, by which a new upload would look like an orphan.

    Args:
        store: The store.
        bucket: The probe's bucket.
        key: A key that only probes use; the object there is overwritten and deleted.

    """
    now = probe_time(store, bucket, key)
    upload_id = store.create_upload(bucket, key, metadata={}, content_type="application/octet-stream")
    with ending(
        lambda: store.abort_upload(bucket, key, upload_id),
        f"aborting the probe's upload of {join_uri(bucket, key)}",
        "it may stay pending until the next sweep",
    ):
        probes = [one for one in store.list_uploads(bucket, key) if one.key == key]
    for probe in probes:
        if probe.upload_id != upload_id and now - probe.initiated > _UPLOAD_TIME_SECONDS:
            # A dead process left it.
            store.abort_upload(bucket, key, probe.upload_id)
    errors = [abs(one.initiated - now) for one in probes if one.upload_id == upload_id]
    return max(errors) <= _UPLOAD_TIME_SECONDS if errors else None


def _small_records(store: ObjectStore, destination: Destination) -> Iterator[tuple[str, str]]:
    yield destination.bucket, entry_key(destination, 1)
    yield destination.bucket, destination.key(SUCCESS)
    for info in store.list_objects(destination.bucket, destination.key(MAGIC_PREFIX)):
        if info.key.endswith(_SMALL) and info.size <= _SMALL_BYTES:
            yield destination.bucket, info.key
            return

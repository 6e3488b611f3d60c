"""Check what a job relies on in its store, with a few requests, before any work.

A job relies on create-only writes, compare-and-swap of one object, and listings of its own uploads. The
conditions are tried on a record that the caller has just written, with the same content, so that nothing is
changed. Each process checks once for each store and bucket, at keys or upload ids of its own, so concurrent
checks do not disturb each other. `airflow_s3commit.protocol.doctor` tries everything else.

The module also reads the store's clock: ages are differences of the store's own times, never of two machines'
clocks. The time is the ``Date`` of a response. It is read with a small record of the destination; if there is
none, a probe object is written and deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from airflow_s3commit._causes import ending
from airflow_s3commit.exceptions import (
    NoSuchKey,
    OutcomeUnknown,
    PreconditionFailed,
    StoreRejected,
    StoreUnsuitable,
    TooLarge,
    Unavailable,
)
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.model.codec import MIB
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.job import JobOptions
from airflow_s3commit.protocol.model.layout import (
    MAGIC_PREFIX,
    PENDING_SUFFIX,
    PENDINGSET_SUFFIX,
    PROBES,
    SUCCESS,
    entry_key,
)
from airflow_s3commit.store.base import ObjectStore, ObjectToDelete
from airflow_s3commit.store.forwarding import CountingStore, store_without_headers
from airflow_s3commit.store.remembering import RememberingStore

#: An ETag that no object has.
NO_ETAG = "0" * 32


@dataclass
class _Seen:
    """What this process has checked at a store: the buckets of each check, for uploads with the headers."""

    conditions: set[str] = field(default_factory=set)
    bulk_deletes: set[str] = field(default_factory=set)
    uploads: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)


_seen: WeakKeyDictionary[ObjectStore, _Seen] = WeakKeyDictionary()


def _seen_of(store: ObjectStore) -> _Seen:
    # A step may wrap the store, as a commit does to count requests: the checks are those of the store below.
    while isinstance(store, CountingStore | RememberingStore):
        store = store.inner
    plain = store_without_headers(store)
    return _seen_of(plain) if plain is not store else _seen.setdefault(store, _Seen())


def look_at_uploads(context: JobContext, options: JobOptions) -> None:
    """Start, list and abort an upload as tasks will, so that what the store refuses shows before any work.

    Raises `AccessDenied` or `NoSuchBucket`, also for the bucket of the staging; `StoreRejected` for a storage
    class, tags or headers that the store does not accept; and `StoreUnsuitable` if it does not list the
    upload, and ``track_pending`` is ``task``.
    """
    if context.staging_bucket != context.bucket:
        # Without its staging a job could neither be written nor ended.
        next(context.store.list_objects(context.staging_bucket, context.layout.staging.prefix, page=1), None)
    bucket, headers = context.bucket, options.object_options.of_data
    seen = _seen_of(context.store).uploads
    if (bucket, headers) in seen:
        return
    # One miss is no proof: an abort of this job may just have aborted the upload.
    if _lists_upload(context, headers) or _lists_upload(context, headers):
        seen.append((bucket, headers))
    elif options.track_pending == "task":
        raise _unsuitable(
            context,
            bucket,
            "the list of pending uploads below a prefix lacks one, so an abort would miss those of killed"
            ' tasks; set track_pending="s3", which records each upload when it starts',
        )


def _lists_upload(context: JobContext, headers: Mapping[str, str]) -> bool:
    store, bucket, key = context.store, context.bucket, context.layout.probe
    upload_id = store.create_upload(
        bucket, key, metadata={}, content_type="application/octet-stream", headers=headers or None
    )
    where, left = f"the probe's upload of {join_uri(bucket, key)}", "may stay pending until a sweep"

    def abort() -> None:
        try:
            store.abort_upload(bucket, key, upload_id)
        except (StoreRejected, Unavailable) as error:
            raise OutcomeUnknown(f"{where} {left}: {error}") from error

    with ending(abort, f"aborting {where}", f"it {left}"):
        # By a prefix, as an abort lists them: some stores list uploads by their exact keys only.
        listed = store.list_uploads(bucket, context.layout.destination.key(PROBES))
        return any(upload.upload_id == upload_id for upload in listed)


def look_at_conditions(context: JobContext, bucket: str, key: str, body: bytes, etag: str) -> None:
    """Try conditional writes over an existing object, with its own content and ETag.

    Raises `StoreUnsuitable` if the store does not honour create-only writes or compare-and-swap.
    """
    seen = _seen_of(context.store).conditions
    if bucket not in seen:
        if lack := _lack(context.store, bucket, key, body, etag):
            raise _unsuitable(
                context,
                bucket,
                f"{lack}, so nothing keeps two committers apart; use another store, or a newer version of"
                " this one",
            )
        seen.add(bucket)


def look_at_bulk_deletes(context: JobContext) -> None:
    """Find out whether bulk deletes in the destination's bucket heed ETags, before the first one with them.

    Where they do not, the store deletes one by one from then on. No ordinary response would show this.
    """
    store, bucket, key = context.store, context.bucket, context.layout.probe
    seen = _seen_of(store).bulk_deletes
    if bucket in seen:
        return
    where = join_uri(bucket, key)
    with ending(lambda: store.delete(bucket, key), f"deleting the probe {where}", "it may be left"):
        store.put(bucket, key, b"s3commit looks at the store")
        failures = store.delete_many(bucket, [ObjectToDelete(key, NO_ETAG)])
        if not any(failure.code == "PreconditionFailed" for failure in failures):
            store.profiles[bucket] = replace(store.profiles[bucket], bulk_etags=False)
    seen.add(bucket)


def _unsuitable(context: JobContext, bucket: str, says: str) -> StoreUnsuitable:
    return StoreUnsuitable(
        f"{context.name}: the store {context.store.endpoint} is unsuitable: in bucket {bucket} {says}"
    )


def _lack(store: ObjectStore, bucket: str, key: str, body: bytes, etag: str) -> str | None:
    """Return which condition a store does not honour; None if it honours all."""

    def writes(*, if_none_match: bool = False, if_match: str | None = None) -> bool:
        with suppress(PreconditionFailed):
            store.put(bucket, key, body, if_none_match=if_none_match, if_match=if_match)
            return True
        return False

    try:
        # One success is no proof: another process may just have deleted the object.
        if writes(if_none_match=True) and writes(if_none_match=True):
            return "a write with If-None-Match: * replaces an object that is there"
        # The right ETag first: it shows the client in which form, quoted or bare, the store compares ETags.
        if not writes(if_match=etag) and _has_etag(store, bucket, key, etag):
            return "a write with If-Match is refused although the object has that ETag"
        if writes(if_match=NO_ETAG):
            return "a write with If-Match replaces an object that has another ETag, or is missing"
    except StoreRejected as error:
        return f"conditional writes are rejected ({error})"
    return None


def _has_etag(store: ObjectStore, bucket: str, key: str, etag: str) -> bool:
    try:
        return store.head(bucket, key).etag == etag
    except NoSuchKey:
        return False


#: Times of one store differ by up to this many seconds: they are whole seconds, from several machines.
STORE_CLOCK_SECONDS = 1.0

#: Maximum error, in seconds, of the start time of an upload in a listing; beyond it the time is useless.
_UPLOAD_TIME_SECONDS = 60.0

_SMALL = (".json", PENDING_SUFFIX, PENDINGSET_SUFFIX)

#: Maximum size of a record that is read for the time of its response.
_SMALL_BYTES = MIB


def read_time(store: ObjectStore, destination: Destination) -> float | None:
    """Return the store's time in seconds since the epoch, by reading a small record; None without one."""
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

    Some stores report one time for every upload, by which a new upload would look like an orphan. An object
    at the key, which only probes use, is overwritten and deleted.
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

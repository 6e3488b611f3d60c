"""Check, before a job starts, that a store has the capabilities that the protocol requires."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from airflow_s3commit._causes import ending
from airflow_s3commit.exceptions import (
    AccessDenied,
    InvalidRecord,
    NoSuchKey,
    PreconditionFailed,
    StoreRejected,
    StoreUnsuitable,
)
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.fitness import (
    STORE_CLOCK_SECONDS,
    check_abort,
    check_completion,
    check_objects,
    check_pages,
)
from airflow_s3commit.protocol.metadata.records import exists
from airflow_s3commit.protocol.model.codec import KIB, decode, encode, largest
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.job import JobOptions, StoreRecord
from airflow_s3commit.protocol.model.layout import probes_prefix, store_key
from airflow_s3commit.protocol.model.ownership import Signer, check_signature, sign
from airflow_s3commit.store.base import ObjectStore, ObjectToDelete, Put
from airflow_s3commit.store.execute import outcomes
from airflow_s3commit.store.headers import store_without_headers
from airflow_s3commit.store.profile import StoreProfile

logger = logging.getLogger(__name__)

#: Seconds that kept profiles are used for, by the store's clock: stores are upgraded.
FRESH_SECONDS = 30 * 86_400.0

#: Seconds after which nobody measures with a probe any more, by the store's clock.
_LEFT_SECONDS = 86_400.0

#: Uploads on a page of the listing that is tried.
_PAGE = 2

#: Concurrent writes under one condition, and how often they are tried.
_WRITERS, _ROUNDS = 8, 6

#: An ETag that no object has.
_NO_ETAG = "0" * 32


@dataclass
class _Known:
    """Results of earlier checks of a store: profiles of buckets, and headers of probe uploads."""

    profiles: dict[str, StoreProfile] = field(default_factory=dict)
    rehearsed: list[tuple[str, dict[str, str]]] = field(default_factory=list)


_known: WeakKeyDictionary[ObjectStore, _Known] = WeakKeyDictionary()


def check_store(context: JobContext, options: JobOptions) -> dict[str, StoreProfile]:
    """Check the buckets of a job, and return their profiles, which the store follows from now on.

    The profiles are read at the destination. Where they are not of use, the buckets are checked, and the
    profiles measured and kept. The result is cached for the lifetime of the store object.

    Raises:
        NoSuchBucket: A bucket is missing.
        AccessDenied: The role may not do what a commit needs: list objects and uploads, start an upload,
            abort it, write and delete.
        StoreUnsuitable: Conditional writes are ignored, or objects or uploads are not
            what the store says of them.

    """
    store = context.store
    buckets = {context.staging_bucket, context.bucket}
    known = _known.setdefault(store_without_headers(store), _Known())
    if not buckets <= known.profiles.keys():
        known.profiles |= _profiles(context)
    headers = options.object_options.of_data
    if (context.bucket, headers) not in known.rehearsed:
        _rehearse_upload(context, headers)
        known.rehearsed.append((context.bucket, headers))
    profiles = {bucket: known.profiles[bucket] for bucket in buckets}
    lacking = {bucket: profile.losses[0] for bucket, profile in profiles.items() if not profile.fences}
    if lacking:
        raise StoreUnsuitable(
            f"{context.name}: two committers cannot be kept apart on {store.endpoint}:"
            f" {'; '.join(f'in bucket {bucket} {loss}' for bucket, loss in lacking.items())}."
            " Use another store, or a newer version of this one"
        )
    return profiles


def is_checked(store: ObjectStore, bucket: str) -> bool:
    """Return whether this process has checked a bucket with this store: set-ups send no probes there."""
    known = _known.get(store_without_headers(store), _Known())
    return bucket in known.profiles and any(bucket == rehearsed for rehearsed, _ in known.rehearsed)


def _profiles(context: JobContext) -> dict[str, StoreProfile]:
    """Return the profiles of a job's buckets as they are kept, or measure and keep them."""
    store = context.store
    # If both are in one bucket, the destination's prefix is the one that counts.
    buckets = {
        context.staging_bucket: context.layout.staging.prefix,
        context.bucket: context.layout.destination.prefix,
    }
    found = find_profiles(store, context.layout.destination, context.signer)
    missing = sorted(buckets.keys() - found.keys())
    for bucket in missing:
        check_bucket(store, bucket, buckets[bucket])
    if context.bucket in missing:
        _warn_of_lifecycle(context)
    for bucket in missing:
        key = f"{context.layout.measured}{context.new_id()}"
        # An abort finds uploads of that key, should this process die before it aborts them itself.
        uploads = context.layout.probe if bucket == context.bucket else None
        found[bucket] = measure(store, bucket, key, uploads=uploads)
        for loss in found[bucket].losses:
            logger.warning("bucket %s of %s: %s", bucket, store.endpoint, loss)
    if missing:
        keep_profiles(store, context.layout.destination, found, context.signer)
        _remove_left_probes(store, context.layout.destination)
    for bucket in buckets:
        store.follow(bucket, found[bucket])
    return found


def _remove_left_probes(store: ObjectStore, destination: Destination) -> None:
    """Delete the probes of set-ups that died, of whose jobs nothing else is there; not concurrent ones."""
    bucket = destination.bucket
    left = list(store.list_objects(bucket, probes_prefix(destination)))
    if not left:
        return
    # Written just now.
    now = store.head(bucket, store_key(destination)).modified
    for info in left:
        if now - info.modified > _LEFT_SECONDS:
            store.delete(bucket, info.key)


def find_profiles(
    store: ObjectStore, destination: Destination, signer: Signer | None = None
) -> dict[str, StoreProfile]:
    """Return the profiles that are kept at a destination, by bucket; empty if they are of no use.

    Those of another endpoint, older than `FRESH_SECONDS`, from the future, or damaged are of no use.

    Args:
        store: The store.
        destination: The destination.
        signer: If given, only profiles that one of its keys signed are of use: other writers to the
            destination could have written the record too.

    Raises:
        S3CommitError: The request failed.

    """
    key = store_key(destination)
    try:
        fetched = store.get(destination.bucket, key, limit=largest(StoreRecord))
        where = join_uri(destination.bucket, key)
        record = decode(StoreRecord, fetched.body, where)
        if signer is not None:
            check_signature(signer, record, fetched.body, where)
    except (NoSuchKey, InvalidRecord):
        return {}
    # A time in the future would keep them fresh for ever.
    is_fresh = -STORE_CLOCK_SECONDS <= fetched.date - fetched.info.modified <= FRESH_SECONDS
    return record.buckets if is_fresh and record.endpoint == store.endpoint else {}


def follow_profiles(store: ObjectStore, destination: Destination, signer: Signer | None = None) -> None:
    """Have the store follow the profiles that are kept at a destination, if any; for steps without a job.

    Args:
        store: The store.
        destination: The destination.
        signer: As for `find_profiles`.

    Raises:
        S3CommitError: The request failed.

    """
    for bucket, profile in find_profiles(store, destination, signer).items():
        store.follow(bucket, profile)


def remember(
    store: ObjectStore, destination: Destination, profile: StoreProfile, signer: Signer | None = None
) -> None:
    """Have further jobs go by what was measured of a destination's bucket now. Repeatable.

    Changes the profiles that are kept at the destination, if there are any.

    Args:
        store: The store.
        destination: The destination.
        profile: What was measured.
        signer: Signs the profiles; others than it trusts are dropped.

    Raises:
        S3CommitError: A request failed.

    """
    bucket = destination.bucket
    _known.setdefault(store_without_headers(store), _Known()).profiles[bucket] = profile
    if not find_profiles(store, destination):
        return
    kept = find_profiles(store, destination, signer)
    if kept.get(bucket) != profile:
        keep_profiles(store, destination, kept | {bucket: profile}, signer)


def keep_profiles(
    store: ObjectStore,
    destination: Destination,
    profiles: Mapping[str, StoreProfile],
    signer: Signer | None = None,
) -> None:
    """Keep profiles at a destination, signed where jobs are, over those that are there. Repeatable.

    Raises:
        S3CommitError: The request failed.

    """
    record = StoreRecord(endpoint=store.endpoint, buckets=dict(profiles))
    store.put(destination.bucket, store_key(destination), encode(sign(record, signer)))


def check_bucket(store: ObjectStore, bucket: str, prefix: str) -> None:
    """Check that a bucket exists and that the credentials may list a prefix of it.

    Raises:
        NoSuchBucket: The bucket does not exist.
        AccessDenied: The credentials may not list the prefix.

    """
    try:
        store.check_bucket(bucket)
    except AccessDenied:
        # Credentials limited to this prefix are refused a HEAD of the bucket, which names no prefix.
        next(iter(store.list_objects(bucket, prefix)), None)


def measure(store: ObjectStore, bucket: str, key: str, *, uploads: str | None = None) -> StoreProfile:
    """Return the profile of a bucket, which the store follows from now on; tries each condition on a probe.

    Conditions of writes are tried by concurrent writes too, unless the store sends one call at a time. What
    every job needs is tried first.

    Args:
        store: The store; it forgets what it knew of the bucket.
        bucket: The bucket.
        key: The key of the probe, which is removed again.
        uploads: The key of uploads to start, list and abort; None for none, because only jobs with data in
            the bucket may do so.

    Raises:
        StoreUnsuitable: Objects or uploads are not what the store says of them.
        S3CommitError: A request failed.

    """
    store.follow(bucket, StoreProfile())
    where = join_uri(bucket, key)
    with ending(lambda: store.delete(bucket, key), f"deleting the probe {where}", "it may be left"):
        check_objects(store, bucket, key)
        check_pages(store, bucket, f"{key}-")
        if uploads is not None:
            # At the key whose uploads an abort finds.
            where = join_uri(bucket, uploads)
            with ending(
                lambda: store.delete(bucket, uploads), f"deleting the probe {where}", "it may be left"
            ):
                check_completion(store, bucket, uploads)
            check_abort(store, bucket, uploads)
        facts = {
            "create_only": _creates_only(store, bucket, key) and _one_creates(store, bucket, key),
            "compare_and_swap": _swaps(store, bucket, key) and _one_swaps(store, bucket, key),
            "bulk_etags": _deletes_in_bulk_by_etag(store, bucket, key),
            "conditional_delete": _deletes_by_etag(store, bucket, key),
        }
    if uploads is not None:
        _turn_pages(store, bucket, uploads)
    # With what the store learned meanwhile.
    store.follow(bucket, replace(store.profile(bucket), **facts))
    return store.profile(bucket)


def _turn_pages(store: ObjectStore, bucket: str, key: str) -> None:
    """List uploads page by page, so that the store learns whether it may rely on the markers."""
    begun: list[str] = []

    def abort() -> None:
        for upload_id in begun:
            store.abort_upload(bucket, key, upload_id)

    with ending(abort, f"aborting the probe's uploads of {join_uri(bucket, key)}", "they may stay pending"):
        for _ in range(_PAGE + 1):
            # One by one: those before a failure are aborted too.
            begun.append(store.create_upload(bucket, key, metadata={}, content_type="application/json"))  # noqa: PERF401
        for _ in store.list_uploads(bucket, key, page=_PAGE):
            pass


def _creates_only(store: ObjectStore, bucket: str, key: str) -> bool:
    try:
        store.put(bucket, key, b"probe", if_none_match=True)
    except (PreconditionFailed, StoreRejected):
        return False
    try:
        store.put(bucket, key, b"another", if_none_match=True)
    except PreconditionFailed:
        return _has(store, bucket, key, b"probe")
    return False


def _swaps(store: ObjectStore, bucket: str, key: str) -> bool:
    # Some stores write what is missing whatever the condition is.
    store.delete(bucket, key)
    if not _refuses_swap(store, bucket, key):
        return False
    etag = store.put(bucket, key, b"probe").etag
    if not _refuses_swap(store, bucket, key) or not _has(store, bucket, key, b"probe"):
        return False
    try:
        store.put(bucket, key, b"a third", if_match=etag)
    except PreconditionFailed:
        return False
    return True


def _refuses_swap(store: ObjectStore, bucket: str, key: str) -> bool:
    try:
        store.put(bucket, key, b"another", if_match=_NO_ETAG)
    except PreconditionFailed:
        return True
    except StoreRejected:
        return False
    return False


def _has(store: ObjectStore, bucket: str, key: str, body: bytes) -> bool:
    """Return whether an object has a content still, because some stores refuse a write and do it."""
    return store.get(bucket, key, limit=KIB).body == body


def _one_creates(store: ObjectStore, bucket: str, key: str) -> bool:
    """Return whether of concurrent create-only writes no more than one succeeds."""
    for _ in range(_rounds(store)):
        store.delete(bucket, key)
        if not _one_wins(store, [Put(bucket, key, b"%d" % n, if_none_match=True) for n in range(_WRITERS)]):
            return False
    return True


def _one_swaps(store: ObjectStore, bucket: str, key: str) -> bool:
    """Return whether of concurrent writes over one ETag no more than one succeeds."""
    for _ in range(_rounds(store)):
        etag = store.put(bucket, key, b"probe").etag
        # With contents of their own: the same content may have the same ETag again.
        if not _one_wins(store, [Put(bucket, key, b"%d" % n, if_match=etag) for n in range(_WRITERS)]):
            return False
    return True


def _rounds(store: ObjectStore) -> int:
    return _ROUNDS if store.load.concurrency > 1 else 0


def _one_wins(store: ObjectStore, writes: list[Put]) -> bool:
    """Make the writes of a key at once; return whether one succeeded and is there."""
    made = [outcome for _, outcome in outcomes(store, enumerate(writes), PreconditionFailed)]
    # None succeeds if its answer was lost, and its retry refused.
    won = [etag for etag in made if isinstance(etag, str)]
    return not won or won == [store.head(writes[0].bucket, writes[0].key).etag]


def _deletes_in_bulk_by_etag(store: ObjectStore, bucket: str, key: str) -> bool:
    failures = store.delete_many(bucket, [ObjectToDelete(key, _NO_ETAG)])
    return (
        any(failure.code == "PreconditionFailed" for failure in failures) and store.profile(bucket).bulk_etags
    )


def _deletes_by_etag(store: ObjectStore, bucket: str, key: str) -> bool:
    store.put(bucket, key, b"probe")
    try:
        store.delete(bucket, key, if_match=_NO_ETAG)
    except PreconditionFailed:
        return exists(store, bucket, key)
    except StoreRejected:
        return False
    return False


def _rehearse_upload(context: JobContext, headers: Mapping[str, str]) -> None:
    """Start, list and abort an upload as tasks will, so that missing permissions show before any work."""
    store, bucket = context.store, context.bucket
    key = context.layout.probe
    upload_id = store.create_upload(
        bucket, key, metadata={}, content_type="application/octet-stream", headers=headers or None
    )
    with ending(
        lambda: store.abort_upload(bucket, key, upload_id),
        f"aborting the probe's upload of {join_uri(bucket, key)}",
        "it may stay pending until a sweep",
    ):
        next(iter(store.list_uploads(bucket, key)), None)


def _warn_of_lifecycle(context: JobContext) -> None:
    days = context.store.stale_upload_days(context.bucket, context.layout.destination.prefix)
    if days is None:
        logger.info(
            "bucket %s has no readable lifecycle rule that removes incomplete uploads; one of a week"
            " or more keeps orphans from costing money for ever",
            context.bucket,
        )
    elif days < 1 + 1:
        logger.warning(
            "a lifecycle rule of bucket %s removes incomplete uploads after %d day(s): a job that is not"
            " committed by then fails",
            context.bucket,
            days,
        )

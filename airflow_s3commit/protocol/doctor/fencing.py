"""Try conditional writes thoroughly: each by itself, then by several writers of one key at once.

Some stores compare first and write later: one request at a time is refused as it should be, and of several at
once more than one succeeds. Such a store does not keep two committers apart.
"""

from __future__ import annotations

from airflow_s3commit.exceptions import PreconditionFailed, StoreRejected
from airflow_s3commit.protocol.metadata.store_check import NO_ETAG
from airflow_s3commit.protocol.model.codec import KIB
from airflow_s3commit.store.base import ObjectStore, Put
from airflow_s3commit.store.execute import outcomes

#: Concurrent writes under one condition, and how often they are tried.
_WRITERS, _ROUNDS = 8, 6


def missing_conditions(store: ObjectStore, bucket: str, key: str) -> list[str]:
    """Return what keeps two committers from being kept apart, as sentences; empty on a suitable store.

    Args:
        store: The store.
        bucket: The bucket.
        key: The key of the probe, which is left for the caller to delete.

    Raises:
        S3CommitError: A request failed.

    """
    found = []
    store.delete(bucket, key)
    if not (_creates_only(store, bucket, key) and _one_creates(store, bucket, key)):
        found.append("writes with If-None-Match: * are refused, or several of one key succeed")
    if not (_swaps(store, bucket, key) and _one_swaps(store, bucket, key)):
        found.append(
            "writes with If-Match are refused, or several over one ETag succeed, or one of a missing object"
            " does"
        )
    return found


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
        store.put(bucket, key, b"another", if_match=NO_ETAG)
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

"""Check, before a job starts, that a store has the capabilities that the protocol requires."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from airflow_s3commit._causes import ending
from airflow_s3commit.exceptions import (
    AccessDenied,
    NoSuchKey,
    PreconditionFailed,
    StoreRejected,
    StoreUnsuitable,
)
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.model.destination import join_uri
from airflow_s3commit.protocol.model.job import JobOptions
from airflow_s3commit.store.base import ObjectStore
from airflow_s3commit.store.headers import store_without_headers

logger = logging.getLogger(__name__)


@dataclass
class _Known:
    """Results of earlier checks of a store: buckets with conditional writes, and headers of probe uploads."""

    conditional: dict[str, bool] = field(default_factory=dict)
    rehearsed: list[tuple[str, dict[str, str]]] = field(default_factory=list)


_known: WeakKeyDictionary[ObjectStore, _Known] = WeakKeyDictionary()


def check_store(context: JobContext, options: JobOptions) -> bool:
    """Check both buckets of a job, and return whether they honour conditional writes.

    The result is cached for the lifetime of the store object.

    Raises:
        NoSuchBucket: A bucket is missing.
        AccessDenied: The role may not do what a commit needs: list objects and uploads, start an upload,
            abort it, write and delete.
        StoreUnsuitable: Conditions are ignored and ``fencing`` is ``required``.

    """
    store = context.store
    # If both are in one bucket, the destination's prefix is the one that counts.
    buckets = {
        context.staging_bucket: context.layout.staging.prefix,
        context.bucket: context.layout.destination.prefix,
    }
    for bucket, below in buckets.items():
        check_bucket(store, bucket, below)
    known = _known.setdefault(store_without_headers(store), _Known())
    headers = options.object_options.of_data
    if (context.bucket, headers) not in known.rehearsed:
        _rehearse_upload(context, headers)
        known.rehearsed.append((context.bucket, headers))
    answers = known.conditional
    for bucket in buckets:
        if bucket not in answers:
            prefix = context.layout.staging.prefix
            answers[bucket] = honours_conditions(store, bucket, f"{prefix}probe-{context.new_id()}")
    _warn_of_lifecycle(context)
    conditional = all(answers[bucket] for bucket in buckets)
    if not conditional and options.fencing == "required":
        raise StoreUnsuitable(
            f"{context.name}: the store ignores conditional writes (If-None-Match, If-Match), so two"
            " committers"
            ' cannot be kept apart. If only one process ever commits here, set fencing="best-effort"'
        )
    return conditional


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


def honours_conditions(store: ObjectStore, bucket: str, key: str) -> bool:
    """Return whether a bucket refuses writes whose condition is false, by writing a probe object."""
    where = join_uri(bucket, key)
    with ending(lambda: store.delete(bucket, key), f"deleting the probe {where}", "it may be left"):
        return _refuses_false_conditions(store, bucket, key)


def _refuses_false_conditions(store: ObjectStore, bucket: str, key: str) -> bool:
    try:
        first = store.put(bucket, key, b"probe", if_none_match=True)
        for condition in ({"if_none_match": True}, {"if_match": "0" * 32}):
            try:
                store.put(bucket, key, b"probe again", **condition)
            except (PreconditionFailed, NoSuchKey):
                continue
            return False
        store.put(bucket, key, b"probe once more", if_match=first.etag)
    except (PreconditionFailed, StoreRejected) as refused:
        logger.warning("bucket %s refuses conditional writes: %s", bucket, refused)
        return False
    return True


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

"""Tell whose an upload is if this destination does not know it: a job's beside this one, or one of Hadoop.

Destinations nest: a job on ``flights/dt=1/``, or on the whole bucket, uploads below ``flights/`` too, and
only its own destination has its records. Hadoop's committers name files as the application does, so only the
files in their magic directories tell whose they are.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import accumulate

from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol.metadata.records import exists, fetch_listed
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.layout import (
    MAGIC_PREFIX,
    PENDING_SUFFIX,
    PENDINGSET_SUFFIX,
    job_key,
    receipt_key,
)
from airflow_s3commit.protocol.model.pendingset import decode_uploads, pending_bytes
from airflow_s3commit.store.base import ObjectStore, Upload

logger = logging.getLogger(__name__)

#: Where files of Hadoop, and copies of them that an adoption made, are in a magic directory.
_HADOOPS = ("job-", "stages/hadoop")


def home_of(store: ObjectStore, bucket: str, job_id: str, keys: Iterable[str]) -> Destination | None:
    """Return the destination above some keys that has a record of a job; None if none has.

    Args:
        store: The store.
        bucket: The bucket of the keys.
        job_id: The job.
        keys: Keys of its uploads and objects.

    Raises:
        S3CommitError: A request failed.

    """
    for place in _directories(bucket, keys):
        for key in (job_key(place, job_id), receipt_key(place, job_id)):
            if exists(store, bucket, key):
                return place
    return None


def hadoops_claims(
    store: ObjectStore, bucket: str, uploads: Iterable[Upload], roots: Iterable[Destination]
) -> dict[str, str]:
    """Return the URI of the magic directory of Hadoop that names an upload, by the upload's id.

    Reads every file of Hadoop in the directories above the uploads.

    Args:
        store: The store.
        bucket: The bucket of the uploads.
        uploads: The uploads.
        roots: Other directories with magic directories.

    Raises:
        S3CommitError: A request failed.

    """
    keys = [upload.key for upload in uploads]
    places = {**dict.fromkeys(_directories(bucket, keys)), **dict.fromkeys(roots)} if keys else {}
    return {upload_id: staging for place in places for staging, upload_id in _recorded(store, place)}


def _directories(bucket: str, keys: Iterable[str]) -> list[Destination]:
    """Return the directories above some keys."""
    found = {""}
    for key in keys:
        found.update(accumulate(f"{element}/" for element in key.split("/")[:-1]))
    return [Destination(bucket, prefix) for prefix in sorted(found)]


def _recorded(store: ObjectStore, place: Destination) -> Iterator[tuple[str, str]]:
    """Yield the uploads that Hadoop's files in a directory's magic directories name."""
    prefix = place.key(MAGIC_PREFIX)
    listed = (
        info
        for info in store.list_objects(place.bucket, prefix)
        if info.key[len(prefix) :].partition("/")[2].startswith(_HADOOPS)
        and info.key.endswith((PENDING_SUFFIX, PENDINGSET_SUFFIX))
    )
    for info, outcome in fetch_listed(store, place.bucket, listed, pending_bytes):
        staging = place.below(MAGIC_PREFIX + info.key[len(prefix) :].partition("/")[0]).uri
        where = join_uri(place.bucket, info.key)
        try:
            if isinstance(outcome, InvalidRecord):
                raise outcome
            for upload in decode_uploads(outcome.body, where):
                yield staging, upload.uploadId
        except InvalidRecord as error:
            logger.warning("the uploads of a file of Hadoop are judged by their age alone: %s", error)

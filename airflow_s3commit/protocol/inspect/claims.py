"""Which jobs of Hadoop claim pending uploads.

Its committers name files as the application does, so only the files in their stagings tell whose they are.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from itertools import accumulate
from typing import NamedTuple

from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol.metadata.records import fetch_listed
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.layout import MAGIC_PREFIX, PENDING_SUFFIX, PENDINGSET_SUFFIX, is_id
from airflow_s3commit.protocol.model.pendingset import decode_uploads, pending_bytes
from airflow_s3commit.store.base import ObjectInfo, ObjectStore
from airflow_s3commit.store.execute import in_threads

logger = logging.getLogger(__name__)


class Claim(NamedTuple):
    """The job whose staging has a file of Hadoop that names an upload."""

    job_id: str
    staging: str


def claims_of_hadoop(
    store: ObjectStore, bucket: str, keys: Collection[str], roots: Iterable[Destination] = (), *, threads: int
) -> dict[str, Claim]:
    """Return whose files of Hadoop, or copies that an adoption made, name an upload, by its id. Reads only.

    Searched are ``roots``, and every directory above the uploads' keys, because destinations nest: a job on
    ``flights/dt=1/`` or on the whole bucket also uploads below ``flights/``. Without keys none is searched.

    Raises:
        S3CommitError: A request failed.

    """
    above, claims = directories_above(bucket, keys), dict[str, Claim]()
    searched = list(dict.fromkeys((*roots, *above))) if above else []
    listed = in_threads(lambda root: _files_of_hadoop(store, root), searched, threads)
    for root, files in zip(searched, listed, strict=True):
        for info, outcome in fetch_listed(store, root.bucket, files, pending_bytes):
            try:
                if isinstance(outcome, InvalidRecord):
                    raise outcome
                uploads = decode_uploads(outcome.body, join_uri(root.bucket, info.key))
            except InvalidRecord:
                logger.warning("%s cannot be read; it claims no upload", info.key, exc_info=True)
                continue
            job_id = _job_in(root, info.key)
            claim = Claim(job_id, root.below(MAGIC_PREFIX + job_id).uri)
            claims |= {upload.uploadId: claim for upload in uploads}
    return claims


def directories_above(bucket: str, keys: Collection[str]) -> list[Destination]:
    """Return every directory above some keys; none without keys."""
    above = {prefix for key in keys for prefix in accumulate(f"{one}/" for one in key.split("/")[:-1])}
    return [Destination(bucket, prefix) for prefix in sorted({"", *above})] if keys else []


def _files_of_hadoop(store: ObjectStore, root: Destination) -> list[ObjectInfo]:
    """List the files in stagings that name uploads; those of this package need not be read: names tell."""
    prefix = root.key(MAGIC_PREFIX)
    return [
        info
        for info in store.list_objects(root.bucket, prefix)
        if info.key.endswith((PENDING_SUFFIX, PENDINGSET_SUFFIX))
        and is_id(_job_in(root, info.key))
        and info.key[len(prefix) :].partition("/")[2].startswith(("job-", "stages/hadoop"))
    ]


def _job_in(root: Destination, key: str) -> str:
    return key[len(root.key(MAGIC_PREFIX)) :].partition("/")[0]

"""Reading pendingsets and pending uploads that may be Hadoop's, of any release that wrote these versions.

Up to Hadoop 3.4.1 the ETags of an upload's parts are strings; from 3.4.2 and 3.5 on they are objects with the
part's checksum beside them, under the same version number. Both are kept as they are, but for the quotes that
HTTP puts around an ETag: our own files have none.
"""

from __future__ import annotations

import msgspec

from airflow_s3commit.protocol.layout import PENDING_SUFFIX, PENDINGSET_SUFFIX
from airflow_s3commit.protocol.pendingset import PendingSet, PendingUpload, UploadEtag
from airflow_s3commit.protocol.records import decode, largest

__all__ = ["decode_pending", "decode_pendingset", "decode_uploads", "pending_bytes"]


def decode_pendingset(body: bytes, where: str) -> PendingSet:
    """Read a pendingset, whoever wrote it.

    Raises:
        InvalidRecord: It is not one.

    """
    found = decode(PendingSet, body, where)
    return msgspec.structs.replace(found, commits=[_unquoted(upload) for upload in found.commits])


def decode_pending(body: bytes, where: str) -> PendingUpload:
    """Read a single pending upload, whoever wrote it.

    Raises:
        InvalidRecord: It is not one.

    """
    return _unquoted(decode(PendingUpload, body, where))


def pending_bytes(key: str) -> int:
    """Return how many bytes are read of a ``.pending`` or, under every other name, a pendingset at most."""
    return largest(PendingUpload if key.endswith(PENDING_SUFFIX) else PendingSet)


def decode_uploads(body: bytes, where: str) -> list[PendingUpload]:
    """Read what a pendingset names, or the one upload of a ``.pending``, as the name at the end of it says.

    Raises:
        InvalidRecord: It is not one.

    """
    if where.endswith(PENDINGSET_SUFFIX):
        return decode_pendingset(body, where).commits
    return [decode_pending(body, where)]


def _unquoted(upload: PendingUpload) -> PendingUpload:
    etags: list[str | UploadEtag] = [
        etag.strip('"') if isinstance(etag, str) else msgspec.structs.replace(etag, etag=etag.etag.strip('"'))
        for etag in upload.etags
    ]
    return msgspec.structs.replace(upload, etags=etags)

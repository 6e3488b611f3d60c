"""Read pendingsets and pending uploads, ours or those of any Hadoop release with these versions.

Up to Hadoop 3.4.1 the ETags of an upload's parts are strings; from 3.4.2 and 3.5 on they are objects with the
part's checksum beside them, under the same version number. Both are kept, without the quotes that HTTP
puts around an ETag.
"""

from __future__ import annotations

import msgspec

from airflow_s3commit.protocol.model.codec import decode, largest
from airflow_s3commit.protocol.model.layout import PENDING_SUFFIX, PENDINGSET_SUFFIX
from airflow_s3commit.protocol.model.pendingset import PendingSet, PendingUpload, UploadEtag


def decode_pendingset(body: bytes, where: str) -> PendingSet:
    """Read a pendingset, ours or Hadoop's.

    Raises:
        InvalidRecord: It is not one.

    """
    found = decode(PendingSet, body, where)
    return msgspec.structs.replace(found, commits=[_unquoted(upload) for upload in found.commits])


def decode_pending(body: bytes, where: str) -> PendingUpload:
    """Read a single pending upload, ours or Hadoop's.

    Raises:
        InvalidRecord: It is not one.

    """
    return _unquoted(decode(PendingUpload, body, where))


def pending_bytes(key: str) -> int:
    """Return the maximum bytes of a ``.pending``, or for any other name of a pendingset."""
    return largest(PendingUpload if key.endswith(PENDING_SUFFIX) else PendingSet)


def decode_uploads(body: bytes, where: str) -> list[PendingUpload]:
    """Read the uploads of a pendingset, or the one upload of a ``.pending``, by the suffix of the name.

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

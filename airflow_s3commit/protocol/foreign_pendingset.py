"""Reading pendingsets and pending uploads that may be Hadoop's, of any release that wrote these versions.

Up to Hadoop 3.4.1 the ETags of an upload's parts are strings; from 3.4.2 and 3.5 on they are objects with the
part's checksum beside them, under the same version number (seen in files of hadoop-aws 3.5.0). Here both
become what our own files have: ETags alone, without the quotes that HTTP puts around them. A checksum is not
kept: where a store insists on it, completing is refused by the store and the commit is rolled back.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from airflow_s3commit.protocol.layout import PENDINGSET_SUFFIX
from airflow_s3commit.protocol.pendingset import PendingSet, PendingUpload
from airflow_s3commit.protocol.records import decode

__all__ = ["decode_pending", "decode_pendingset", "decode_uploads"]

_Text = Annotated[str, Meta(min_length=1)]


class _UploadEtag(Struct, frozen=True):
    """Hadoop's ``UploadEtag``, as far as it is used."""

    etag: _Text


class HadoopPendingUpload(PendingUpload, frozen=True, kw_only=True):
    etags: list[_Text | _UploadEtag]  # type: ignore[assignment]


class HadoopPendingSet(PendingSet, frozen=True, kw_only=True):
    commits: list[HadoopPendingUpload]  # type: ignore[assignment]


def decode_pendingset(body: bytes, where: str) -> PendingSet:
    """Read a pendingset, whoever wrote it.

    Raises:
        InvalidRecord: It is not one.

    """
    found = decode(HadoopPendingSet, body, where)
    fields = msgspec.structs.asdict(found) | {"commits": [_plain(upload) for upload in found.commits]}
    return PendingSet(**fields)


def decode_pending(body: bytes, where: str) -> PendingUpload:
    """Read a single pending upload, whoever wrote it.

    Raises:
        InvalidRecord: It is not one.

    """
    return _plain(decode(HadoopPendingUpload, body, where))


def decode_uploads(body: bytes, where: str) -> list[PendingUpload]:
    """Read what a pendingset names, or the one upload of a ``.pending``, as the name at the end of it says.

    Raises:
        InvalidRecord: It is not one.

    """
    if where.endswith(PENDINGSET_SUFFIX):
        return decode_pendingset(body, where).commits
    return [decode_pending(body, where)]


def _plain(upload: HadoopPendingUpload) -> PendingUpload:
    bare = [(etag.etag if isinstance(etag, _UploadEtag) else etag).strip('"') for etag in upload.etags]
    return PendingUpload(**(msgspec.structs.asdict(upload) | {"etags": bare}))

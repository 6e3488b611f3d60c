"""Calls of an `ObjectStore` as values: what `ObjectStore.perform` makes many of at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct

__all__ = ["Abort", "Call", "CheckedEtag", "Complete", "DeleteMany", "Doomed", "Get", "Head", "PartEtag"]

# Structs, not dataclasses: a frozen dataclass takes microseconds to make, and one is made for every file.
# They hold text and nothing that could hold them, so that the garbage collector need not look at them.


class Doomed(Struct, frozen=True, gc=False):
    """An object to delete, and only if it still has this ETag (where the store can tell)."""

    key: str
    etag: str | None = None


class CheckedEtag(Struct, frozen=True, gc=False):
    """A part's ETag with the checksum it was uploaded with.

    A store asks for the checksums again when it completes an upload that was begun with an algorithm.

    Attributes:
        etag: The ETag.
        algorithm: S3's name of the algorithm, such as ``CRC32C``.
        checksum: The checksum, in Base64.

    """

    etag: str
    algorithm: str
    checksum: str


#: What a completion says of one part.
PartEtag: TypeAlias = str | CheckedEtag


class Complete(Struct, frozen=True, gc=False):
    """A call to `ObjectStore.complete_upload`, as a value."""

    bucket: str
    key: str
    upload_id: str
    etags: Sequence[PartEtag]


class Abort(Struct, frozen=True, gc=False):
    """A call to `ObjectStore.abort_upload`, as a value."""

    bucket: str
    key: str
    upload_id: str


class Head(Struct, frozen=True, gc=False):
    """A call to `ObjectStore.head`, as a value."""

    bucket: str
    key: str


class Get(Struct, frozen=True, gc=False):
    """A call to `ObjectStore.get`, as a value."""

    bucket: str
    key: str
    limit: int | None = None


class DeleteMany(Struct, frozen=True, gc=False):
    """A call to `ObjectStore.delete_many`, as a value."""

    bucket: str
    doomed: Sequence[Doomed]


Call: TypeAlias = Complete | Abort | Head | Get | DeleteMany

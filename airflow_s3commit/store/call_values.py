"""Calls of an `ObjectStore` as values: what `ObjectStore.perform` makes many of at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct

__all__ = ["Abort", "Call", "Complete", "DeleteMany", "Doomed", "Get", "Head"]

# Structs, not dataclasses: a frozen dataclass takes microseconds to make, and one is made for every file.
# They hold text and nothing that could hold them, so that the garbage collector need not look at them.


class Doomed(Struct, frozen=True, gc=False):
    """An object to delete, and only if it still has this ETag (where the store can tell)."""

    key: str
    etag: str | None = None


class Complete(Struct, frozen=True, gc=False):
    """A call to `ObjectStore.complete_upload`, as a value."""

    bucket: str
    key: str
    upload_id: str
    etags: Sequence[str]


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


class DeleteMany(Struct, frozen=True, gc=False):
    """A call to `ObjectStore.delete_many`, as a value."""

    bucket: str
    doomed: Sequence[Doomed]


Call: TypeAlias = Complete | Abort | Head | Get | DeleteMany

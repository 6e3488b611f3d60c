"""The seam between the commit protocol and an object store.

`ObjectStore` has the verbs that the protocol needs and no others. An implementation makes each call
honest: it returns only when the store confirmed the effect, and otherwise raises one of
`airflow_s3commit.exceptions`, whose type says whether the effect happened. Retries, where there are any,
are the implementation's own; a caller sees the outcome after them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, TypeVar

from airflow_s3commit.exceptions import S3CommitError
from airflow_s3commit.store.call_values import (
    Abort,
    Call,
    CheckedEtag,
    Complete,
    DeleteMany,
    Doomed,
    Get,
    Head,
    PartEtag,
)

__all__ = [
    "MAX_PARTS",
    "MIN_PART_BYTES",
    "Abort",
    "Call",
    "CheckedEtag",
    "Complete",
    "DeleteFailure",
    "DeleteMany",
    "Doomed",
    "Effort",
    "Fetched",
    "Get",
    "Head",
    "ObjectInfo",
    "ObjectStore",
    "Outcome",
    "Part",
    "PartEtag",
    "Upload",
    "Written",
]

#: A multipart upload has at most this many parts, numbered from 1 (S3's limit).
MAX_PARTS = 10_000

#: Every part but the last has at least this many bytes (S3's limit).
MIN_PART_BYTES = 5 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a store says of one object.

    Attributes:
        key: The object's key.
        size: Its length in bytes.
        etag: Its entity tag without the quotes.
        modified: When it was written, in seconds since the epoch by the store's clock.
        metadata: User metadata, keys in lower case. Listings don't carry it: empty there.
        headers: Further headers that describe it, by name in lower case: storage class, encryption, number
            of tags, ``cache-control`` and its like, as far as the store says them. Empty in listings.

    """

    key: str
    size: int
    etag: str
    modified: float
    metadata: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fetched:
    """An object's content, and the store's time when it answered (seconds since the epoch)."""

    info: ObjectInfo
    body: bytes
    date: float


@dataclass(frozen=True, slots=True)
class Written:
    """What the store says of a completed write: its ETag, and the store's time when it answered."""

    etag: str
    date: float


@dataclass(frozen=True, slots=True)
class Upload:
    """A multipart upload that nobody has completed or aborted."""

    key: str
    upload_id: str
    initiated: float


@dataclass(frozen=True, slots=True)
class Part:
    """One uploaded part of a pending upload."""

    number: int
    etag: str
    size: int


@dataclass(frozen=True, slots=True)
class DeleteFailure:
    """An object that a bulk delete left in place, with the store's reason."""

    key: str
    code: str
    message: str


#: What became of a call: the value its verb returns, or the error its verb raises.
Outcome: TypeAlias = str | ObjectInfo | Fetched | list[DeleteFailure] | S3CommitError | None

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Effort:
    """How hard a store is pressed.

    Attributes:
        concurrency: Calls of `ObjectStore.perform` that may be under way at once, at present.
        retries: Requests that were sent again, since there is this store.

    """

    concurrency: int
    retries: int


class ObjectStore(Protocol):
    """An S3-like object store.

    Every verb may raise `Unavailable`, `AccessDenied`, `NoSuchBucket`, `StoreRejected`; every verb that
    changes something may raise `OutcomeUnknown`. Further errors are named with the verb.
    """

    @property
    def effort(self) -> Effort:
        """How hard the store is pressed; asks it nothing."""
        ...

    def check_bucket(self, bucket: str) -> None:
        """Return if the bucket is there and answers these credentials."""
        ...

    def stale_upload_days(self, bucket: str, prefix: str) -> int | None:
        """Days after which a lifecycle rule removes pending uploads below ``prefix``; None if none does.

        A store that has no lifecycle rules, or does not let these credentials read them, answers None.
        """
        ...

    def head(self, bucket: str, key: str) -> ObjectInfo:
        """Describe an object.

        Raises:
            NoSuchKey: It is not there.

        """
        ...

    def get(self, bucket: str, key: str, *, limit: int | None = None) -> Fetched:
        """Read a whole object: records and pendingsets, never data.

        Args:
            bucket: The bucket.
            key: The key.
            limit: How many bytes are read at most: nothing longer is held in memory. None for no limit.

        Raises:
            NoSuchKey: It is not there.
            TooLarge: It is longer than ``limit``.

        """
        ...

    def get_range(self, bucket: str, key: str, first: int, size: int, *, etag: str) -> bytes:
        """Read ``size`` bytes of an object from byte ``first`` (0 is the first) on; fewer at its end.

        Raises:
            NoSuchKey: It is not there.
            PreconditionFailed: It has another ETag.

        """
        ...

    def put(
        self,
        bucket: str,
        key: str,
        body: bytes,
        *,
        if_none_match: bool = False,
        if_match: str | None = None,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> Written:
        """Write a small object in one request.

        Args:
            bucket: The bucket.
            key: The key.
            body: All of its content.
            if_none_match: Write only if no object is there.
            if_match: Write only over the object with this ETag.
            content_type: Its media type.
            headers: Further headers that describe the object, as for `create_upload`.

        Raises:
            PreconditionFailed: The condition was false. After an answer was lost and the call sent again,
                this may be the caller's own write: read back and compare.

        """
        ...

    def delete(self, bucket: str, key: str, *, if_match: str | None = None) -> None:
        """Delete an object; an object that is not there is deleted already.

        Raises:
            PreconditionFailed: ``if_match`` was given and the object has another ETag.

        """
        ...

    def delete_many(self, bucket: str, doomed: Sequence[Doomed]) -> list[DeleteFailure]:
        """Delete up to 1,000 objects in one request and return those that were left.

        An object that is not there is deleted already. One whose ETag changed is left, and returned with
        code ``PreconditionFailed``, by stores that can tell.
        """
        ...

    def list_objects(
        self, bucket: str, prefix: str, *, recursive: bool = True, start_after: str | None = None
    ) -> Iterator[ObjectInfo]:
        """Yield the objects below ``prefix``; with ``recursive=False`` only those with no further ``/``.

        Pages are fetched as they are needed. The order is the store's.
        """
        ...

    def create_upload(
        self,
        bucket: str,
        key: str,
        *,
        metadata: Mapping[str, str],
        content_type: str,
        headers: Mapping[str, str] | None = None,
    ) -> str:
        """Start a multipart upload, and return its id.

        Args:
            bucket: The bucket.
            key: The key of its object.
            metadata: User metadata of the object.
            content_type: Media type of the object.
            headers: Further headers that describe the object, by name in lower case: its storage class,
                encryption, ACL, tags, ``cache-control`` and its like, ``x-amz-meta-…``. They are S3's. None
                leaves them to a store that was given some for all its writes.

        """
        ...

    def upload_part(
        self, bucket: str, key: str, upload_id: str, number: int, body: bytes | bytearray | memoryview
    ) -> str:
        """Upload part ``number`` (1 to 10,000) and return its ETag as the store spells it, without quotes.

        Raises:
            NoSuchUpload: The upload is gone.

        """
        ...

    def complete_upload(self, bucket: str, key: str, upload_id: str, etags: Sequence[PartEtag]) -> str:
        """Make the object out of parts 1 to ``len(etags)`` and return its ETag.

        Raises:
            NoSuchUpload: The store does not know the upload: completed, aborted, or never there.

        """
        ...

    def abort_upload(self, bucket: str, key: str, upload_id: str) -> None:
        """Discard a pending upload; one that the store does not know is discarded already."""
        ...

    def list_uploads(self, bucket: str, prefix: str) -> Iterator[Upload]:
        """Yield the pending uploads whose key begins with ``prefix``, in the store's order."""
        ...

    def list_parts(self, bucket: str, key: str, upload_id: str) -> Iterator[Part]:
        """Yield the parts of a pending upload.

        Raises:
            NoSuchUpload: The upload is gone.

        """
        ...

    def perform(self, calls: Iterable[tuple[T, Call]]) -> Iterator[tuple[T, Outcome]]:
        """Make many calls at the store's own speed; yield each caller's tag with what became of its call.

        Calls are drawn from the iterable as there is room, so a long one costs no memory; outcomes come in
        any order and are never raised. Closing the iterator draws no further call and waits for those under
        way.
        """
        ...

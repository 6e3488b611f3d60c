"""Records on the store, written under conditions and read back when the answer leaves a doubt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from msgspec import Struct

from airflow_s3commit.exceptions import NoSuchKey, OutcomeUnknown, PreconditionFailed
from airflow_s3commit.protocol.destination import join_uri
from airflow_s3commit.protocol.records import decode, encode
from airflow_s3commit.store.base import ObjectStore

__all__ = ["Stored", "create", "find", "load", "swap"]

R = TypeVar("R", bound=Struct)


@dataclass(frozen=True, slots=True)
class Stored(Generic[R]):
    """A record as it stands on the store.

    Attributes:
        record: The record.
        etag: The ETag of its object.
        modified: When it was written, in seconds by the store's clock.
        date: The store's time when it was read or written.

    """

    record: R
    etag: str
    modified: float
    date: float


def load(store: ObjectStore, bucket: str, key: str, kind: type[R]) -> Stored[R]:
    """Read a record.

    Raises:
        NoSuchKey: It is not there.
        InvalidRecord: What is there is not such a record.

    """
    fetched = store.get(bucket, key)
    record = decode(kind, fetched.body, join_uri(bucket, key))
    return Stored(record, fetched.info.etag, fetched.info.modified, fetched.date)


def find(store: ObjectStore, bucket: str, key: str, kind: type[R]) -> Stored[R] | None:
    """Read a record, or return None where there is none.

    Raises:
        InvalidRecord: What is there is not such a record.

    """
    try:
        return load(store, bucket, key, kind)
    except NoSuchKey:
        return None


def create(store: ObjectStore, bucket: str, key: str, record: R, *, conditional: bool = True) -> Stored[R]:
    """Write a record where none is, and return the record that then stands: this one, or an earlier one.

    The caller tells them apart by their nonce. Run again with the same record, it returns the same.

    Args:
        store: The store.
        bucket: The bucket.
        key: The key.
        record: The record; it has a nonce.
        conditional: False where the store has no conditional writes: then it looks first.

    Raises:
        OutcomeUnknown: The answer was lost and reading back did not settle it.

    """
    body = encode(record)
    if not conditional:
        standing = find(store, bucket, key, type(record))
        if standing is not None:
            return standing
    try:
        written = store.put(bucket, key, body, if_none_match=conditional)
    except PreconditionFailed:
        return load(store, bucket, key, type(record))
    except OutcomeUnknown:
        standing = find(store, bucket, key, type(record))
        if standing is None:
            raise
        return standing
    return Stored(record, written.etag, written.date, written.date)


def swap(
    store: ObjectStore, bucket: str, key: str, record: R, etag: str, *, conditional: bool = True
) -> Stored[R] | None:
    """Write a record over the one with this ETag; return None if another writer was faster.

    Run again after it succeeded, with the same record, it finds its own write and succeeds.

    Args:
        store: The store.
        bucket: The bucket.
        key: The key.
        record: The record; it has a nonce.
        etag: ETag of the record it follows.
        conditional: False where the store has no conditional writes: then it looks first.

    Raises:
        OutcomeUnknown: The answer was lost and reading back did not settle it.

    """
    body = encode(record)
    if not conditional:
        standing = find(store, bucket, key, type(record))
        if standing is None or standing.etag != etag:
            return None
    try:
        written = store.put(bucket, key, body, if_match=etag if conditional else None)
    except (PreconditionFailed, NoSuchKey, OutcomeUnknown) as error:
        standing = find(store, bucket, key, type(record))
        if standing is not None and _nonce(standing.record) == _nonce(record):
            return standing
        if isinstance(error, OutcomeUnknown) and standing is not None and standing.etag == etag:
            raise
        return None
    return Stored(record, written.etag, written.date, written.date)


def _nonce(record: Struct) -> str | None:
    return getattr(record, "nonce", None) or getattr(record, "plan_id", None)

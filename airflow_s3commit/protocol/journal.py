"""Records on the store, written under conditions and read back when the answer leaves a doubt."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from msgspec import Struct

from airflow_s3commit.exceptions import (
    InvalidRecord,
    NoSuchKey,
    OutcomeUnknown,
    PreconditionFailed,
    S3CommitError,
)
from airflow_s3commit.protocol.destination import join_uri
from airflow_s3commit.protocol.limits import MIB
from airflow_s3commit.protocol.records import decode, encode, largest
from airflow_s3commit.protocol.signing import Signer, check_signature, sign
from airflow_s3commit.store.base import Fetched, Get, ObjectInfo, ObjectStore

__all__ = ["Stored", "create", "fetch_listed", "find", "load", "swap"]

#: Records that are fetched at once, and their bytes together unless one alone has more.
_AHEAD = 64
_AHEAD_BYTES = 64 * MIB

R = TypeVar("R", bound=Struct)


@dataclass(frozen=True, slots=True)
class Stored(Generic[R]):
    """A record as it stands on the store.

    Attributes:
        record: The record.
        etag: The ETag of its object.
        modified: When it was written, in seconds by the store's clock.
        date: The store's time when it was read or written.
        sha256: SHA-256 of its object in hexadecimal.

    """

    record: R
    etag: str
    modified: float
    date: float
    sha256: str = ""


def load(
    store: ObjectStore, bucket: str, key: str, kind: type[R], *, signer: Signer | None = None
) -> Stored[R]:
    """Read a record, and check its signature where a signer is given.

    Raises:
        NoSuchKey: It is not there.
        InvalidRecord: What is there is not such a record.
        SignatureRefused: It is not signed by the signer.

    """
    fetched = store.get(bucket, key, limit=largest(kind))
    record = decode(kind, fetched.body, join_uri(bucket, key))
    if signer is not None:
        check_signature(signer, record, fetched.body, join_uri(bucket, key))
    digest = hashlib.sha256(fetched.body).hexdigest()
    return Stored(record, fetched.info.etag, fetched.info.modified, fetched.date, digest)


def find(
    store: ObjectStore, bucket: str, key: str, kind: type[R], *, signer: Signer | None = None
) -> Stored[R] | None:
    """Read a record as `load` does, or return None where there is none.

    Raises:
        InvalidRecord: What is there is not such a record.
        SignatureRefused: It is not signed by the signer.

    """
    try:
        return load(store, bucket, key, kind, signer=signer)
    except NoSuchKey:
        return None


def fetch_listed(
    store: ObjectStore, bucket: str, listed: Iterable[ObjectInfo], limit: Callable[[str], int]
) -> Iterator[tuple[ObjectInfo, Fetched | InvalidRecord]]:
    """Read objects that a listing showed, several at once; yield each, or that it is too large, in any order.

    What is gone by now is left out. As many are held as are small together, or one that is not.

    Args:
        store: The store.
        bucket: The bucket.
        listed: The objects.
        limit: How many bytes are read at most of the object with a key.

    Raises:
        S3CommitError: One could not be read.

    """
    for group in _small_groups(listed):
        for info, outcome in store.perform(
            [(info, Get(bucket, info.key, limit(info.key))) for info in group]
        ):
            if isinstance(outcome, Fetched | InvalidRecord):
                yield info, outcome
            elif isinstance(outcome, S3CommitError) and not isinstance(outcome, NoSuchKey):
                raise outcome


def _small_groups(listed: Iterable[ObjectInfo]) -> Iterator[list[ObjectInfo]]:
    group: list[ObjectInfo] = []
    size = 0
    for info in listed:
        if group and (len(group) == _AHEAD or size + info.size > _AHEAD_BYTES):
            yield group
            group, size = [], 0
        group.append(info)
        size += info.size
    if group:
        yield group


def create(
    store: ObjectStore,
    bucket: str,
    key: str,
    record: R,
    *,
    conditional: bool = True,
    signer: Signer | None = None,
) -> Stored[R]:
    """Write a record where none is, and return the record that then stands: this one, or an earlier one.

    The caller tells them apart by their nonce. Run again with the same record, it returns the same.

    Args:
        store: The store.
        bucket: The bucket.
        key: The key.
        record: The record; it has a nonce.
        conditional: False where the store has no conditional writes: then it looks first.
        signer: Signs the record; another one that stands must have its signature.

    Raises:
        SignatureRefused: Another record stands, and it is not signed by the signer.
        OutcomeUnknown: The answer was lost and reading back did not settle it.

    """
    if signer is not None:
        record = sign(record, signer)
    body = encode(record)
    if not conditional:
        standing = find(store, bucket, key, type(record), signer=signer)
        if standing is not None:
            return standing
    try:
        written = store.put(bucket, key, body, if_none_match=conditional)
    except PreconditionFailed:
        return load(store, bucket, key, type(record), signer=signer)
    except OutcomeUnknown:
        standing = find(store, bucket, key, type(record), signer=signer)
        if standing is None:
            raise
        return standing
    return Stored(record, written.etag, written.date, written.date, hashlib.sha256(body).hexdigest())


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

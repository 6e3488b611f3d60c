"""Read records, and create each once; after a lost response a record is read back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from msgspec import Struct

from airflow_s3commit._causes import described
from airflow_s3commit.exceptions import (
    DidNotHappen,
    InvalidRecord,
    NoSuchKey,
    OutcomeUnknown,
    PreconditionFailed,
    StoreRejected,
    StoreUnsuitable,
)
from airflow_s3commit.protocol.model.codec import MIB, decode, encode, largest, sha256
from airflow_s3commit.protocol.model.destination import join_uri
from airflow_s3commit.store.base import Fetched, Get, ObjectInfo, ObjectStore
from airflow_s3commit.store.execute import outcomes

#: Records to fetch at once, and their total bytes unless one alone has more.
_AHEAD = 64
_AHEAD_BYTES = 64 * MIB

R = TypeVar("R", bound=Struct)


@dataclass(frozen=True, slots=True)
class Stored(Generic[R]):
    """A record on the store.

    Attributes:
        record: The record.
        etag: ETag of its object.
        modified: Time of the write, in seconds by the store's clock.
        date: Time of the read or write, in seconds by the store's clock.
        sha256: SHA-256 of its object in hexadecimal.
    """

    record: R
    etag: str
    modified: float
    date: float
    sha256: str = ""


def load(store: ObjectStore, bucket: str, key: str, kind: type[R]) -> Stored[R]:
    """Read a record.

    Raises:
        NoSuchKey: It is not there.
        InvalidRecord: The object is no such record.
    """
    fetched = store.get(bucket, key, limit=largest(kind))
    record = decode(kind, fetched.body, join_uri(bucket, key))
    digest = sha256(fetched.body)
    return Stored(record, fetched.info.etag, fetched.info.modified, fetched.date, digest)


def find(store: ObjectStore, bucket: str, key: str, kind: type[R]) -> Stored[R] | None:
    """Read a record as `load` does, or return None where there is none.

    Raises:
        InvalidRecord: The object is no such record.
    """
    try:
        return load(store, bucket, key, kind)
    except NoSuchKey:
        return None


def exists(store: ObjectStore, bucket: str, key: str) -> bool:
    """Return whether an object exists, whatever it holds.

    Raises:
        S3CommitError: The request failed.
    """
    try:
        store.head(bucket, key)
    except NoSuchKey:
        return False
    return True


def fetch_listed(
    store: ObjectStore, bucket: str, listed: Iterable[ObjectInfo], limit: Callable[[str], int]
) -> Iterator[tuple[ObjectInfo, Fetched | InvalidRecord]]:
    """Read listed objects, several at once; yield each, or the error that it is too large, in any order.

    Skips objects that are gone. Holds a bounded number of bytes, unless one object alone has more.

    Args:
        listed: The objects.
        limit: Returns the maximum bytes to read of a key.

    Raises:
        S3CommitError: An object could not be read.
    """
    for group in _small_groups(listed):
        calls = [(info, Get(bucket, info.key, limit(info.key))) for info in group]
        for info, outcome in outcomes(store, calls, NoSuchKey, InvalidRecord):
            if isinstance(outcome, Fetched | InvalidRecord):
                yield info, outcome


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
) -> Stored[R]:
    """Create a record if absent; return the stored one (ours, or an earlier writer's).

    The caller compares their nonces. Repeatable with the same record.

    Args:
        record: The record; it has a nonce.

    Raises:
        OutcomeUnknown: The response was lost, and reading back did not settle it.
        StoreUnsuitable: The store has no create-only writes.
    """
    body = encode(record)
    try:
        written = store.put(bucket, key, body, if_none_match=True)
    except (PreconditionFailed, OutcomeUnknown) as error:
        # A client sends a request again: so it may be this record, also after `PreconditionFailed`.
        return _read_back(store, bucket, key, type(record), error)
    except StoreRejected as error:
        if error.code != "NotImplemented":
            raise
        raise StoreUnsuitable(
            f"the store {store.endpoint} is unsuitable: in bucket {bucket} a write with If-None-Match: * is"
            f" rejected ({error}); use another store, or a newer version of this one"
        ) from error
    return Stored(record, written.etag, written.date, written.date, sha256(body))


def _read_back(
    store: ObjectStore, bucket: str, key: str, kind: type[R], first: PreconditionFailed | OutcomeUnknown
) -> Stored[R]:
    """Read a record that a request has created, if not another writer.

    Raises:
        OutcomeUnknown: It cannot be read, or is not there.
    """
    try:
        return load(store, bucket, key, kind)
    except DidNotHappen as error:
        raise OutcomeUnknown(f"{first}; and reading it back did not settle it: {described(error)}") from first

"""The context of a job: its keys, store, clock and ids; and its records, each created once.

After a lost response a record is read back.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Generic, Literal, TypeAlias, TypeVar

from msgspec import Struct

from airflow_s3commit._causes import described
from airflow_s3commit._clock import Clock, SystemClock
from airflow_s3commit.exceptions import (
    DidNotHappen,
    ForeignRecord,
    InvalidDestination,
    InvalidRecord,
    NoSuchKey,
    OutcomeUnknown,
    PreconditionFailed,
    S3CommitError,
    StoreRejected,
    StoreUnsuitable,
)
from airflow_s3commit.protocol.model.codec import MIB, JobOwned, decode, encode, largest, sha256
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.job import JobRecord
from airflow_s3commit.protocol.model.layout import Layout, job_key
from airflow_s3commit.store.base import Fetched, Get, ObjectInfo, ObjectStore
from airflow_s3commit.store.execute import outcomes
from airflow_s3commit.store.forwarding import with_headers

Alone: TypeAlias = Literal["", "driver", "writer"]

#: Start of the note on an error that names the step it left.
STEP_NOTE = "while running "


def new_uuid() -> str:
    """Return a random UUID."""
    return str(uuid.uuid4())


@dataclass(frozen=True)
class JobContext:
    """What every step of a job needs.

    Attributes:
        layout: The job's keys.
        record: The job's own record, once read and verified; None before, and after its clean-up.
        record_sha256: SHA-256 of the record, as the job's reference has it or as it was read; empty before.
        threads: Concurrent listings; 0 lists in the caller's thread.
        alone: Set if this process has set the job up under an id of its own making, and itself ends it in the
            log after the last write to it. So a step need not look for a receipt first, which saves requests.
            A ``driver`` starts the processes that write; a ``writer`` writes itself, so that nothing of the
            job is pending or staged but what it commits. Empty in any other process.
    """

    store: ObjectStore
    layout: Layout
    clock: Clock = field(default_factory=SystemClock)
    new_id: Callable[[], str] = new_uuid
    record: JobRecord | None = None
    record_sha256: str = ""
    threads: int = 16
    alone: Alone = ""

    @cached_property
    def job_id(self) -> str:
        """The job's id."""
        return self.layout.job_id

    @cached_property
    def bucket(self) -> str:
        """The destination's bucket."""
        return self.layout.destination.bucket

    @cached_property
    def staging_bucket(self) -> str:
        """The bucket of the job's staging."""
        return self.layout.staging.bucket

    @cached_property
    def name(self) -> str:
        """The job and its destination, for messages."""
        return f"job {self.job_id} on {self.layout.destination.uri}"

    def as_recorded(self, record: JobRecord, sha256: str = "") -> JobContext:
        """Return the context with the settings of the job's own record, and its SHA-256 if it is given."""
        store = with_headers(self.store, record.options.object_options.of_records)
        digest = sha256 or self.record_sha256
        return replace(self.in_staging(record.staging), store=store, record=record, record_sha256=digest)

    def in_staging(self, uri: str) -> JobContext:
        """Return the context with the staging that a record names; `InvalidRecord` if it is not the job's."""
        if uri in ("", self.layout.staging.uri):
            return self
        try:
            layout = Layout(self.layout.destination, Destination.parse(uri), self.job_id)
        except InvalidDestination as error:
            raise InvalidRecord(f"{self.name}: its record names no staging: {error}") from error
        return replace(self, layout=layout)

    def staging_uri(self, key: str) -> str:
        """Return the URI of a key in the staging bucket."""
        return join_uri(self.staging_bucket, key)

    def now_ms(self) -> int:
        """Return milliseconds since the epoch by this machine's clock: for people, never for decisions."""
        return int(self.clock.time() * 1000)


@contextmanager
def naming(context: JobContext, step: str) -> Iterator[None]:
    """Add the job and the step to any error that leaves the block."""
    try:
        yield
    except S3CommitError as error:
        error.add_note(f"{STEP_NOTE}{step} of {context.name}")
        raise


@contextmanager
def after_effect(done: str, then: str, kind: type[S3CommitError] = S3CommitError) -> Iterator[None]:
    """Turn an error of this kind in the block into an `OutcomeUnknown`, which says what was ``done`` before.

    That stays done, so no error may suggest that nothing has happened. ``then`` is the next action.
    """
    try:
        yield
    except kind as error:
        raise OutcomeUnknown(f"{done} ({described(error)}); {then}") from error


#: Records to fetch at once, and their total bytes unless one alone has more.
_AHEAD = 64
_AHEAD_BYTES = 64 * MIB

R = TypeVar("R", bound=Struct)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stored(Generic[R]):
    """A record on the store, with its URI and the SHA-256 of its bytes."""

    record: R
    uri: str
    etag: str
    sha256: str


def load_record(store: ObjectStore, bucket: str, key: str, kind: type[R]) -> Stored[R]:
    """Read a record; `NoSuchKey` if it is not there, `InvalidRecord` if the object is no such record."""
    fetched, uri = store.get(bucket, key, limit=largest(kind)), join_uri(bucket, key)
    return Stored(decode(kind, fetched.body, uri), uri, fetched.info.etag, sha256(fetched.body))


def find_record(store: ObjectStore, bucket: str, key: str, kind: type[R]) -> Stored[R] | None:
    """Read a record as `load_record` does, or return None where there is none."""
    try:
        return load_record(store, bucket, key, kind)
    except NoSuchKey:
        return None


def has_object(store: ObjectStore, bucket: str, key: str) -> bool:
    """Return whether an object exists, whatever it holds."""
    try:
        store.head(bucket, key)
    except NoSuchKey:
        return False
    return True


def fetch_listed(
    store: ObjectStore, bucket: str, listed: Iterable[ObjectInfo], limit: Callable[[str], int]
) -> Iterator[tuple[ObjectInfo, Fetched | InvalidRecord]]:
    """Read listed objects, several at once; yield each, or the error that it is too large, in any order.

    Skips objects that are gone. ``limit`` returns the maximum bytes to read of a key. Holds a bounded number
    of bytes, unless one object alone has more.
    """
    for group in in_small_batches(listed, _AHEAD, lambda info: info.size, _AHEAD_BYTES):
        calls = [(info, Get(bucket, info.key, limit(info.key))) for info in group]
        for info, outcome in outcomes(store, calls, NoSuchKey, InvalidRecord):
            if isinstance(outcome, Fetched | InvalidRecord):
                yield info, outcome


def in_small_batches(
    items: Iterable[T], most: int, size_of: Callable[[T], int], room: int
) -> Iterator[list[T]]:
    """Yield lists of at most ``most`` items, whose sizes are at most ``room``, unless one alone has more."""
    batch: list[T] = []
    size = 0
    for item in items:
        if batch and (len(batch) == most or size + size_of(item) > room):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += size_of(item)
    if batch:
        yield batch


def create_record(store: ObjectStore, bucket: str, key: str, record: R) -> Stored[R]:
    """Create a record if absent; return the stored one (ours, or an earlier writer's).

    The caller tells which by its nonce. Repeatable with the same record. Raises `StoreUnsuitable` without
    create-only writes; `OutcomeUnknown` if the response was lost, and reading back did not settle it.
    """
    body = encode(record)
    try:
        written = store.put(bucket, key, body, if_none_match=True)
    except (PreconditionFailed, OutcomeUnknown) as error:
        # The client may have sent the request twice: even after `PreconditionFailed` it may be this record.
        try:
            return load_record(store, bucket, key, type(record))
        except DidNotHappen as second:
            why = f"{error}; and reading it back did not settle it: {described(second)}"
            raise OutcomeUnknown(why) from error
    except StoreRejected as error:
        if error.code != "NotImplemented":
            raise
        raise StoreUnsuitable(
            f"the store {store.endpoint} is unsuitable: in bucket {bucket} a write with If-None-Match: * is"
            f" rejected ({error}); use another store, or a newer version of this one"
        ) from error
    return Stored(record, join_uri(bucket, key), written.etag, sha256(body))


def recorded(context: JobContext) -> JobContext:
    """Return the context with the job's record, and with the staging that it names; unchanged without one.

    A record never changes, so one read before is as good as one read now. Errors are those of `find_job`.
    """
    if context.record is None and (stored := find_job(context)) is not None:
        return context.as_recorded(stored.record, stored.sha256)
    return context


def find_job(context: JobContext) -> Stored[JobRecord] | None:
    """Read a job's record; None if the job was never set up, or has ended and is cleaned up.

    Raises `InvalidRecord` if it is damaged, was copied here, or is not what the job's reference names.
    """
    key = job_key(context.layout.destination, context.job_id)
    stored = find_record(context.store, context.bucket, key, JobRecord)
    if stored is not None:
        check_job(context, stored)
        if context.record_sha256:
            check_digest(stored.sha256, context.record_sha256, stored.uri)
    return stored


def check_job(context: JobContext, stored: Stored[JobRecord]) -> JobRecord:
    """Return the record of a job, which names its staging; `ForeignRecord` if it was copied here."""
    record, layout = stored.record, context.layout
    if (record.job_id, record.destination) != (layout.job_id, layout.destination.uri):
        origin = f"of job {record.job_id} on {record.destination}"
        raise ForeignRecord(f"{stored.uri} is {origin}: it was copied here, so delete it")
    return record


def check_place(record: JobOwned, layout: Layout, where: str) -> None:
    """Raise `ForeignRecord` if a record among those of a job is another job's, or was copied here."""
    if record.job_id != layout.job_id:
        raise ForeignRecord(f"{where} is of job {record.job_id}, not of {layout.job_id}")
    if record.staging != layout.staging.uri:
        raise ForeignRecord(
            f"{where} was written for {record.staging}, not for {layout.staging.uri}: it was copied here, so"
            " it says nothing of this place, and nobody acts on it"
        )
    if record.destination != layout.destination.uri:
        raise ForeignRecord(
            f"{where} is of a job on {record.destination}, not on {layout.destination.uri}: it was copied"
            " here, and nobody acts on it"
        )


def check_digest(digest: str, expected: str | None, where: str) -> None:
    """Raise `InvalidRecord` if an object's SHA-256 is not the one in the record that names it."""
    if digest != expected:
        raise InvalidRecord(f"{where} was changed after it was written: its SHA-256 is not {expected}")

"""Probes of a store: each performs one operation that the protocol requires, on objects of its own.

A probe returns a `Finding`. It lets errors of the store propagate; `examine` turns them into findings.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

from msgspec.structs import replace

from airflow_s3commit._causes import run_all
from airflow_s3commit._clock import Clock
from airflow_s3commit.exceptions import (
    AccessDenied,
    NoSuchKey,
    PreconditionFailed,
    S3CommitError,
    StoreRejected,
)
from airflow_s3commit.protocol.doctor.fencing import missing_conditions
from airflow_s3commit.protocol.metadata.fitness import (
    BODY,
    LISTED,
    ODD_NAME,
    UPLOAD_TIME_SECONDS,
    check_abort,
    check_abort_over,
    check_completion,
    check_objects,
    check_pages,
    upload_time_error,
)
from airflow_s3commit.protocol.metadata.records import exists
from airflow_s3commit.protocol.metadata.store_check import NO_ETAG
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.store.base import MIN_PART_BYTES, ObjectStore, ObjectToDelete, Upload

Verdict: TypeAlias = Literal["ok", "warning", "failed", "skipped"]


class Finding(NamedTuple):
    """The result of a probe.

    Attributes:
        verdict: As for `Check`.
        says: The finding, in a sentence.
        remedy: What to do about it; None if nothing.

    """

    verdict: Verdict
    says: str
    remedy: str | None = None


@dataclass
class Sandbox:
    """A directory for the objects and uploads of probes, which it can remove again.

    Attributes:
        store: The store.
        destination: The destination, or staging root, to check.
        home: The directory of the probes' objects, hidden from readers.
        clock: Source of this machine's time.
        rehearsed: Whether jobs ran in it, whose objects and uploads have names of their own.

    """

    store: ObjectStore
    destination: Destination
    home: Destination
    clock: Clock
    rehearsed: bool = False
    _keys: set[str] = field(default_factory=set)
    _uploads: set[str] = field(default_factory=set)

    @property
    def bucket(self) -> str:
        """The bucket of the probes' objects."""
        return self.home.bucket

    def key(self, name: str) -> str:
        """Return the key of an object, and note it for `clear`. Call this before the object is written."""
        key = self.home.key(name)
        self._keys.add(key)
        return key

    def upload_key(self, name: str) -> str:
        """Return the key of an upload, and note it for `clear`. Call this before the upload is started."""
        key = self.key(name)
        self._uploads.add(key)
        return key

    def put(self, name: str, body: bytes = BODY) -> str:
        """Write an object, over an existing one too, and return its ETag."""
        return self.store.put(self.bucket, self.key(name), body).etag

    def begin(
        self, name: str, metadata: dict[str, str], headers: dict[str, str] | None = None
    ) -> tuple[str, str]:
        """Start an upload, and return its key and id.

        Args:
            name: Name of its object.
            metadata: User metadata of its object.
            headers: Further headers of its object, as for `ObjectStore.create_upload`.

        """
        key = self.upload_key(name)
        return key, self.store.create_upload(
            self.bucket, key, metadata=metadata, content_type="application/octet-stream", headers=headers
        )

    def clear(self) -> None:
        """Abort every upload and delete every object that probes may have created. Repeatable.

        Raises:
            S3CommitError: Something could not be removed. Everything else was tried.

        """
        aborts = [partial(self._abort, key) for key in sorted(self._uploads)]
        run_all(
            [*aborts, self._abort_jobs, self._delete_objects],
            f"removing a probe below {self.home.uri}",
            "it may be left",
        )

    def remove(self, key: str) -> None:
        """Abort the uploads of a key that a probe started, and delete its object. Repeatable."""
        self._abort(key)
        self.store.delete(self.bucket, key)

    def _abort(self, key: str) -> None:
        # By the exact key: some stores list uploads only that way.
        for upload in list(self.store.list_uploads(self.bucket, key)):
            if upload.key == key:
                self.store.abort_upload(self.bucket, key, upload.upload_id)

    def _abort_jobs(self) -> None:
        if self.rehearsed:
            for upload in list(self.store.list_uploads(self.bucket, self.home.prefix)):
                self.store.abort_upload(self.bucket, upload.key, upload.upload_id)

    def _delete_objects(self) -> None:
        """Delete all objects in bulk, and one by one those that are left then, or may be."""
        keys = set(self._keys)
        with suppress(S3CommitError):
            keys |= self._listed()
        left = keys
        with suppress(S3CommitError):
            found = self.store.delete_many(self.bucket, [ObjectToDelete(key) for key in sorted(keys)])
            left = {failure.key for failure in found}
        try:
            left = left | self._listed()
        except S3CommitError:
            self._delete(keys)
            if self.rehearsed:
                raise
        else:
            self._delete(left)

    def _delete(self, keys: set[str]) -> None:
        steps = [partial(self.store.delete, self.bucket, key) for key in sorted(keys)]
        run_all(steps, f"deleting a probe below {self.home.uri}", "it may be left")

    def _listed(self) -> set[str]:
        return {info.key for info in self.store.list_objects(self.bucket, self.home.prefix)}


@dataclass(frozen=True, slots=True)
class Probe:
    """A named probe.

    Attributes:
        name: Name of its check.
        run: Performs it.
        needs: Names of the probes that must succeed before this one can run.

    """

    name: str
    run: Callable[[Sandbox], Finding]
    needs: tuple[str, ...] = ()


#: Skew between this machine's clock and the store's, in seconds, that is worth a warning.
_SKEW_WARNING = 60.0

#: Skew, in seconds, at which AWS refuses every signature.
_SKEW_REFUSED = 900.0

#: Fewest days after which a lifecycle rule may abort pending uploads without danger to jobs.
_SAFE_DAYS = 2


def _bucket(sandbox: Sandbox) -> Finding:
    try:
        sandbox.store.check_bucket(sandbox.bucket)
    except AccessDenied:
        # Credentials limited to this prefix are refused a HEAD of the bucket, which names no prefix.
        next(iter(sandbox.store.list_objects(sandbox.bucket, sandbox.home.prefix)), None)
    return Finding("ok", f"bucket {sandbox.bucket} answers these credentials")


def _directory(sandbox: Sandbox) -> Finding:
    place = sandbox.destination
    key = place.prefix.rstrip("/")
    if key:
        try:
            sandbox.store.head(place.bucket, key)
        except (NoSuchKey, AccessDenied):
            # The least privileges cover the directory's prefix, which does not include this key.
            pass
        else:
            return Finding(
                "failed",
                f"{join_uri(place.bucket, key)} is an object, but a destination is a directory",
                "choose another destination, or move that object away",
            )
    found = next(iter(sandbox.store.list_objects(place.bucket, place.prefix)), None)
    return Finding("ok", "a directory with objects" if found is not None else "a directory without objects")


def _objects(sandbox: Sandbox) -> Finding:
    sandbox.key(f"object{ODD_NAME}")
    check_objects(sandbox.store, sandbox.bucket, sandbox.key("object"))
    return Finding("ok", "written, listed, read and deleted")


def _pages(sandbox: Sandbox) -> Finding:
    for number in range(LISTED):
        sandbox.key(f"listed-{number}")
    check_pages(sandbox.store, sandbox.bucket, sandbox.home.key("listed-"))
    return Finding("ok", "objects are listed page by page")


def _clock(sandbox: Sandbox) -> Finding:
    date = sandbox.store.put(sandbox.bucket, sandbox.key("clock"), BODY).date
    # Stores send their time in whole seconds.
    skew = abs(sandbox.clock.time() - date)
    says = f"this machine and the store are {skew:.0f} s apart"
    if skew >= _SKEW_REFUSED:
        return Finding("failed", says, "correct this machine's clock: most stores refuse its requests")
    if skew >= _SKEW_WARNING:
        return Finding(
            "warning",
            says,
            "correct this machine's clock: most stores refuse requests from 15 minutes of skew on",
        )
    return Finding("ok", says)


def _fencing(sandbox: Sandbox) -> Finding:
    missing = missing_conditions(sandbox.store, sandbox.bucket, sandbox.key("fencing"))
    if missing:
        return Finding("failed", "; ".join(missing), "use another store, or a newer version of this one")
    return Finding("ok", "two concurrent commits are kept apart")


def _conditional_delete(sandbox: Sandbox) -> Finding:
    etag = sandbox.put("deleted")
    key = sandbox.key("deleted")
    remedy = (
        "allow no other writers in partitions that a job replaces: jobs compare the ETag right before a"
        " delete"
    )
    store, bucket = sandbox.store, sandbox.bucket
    before = store.profile(bucket)
    # So that it sends the condition, without comparing the ETag first.
    store.follow(bucket, replace(before, conditional_delete=True))
    try:
        store.delete(bucket, key, if_match=NO_ETAG)
    except PreconditionFailed:
        store.delete(bucket, key, if_match=etag)
        return Finding("ok", "If-Match deletes succeed with the object's ETag, and are refused with another")
    except StoreRejected as error:
        return Finding("warning", f"the store rejects conditional deletes: {error}", remedy)
    finally:
        store.follow(bucket, before)
    return Finding("warning", "deletes ignore If-Match", remedy)


def _bulk_delete(sandbox: Sandbox) -> Finding:
    right, changed = sandbox.key("bulk-right"), sandbox.key("bulk-changed")
    etag = sandbox.put("bulk-right")
    sandbox.put("bulk-changed")
    failures = sandbox.store.delete_many(
        sandbox.bucket, [ObjectToDelete(right, etag), ObjectToDelete(changed, NO_ETAG)]
    )
    if exists(sandbox.store, sandbox.bucket, right):
        reason = next(
            (f"{f.code} {f.message}" for f in failures if f.key == right), "the store gives no reason"
        )
        return Finding(
            "failed", f"a bulk delete left an object: {reason}", "allow s3:DeleteObject, or use another store"
        )
    if not exists(sandbox.store, sandbox.bucket, changed):
        return Finding("ok", "bulk deletes ignore ETags, so jobs delete replaced files one by one")
    return Finding("ok", "objects are deleted, except for one whose ETag changed")


def _complete(sandbox: Sandbox) -> Finding:
    info = check_completion(sandbox.store, sandbox.bucket, sandbox.upload_key("upload"))
    if info.etag != f"{_md5(_md5(BODY).digest()).hexdigest()}-1":
        return Finding(
            "ok",
            "invisible until completed, then identified by its metadata (ETags are no MD5 sums, because of"
            " encryption or by the store's design: completed uploads of adopted Hadoop jobs are not"
            " recognised)",
        )
    return Finding("ok", "invisible until completed, then identified by its metadata and ETag")


def _parts(sandbox: Sandbox) -> Finding:
    key, upload_id = sandbox.begin("several", {})
    contents = (b"1" * MIN_PART_BYTES, b"2" + BODY)
    etags = [
        sandbox.store.upload_part(sandbox.bucket, key, upload_id, number, content)
        for number, content in enumerate(contents, start=1)
    ]
    sandbox.store.complete_upload(sandbox.bucket, key, upload_id, etags)
    whole = b"".join(contents)
    if sandbox.store.get(sandbox.bucket, key, limit=2 * MIN_PART_BYTES).body != whole:
        return Finding(
            "failed", "an object of two parts has other content than they have in order", "use another store"
        )
    return Finding("ok", "an object of two parts has the content of both, in order")


def _abort(sandbox: Sandbox) -> Finding:
    key, upload_id = sandbox.begin("parts", {})
    etag = sandbox.store.upload_part(sandbox.bucket, key, upload_id, 1, BODY)
    parts = list(sandbox.store.list_parts(sandbox.bucket, key, upload_id))
    if [(part.etag, part.size) for part in parts] != [(etag, len(BODY))]:
        return Finding(
            "failed", "the listed parts of an upload are not those that were sent", "use another store"
        )
    sandbox.store.abort_upload(sandbox.bucket, key, upload_id)
    check_abort(sandbox.store, sandbox.bucket, sandbox.upload_key("aborted"))
    check_abort_over(sandbox.store, sandbox.bucket, sandbox.upload_key("aborted-over"))
    return Finding("ok", "a pending upload is gone after its abort, and what it was to overwrite is not")


def _list_uploads(sandbox: Sandbox) -> Finding:
    key, upload_id = sandbox.begin("listed", {})

    def shows(uploads: list[Upload]) -> bool:
        return any(upload.upload_id == upload_id and upload.key == key for upload in uploads)

    exact = shows(list(sandbox.store.list_uploads(sandbox.bucket, key)))
    below = shows(list(sandbox.store.list_uploads(sandbox.bucket, sandbox.home.prefix)))
    sandbox.store.abort_upload(sandbox.bucket, key, upload_id)
    if below:
        return Finding("ok", "pending uploads are listed by prefix")
    remedy = (
        'set track_pending="s3" in the job\'s options, which records each upload when it starts;'
        " and add a lifecycle rule, because a sweep finds no orphans on this store"
    )
    if exact:
        return Finding("warning", "pending uploads are listed by exact key only, as MinIO does", remedy)
    return Finding("warning", "pending uploads are not listed", remedy)


def _upload_ages(sandbox: Sandbox) -> Finding:
    error = upload_time_error(sandbox.store, sandbox.bucket, sandbox.upload_key("aged"))
    if error is None:
        return Finding("ok", "not known, because the store does not list pending uploads")
    if error <= UPLOAD_TIME_SECONDS:
        return Finding("ok", "listings show when an upload began")
    return Finding(
        "warning",
        "listings do not show when an upload began",
        "add a lifecycle rule, because a sweep leaves orphans on this store",
    )


def _lifecycle(sandbox: Sandbox) -> Finding:
    days = sandbox.store.stale_upload_days(sandbox.destination.bucket, sandbox.destination.prefix)
    if days is None:
        return Finding(
            "warning",
            "no rule that these credentials can read removes incomplete uploads: those of a crash are billed"
            " until a sweep",
            "add the rule that s3commit doctor --lifecycle prints, or run s3commit sweep regularly",
        )
    if days < _SAFE_DAYS:
        return Finding(
            "warning",
            f"a rule removes incomplete uploads after {days} day: a job that commits later fails",
            "make it longer than any job takes; s3commit doctor --lifecycle prints a rule of a week",
        )
    return Finding("ok", f"incomplete uploads are removed after {days} days: jobs must be committed by then")


def _md5(content: bytes) -> hashlib._Hash:
    return hashlib.md5(content, usedforsecurity=False)


#: Probes of a directory with records: a destination or a staging root.
RECORD_PROBES = (
    Probe("bucket", _bucket),
    Probe("directory", _directory, ("bucket",)),
    Probe("objects", _objects, ("bucket",)),
    Probe("pages of objects", _pages, ("objects",)),
    Probe("fencing", _fencing, ("objects",)),
    Probe("conditional delete", _conditional_delete, ("objects",)),
)

#: Further probes of a destination.
DATA_PROBES = (
    Probe("clock", _clock, ("objects",)),
    Probe("bulk delete", _bulk_delete, ("objects",)),
    Probe("complete uploads", _complete, ("objects",)),
    Probe("uploads of several parts", _parts, ("complete uploads",)),
    Probe("abort uploads", _abort, ("bucket",)),
    Probe("list uploads", _list_uploads, ("abort uploads",)),
    Probe("ages of uploads", _upload_ages, ("abort uploads", "objects")),
    Probe("lifecycle rule", _lifecycle, ("bucket",)),
)

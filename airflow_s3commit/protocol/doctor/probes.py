"""Trying a store out: each thing that the protocol stands on, done once with objects made for it.

A probe answers with a `Finding`. What the store refuses it to do at all, it raises: whoever runs the probes
makes a finding of that too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

from airflow_s3commit._causes import run_all
from airflow_s3commit._clock import Clock
from airflow_s3commit.exceptions import (
    AccessDenied,
    NoSuchKey,
    NoSuchUpload,
    PreconditionFailed,
    StoreRejected,
)
from airflow_s3commit.protocol.metadata.capabilities import check_bucket
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.limits import KIB
from airflow_s3commit.protocol.model.ownership import JOB_METADATA, UPLOAD_METADATA
from airflow_s3commit.store.base import ObjectStore, ObjectToDelete, Upload

Verdict: TypeAlias = Literal["ok", "warning", "failed", "skipped"]


#: What probes write.
BODY = b"s3commit doctor"


class Finding(NamedTuple):
    """What a probe found out, and what to do about it."""

    verdict: Verdict
    says: str
    remedy: str | None = None


@dataclass
class Sandbox:
    """A place where probes make objects and uploads, and from which everything can be removed again.

    Attributes:
        store: The store.
        destination: The destination that is examined.
        home: The directory for the probes' objects, hidden from readers.
        clock: This machine's clock.

    """

    store: ObjectStore
    destination: Destination
    home: Destination
    clock: Clock
    _keys: set[str] = field(default_factory=set)
    _uploads: set[str] = field(default_factory=set)

    @property
    def bucket(self) -> str:
        """The bucket of the probes' objects."""
        return self.home.bucket

    def key(self, name: str) -> str:
        """Return the key of an object that is about to be made."""
        key = self.home.key(name)
        self._keys.add(key)
        return key

    def put(self, name: str, body: bytes = BODY) -> str:
        """Write an object whatever is there, and return its ETag."""
        return self.store.put(self.bucket, self.key(name), body).etag

    def begin(
        self, name: str, metadata: dict[str, str], headers: dict[str, str] | None = None
    ) -> tuple[str, str]:
        """Begin an upload, whose object has these headers; return its key and id."""
        key = self.key(name)
        self._uploads.add(key)
        return key, self.store.create_upload(
            self.bucket, key, metadata=metadata, content_type="application/octet-stream", headers=headers
        )

    def is_there(self, key: str) -> bool:
        """Tell whether an object is there."""
        try:
            self.store.head(self.bucket, key)
        except NoSuchKey:
            return False
        return True

    def clear(self) -> None:
        """Abort every upload and delete every object that may have been made. Repeatable.

        All are tried before an error is raised.
        """
        steps = [partial(self._remove, key) for key in sorted(self._uploads | self._keys)]
        run_all(steps, f"removing a probe below {self.home.uri}", "it may be left")

    def _remove(self, key: str) -> None:
        if key in self._uploads:
            # By the exact key: some stores list uploads in no other way.
            for upload in list(self.store.list_uploads(self.bucket, key)):
                if upload.key == key:
                    self.store.abort_upload(self.bucket, key, upload.upload_id)
        self.store.delete(self.bucket, key)


@dataclass(frozen=True, slots=True)
class Probe:
    """One thing to try.

    Attributes:
        name: What it is about.
        try_out: Tries it.
        needs: Probes without whose success it makes no sense.

    """

    name: str
    try_out: Callable[[Sandbox], Finding]
    needs: tuple[str, ...] = ()


#: Differences of clocks, in seconds: what is worth a word, and what makes AWS refuse every signature.
_SKEW_WORTH_A_WORD = 60.0


_SKEW_REFUSED = 900.0


#: A listing that says an upload began further from now than this, in seconds, does not tell when it did.
_BEGAN_TOLERANCE = 60.0


#: A lifecycle rule that removes pending uploads sooner than this, in days, is a danger to jobs.
_SAFE_DAYS = 2


_NO_ETAG = "0" * 32


def _bucket(box: Sandbox) -> Finding:
    check_bucket(box.store, box.bucket, box.home.prefix)
    return Finding("ok", f"bucket {box.bucket} answers these credentials")


def _directory(box: Sandbox) -> Finding:
    place = box.destination
    key = place.prefix.rstrip("/")
    if key:
        try:
            box.store.head(place.bucket, key)
        except (NoSuchKey, AccessDenied):
            # Least privilege ends at the directory's own prefix, which that name is not below.
            pass
        else:
            return Finding(
                "failed",
                f"{join_uri(place.bucket, key)} is an object, and data goes into a directory",
                "choose another destination, or move that object away",
            )
    found = next(iter(box.store.list_objects(place.bucket, place.prefix)), None)
    return Finding("ok", "a directory with objects" if found is not None else "a directory without objects")


def _objects(box: Sandbox) -> Finding:
    box.put("object")
    key = box.key("object")
    if box.store.get(box.bucket, key, limit=KIB).body != BODY:
        return Finding("failed", "an object came back other than it was written", "use another store")
    listed = [info.key for info in box.store.list_objects(box.bucket, box.home.prefix)]
    box.store.delete(box.bucket, key)
    if box.is_there(key):
        return Finding("failed", "an object is still there after its deletion", "use another store")
    if key not in listed:
        return Finding(
            "failed",
            "an object that was just written is missing from a listing",
            "use a store whose listings are consistent: a commit could overlook data",
        )
    return Finding("ok", "written, listed, read and deleted")


def _clock(box: Sandbox) -> Finding:
    date = box.store.put(box.bucket, box.key("clock"), BODY).date
    # The store says the time in whole seconds.
    skew = abs(box.clock.time() - date)
    says = f"this machine and the store are {skew:.0f} s apart"
    if skew >= _SKEW_REFUSED:
        return Finding("failed", says, "set this machine's clock: most stores refuse such requests")
    if skew >= _SKEW_WORTH_A_WORD:
        return Finding("warning", says, "set this machine's clock: most stores refuse 15 minutes or more")
    return Finding("ok", says)


def _create_only(box: Sandbox) -> Finding:
    key = box.key("created")
    box.store.put(box.bucket, key, BODY, if_none_match=True)
    try:
        box.store.put(box.bucket, key, b"another", if_none_match=True)
    except PreconditionFailed:
        return Finding("ok", "a second If-None-Match: * write is refused")
    return _ignored("If-None-Match: *")


def _compare_and_swap(box: Sandbox) -> Finding:
    etag = box.put("swapped")
    key = box.key("swapped")
    try:
        box.store.put(box.bucket, key, b"another", if_match=_NO_ETAG)
    except PreconditionFailed:
        box.store.put(box.bucket, key, b"a third", if_match=etag)
        return Finding("ok", "If-Match writes are refused for another ETag, and made for the right one")
    return _ignored("If-Match")


def _ignored(condition: str) -> Finding:
    return Finding(
        "failed",
        f"the store ignores {condition}: two committers cannot be kept apart",
        'use a store that honours it, or set fencing="best-effort" and let only one process commit at a time',
    )


def _conditional_delete(box: Sandbox) -> Finding:
    etag = box.put("deleted")
    key = box.key("deleted")
    remedy = "nothing has to be done: such a store's locks are released unseen, and sweeps leave lapsed ones"
    try:
        box.store.delete(box.bucket, key, if_match=_NO_ETAG)
    except PreconditionFailed:
        box.store.delete(box.bucket, key, if_match=etag)
        return Finding("ok", "an If-Match delete is refused for another ETag, and done for the right one")
    except StoreRejected as error:
        return Finding("warning", f"the store deletes without conditions only: {error}", remedy)
    return Finding("warning", "the store ignores If-Match when it deletes", remedy)


def _bulk_delete(box: Sandbox) -> Finding:
    right, changed = box.key("bulk-right"), box.key("bulk-changed")
    etag = box.put("bulk-right")
    box.put("bulk-changed")
    failures = box.store.delete_many(
        box.bucket, [ObjectToDelete(right, etag), ObjectToDelete(changed, _NO_ETAG)]
    )
    if box.is_there(right):
        reason = next(
            (f"{f.code} {f.message}" for f in failures if f.key == right), "the store gives no reason"
        )
        return Finding(
            "failed", f"a bulk delete left an object: {reason}", "allow s3:DeleteObject, or use another store"
        )
    if not box.is_there(changed):
        return Finding(
            "warning",
            "bulk deletes ignore ETags: an object that is changed while a replace deletes it is lost",
            "let nobody else write to partitions that a job replaces",
        )
    return Finding("ok", "objects go, one with another ETag is left")


def _complete(box: Sandbox) -> Finding:
    key, upload_id = box.begin("upload", {JOB_METADATA: "doctor", UPLOAD_METADATA: "examined"})
    etag = box.store.upload_part(box.bucket, key, upload_id, 1, BODY)
    if box.is_there(key):
        return Finding(
            "failed", "an upload is visible before it is completed", "use a store that hides pending uploads"
        )
    if [part.etag for part in box.store.list_parts(box.bucket, key, upload_id)] != [etag]:
        return Finding(
            "failed", "the parts of an upload are not listed as they were sent", "use another store"
        )
    box.store.complete_upload(box.bucket, key, upload_id, [etag])
    info = box.store.head(box.bucket, key)
    if info.metadata.get(UPLOAD_METADATA) != "examined":
        return Finding(
            "failed",
            "an object does not carry its upload's metadata, so nobody can tell whose it is",
            "use a store that keeps user metadata of multipart uploads",
        )
    if info.etag != f"{_md5(_md5(BODY).digest()).hexdigest()}-1":
        return Finding(
            "ok",
            "invisible until completed, known by its metadata (ETags are no MD5 sums here: encryption, or the"
            " store's way; of adopted Hadoop jobs, finished uploads are not recognised)",
        )
    return Finding("ok", "invisible until completed, then known by its metadata and its ETag")


def _abort(box: Sandbox) -> Finding:
    key, upload_id = box.begin("aborted", {})
    box.store.upload_part(box.bucket, key, upload_id, 1, BODY)
    box.store.abort_upload(box.bucket, key, upload_id)
    try:
        left = list(box.store.list_parts(box.bucket, key, upload_id))
    except NoSuchUpload:
        left = []
    if left or box.is_there(key):
        return Finding("failed", "an upload is still there after its abort", "use another store")
    return Finding("ok", "a pending upload is gone after its abort")


def _list_uploads(box: Sandbox) -> Finding:
    key, upload_id = box.begin("listed", {})

    def shows(uploads: list[Upload]) -> bool:
        return any(upload.upload_id == upload_id and upload.key == key for upload in uploads)

    exact = shows(list(box.store.list_uploads(box.bucket, key)))
    below = shows(list(box.store.list_uploads(box.bucket, box.home.prefix)))
    box.store.abort_upload(box.bucket, key, upload_id)
    if below:
        return Finding("ok", "pending uploads are listed by prefix")
    remedy = (
        'set track_pending="s3" in the job\'s options: then each upload is recorded before anything can die'
        " with its id; and have a lifecycle rule, because a sweep finds no orphans here"
    )
    if exact:
        return Finding("warning", "pending uploads are listed by exact key only, as MinIO does", remedy)
    return Finding("warning", "pending uploads are not listed", remedy)


def _upload_ages(box: Sandbox) -> Finding:
    now = box.store.put(box.bucket, box.key("now"), BODY).date
    key, upload_id = box.begin("aged", {})
    began = [u.initiated for u in box.store.list_uploads(box.bucket, key) if u.upload_id == upload_id]
    box.store.abort_upload(box.bucket, key, upload_id)
    if all(abs(initiated - now) <= _BEGAN_TOLERANCE for initiated in began):
        return Finding("ok", "listings tell when an upload began" if began else "no listing to judge by")
    return Finding(
        "warning",
        "listings do not tell when an upload began",
        "a sweep leaves orphans alone here; a lifecycle rule has to remove them",
    )


def _lifecycle(box: Sandbox) -> Finding:
    days = box.store.stale_upload_days(box.destination.bucket, box.destination.prefix)
    if days is None:
        return Finding(
            "warning",
            "no rule that these credentials can read removes incomplete uploads: what a crash leaves is"
            " billed until it is swept",
            "add the rule that s3commit doctor --lifecycle prints, or run s3commit sweep regularly",
        )
    if days < _SAFE_DAYS:
        return Finding(
            "warning",
            f"a rule removes incomplete uploads after {days} day: a job that is not committed by then fails",
            "make it longer than any job takes; s3commit doctor --lifecycle prints one of a week",
        )
    return Finding("ok", f"incomplete uploads are removed after {days} days: jobs must be committed by then")


def _md5(content: bytes) -> hashlib._Hash:
    return hashlib.md5(content, usedforsecurity=False)


#: What must hold wherever records are.
RECORD_PROBES = (
    Probe("bucket", _bucket),
    Probe("directory", _directory, ("bucket",)),
    Probe("objects", _objects, ("bucket",)),
    Probe("conditional create", _create_only, ("objects",)),
    Probe("compare and swap", _compare_and_swap, ("objects",)),
    Probe("conditional delete", _conditional_delete, ("objects",)),
)


#: What must hold where data goes besides.
DATA_PROBES = (
    Probe("clock", _clock, ("objects",)),
    Probe("bulk delete", _bulk_delete, ("objects",)),
    Probe("complete uploads", _complete, ("objects",)),
    Probe("abort uploads", _abort, ("bucket",)),
    Probe("list uploads", _list_uploads, ("abort uploads",)),
    Probe("ages of uploads", _upload_ages, ("abort uploads", "objects")),
    Probe("lifecycle rule", _lifecycle, ("bucket",)),
)

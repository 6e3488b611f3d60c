"""Probes of a store: each tries one operation that jobs rely on, with objects in a sandbox directory.

No answer is trusted: each is compared with what was sent, and with what other requests say. A probe returns a
`Finding`, or raises `StoreUnsuitable` or an error of the store. `examine` removes what the probes leave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
    NoSuchUpload,
    PreconditionFailed,
    StoreRejected,
    StoreUnsuitable,
)
from airflow_s3commit.protocol.doctor.policy import SAFE_DAYS
from airflow_s3commit.protocol.metadata.context import has_object
from airflow_s3commit.protocol.metadata.removal import JOB_METADATA, UPLOAD_METADATA
from airflow_s3commit.protocol.metadata.store_check import NO_ETAG, has_true_upload_times
from airflow_s3commit.protocol.model.codec import KIB
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.store.base import MIN_PART_BYTES, ObjectInfo, ObjectStore, ObjectToDelete
from airflow_s3commit.store.execute import in_threads

Verdict: TypeAlias = Literal["ok", "warning", "failed", "skipped"]

#: Content of the probes' objects and parts.
BODY = b"s3commit doctor"

#: Metadata of the probes' uploads.
METADATA = {JOB_METADATA: "doctor", UPLOAD_METADATA: "Examined 1"}


class Finding(NamedTuple):
    """The result of a probe: see the fields of the same names of `Check`."""

    verdict: Verdict
    says: str
    remedy: str | None = None


@dataclass
class Sandbox:
    """A directory below a destination for the objects and uploads of probes, which it can remove again.

    ``rehearsed`` says whether jobs ran in it: what they leave has names that only a listing shows.
    """

    store: ObjectStore
    destination: Destination
    home: Destination
    clock: Clock
    rehearsed: bool = False
    #: Keys of objects, and keys with uploads: where none was begun, credentials need no right to list any.
    _keys: set[str] = field(default_factory=set)
    _begun: set[str] = field(default_factory=set)

    @property
    def bucket(self) -> str:
        """The bucket of the probes' objects."""
        return self.home.bucket

    def key(self, name: str, *, uploads: bool = False) -> str:
        """Return a key, and note it for `clear`. Call this before creating the object or the upload."""
        key = self.home.key(name)
        self._keys.add(key)
        self._begun |= {key} if uploads else set()
        return key

    def put(self, name: str) -> tuple[str, str]:
        """Write an object, overwriting an existing one; return its key and ETag."""
        key = self.key(name)
        return key, self.store.put(self.bucket, key, BODY).etag

    def begin(self, name: str, headers: dict[str, str] | None = None) -> tuple[str, str]:
        """Start an upload; return its key and id. For the headers see `ObjectStore.create_upload`."""
        key = self.key(name, uploads=True)
        return key, self.store.create_upload(
            self.bucket, key, metadata=METADATA, content_type="application/octet-stream", headers=headers
        )

    def send(self, key: str, upload_id: str, *parts: bytes) -> list[str]:
        """Send the parts of an upload; return their ETags."""
        return [
            self.store.upload_part(self.bucket, key, upload_id, number, part)
            for number, part in enumerate(parts, start=1)
        ]

    def clear(self) -> None:
        """Abort every upload and delete every object that probes may have created; try each. Repeatable."""
        # By the exact keys too: some stores list uploads only that way.
        prefixes = [*sorted(self._begun), *([self.home.prefix] if self.rehearsed else [])]
        steps: list[Callable[[], object]] = [partial(self._abort, prefix) for prefix in prefixes]
        steps += [self._delete_listed] if self.rehearsed else []
        self._run([*steps, *self._deletes(self._keys)])

    def _abort(self, prefix: str) -> None:
        for upload in list(self.store.list_uploads(self.bucket, prefix)):
            if upload.key.startswith(prefix):
                self.store.abort_upload(self.bucket, upload.key, upload.upload_id)

    def _delete_listed(self) -> None:
        self._run(self._deletes(one.key for one in self.store.list_objects(self.bucket, self.home.prefix)))

    def _deletes(self, keys: Iterable[str]) -> list[Callable[[], object]]:
        return [partial(self.store.delete, self.bucket, key) for key in sorted(keys)]

    def _run(self, steps: Iterable[Callable[[], object]]) -> None:
        run_all(steps, f"removing a probe below {self.home.uri}", "it may be left")


class Probe(NamedTuple):
    """A named probe. It is skipped if a probe that it ``needs`` failed or was skipped."""

    name: str
    run: Callable[[Sandbox], Finding]
    needs: tuple[str, ...] = ()


#: A suffix for keys, which some stores decode, fold or compose; and the same suffix, folded.
ODD_NAME, _FOLDED = "-A+b%20c=\u00e9", "-a+B%20C=e\u0301"

#: Number of objects or uploads in a listing under test, and how many of them are on a page.
_LISTED, _PAGE = 5, 2

#: Number of concurrent writes under one condition, and of rounds of such writes.
_WRITERS, _ROUNDS = 8, 6

#: Most seconds between a response's time and a new object's time in a listing; the write took a few at most.
_MOST_APART = 60.0

#: What to do where an abort or a sweep does not see all pending uploads.
RECORD_UPLOADS = (
    'set track_pending="s3" in the job\'s options, which records each upload when it starts; and add a'
    " lifecycle rule, because sweeps miss orphans on this store"
)


def _bucket(sandbox: Sandbox) -> Finding:
    try:
        sandbox.store.check_bucket(sandbox.bucket)
    except (AccessDenied, StoreRejected):
        # Credentials limited to this prefix are refused a HEAD of the bucket; expired ones for no reason.
        next(iter(sandbox.store.list_objects(sandbox.bucket, sandbox.home.prefix)), None)
    return Finding("ok", f"bucket {sandbox.bucket} answers these credentials")


def _objects(sandbox: Sandbox) -> Finding:
    """Write, read, list and delete an object, and one with a name that some stores change."""
    store, bucket = sandbox.store, sandbox.bucket
    key, etag = sandbox.put("object")
    _check_description(store.head(bucket, key), join_uri(bucket, key), "HEAD", etag, len(BODY))
    _check_object(sandbox, key, etag, BODY)
    name, _ = sandbox.put(f"object{ODD_NAME}")
    where = join_uri(bucket, name)
    store.delete(bucket, key)
    listed = [info.key for info in store.list_objects(bucket, key)]
    if has_object(store, bucket, key) or key in listed:
        raise StoreUnsuitable(f"{join_uri(bucket, key)} is still there after its deletion")
    if not listed:
        raise StoreUnsuitable(f"{where} went when {key} was deleted: deletes remove other objects too")
    if name not in listed:
        raise StoreUnsuitable(f"{where} is listed as {listed}: the store changes names")
    if has_object(store, bucket, key + _FOLDED):
        raise StoreUnsuitable(
            f"{where} is found as {key}{_FOLDED} too: files of a job whose names differ in case would be one"
        )
    return Finding("ok", "written, listed, read and deleted")


def _check_object(sandbox: Sandbox, key: str, etag: str, body: bytes) -> None:
    """Check that a GET and a listing show an object with its content and ETag."""
    where = join_uri(sandbox.bucket, key)
    fetched = sandbox.store.get(sandbox.bucket, key, limit=len(body) + KIB)
    _check_description(fetched.info, where, "GET", etag, len(body))
    if fetched.body != body:
        raise StoreUnsuitable(f"{where} has other content than was written")
    found = {info.key: info for info in sandbox.store.list_objects(sandbox.bucket, key)}
    if any(not name.startswith(key) for name in found):
        raise StoreUnsuitable(f"a listing below {where} names keys that are elsewhere")
    if key not in found:
        raise StoreUnsuitable(f"{where} is new, and missing from a listing: a commit could overlook data")
    _check_description(found[key], where, "a listing", etag, len(body))
    apart = abs(fetched.date - found[key].modified)
    if apart > _MOST_APART:
        raise StoreUnsuitable(
            f"{where} was just written, and its time in a listing is {apart:.0f} s apart from that of a"
            " response: no sweep could tell how old anything is"
        )


def _check_description(info: ObjectInfo, where: str, source: str, etag: str, size: int) -> None:
    if (info.etag, info.size) != (etag, size):
        raise StoreUnsuitable(
            f"{source} says that {where} has ETag {info.etag} and {info.size} bytes, but it was written with"
            f" {etag} and {size}"
        )


def _pages(sandbox: Sandbox) -> Finding:
    keys = [sandbox.put(f"listed={number}{ODD_NAME}")[0] for number in range(_LISTED)]
    prefix = sandbox.home.key("listed=")
    where = join_uri(sandbox.bucket, prefix)
    # Also without a page size: a store may cut such a listing short. And from a key on, as logs are listed.
    for page, after in ((_PAGE, None), (None, None), (None, keys[0])):
        expected = [key for key in keys if key > (after or "")]
        shown = f"a listing of {where}"
        shown += f" in pages of {page} objects" if page else f" after {after}" if after else ""
        try:
            found = sandbox.store.list_objects(sandbox.bucket, prefix, page=page, start_after=after)
            listed = sorted(info.key for info in found)
        except StoreRejected as error:
            raise StoreUnsuitable(f"{shown} has no end: {error}") from error
        if listed != expected:
            there = len(set(listed) & set(expected))
            raise StoreUnsuitable(
                f"{shown} lacks {len(expected) - there} of {len(expected)}, and has {len(listed) - there} too"
                " many: jobs, verify and sweep would see only a part of a large dataset, or some files twice"
            )
    return Finding("ok", "objects are listed page by page")


def _fencing(sandbox: Sandbox) -> Finding:
    """Try conditional writes of one key by several writers at once, as concurrent committers send them.

    Some stores compare, then write: they refuse a lone request, but let several concurrent ones succeed.
    """
    key = sandbox.key("fencing")
    missing = []
    if not _one_wins(sandbox, key, is_swap=False):
        missing.append("writes with If-None-Match: * are refused, or several of one key succeed")
    if not _one_wins(sandbox, key, is_swap=True) or not _refuses_missing(sandbox, key):
        missing.append(
            "writes with If-Match are refused, or several over one ETag succeed, or one of a missing object"
            " does"
        )
    if missing:
        return Finding("failed", "; ".join(missing), "use another store, or a newer version of this one")
    return Finding("ok", "two concurrent commits are kept apart")


def _one_wins(sandbox: Sandbox, key: str, *, is_swap: bool) -> bool:
    """Return whether at most one of the concurrent writes succeeds in each round, and one in some round."""
    store, bucket, has_won = sandbox.store, sandbox.bucket, False
    for _ in range(_ROUNDS):
        store.delete(bucket, key)
        etag = store.put(bucket, key, BODY).etag if is_swap else None
        write = partial(_write_if, store, bucket, key, etag)
        # A round may have no winner, if the answer to a write was lost and the retry was refused.
        won = [made for made in in_threads(write, range(_WRITERS), _WRITERS) if made is not None]
        if won and won != [store.head(bucket, key).etag]:
            return False
        has_won = has_won or bool(won)
    return has_won


def _write_if(store: ObjectStore, bucket: str, key: str, etag: str | None, number: int) -> str | None:
    """Overwrite the object with this ETag, or create it if None; return the new ETag, or None if refused."""
    try:
        # Each write has its own content: the same content may have the same ETag again.
        body = b"%d" % number
        return store.put(bucket, key, body, if_none_match=etag is None, if_match=etag).etag
    except (PreconditionFailed, StoreRejected):
        return None


def _refuses_missing(sandbox: Sandbox, key: str) -> bool:
    # Some stores create a missing object whatever the condition is.
    sandbox.store.delete(sandbox.bucket, key)
    try:
        sandbox.store.put(sandbox.bucket, key, BODY, if_match=NO_ETAG)
    except PreconditionFailed:
        return not has_object(sandbox.store, sandbox.bucket, key)
    return False


def _conditional_delete(sandbox: Sandbox) -> Finding:
    key, etag = sandbox.put("deleted")
    remedy = (
        "allow no other writers in partitions that a job replaces: jobs compare the ETag right before a"
        " delete"
    )
    store, bucket = sandbox.store, sandbox.bucket
    before = store.profiles[bucket]
    # Make the client send the condition, rather than compare the ETag itself first.
    store.profiles[bucket] = replace(before, conditional_delete=True)
    try:
        store.delete(bucket, key, if_match=NO_ETAG)
    except PreconditionFailed:
        store.delete(bucket, key, if_match=etag)
        return Finding("ok", "If-Match deletes succeed with the object's ETag, and are refused with another")
    except StoreRejected as error:
        return Finding("warning", f"the store rejects conditional deletes: {error}", remedy)
    finally:
        store.profiles[bucket] = before
    return Finding("warning", "deletes ignore If-Match", remedy)


def _bulk_delete(sandbox: Sandbox) -> Finding:
    store, bucket = sandbox.store, sandbox.bucket
    right, etag = sandbox.put("bulk-right")
    changed, _ = sandbox.put("bulk-changed")
    failures = store.delete_many(bucket, [ObjectToDelete(right, etag), ObjectToDelete(changed, NO_ETAG)])
    if has_object(store, bucket, right):
        reasons = [f"{failure.code} {failure.message}" for failure in failures if failure.key == right]
        says = f"a bulk delete left an object: {reasons[0] if reasons else 'the store gives no reason'}"
        return Finding("failed", says, "allow s3:DeleteObject, or use another store")
    if not has_object(store, bucket, changed):
        return Finding("ok", "bulk deletes ignore ETags, so jobs delete replaced files one by one")
    return Finding("ok", "objects are deleted, except for one whose ETag changed")


def _complete(sandbox: Sandbox) -> Finding:
    store, bucket = sandbox.store, sandbox.bucket
    key, upload_id = sandbox.begin("upload")
    parts = (b"1" * MIN_PART_BYTES, BODY)
    etags = sandbox.send(key, upload_id, *parts)
    where = join_uri(bucket, key)
    sent = {(etag, len(part)) for etag, part in zip(etags, parts, strict=True)}
    if {(part.etag, part.size) for part in store.list_parts(bucket, key, upload_id)} != sent:
        raise StoreUnsuitable(f"the listed parts of an upload of {where} are not those that were sent")
    if has_object(store, bucket, key):
        raise StoreUnsuitable(f"{where} is visible before its upload is completed")
    store.complete_upload(bucket, key, upload_id, etags)
    try:
        info = store.head(bucket, key)
    except NoSuchKey as error:
        raise StoreUnsuitable(f"{where} is missing after its upload was completed") from error
    if any(info.metadata.get(name) != value for name, value in METADATA.items()):
        raise StoreUnsuitable(f"{where} lacks its upload's metadata, which identify the job that wrote it")
    _check_object(sandbox, key, info.etag, b"".join(parts))
    return Finding("ok", "invisible until completed, then identified by its metadata and ETag")


def _abort(sandbox: Sandbox) -> Finding:
    """Abort an upload to the key of an object, which must stay: names of Hadoop's files may repeat."""
    store, bucket = sandbox.store, sandbox.bucket
    key, before = sandbox.put("aborted")
    where = join_uri(bucket, key)
    _, upload_id = sandbox.begin("aborted")
    sandbox.send(key, upload_id, BODY)
    store.abort_upload(bucket, key, upload_id)
    with suppress(NoSuchUpload, StoreRejected):
        if any(store.list_parts(bucket, key, upload_id)):
            raise StoreUnsuitable(f"an upload of {where} still exists after its abort")
    try:
        is_same = store.head(bucket, key).etag == before
    except NoSuchKey:
        is_same = False
    if not is_same:
        raise StoreUnsuitable(f"{where} was changed by an upload that was not completed")
    return Finding("ok", "a pending upload is gone after its abort, and what it was to overwrite is not")


def _list_uploads(sandbox: Sandbox) -> Finding:
    ids = {sandbox.begin(f"page={number}{ODD_NAME}")[1] for number in range(_LISTED)}
    for page in (None, _PAGE):
        listed = sandbox.store.list_uploads(sandbox.bucket, sandbox.home.prefix, page=page)
        if lacking := len(ids - {upload.upload_id for upload in listed}):
            says = f"{lacking} of {_LISTED} pending uploads are missing from a listing by prefix"
            says += f" in pages of {page}" if page else ""
            return Finding("warning", says, RECORD_UPLOADS)
    return Finding("ok", "pending uploads are listed by prefix, page by page")


def _upload_ages(sandbox: Sandbox) -> Finding:
    are_true = has_true_upload_times(sandbox.store, sandbox.bucket, sandbox.key("aged", uploads=True))
    if are_true is None:
        return Finding("ok", "not known, because the store does not list pending uploads")
    if are_true:
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
            "add a rule for incomplete uploads, of a week or so, or run s3commit sweep regularly",
        )
    if days < SAFE_DAYS:
        return Finding(
            "warning",
            f"a rule removes incomplete uploads after {days} day: a job that commits later fails",
            "make it longer than any job takes",
        )
    return Finding("ok", f"incomplete uploads are removed after {days} days: jobs must be committed by then")


#: Probes of a directory with records: a destination or a staging root.
RECORD_PROBES = (
    Probe("bucket", _bucket),
    Probe("objects", _objects, ("bucket",)),
    Probe("pages of objects", _pages, ("objects",)),
    Probe("fencing", _fencing, ("objects",)),
    Probe("conditional delete", _conditional_delete, ("objects",)),
)

#: Further probes of a destination.
DATA_PROBES = (
    Probe("bulk delete", _bulk_delete, ("objects",)),
    Probe("complete uploads", _complete, ("objects",)),
    Probe("abort uploads", _abort, ("objects",)),
    Probe("list uploads", _list_uploads, ("abort uploads",)),
    Probe("ages of uploads", _upload_ages, ("abort uploads", "objects")),
    Probe("lifecycle rule", _lifecycle, ("bucket",)),
)

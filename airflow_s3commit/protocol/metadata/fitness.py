"""What every job relies on, tried with probes: a store that answers otherwise is unsuitable; and its clock.

No answer is trusted: each is compared with what was sent, and with what other requests say.

Ages are differences of the store's own times, never of two machines' clocks. The time is the ``Date`` of a
response. It is read with a small record of the destination; if there is none, a probe object is written and
deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from airflow_s3commit._causes import ending, run_all
from airflow_s3commit.exceptions import NoSuchKey, NoSuchUpload, StoreRejected, StoreUnsuitable, TooLarge
from airflow_s3commit.protocol.metadata.records import exists
from airflow_s3commit.protocol.model.codec import KIB, MIB
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.layout import (
    MAGIC_PREFIX,
    PENDING_SUFFIX,
    PENDINGSET_SUFFIX,
    SUCCESS,
    entry_key,
    time_key,
)
from airflow_s3commit.protocol.model.ownership import JOB_METADATA, UPLOAD_METADATA
from airflow_s3commit.store.base import ObjectInfo, ObjectStore

#: Content of the probes' objects and parts.
BODY = b"s3commit doctor"

#: What follows a probe's key in a name that some stores decode, fold or compose; and that name, folded.
ODD_NAME, _FOLDED = "-A+b%20c=\u00e9", "-a+B%20C=e\u0301"

#: Objects of a listing that is tried, and how many of them are on a page.
LISTED, _PAGE = 5, 2

_METADATA = {JOB_METADATA: "doctor", UPLOAD_METADATA: "Examined 1"}


def check_objects(store: ObjectStore, bucket: str, key: str) -> None:
    """Write, read, list and delete an object, and one with a name that some stores change.

    Raises:
        StoreUnsuitable: The store lost or changed it or its name, or describes it in contradictory ways.
        S3CommitError: A request failed.

    """
    etag = store.put(bucket, key, BODY).etag
    _check_description(store.head(bucket, key), bucket, "HEAD", etag)
    _check_content(store, bucket, key, etag)
    _check_listing(store, bucket, key, etag)
    name = key + ODD_NAME
    where = join_uri(bucket, name)
    with ending(lambda: store.delete(bucket, name), f"deleting the probe {where}", "it may be left"):
        store.put(bucket, name, BODY)
        store.delete(bucket, key)
        if exists(store, bucket, key) or _listed(store, bucket, key):
            raise StoreUnsuitable(f"{join_uri(bucket, key)} is still there after its deletion")
        _check_name(store, bucket, key)


def check_pages(store: ObjectStore, bucket: str, prefix: str) -> None:
    """List objects page by page: ``prefix`` with the numbers below `LISTED`, which are deleted again.

    Raises:
        StoreUnsuitable: The pages lack one of them, or repeat one.
        S3CommitError: A request failed.

    """
    keys = [f"{prefix}{number}" for number in range(LISTED)]
    where = join_uri(bucket, prefix)

    def delete() -> None:
        run_all([partial(store.delete, bucket, key) for key in keys], f"deleting {where}…", "it may be left")

    with ending(delete, f"deleting the probes {where}…", "they may be left"):
        for key in keys:
            store.put(bucket, key, BODY)
        # On one page too: a store may end a listing where nobody asks for pages.
        for page in (_PAGE, None):
            shown = f"a listing of {where} in pages of {page} objects" if page else f"a listing of {where}"
            try:
                listed = sorted(info.key for info in store.list_objects(bucket, prefix, page=page))
            except StoreRejected as error:
                raise StoreUnsuitable(f"{shown} has no end: {error}") from error
            if listed != keys:
                found = len(set(listed))
                raise StoreUnsuitable(
                    f"{shown} lacks {LISTED - found} of {LISTED}, and repeats {len(listed) - found}: jobs,"
                    " verify and sweep would see only a part of a large dataset, or some files twice"
                )


def check_completion(store: ObjectStore, bucket: str, key: str) -> ObjectInfo:
    """Complete an upload, and return its object, which is left for the caller to delete.

    Raises:
        StoreUnsuitable: The upload was visible before, is not the object after, or lost its metadata.
        S3CommitError: A request failed.

    """
    # A process that died here before may have left it.
    store.delete(bucket, key)
    upload_id, part = _upload(store, bucket, key)
    # After its completion too: some stores keep it.
    with ending(
        lambda: store.abort_upload(bucket, key, upload_id),
        f"aborting the probe's upload of {join_uri(bucket, key)}",
        "it may stay pending",
    ):
        if exists(store, bucket, key):
            raise StoreUnsuitable(f"{join_uri(bucket, key)} is visible before its upload is completed")
        store.complete_upload(bucket, key, upload_id, [part])
    try:
        info = store.head(bucket, key)
    except NoSuchKey as error:
        raise StoreUnsuitable(f"{join_uri(bucket, key)} is missing after its upload was completed") from error
    if any(info.metadata.get(name) != value for name, value in _METADATA.items()):
        raise StoreUnsuitable(
            f"{join_uri(bucket, key)} lacks its upload's metadata, which identify the job that wrote it"
        )
    _check_content(store, bucket, key, info.etag)
    _check_listing(store, bucket, key, info.etag)
    return info


def check_abort(store: ObjectStore, bucket: str, key: str) -> None:
    """Abort an upload.

    Raises:
        StoreUnsuitable: It is still there.
        S3CommitError: A request failed.

    """
    upload_id, _ = _upload(store, bucket, key)
    store.abort_upload(bucket, key, upload_id)
    try:
        left = any(store.list_parts(bucket, key, upload_id))
    except (NoSuchUpload, StoreRejected):
        left = False
    if left or exists(store, bucket, key):
        raise StoreUnsuitable(f"an upload of {join_uri(bucket, key)} still exists after its abort")


def check_abort_over(store: ObjectStore, bucket: str, key: str) -> None:
    """Abort an upload over an object, which is deleted again.

    Setup does not try this: only Hadoop's jobs, whose names may lack their id, upload over objects.

    Raises:
        StoreUnsuitable: The object is gone, or not what it was.
        S3CommitError: A request failed.

    """
    where = join_uri(bucket, key)
    with ending(lambda: store.delete(bucket, key), f"deleting the probe {where}", "it may be left"):
        before = store.put(bucket, key, BODY).etag
        upload_id, _ = _upload(store, bucket, key)
        store.abort_upload(bucket, key, upload_id)
        try:
            is_same = store.head(bucket, key).etag == before
        except NoSuchKey:
            is_same = False
        if not is_same:
            raise StoreUnsuitable(f"{where} was changed by an upload that was not completed")


def _check_name(store: ObjectStore, bucket: str, key: str) -> None:
    """Check that an object is there by its name, as it was written, and by no other one."""
    name, folded = key + ODD_NAME, key + _FOLDED
    where = join_uri(bucket, name)
    listed = [info.key for info in store.list_objects(bucket, key)]
    if not listed:
        raise StoreUnsuitable(f"{where} went when {key} was deleted: deletes remove other objects too")
    if name not in listed:
        raise StoreUnsuitable(f"{where} is listed as {listed}: the store changes names")
    if exists(store, bucket, folded):
        raise StoreUnsuitable(
            f"{where} is found as {folded} too: files of a job whose names differ in case would be one"
        )


def _upload(store: ObjectStore, bucket: str, key: str) -> tuple[str, str]:
    """Start an upload of one part; return its id and the part's ETag."""
    upload_id = store.create_upload(bucket, key, metadata=_METADATA, content_type="application/octet-stream")
    return upload_id, store.upload_part(bucket, key, upload_id, 1, BODY)


def _listed(store: ObjectStore, bucket: str, key: str) -> list[ObjectInfo]:
    """Return what a listing says of an object.

    Raises:
        StoreUnsuitable: The listing has keys that were not asked for.

    """
    found = list(store.list_objects(bucket, key))
    if any(not info.key.startswith(key) for info in found):
        raise StoreUnsuitable(f"a listing below {join_uri(bucket, key)} names keys that are elsewhere")
    return [info for info in found if info.key == key]


def _check_content(store: ObjectStore, bucket: str, key: str, etag: str) -> None:
    fetched = store.get(bucket, key, limit=KIB)
    _check_description(fetched.info, bucket, "GET", etag)
    if fetched.body != BODY:
        raise StoreUnsuitable(f"{join_uri(bucket, key)} has other content than was written")


def _check_listing(store: ObjectStore, bucket: str, key: str, etag: str) -> None:
    found = _listed(store, bucket, key)
    if not found:
        raise StoreUnsuitable(
            f"{join_uri(bucket, key)} is new, and missing from a listing: a commit could overlook data"
        )
    _check_description(found[0], bucket, "a listing", etag)


def _check_description(info: ObjectInfo, bucket: str, source: str, etag: str) -> None:
    if (info.etag, info.size) != (etag, len(BODY)):
        raise StoreUnsuitable(
            f"{source} says that {join_uri(bucket, info.key)} has ETag {info.etag} and {info.size} bytes, but"
            f" it was written with {etag} and {len(BODY)}"
        )


#: Times of one store differ by up to this many seconds: they are whole seconds, from several machines.
STORE_CLOCK_SECONDS = 1.0

#: Maximum error, in seconds, of the start time of an upload in a listing; beyond it the time is useless.
UPLOAD_TIME_SECONDS = 60.0

_SMALL = (".json", PENDING_SUFFIX, PENDINGSET_SUFFIX)

#: Maximum size of a record that is read for the time of its response.
_SMALL_BYTES = MIB


def read_time(store: ObjectStore, destination: Destination) -> float | None:
    """Return the store's time in seconds since the epoch, by a read; None if there is no record to read."""
    for bucket, key in _small_records(store, destination):
        try:
            return store.get(bucket, key, limit=_SMALL_BYTES).date
        except (NoSuchKey, TooLarge):
            continue
    return None


def probe_time(store: ObjectStore, destination: Destination) -> float:
    """Return the store's time in seconds since the epoch, by writing and deleting a hidden probe object."""
    return _probe_time(store, destination.bucket, time_key(destination))


def has_true_upload_times(store: ObjectStore, destination: Destination) -> bool:
    """Return whether a listing of uploads has their true start times, by a probe upload.

    Some stores report one time for every upload, by which a new upload would look like an orphan.
    """
    error = upload_time_error(store, destination.bucket, time_key(destination))
    return error is not None and error <= UPLOAD_TIME_SECONDS


def upload_time_error(store: ObjectStore, bucket: str, key: str) -> float | None:
    """Return by how many seconds a listing misstates the start of an upload; None if it lacks the upload.

    Starts, lists and aborts a probe upload, and aborts probes that dead processes left at the key.

    Args:
        store: The store.
        bucket: The probe's bucket.
        key: A key that only probes use; the object there is overwritten and deleted.

    """
    now = _probe_time(store, bucket, key)
    upload_id = store.create_upload(bucket, key, metadata={}, content_type="application/octet-stream")
    with ending(
        lambda: store.abort_upload(bucket, key, upload_id),
        f"aborting the probe's upload of {join_uri(bucket, key)}",
        "it may stay pending until the next sweep",
    ):
        probes = [upload for upload in store.list_uploads(bucket, key) if upload.key == key]
    for probe in probes:
        if probe.upload_id != upload_id and now - probe.initiated > UPLOAD_TIME_SECONDS:
            store.abort_upload(bucket, key, probe.upload_id)
    return max((abs(p.initiated - now) for p in probes if p.upload_id == upload_id), default=None)


def _probe_time(store: ObjectStore, bucket: str, key: str) -> float:
    with ending(lambda: store.delete(bucket, key), f"deleting {join_uri(bucket, key)}", "it may be left"):
        return store.put(bucket, key, b"what time is it?", content_type="text/plain").date


def _small_records(store: ObjectStore, destination: Destination) -> Iterator[tuple[str, str]]:
    yield destination.bucket, entry_key(destination, 1)
    yield destination.bucket, destination.key(SUCCESS)
    for info in store.list_objects(destination.bucket, destination.key(MAGIC_PREFIX)):
        if info.key.endswith(_SMALL) and info.size <= _SMALL_BYTES:
            yield destination.bucket, info.key
            return

"""``_SUCCESS``: removed before a commit publishes, and derived from the log after it; also in each partition.

The marker names the newest commit whose replaced objects are deleted. It is written only over a marker of an
older generation, and no two markers of this protocol are alike, so that a suspended process which has read an
old one cannot delete or overwrite a new one. A commit removes the one marker that it found when it began. A
marker of another program is put back by an abort, byte for byte.

A job that ends writes its marker before it deletes its record. So a job that removed a marker and is aborted
writes the newest commit's, unless that has yet to write its own: its record is there, and the marker that was
removed is an older one's.

The first commit whose job asks for markers in partitions enters that in the log. From then on every commit
writes one in each partition to which it adds files. Nothing happens before its ``commit`` entry, so an
abort has nothing to restore. The marker of a partition goes before files of it are deleted, so none names
data that is being deleted. A commit that slept may write its marker after a later one has emptied the
partition. So it looks at the log after that, and removes its own again.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from msgspec.structs import replace

from airflow_s3commit.exceptions import (
    InvalidRecord,
    NoSuchKey,
    NoSuchUpload,
    PreconditionFailed,
    TooLarge,
)
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.log import newest_commit, next_entries
from airflow_s3commit.protocol.metadata.manifests import manifest_files
from airflow_s3commit.protocol.metadata.records import exists
from airflow_s3commit.protocol.metadata.removal import PendingId, abort_uploads, delete_unchanged
from airflow_s3commit.protocol.model.codec import decode, encode, largest
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.job import SavedSuccess
from airflow_s3commit.protocol.model.layout import SUCCESS, Layout
from airflow_s3commit.protocol.model.manifest import (
    GENERATION_DIAGNOSTIC,
    MANIFEST_DIAGNOSTIC,
    MAX_FILENAMES,
    NONCE_DIAGNOSTIC,
    SUCCESS_NAME,
    ManifestRecord,
    SuccessData,
)
from airflow_s3commit.protocol.model.pendingset import IOStatistics

logger = logging.getLogger(__name__)


def existing_success(context: JobContext) -> SavedSuccess | None:
    """Return the marker that is there; None without one.

    Raises:
        TooLarge: It is larger than any committer's, so that it could not be put back.

    """
    found = find_marker(context)
    if found is None:
        return None
    if found.body is None:
        where = join_uri(context.bucket, context.layout.success)
        raise TooLarge.of(where, found.size, largest(SuccessData))
    return SavedSuccess(etag=found.etag, body=found.body)


def remove_success(context: JobContext, saved: SavedSuccess | None) -> bool:
    """Delete the marker that a commit found when it began, before files are published. Repeatable.

    One that another job has written since stays: nobody would write that again after an abort of this job.

    Args:
        context: The job.
        saved: The marker that was there.

    Returns:
        Whether it is gone, or never was there; False if there is another one.

    """
    if saved is None:
        return True
    if not delete_unchanged(context, context.bucket, context.layout.success, saved.etag):
        logger.info("%s: another job wrote _SUCCESS", context.name)
        return False
    return True


def write_success(
    context: JobContext,
    manifest: ManifestRecord,
    keys: Callable[[], list[str]],
    *,
    renewed: str | None = None,
    is_removed: bool = False,
) -> SavedSuccess | None:
    """Write the marker of a committed job, unless there is one of its generation or a later one. Repeatable.

    Before: the objects that the job replaces are deleted; its record is still there.

    Args:
        context: Any job of the destination.
        manifest: The committed job's manifest.
        keys: Returns the keys of its first files, at most 100.
        renewed: ETag of a marker to write anew whatever its generation.
        is_removed: Expect no marker: try to create one before looking for another job's.

    Returns:
        The marker as it was written; None if there was one already.

    """
    body = b""
    while True:
        found = None if is_removed else find_marker(context)
        is_removed = False
        if found is None:
            condition: dict[str, Any] = {"if_none_match": True}
        elif found.etag != renewed and (found.generation or 0) >= manifest.generation:
            return None
        else:
            condition = {"if_match": found.etag}
        body = body or encode(success_of(context, manifest, keys()))
        try:
            written = context.store.put(context.bucket, context.layout.success, body, **condition)
        except (PreconditionFailed, NoSuchKey):
            continue
        return SavedSuccess(etag=written.etag, body=body)


def restore_success(context: JobContext, saved: SavedSuccess | None, *, at_least: int = 0) -> None:
    """Give a destination its marker again after an abort. Repeatable.

    That is the marker of the newest commit, unless its job has yet to write it: then its committer, or its
    recovery, does. Without any commit in the log it is the marker of another program, as it was saved. The
    marker that the aborted commit may still delete is written anew, with another ETag.

    Args:
        context: The job that is aborted.
        saved: The marker that its commit removes.
        at_least: Number of an entry that is known to be there, though a listing may lack it.

    """
    newest = newest_commit(context.store, context.layout.destination, at_least=at_least)
    found = find_marker(context)
    is_foreign = found is not None and found.generation is None
    doomed = saved.etag if saved is not None else None
    if newest is None or (is_foreign and found is not None and found.etag == doomed):
        if saved is not None:
            _restore_foreign(context, saved)
        return
    assert newest.manifest is not None
    if is_foreign:
        return
    # Its job has written what this one removed.
    is_written = saved is not None and _generation_of(saved.body) == newest.number
    if is_written or not _is_under_way(context, newest.manifest):
        keys = partial(listed_keys, context, newest.manifest)
        write_success(context, newest.manifest, keys, renewed=doomed)


def listed_keys(context: JobContext, manifest: ManifestRecord) -> list[str]:
    """Return the keys of a committed job's first files, at most 100, by its list of files.

    Raises:
        NoSuchKey: The list is gone.
        InvalidRecord: The list was changed.

    """
    files = manifest_files(context.store, manifest)
    return [entry.key for entry, _ in zip(files, range(MAX_FILENAMES), strict=False)]


def _is_under_way(context: JobContext, manifest: ManifestRecord) -> bool:
    """Return whether a committed job still has its record, which goes after its marker is written."""
    staging = Destination.parse(manifest.staging)
    record = Layout(context.layout.destination, staging, manifest.job_id).job
    return exists(context.store, staging.bucket, record)


@dataclass(frozen=True, slots=True)
class Marker:
    """A marker as it is: the body is None if it is too large, the generation None if it is foreign."""

    etag: str
    size: int
    generation: int | None = None
    body: bytes | None = None


def find_marker(context: JobContext, key: str | None = None) -> Marker | None:
    """Return the marker that is there; None without one.

    Args:
        context: The job.
        key: Its key; None for the destination's.

    """
    store, bucket, key = context.store, context.bucket, key or context.layout.success
    try:
        fetched = store.get(bucket, key, limit=largest(SuccessData))
    except NoSuchKey:
        return None
    except TooLarge:
        info = store.head(bucket, key)
        return Marker(info.etag, info.size)
    return Marker(fetched.info.etag, fetched.info.size, _generation_of(fetched.body), fetched.body)


def _generation_of(body: bytes) -> int | None:
    """Return the generation that a marker names; None for a foreign one."""
    with suppress(InvalidRecord):
        return decode(SuccessData, body, SUCCESS).generation
    return None


def success_of(context: JobContext, manifest: ManifestRecord, keys: list[str]) -> SuccessData:
    """Return what a marker says of a commit, each time with another nonce."""
    written = datetime.fromtimestamp(manifest.committed / 1000, UTC)
    layout = Layout.of(context.layout.destination, manifest.job_id)
    counters = {
        **{name: value for name, value in manifest.metrics.items() if not name.startswith("complete_")},
        "committer_commits_completed": manifest.counts.files,
        "committer_bytes_committed": manifest.counts.bytes,
        "committer_jobs_completed": 1,
        "committer_tasks_completed": manifest.tasks or 0,
    }
    return SuccessData(
        name=SUCCESS_NAME,
        timestamp=manifest.committed,
        date=written.strftime("%a %b %d %H:%M:%S UTC %Y"),
        hostname=socket.gethostname(),
        committer=manifest.committer,
        description=(
            f"{manifest.counts.files} files in {len(manifest.partitions)} partitions,"
            f" {manifest.conflict_mode}"
        ),
        jobId=manifest.job_id,
        jobIdSource="airflow-s3commit",
        metrics=manifest.metrics,
        diagnostics={
            **manifest.context,
            MANIFEST_DIAGNOSTIC: join_uri(context.bucket, layout.manifest),
            GENERATION_DIAGNOSTIC: str(manifest.generation),
            NONCE_DIAGNOSTIC: context.new_id(),
        },
        filenames=[f"/{key}" for key in keys],
        iostatistics=IOStatistics(counters=counters),
    )


def _restore_foreign(context: JobContext, saved: SavedSuccess) -> None:
    """Put back the marker of another program, byte for byte but with another ETag.

    A suspended committer may still send a delete conditional on the old ETag. A multipart upload (or a
    single PUT, if the old one was multipart) gives the same bytes an ETag that this delete does not match.
    """
    store, bucket, key = context.store, context.bucket, context.layout.success
    try:
        while _is_to_be_restored(context, saved):
            if "-" in saved.etag:
                _put_foreign(context, saved)
            else:
                upload_id = store.create_upload(bucket, key, metadata={}, content_type="application/json")
                etag = store.upload_part(bucket, key, upload_id, 1, saved.body)
                store.complete_upload(bucket, key, upload_id, [etag])
    except NoSuchUpload:
        # Another process is restoring the marker too, and aborted both uploads.
        _restore_foreign(context, saved)
    leftovers = (upload for upload in store.list_uploads(bucket, key) if upload.key == key)
    abort_uploads(context, (PendingId(bucket, key, upload.upload_id, "writer") for upload in leftovers))


def _is_to_be_restored(context: JobContext, saved: SavedSuccess) -> bool:
    """Return whether the marker is missing, or still has the ETag that a suspended committer may know."""
    try:
        return context.store.head(context.bucket, context.layout.success).etag == saved.etag
    except NoSuchKey:
        return True


def _put_foreign(context: JobContext, saved: SavedSuccess) -> None:
    """Put a marker back in one piece; another job's marker is left alone."""
    store, bucket, key = context.store, context.bucket, context.layout.success
    try:
        store.head(bucket, key)
    except NoSuchKey:
        condition: dict[str, Any] = {"if_none_match": True}
    else:
        condition = {"if_match": saved.etag}
    try:
        store.put(bucket, key, saved.body, **condition)
    except PreconditionFailed:
        logger.info("%s: another process wrote _SUCCESS meanwhile", context.name)


def remove_older_markers(context: JobContext, partitions: Iterable[str], number: int) -> None:
    """Delete the markers of commits before an entry from partitions. Repeatable by any process.

    Those of other programs stay until the commit writes its own.

    Args:
        context: The job.
        partitions: Partitions with files that are going to be deleted.
        number: Number of the job's ``commit``.

    """

    def remove(partition: str) -> None:
        key = context.layout.partition_success(partition)
        found = find_marker(context, key)
        if found is not None and found.generation is not None and found.generation < number:
            delete_unchanged(context, context.bucket, key, found.etag)

    _each(context, remove, partitions)


def write_markers(context: JobContext, manifest: ManifestRecord) -> None:
    """Write the marker of each partition with files of a commit. Repeatable by any process.

    Leaves those of the same generation or a later one. Before: the objects that the commit replaces are
    deleted.

    Args:
        context: Any job of the destination.
        manifest: The commit's manifest.

    """
    written = [name for name, counts in manifest.partitions.items() if counts.files]
    _each(context, lambda partition: _write(context, manifest, partition), written)
    number, emptied = manifest.generation, set[str]()
    # Until there is none at the next key: a listing may lack the newest entries.
    while entries := list(next_entries(context.store, context.layout.destination, number)):
        number = entries[-1].number
        for entry in entries:
            if entry.manifest is not None and entry.removes == "everything":
                emptied.update(written)
            elif entry.manifest is not None and entry.removes == "partitions":
                emptied.update(entry.manifest.partitions.keys() & set(written))
    remove_older_markers(context, emptied, manifest.generation + 1)


def renew_marker(context: JobContext, partition: str, etag: str, manifest: ManifestRecord | None) -> None:
    """Put the marker that follows from the log in place of another one. Repeatable.

    Leaves the marker of a commit that wrote it meanwhile.

    Args:
        context: Any job of the destination.
        partition: The partition.
        etag: ETag of the marker that is there; empty without one.
        manifest: The newest commit to the partition; None if the partition is to have no marker.

    """
    key = context.layout.partition_success(partition)
    if etag and not delete_unchanged(context, context.bucket, key, etag):
        return
    if manifest is not None:
        write_markers(context, replace(manifest, partitions={partition: manifest.partitions[partition]}))


def _write(context: JobContext, manifest: ManifestRecord, partition: str) -> None:
    key, counts = context.layout.partition_success(partition), manifest.partitions[partition]
    part = replace(manifest, partitions={partition: counts}, counts=counts, metrics={})
    body = encode(success_of(context, part, []))
    # At first as if there were none: that is the marker of a new partition in one request.
    found: Marker | None = None
    while found is None or (found.generation or 0) < manifest.generation:
        condition: dict[str, Any] = {"if_match": found.etag} if found is not None else {"if_none_match": True}
        try:
            context.store.put(context.bucket, key, body, **condition)
        except (PreconditionFailed, NoSuchKey):
            found = find_marker(context, key)
        else:
            return


def _each(context: JobContext, act: Callable[[str], None], partitions: Iterable[str]) -> None:
    """Do this for each partition but the root, whose marker is the destination's."""
    named: Collection[str] = sorted({*partitions} - {""})
    if not context.threads:
        for partition in named:
            act(partition)
        return
    with ThreadPoolExecutor(context.threads, thread_name_prefix="s3commit-marker") as pool:
        for _ in pool.map(act, named):
            pass

"""``_SUCCESS`` in each partition, for readers that wait for one: derived from the log, as the table's is.

The first commit whose job asks for them enters that in the log. From then on every commit writes one in each
partition to which it adds files. Nothing happens before the entry after which there is only forward
(``commit`` or ``begin``), so an abort has nothing to restore. The marker of a partition goes before files of
it are deleted or overwritten, so none names data that is being deleted. It is written only over a marker of
an older generation.

A commit that slept may write its marker after a later one has emptied the partition. So it looks at the log
after that, and removes its own again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor

from msgspec.structs import replace

from airflow_s3commit.exceptions import NoSuchKey, PreconditionFailed
from airflow_s3commit.protocol.lifecycle.success import find_marker, success_of
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.log import next_entries
from airflow_s3commit.protocol.metadata.removal import delete_unchanged
from airflow_s3commit.protocol.model.codec import encode
from airflow_s3commit.protocol.model.manifest import ManifestRecord


def remove_older_markers(context: JobContext, partitions: Iterable[str], number: int) -> None:
    """Delete the markers of commits before an entry from partitions. Repeatable by any process.

    Those of other programs stay until the commit writes its own.

    Args:
        context: The job.
        partitions: Partitions with files that are going to be deleted or overwritten.
        number: Number of the job's ``commit`` or ``begin``.

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
    found = None if context.conditional else find_marker(context, key)
    while found is None or (found.generation or 0) < manifest.generation:
        condition = {"if_match": found.etag} if found is not None else {"if_none_match": True}
        try:
            context.store.put(context.bucket, key, body, **(condition if context.conditional else {}))
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

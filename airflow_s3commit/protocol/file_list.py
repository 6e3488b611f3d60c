"""The list of a job's files on its way into the manifest: made once, kept on disk where it is long."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from tempfile import SpooledTemporaryFile

import msgspec

from airflow_s3commit.protocol.context import JobContext
from airflow_s3commit.protocol.layout import partition_of
from airflow_s3commit.protocol.pendingset import PendingUpload
from airflow_s3commit.protocol.records import FileEntry, SealRecord, decode
from airflow_s3commit.protocol.sealed import each_pendingset, load_stage_seals

__all__ = ["FileList"]

_IN_MEMORY_BYTES = 16 * 1024 * 1024


class FileList:
    """`FileEntry` records, one JSON line each, in the order of the seals' pendingsets.

    A commit that completes every upload fills one as it goes, so that pendingsets are read once; a process
    that takes a commit up later makes one with `of_sealed`.

    Args:
        context: The job.

    """

    def __init__(self, context: JobContext) -> None:
        self._destination = context.layout.destination
        self._encoder = msgspec.json.Encoder()
        self._spool = SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES)  # noqa: SIM115 - lives as long as this

    @classmethod
    def of_sealed(cls, context: JobContext, seal: SealRecord) -> FileList:
        """Make the list by reading every sealed pendingset.

        Raises:
            InvalidRecord: A pendingset is missing or was changed.

        """
        files = cls(context)
        for _, _, pendingset in each_pendingset(context, load_stage_seals(context, seal)):
            for upload in pendingset.commits:
                files.add(upload)
        return files

    def add(self, upload: PendingUpload) -> None:
        """Append one file."""
        extra = upload.s3commit
        entry = FileEntry(
            key=upload.destinationKey,
            size=upload.length,
            etag=upload.expected_etag,
            rows=extra.rows if extra is not None else None,
            partition=partition_of(self._destination.relative(upload.destinationKey) or ""),
            upload=extra.upload if extra is not None else "",
            statistics=extra.statistics if extra is not None else None,
        )
        self._spool.write(self._encoder.encode(entry) + b"\n")

    def lines(self) -> Iterator[bytes]:
        """Yield the lines, each with its line feed."""
        self._spool.seek(0)
        yield from self._spool

    def first_keys(self, count: int) -> list[str]:
        """Return the keys of the first ``count`` files."""
        return [decode(FileEntry, line, "a line of the list").key for line in islice(self.lines(), count)]

"""A file of the committers ``directory`` and ``partitioned``: on local disk until its task attempt commits.

As with their namesakes in Hadoop, a task that fails before its commit has sent nothing, but all of its output
needs space on disk.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO

from airflow_s3commit._causes import run_all
from airflow_s3commit.exceptions import JobClosed
from airflow_s3commit.protocol.model.statistics import Columns
from airflow_s3commit.protocol.writer.multipart import OutputFile, WritableFile


class LocalFile(WritableFile):
    """A binary file, open for writing on local disk, with the methods of `OutputFile`.

    Args:
        path: Path of the local file.
        uri: URI of the final object.
        key: Key of the final object.

    Attributes:
        key: Key of the final object.
        uri: URI of the final object.
        pending: The finished upload; None until `send` has uploaded the file.

    """

    def __init__(self, path: Path, uri: str, key: str) -> None:
        super().__init__(key)
        self._path = path
        self._file: IO[bytes] = path.open("wb")
        self._rows: int | None = None
        self._statistics: Columns | None = None
        self._upload: OutputFile | None = None
        self.uri = uri

    @property
    def buffered(self) -> int:
        """Bytes in memory that are not sent: always 0."""
        return 0

    def send_buffered(self) -> None:
        """Do nothing: no bytes are buffered in memory."""

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append bytes, and return how many.

        Raises:
            JobClosed: The file is closed.
            OSError: The disk is full, or fails.

        """
        if self._state != "open":
            raise JobClosed(f"{self.uri} is {self._state}")
        written = self._file.write(data)
        self._length += written
        return written

    def close(self, rows: int | None = None, statistics: Columns | None = None) -> None:
        """Close the file. Repeatable.

        Args:
            rows: Number of rows in the file, for the manifest.
            statistics: Column statistics, for the manifest.

        Raises:
            OSError: The disk is full, or fails.

        """
        if self._state != "open":
            return
        self._file.close()
        self._state, self._rows, self._statistics = "closed", rows, statistics

    def send(self, start_upload: Callable[[], OutputFile]) -> None:
        """Upload the closed file and remove it from disk. Repeatable.

        Args:
            start_upload: Starts the upload of this file's key.

        Raises:
            DidNotHappen: A part could not be uploaded; the upload has been aborted.
            OSError: The file on disk is shorter or longer than the bytes written; the upload has been
                aborted.

        """
        if self.pending is not None:
            return
        self._upload = start_upload()
        with self._upload as upload, self._path.open("rb") as content:
            self._check_whole(content)
            upload.send(self._length, partial(_view, content))
            upload.close(self._rows, self._statistics)
            upload.settle()
        self.pending = self._upload.pending
        self._path.unlink()

    def abort(self) -> None:
        """Remove the file from disk, and abort its upload if there is one. Repeatable.

        Raises:
            S3CommitError: The upload could not be aborted.
            OSError: The local disk failed.

        """
        if self._state == "aborted":
            return
        self._state = "aborted"
        steps: list[Callable[[], object]] = [self._file.close, partial(self._path.unlink, missing_ok=True)]
        if self._upload is not None:
            steps.append(self._upload.abort)
        run_all(steps, *self._of_abort)

    @property
    def _of_abort(self) -> tuple[str, str]:
        return f"removing {self._path}, written for {self.uri}", "the file may stay on disk"

    def _check_whole(self, content: IO[bytes]) -> None:
        size = os.fstat(content.fileno()).st_size
        if size != self._length:
            raise OSError(
                f"{self._path} has {size} bytes of the {self._length} written for {self.uri}: is the disk"
                " full, or was the file changed? Nothing of it is committed; try the task again"
            )


def _view(content: IO[bytes], start: int, size: int) -> memoryview:
    """Return a range of a file without reading it into memory.

    Args:
        content: The open file.
        start: Offset of the first byte.
        size: Number of bytes.

    """
    # A mapping for each range, which ends with its view: one of the whole file would keep its pages mapped.
    before = start % mmap.ALLOCATIONGRANULARITY
    mapped = mmap.mmap(content.fileno(), before + size, access=mmap.ACCESS_READ, offset=start - before)
    return memoryview(mapped)[before:]

"""The files of one task attempt, uploaded while they are written or kept on local disk until it commits.

With the committer ``magic``, or if asked to, a file is uploaded while it is written. With ``directory`` and
``partitioned`` it stays on local disk: as with their namesakes in Hadoop, a task that fails before its commit
has sent nothing, but all of its output needs space on disk.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import IO

from airflow_s3commit._causes import run_all
from airflow_s3commit.exceptions import DuplicateOutput, JobClosed
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.pending_uploads import Tracker
from airflow_s3commit.protocol.model.columns import Columns
from airflow_s3commit.protocol.model.destination import join_uri
from airflow_s3commit.protocol.model.job import JobOptions
from airflow_s3commit.protocol.model.pendingset import PendingUpload, TaskExtra
from airflow_s3commit.protocol.writer.multipart import OutputFile, PartSender, WritableFile
from airflow_s3commit.store.execute import in_threads


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


#: Default number of concurrent requests of a task attempt.
UPLOAD_THREADS = 8

#: Local files to upload concurrently.
_LOCAL_FILES_AT_ONCE = 4


class AttemptFiles:
    """The files of one task attempt, in the order in which they were opened.

    Args:
        extra: The ids of the task attempt.
        part_bytes: Size of a file's first parts, in bytes.
        buffered_bytes: Bytes of parts in flight above which a write blocks.
        threads: Number of concurrent requests; 0 sends them in the writer's thread.
        min_part_bytes: The store's minimum part size, in bytes.
        local_dir: Directory of local files; None for the system's temporary directory.
        streamed: Whether to upload files while they are written with any committer.
    """

    def __init__(
        self,
        context: JobContext,
        options: JobOptions,
        extra: TaskExtra,
        *,
        part_bytes: int,
        buffered_bytes: int,
        threads: int,
        min_part_bytes: int,
        local_dir: str | None,
        streamed: bool = False,
    ) -> None:
        self._context = context
        self._extra = extra
        #: Whether files are uploaded while they are written.
        self.are_streamed = streamed or options.committer == "magic"
        self._headers = options.object_options.of_data or None
        self._tracker = Tracker(context, options, extra)
        self._part_bytes = part_bytes
        self._min_part_bytes = min_part_bytes
        self._threads = threads
        self._sender = PartSender(threads, buffered_bytes)
        self._local_dir = local_dir
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._files: dict[str, OutputFile | LocalFile] = {}
        self._content_types: dict[str, str] = {}
        self._lock = threading.Lock()
        self._are_aborted = False

    def __len__(self) -> int:
        return len(self._files)

    def open(self, key: str, content_type: str) -> OutputFile | LocalFile:
        """Open a new file for writing.

        Args:
            key: Key of the final object.
            content_type: Media type of the object.

        Raises:
            DuplicateOutput: The attempt has opened a file with this key already.
            DidNotHappen: The upload could not be started.
        """
        with self._lock:
            if key in self._files:
                task, uri = self._extra.task, join_uri(self._context.bucket, key)
                raise DuplicateOutput(
                    f"attempt {self._extra.attempt} of task {task} opens {uri} twice; give each file a path"
                    " of its own"
                )
            number = len(self._files)
            self._content_types[key] = content_type
            start = self._start_upload if self.are_streamed else self._start_local
            self._files[key] = file = start(number, key)
        return file

    def unfinished(self) -> str | None:
        """Return the key of a file that is open, failed or aborted; None if all files are closed."""
        return next((key for key, file in self._files.items() if not file.whole), None)

    def settle(self) -> None:
        """Wait until all parts of the closed files are uploaded. Repeatable.

        Raises:
            DidNotHappen: A part could not be uploaded.
        """
        for file in self._files.values():
            if isinstance(file, OutputFile):
                file.settle()

    def send_local(self) -> None:
        """Upload the local files, several at once. Repeatable: uploads only files that are not uploaded yet.

        Raises:
            DidNotHappen: A file could not be uploaded.
            OSError: A file on disk is shorter or longer than the bytes written to it.
        """
        local = [(n, file) for n, file in enumerate(self._files.values()) if isinstance(file, LocalFile)]
        threads = min(self._threads, _LOCAL_FILES_AT_ONCE)
        for _ in in_threads(lambda numbered: self._send_local(*numbered), local, threads):
            pass

    def pending(self) -> list[PendingUpload]:
        """Return the finished uploads, in the order in which the files were opened."""
        return [file.pending for file in self._files.values() if file.pending is not None]

    def abort(self) -> None:
        """Abort every file and its upload; tries all of them before it raises an error. Repeatable.

        Raises:
            S3CommitError: An upload could not be aborted.
            OSError: The local disk failed.
        """
        files = list(self._files.values())
        run_all([file.abort for file in files], "aborting another file", "its upload may stay pending")
        self._are_aborted = True

    def records_of_aborted(self) -> Collection[str]:
        """Return the keys of the uploads' records, or none: while one may be pending, they are needed."""
        return self._tracker.written if self._are_aborted else ()

    def release(self) -> None:
        """Stop the threads, and remove the local directory. Repeatable."""
        self._sender.close()
        if self._directory is not None:
            self._directory.cleanup()

    def _start_local(self, number: int, key: str) -> LocalFile:
        if self._directory is None:
            prefix = f"s3commit-{self._context.job_id}-"
            self._directory = tempfile.TemporaryDirectory(prefix=prefix, dir=self._local_dir)
        path = Path(self._directory.name, f"{number:06d}")
        return LocalFile(path, join_uri(self._context.bucket, key), key)

    def _send_local(self, number: int, file: LocalFile) -> None:
        file.send(lambda: self._start_upload(number, file.key, in_background=False))

    def _start_upload(self, number: int, key: str, *, in_background: bool = True) -> OutputFile:
        return OutputFile(
            self._context,
            key,
            self._sender,
            part_bytes=self._part_bytes,
            content_type=self._content_types[key],
            headers=self._headers,
            min_part_bytes=self._min_part_bytes,
            in_background=in_background,
            on_change=lambda pending: self._tracker.track(number, pending),
        )

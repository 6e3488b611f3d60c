"""The files of one task attempt.

With the committer ``magic`` a file is uploaded while it is written; with the others it is on local disk
until its attempt commits.
"""

from __future__ import annotations

import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from airflow_s3commit._causes import run_all
from airflow_s3commit.exceptions import DuplicateOutput
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.pending_index import Tracker
from airflow_s3commit.protocol.model.destination import join_uri
from airflow_s3commit.protocol.model.job import JobOptions
from airflow_s3commit.protocol.model.pendingset import PendingUpload, TaskExtra
from airflow_s3commit.protocol.writer.local import LocalFile
from airflow_s3commit.protocol.writer.multipart import OutputFile, PartSender

#: Default number of concurrent requests of a task attempt.
UPLOAD_THREADS = 8

#: Local files to upload concurrently.
_LOCAL_FILES_AT_ONCE = 4


class AttemptFiles:
    """The files of one task attempt, in the order in which they were opened.

    Args:
        context: The job.
        options: The job's options.
        extra: Which task attempt.
        part_bytes: Bytes of the first parts of a file.
        buffered_bytes: Bytes of parts in flight before a write blocks.
        threads: Concurrent requests; 0 sends in the writer's thread.
        min_part_bytes: The store's minimum part size, in bytes.
        local_dir: Directory of local files; None for the temporary directory.

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
    ) -> None:
        self._context = context
        self._extra = extra
        self._is_magic = options.committer == "magic"
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

    def __len__(self) -> int:
        return len(self._files)

    def open(self, key: str, content_type: str) -> OutputFile | LocalFile:
        """Begin the file of a key.

        Raises:
            DuplicateOutput: There is one already.
            DidNotHappen: Its upload could not be started.

        """
        with self._lock:
            if key in self._files:
                task, uri = self._extra.task, join_uri(self._context.bucket, key)
                raise DuplicateOutput(f"attempt {self._extra.attempt} of task {task} opens {uri} twice")
            number = len(self._files)
            self._content_types[key] = content_type
            start = self._start_upload if self._is_magic else self._start_local
            self._files[key] = file = start(number, key)
        return file

    def unfinished(self) -> str | None:
        """Return the key of a file that was not closed, or failed; None if all are whole."""
        return next((key for key, file in self._files.items() if not file.whole), None)

    def has_local(self) -> bool:
        """Tell whether any lie on local disk."""
        return self._directory is not None

    def settle(self) -> None:
        """Wait for the parts of files that are uploaded in the background.

        Raises:
            DidNotHappen: One could not be uploaded.

        """
        for file in self._files.values():
            if isinstance(file, OutputFile):
                file.settle()

    def send_local(self) -> None:
        """Upload the local files, several at once.

        Raises:
            DidNotHappen: One could not be uploaded.
            OSError: The disk lost some of one.

        """
        local = [(n, file) for n, file in enumerate(self._files.values()) if isinstance(file, LocalFile)]
        threads = min(self._threads, _LOCAL_FILES_AT_ONCE)
        if not threads:
            for numbered_file in local:
                self._send_local(*numbered_file)
        elif local:
            with ThreadPoolExecutor(threads, thread_name_prefix="s3commit-file") as pool:
                list(pool.map(lambda numbered_file: self._send_local(*numbered_file), local))

    def pending(self) -> list[PendingUpload]:
        """Return the uploads of the files that are settled, or sent."""
        return [file.pending for file in self._files.values() if file.pending is not None]

    def abort(self) -> None:
        """Abort every file and its upload; tries all of them before it raises an error. Repeatable.

        Raises:
            S3CommitError: An upload could not be discarded.
            OSError: The local disk failed.

        """
        files = list(self._files.values())
        run_all([file.abort for file in files], "discarding another file", "its upload may stay pending")

    def release(self) -> None:
        """End the threads, and remove the local directory. Repeatable."""
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
            before_start=lambda: self._tracker.intend(number, key),
            on_change=lambda pending: self._tracker.track(number, pending),
        )

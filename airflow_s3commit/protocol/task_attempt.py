"""One writer inside a stage attempt: it uploads files, and commits them as one pendingset or aborts them.

A task attempt never makes anything visible. Its `TaskAttempt.commit` only writes down what it uploaded; the
attempt counts when whoever seals the stage says so.
"""

from __future__ import annotations

import logging
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_s3commit.exceptions import DuplicateOutput, InvalidRecord, JobClosed, S3CommitError
from airflow_s3commit.protocol import journal
from airflow_s3commit.protocol.context import JobContext, naming
from airflow_s3commit.protocol.destination import check_relative_path, join_uri
from airflow_s3commit.protocol.layout import unique_name
from airflow_s3commit.protocol.local_file import LocalFile
from airflow_s3commit.protocol.magic_paths import final_path, is_magic_path
from airflow_s3commit.protocol.pendingset import PendingSet, PendingUpload, TaskExtra
from airflow_s3commit.protocol.records import CommittedTask, JobOptions
from airflow_s3commit.protocol.state import require_state
from airflow_s3commit.protocol.tracking import Tracker
from airflow_s3commit.protocol.upload import OutputFile, PartSender
from airflow_s3commit.store.base import MIN_PART_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_s3commit.tables.write import WrittenTable

__all__ = ["UPLOAD_THREADS", "TaskAttempt"]

#: Requests of a task attempt on their way at once, by default. Most are short: small files begin and end.
UPLOAD_THREADS = 8

#: Files on local disk that are read and sent at once; each has a part in memory.
_LOCAL_FILES_AT_ONCE = 4

logger = logging.getLogger(__name__)


class TaskAttempt:
    """One attempt of one task; use it in a ``with`` block, which aborts it unless it was committed.

    Args:
        context: The job.
        options: The job's options.
        extra: Which stage attempt, task and attempt this is, and a nonce.
        part_bytes: Size of the first parts of a file, in bytes.
        buffered_bytes: Bytes of parts that may be on their way before a writer waits.
        threads: Uploads begun and parts sent at once; 0 does so in the writer's own thread.
        min_part_bytes: The store's least size of a part.
        local_dir: Where the staging committers write; the machine's temporary directory by default.

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
        min_part_bytes: int = MIN_PART_BYTES,
        local_dir: str | None = None,
    ) -> None:
        self._context = context
        self._options = options
        self._extra = extra
        self._part_bytes = part_bytes
        self._min_part_bytes = min_part_bytes
        self._sender = PartSender(threads, buffered_bytes)
        self._tracker = Tracker(context, options, extra)
        self._files: dict[str, OutputFile | LocalFile] = {}
        self._content_types: dict[str, str] = {}
        self._file_numbers: dict[str, int] = {}
        self._threads = threads
        self._local_dir = local_dir
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._checked = False
        self._written = False
        self._ended: str | None = None
        self._committed: CommittedTask | None = None
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """The attempt, for messages."""
        extra = self._extra
        return f"task {extra.task} attempt {extra.attempt} of stage {extra.stage}-{extra.stage_attempt}"

    @property
    def job_id(self) -> str:
        """The job's id."""
        return self._context.job_id

    def open(
        self, relative_path: str, *, content_type: str = "application/octet-stream"
    ) -> OutputFile | LocalFile:
        """Start a file at a path below the destination; its directory is its partition.

        With the committer ``magic`` its upload starts at once, in the background; with the others it is
        written to local disk and uploaded by `commit`.

        With unique file names the job id is put before the first dot of its last element. The first file
        of an attempt asks whether the job still takes output. With the committer ``magic`` a path in a magic
        directory (``__magic_job-…/…``) stands for its final path, by the rules of `magic_paths`.

        Raises:
            InvalidRecord: The path could leave the destination, is hidden from readers, or is in a magic
                directory and the committer is not ``magic``.
            DuplicateOutput: This attempt has that file already.
            JobClosed: The job, or this attempt, takes no more output.

        """
        relative_path = self._final_path(relative_path)
        check_relative_path(relative_path)
        self._require_running()
        self._require_open_job()
        if self._options.unique_filenames:
            relative_path = unique_name(relative_path, self._context.job_id)
        key = self._context.layout.destination.key(relative_path)
        self._context.layout.destination.check_data_key(self._context.bucket, key)
        with self._lock:
            if key in self._files:
                raise DuplicateOutput(f"{self.name} opens {key} twice")
            self._files[key] = file = self._start(key, content_type)
        return file

    def write_table(
        self,
        data: Any,
        *,
        partition_by: Sequence[str] = (),
        format: str | None = None,  # noqa: A002 - as Spark calls it
        options: Mapping[str, str] | None = None,
    ) -> WrittenTable:
        """Write a table to files below the destination, named and laid out as the Spark door's.

        Before: the attempt runs. After: the table's files are closed, and wait for `commit`. It may be
        called again, for more rows: they go to more files. Needs pyarrow.

        Args:
            data: A table of pyarrow, pandas or polars, a DuckDB relation, or a reader of Arrow batches.
            partition_by: Partition columns, outermost first.
            format: ``parquet`` (the default), ``orc``, ``csv`` or ``json``.
            options: Options of the Spark door by the same names, see
                `airflow_s3commit.tables.options.TABLE_OPTIONS`.

        Raises:
            ValueError: An option or a column cannot be honoured; the message names it.
            TypeError: The data is no table.
            JobClosed: The job, or this attempt, takes no more output.
            DidNotHappen: The store refused an upload.

        """
        # The protocol works where pyarrow is missing.
        from airflow_s3commit.tables.plain import write_table  # noqa: PLC0415
        from airflow_s3commit.tables.write import file_stem  # noqa: PLC0415

        stem = file_stem(self._extra.task, self._extra.stage, self._context.job_id)
        numbers = self._file_numbers
        return write_table(
            self, data, stem=stem, numbers=numbers, partition_by=partition_by, format=format, options=options
        )

    def commit(self) -> CommittedTask:
        """Write the pendingset of all files, and return where it is.

        Before: every file is closed. After: the pendingset stands, and the job was still open when it did.
        Run again: the same pendingset, the same answer. A task without output commits an empty one.

        Raises:
            JobClosed: A file is still open; or the job ended meanwhile, in which case nothing of this
                attempt stays pending.
            DidNotHappen: A part could not be uploaded.

        """
        if self._committed is not None:
            return self._committed
        self._require_running()
        unfinished = [file.key for file in self._files.values() if not file.whole]
        if unfinished:
            raise JobClosed(f"{self.name} has files that were not closed, among them {unfinished[0]}")
        with naming(self._context, f"commit of {self.name}"):
            self._require_open_job()
            self._settle_uploads()
            self._send_local_files()
            committed = self._write_pendingset()
            self._require_job_still_open()
        self._committed, self._ended = committed, "committed"
        self._release()
        logger.info("%s: %d files, %d bytes pending", self.name, committed.files, committed.bytes)
        return committed

    def abort(self) -> None:
        """Discard every upload of this attempt, and its pendingset if it wrote one. Repeatable.

        Raises:
            S3CommitError: Some could not be discarded; the job's own abort will find them.

        """
        if self._ended == "aborted":
            return
        self._ended = "aborted"
        errors = []
        for file in self._files.values():
            try:
                file.abort()
            except S3CommitError as error:
                errors.append(error)
        self._release()
        self._withdraw()
        logger.info("%s: aborted %d uploads", self.name, len(self._files))
        if errors:
            raise errors[0]

    def __enter__(self) -> TaskAttempt:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._ended is not None:
            return
        try:
            self.abort()
        except S3CommitError:
            if kind is None:
                raise
            logger.warning("%s: could not abort all uploads; the job's abort will", self.name, exc_info=True)

    @property
    def _pendingset_key(self) -> str:
        extra = self._extra
        return self._context.layout.pendingset(extra.stage, extra.stage_attempt, extra.task, extra.attempt)

    def _final_path(self, path: str) -> str:
        if is_magic_path(path) and self._options.committer != "magic":
            raise InvalidRecord(
                f"path {path!r} is in a magic directory, which only the committer magic knows, not"
                f" {self._options.committer}; give {self.name} the path below the destination"
            )
        return final_path(path)

    def _start(self, key: str, content_type: str) -> OutputFile | LocalFile:
        number = len(self._files)
        if self._options.committer == "magic":
            return self._start_upload(number, key, content_type)
        self._content_types[key] = content_type
        if self._directory is None:
            prefix = f"s3commit-{self._context.job_id}-"
            self._directory = tempfile.TemporaryDirectory(prefix=prefix, dir=self._local_dir)
        path = Path(self._directory.name, f"{number:06d}")
        return LocalFile(path, join_uri(self._context.bucket, key), key)

    def _start_upload(
        self, number: int, key: str, content_type: str, *, in_background: bool = True
    ) -> OutputFile:
        return OutputFile(
            self._context,
            key,
            self._sender,
            part_bytes=self._part_bytes,
            content_type=content_type,
            min_part_bytes=self._min_part_bytes,
            in_background=in_background,
            before_start=lambda: self._tracker.intend(number, key),
            on_change=lambda pending: self._tracker.track(number, pending),
        )

    def _settle_uploads(self) -> None:
        """Wait for the parts of files that went up while others were written."""
        for file in self._files.values():
            if isinstance(file, OutputFile):
                file.settle()

    def _send_local_files(self) -> None:
        """Upload what was written to local disk, several files at once."""
        numbered = enumerate(self._files.values())
        local = [(number, file) for number, file in numbered if isinstance(file, LocalFile)]
        if local:
            # The first file asked long ago; nothing is sent for a job that has ended since.
            require_state(self._context, "open")

        def send(numbered_file: tuple[int, LocalFile]) -> None:
            number, file = numbered_file
            content_type = self._content_types[file.key]
            file.send(lambda: self._start_upload(number, file.key, content_type, in_background=False))

        if not self._threads:
            for numbered_file in local:
                send(numbered_file)
        elif local:
            threads = min(self._threads, _LOCAL_FILES_AT_ONCE)
            with ThreadPoolExecutor(threads, thread_name_prefix="s3commit-file") as pool:
                list(pool.map(send, local))

    def _release(self) -> None:
        self._sender.close()
        if self._directory is not None:
            self._directory.cleanup()

    def _require_running(self) -> None:
        if self._ended is not None:
            raise JobClosed(f"{self.name} is {self._ended}")

    def _require_open_job(self) -> None:
        if not self._checked:
            require_state(self._context, "open")
            self._checked = True

    def _require_job_still_open(self) -> None:
        # An abort moves the state first and lists uploads afterwards; this looks at the state after writing.
        # So of an abort and a task commit at the same time, at least one sees the other.
        try:
            require_state(self._context, "open")
        except S3CommitError:
            self.abort()
            raise

    def _withdraw(self) -> None:
        """Remove the pendingset if it is this process's own: another one may have committed under the ids."""
        if not self._written:
            return
        store, bucket, key = self._context.store, self._context.staging_bucket, self._pendingset_key
        standing = journal.find(store, bucket, key, PendingSet)
        extra = standing.record.s3commit if standing is not None else None
        if extra is not None and extra.nonce == self._extra.nonce:
            store.delete(bucket, key)

    def _write_pendingset(self) -> CommittedTask:
        pending = [file.pending for file in self._files.values() if file.pending is not None]
        record = PendingSet(jobId=self._context.job_id, commits=pending, s3commit=self._extra)
        self._written = True
        stored = journal.create(
            self._context.store,
            self._context.staging_bucket,
            self._pendingset_key,
            record,
            conditional=self._context.conditional,
        )
        if stored.record.s3commit is None or stored.record.s3commit.nonce != self._extra.nonce:
            raise DuplicateOutput(f"{self.name} of {self._context.name} was committed by another process")
        return _committed(self._extra, self._context.staging_uri(self._pendingset_key), stored.etag, pending)


def _committed(extra: TaskExtra, location: str, etag: str, pending: list[PendingUpload]) -> CommittedTask:
    rows = [upload.s3commit.rows if upload.s3commit else None for upload in pending]
    known = [count for count in rows if count is not None]
    return CommittedTask(
        stage=extra.stage,
        stage_attempt=extra.stage_attempt,
        task=extra.task,
        attempt=extra.attempt,
        location=location,
        etag=etag,
        files=len(pending),
        bytes=sum(upload.length for upload in pending),
        rows=sum(known) if len(known) == len(rows) else None,
    )

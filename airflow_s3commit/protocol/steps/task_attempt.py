"""A task attempt: uploads files, then commits them as one pendingset or aborts them.

An attempt makes nothing visible: `TaskAttempt.commit` records uploads; the stage's seal decides if it counts.
"""

from __future__ import annotations

import logging
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from airflow_s3commit._causes import noting, run_all, undoing
from airflow_s3commit.exceptions import DuplicateOutput, InvalidOption, JobClosed
from airflow_s3commit.protocol.metadata.context import JobContext, find_record, naming
from airflow_s3commit.protocol.metadata.removal import delete_records
from airflow_s3commit.protocol.model.codec import MAX_SCHEMAS, encode
from airflow_s3commit.protocol.model.delta import UNKNOWN_COLUMNS, columns_of
from airflow_s3commit.protocol.model.destination import check_relative_path, join_uri
from airflow_s3commit.protocol.model.job import JobRecord
from airflow_s3commit.protocol.model.layout import PENDING_SUFFIX, PENDINGSET_SUFFIX, unique_name
from airflow_s3commit.protocol.model.pendingset import PendingSet, PendingUpload, TaskExtra
from airflow_s3commit.protocol.model.sealed_job import CommittedTask
from airflow_s3commit.protocol.steps.log import find_end
from airflow_s3commit.protocol.steps.output_file import OutputFile, PartSender
from airflow_s3commit.protocol.steps.seal import commit_attempt
from airflow_s3commit.protocol.steps.setup import load_job, refusing_ended
from airflow_s3commit.store.execute import in_threads

if TYPE_CHECKING:
    from airflow_s3commit.tables.write import WrittenTable

logger = logging.getLogger(__name__)


#: Default number of concurrent requests of a task attempt.
UPLOAD_THREADS = 8

#: Local files to upload concurrently.
_LOCAL_FILES_AT_ONCE = 4


class TaskAttempt:
    """One attempt of one task. Use it in a ``with`` block, which aborts it unless it was committed.

    With the committer ``magic``, or if ``streamed``, a file is uploaded while it is written. With
    ``directory`` and ``partitioned`` it stays on local disk: as with their namesakes in Hadoop, a task that
    fails before its commit has sent nothing, but all of its output needs space on disk.

    For the arguments see `Job.task_attempt`.
    """

    def __init__(
        self,
        context: JobContext,
        job: JobRecord,
        extra: TaskExtra,
        *,
        part_bytes: int,
        buffered_bytes: int,
        threads: int,
        min_part_bytes: int,
        local_dir: str | None,
        streamed: bool = False,
    ) -> None:
        self._context, self._options, self._extra = context, job.options, extra
        self._publishes = job.publishes
        self._key = context.layout.pendingset(extra.stage, extra.stage_attempt, extra.task, extra.attempt)
        self._part_bytes, self._min_part_bytes = part_bytes, min_part_bytes
        self._threads, self._local_dir = threads, local_dir
        self._is_streamed = streamed or job.options.committer == "magic"
        self._sender = PartSender(threads, buffered_bytes)
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        #: The files by key, in the order in which they were opened, and the keys of their uploads' records.
        self._files: dict[str, OutputFile] = {}
        self._records: set[str] = set()
        self._lock = threading.Lock()
        self._file_numbers: dict[str, int] = {}
        self._schemas: dict[str, None] = {}
        self._files_of_schemas = 0
        self._checked = False
        self._written = False
        self._has_aborted_files = False
        self._ended: str | None = None
        self._committed: CommittedTask | None = None

    @property
    def name(self) -> str:
        """The attempt's ids as text, for messages."""
        extra = self._extra
        return f"task {extra.task} attempt {extra.attempt} of stage {extra.stage}-{extra.stage_attempt}"

    @property
    def job_id(self) -> str:
        """The job's id."""
        return self._context.job_id

    def open(self, relative_path: str, *, content_type: str = "application/octet-stream") -> OutputFile:
        """Open a new file for writing, at a path below the destination; its directory is its partition.

        The name gets the job's id before its first dot. The first upload checks that the job takes output.

        Args:
            relative_path: Path below the destination, such as ``dt=2013-01-01/part-0.parquet``.
            content_type: Media type of the object.

        Raises:
            InvalidPath: The path may leave the destination, or is hidden from readers.
            DuplicateOutput: This attempt has opened that path already.
            JobClosed: The job, or this attempt, takes no more output.
            DidNotHappen: The upload could not be started.
        """
        check_relative_path(relative_path)
        self._require_running()
        if self._is_streamed:
            self._require_open_job()
        context, extra = self._context, self._extra
        key = context.layout.destination.key(unique_name(relative_path, context.job_id))
        context.layout.destination.check_data_key(context.bucket, key)
        with self._lock:
            if key in self._files:
                raise DuplicateOutput(
                    f"attempt {extra.attempt} of task {extra.task} opens {join_uri(context.bucket, key)}"
                    " twice; give each file a path of its own"
                )
            number = len(self._files)
            self._files[key] = file = OutputFile(
                context,
                key,
                self._sender,
                part_bytes=self._part_bytes,
                content_type=content_type,
                headers=self._options.object_options.of_data or None,
                min_part_bytes=self._min_part_bytes,
                path=None if self._is_streamed else self._local_path(number),
                on_change=partial(self._track, number),
            )
        return file

    def write_table(
        self,
        data: Any,
        *,
        partition_by: Sequence[str] = (),
        format: str | None = None,  # noqa: A002 - as Spark calls it
        options: Mapping[str, str] | None = None,
    ) -> WrittenTable:
        """Write a table to files below the destination, with names and layout as in writes by Spark.

        Before: the attempt is neither committed nor aborted. After: the table's files are closed, and wait
        for `commit`. Another call writes its rows to further files. If an error leaves a part of the table,
        the attempt cannot be committed. It needs pyarrow.

        Args:
            data: A table of pyarrow, pandas or polars, a DuckDB relation, or a reader of Arrow batches.
            partition_by: Partition columns, outermost first.
            format: ``parquet`` (the default), ``orc``, ``csv`` or ``json``.
            options: Values by the names of `airflow_s3commit.tables.options.TABLE_OPTIONS`, as for Spark.

        Raises:
            InvalidOption: An option is unknown, malformed, or does not apply to the format.
            ValueError: The format, or a published table, cannot hold a column or a value, or a partition
                column is missing; the message names the column.
            TypeError: The data is not a table.
            JobClosed: The job, or this attempt, takes no more output.
            DidNotHappen: The store refused an upload.
        """
        # The protocol works without pyarrow.
        from airflow_s3commit.tables.write import file_stem, write_table  # noqa: PLC0415

        stem = file_stem(self._extra.task, self._extra.stage, self._context.job_id)
        used = self._file_numbers
        opened = len(self._files)
        # With an aborted file the attempt cannot be committed, so a part of a table never is.
        with undoing(lambda: self._abort_files(opened), *self._of_abort):
            written = write_table(
                self, data, stem=stem, numbers=used, partition_by=partition_by, format=format, options=options
            )
        self.describe(written.files, written.schema)
        return written

    def describe(self, files: int, schema: str | None) -> None:
        """Record the schema of files that were written with `open`; `write_table` does it by itself.

        Args:
            files: How many files have the schema; 0 if there were no rows.
            schema: The schema's text (`airflow_s3commit.tables.columns`); None if it is unknown.
        """
        if schema is not None:
            self.check_schema(schema)
            self._schemas[schema] = None
            self._files_of_schemas += files

    def check_schema(self, schema: str | None) -> None:
        """Raise `InvalidOption` if the job publishes its table and Delta has no such columns.

        Call it before a file is opened, to refuse the file before any upload. None is an unknown schema.
        """
        if self._publishes:
            owner = self._context.name
            if schema is None:
                raise InvalidOption(f"the columns of files of {owner} are unknown: {UNKNOWN_COLUMNS}")
            columns_of({schema: owner})

    def commit(self) -> CommittedTask:
        """Write the pendingset of all files, and return its location and totals.

        Before: every file is closed. After: the pendingset exists, and the job was still open after the
        write. Repeatable, with the same result. A task without output commits an empty pendingset.

        Raises:
            JobClosed: A file is open or was aborted; or the job has ended, and the uploads were aborted.
            DuplicateOutput: Another process has committed an attempt with the same ids.
            DidNotHappen: A part could not be uploaded.
            OSError: A file on local disk is shorter or longer than the bytes written; abort the attempt.
        """
        if self._committed is not None:
            return self._committed
        self._require_running()
        unfinished = next((key for key, file in self._files.items() if not file.whole), None)
        if unfinished is not None:
            raise JobClosed(
                f"{self.name} has files that were not closed, or whose write failed, among them {unfinished}:"
                " close every file before commit(); after a failure begin another attempt"
            )
        with naming(self._context, f"commit of {self.name}"), refusing_ended(self._context):
            self._require_open_job()
            at_once = 0 if self._is_streamed else min(self._threads, _LOCAL_FILES_AT_ONCE)
            for _ in in_threads(OutputFile.settle, self._files.values(), at_once):
                pass
            committed = self._write_pendingset()
        self._committed, self._ended = committed, "committed"
        self._release()
        logger.info("%s: %d files, %d bytes pending", self.name, committed.files, committed.bytes)
        return committed

    def abort(self) -> None:
        """Abort every upload of this attempt, and delete its pendingset if it wrote one. Repeatable.

        Raises:
            S3CommitError: An upload could not be aborted; the job's commit or abort will abort it.
            OSError: The local disk failed; the uploads were aborted all the same.
        """
        if self._ended == "aborted":
            return
        self._ended = "aborted"
        run_all([self._abort_files, self._release, self._withdraw], *self._of_abort)
        logger.info("%s: aborted %d uploads", self.name, len(self._files))

    def __enter__(self) -> TaskAttempt:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if self._ended is not None:
            return
        if error is None:
            self.abort()
            return
        with noting(error, *self._of_abort):
            self.abort()

    @property
    def _of_abort(self) -> tuple[str, str]:
        """The note on an abort that fails after another error: the failed step, and its consequence."""
        return (
            f"aborting {self.name} of {self._context.name}",
            "its output is not visible; the job's commit or abort aborts its pending uploads",
        )

    def _require_running(self) -> None:
        if self._ended is not None:
            raise JobClosed(f"{self.name} is {self._ended}")

    def _require_open_job(self) -> None:
        if not self._checked:
            load_job(self._context)
            self._checked = True

    def _local_path(self, number: int) -> Path:
        if self._directory is None:
            prefix = f"s3commit-{self._context.job_id}-"
            self._directory = tempfile.TemporaryDirectory(prefix=prefix, dir=self._local_dir)
        return Path(self._directory.name, f"{number:06d}")

    def _track(self, number: int, pending: PendingUpload) -> None:
        """Write the record of an upload that has started, or is whole, if the job's options want one."""
        if self._options.track_pending == "s3":
            directory = self._key.removesuffix(PENDINGSET_SUFFIX)
            key = f"{directory}/{number:06d}{PENDING_SUFFIX}"
            self._records.add(key)
            body = encode(pending.in_format(self._options.pendingset_format))
            self._context.store.put(self._context.staging_bucket, key, body)

    def _abort_files(self, first: int = 0) -> None:
        """Abort files from a number on, and their uploads; tries all of them before it raises an error."""
        files = list(self._files.values())[first:]
        run_all([file.abort for file in files], "aborting another file", "its upload may stay pending")
        self._has_aborted_files = self._ended == "aborted"

    def _release(self) -> None:
        """Stop the threads, and remove the local directory. Repeatable."""
        self._sender.close()
        if self._directory is not None:
            self._directory.cleanup()

    def _withdraw(self) -> None:
        """Delete the pendingset if this process wrote it, and the records of the aborted uploads.

        Another process may have used the same ids. If this one wrote no pendingset, the records may belong to
        the other: they are left to the end of the job, unless the job has ended.
        """
        # While one of the uploads may be pending, all of their records are needed.
        leftovers = self._records if self._has_aborted_files else ()
        if self._written:
            context = self._context
            existing = find_record(context.store, context.staging_bucket, self._key, PendingSet)
            extra = existing.record.s3commit if existing is not None else None
            if extra is not None and extra.nonce == self._extra.nonce:
                delete_records(context, [*leftovers, self._key])
        elif leftovers and find_end(self._context) is not None:
            delete_records(self._context, leftovers)

    def _write_pendingset(self) -> CommittedTask:
        pending = (file.pending for file in self._files.values() if file.pending is not None)
        commits = [upload.in_format(self._options.pendingset_format) for upload in pending]
        # Readers go by the schemas only if they are those of all files.
        are_known = self._files_of_schemas == len(commits) and len(self._schemas) <= MAX_SCHEMAS
        extra = structs.replace(self._extra, schemas=list(self._schemas) if are_known else [])
        self._written = True
        return commit_attempt(self._context, extra, commits, undo=self.abort)

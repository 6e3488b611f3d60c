"""A file of a task attempt: uploaded while it is written, or kept on local disk until the attempt commits.

Its multipart upload stays pending. Background threads start uploads and send parts while the writer
continues, so that opening forty files does not wait forty times for the store. Memory is bounded by the bytes
in flight. Part sizes grow with the part number: 10,000 parts hold almost 2 TiB if the first ones have 32 MiB.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO, Self

from airflow_s3commit._causes import noting, run_all, undoing
from airflow_s3commit.exceptions import JobClosed, S3CommitError, StoreRejected
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.removal import abort_upload, object_metadata
from airflow_s3commit.protocol.model.destination import hadoop_uri, join_uri
from airflow_s3commit.protocol.model.pendingset import PendingUpload, UploadExtra
from airflow_s3commit.protocol.model.sealed_job import Columns
from airflow_s3commit.store.base import MAX_PARTS, MIN_PART_BYTES

#: Number of parts after which the part size doubles.
_PARTS_PER_SIZE = 2_000


class OutputFile:
    """A binary file, written from start to end, that becomes a pending upload once it is closed and settled.

    Leaving a ``with`` block by an exception aborts the file; otherwise it is closed.

    Args:
        part_bytes: Bytes of the first parts, at least 5 MiB (S3's minimum).
        headers: Further headers that describe the object.
        min_part_bytes: The store's minimum part size, in bytes.
        path: Where it is kept on local disk until it is settled; None to upload it while it is written.
        on_change: Called when the upload has started, and when all parts are sent.

    Attributes:
        key: The final key.
        uri: URI of the final object.
        upload: Our own id of the upload.
        pending: The finished upload, once there is one.

    Raises:
        DidNotHappen: The upload did not start. This and the next come here or in `write`, `close`, `settle`.
        OSError: The local disk is full, or fails.
    """

    mode = "wb"

    def __init__(
        self,
        context: JobContext,
        key: str,
        sender: PartSender,
        *,
        part_bytes: int,
        content_type: str = "application/octet-stream",
        headers: Mapping[str, str] | None = None,
        min_part_bytes: int = MIN_PART_BYTES,
        path: Path | None = None,
        on_change: Callable[[PendingUpload], None] = lambda _: None,
    ) -> None:
        self.key = key
        self.uri = join_uri(context.bucket, key)
        self.upload = context.new_id()
        self.pending: PendingUpload | None = None
        self._context = context
        self._sender = sender
        self._part_bytes = max(part_bytes, min_part_bytes)
        self._content_type = content_type
        self._headers = headers
        self._on_change = on_change
        self._state = "open"
        self._length = 0
        self._parts: list[Future[str]] = []
        self._buffer = bytearray()
        self._statistics: tuple[int | None, Columns | None] = (None, None)
        self._path = path
        self._disk: IO[bytes] | None = None
        self._started: Future[str] | None = None
        if path is not None:
            self._disk = path.open("wb")
        else:
            self._started = sender.send(self._start, 0)
            _raise_known_failures(self._started)

    @property
    def closed(self) -> bool:
        """Whether the file was closed or aborted."""
        return self._state != "open"

    @property
    def whole(self) -> bool:
        """Whether the file was closed, and neither failed nor was aborted."""
        return self._state == "closed"

    def writable(self) -> bool:
        """Return True: the file is for writing."""
        return True

    def readable(self) -> bool:
        """Return False: what is pending cannot be read."""
        return False

    def seekable(self) -> bool:
        """Return False: bytes are appended."""
        return False

    def tell(self) -> int:
        """Return the number of bytes written so far."""
        return self._length

    def flush(self) -> None:
        """Do nothing: parts are sent when they are full, or after the file is closed."""

    @property
    def upload_id(self) -> str:
        """The store's id of the upload; waits until the upload has started, and raises if it could not."""
        assert self._started is not None
        return self._started.result()

    @property
    def buffered(self) -> int:
        """Bytes in memory that are not sent as a part yet."""
        return len(self._buffer)

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append bytes, and return how many; `JobClosed` if the file is closed."""
        self._require("open")
        if self._disk is not None:
            written = self._disk.write(data)
            self._length += written
            return written
        view = memoryview(data).cast("B")
        taken = 0
        while taken < len(view):
            # At most one part at a time: one write may be larger than the limit on bytes in flight.
            room = self._next_part_bytes() - len(self._buffer)
            self._buffer += view[taken : taken + room]
            taken += room
            if taken <= len(view):
                self._send()
        self._length += len(view)
        return len(view)

    def send_buffered(self) -> None:
        """Send the buffered bytes as a part, unless they are fewer than S3's minimum part size."""
        if self._state == "open" and len(self._buffer) >= MIN_PART_BYTES:
            self._send()

    def close(self, rows: int | None = None, statistics: Columns | None = None) -> None:
        """Close the file, without waiting until its last parts are uploaded. Repeatable.

        Args:
            rows: Number of its rows. The manifest keeps it, and the ``statistics`` of the columns.

        Raises:
            DidNotHappen: A part could not be uploaded; the upload has been aborted.
        """
        if self._state != "open":
            return
        if self._disk is not None:
            self._disk.close()
        else:
            with undoing(self.abort, *self._of_abort):
                if self._buffer or not self._parts:
                    self._send()
        self._state, self._statistics = "closed", (rows, statistics)
        if self._disk is None and all(part.done() for part in self._parts):
            self.settle()

    def settle(self) -> None:
        """Wait until all parts of the closed file are uploaded; the upload is then complete. Repeatable.

        A file on local disk is sent now, and leaves the disk.

        Raises:
            DidNotHappen: A part could not be uploaded; the upload has been aborted.
            JobClosed: The file is open, or was aborted.
            OSError: The file on disk is not as long as the bytes written; the upload has been aborted.
        """
        self._require("closed")
        if self.pending is not None:
            return
        with undoing(self.abort, *self._of_abort):
            if self._path is not None:
                self._send_from(self._path)
            etags = [part.result() for part in self._parts]
        self.pending = self._record(self.upload_id, etags, self._length, *self._statistics)
        self._on_change(self.pending)
        if self._path is not None:
            self._path.unlink()

    def abort(self) -> None:
        """Abort the upload, whether the file is open or closed. Repeatable.

        Raises:
            S3CommitError: The upload could not be aborted.
        """
        if self._state == "aborted":
            return
        self._state = "aborted"
        self._buffer = bytearray()
        steps: list[Callable[[], object]] = [self._abort_upload]
        if self._disk is not None and self._path is not None:
            steps += [self._disk.close, partial(self._path.unlink, missing_ok=True)]
        run_all(steps, *self._of_abort)

    def _abort_upload(self) -> None:
        if self._started is None:
            return
        # The start first: no part is in flight before the upload has started.
        for request in (self._started, *self._parts):
            request.cancel()
        for part in self._parts:
            if not part.cancelled():
                part.exception()
        if not self._started.cancelled() and self._started.exception() is None:
            abort_upload(self._context, self.key, self.upload_id)

    def _require(self, state: str) -> None:
        if self._state != state:
            raise JobClosed(f"{self.uri} is {self._state}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            self.close()
            return
        with noting(error, *self._of_abort):
            self.abort()

    @property
    def _of_abort(self) -> tuple[str, str]:
        """The note on an abort that fails after another error: the failed step, and its consequence."""
        return (
            f"aborting the upload of {self.uri}",
            "it may stay pending until its job ends, and is not visible",
        )

    def _next_part_bytes(self) -> int:
        return self._part_bytes << (len(self._parts) // _PARTS_PER_SIZE)

    def _start(self) -> str:
        """Start the upload, call the callback, and return the store's id of the upload."""
        context = self._context
        upload_id = context.store.create_upload(
            context.bucket,
            self.key,
            metadata=object_metadata(context.layout.destination, context.job_id, self.upload),
            content_type=self._content_type,
            headers=self._headers,
        )
        with undoing(lambda: abort_upload(context, self.key, upload_id), *self._of_abort):
            self._on_change(self._record(upload_id, [], 0))
        return upload_id

    def _send_from(self, path: Path) -> None:
        """Upload the file on disk, without reading it into memory as a whole."""
        with path.open("rb") as content:
            size = os.fstat(content.fileno()).st_size
            if size != self._length:
                raise OSError(
                    f"{path} has {size} bytes of the {self._length} written for {self.uri}: is the disk full,"
                    " or was the file changed? Nothing of it is committed; try the task again"
                )
            started: Future[str] = Future()
            started.set_result(self._start())
            self._started = started
            sent = 0
            while sent < size or not self._parts:
                length = min(self._next_part_bytes(), size - sent)
                self._send_part(_view(content, sent, length) if length else b"")
                sent += length

    def _send(self) -> None:
        """Send the buffered bytes as a part, without copying them."""
        body, self._buffer = self._buffer, bytearray()
        self._send_part(body)

    def _send_part(self, body: bytes | bytearray | memoryview) -> None:
        number = len(self._parts) + 1
        if number > MAX_PARTS:
            raise StoreRejected(
                f"{self.uri} has more than {MAX_PARTS} parts; write larger parts (part_bytes), or more files",
                code="InvalidArgument",
            )
        assert self._started is not None
        _raise_known_failures(self._started, *self._parts[-8:])
        store, bucket, key = self._context.store, self._context.bucket, self.key
        self._parts.append(
            self._sender.send(lambda: store.upload_part(bucket, key, self.upload_id, number, body), len(body))
        )

    def _record(
        self,
        upload_id: str,
        etags: list[str],
        length: int,
        rows: int | None = None,
        statistics: Columns | None = None,
    ) -> PendingUpload:
        now = self._context.now_ms()
        return PendingUpload(
            uri=hadoop_uri(self._context.bucket, self.key),
            uploadId=upload_id,
            bucket=self._context.bucket,
            destinationKey=self.key,
            created=now,
            saved=now,
            jobId=self._context.job_id,
            etags=list(etags),
            length=length,
            partCount=len(etags),
            s3commit=UploadExtra(
                upload=self.upload, rows=rows, statistics=dict(statistics) if statistics else None
            ),
        )


def _raise_known_failures(*requests: Future[str]) -> None:
    for request in requests:
        if request.done():
            request.result()


class PartSender:
    """Sends parts from a pool of threads, and blocks writers while too many bytes are in flight.

    Requests begin in the order in which they are passed in, so a request may wait for an earlier one. With 0
    threads each part is sent in the writer's own thread.
    """

    def __init__(self, threads: int, buffered_bytes: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="s3commit-part") if threads else None
        self._room = threading.Condition()
        self._limit = buffered_bytes
        self._in_flight = 0

    def send(self, request: Callable[[], str], size: int) -> Future[str]:
        """Send a request with a body of ``size`` bytes; return its future. Blocks while there is no room."""
        if self._pool is None:
            future: Future[str] = Future()
            try:
                future.set_result(request())
            except S3CommitError as error:
                future.set_exception(error)
            return future
        with self._room:
            self._room.wait_for(lambda: self._in_flight == 0 or self._in_flight + size <= self._limit)
            self._in_flight += size
        future = self._pool.submit(request)
        future.add_done_callback(lambda _: self._release(size))
        return future

    def close(self) -> None:
        """Wait for the requests in flight, cancel the others, and stop the threads. Repeatable."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _release(self, size: int) -> None:
        with self._room:
            self._in_flight -= size
            self._room.notify_all()


def _view(content: IO[bytes], start: int, size: int) -> memoryview:
    """Return a range of a file without reading it into memory."""
    # A mapping for each range, which ends with its view: one of the whole file would keep its pages mapped.
    before = start % mmap.ALLOCATIONGRANULARITY
    mapped = mmap.mmap(content.fileno(), before + size, access=mmap.ACCESS_READ, offset=start - before)
    return memoryview(mapped)[before:]

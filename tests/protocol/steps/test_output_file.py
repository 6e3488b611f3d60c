"""Files that go up in parts and stay pending."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from airflow_s3commit.exceptions import JobClosed, OutcomeUnknown, StoreRejected, Unavailable
from airflow_s3commit.protocol.metadata.removal import JOB_METADATA, PLACE_METADATA, UPLOAD_METADATA
from airflow_s3commit.protocol.model.codec import text_digest
from airflow_s3commit.protocol.model.pendingset import PendingUpload
from airflow_s3commit.protocol.model.sealed_job import ColumnStatistics
from airflow_s3commit.protocol.steps.output_file import OutputFile, PartSender
from airflow_s3commit.store.base import MIN_PART_BYTES
from airflow_s3commit.testing import StoreCall
from tests.cases import each
from tests.protocol.building import BUCKET, OURS, Lake, once

KEY = "flights/dt=1/a.parquet"


def opened(lake: Lake, *, part_bytes: int = 1, min_part_bytes: int = 1, threads: int = 0, **more: Any) -> Any:
    """Open a file."""
    sender = PartSender(threads, more.pop("buffered_bytes", 1 << 30))
    return OutputFile(
        lake.context(), KEY, sender, part_bytes=part_bytes, min_part_bytes=min_part_bytes, **more
    )


def parts(lake: Lake, file: OutputFile) -> list[int]:
    """Return the sizes of the parts that have arrived."""
    return [part.size for part in lake.store.list_parts(BUCKET, KEY, file.upload_id)]


def complete(lake: Lake, pending: PendingUpload | None) -> bytes:
    """Complete a pending upload and return the object's content."""
    assert pending is not None
    lake.store.complete_upload(pending.bucket, pending.destinationKey, pending.uploadId, pending.etags)
    return lake.get(KEY)


def test_a_file_becomes_a_pending_upload() -> None:
    """Closing a file leaves one upload with all its parts pending, nothing visible, and a record of it."""
    lake = Lake()
    file = opened(lake, part_bytes=4)
    assert file.write(b"0123456789") == 10
    assert (file.tell(), file.buffered, file.closed) == (10, 2, False)
    file.close(rows=7, statistics={"a": ColumnStatistics(least=1)})
    assert file.closed
    assert parts(lake, file) == [4, 4, 2]
    assert lake.visible() == {}
    pending = file.pending
    assert (pending.bucket, pending.destinationKey, pending.uri) == (BUCKET, KEY, f"s3a://{BUCKET}/{KEY}")
    assert (pending.length, pending.partCount, pending.jobId) == (10, 3, OURS)
    assert (pending.s3commit.rows, pending.s3commit.statistics) == (7, {"a": ColumnStatistics(least=1)})
    assert complete(lake, pending) == b"0123456789"
    assert lake.store.head(BUCKET, KEY).etag == pending.expected_etag


def test_an_object_names_its_job() -> None:
    """The finished object carries the ids of its job and upload, and a digest of its destination."""
    lake = Lake()
    file = opened(lake)
    file.close()
    complete(lake, file.pending)
    metadata = lake.store.head(BUCKET, KEY).metadata
    assert metadata == {
        JOB_METADATA: OURS,
        UPLOAD_METADATA: file.pending.s3commit.upload,
        PLACE_METADATA: text_digest(lake.destination).hex(),
    }


def test_an_empty_file_is_one_empty_part() -> None:
    """A file without any writes is an object without bytes, not an upload without parts."""
    lake = Lake()
    file = opened(lake)
    file.write(b"")
    file.close()
    assert parts(lake, file) == [0]
    assert (file.pending.length, file.pending.partCount) == (0, 1)
    assert complete(lake, file.pending) == b""


def test_a_file_of_full_parts_has_no_empty_one() -> None:
    """If the last part is full, no other one follows."""
    lake = Lake()
    file = opened(lake, part_bytes=4)
    file.write(b"01234567")
    file.close()
    assert parts(lake, file) == [4, 4]


@pytest.mark.parametrize("chunk", [1, 3, 4, 5, 8, 9, 100])
def test_parts_do_not_depend_on_the_writes(chunk: int) -> None:
    """Whatever the sizes of the writes, the parts and the content are the same."""
    lake, body = Lake(), bytes(range(100))
    file = opened(lake, part_bytes=8)
    for start in range(0, len(body), chunk):
        file.write(body[start : start + chunk])
    file.close()
    assert parts(lake, file) == [8] * 12 + [4]
    assert complete(lake, file.pending) == body


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_written_buffer_can_be_reused(kind: Any) -> None:
    """What is written is copied, so the writer may reuse the buffer at once."""
    lake, buffer = Lake(), bytearray(b"before")
    file = opened(lake, part_bytes=100)
    file.write(kind(buffer) if kind is not memoryview else memoryview(buffer))
    buffer[:] = b"after!"
    file.close()
    assert complete(lake, file.pending) == b"before"


def test_lengths_are_counted_in_bytes() -> None:
    """A view with items wider than a byte counts all its bytes."""
    lake = Lake()
    file = opened(lake, part_bytes=100)
    assert file.write(memoryview(b"01234567").cast("Q")) == 8
    assert file.tell() == 8
    file.close()
    assert complete(lake, file.pending) == b"01234567"


def test_it_is_a_file_for_writing_only() -> None:
    """It answers the questions that writers of Parquet and ORC ask."""
    file = opened(Lake())
    assert (file.writable(), file.readable(), file.seekable(), file.mode) == (True, False, False, "wb")
    file.flush()
    file.close()
    file.close()
    with pytest.raises(JobClosed, match="is closed"):
        file.write(b"more")


def test_parts_are_never_smaller_than_the_store_accepts() -> None:
    """A part size below S3's minimum is raised to it."""
    lake = Lake()
    file = opened(lake, part_bytes=1, min_part_bytes=MIN_PART_BYTES)
    file.write(b"x" * (MIN_PART_BYTES - 1))
    assert parts(lake, file) == []
    file.write(b"xx")
    assert parts(lake, file) == [MIN_PART_BYTES]


def test_only_a_buffer_fit_for_a_part_is_sent_early() -> None:
    """Asked to release its buffer, a file sends it if S3 accepts it as a part, and keeps it otherwise."""
    lake = Lake()
    file = opened(lake, part_bytes=2 * MIN_PART_BYTES)
    file.write(b"x" * (MIN_PART_BYTES - 1))
    file.send_buffered()
    assert (parts(lake, file), file.buffered) == ([], MIN_PART_BYTES - 1)
    file.write(b"x")
    file.send_buffered()
    assert (parts(lake, file), file.buffered) == ([MIN_PART_BYTES], 0)
    file.close()
    assert file.pending.length == MIN_PART_BYTES


@pytest.mark.slow
def test_ten_thousand_parts_hold_31_times_the_first_ones() -> None:
    """Part sizes double every 2,000 parts; content that fits into 10,000 is written, and no byte more."""
    lake = Lake()
    file, room = opened(lake), 2_000 * (1 + 2 + 4 + 8 + 16)
    file.write(b"x" * room)
    sizes = parts(lake, file)
    assert len(sizes) == 10_000
    assert [sizes[number * 2_000] for number in range(5)] == [1, 2, 4, 8, 16]
    assert sum(sizes) == room
    file.write(b"y")
    with pytest.raises(StoreRejected, match="more than 10000 parts"):
        file.close()
    assert file.closed
    assert file.pending is None
    assert lake.pending() == []


@pytest.mark.slow
def test_a_file_at_the_limit_is_whole() -> None:
    """A file of exactly 10,000 parts is closed and can be completed."""
    lake = Lake()
    file = opened(lake)
    file.write(b"x" * 62_000)
    file.close()
    assert (file.pending.partCount, file.pending.length) == (10_000, 62_000)
    assert complete(lake, file.pending) == b"x" * 62_000


@pytest.mark.slow
def test_parts_above_the_limit_are_refused_while_writing() -> None:
    """A writer that continues beyond the last part gets the error at once."""
    lake = Lake()
    file = opened(lake)
    file.write(b"x" * 62_000)
    with pytest.raises(StoreRejected, match="more than 10000 parts"), file:
        file.write(b"x" * 32)
    assert lake.pending() == []


@each("threads", [0, 1, 3])
@each("nth", [1, 2, 5])
@each("error", [StoreRejected("no"), Unavailable("slow"), OutcomeUnknown("lost")])
def test_a_failing_part_surfaces_and_aborts(threads: int, nth: int, error: Any) -> None:
    """A part that cannot be uploaded fails the file, at the latest when it is settled."""
    lake = Lake()
    lake.store.before = once("upload_part", KEY, error, nth=nth)
    file = opened(lake, part_bytes=4, threads=threads)

    def write_all() -> None:
        with file:
            for _ in range(5):
                file.write(b"0123")
        file.settle()

    with pytest.raises(type(error)):
        write_all()
    assert file.closed
    assert file.pending is None
    assert lake.pending() == []
    assert lake.visible() == {}


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_failed_close_has_aborted(nth: int) -> None:
    """Whichever part a close finds failed, the upload is gone once the close has raised."""
    lake = Lake()
    lake.store.before = once("upload_part", KEY, StoreRejected("no"), nth=nth)
    file = opened(lake, part_bytes=4)

    def write_all() -> None:
        for body in (b"0123", b"4567", b"89"):
            file.write(body)
        file.close()

    with pytest.raises(StoreRejected):
        write_all()
    if not file.closed:
        file.abort()
    assert lake.pending() == []
    with pytest.raises(JobClosed):
        file.write(b"more")


def test_a_close_that_meets_an_earlier_failure_has_aborted() -> None:
    """A part that failed after the last write is found by the close, which leaves nothing pending."""
    lake = Lake()
    lake.store.before = once("upload_part", KEY, StoreRejected("no"))
    file = opened(lake, part_bytes=4)
    file.write(b"012345")
    with pytest.raises(StoreRejected):
        file.close()
    assert file.closed
    assert lake.pending() == []


def test_an_exception_in_the_block_aborts() -> None:
    """Leaving the block by the writer's own error discards the upload."""
    lake = Lake()
    file = opened(lake)
    file.write(b"0")
    with pytest.raises(ZeroDivisionError), file:
        raise ZeroDivisionError
    assert lake.pending() == []
    assert file.pending is None


def test_leaving_the_block_closes() -> None:
    """Leaving the block without an error closes the file."""
    lake = Lake()
    with opened(lake) as file:
        file.write(b"0")
    assert file.pending.length == 1
    assert lake.pending() == [KEY]


def test_an_abort_waits_for_the_parts_in_flight() -> None:
    """Otherwise a part that arrives after the abort of its upload would stay, and be billed."""

    class Slow(PartSender):
        """Keeps each part in flight until it is waited for."""

        def send(self, request: Callable[[], str], size: int) -> Future[str]:
            if not size:
                return super().send(request, size)
            part: Future[str] = Future()
            part.set_running_or_notify_cancel()
            part.exception = lambda timeout=None: part.set_result(request())  # type: ignore[method-assign]
            return part

    lake = Lake()
    file = OutputFile(lake.context(), KEY, Slow(0, 1), part_bytes=1, min_part_bytes=1)
    file.write(b"01")
    file.abort()
    assert [call.verb for call in lake.store.calls] == ["create_upload", *["upload_part"] * 2, "abort_upload"]
    assert lake.pending() == []


def test_abort_can_be_repeated() -> None:
    """A second abort, or one after closing, leaves nothing pending and asks the store once."""
    lake = Lake()
    file = opened(lake)
    file.close()
    file.abort()
    file.abort()
    assert lake.pending() == []
    assert lake.store.calls.count(StoreCall("abort_upload", BUCKET, KEY)) == 1


def test_an_upload_that_cannot_be_recorded_is_not_left_behind() -> None:
    """If the callback for the upload's id fails, the upload is aborted at once."""
    lake = Lake()

    def refuse(_: PendingUpload) -> None:
        raise Unavailable("slow down")

    with pytest.raises(Unavailable):
        opened(lake, on_change=refuse)
    assert lake.pending() == []


def test_changes_are_reported() -> None:
    """The tracker gets the upload's id at the start, and the whole record at the end."""
    told: list[PendingUpload] = []
    lake = Lake()
    file = opened(lake, on_change=told.append)
    file.write(b"01")
    assert [(note.uploadId, note.etags) for note in told] == [(file.upload_id, [])]
    file.close()
    assert told[1:] == [file.pending]
    assert told[0].s3commit == told[1].s3commit


class Sink(Lake):
    """A lake whose store forgets the content of parts."""

    def __init__(self) -> None:
        super().__init__()
        self.store.upload_part = lambda *_: "etag"  # type: ignore[method-assign]


@pytest.mark.parametrize("threads", [0, 2])
def test_memory_is_bounded_by_the_waiting_parts(threads: int) -> None:
    """Writing 96 MiB through 1 MiB parts holds few of them at a time."""
    mib = 1 << 20
    file = opened(Sink(), part_bytes=mib, threads=threads, buffered_bytes=4 * mib)
    chunk = b"x" * (mib // 2)
    tracemalloc.start()
    try:
        for _ in range(192):
            file.write(chunk)
        file.close()
        file.settle()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert file.pending.length == 96 * mib
    assert peak < 10 * mib


def test_one_large_write_is_sent_piece_by_piece() -> None:
    """64 MiB in a single write are held a few parts at a time, besides the caller's own copy."""
    mib = 1 << 20
    file = opened(Sink(), part_bytes=mib, threads=2, buffered_bytes=4 * mib)
    content = bytes(64 * mib)
    tracemalloc.start()
    try:
        file.write(content)
        file.close()
        file.settle()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(file.pending.etags) == 64
    assert peak < 10 * mib


def test_the_next_file_is_begun_while_the_last_part_is_on_its_way() -> None:
    """Closing a file does not wait for the store; settling it does, and only then is it pending."""
    lake, answered = Lake(), threading.Event()
    upload_part = lake.store.upload_part

    def slow(*args: Any) -> str:
        assert answered.wait(60)
        return upload_part(*args)

    lake.store.upload_part = slow  # type: ignore[method-assign]
    file = opened(lake, threads=1)
    file.write(b"0")
    file.close(rows=1)
    assert (file.closed, file.pending) == (True, None)
    answered.set()
    file.settle()
    file.settle()
    assert complete(lake, file.pending) == b"0"


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("error", [StoreRejected("no"), Unavailable("slow"), OutcomeUnknown("lost")], ids=str)
def test_an_upload_that_does_not_start_fails_the_file(threads: int, error: Any) -> None:
    """An upload that could not be started fails its file, at the latest when it is settled."""
    lake = Lake()
    lake.store.before = once("create_upload", KEY, error)

    def write_all() -> None:
        with opened(lake, threads=threads) as file:
            file.write(b"0123")
        file.settle()

    with pytest.raises(type(error)):
        write_all()
    assert lake.pending() == []
    assert StoreCall("upload_part", BUCKET, KEY) not in lake.store.calls
    assert StoreCall("abort_upload", BUCKET, KEY) not in lake.store.calls


class Gate:
    """Holds back a store's ``create_upload`` until it is opened.

    Attributes:
        reached: Set when somebody waits.
        is_open: Lets them through.
    """

    def __init__(self, lake: Lake) -> None:
        self.reached, self.is_open = threading.Event(), threading.Event()
        self._create = lake.store.create_upload
        lake.store.create_upload = self._wait  # type: ignore[method-assign]

    def _wait(self, *args: Any, **more: Any) -> str:
        self.reached.set()
        assert self.is_open.wait(60)
        return self._create(*args, **more)


def test_a_writer_goes_on_while_its_upload_starts() -> None:
    """A file is opened, written and closed without waiting for the store; its parts wait for the start."""
    lake = Lake()
    gate = Gate(lake)
    file = opened(lake, threads=2, part_bytes=4)
    file.write(b"0123456")
    file.close()
    assert lake.pending() == []
    gate.is_open.set()
    file.settle()
    assert complete(lake, file.pending) == b"0123456"


def test_an_upload_that_is_just_starting_is_aborted() -> None:
    """An abort in the middle of the start waits for it, and leaves nothing pending."""
    lake = Lake()
    gate = Gate(lake)
    file = opened(lake, threads=2)
    file.write(b"0")
    assert gate.reached.wait(60)
    aborting = threading.Thread(target=file.abort)
    aborting.start()
    gate.is_open.set()
    aborting.join(60)
    assert (file.closed, lake.pending()) == (True, [])
    assert lake.store.calls.count(StoreCall("abort_upload", BUCKET, KEY)) == 1


def test_an_upload_that_waits_for_its_start_is_never_begun() -> None:
    """An abort before the start's turn cancels the start."""
    lake, busy = Lake(), threading.Event()
    sender = PartSender(1, 1 << 30)
    sender.send(lambda: str(busy.wait(60)), 1)
    file = OutputFile(lake.context(), KEY, sender, part_bytes=1, min_part_bytes=1)
    file.write(b"0")
    file.abort()
    busy.set()
    sender.close()
    assert not [call for call in lake.store.calls if call.key == KEY]


def test_one_thread_starts_and_sends_many_files() -> None:
    """However many files are open at once, no part blocks the thread from what it waits for."""
    lake, sender = Lake(), PartSender(1, 1 << 30)
    keys = [f"flights/dt={number}/a.parquet" for number in range(40)]
    files = [OutputFile(lake.context(), key, sender, part_bytes=1, min_part_bytes=1) for key in keys]
    for body in (b"01", b"2"):
        for file in files:
            file.write(body)
    for file in files:
        file.close()
    for file in files:
        file.settle()
    assert [file.pending.partCount for file in files if file.pending] == [3] * 40
    assert sorted(lake.pending()) == sorted(keys)


def test_only_a_closed_file_is_settled() -> None:
    """A file that is being written, or was aborted, is not settled."""
    file = opened(Lake())
    with pytest.raises(JobClosed, match="is open"):
        file.settle()
    file.abort()
    with pytest.raises(JobClosed, match="is aborted"):
        file.settle()


def test_a_writer_waits_for_room() -> None:
    """While as many bytes as allowed are in flight, a writer waits until some of them have arrived."""
    sender, gate, log = PartSender(1, 10), threading.Event(), []

    def slow() -> str:
        gate.wait(30)
        log.append("first arrived")
        return "1"

    def second() -> None:
        sender.send(lambda: "2", 6)
        log.append("second accepted")

    first = sender.send(slow, 6)
    writer = threading.Thread(target=second)
    writer.start()
    gate.set()
    writer.join(30)
    assert first.result(30) == "1"
    assert log == ["first arrived", "second accepted"]
    sender.close()


def test_a_part_larger_than_the_room_is_sent_alone() -> None:
    """A single part above the limit does not wait for room that will never exist."""
    sender = PartSender(1, 10)
    assert sender.send(lambda: "e", 100).result(30) == "e"
    assert sender.send(lambda: "f", 100).result(30) == "f"
    sender.close()


def test_room_is_given_back_by_failed_parts() -> None:
    """A part that failed makes room for the next one."""
    sender = PartSender(1, 10)

    def fail() -> str:
        raise StoreRejected("no")

    assert isinstance(sender.send(fail, 10).exception(30), StoreRejected)
    assert sender.send(lambda: "e", 10).result(30) == "e"
    sender.close()

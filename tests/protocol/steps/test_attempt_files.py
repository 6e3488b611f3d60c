"""The files of an attempt are in order, a few are sent at once, and all are discarded if any is."""

from __future__ import annotations

import hashlib
import resource
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from airflow_s3commit.exceptions import DuplicateOutput, JobClosed, StoreRejected, Unavailable
from airflow_s3commit.protocol.model.codec import decode
from airflow_s3commit.protocol.model.pendingset import PendingSet
from airflow_s3commit.protocol.steps.output_file import OutputFile, PartSender
from airflow_s3commit.protocol.steps.task_attempt import TaskAttempt
from airflow_s3commit.testing import StoreCall
from tests.protocol.building import BUCKET, ROOT, Lake, named

PATHS = [f"dt={number}/a.parquet" for number in range(12)]
KEYS = [ROOT + named(path) for path in PATHS]
KEY = "flights/dt=1/a.parquet"
_MIB = 1024 * 1024


def attempt_of(lake: Lake, *, committer: str = "magic", threads: int = 0) -> TaskAttempt:
    """Begin an attempt of a new job."""
    job = lake.set_up(committer=committer)
    return job.task_attempt("spark", "1", "00000", "1", part_bytes=1, threads=threads, min_part_bytes=1)


def write(attempt: TaskAttempt, path: str) -> None:
    """Write one file."""
    with attempt.open(path) as file:
        file.write(b"01")


@pytest.mark.parametrize("threads", [0, 8])
@pytest.mark.parametrize("committer", ["magic", "partitioned"])
def test_they_are_pending_in_the_order_they_were_opened(committer: str, threads: int) -> None:
    """However they are uploaded, pending files are complete and in the order they were opened."""
    lake = Lake()
    with attempt_of(lake, committer=committer, threads=threads) as attempt:
        for path in PATHS:
            write(attempt, path)
        if committer == "partitioned":
            assert lake.pending() == []
        attempt.commit()
    pendingset = decode(PendingSet, lake.get(lake.pendingset_key()), "x")
    assert [upload.destinationKey for upload in pendingset.commits] == KEYS
    assert [upload.length for upload in pendingset.commits] == [2] * len(KEYS)
    assert sorted(lake.pending()) == sorted(KEYS)


def test_the_record_of_an_upload_is_beside_the_pendingset() -> None:
    """It is in a directory named after its task attempt, by the number of its file."""
    lake = Lake()
    job = lake.set_up(track_pending="s3", committer="magic")
    with job.task_attempt("spark", "1", "7", "12", part_bytes=1, threads=0, min_part_bytes=1) as attempt:
        write(attempt, PATHS[0])
        assert lake.pendingset_key("7").replace("_1.pendingset", "_12/000000.pending") in lake.keys("")


def test_a_few_local_files_are_sent_at_once() -> None:
    """Whatever the number of threads, at most four files are read from disk at the same time."""
    lake, lock, most = Lake(), threading.Lock(), 0
    under_way: set[str] = set()
    attempt = attempt_of(lake, committer="partitioned", threads=8)
    create, four = lake.store.create_upload, threading.Barrier(4)

    def begin(bucket: str, key: str, **more: Any) -> str:
        nonlocal most
        with lock:
            under_way.add(key)
            most = max(most, len(under_way))
        # Each waits until four are here, so there are four at once; a fifth would be counted.
        four.wait(60)
        with lock:
            under_way.discard(key)
        return create(bucket, key, **more)

    lake.store.create_upload = begin  # type: ignore[method-assign]
    with attempt:
        for path in PATHS:
            write(attempt, path)
        assert attempt.commit().files == len(PATHS)
    assert most == 4


def test_a_key_that_is_opened_twice_is_named() -> None:
    """A key that is open, or was, cannot be opened again; the error names it and the attempt."""
    with attempt_of(Lake()) as attempt:
        write(attempt, PATHS[0])
        with pytest.raises(DuplicateOutput, match=r"attempt 1 of task 00000 opens s3://.*/dt=0/a-.* twice"):
            attempt.open(PATHS[0])


def test_a_file_that_was_not_closed_is_named() -> None:
    """The first file that is open, or was aborted, is named as unfinished."""
    with attempt_of(Lake()) as attempt:
        write(attempt, PATHS[0])
        attempt.open(PATHS[1]).abort()
        with pytest.raises(JobClosed, match=KEYS[1]):
            attempt.commit()


@pytest.mark.parametrize("committer", ["magic", "partitioned"])
def test_an_abort_goes_on_after_an_error(committer: str) -> None:
    """One upload that cannot be discarded stops none of the others; a second error is a note on the first."""
    lake = Lake()
    attempt = attempt_of(lake, committer=committer)
    for path in PATHS[:3]:
        write(attempt, path)
    attempt.commit()
    failures = {KEYS[0]: StoreRejected("first"), KEYS[1]: Unavailable("second")}

    def fail(call: StoreCall) -> None:
        if call.verb == "abort_upload" and call.key in failures:
            raise failures[call.key]

    lake.store.before = fail
    with pytest.raises(StoreRejected, match="first") as caught:
        attempt.abort()
    assert any("Unavailable: second" in note for note in caught.value.__notes__)
    assert lake.pending() == KEYS[:2]


def local(lake: Lake, directory: Path, *, part_bytes: int = 4, threads: int = 0) -> OutputFile:
    """Open a file on disk."""
    sender = PartSender(threads, 4 * part_bytes)
    path = directory / "000000"
    return OutputFile(lake.context(), KEY, sender, part_bytes=part_bytes, min_part_bytes=1, path=path)


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("content", [b"", b"0123", b"0123456789", b"01234567"], ids=len)
def test_a_closed_file_is_sent_in_parts(tmp_path: Path, content: bytes, threads: int) -> None:
    """Once sent, a file is pending as a whole and no longer on disk, and sending it again changes nothing."""
    lake = Lake()
    with local(lake, tmp_path, threads=threads) as file:
        for at in range(0, len(content), 3):
            file.write(content[at : at + 3])
    assert (lake.pending(), file.buffered) == ([], 0)
    file.settle()
    file.settle()
    assert list(tmp_path.iterdir()) == []
    pending = file.pending
    assert pending is not None
    assert (pending.length, pending.partCount) == (len(content), max(-(-len(content) // 4), 1))
    assert lake.pending() == [KEY]
    lake.store.complete_upload(BUCKET, KEY, pending.uploadId, pending.part_etags)
    assert lake.get(KEY) == content


@pytest.mark.parametrize("change", [b"01234", b"0123456789ab"], ids=["shorter", "longer"])
def test_a_file_that_the_disk_changed_is_not_sent(tmp_path: Path, change: bytes) -> None:
    """Content of another length than was written is refused with both lengths, and leaves no upload."""
    lake = Lake()
    with local(lake, tmp_path) as file:
        file.write(b"0123456789")
    (tmp_path / "000000").write_bytes(change)
    with pytest.raises(OSError, match=rf"has {len(change)} bytes of the 10 written for s3://{BUCKET}/{KEY}"):
        file.settle()
    assert (file.pending, lake.pending(), file.whole) == (None, [], False)


def resident() -> int:
    """Return the bytes of this process that are in memory, mapped files included."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_file_is_not_read_into_memory_as_a_whole(tmp_path: Path) -> None:
    """Of a file that goes up in parts, at most one is in memory, counting the process's mapped pages."""
    lake = Lake()
    sent, written, parts, most = hashlib.sha256(), hashlib.sha256(), 0, 0

    def take(*call: object) -> str:
        nonlocal parts, most
        sent.update(call[-1])  # type: ignore[arg-type]
        parts += 1
        most = max(most, resident())
        return "etag"

    lake.store.upload_part = take  # type: ignore[method-assign]
    with local(lake, tmp_path, part_bytes=16 * _MIB + 1) as file:
        for number in range(128):
            block = bytes([number]) * _MIB
            file.write(block)
            written.update(block)
    before = resident()
    file.settle()
    assert (sent.digest(), parts) == (written.digest(), 8)
    assert most - before < 24 * _MIB


def test_an_aborted_file_is_closed(tmp_path: Path) -> None:
    """After an abort the disk has nothing of the file, and it is closed for writing."""
    file = local(Lake(), tmp_path)
    file.write(b"01")
    file.abort()
    file.abort()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(JobClosed, match="aborted"):
        file.write(b"2")

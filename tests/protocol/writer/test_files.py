"""The files of an attempt: in order, a few at once, and all of them discarded if any is."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from airflow_s3commit.exceptions import DuplicateOutput, StoreRejected, Unavailable
from airflow_s3commit.protocol.model.job import JobOptions
from airflow_s3commit.protocol.model.pendingset import TaskExtra
from airflow_s3commit.protocol.writer.files import AttemptFiles
from airflow_s3commit.testing import StoreCall
from tests.protocol.building import Lake

EXTRA = TaskExtra(stage="spark", stage_attempt="1", task="00000", attempt="1", nonce="n")
KEYS = [f"flights/dt={number}/a.parquet" for number in range(12)]


def files_of(lake: Lake, *, committer: str = "magic", threads: int = 0) -> AttemptFiles:
    """Return an attempt's files, none yet."""
    return AttemptFiles(
        lake.context(),
        JobOptions(committer=committer),
        EXTRA,
        part_bytes=1,
        buffered_bytes=1 << 20,
        threads=threads,
        min_part_bytes=1,
        local_dir=None,
    )


def write(files: AttemptFiles, key: str) -> None:
    """Write one file."""
    with files.open(key, "text/plain") as file:
        file.write(b"01")


@pytest.mark.parametrize("threads", [0, 8])
@pytest.mark.parametrize("committer", ["magic", "partitioned"])
def test_they_are_pending_in_the_order_they_were_opened(committer: str, threads: int) -> None:
    """However they go up, what is pending is listed as it was opened, and all of it is there."""
    lake = Lake()
    files = files_of(lake, committer=committer, threads=threads)
    for key in KEYS:
        write(files, key)
    assert files.unfinished() is None
    assert files.has_local() == (committer == "partitioned")
    files.settle()
    files.send_local()
    files.release()
    assert [upload.destinationKey for upload in files.pending()] == KEYS
    assert [upload.length for upload in files.pending()] == [2] * len(KEYS)
    assert sorted(lake.pending()) == sorted(KEYS)


def test_a_few_local_files_are_sent_at_once() -> None:
    """Whatever the number of threads, four files are read from disk at the same time at most."""
    lake, lock, most = Lake(), threading.Lock(), 0
    under_way: set[str] = set()
    create, four = lake.store.create_upload, threading.Barrier(4)

    def begin(bucket: str, key: str, **more: Any) -> str:
        nonlocal most
        with lock:
            under_way.add(key)
            most = max(most, len(under_way))
        # Nobody goes on before four are here, so there are four at once; a fifth would be counted.
        four.wait(60)
        with lock:
            under_way.discard(key)
        return create(bucket, key, **more)

    lake.store.create_upload = begin  # type: ignore[method-assign]
    files = files_of(lake, committer="partitioned", threads=8)
    for key in KEYS:
        write(files, key)
    files.send_local()
    files.release()
    assert most == 4
    assert len(files.pending()) == len(KEYS)


def test_one_key_is_one_file() -> None:
    """A key that is open, or was, is not opened again."""
    files = files_of(Lake())
    write(files, KEYS[0])
    with pytest.raises(DuplicateOutput, match=r"attempt 1 of task 00000 opens s3://.*/dt=0/a.parquet twice"):
        files.open(KEYS[0], "text/plain")
    assert len(files) == 1


def test_a_file_that_was_not_closed_is_named() -> None:
    """The first file that is open, or was aborted, is unfinished."""
    files = files_of(Lake())
    write(files, KEYS[0])
    files.open(KEYS[1], "text/plain").abort()
    assert files.unfinished() == KEYS[1]


@pytest.mark.parametrize("committer", ["magic", "partitioned"])
def test_an_abort_goes_on_after_an_error(committer: str) -> None:
    """One upload that cannot be discarded keeps none of the others; a second error is a note of the first."""
    lake = Lake()
    files = files_of(lake, committer=committer)
    for key in KEYS[:3]:
        write(files, key)
    files.send_local()
    failures = {KEYS[0]: StoreRejected("first"), KEYS[1]: Unavailable("second")}

    def fail(call: StoreCall) -> None:
        if call.verb == "abort_upload" and call.key in failures:
            raise failures[call.key]

    lake.store.before = fail
    with pytest.raises(StoreRejected, match="first") as caught:
        files.abort()
    files.release()
    assert any("Unavailable: second" in note for note in caught.value.__notes__)
    assert lake.pending() == KEYS[:2]

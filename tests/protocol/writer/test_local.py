"""Files that lie on local disk until they are sent."""

from __future__ import annotations

import hashlib
import resource
import sys
from pathlib import Path

import pytest

from airflow_s3commit.exceptions import JobClosed
from airflow_s3commit.protocol.writer.local import LocalFile
from airflow_s3commit.protocol.writer.multipart import OutputFile, PartSender
from tests.protocol.building import BUCKET, Lake

KEY = "flights/dt=1/a.parquet"
_MIB = 1024 * 1024


def local(directory: Path) -> LocalFile:
    """Open a file on disk."""
    return LocalFile(directory / "000000", f"s3://{BUCKET}/{KEY}", KEY)


def send(file: LocalFile, lake: Lake, *, part_bytes: int, threads: int = 0) -> None:
    """Upload a file."""
    sender = PartSender(threads, 4 * part_bytes)
    file.send(
        lambda: OutputFile(
            lake.context(), KEY, sender, part_bytes=part_bytes, min_part_bytes=1, in_background=False
        )
    )
    sender.close()


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("content", [b"", b"0123", b"0123456789", b"01234567"], ids=len)
def test_what_was_written_is_sent_in_parts(tmp_path: Path, content: bytes, threads: int) -> None:
    """Once closed, a file goes up whole and is pending, and the disk has it no more; once is enough."""
    lake = Lake()
    with local(tmp_path) as file:
        for at in range(0, len(content), 3):
            file.write(content[at : at + 3])
    send(file, lake, part_bytes=4, threads=threads)
    send(file, lake, part_bytes=4, threads=threads)
    assert list(tmp_path.iterdir()) == []
    pending = file.pending
    assert pending is not None
    assert (pending.length, pending.partCount) == (len(content), max(-(-len(content) // 4), 1))
    assert lake.pending() == [KEY]
    lake.store.complete_upload(BUCKET, KEY, pending.uploadId, pending.etags)
    assert lake.get(KEY) == content


@pytest.mark.parametrize("change", [b"01234", b"0123456789ab"], ids=["shorter", "longer"])
def test_a_file_that_the_disk_changed_is_not_sent(tmp_path: Path, change: bytes) -> None:
    """Content of another length than was written is refused with both lengths, and no upload is left."""
    lake = Lake()
    with local(tmp_path) as file:
        file.write(b"0123456789")
    (tmp_path / "000000").write_bytes(change)
    with pytest.raises(OSError, match=rf"has {len(change)} bytes of the 10 written for s3://{BUCKET}/{KEY}"):
        send(file, lake, part_bytes=4)
    assert (file.pending, lake.pending()) == (None, [])


def resident() -> int:
    """Return the bytes of this process that are in memory, those of files that it maps among them."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_is_sent_is_not_read_into_memory(tmp_path: Path) -> None:
    """Of a file that goes up in parts, not more than one is in memory, nor among the pages of the process."""
    lake = Lake()
    sent, written, parts, most = hashlib.sha256(), hashlib.sha256(), 0, 0

    def take(*call: object) -> str:
        nonlocal parts, most
        sent.update(call[-1])  # type: ignore[arg-type]
        parts += 1
        most = max(most, resident())
        return "etag"

    lake.store.upload_part = take  # type: ignore[method-assign]
    with local(tmp_path) as file:
        for number in range(128):
            block = bytes([number]) * _MIB
            file.write(block)
            written.update(block)
    before = resident()
    send(file, lake, part_bytes=16 * _MIB + 1)
    assert (sent.digest(), parts) == (written.digest(), 8)
    assert most - before < 24 * _MIB


def test_an_aborted_file_takes_nothing(tmp_path: Path) -> None:
    """After an abort the disk has nothing of the file, and it is closed for writing."""
    file = local(tmp_path)
    file.write(b"01")
    file.abort()
    file.abort()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(JobClosed, match="aborted"):
        file.write(b"2")

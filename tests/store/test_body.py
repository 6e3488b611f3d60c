"""A part's body is its writer's buffer, counted in bytes, read without copies, and can be sent again."""

from __future__ import annotations

import io

import pytest

from airflow_s3commit.store.body import BufferBody


@pytest.mark.parametrize(
    "content",
    [
        b"abcdefgh",
        bytearray(b"abcdefgh"),
        memoryview(b"abcdefgh").cast("I"),
        memoryview(b"abcdefgh").cast("b"),
    ],
)
def test_any_buffer_is_its_bytes(content: bytes) -> None:
    """The length and content are those in bytes, whatever the buffer's items are."""
    body = BufferBody(content)
    assert len(body) == 8
    assert bytes(body.read()) == b"abcdefgh"


@pytest.mark.parametrize("content", [b"", bytearray(), memoryview(b"")])
def test_nothing(content: bytes) -> None:
    """A body of nothing has no length and nothing to read."""
    body = BufferBody(content)
    assert (len(body), bytes(body.read(1))) == (0, b"")


def test_it_is_read_block_by_block() -> None:
    """Blocks follow one another and end with an empty one."""
    body = BufferBody(b"abcde")
    assert [bytes(body.read(2)) for _ in range(4)] == [b"ab", b"cd", b"e", b""]
    assert body.tell() == 5


def test_blocks_are_views() -> None:
    """What is read is the buffer itself, not a copy of it."""
    buffer = bytearray(b"before")
    block = BufferBody(buffer).read(6)
    buffer[:] = b"after."
    assert bytes(block) == b"after."


def test_it_can_be_sent_again() -> None:
    """A body that was rewound is read from its beginning, or from where it was put."""
    body = BufferBody(b"abcde")
    body.read()
    assert (body.seek(0), bytes(body.read(None))) == (0, b"abcde")
    assert (body.seek(-2, io.SEEK_END), bytes(body.read())) == (3, b"de")
    body.seek(1)
    assert (body.seek(1, io.SEEK_CUR), bytes(body.read(1))) == (2, b"c")

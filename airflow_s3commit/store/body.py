"""The body of a part, sent straight from the writer's buffer."""

from __future__ import annotations

import io

__all__ = ["BufferBody"]


class BufferBody:
    """A buffer in the shape that botocore wants of a body: readable, rewindable, of known length.

    Nothing is copied: what `read` returns are views of the buffer, which therefore must not change until the
    request is over.

    Args:
        content: The buffer; lengths are counted in bytes whatever its items are.

    """

    def __init__(self, content: bytes | bytearray | memoryview) -> None:
        view = memoryview(content)
        # A view of nothing cannot be cast.
        self._view = view.cast("B") if view.nbytes else memoryview(b"")
        self._position = 0

    def __len__(self) -> int:
        return len(self._view)

    def read(self, size: int | None = -1) -> memoryview:
        """Return the next ``size`` bytes, or all that are left."""
        end = None if size is None or size < 0 else self._position + size
        block = self._view[self._position : end]
        self._position += len(block)
        return block

    def tell(self) -> int:
        """Return how many bytes were read."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go on from another place and return it."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: len(self._view)}[whence]
        self._position = start + offset
        return self._position

"""What encoders write into, and what they have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_s3commit.protocol.statistics import Columns, ColumnStatistics

__all__ = ["DetachableSink", "Encoder", "FileForm", "FileOpener", "Sink", "TableFile"]


class Sink(Protocol):
    """What an encoder writes into."""

    def write(self, data: bytes) -> int:
        """Append bytes."""
        ...


class TableFile(Sink, Protocol):
    """A file that is being written."""

    @property
    def buffered(self) -> int:
        """Bytes that it holds in memory."""
        ...

    def send_buffered(self) -> None:
        """Let go of what can be let go of."""
        ...

    def close(self, rows: int | None = None, statistics: Columns | None = None) -> None:
        """End the file, and say what is in it."""
        ...


class FileOpener(Protocol):
    """Opens files by their paths below the destination: a task attempt."""

    def open(self, relative_path: str, *, content_type: str = ...) -> TableFile:
        """Start a file."""
        ...


class Encoder(Protocol):
    """Writes the rows of one file."""

    @property
    def rows(self) -> int:
        """Rows written so far."""
        ...

    @property
    def bytes(self) -> int:
        """Bytes written so far."""
        ...

    @property
    def statistics(self) -> dict[str, ColumnStatistics] | None:
        """What is known of each column, once closed."""
        ...

    def write(self, table: pa.Table) -> None:
        """Write rows, where the format has them as one row group."""
        ...

    def close(self) -> None:
        """Write the end of the file; one without rows is whole too."""
        ...

    def abandon(self) -> None:
        """Let go of the file without another byte reaching the sink."""
        ...


class FileForm(Protocol):
    """How the files of one write are encoded; plain data."""

    @property
    def suffix(self) -> str:
        """The end of a file's name."""
        ...

    @property
    def content_type(self) -> str:
        """Media type of the files."""
        ...

    def check(self, schema: pa.Schema) -> None:
        """Refuse columns that the format cannot hold.

        Raises:
            UnsupportedColumn: There is one.

        """
        ...

    def encoder(self, sink: Sink, schema: pa.Schema) -> Encoder:
        """Start one file."""
        ...


class DetachableSink:
    """A sink that counts, and that can be let go of: an encoder thrown away still wants to write its footer.

    Args:
        sink: Takes the bytes.

    Attributes:
        bytes: Bytes that reached the sink.
        detached: Whether it was let go of.

    """

    closed = False

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.bytes = 0
        self.detached = False

    def write(self, data: bytes) -> int:
        """Append bytes, unless the sink was let go of."""
        if self.detached:
            return len(data)
        written = self._sink.write(data)
        self.bytes += written
        return written

    def flush(self) -> None:
        """Do nothing: the sink sends what it has when it is full."""

"""A catalog of pyiceberg whose calls are counted; one that writes may stop the process that makes it."""

from __future__ import annotations

from typing import Any, ClassVar

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO

from airflow_s3commit.testing import Crash


class Stop:
    """Counts the calls that write, and stops the process at one of them.

    Attributes:
        calls: What was called, in order.
        reads: The files that were opened.
        at: Number of the call at which to stop, from 1; 0 for none.
        after: Whether the call takes effect first.
    """

    def __init__(self, at: int = 0, *, after: bool = False) -> None:
        self.calls: list[str] = []
        self.reads: list[str] = []
        self.at = at
        self.after = after

    def __call__(self, name: str, call: Any) -> Any:
        """Make a call, or stop before or after it."""
        self.calls.append(name)
        stops = len(self.calls) == self.at
        if stops and not self.after:
            raise Crash(name)
        result = call()
        if stops:
            raise Crash(name)
        return result


class StoppingIO(PyArrowFileIO):
    """Opens and writes the files of metadata."""

    stop: ClassVar[Stop] = Stop()

    def new_input(self, location: str) -> Any:
        """Open a file to read it."""
        StoppingIO.stop.reads.append(location)
        return super().new_input(location)

    def new_output(self, location: str) -> Any:
        """Open a file to write it."""
        return StoppingIO.stop(f"write {location}", lambda: super(StoppingIO, self).new_output(location))


class StoppingCatalog(SqlCatalog):
    """Creates tables and changes them."""

    def create_table(self, *args: Any, **kwargs: Any) -> Any:
        """Create a table."""
        return StoppingIO.stop("create", lambda: super(StoppingCatalog, self).create_table(*args, **kwargs))

    def commit_table(self, *args: Any, **kwargs: Any) -> Any:
        """Change a table."""
        return StoppingIO.stop("commit", lambda: super(StoppingCatalog, self).commit_table(*args, **kwargs))

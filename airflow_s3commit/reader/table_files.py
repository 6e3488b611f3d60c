"""The files of a table, a million of them in a third of the memory of as many objects."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, Literal, overload

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_s3commit.protocol.model.columns import ColumnStatistics

_UNKNOWN = -1


class TableFile(Struct, frozen=True, gc=False):
    """One file of a table.

    Attributes:
        path: ``bucket/key``.
        size: Committed size in bytes.
        directory: Directory below the destination.
        job_id: The job that committed it; empty if it is older than the log and its name does not tell.
        rows: Number of rows; None if the writer did not count them.
        statistics: Column statistics, by column; None if the writer has none.
    """

    path: str
    size: int
    directory: str
    job_id: str
    rows: int | None = None
    statistics: Mapping[str, ColumnStatistics] | None = None


class JobFiles:
    """Files of one job, in columns.

    Args:
        files: The files, all of the same job.

    Attributes:
        shared: Paths that another job's files may have too, because the names do not contain the job's id.
    """

    __slots__ = (
        "_directories",
        "_ends",
        "_job_id",
        "_names",
        "_places",
        "_rows",
        "_sizes",
        "_statistics",
        "shared",
    )

    def __init__(self, files: Iterable[TableFile]) -> None:
        places: dict[tuple[str, str], int] = {}
        self._names, self._ends = bytearray(), array("I")
        self._sizes, self._rows, self._directories = array("q"), array("q"), array("I")
        self._job_id = ""
        self._statistics: list[Mapping[str, ColumnStatistics] | None] = []
        self.shared: list[str] = []
        for file in files:
            parent, _, name = file.path.rpartition("/")
            self._names += name.encode()
            self._ends.append(len(self._names))
            self._sizes.append(file.size)
            self._rows.append(_UNKNOWN if file.rows is None else file.rows)
            self._directories.append(places.setdefault((parent, file.directory), len(places)))
            self._job_id = file.job_id
            if file.statistics is not None or self._statistics:
                self._statistics += [None] * (len(self._sizes) - 1 - len(self._statistics))
                self._statistics.append(file.statistics)
            if not file.job_id or file.job_id not in name:
                self.shared.append(file.path)
        self._places = tuple(places)

    def __len__(self) -> int:
        return len(self._sizes)

    def __getitem__(self, number: int) -> TableFile:
        start = self._ends[number - 1] if number else 0
        parent, directory = self._places[self._directories[number]]
        rows = self._rows[number]
        return TableFile(
            f"{parent}/{self._names[start : self._ends[number]].decode()}",
            self._sizes[number],
            directory,
            self._job_id,
            None if rows == _UNKNOWN else rows,
            self._statistics[number] if self._statistics else None,
        )

    def __iter__(self) -> Iterator[TableFile]:
        return map(self.__getitem__, range(len(self)))


class PackedFiles(Sequence[TableFile]):
    """Files of several jobs, one after the other. Of two with one path, the later counts.

    Args:
        lists: The files of each commit, in the order of the commits.

    Attributes:
        lists: The same without files that do not count.
    """

    def __init__(self, lists: Iterable[JobFiles]) -> None:
        self.lists = list(lists)
        latest: dict[str, int] = {}
        for number, files in enumerate(self.lists):
            latest.update(dict.fromkeys(files.shared, number))
        if len(latest) < sum(len(files.shared) for files in self.lists):
            self.lists = [
                JobFiles(file for file in files if latest.get(file.path, number) == number)
                for number, files in enumerate(self.lists)
            ]
        self._ends = list(accumulate(map(len, self.lists)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> TableFile: ...

    @overload
    def __getitem__(self, index: slice) -> list[TableFile]: ...

    def __getitem__(self, index: int | slice) -> TableFile | list[TableFile]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        found = bisect_right(self._ends, number)
        return self.lists[found][number - (self._ends[found - 1] if found else 0)]

    def __iter__(self) -> Iterator[TableFile]:
        return chain.from_iterable(self.lists)


class FilesByPath:
    """Finds files by their paths. It is prepared at the first search, and again after it was pickled."""

    def __init__(self, files: Sequence[TableFile]) -> None:
        self._files = files
        self._index: tuple[memoryview[int], memoryview[int]] | None = None

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, path: str) -> TableFile:
        if not self._files:
            raise KeyError(path)
        if self._index is None:
            self._index = self._sorted()
        hashes, numbers = self._index
        wanted = hash(path)
        for position in range(bisect_left(hashes, wanted), len(hashes)):
            if hashes[position] != wanted:
                break
            file = self._files[numbers[position]]
            if file.path == path:
                return file
        raise KeyError(path)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FilesByPath) or len(self) != len(other):
            return False
        mine, theirs = self._files, other._files
        return mine is theirs or all(one == another for one, another in zip(mine, theirs, strict=True))

    __hash__ = None  # type: ignore[assignment] # it is not a key

    def __getstate__(self) -> dict[str, Any]:
        # Hashes of texts differ from process to process.
        return {"_files": self._files, "_index": None}

    def _sorted(self) -> tuple[memoryview[int], memoryview[int]]:
        hashes = array("q", (hash(file.path) for file in self._files))
        unsorted = pa.Array.from_buffers(pa.int64(), len(hashes), [None, pa.py_buffer(hashes)])
        order = pc.sort_indices(unsorted)
        return _view(unsorted.take(order), "q"), _view(order, "Q")


def _view(values: pa.Array, kind: Literal["q", "Q"]) -> memoryview[int]:
    return memoryview(values.buffers()[1]).cast("B").cast(kind)[: len(values)]

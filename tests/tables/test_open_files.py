"""What a task holds is bounded."""

from __future__ import annotations

import io
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_s3commit.exceptions import AccessDenied
from airflow_s3commit.tables import write as write_module
from airflow_s3commit.tables.encoder import Encoder
from airflow_s3commit.tables.options import TableOptions
from airflow_s3commit.tables.write import OpenFiles, TablePlan, write_batches
from tests.protocol.building import Lake

if TYPE_CHECKING:
    from collections.abc import Iterator

_MIB = 1024 * 1024


class Files:
    """Opens files that only count the rows of each directory."""

    def __init__(self) -> None:
        self.rows: Counter[str] = Counter()
        self.files: Counter[str] = Counter()

    def check_schema(self, schema: str | None) -> None:
        """Take any columns."""

    def open(self, relative_path: str, **_: object) -> File:
        """Open a file."""
        directory = relative_path.rpartition("/")[0]
        self.files[directory] += 1
        return File(self, directory)


class File:
    """Drops its bytes."""

    buffered = 0

    def __init__(self, files: Files, directory: str) -> None:
        self._files, self._directory = files, directory

    def write(self, data: bytes) -> int:
        """Drop bytes."""
        return len(data)

    def close(self, rows: int | None = None, **_: object) -> None:
        """Count the rows."""
        self._files.rows[self._directory] += rows or 0


class Measured:
    """Passes batches on, and measures the most memory that Arrow has meanwhile."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._before = pa.total_allocated_bytes()
        self.most = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.most = max(self.most, pa.total_allocated_bytes() - self._before)
            yield batch


def write(batches: Measured, schema: pa.Schema, options: TableOptions) -> Files:
    """Write batches by their column ``p``, and return what was written."""
    files = Files()
    written = write_batches(files, batches, TablePlan(schema, ("p",), options), "f", empty_file=True)
    assert (written.rows, written.files) == (files.rows.total(), files.files.total())
    return files


@pytest.mark.slow
def test_rows_of_very_many_partitions_stay_within_their_bound() -> None:
    """Lots of a row or two take far more than their values: that is counted, and no row is lost."""
    schema = pa.schema([("p", pa.int64()), *((f"c{number}", pa.int64()) for number in range(12))])
    batches = Measured(
        pa.record_batch([pa.array([number % 1_500]), *(pa.array([n]) for n in range(12))], schema=schema)
        for number in range(6_000)
    )
    found = write(batches, schema, TableOptions(row_bytes=8 * _MIB))
    assert found.rows == Counter({f"p={number}": 4 for number in range(1_500)})
    assert batches.most < 6 * _MIB


@pytest.mark.slow
def test_partitions_with_few_rows_wait_for_more_of_them() -> None:
    """When rows fill their bound, those of the largest partitions are written; small ones have one file."""
    schema = pa.schema([("p", pa.string()), ("x", pa.int64())])
    size = _MIB // 8

    def each() -> Iterator[pa.RecordBatch]:
        for _ in range(100):
            keys = pa.array(["small"] * 10 + ["large"] * (size - 10))
            # As if the numbers came from Arrow's own memory, which numpy's isn't.
            yield pa.record_batch(
                [keys, pa.array(np.arange(size)).take(pa.array(np.arange(size)))], schema=schema
            )

    batches = Measured(each())
    found = write(batches, schema, TableOptions(row_bytes=8 * _MIB, row_group_bytes=2 * _MIB))
    assert found.rows == Counter({"p=large": 100 * (size - 10), "p=small": 1_000})
    assert found.files == Counter({"p=large": 1, "p=small": 1})
    assert batches.most < 10 * _MIB


def test_clustered_rows_have_one_file_for_each_partition() -> None:
    """Whatever the bounds, a partition whose rows follow one another is one file."""
    schema = pa.schema([("p", pa.int64()), ("x", pa.int64())])
    keys = np.repeat(np.arange(300), 5_000)
    table = pa.table([pa.array(keys), pa.array(np.arange(len(keys)))], schema=schema)
    batches = Measured(iter(table.to_batches(max_chunksize=2_000)))
    found = write(batches, schema, TableOptions(row_bytes=2 * _MIB, open_files=4))
    assert found.rows == Counter({f"p={number}": 5_000 for number in range(300)})
    assert set(found.files.values()) == {1}


def test_files_end_at_the_limit_of_rows_and_groups_at_that_of_bytes() -> None:
    """However rows come, no file has more rows than its limit, and no row group more bytes than its own."""
    schema, bodies = pa.schema([("n", pa.int64())]), []

    class Kept(io.BytesIO):
        buffered = 0

        def close(self, **_: object) -> None:
            if not self.closed:
                bodies.append(self.getvalue())
            super().close()

    opener = SimpleNamespace(open=lambda *_, **__: Kept())
    options = TableOptions(max_records_per_file=4, row_group_bytes=16)
    with OpenFiles(opener, schema, options, "f") as files:
        for numbers in ([0, 1, 2], [3, 4, 5, 6, 7]):
            files.write("", pa.table({"n": numbers}, schema=schema))
        files.close()
    found = [pq.ParquetFile(io.BytesIO(body)) for body in bodies]
    groups = [[one.metadata.row_group(n).num_rows for n in range(one.num_row_groups)] for one in found]
    assert groups == [[2, 1, 1], [2, 2]]
    assert [n for one in found for n in one.read()["n"].to_pylist()] == [*range(8)]


def test_batches_are_counted_with_what_they_take_besides_their_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Large ones are cut, and a task that gets a row at a time soon writes."""
    large = pa.record_batch({"n": pa.array(range(1_000), pa.int64())})
    assert [(piece.num_rows, held) for piece, held in write_module._cut([large], 800)] == [
        (100, 800 + 512 + 384)
    ] * 10
    waiting, inner = [], write_module._write_largest

    def spy(batches: list[pa.RecordBatch], *more: object) -> object:
        waiting.append(len(batches))
        return inner(batches, *more)

    monkeypatch.setattr(write_module, "_write_largest", spy)
    schema = pa.schema([("p", pa.int64()), ("n", pa.int64())])
    batches = (pa.record_batch([pa.array([n]), pa.array([n])], schema=schema) for n in range(500))
    options = TableOptions(row_bytes=2 * 100 * (16 + 512 + 2 * 384))
    assert write(batches, schema, options).rows.total() == 500
    assert waiting[:2] == [100, 100]


class Places:
    """Opens files of ten buffered bytes, which only those in ``a`` can send, and notes which are open."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.closed: list[str] = []
        self.content_type = ""

    def open(self, relative_path: str, *, content_type: str = "") -> SimpleNamespace:
        """Open a file."""
        directory, self.content_type = relative_path.rpartition("/")[0], content_type
        self.opened.append(directory)
        file = SimpleNamespace(write=len, buffered=10)
        file.close = lambda **_: self.closed.append(directory)
        file.send_buffered = lambda: setattr(file, "buffered", 0 if directory == "a" else 10)
        return file


def test_the_file_that_was_not_written_for_longest_is_closed_first() -> None:
    """No more files are open than there may be, and none is closed before it has to be."""
    rows, places = pa.table({"n": [1]}), Places()
    with OpenFiles(places, rows.schema, TableOptions(open_files=2), "f") as files:
        for directory in ("a", "b", "a", "c"):
            files.write(directory, rows)
        assert (places.opened, places.closed) == (["a", "b", "c"], ["b"])
        files.close()
    assert (places.closed, places.content_type) == (["b", "a", "c"], "application/vnd.apache.parquet")


def test_files_that_hold_too_much_send_it_or_are_closed() -> None:
    """What can be sent is sent first; then the files that were written longest ago are closed."""
    rows, places = pa.table({"n": [1]}), Places()
    with OpenFiles(places, rows.schema, TableOptions(encoded_bytes=15), "f") as files:
        for directory, closed in (("a", []), ("b", []), ("c", ["a", "b"])):
            files.write(directory, rows)
            assert places.closed == closed


def test_a_file_that_cannot_be_let_go_hides_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stopped the write is raised; that Arrow could not let go of a file is a note of it."""
    abandon = Encoder.abandon

    def fail(encoder: Encoder) -> None:
        abandon(encoder)
        raise pa.ArrowInvalid("the footer is gone")

    monkeypatch.setattr(Encoder, "abandon", fail)
    schema = pa.schema([("n", pa.int64())])

    def write() -> None:
        attempt = Lake().set_up().task_attempt("spark", "1", "00000", "1", threads=0)
        with attempt, OpenFiles(attempt, schema, TableOptions(), stem="part") as files:
            files.write("dt=1", pa.table({"n": [1]}, schema=schema))
            raise AccessDenied("no")

    with pytest.raises(AccessDenied, match="no") as caught:
        write()
    assert "ArrowInvalid: the footer is gone" in caught.value.__notes__[0]


def test_a_target_size_has_several_row_groups() -> None:
    """Where a size is asked for, row groups are a part of it, so that it is not missed by a whole one."""
    assert TableOptions(target_file_bytes=64 * _MIB).group_bytes == 16 * _MIB
    assert TableOptions(target_file_bytes=1024 * _MIB).group_bytes == 48 * _MIB
    assert TableOptions().group_bytes == 48 * _MIB

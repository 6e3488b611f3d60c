"""What a task holds is bounded."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from airflow_s3commit.exceptions import AccessDenied
from airflow_s3commit.tables.open_files import OpenFiles, RowBuffers
from airflow_s3commit.tables.options import TableOptions
from airflow_s3commit.tables.parquet import ParquetEncoder, ParquetForm
from tests.protocol.building import Lake

_MIB = 1024 * 1024


def test_rows_of_very_many_partitions_stay_within_their_bound() -> None:
    """Lots of a row or two take far more than their values: that is counted, and no row is lost."""
    schema = pa.schema([(f"c{number}", pa.int64()) for number in range(12)])
    passed: list[int] = []
    buffers = RowBuffers(
        schema, TableOptions(row_bytes=4 * _MIB), lambda _, rows: passed.append(rows.num_rows)
    )
    before = pa.total_allocated_bytes()
    most = 0
    for number in range(12_000):
        row = pa.record_batch([pa.array([number])] * 1 + [pa.array([n]) for n in range(11)], schema=schema)
        buffers.add(f"p={number % 3_000}", row)
        most = max(most, pa.total_allocated_bytes() - before)
    buffers.flush()
    assert sum(passed) == 12_000
    assert most < 6 * _MIB


def test_spare_memory_is_given_back_before_more_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """What allocators keep unused goes before rows are encoded, and only when there are too many to keep."""
    events: list[str] = []
    monkeypatch.setattr(
        "airflow_s3commit.tables.open_files.give_memory_back", lambda: events.append("given back")
    )
    schema = pa.schema([("x", pa.int64())])
    options = TableOptions(row_bytes=_MIB, row_group_bytes=_MIB)
    buffers = RowBuffers(schema, options, lambda directory, _: events.append(directory))
    rows = pa.record_batch([pa.array(np.arange(_MIB // 16))], schema=schema)
    for directory in ("a", "a", "b", "c", "d"):
        buffers.add(directory, rows)
    assert events == ["a", "given back", "b", "c"]


def test_lots_of_one_partition_are_put_together() -> None:
    """Rows that come one by one wait as few batches, and are passed on in their order."""
    schema = pa.schema([("x", pa.int64())])
    passed: list[pa.Table] = []
    buffers = RowBuffers(schema, TableOptions(), lambda _, rows: passed.append(rows))
    for number in range(1_000):
        buffers.add("p=1", pa.record_batch({"x": [number]}))
    buffers.flush()
    (table,) = passed
    assert table["x"].to_pylist() == list(range(1_000))
    assert table["x"].num_chunks < 100


def test_rows_of_a_small_partition_do_not_keep_those_of_a_large_one_in_memory() -> None:
    """Slices of batches they share are copied out of them when the others' rows were passed on."""
    schema = pa.schema([("x", pa.int64())])
    passed: dict[str, int] = {"large": 0, "small": 0}

    def pass_on(directory: str, rows: pa.Table) -> None:
        passed[directory] += rows.num_rows

    options = TableOptions(row_bytes=4 * _MIB, row_group_bytes=2 * _MIB)
    buffers = RowBuffers(schema, options, pass_on)
    before = pa.total_allocated_bytes()
    most = 0
    for _ in range(100):
        batch = pa.record_batch([pa.array(np.arange(_MIB // 8))], schema=schema)
        # As if it came from Arrow's own memory, which numpy's isn't.
        batch = batch.take(pa.array(np.arange(batch.num_rows)))
        buffers.add("small", batch.slice(0, 10))
        buffers.add("large", batch.slice(10))
        most = max(most, pa.total_allocated_bytes() - before)
    buffers.flush()
    assert passed == {"large": 100 * (_MIB // 8 - 10), "small": 1_000}
    assert most < 7 * _MIB


def test_a_file_that_cannot_be_let_go_hides_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stopped the write is raised; that Arrow could not let go of a file is a note of it."""
    abandon = ParquetEncoder.abandon

    def fail(encoder: ParquetEncoder) -> None:
        abandon(encoder)
        raise pa.ArrowInvalid("the footer is gone")

    monkeypatch.setattr(ParquetEncoder, "abandon", fail)
    schema = pa.schema([("n", pa.int64())])

    def write() -> None:
        attempt = Lake().set_up().task_attempt("spark", "1", "00000", "1", threads=0)
        with attempt, OpenFiles(attempt, schema, ParquetForm(), TableOptions(), stem="part") as files:
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

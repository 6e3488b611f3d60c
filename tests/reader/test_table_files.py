"""Files in columns are the same files, and are read in parts: each row exactly once."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import structs
from pyarrow import orc
from pyarrow.fs import LocalFileSystem

from airflow_s3commit.protocol.model.statistics import ColumnStatistics
from airflow_s3commit.reader.formats import FileReading
from airflow_s3commit.reader.listing import Table
from airflow_s3commit.reader.pruning import PartitionColumns
from airflow_s3commit.reader.table import dataset_of
from airflow_s3commit.reader.table_files import (
    FilePart,
    FilesByPath,
    JobFiles,
    PackedFiles,
    TableFile,
    stripes_of,
)
from tests.cases import each

if TYPE_CHECKING:
    from pathlib import Path

ONE = [
    TableFile("lake/t/dt=1/a-j1.parquet", 10, "dt=1", "j1", 3),
    TableFile("lake/t/dt=é/b-j1.parquet", 2**40, "dt=é", "j1", 0, {"n": ColumnStatistics(nulls=1)}),
    TableFile("lake/t/c-j1.parquet", 0, "", "j1"),
]
OTHER = [TableFile("lake/t/dt=1/a-j2.parquet", 11, "dt=1", "j2", None)]


def test_what_is_packed_comes_out_as_it_was() -> None:
    """Every field of every file, by number, in slices and in order."""
    files = PackedFiles([JobFiles(ONE), JobFiles([]), JobFiles(OTHER)])
    assert list(files) == [*ONE, *OTHER]
    assert (len(files), files[0], files[3], files[-1]) == (4, ONE[0], OTHER[0], OTHER[0])
    assert files[1:9] == [*ONE[1:], *OTHER]
    with pytest.raises(IndexError):
        _ = files[4]
    assert (len(PackedFiles([])), list(PackedFiles([JobFiles([])]))) == (0, [])


def test_of_two_files_with_one_path_the_later_counts() -> None:
    """Fixed names do not contain the job's id; whatever else the jobs have stays."""
    old = [TableFile("lake/t/a.parquet", 1, "", "j1"), TableFile("lake/t/b.parquet", 2, "", "j1")]
    new = [TableFile("lake/t/a.parquet", 3, "", "j2")]
    assert list(PackedFiles([JobFiles(old), JobFiles(new)])) == [old[1], *new]


def test_a_file_is_found_by_its_path() -> None:
    """Before and after pickling; files that are equal make equal file systems."""
    found = FilesByPath(PackedFiles([JobFiles(ONE), JobFiles(OTHER)]))
    for files in (found, pickle.loads(pickle.dumps(found))):
        assert [files[file.path] for file in (*OTHER, *ONE)] == [*OTHER, *ONE]
        with pytest.raises(KeyError):
            files["lake/t/none"]
    assert found == FilesByPath([*ONE, *OTHER])
    assert found != FilesByPath(ONE)
    assert found != FilesByPath([*ONE, *ONE[:1]])
    assert FilesByPath([]) == FilesByPath(PackedFiles([]))
    with pytest.raises(KeyError):
        FilesByPath([])["x"]


ROWS = pa.table({"n": pa.array(range(20_000), pa.int64()), "s": [str(n) for n in range(20_000)]})


def parts_of(path: Path, length: int) -> list[FilePart]:
    """Return a file in parts."""
    file = TableFile(str(path), path.stat().st_size, "dt=7", "")
    return [
        FilePart(**structs.asdict(file), start=start, length=min(length, file.size - start))
        for start in range(0, file.size, length)
    ]


@each("length", [1_000, 30_000, 10**9])
def test_each_row_group_is_in_one_part(tmp_path: Path, length: int) -> None:
    """Parts that are smaller than a row group are empty or have one; together they are the file."""
    path = tmp_path / "a.parquet"
    pq.write_table(ROWS, path, row_group_size=1_500)
    columns, found = PartitionColumns(["dt=7"]), []
    for part in parts_of(path, length):
        table = Table("s3://lake/t/", 1, [part], ["dt=7"])
        read = dataset_of(table, LocalFileSystem(), columns, ROWS.schema, reading=FileReading())
        rows = read.to_table()
        assert set(rows["dt"].to_pylist()) <= {7}
        found += rows["n"].to_pylist()
    assert sorted(found) == ROWS["n"].to_pylist()


@each("length", [500, 30_000, 10**9])
def test_each_stripe_is_in_one_part(tmp_path: Path, length: int) -> None:
    """The same for ORC, with the partition columns and without columns that the file lacks."""
    path = tmp_path / "a.orc"
    orc.write_table(ROWS, path, stripe_size=4_096, batch_size=500)
    assert orc.ORCFile(path).nstripes > 5
    columns, found = PartitionColumns(["dt=7"]), []
    for part in parts_of(path, length):
        for stripe in stripes_of(part, LocalFileSystem(), columns, ["n", "missing", "dt"]):
            assert stripe.column_names == ["n", "dt"]
            assert set(stripe["dt"].to_pylist()) == {7}
            found += stripe["n"].to_pylist()
    assert sorted(found) == ROWS["n"].to_pylist()

"""Large files are read in parts: each row exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import structs
from pyarrow import orc
from pyarrow.fs import LocalFileSystem

from airflow_s3commit.reader.formats import FileReading
from airflow_s3commit.reader.listing import Table
from airflow_s3commit.reader.packed import TableFile
from airflow_s3commit.reader.partitions import PartitionColumns
from airflow_s3commit.reader.parts import FilePart, stripes_of
from airflow_s3commit.reader.table import dataset_of
from tests.cases import each

if TYPE_CHECKING:
    from pathlib import Path

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

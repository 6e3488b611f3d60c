"""Generated frames over Spark's types, nulls and nesting, against the files of Spark's own writer."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

import duckdb
import pyarrow.parquet as pq
import pytest

from tests.spark.conftest import write

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.spark.conftest import Lake

pytestmark = [pytest.mark.spark, pytest.mark.seaweedfs, pytest.mark.xdist_group("spark"), pytest.mark.all]

#: Expressions of every type that is not nested, some never null.
PLAIN = (
    "id", "cast(id as tinyint)", "cast(id as smallint)", "cast(id as int)", "cast(id as float) / 3",
    "id / 7D",
    "cast(id as decimal(9, 2))", "cast(id as decimal(20, 3))", "cast(id as decimal(38, 10))", "id % 2 = 0",
    "cast(id as string)", "'é'", "cast('x' as char(3))", "cast('y' as varchar(9))", "'a' collate UTF8_LCASE",
    "cast(cast(id as string) as binary)", "date_add(date'1900-01-01', cast(id * 9999 as int))",
    "timestamp_micros(id * 1000001)", "cast(timestamp_micros(id) as timestamp_ntz)",
    "make_dt_interval(0, 0, 0, id)",
)  # fmt: skip


def expression(rng: random.Random, depth: int) -> str:
    """Return an expression of a random type, nested to this depth or less, null for some rows or none."""
    shape = rng.choice(("plain", "struct", "array", "map")) if depth else "plain"
    if shape == "struct":
        fields = (f"'f{number}', {expression(rng, depth - 1)}" for number in range(rng.randint(1, 3)))
        found = f"named_struct({', '.join(fields)})"
    elif shape == "array":
        element = expression(rng, depth - 1)
        found = f"array({', '.join([element, *rng.choice(([], ['null'], [element]))])})"
    elif shape == "map":
        found = f"map('k', {expression(rng, depth - 1)})"
    else:
        found = rng.choice(PLAIN)
    return found if rng.random() < 0.5 else f"if(id % {rng.randint(1, 4)} = 0, null, {found})"


@pytest.mark.parametrize("seed", range(2))
def test_generated_frames_equal_sparks_own(
    spark: SparkSession, lake: Lake, tmp_path: Path, seed: int
) -> None:
    """Schema and rows are Spark's own, as Spark, pyarrow and DuckDB read them."""
    rng = random.Random(seed)
    columns = [*PLAIN, *(expression(rng, 3) for _ in range(25))]
    frame = spark.range(40, numPartitions=1).selectExpr(
        "id as row", *(f"{sql} as c{number}" for number, sql in enumerate(columns))
    )
    write(frame, lake)
    ours, native = lake.download(tmp_path / "ours"), tmp_path / "native"
    frame.write.parquet(str(native))
    by_spark = [spark.read.parquet(str(place)) for place in (ours, native)]
    assert by_spark[0].schema == by_spark[1].schema
    rows = [Counter(map(repr, found.collect())) for found in by_spark]
    assert rows[0] == rows[1]
    # Spark's own times are INT96, which pyarrow takes for others.
    names = [f"c{number}" for number, sql in enumerate(columns) if "timestamp" not in sql]
    tables = [pq.read_table(place, columns=["row", *names]).sort_by("row") for place in (ours, native)]
    # Ours may be null everywhere.
    assert repr(tables[0].to_pylist()) == repr(tables[1].to_pylist())
    wanted = ", ".join(name for name in names if "interval" not in columns[int(name[1:])])
    by_duckdb = [
        duckdb.sql(f"select {wanted} from read_parquet('{place}/*.parquet') order by row")
        for place in (ours, native)
    ]
    assert by_duckdb[0].types == by_duckdb[1].types
    assert repr(by_duckdb[0].fetchall()) == repr(by_duckdb[1].fetchall())

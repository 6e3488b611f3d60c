"""Spark's filters, as Arrow compares them with the known facts about files."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from airflow_s3commit.protocol.model.statistics import ColumnStatistics
from airflow_s3commit.reader.pruning import bounds_expression
from airflow_s3commit.reader.table_files import FilePart, TableFile
from airflow_s3commit.spark.read_plan import SplitSizes, as_arrow, columns_of, keep, split_files
from tests.cases import each

datasource = pytest.importorskip("pyspark.sql.datasource")
if not hasattr(datasource, "EqualTo"):
    pytest.skip("this PySpark pushes no filters", allow_module_level=True)

SCHEMA = pa.schema(
    [
        ("n", pa.int32()), ("s", pa.string()), ("d", pa.date32()), ("f", pa.float64()), ("b", pa.bool_()),
        ("t", pa.timestamp("us", "UTC")), ("c", pa.decimal128(6, 2)),
    ]
)  # fmt: skip

#: Rows that each represent a file by its known values.
ROWS: list[dict[str, Any]] = [
    {"n": 1, "s": "ab", "d": dt.date(2013, 1, 1), "f": 1.0, "b": True, "c": Decimal("1.50")},
    {"n": 2, "s": "b", "d": dt.date(2013, 1, 2), "f": float("nan"), "b": False, "c": Decimal("-2.00")},
    {"n": 3, "s": "é", "d": dt.date(2013, 1, 3), "f": 3.0, "b": True, "c": Decimal("3.00")},
    dict.fromkeys(("n", "s", "d", "f", "b", "c")),
]


def spark_filter(name: str, *arguments: Any) -> Any:
    """Return a filter as Spark pushes it; ``not X`` is the negation of X."""
    if name.startswith("not "):
        return datasource.Not(spark_filter(name.removeprefix("not "), *arguments))
    column, *value = arguments
    return getattr(datasource, name)((column,), *value)


def left(*filters: Any) -> list[int]:
    """Return the numbers of the rows' files that filters leave."""
    known = {
        number: reduce(and_, (_equals(name, value) for name, value in row.items() if name != "f"))
        for number, row in enumerate(ROWS)
    }
    return list(keep(known, SCHEMA, as_arrow(filters, SCHEMA)))


def _equals(name: str, value: Any) -> ds.Expression:
    field = ds.field(name)
    return field.is_null() if value is None else field == pa.scalar(value, SCHEMA.field(name).type)


@each(
    ("one", "files"),
    [
        (("EqualTo", "n", 2), [1]),
        (("not EqualTo", "n", 2), [0, 2]),
        (("EqualNullSafe", "n", None), [3]),
        (("not EqualNullSafe", "n", 2), [0, 2, 3]),
        (("In", "n", (1, 3, None)), [0, 2]),
        (("In", "n", tuple(range(2, 200))), [1, 2]),
        (("GreaterThan", "d", dt.date(2013, 1, 1)), [1, 2]),
        (("GreaterThanOrEqual", "d", dt.date(2013, 1, 2)), [1, 2]),
        (("LessThan", "s", "b"), [0]),
        (("LessThanOrEqual", "c", Decimal("1.5")), [0, 1]),
        (("not LessThan", "n", 2), [1, 2]),
        (("IsNull", "s"), [3]),
        (("IsNotNull", "s"), [0, 1, 2]),
        (("not IsNull", "s"), [0, 1, 2]),
        (("StringStartsWith", "s", "a"), [0]),
        (("StringContains", "s", "b"), [0, 1]),
        (("not StringEndsWith", "s", "b"), [2]),
        (("EqualTo", "b", True), [0, 2]),
    ],
)
def test_a_filter_leaves_the_files_that_may_have_its_rows(one: tuple[Any, ...], files: list[int]) -> None:
    """Each kind of filter excludes exactly the files whose known values contradict it."""
    assert left(spark_filter(*one)) == files


def test_a_negated_list_excludes_no_row_that_spark_keeps() -> None:
    """Null is neither in a list nor outside it, and Spark drops such rows itself."""
    assert {0, 2} <= set(left(spark_filter("not In", "n", (2,)))) <= {0, 2, 3}


@each(
    "one",
    [
        ("EqualTo", "f", 1.0),
        ("EqualTo", "n", "2"),
        ("EqualTo", "n", 2**40),
        ("EqualTo", "d", dt.datetime(2013, 1, 1)),
        ("EqualTo", "t", dt.datetime(2013, 1, 1)),
        ("EqualTo", "c", Decimal("1.555")),
        ("In", "n", (1, "x")),
        ("EqualTo", "unknown", 1),
        ("StringContains", "n", "1"),
    ],
)
def test_a_filter_that_arrow_compares_differently_leaves_all_files(one: tuple[Any, ...]) -> None:
    """Floats, other types than the column's, and unknown columns exclude nothing."""
    assert left(spark_filter(*one)) == [0, 1, 2, 3]


def test_filters_are_joined_by_and() -> None:
    """Each one excludes files; nested fields are not columns."""
    both = [spark_filter("GreaterThan", "n", 1), spark_filter("not EqualTo", "s", "é")]
    assert left(*both) == [1]
    inner = datasource.EqualTo(("n", "x"), 1)
    assert left(inner) == [0, 1, 2, 3]
    assert columns_of([*both, inner]) == {"n", "s"}


def test_a_files_bounds_exclude_it() -> None:
    """A comparison with a value beyond the minimum or maximum excludes the file."""
    known = {
        start: bounds_expression(
            {"n": ColumnStatistics(values=5, nulls=1, least=start, greatest=start + 9)}, SCHEMA, ["n"]
        )
        for start in (0, 10, 20)
    }
    for one, files in (
        (spark_filter("EqualTo", "n", 15), [10]),
        (spark_filter("In", "n", (5, 25)), [0, 20]),
        (spark_filter("In", "n", tuple(range(12, 100))), [10, 20]),
        (spark_filter("LessThan", "n", 10), [0]),
        (spark_filter("IsNull", "n"), [0, 10, 20]),
    ):
        assert keep(known, SCHEMA, as_arrow([one], SCHEMA)) == files


def files_of(*sizes: int) -> list[TableFile]:
    """Return files of these sizes."""
    return [TableFile(f"lake/{number}", size, "", "") for number, size in enumerate(sizes)]


def sizes_of(groups: list[list[TableFile]]) -> list[list[int]]:
    """Return the bytes of each task's files."""
    return [[file.length if isinstance(file, FilePart) else file.size for file in group] for group in groups]


def test_small_files_share_a_task_at_the_cost_of_opening_them() -> None:
    """A task takes files, largest first, until their bytes and the cost of opening them exceed its size."""
    sizes = SplitSizes(partition_bytes=100, open_cost=20)
    assert sizes_of(split_files(files_of(10, 30, 10, 30, 10), sizes, splittable=True)) == [
        [30, 30],
        [10, 10, 10],
    ]
    free = SplitSizes(partition_bytes=100, open_cost=0)
    assert sizes_of(split_files(files_of(10, 30, 10, 30, 10), free, splittable=True)) == [
        [30, 30, 10, 10, 10]
    ]
    assert split_files([], sizes, splittable=True) == []


def test_a_large_file_is_read_in_parts() -> None:
    """The ranges are contiguous up to the file's end; a file that cannot be split is a single task."""
    sizes = SplitSizes(partition_bytes=100, open_cost=20)
    groups = split_files(files_of(250, 30), sizes, splittable=True)
    assert sizes_of(groups) == [[100], [100], [50, 30]]
    parts = [file for group in groups for file in group if isinstance(file, FilePart)]
    assert [(part.start, part.length, part.size) for part in parts] == [
        (0, 100, 250), (100, 100, 250), (200, 50, 250)
    ]  # fmt: skip
    assert sizes_of(split_files(files_of(250, 30), sizes, splittable=False)) == [[250], [30]]


def test_every_core_gets_a_task() -> None:
    """Tasks are smaller than their maximum if there would otherwise be too few of them."""
    sizes = SplitSizes(partition_bytes=1_000, open_cost=10, tasks=4)
    assert len(split_files(files_of(*[90] * 8), sizes, splittable=True)) == 4


@each(
    ("conf", "wanted"),
    [
        ({}, SplitSizes(128 << 20, 4 << 20, 3)),
        (
            {"spark.sql.files.maxPartitionBytes": "32MB", "spark.sql.files.openCostInBytes": "0"},
            SplitSizes(32 << 20, 0, 3),
        ),
        (
            {"spark.sql.files.maxPartitionBytes": "134217728b", "spark.sql.files.minPartitionNum": "7"},
            SplitSizes(128 << 20, 4 << 20, 7),
        ),
        ({"spark.sql.leafNodeDefaultParallelism": "5"}, SplitSizes(tasks=5)),
    ],
)
def test_the_sessions_sizes_are_used(conf: dict[str, str], wanted: SplitSizes) -> None:
    """They are those of Spark's own readers, in Spark's notation, with its defaults."""
    assert SplitSizes.of_conf(conf.get, 3) == wanted


def test_an_invalid_size_is_refused() -> None:
    """A text without a number is not taken for the default."""
    with pytest.raises(ValueError, match="not a size"):
        SplitSizes.of_conf({"spark.sql.files.maxPartitionBytes": "many"}.get)

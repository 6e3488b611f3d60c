"""Rows of any types and partition values that are written through Spark are read back unchanged."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from decimal import Decimal
from random import Random
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.types as pt
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from airflow_s3commit.reader import dataset
from airflow_s3commit.spark import read_table, write_pending
from tests.spark.conftest import Lake, write

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    Flat = dict[pa.DataType, st.SearchStrategy[Any]]

pytestmark = [pytest.mark.spark, pytest.mark.seaweedfs, pytest.mark.xdist_group("spark"), pytest.mark.all]

#: An example costs Spark seconds, so there are few, each with many columns and rows.
FEW = settings(
    max_examples=4,
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)

NAMES = ["plain", "with space", "dot.ted", "ünï", "semi;colon=", "back`tick", "UPPER", "a,b", "(x)"]
PARTITIONS = ["p", "part ition", "größe=%"]

#: Characters with a meaning in paths, escapes, CSV or JSON, and letters of several sizes.
CHARACTERS = "ab01 /\\%=:#?*[]{}\"'`,;.+-_~^|&<>@$!\n\r\t\x01\x7féß漢😀"
TEXT = st.one_of(
    st.sampled_from(["", " ", "null", "NULL", "007", "1e5", "2013-01-01", "true", ".."]),
    st.text(CHARACTERS, max_size=8),
)
DAYS = st.one_of(
    st.sampled_from([dt.date(1, 1, 3), dt.date(1582, 10, 4), dt.date(1582, 10, 15), dt.date(9999, 12, 29)]),
    st.dates(dt.date(1, 1, 3), dt.date(9999, 12, 29)),
)
MOMENTS = st.one_of(
    st.sampled_from([dt.datetime(1899, 12, 31, 23, 59, 59, 999999), dt.datetime(1582, 10, 4, 1)]),
    st.datetimes(dt.datetime(1, 1, 3), dt.datetime(9999, 12, 29)),
)
DOUBLES = st.floats() | st.sampled_from([0.0, -0.0, 1e300, 4.9e-324, 1e7, 9.99e-4, 2e23])


def _whole(bits: int) -> st.SearchStrategy[int]:
    least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return st.sampled_from([least, most, 0, -1]) | st.integers(least, most)


def _in_utc(moment: dt.datetime) -> dt.datetime:
    return moment.replace(tzinfo=dt.UTC)


def _decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    # Not by `scaleb`, which rounds to 28 digits.
    return st.integers(-most, most).map(lambda number: Decimal(f"{number}e-{scale}"))


#: Every flat type that the writer takes, with its values.
FLAT: Flat = {
    pa.bool_(): st.booleans(),
    pa.int8(): _whole(8),
    pa.int16(): _whole(16),
    pa.int32(): _whole(32),
    pa.int64(): _whole(64),
    pa.float32(): st.floats(width=32),
    pa.float64(): DOUBLES,
    pa.decimal128(9, 2): _decimals(9, 2),
    pa.decimal128(20, 10): _decimals(20, 10),
    pa.decimal128(38, 0): _decimals(38, 0),
    pa.string(): TEXT,
    pa.binary(): st.binary(max_size=8),
    pa.date32(): DAYS,
    pa.timestamp("us", "UTC"): MOMENTS.map(_in_utc),
    pa.timestamp("us"): MOMENTS,
    pa.duration("us"): st.timedeltas(dt.timedelta(-10_000), dt.timedelta(10_000)),
}

#: Types of partition columns whose texts readers take back for what they were.
IN_PATHS = [pa.string(), pa.int32(), pa.int64(), pa.bool_(), pa.date32(), pa.decimal128(9, 2)]


def _nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return st.one_of(
        inner.map(lambda kind: pa.list_(pa.field("element", kind))),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda kinds: pa.struct([(NAMES[number], kind) for number, kind in enumerate(kinds)])
        ),
        inner.map(lambda kind: pa.map_(pa.string(), kind)),
    )


def _values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Return a strategy of values of a type, nulls among them wherever there may be one."""
    if pt.is_struct(kind):
        children = [kind.field(number) for number in range(kind.num_fields)]
        fields = {child.name: _values(child.type) for child in children}
        whole: st.SearchStrategy[Any] = st.fixed_dictionaries(fields)
    elif pt.is_map(kind):
        pairs = st.dictionaries(TEXT, _values(kind.item_type), max_size=3)
        whole = pairs.map(lambda found: list(found.items()))
    elif pt.is_list(kind):
        whole = st.lists(_values(kind.value_type), max_size=3)
    else:
        whole = FLAT[kind]
    return st.none() | whole


@st.composite
def tables(draw: st.DrawFn) -> tuple[pa.Table, list[str]]:
    """Draw a table that has a column of each type and some of nested ones, and its partition columns."""
    kinds = list(FLAT)
    several = st.recursive(st.sampled_from(kinds), _nested, max_leaves=4).filter(pt.is_nested)
    kinds += [draw(several) for _ in range(3)]
    names = [*NAMES, *(f"c{number}" for number in range(len(kinds)))]
    schema = [pa.field(name, kind) for name, kind in zip(names, kinds, strict=False)]
    partitions = PARTITIONS[: draw(st.integers(0, 2))]
    schema += [pa.field(name, draw(st.sampled_from(IN_PATHS))) for name in partitions]
    # A few values for each column, and rows of these: partitions have several rows each.
    pools = [draw(st.lists(_values(field.type), min_size=3, max_size=8)) for field in schema]
    chosen = Random(draw(st.integers(0, 2**32)))
    rows = [[chosen.choice(pool) for pool in pools] for _ in range(30)]
    rows += rows[:5]
    arrays = [pa.array([row[at] for row in rows], field.type) for at, field in enumerate(schema)]
    return pa.Table.from_arrays(arrays, schema=pa.schema(schema)), partitions


def _plain(value: Any) -> Any:
    """Return a value as it can be compared by its text: times in UTC, maps in their order."""
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).isoformat() if value.tzinfo is not None else value.isoformat()
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


def rows_of(table: pa.Table, names: list[str]) -> Counter[str]:
    """Return a table's rows and how often each is there."""
    columns = [table[name].to_pylist() for name in names]
    return Counter(repr([_plain(value) for value in row]) for row in zip(*columns, strict=True))


def expected(table: pa.Table, partitions: list[str]) -> pa.Table:
    """Return the expected rows: an empty text makes no path, and is read as null, as in Spark."""
    for name in partitions:
        if pt.is_string(table.schema.field(name).type):
            found = [value or None for value in table[name].to_pylist()]
            at = table.schema.get_field_index(name)
            table = table.set_column(at, table.schema.field(name), pa.array(found, pa.string()))
    return table


def by_ours(spark: SparkSession, lake: Lake, schema: StructType) -> DataFrame:
    """Read a table by the log, in Spark."""
    return read_table(spark, lake.uri, schema=schema)


@pytest.fixture
def fresh(lake: Lake) -> Callable[[], Lake]:
    """Return a function that gives each example a new table."""
    return lambda: Lake(lake.store, lake.server, f"{lake.uri}{uuid4().hex}/")


@pytest.mark.parametrize("door", ["format", "write_pending"])
def test_parquet_of_any_rows_is_read_back(
    spark_with_s3a: SparkSession,
    fresh: Callable[[], Lake],
    tmp_path_factory: pytest.TempPathFactory,
    door: str,
) -> None:
    """Spark's own reader, ours and pyarrow find the written rows, whichever way they were written."""
    spark = spark_with_s3a

    @FEW
    @given(tables())
    def check(drawn: tuple[pa.Table, list[str]]) -> None:
        data, partitions = drawn
        lake, names = fresh(), data.column_names
        frame = _frame(spark, data)
        _write(frame, lake, partitions, door)
        wanted = rows_of(expected(data, partitions), names)
        copy = str(lake.download(tmp_path_factory.mktemp("copy")))
        native = spark.read.schema(frame.schema).parquet(copy)
        assert rows_of(native.toArrow(), names) == wanted
        assert rows_of(by_ours(spark, lake, frame.schema).toArrow(), names) == wanted
        # To others than Spark its intervals are whole numbers, unless they are told the type.
        kept = data.select(names[: len(names) - len(partitions)]).schema
        types = data.select(partitions).schema
        found = dataset(lake.server.config, lake.uri, schema=kept, partition_schema=types)
        assert rows_of(found.to_table(), names) == wanted

    check()


def _frame(spark: SparkSession, data: pa.Table) -> DataFrame:
    # So that times without a zone stay what they are.
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        return spark.createDataFrame(data)
    finally:
        spark.conf.unset("spark.sql.timestampType")


def _write(frame: DataFrame, lake: Lake, partitions: list[str], door: str) -> None:
    if door == "format":
        write(frame, lake, partitionBy=json.dumps(partitions))
    else:
        write_pending(frame, destination=lake.uri, partition_by=partitions, options=lake.options)

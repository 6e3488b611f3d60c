from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_s3commit.protocol.model.destination import NULL_DIRECTORY, escape, unescape
from airflow_s3commit.reader.listing import PartitionColumns, UnreadablePartitions, infer_type
from tests.protocol.building import OURS, THEIRS
from tests.reader.test_table import numbers

if TYPE_CHECKING:
    from tests.reader.conftest import Table


@given(st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"])))
def test_what_the_writer_escapes_is_read_back(text: str) -> None:
    """`unescape` is the inverse of the writer's escaping."""
    assert unescape(escape(text)) == text


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["1", "007", "-5"], pa.int32()),
        (["1", "2147483648"], pa.int64()),
        (["1", "9223372036854775808"], pa.decimal128(38, 0)),
        (["1", "9" * 39], pa.float64()),
        (["+1"], pa.decimal128(38, 0)),
        (["0000-01-01"], pa.string()),
        (["1", "2.5", "1e3"], pa.float64()),
        (["1", "NaN"], pa.string()),
        (["2013-01-01", "2024-02-29"], pa.date32()),
        (["2013-01-01", "2013-02-29"], pa.string()),
        (["2013-01-01", "1"], pa.string()),
        (["2013-01-01 00:00:00"], pa.string()),
        (["true", "false"], pa.string()),
        (["\u0661"], pa.string()),
        ([], pa.string()),
    ],
)
def test_types_are_inferred_as_spark_does(texts: list[str], kind: pa.DataType) -> None:
    """The narrowest type that holds all values, and string where none does."""
    assert infer_type(texts) == kind


def test_values_come_typed_and_unescaped() -> None:
    """Each directory makes one expression of its columns, null among them."""
    columns = PartitionColumns(["dt=2013-01-01/a%3Db=x%2Fy%25", f"dt={NULL_DIRECTORY}/a%3Db=Köln"])
    assert columns.schema == pa.schema([("dt", pa.date32()), ("a=b", pa.string())])
    assert str(columns.expressions["dt=2013-01-01/a%3Db=x%2Fy%25"]) == (
        '((dt == 2013-01-01) and (a=b == "x/y%"))'
    )
    assert "is_null(dt" in str(columns.expressions[f"dt={NULL_DIRECTORY}/a%3Db=Köln"])
    # Another program's: this package and Spark write null for an empty text.
    assert str(PartitionColumns(["a="]).expressions["a="]) == '(a == "")'


def test_a_given_type_is_taken() -> None:
    """What is named in the schema is not inferred; the rest is."""
    columns = PartitionColumns(["zip=01234/n=1"], pa.schema([("zip", pa.string())]))
    assert columns.schema == pa.schema([("zip", pa.string()), ("n", pa.int32())])
    moments = PartitionColumns(["t=2013-01-01 10%3A00%3A00"], pa.schema([("t", pa.timestamp("us"))]))
    assert str(dt.datetime(2013, 1, 1, 10)) in str(moments.expressions["t=2013-01-01 10%3A00%3A00"])


def test_a_value_that_is_not_of_the_given_type_is_named() -> None:
    """The error has column, value and type."""
    for kind in (pa.int32(), pa.list_(pa.int32())):
        with pytest.raises(UnreadablePartitions, match=f"'n' has the value 'x', which is not {kind}"):
            PartitionColumns(["n=x"], pa.schema([("n", kind)]))


def test_directories_that_do_not_go_together_are_refused() -> None:
    """All files have the same partition columns in the same order, and those given are among them."""
    with pytest.raises(UnreadablePartitions, match="different partition columns"):
        PartitionColumns(["a=1/b=1", "b=1/a=1"])
    with pytest.raises(UnreadablePartitions, match=r"partition_schema has c; the files' .* are a"):
        PartitionColumns(["a=1"], pa.schema([("c", pa.int32())]))


def test_plain_directories_make_no_columns() -> None:
    """A file at the root, or in a directory without `=`, has no partition columns."""
    columns = PartitionColumns(["", "some/where"])
    assert columns.schema.names == []
    assert columns.expressions[""] is None


INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]


def test_recorded_types_are_not_inferred(table: Table) -> None:
    """Texts that look like numbers stay texts, also beside columns of nested types."""
    data = pa.table(
        {
            "zip": ["01", "1"],
            **{f"n{one.bit_width}": pa.array([1, 2], one) for one in INTEGERS},
            "on": [True, False],
            "more": [{"a": 1}, None],
        }
    )
    columns = data.column_names[:-1]
    table.commit_as(data, partition_by=columns, format="parquet", options={})
    found = table.read().to_table()
    assert found.select(columns).schema.types == [pa.string(), *INTEGERS, pa.bool_()]
    assert sorted(found["zip"].to_pylist()) == ["01", "1"]
    given = pa.schema([("zip", pa.int32())])
    assert table.read(partition_schema=given).schema.field("zip").type == pa.int32()
    table.commit({"zip=3/n8=1/n16=1/n32=1/n64=1/on=true/a.parquet": numbers(1)}, THEIRS)
    assert table.read().schema.field("zip").type == pa.int32()


def test_a_column_that_commits_recorded_in_different_types_is_inferred(table: Table) -> None:
    """Integers that were followed by texts are texts, whatever the first commit recorded."""
    how = {"mode": "append", "partition_by": ["n"], "format": "parquet", "options": {}}
    for job_id, values in ((OURS, [1]), (THEIRS, ["x"])):
        table.commit_as(pa.table({"n": values, "id": [1]}), job_id=job_id, **how)
    assert sorted(table.read().to_table()["n"].to_pylist()) == ["1", "x"]

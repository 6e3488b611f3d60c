"""What is refused before any task starts, by the frame's schema alone; no JVM is needed."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    GeographyType,
    GeometryType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimeType,
    VariantType,
)

from airflow_s3commit.spark.options import parse_options
from airflow_s3commit.spark.plan import plan_table
from airflow_s3commit.tables import UnsupportedColumn

FORMATS = ("parquet", "orc", "csv", "json")


def schema(kind: DataType) -> StructType:
    """Return a schema with a column of this type beside another."""
    return StructType([StructField("id", LongType()), StructField("c", kind)])


def nested(kind: DataType) -> list[DataType]:
    """Return a type by itself, and at every place within others."""
    return [
        kind,
        ArrayType(kind),
        MapType(StringType(), kind),
        StructType([StructField("x", ArrayType(StructType([StructField("y", kind)])))]),
    ]


@pytest.mark.parametrize(
    ("kind", "formats", "says"),
    [
        (GeometryType(4326), FORMATS, r"'c' (has|holds) the type geometry\(4326\).*st_asbinary.*Spark's own"),
        (GeographyType(4326), FORMATS, r"the type geography.*st_asbinary"),
        (TimeType(6), FORMATS, r"the type time\(6\).*cast it.*to string.*Spark's own writer"),
        (VariantType(), ("orc", "csv"), r"the type variant.*cannot write to (orc|csv): write to_json"),
    ],
)
def test_types_that_would_arrive_as_others_are_refused(
    kind: DataType, formats: tuple[str, ...], says: str
) -> None:
    """A type that files cannot hold as Spark's own do is refused at any depth, with what to do."""
    for file_format in formats:
        options = parse_options({"format": file_format}, overwrite=False)
        for each in nested(kind):
            with pytest.raises(UnsupportedColumn, match=says):
                plan_table(schema(each), options)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (ArrayType(NullType(), False), r"empty array without.*cast\(c as array<string>\)"),
        (MapType(NullType(), NullType(), False), r"empty map without.*cast\(c as map<string,string>\)"),
    ],
)
def test_an_empty_array_or_map_without_a_type_is_refused(kind: DataType, says: str) -> None:
    """`array()` has no type of its elements; the error shows a cast that gives it one."""
    for each in (kind, ArrayType(kind)):
        with pytest.raises(UnsupportedColumn, match=says if each is kind else "without a type"):
            plan_table(schema(each), parse_options({}, overwrite=False))


@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_a_struct_without_fields_and_a_frame_without_columns_are_refused(file_format: str) -> None:
    """Files need a column, and a struct needs a field, at any depth: known before a task runs."""
    options = parse_options({"format": file_format}, overwrite=False)
    for each in nested(StructType([])):
        with pytest.raises(
            UnsupportedColumn, match=f"'c' has the type .*, a struct without fields, which {file_format}"
        ):
            plan_table(schema(each), options)
    with pytest.raises(UnsupportedColumn, match=r"the frame has no columns.*: select at least one"):
        plan_table(StructType([]), options)


@pytest.mark.parametrize("other", ["a", "A"])
def test_a_struct_with_two_fields_of_one_name_is_refused(other: str) -> None:
    """Spark reads no such file, and its names have no case; the error names the field, at any depth."""
    twice = StructType([StructField("a", LongType()), StructField(other, StringType())])
    for each in nested(twice):
        with pytest.raises(UnsupportedColumn, match=r"'c' has the type .*several fields 'a'.*rename one"):
            plan_table(schema(each), parse_options({}, overwrite=False))


@pytest.mark.parametrize("names", [("id", "ID"), ("a", "b", "A"), ("x", "x")])
def test_columns_that_differ_only_in_case_are_refused(names: tuple[str, ...]) -> None:
    """Spark reads no file with two columns of one name, and its names have no case."""
    frame = StructType([StructField(name, LongType()) for name in names])
    with pytest.raises(UnsupportedColumn, match="have the same name to Spark"):
        plan_table(frame, parse_options({}, overwrite=False))

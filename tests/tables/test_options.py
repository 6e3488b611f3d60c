"""The options of a table."""

from __future__ import annotations

import pickle

import pytest

from airflow_s3commit.exceptions import InvalidOption
from airflow_s3commit.tables.options import TableOptions, parse_region, parse_table_options
from tests.cases import each


def test_arguments_and_options_make_one() -> None:
    """Arguments and options in any case are read into typed, picklable data."""
    options = parse_table_options(
        {"HEADER": "true", "maxRecordsPerFile": "-1"}, format="csv", partition_by=["a"]
    )
    assert (options.format, options.partition_by, options.max_records_per_file) == ("csv", ("a",), 0)
    assert (options.header, options.codec) == (True, "none")
    assert pickle.loads(pickle.dumps(options)) == options
    assert parse_table_options({}) == TableOptions()
    named = parse_table_options({"PartitionBy": ' ["a,b"]', "format": "CSV", "header": " TRUE "})
    assert (named.partition_by, named.format, named.header) == (("a,b",), "csv", True)


@each(
    ("options", "says"),
    [
        ({"header": "true"}, "header is only for csv; the files' format is parquet"),
        ({"format": "csv", "parquet.block.size": "1m"}, "parquet.block.size is only for parquet"),
        ({"format": "avro"}, "not one of parquet, orc, csv, json"),
        ({"format": "csv", "compression": "snappy"}, "csv files cannot have compression=snappy"),
        ({"compression": "lz4"}, "parquet files cannot have compression=lz4"),
        ({"format": "csv", "sep": ";"}, "no option sep"),
        ({"format": "csv", "header": "maybe"}, "header='maybe' of s3commit: neither true nor false"),
        ({"format": "csv", "encoding": "UTF-16"}, "no option encoding"),
        ({"format": "csv", "dateFormat": "EEE d"}, "no option dateFormat"),
        ({"format": "csv", "charToEscapeQuoteEscaping": "x"}, "no option charToEscapeQuoteEscaping"),
        ({"mergeSchema": "true"}, "no option mergeSchema"),
        ({"uploadBytes": "8m"}, "no option uploadBytes"),
        ({"outputTimestampType": "INT96"}, "no option outputTimestampType"),
        ({"format": "csv", "compression": "bzip2"}, "not one of brotli, gzip"),
        ({"partitionBy": '["a"'}, "not a JSON list of strings"),
        ({"rowBytes": "0m"}, "not a size"),
        ({"rowBytes": "32m or so"}, "not a size"),
        ({"maxRecordsPerFile": "1_000"}, "not a whole number"),
        ({"rowBytes": "1m", "ROWBYTES": "2m"}, "ROWBYTES is given twice, also as rowBytes"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(options: dict[str, str], says: str) -> None:
    """No option is ignored: one that is unknown, malformed or another format's is refused with its name."""
    with pytest.raises(InvalidOption, match=says):
        parse_table_options(options)


def test_a_region_has_nothing_else_in_it() -> None:
    """It becomes part of a store's address: what could lead elsewhere is refused."""
    assert [parse_region(text) for text in ("", "us-east-1", "minio")] == ["", "us-east-1", "minio"]
    for text in ("us-east-1/x", "us east", "-a", "a.b", "a\n"):
        with pytest.raises(ValueError, match="not a region"):
            parse_region(text)


def test_an_option_that_is_also_an_argument_is_refused() -> None:
    """An argument and an option for the same thing contradict each other, even if they agree."""
    with pytest.raises(InvalidOption, match="format is given both as an argument and as an option"):
        parse_table_options({"Format": "csv"}, format="csv")
    with pytest.raises(InvalidOption, match="partitionBy is given both as an argument and as an option"):
        parse_table_options({"partitionby": "a"}, partition_by=["a"])

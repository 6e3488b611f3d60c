"""The options of a table."""

from __future__ import annotations

import pickle

import pytest

from airflow_s3commit.exceptions import InvalidOption
from airflow_s3commit.tables.options import TableOptions, parse_table_options
from tests.cases import each


def test_arguments_and_options_make_one() -> None:
    """Arguments and options in any case are read into typed, picklable data."""
    options = parse_table_options(
        {"SEP": ";", "header": "true", "maxRecordsPerFile": "-1"}, format="csv", partition_by=["a"]
    )
    assert (options.format, options.partition_by, options.max_records_per_file) == ("csv", ("a",), 0)
    assert (options.text.separator, options.text.header, options.codec) == (";", True, "none")
    assert pickle.loads(pickle.dumps(options)) == options
    assert parse_table_options({}) == TableOptions()


@each(
    ("options", "says"),
    [
        ({"header": "true"}, "header is only for csv; the files' format is parquet"),
        ({"format": "json", "sep": ";"}, "sep is only for csv; the files' format is json"),
        ({"format": "csv", "parquet.block.size": "1m"}, "parquet.block.size is only for parquet"),
        ({"format": "avro"}, "not one of parquet, orc, csv, json"),
        ({"format": "csv", "compression": "snappy"}, "csv files cannot have compression=snappy"),
        ({"compression": "lz4"}, "parquet files cannot have compression=lz4"),
        ({"format": "csv", "sep": "||"}, "sep='||' of s3commit: not one ASCII character"),
        ({"format": "csv", "sep": ";", "delimiter": ","}, "delimiter is given twice, also as sep"),
        ({"format": "csv", "sep": '"'}, "cannot separate values"),
        ({"format": "csv", "encoding": "UTF-16"}, "no option encoding"),
        ({"format": "csv", "dateFormat": "EEE d"}, "no option dateFormat"),
        ({"format": "csv", "charToEscapeQuoteEscaping": "x"}, "no option charToEscapeQuoteEscaping"),
        ({"mergeSchema": "true"}, "no option mergeSchema"),
        ({"partBytes": "8m"}, "no option partBytes"),
        ({"outputTimestampType": "INT96"}, "no option outputTimestampType"),
        ({"format": "csv", "compression": "bzip2"}, "not one of brotli, gzip"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(options: dict[str, str], says: str) -> None:
    """No option is ignored: one that is unknown, malformed or another format's is refused with its name."""
    with pytest.raises(InvalidOption, match=says.replace("||", r"\|\|")):
        parse_table_options(options)


def test_an_option_that_is_also_an_argument_is_refused() -> None:
    """An argument and an option for the same thing contradict each other, even if they agree."""
    with pytest.raises(InvalidOption, match="format is given both as an argument and as an option"):
        parse_table_options({"Format": "csv"}, format="csv")

"""How text files are written: plain data, with Spark's defaults."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_s3commit.tables.datetime_patterns import DATE, TIMESTAMP, TIMESTAMP_NTZ, DatetimePattern

__all__ = ["TextOptions"]


@dataclass(frozen=True, slots=True)
class TextOptions:
    """The options of CSV and JSON files.

    Attributes:
        date_format: Pattern of dates.
        timestamp_format: Pattern of times with a zone.
        timestamp_ntz_format: Pattern of times without one.
        time_zone: Zone that times are written in; None takes each column's own, in Spark the session's.
        line_separator: What ends a line.
        header: Whether a CSV file begins with the names of its columns.
        separator: Stands between the values of a CSV line.
        quote: Encloses CSV values that would be misread.
        escape: Stands before a quote in a quoted CSV value.
        escape_quotes: Whether a CSV value is quoted because it has a quote in it.
        quote_all: Whether every CSV value is quoted.
        null_value: Stands for null in CSV.
        empty_value: Stands for an empty text in CSV.
        trim_leading: Whether CSV values lose leading white space.
        trim_trailing: Whether CSV values lose trailing white space.
        ignore_null_fields: Whether JSON objects go without their fields that are null.

    """

    date_format: DatetimePattern = DATE
    timestamp_format: DatetimePattern = TIMESTAMP
    timestamp_ntz_format: DatetimePattern = TIMESTAMP_NTZ
    time_zone: str | None = None
    line_separator: str = "\n"
    header: bool = False
    separator: str = ","
    quote: str = '"'
    escape: str = "\\"
    escape_quotes: bool = True
    quote_all: bool = False
    null_value: str = ""
    empty_value: str = '""'
    trim_leading: bool = True
    trim_trailing: bool = True
    ignore_null_fields: bool = True

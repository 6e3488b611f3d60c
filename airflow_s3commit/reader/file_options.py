"""How files are read, by Spark's names: read once, into plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_s3commit.tables.formats import FORMATS
from airflow_s3commit.tables.option_values import (
    InvalidOption,
    one_character,
    one_of,
    parse_flag,
    utf8_only,
)
from airflow_s3commit.tables.options import Option, check_formats, read_fields

__all__ = ["FILE_OPTIONS", "FileOptions", "parse_file_options"]


@dataclass(frozen=True, slots=True)
class FileOptions:
    """How files are read.

    Attributes:
        format: Their format; None where their names say it.
        header: Whether CSV files begin with the names of their columns.
        separator: Stands between the values of a CSV line.
        quote: Encloses CSV values that would be misread.
        escape: Stands before a quote in a quoted CSV value.
        quote_all: Whether CSV nulls too are quoted; then an empty text cannot be told from them.
        null_value: Stands for null in CSV, beside nothing at all.
        infer_schema: Whether types of CSV columns are inferred from the first file; None leaves it to the
            reader.
        encoding: Always UTF-8.
        given: Names of the options that were given.

    """

    format: str | None = None
    header: bool = False
    separator: str = ","
    quote: str = '"'
    escape: str = "\\"
    quote_all: bool = False
    null_value: str = ""
    infer_schema: bool | None = None
    encoding: str = "UTF-8"
    given: tuple[str, ...] = ()

    def check(self, format_: str) -> None:
        """Refuse options that files of a format do not have.

        Raises:
            InvalidOption: There is one.

        """
        check_formats((option for option in FILE_OPTIONS if option.name in self.given), format_)


def parse_file_options(options: Mapping[str, str]) -> FileOptions:
    """Read the options of how files are read; their names are not case-sensitive.

    Raises:
        InvalidOption: One is unknown, malformed, or given twice.

    """
    fields, given = read_fields(options, FILE_OPTIONS, " for reading files")
    read = FileOptions(**fields, given=tuple(option.name for option in given))
    if read.separator in (read.quote, read.escape):
        raise InvalidOption(f"sep is {read.separator!r}, and so is quote or escape")
    return read


_CSV = ("csv",)

#: Every option of how files are read.
FILE_OPTIONS: tuple[Option, ...] = (
    Option(
        "format", "format", one_of(*FORMATS),
        "Format of the files, where their names do not say it: parquet, orc, csv or json.", "by their names",
    ),
    Option("header", "header", parse_flag, "Files begin with the columns' names.", "false", "", _CSV),
    Option("sep", "separator", one_character, "Stands between values.", ",", "", _CSV),
    Option("delimiter", "separator", one_character, "The same as sep.", ",", "", _CSV),
    Option("quote", "quote", one_character, "Encloses values that would be misread.", '"', "", _CSV),
    Option("escape", "escape", one_character, "Escapes quotes in quoted values.", "\\", "", _CSV),
    Option(
        "quoteAll", "quote_all", parse_flag,
        "All values are quoted, nulls too: without a nullValue an empty text is read as null.", "false", "",
        _CSV,
    ),
    Option("nullValue", "null_value", str, "Stands for null, beside nothing at all.", "nothing", "", _CSV),
    Option(
        "inferSchema", "infer_schema", parse_flag, "Infer columns' types from the first file.",
        "false in Spark, else true", "", _CSV,
    ),
    Option("encoding", "encoding", utf8_only, "UTF-8, the only one.", "UTF-8", "", ("csv", "json")),
)  # fmt: skip

"""The options of writing a table, in one place: what is read, checked and documented is this list."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_s3commit.exceptions import Refused
from airflow_s3commit.store.credentials import without_userinfo
from airflow_s3commit.tables.datetime_patterns import parse_pattern
from airflow_s3commit.tables.formats import FORMATS, TableFormat
from airflow_s3commit.tables.option_values import (
    InvalidOption,
    at_least,
    one_character,
    one_of,
    parse_bytes,
    parse_columns,
    parse_flag,
    parse_limit,
    utf8_only,
)
from airflow_s3commit.tables.text_options import TextOptions

__all__ = [
    "DEFAULT_FORMAT", "TABLE_OPTIONS", "Option", "TableOptions", "check_formats", "parse_table_options",
    "read_fields", "read_options", "table_options",
]  # fmt: skip

_MIB = 1024 * 1024

#: Spark's own default.
DEFAULT_FORMAT = "parquet"


@dataclass(frozen=True, slots=True)
class Option:
    """One option, as users know it.

    Attributes:
        name: Its name; case does not matter.
        field: What it is called in the options' dataclass.
        read: Reads its text; a ValueError says what is wrong with it.
        meaning: What it does, in a sentence.
        default: What holds if it is not given.
        unit: Unit of its value.
        formats: The formats that have it; empty for all.
        text: Whether it is one of `TextOptions`.

    """

    name: str
    field: str
    read: Callable[[str], object]
    meaning: str
    default: str
    unit: str = ""
    formats: tuple[str, ...] = ()
    text: bool = False


@dataclass(frozen=True, slots=True)
class TableOptions:
    """How a table is written.

    Attributes:
        format: The files' format.
        partition_by: Names of the partition columns, outermost first.
        compression: Codec, by Spark's name; None takes the format's default.
        max_records_per_file: Rows after which a file is ended; 0 for no limit.
        target_file_bytes: Encoded bytes after which a file is ended; 0 for no limit.
        row_bytes: Bytes of rows that a task holds before they are encoded.
        row_group_bytes: Bytes of rows, before encoding, that make a row group or a stripe.
        encoded_bytes: Encoded bytes that the open files hold together.
        open_files: Files that a task has open at a time.
        int96: Whether Parquet times with a zone have 96 bits.
        text: How CSV and JSON are written.

    """

    format: str = DEFAULT_FORMAT
    partition_by: tuple[str, ...] = ()
    compression: str | None = None
    max_records_per_file: int = 0
    target_file_bytes: int = 0
    row_bytes: int = 48 * _MIB
    row_group_bytes: int = 48 * _MIB
    encoded_bytes: int = 40 * _MIB
    open_files: int = 64
    int96: bool = False
    text: TextOptions = field(default_factory=TextOptions)

    @property
    def file_format(self) -> TableFormat:
        """The files' format."""
        return FORMATS[self.format]

    @property
    def codec(self) -> str:
        """The compression: the one asked for, or the format's default."""
        return self.compression or self.file_format.default


def parse_table_options(
    options: Mapping[str, str],
    *,
    format: str | None = None,  # noqa: A002 - as Spark calls it
    partition_by: Sequence[str] | None = None,
) -> TableOptions:
    """Read the options of writing a table.

    Args:
        options: By name, in any case.
        format: The files' format, where an argument says it.
        partition_by: The partition columns, where an argument says them.

    Raises:
        InvalidOption: An option is unknown, malformed, not one of the format's, or is said by an argument.

    """
    for name, argument in (("format", format), ("partitionBy", partition_by)):
        if argument is not None and name.lower() in {given.lower() for given in options}:
            raise InvalidOption(f"{name} is said by an argument and by an option: leave one out")
    said = {} if format is None else {"format": format}
    fields = read_options({**options, **said}, TABLE_OPTIONS)
    if partition_by is not None:
        fields["partition_by"] = tuple(partition_by)
    return table_options(fields)


def table_options(fields: dict[str, Any]) -> TableOptions:
    """Make options of fields that were read, those of text files among them, and check them together.

    Raises:
        InvalidOption: The format has no such compression, or two options contradict each other.

    """
    # Accepted, and always so.
    fields.pop("encoding", None)
    of_text = {option.field for option in TABLE_OPTIONS if option.text}
    text = TextOptions(**{name: fields.pop(name) for name in of_text & fields.keys()})
    made = TableOptions(**fields, text=text)
    if made.codec not in made.file_format.codecs:
        known = ", ".join(made.file_format.codecs)
        raise InvalidOption(f"compression={made.codec} is not one of {made.format}'s: {known}")
    if made.format == "csv" and text.quote == text.separator:
        raise InvalidOption(f"quote and sep are both {text.quote!r}")
    return made


def read_options(options: Mapping[str, str], known: Sequence[Option]) -> dict[str, Any]:
    """Read the texts of options into fields by the options' names.

    Raises:
        InvalidOption: One is unknown, malformed, given twice, or not one of the format's.

    """
    fields, given = read_fields(options, sorted(known, key=lambda option: option.name))
    check_formats(given, fields.get("format", DEFAULT_FORMAT))
    return fields


def read_fields(
    options: Mapping[str, str], known: Sequence[Option], purpose: str = ""
) -> tuple[dict[str, Any], tuple[Option, ...]]:
    """Read the texts of options into fields, of whichever format they are; return which were given too.

    Args:
        options: By name, in any case.
        known: The options there are, in the order in which an error names them.
        purpose: What an error says that they are for.

    Raises:
        InvalidOption: One is unknown, malformed or given twice.

    """
    by_name = {option.name.lower(): option for option in known}
    fields: dict[str, Any] = {}
    given: dict[str, Option] = {}
    for name, value in options.items():
        option = by_name.get(name.lower())
        if option is None:
            names = ", ".join(option.name for option in known)
            raise InvalidOption(f"s3commit has no option {name}{purpose}; its options are {names}")
        if option.field in fields:
            raise InvalidOption(f"option {name} is given twice, as {given[option.field].name} too")
        given[option.field] = option
        try:
            fields[option.field] = option.read(value)
        except (ValueError, Refused) as error:
            shown = without_userinfo(value)
            raise InvalidOption(f"option {option.name}={shown!r} of s3commit: {error}") from error
    return fields, tuple(given.values())


def check_formats(given: Iterable[Option], chosen: str) -> None:
    """Refuse options that files of a format do not have.

    Raises:
        InvalidOption: There is one.

    """
    for option in given:
        if option.formats and chosen not in option.formats:
            raise InvalidOption(
                f"option {option.name} is one of {' and '.join(option.formats)}; the files' format is"
                f" {chosen}"
            )


def _line_end(value: str) -> str:
    if value not in ("\n", "\r\n", "\r"):
        raise ValueError("not one of \\n, \\r\\n, \\r")
    return value


def _int96(value: str) -> bool:
    return one_of("int96", "timestamp_micros")(value) == "int96"


def _codec(value: str) -> str:
    return one_of(*sorted({name for known in FORMATS.values() for name in known.codecs}))(value)


_CSV = ("csv",)
_TEXT = ("csv", "json")

#: Every option of a table, by Spark's own names where Spark has it.
TABLE_OPTIONS: tuple[Option, ...] = (
    Option(
        "format", "format", one_of(*FORMATS), "Format of the files: parquet, orc, csv or json.",
        DEFAULT_FORMAT,
    ),
    Option(
        "partitionBy", "partition_by", parse_columns,
        "Partition columns, outermost first: names separated by commas, or a JSON list.", "none",
    ),
    Option(
        "compression", "compression", _codec,
        "parquet: snappy, gzip, zstd, lz4_raw, brotli, none; orc: zstd, snappy, zlib, lz4, none;"
        " csv and json: none, gzip, bzip2, deflate.", "snappy, zstd, none, none",
    ),
    Option(
        "maxRecordsPerFile", "max_records_per_file", parse_limit,
        "Rows after which a file is ended; 0 for no limit.", "0", "rows",
    ),
    Option(
        "targetFileBytes", "target_file_bytes", parse_bytes,
        "Encoded size after which a file is ended: it is the first of the sizes at the ends of its row"
        " groups that reaches this.", "no limit", "bytes",
    ),
    Option(
        "parquet.block.size", "row_group_bytes", parse_bytes,
        "Rows, by their size in memory, that make a row group; no more than rowBytes.", "48m", "bytes",
        ("parquet",),
    ),
    Option(
        "orc.stripe.size", "row_group_bytes", parse_bytes,
        "Rows, by their size in memory, that make a stripe; no more than rowBytes.", "48m", "bytes", ("orc",),
    ),
    Option(
        "outputTimestampType", "int96", _int96,
        "How times with a zone are stored: TIMESTAMP_MICROS, or INT96 as Spark's own writer does by default.",
        "TIMESTAMP_MICROS", "", ("parquet",),
    ),
    Option(
        "rowBytes", "row_bytes", parse_bytes,
        "Rows that a task holds before they are encoded.", "48m", "bytes",
    ),
    Option("openFiles", "open_files", at_least(1), "Files that a task has open at a time.", "64", "files"),
    Option(
        "dateFormat", "date_format", parse_pattern, "Pattern of dates.", "yyyy-MM-dd", "", _TEXT, True
    ),
    Option(
        "timestampFormat", "timestamp_format", parse_pattern, "Pattern of times with a zone.",
        "yyyy-MM-dd'T'HH:mm:ss[.SSS][XXX]", "", _TEXT, True,
    ),
    Option(
        "timestampNTZFormat", "timestamp_ntz_format", parse_pattern, "Pattern of times without a zone.",
        "yyyy-MM-dd'T'HH:mm:ss[.SSS]", "", _TEXT, True,
    ),
    Option(
        "timeZone", "time_zone", str, "Zone that times are written in.",
        "the session's, or each column's own", "", _TEXT, True,
    ),
    Option("lineSep", "line_separator", _line_end, "What ends a line.", "\\n", "", _TEXT, True),
    Option("encoding", "encoding", utf8_only, "UTF-8, the only one.", "UTF-8", "", _TEXT),
    Option("header", "header", parse_flag, "Begin files with the columns' names.", "false", "", _CSV, True),
    Option("sep", "separator", one_character, "Stands between values.", ",", "", _CSV, True),
    Option("delimiter", "separator", one_character, "The same as sep.", ",", "", _CSV, True),
    Option("quote", "quote", one_character, "Encloses values that would be misread.", '"', "", _CSV, True),
    Option("escape", "escape", one_character, "Escapes quotes in quoted values.", "\\", "", _CSV, True),
    Option(
        "escapeQuotes", "escape_quotes", parse_flag, "Quote values because they have quotes in them.",
        "true", "", _CSV, True,
    ),
    Option("quoteAll", "quote_all", parse_flag, "Quote all values.", "false", "", _CSV, True),
    Option("nullValue", "null_value", str, "Stands for null.", "nothing", "", _CSV, True),
    Option("emptyValue", "empty_value", str, "Stands for an empty text.", '""', "", _CSV, True),
    Option(
        "ignoreLeadingWhiteSpace", "trim_leading", parse_flag, "Take leading white space away.",
        "true", "", _CSV, True,
    ),
    Option(
        "ignoreTrailingWhiteSpace", "trim_trailing", parse_flag, "Take trailing white space away.",
        "true", "", _CSV, True,
    ),
    Option(
        "ignoreNullFields", "ignore_null_fields", parse_flag, "Leave fields that are null out.",
        "true", "", ("json",), True,
    ),
)  # fmt: skip

"""The options of writing a table, declared once, as dataclass fields that name their options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_s3commit.exceptions import InvalidOption
from airflow_s3commit.tables.formats import FORMATS, TableFormat
from airflow_s3commit.tables.option_values import (
    Option,
    at_least,
    check_formats,
    one_character,
    one_of,
    options_of,
    parse_bytes,
    parse_columns,
    parse_flag,
    parse_limit,
    read_fields,
    set_by,
)

_MIB = 1024 * 1024

#: Spark's own default.
DEFAULT_FORMAT = "parquet"

_CSV = ("csv",)


def _int96(value: str) -> bool:
    return one_of("int96", "timestamp_micros")(value) == "int96"


def _codec(value: str) -> str:
    return one_of(*sorted({name for known in FORMATS.values() for name in known.codecs}))(value)


@dataclass(frozen=True, slots=True)
class TextOptions:
    """How pyarrow writes CSV files."""

    header: bool = set_by(
        Option("header", parse_flag, "Begin files with the columns' names.", formats=_CSV), default=False
    )
    separator: str = set_by(
        Option("sep", one_character, "Separates values.", formats=_CSV),
        Option("delimiter", one_character, "The same as sep.", formats=_CSV),
        default=",",
    )
    quote_all: bool = set_by(
        Option("quoteAll", parse_flag, "Quote all values but null.", formats=_CSV), default=False
    )


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The options of writing a table.

    Attributes:
        encoded_bytes: Encoded bytes buffered by all open files together; no option sets it.
        text: The options of CSV files that pyarrow writes.

    """

    format: str = set_by(
        Option("format", one_of(*FORMATS), "Format of the files: parquet, orc, csv or json."),
        default=DEFAULT_FORMAT,
    )
    partition_by: tuple[str, ...] = set_by(
        Option(
            "partitionBy", parse_columns,
            "Partition columns, outermost first: names separated by commas, or a JSON list.",
        ),
        default=(),
    )  # fmt: skip
    compression: str | None = set_by(
        Option(
            "compression", _codec,
            "parquet: snappy, gzip, zstd, lz4_raw, brotli, none; orc: zstd, snappy, zlib, lz4, none;"
            " csv and json: none, gzip, bzip2, deflate.",
            default="snappy, zstd, none, none",
        ),
        default=None,
    )  # fmt: skip
    max_records_per_file: int = set_by(
        Option("maxRecordsPerFile", parse_limit, "Rows after which a file is ended; 0 for no limit.", "rows"),
        default=0,
    )
    target_file_bytes: int = set_by(
        Option(
            "targetFileBytes", parse_bytes,
            "Encoded size after which a file is ended: at the end of the row group that reaches it.",
            "bytes",
        ),
        default=0,
    )  # fmt: skip
    row_group_bytes: int = set_by(
        Option(
            "parquet.block.size", parse_bytes,
            "Size in memory of a row group's rows; no more than rowBytes.", "bytes",
            ("parquet",),
        ),
        Option(
            "orc.stripe.size", parse_bytes,
            "Size in memory of a stripe's rows; no more than rowBytes.", "bytes", ("orc",),
        ),
        default=48 * _MIB,
    )  # fmt: skip
    int96: bool = set_by(
        Option(
            "outputTimestampType", _int96,
            "Type of times with a zone: TIMESTAMP_MICROS, or INT96, the default of Spark's own writer.",
            formats=("parquet",), default="TIMESTAMP_MICROS",
        ),
        default=False,
    )  # fmt: skip
    row_bytes: int = set_by(
        Option("rowBytes", parse_bytes, "Size in memory of the rows that a task buffers.", "bytes"),
        default=48 * _MIB,
    )
    open_files: int = set_by(
        Option("openFiles", at_least(1), "Files that a task has open at a time.", "files"), default=64
    )
    encoded_bytes: int = 40 * _MIB
    text: TextOptions = field(default_factory=TextOptions)

    @property
    def file_format(self) -> TableFormat:
        """The files' format."""
        return FORMATS[self.format]

    @property
    def codec(self) -> str:
        """The compression: the option, or the format's default."""
        return self.compression or self.file_format.default


#: The options of files of any writer, by Spark's own names where Spark has it.
FILE_OPTIONS: tuple[Option, ...] = options_of(TableOptions)

#: Every option of a table that is written without Spark.
TABLE_OPTIONS: tuple[Option, ...] = (*FILE_OPTIONS, *options_of(TextOptions))

_TEXT_FIELDS = {option.field for option in options_of(TextOptions)}


def parse_table_options(
    options: Mapping[str, str],
    *,
    format: str | None = None,  # noqa: A002 - as Spark calls it
    partition_by: Sequence[str] | None = None,
) -> TableOptions:
    """Parse the options of writing a table.

    Args:
        options: Texts by option name, in any case.
        format: The files' format; None to take it from the options.
        partition_by: The partition columns; None to take them from the options.

    Raises:
        InvalidOption: An option is unknown, malformed, does not apply to the format, or is given as an
            argument too.

    """
    for name, argument in (("format", format), ("partitionBy", partition_by)):
        if argument is not None and name.lower() in {given.lower() for given in options}:
            raise InvalidOption(f"{name} is given both as an argument and as an option: leave one out")
    arguments = {} if format is None else {"format": format}
    fields = read_options({**options, **arguments}, TABLE_OPTIONS)
    if partition_by is not None:
        fields["partition_by"] = tuple(partition_by)
    return table_options(fields)


def table_options(fields: dict[str, Any]) -> TableOptions:
    """Return the options with these fields, and check that they fit together.

    Args:
        fields: Values by field of `TableOptions` and `TextOptions`; the text fields are removed from it.

    Raises:
        InvalidOption: The format does not support the compression, or two options contradict each other.

    """
    text = TextOptions(**{name: fields.pop(name) for name in _TEXT_FIELDS & fields.keys()})
    made = TableOptions(**fields, text=text)
    if made.codec not in made.file_format.codecs:
        known = ", ".join(made.file_format.codecs)
        raise InvalidOption(f"{made.format} files cannot have compression={made.codec}; use one of {known}")
    if made.format == "csv" and text.separator in ('"', "\n", "\r"):
        raise InvalidOption(f"sep={text.separator!r} cannot separate values: it quotes them, or ends a line")
    return made


def read_options(options: Mapping[str, str], known: Sequence[Option]) -> dict[str, Any]:
    """Parse the texts of options; return the values by field.

    Args:
        options: Texts by option name, in any case.
        known: All options.

    Raises:
        InvalidOption: An option is unknown, malformed, given twice, or does not apply to the format.

    """
    fields, given = read_fields(options, sorted(known, key=lambda option: option.name))
    check_formats(given, fields.get("format", DEFAULT_FORMAT))
    return fields

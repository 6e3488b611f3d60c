"""Which format the files of a manifest have, and how pyarrow is to read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.types as pt
from pyarrow import csv, json

from airflow_s3commit.exceptions import InvalidOption
from airflow_s3commit.reader.escaped_csv import encoding_of
from airflow_s3commit.tables.formats import FORMATS, first_within
from airflow_s3commit.tables.option_values import (
    Option,
    check_formats,
    one_character,
    one_of,
    options_of,
    parse_flag,
    read_fields,
    set_by,
    utf8_only,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyarrow.fs import FileSystem


_CSV = ("csv",)


@dataclass(frozen=True, slots=True)
class FileOptions:
    """How files are read.

    Attributes:
        given: Names of the options that were given.

    """

    format: str | None = set_by(
        Option(
            "format", one_of(*FORMATS),
            "Format of the files, where their names do not say it: parquet, orc, csv or json.",
            default="by their names",
        ),
        default=None,
    )  # fmt: skip
    header: bool = set_by(
        Option("header", parse_flag, "Files begin with the columns' names.", formats=_CSV), default=False
    )
    separator: str = set_by(
        Option("sep", one_character, "Separates values.", formats=_CSV),
        Option("delimiter", one_character, "The same as sep.", formats=_CSV),
        default=",",
    )
    quote: str = set_by(
        Option("quote", one_character, "Encloses values that would be misread.", formats=_CSV), default='"'
    )
    escape: str = set_by(
        Option("escape", one_character, "Escapes quotes in quoted values.", formats=_CSV), default="\\"
    )
    quote_all: bool = set_by(
        Option(
            "quoteAll", parse_flag,
            "All values are quoted, nulls too: without a nullValue an empty text is read as null.",
            formats=_CSV,
        ),
        default=False,
    )  # fmt: skip
    null_value: str = set_by(
        Option("nullValue", str, "Text of null, beside no text at all.", formats=_CSV), default=""
    )
    infer_schema: bool | None = set_by(
        Option(
            "inferSchema", parse_flag, "Infer columns' types from the first file.", formats=_CSV,
            default="false in Spark, else true",
        ),
        default=None,
    )  # fmt: skip
    encoding: str = set_by(
        Option("encoding", utf8_only, "UTF-8, the only one.", formats=("csv", "json")), default="UTF-8"
    )
    given: tuple[str, ...] = ()

    def check(self, format_: str) -> None:
        """Refuse options that files of a format do not have.

        Raises:
            InvalidOption: There is one.

        """
        check_formats((option for option in FILE_OPTIONS if option.name in self.given), format_)


#: Every option of how files are read.
FILE_OPTIONS: tuple[Option, ...] = options_of(FileOptions)


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


#: Bytes of text that are parsed at once: no row may be longer.
_BLOCK_BYTES = 8 * 1024 * 1024

#: Endings of compressed text that pyarrow knows by itself.
_UNPACKED = frozenset({"gz", "bz2", "zst"})

#: Endings of compressed text that it doesn't know, or that are not what it takes them for.
_PACKED = frozenset({"deflate", "snappy", "lz4", "zstd", "br", "xz", "zip", "Z"})

#: The attribute in which Spark, and our writer, keep the type of an ORC column that ORC has no type for.
_SPARK_TYPE = b"spark.sql.catalyst.type"

#: What such a type begins with where it is a number of microseconds, and not of months.
_DURATIONS = (b"interval day", b"interval hour", b"interval minute", b"interval second")


class UnreadableFiles(ValueError):
    """The files of a manifest have no format in common, or are in one that pyarrow cannot read as asked."""


def reading_of(paths: Iterable[str], options: FileOptions) -> FileReading:
    """Return how files are read: in the format that their names have, or else in the one that is said.

    Raises:
        UnreadableFiles: Their names have several formats, another than the one that is said, or none and
            none is said; or text is compressed in a way that pyarrow doesn't know.
        InvalidOption: An option is none of the format's.

    """
    found: dict[str | None, str] = {}
    for path in paths:
        format_ = _format_in(path)
        found.setdefault(format_, path)
        if FORMATS[format_ or options.format or "parquet"].text:
            _check_compression(path)
    name = options.format or next(iter(found), None) or "parquet"
    for format_, path in found.items():
        if format_ is None and options.format is None:
            raise UnreadableFiles(
                f"the name of s3://{path} says no format: say it by format, one of {', '.join(FORMATS)}"
            )
        if format_ not in (None, name):
            other = f"s3://{found[name]} is {name}" if name in found else f"format={name} was said"
            raise UnreadableFiles(
                f"s3://{path} is {format_}, and {other}: one dataset has files of one format"
            )
    options.check(name)
    return FileReading(name, options)


@dataclass(frozen=True, slots=True)
class FileReading:
    """How the files of one dataset are read.

    Attributes:
        format: Their format.
        options: How they are read.

    """

    format: str = "parquet"
    options: FileOptions = field(default_factory=FileOptions)

    @property
    def is_text(self) -> bool:
        """Whether the files are text, which has no types of its own."""
        return FORMATS[self.format].text

    @property
    def stays(self) -> str | None:
        """Why a dataset of such files cannot be pickled; None if it can."""
        if self.format != "csv" or self._doubled:
            return None
        return (
            "pyarrow forgets in pickling how the escapes of a CSV dataset are read (escape other than quote):"
            " send what it takes to open the dataset, and open it there"
        )

    @property
    def _doubled(self) -> bool:
        return self.options.escape == self.options.quote

    def inspect(self, path: str, filesystem: FileSystem, *, infer: bool = True) -> pa.Schema:
        """Return the columns of a file.

        Of JSON and, where types are inferred, CSV, they are those of its first rows; a column without any
        value is text.

        Args:
            path: The file.
            filesystem: Where it is.
            infer: Whether types of CSV columns are inferred if the options do not say it; else they are text.

        """
        found: pa.Schema = self.arrow(None).inspect(path, filesystem)
        if not self.is_text:
            return pa.schema([_noted(column) for column in found], metadata=found.metadata)
        if self.format == "json":
            return pa.schema([(column.name, _json_type(column.type)) for column in found])
        names = found.names if self.options.header else [f"_c{number}" for number in range(len(found))]
        asked = self.options.infer_schema
        if not (infer if asked is None else asked):
            return pa.schema([(name, pa.string()) for name in names])
        return pa.schema([(name, _csv_type(kind)) for name, kind in zip(names, found.types, strict=True)])

    def arrow(self, names: Sequence[str] | None) -> ds.FileFormat:
        """Return pyarrow's format.

        Args:
            names: The columns of CSV files without a header, in their order; None to have them made up.

        """
        if self.format == "csv":
            return self._csv(names)
        if self.format == "json":
            if pa.cpu_count() == 1:
                # In one thread Arrow's reader waits for ever for work that it gave to others (Arrow 26).
                pa.set_cpu_count(2)
            read = json.ReadOptions(block_size=_BLOCK_BYTES)
            return ds.JsonFileFormat(ds.JsonFragmentScanOptions(read_options=read))
        return ds.OrcFileFormat() if self.format == "orc" else ds.ParquetFileFormat()

    def check(self, schema: pa.Schema) -> None:
        """Refuse types of columns that pyarrow cannot read from text, or would read as something else.

        Raises:
            UnreadableFiles: There is one.

        """
        refused = {"csv": _NOT_IN_CSV, "json": _NOT_IN_JSON}.get(self.format)
        for column in schema if refused else ():
            if (kind := first_within(column.type, *(refused or ()))) is not None:
                raise UnreadableFiles(
                    f"pyarrow cannot read {kind} of column {column.name!r} from {self.format}: give it as"
                    " string in schema, or leave it out"
                )

    def _csv(self, names: Sequence[str] | None) -> ds.CsvFileFormat:
        options = self.options
        doubled = self._doubled
        encoding = "utf8" if doubled else encoding_of(options.separator, options.quote, options.escape)
        made_up = not options.header and names is None
        return ds.CsvFileFormat(
            csv.ParseOptions(
                delimiter=options.separator,
                quote_char=options.quote,
                double_quote=doubled,
                escape_char=False if doubled else options.escape,
                newlines_in_values=True,
            ),
            convert_options=csv.ConvertOptions(
                null_values=[options.null_value] if options.quote_all else ["", options.null_value],
                true_values=["true"],
                false_values=["false"],
                strings_can_be_null=True,
                quoted_strings_can_be_null=options.quote_all,
            ),
            read_options=csv.ReadOptions(
                block_size=_BLOCK_BYTES,
                column_names=None if options.header or names is None else list(names),
                autogenerate_column_names=made_up,
                encoding=encoding,
            ),
        )


def _format_in(path: str) -> str | None:
    """Return the format that a file's name ends with; text may have one of its compression behind it."""
    stem, _, last = path.rpartition("/")[2].rpartition(".")
    if stem and last in FORMATS:
        return last
    before = stem.rpartition(".")
    if before[0] and last in _UNPACKED | _PACKED and before[2] in FORMATS and FORMATS[before[2]].text:
        return before[2]
    return None


def _check_compression(path: str) -> None:
    ending = path.rpartition("/")[2].rpartition(".")[2]
    if ending in _PACKED:
        raise UnreadableFiles(
            f"pyarrow does not read text that is compressed as s3://{path} is: {ending} is none of gzip,"
            " bzip2 and zstandard"
        )


def _noted(column: pa.Field) -> pa.Field:
    """Return a column as Spark means it, where ORC has it as a whole number."""
    note = (column.metadata or {}).get(_SPARK_TYPE, b"")
    if note == b"timestamp_ntz":
        return column.with_type(pa.timestamp("us"))
    if note.startswith(_DURATIONS) and pt.is_int64(column.type):
        return column.with_type(pa.duration("us"))
    if note == b"timestamp":
        return column.with_type(pa.timestamp("us", "UTC"))
    return column.with_type(_with_children(column.type, _noted))


def _with_children(kind: pa.DataType, change: Callable[[pa.Field], pa.Field]) -> pa.DataType:
    if pt.is_struct(kind):
        return pa.struct([change(kind.field(number)) for number in range(kind.num_fields)])
    if pt.is_map(kind):
        return pa.map_(change(kind.key_field), change(kind.item_field))
    return pa.list_(change(kind.value_field)) if pt.is_list(kind) else kind


def _json_type(kind: pa.DataType) -> pa.DataType:
    # That a text looks like a time makes it none: the next file's may not.
    if pt.is_timestamp(kind) or pt.is_null(kind):
        return pa.string()
    return _with_children(kind, lambda child: child.with_type(_json_type(child.type)))


def _csv_type(kind: pa.DataType) -> pa.DataType:
    if pt.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    return pa.string() if pt.is_null(kind) or pt.is_time(kind) or pt.is_binary(kind) else kind


_NOT_IN_CSV = (pt.is_nested, pt.is_binary, pt.is_large_binary, pt.is_duration)

#: Dates are numbers to Arrow's JSON, maps are lists of pairs, and bytes the letters of their base64.
_NOT_IN_JSON = (pt.is_map, pt.is_date, pt.is_binary, pt.is_large_binary, pt.is_duration)

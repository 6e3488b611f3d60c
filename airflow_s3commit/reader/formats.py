"""The file format of a table's files, and pyarrow's settings for reading it.

In Spark's CSV files a backslash is an escape only in quoted values, but Arrow treats it as an escape
everywhere. So a character encoding rewrites the text between decompression and parser, the only place where
pyarrow lets Python change a dataset's text.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.types as pt
from pyarrow import csv, json

from airflow_s3commit.exceptions import InvalidOption
from airflow_s3commit.tables.formats import FORMATS, first_within
from airflow_s3commit.tables.options import (
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
    from collections.abc import Callable, Iterable, Iterator

    from pyarrow.fs import FileSystem

_CSV = ("csv",)


@dataclass(frozen=True, slots=True)
class FileOptions:
    """The options of reading files.

    Attributes:
        given: Names of the options that the caller set.
    """

    format: str | None = set_by(
        Option(
            "format", one_of(*FORMATS),
            "Format of files whose names do not end with one: parquet, orc, csv or json.",
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
            "All values are quoted, even nulls: without a nullValue an empty text is read as null.",
            formats=_CSV,
        ),
        default=False,
    )  # fmt: skip
    null_value: str = set_by(
        Option("nullValue", str, "Text of null, besides an empty value.", formats=_CSV), default=""
    )
    infer_schema: bool = set_by(
        Option("inferSchema", parse_flag, "Infer columns' types from the first file.", formats=_CSV),
        default=True,
    )
    encoding: str = set_by(
        Option("encoding", utf8_only, "Only UTF-8.", formats=("csv", "json")), default="UTF-8"
    )
    given: tuple[str, ...] = ()

    def check(self, format_: str) -> None:
        """Refuse options that do not apply to a format.

        Raises:
            InvalidOption: An option that the caller set does not apply.
        """
        check_formats((option for option in FILE_OPTIONS if option.name in self.given), format_)


#: Every option of reading files.
FILE_OPTIONS: tuple[Option, ...] = options_of(FileOptions)


def parse_file_options(options: Mapping[str, str]) -> FileOptions:
    """Parse the options of reading files. Their names are not case-sensitive.

    Raises:
        InvalidOption: An option is unknown, malformed, or given twice, or two contradict each other.
    """
    fields, given = read_fields(options, FILE_OPTIONS, " for reading files")
    parsed = FileOptions(**fields, given=tuple(option.name for option in given))
    if parsed.separator in (parsed.quote, parsed.escape):
        raise InvalidOption(f"sep is {parsed.separator!r}, and so is quote or escape")
    return parsed


#: Bytes of text that are parsed at once: no row may be longer.
_BLOCK_BYTES = 8 * 1024 * 1024

#: Endings of compressed text that pyarrow decompresses by itself.
_DECOMPRESSED = frozenset({"gz", "bz2", "zst"})

#: Extensions of compressed text that pyarrow does not know, or mistakes for another compression.
_UNREADABLE = frozenset({"deflate", "snappy", "lz4", "zstd", "br", "xz", "zip", "Z"})

#: The attribute that holds Spark's type of an ORC column where ORC has no such type; our writer sets it too.
_SPARK_TYPE = b"spark.sql.catalyst.type"

#: Prefixes of Spark's interval types that are stored as microseconds, not months.
_DURATIONS = (b"interval day", b"interval hour", b"interval minute", b"interval second")


class UnreadableFiles(ValueError):
    """A manifest's files have no common format, or one that pyarrow cannot read with the given options."""


def reading_of(paths: Iterable[str], options: FileOptions) -> FileReading:
    """Return how to read files with pyarrow.

    Raises:
        UnreadableFiles: The format cannot be told, or is none of ours, as for `format_of`; or pyarrow does
            not know the compression of a text file.
        InvalidOption: An option does not apply to the format.
    """

    def checked() -> Iterator[str]:
        for path in paths:
            if FORMATS[_format_in(path) or options.format or "parquet"].text:
                _check_compression(path)
            yield path

    name = format_of(checked(), options.format)
    options.check(name)
    return FileReading(name, options)


def format_of(paths: Iterable[str], given: str | None) -> str:
    """Return the format of files: the given one, or that with which their names end.

    Raises:
        UnreadableFiles: The names have several formats, a format other than the given one, or no format
            while none is given.
    """
    found: dict[str | None, str] = {}
    for path in paths:
        found.setdefault(_format_in(path), path)
    name = given or next(iter(found), None) or "parquet"
    for format_, path in found.items():
        if format_ is None and given is None:
            raise UnreadableFiles(
                f"the name of s3://{path} has no known format: set format to one of {', '.join(FORMATS)}"
            )
        if format_ not in (None, name):
            other = f"s3://{found[name]} is {name}" if name in found else f"format={name} was given"
            raise UnreadableFiles(
                f"s3://{path} is {format_}, and {other}: one dataset has files of one format"
            )
    return name


@dataclass(frozen=True, slots=True)
class FileReading:
    """How to read the files of one dataset.

    Attributes:
        format: The files' format.
        options: The options of reading them.
    """

    format: str = "parquet"
    options: FileOptions = field(default_factory=FileOptions)

    @property
    def is_text(self) -> bool:
        """Whether the files are text, whose columns have no types."""
        return FORMATS[self.format].text

    @property
    def stays(self) -> str | None:
        """Why a dataset of such files cannot be pickled; None if it can."""
        if self.format != "csv" or self._quotes_doubled:
            return None
        return (
            "a pickled pyarrow dataset of CSV loses how escapes are read (escape differs from quote): send"
            " the arguments of dataset() to the other process, and call it there"
        )

    @property
    def _quotes_doubled(self) -> bool:
        return self.options.escape == self.options.quote

    def inspect(self, path: str, filesystem: FileSystem) -> pa.Schema:
        """Return the columns of a file.

        Types of JSON columns, and of CSV columns if they are inferred, come from the first rows. A column
        without values in them is text.

        Args:
            path: Path of the file.
            filesystem: The file system with the file.
        """
        found: pa.Schema = self.arrow(None).inspect(path, filesystem)
        if not self.is_text:
            return self.as_read(found)
        if self.format == "json":
            return pa.schema([(column.name, _json_type(column.type)) for column in found])
        names = found.names if self.options.header else [f"_c{number}" for number in range(len(found))]
        if not self.options.infer_schema:
            return pa.schema([(name, pa.string()) for name in names])
        return pa.schema([(name, _csv_type(kind)) for name, kind in zip(names, found.types, strict=True)])

    def as_read(self, stored: pa.Schema) -> pa.Schema:
        """Return the columns as they are read from files with a stored schema."""
        return pa.schema([_with_spark_type(column) for column in stored], metadata=stored.metadata)

    def arrow(self, names: Sequence[str] | None) -> ds.FileFormat:
        """Return pyarrow's file format.

        Args:
            names: The columns of CSV files without a header, in order; None for generated names.
        """
        if self.format == "csv":
            return self._csv(names)
        if self.format == "json":
            if pa.cpu_count() == 1:
                # With one thread Arrow's JSON reader deadlocks (seen with Arrow 26).
                pa.set_cpu_count(2)
            read = json.ReadOptions(block_size=_BLOCK_BYTES)
            return ds.JsonFileFormat(ds.JsonFragmentScanOptions(read_options=read))
        return ds.OrcFileFormat() if self.format == "orc" else ds.ParquetFileFormat()

    def check(self, schema: pa.Schema) -> None:
        """Refuse column types that pyarrow cannot read from text, or would misread.

        Raises:
            UnreadableFiles: A column has such a type.
        """
        refused = {"csv": _NOT_IN_CSV, "json": _NOT_IN_JSON}.get(self.format, ())
        for column in schema:
            if (kind := first_within(column.type, *refused)) is not None:
                raise UnreadableFiles(
                    f"pyarrow cannot read {kind} of column {column.name!r} from {self.format}: give it as"
                    " string in schema, or leave it out"
                )

    def _csv(self, names: Sequence[str] | None) -> ds.CsvFileFormat:
        options = self.options
        doubled = self._quotes_doubled
        encoding = "utf8" if doubled else encoding_of(options.separator, options.quote, options.escape)
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
                autogenerate_column_names=not options.header and names is None,
                encoding=encoding,
            ),
        )


def _format_in(path: str) -> str | None:
    """Return the format that a file's name ends with; for text an ending of its compression may follow."""
    stem, _, last = path.rpartition("/")[2].rpartition(".")
    if stem and last in FORMATS:
        return last
    inner_stem, _, format_ = stem.rpartition(".")
    if inner_stem and last in _DECOMPRESSED | _UNREADABLE and format_ in FORMATS and FORMATS[format_].text:
        return format_
    return None


def _check_compression(path: str) -> None:
    ending = path.rpartition("/")[2].rpartition(".")[2]
    if ending in _UNREADABLE:
        raise UnreadableFiles(
            f"pyarrow cannot read s3://{path}: text may be compressed with gzip, bzip2 or zstandard, not"
            f" {ending}"
        )


def _with_spark_type(column: pa.Field) -> pa.Field:
    """Return a column with Spark's type, where ORC stores an integer."""
    note = (column.metadata or {}).get(_SPARK_TYPE, b"")
    if note == b"timestamp_ntz":
        return column.with_type(pa.timestamp("us"))
    if note.startswith(_DURATIONS) and pt.is_int64(column.type):
        return column.with_type(pa.duration("us"))
    if note == b"timestamp":
        return column.with_type(pa.timestamp("us", "UTC"))
    return column.with_type(_with_children(column.type, _with_spark_type))


def _with_children(kind: pa.DataType, change: Callable[[pa.Field], pa.Field]) -> pa.DataType:
    if pt.is_struct(kind):
        return pa.struct([change(kind.field(number)) for number in range(kind.num_fields)])
    if pt.is_map(kind):
        return pa.map_(change(kind.key_field), change(kind.item_field))
    return pa.list_(change(kind.value_field)) if pt.is_list(kind) else kind


def _json_type(kind: pa.DataType) -> pa.DataType:
    # A text that looks like a time stays text: the next file may have other texts in that column.
    if pt.is_timestamp(kind) or pt.is_null(kind):
        return pa.string()
    return _with_children(kind, lambda child: child.with_type(_json_type(child.type)))


def _csv_type(kind: pa.DataType) -> pa.DataType:
    if pt.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    return pa.string() if pt.is_null(kind) or pt.is_time(kind) or pt.is_binary(kind) else kind


_NOT_IN_CSV = (pt.is_nested, pt.is_binary, pt.is_large_binary, pt.is_duration)

#: Arrow's JSON reader takes dates for numbers, maps for lists of pairs, and base64 text for the bytes.
_NOT_IN_JSON = (pt.is_map, pt.is_date, pt.is_binary, pt.is_large_binary, pt.is_duration)

_PREFIX = "s3commit_csv_"
_LINE_ENDS = "\r\n"


def encoding_of(separator: str, quote: str, escape: str) -> str:
    """Return the name of the encoding: UTF-8 with every escape character outside quotes doubled.

    Args:
        separator: Separates values. One ASCII character, as are the other two.
        quote: Encloses values.
        escape: Escapes characters in quoted values.
    """
    return _PREFIX + "_".join(f"{ord(character):02x}" for character in (separator, quote, escape))


class _Decoder(codecs.IncrementalDecoder):
    """Decodes one file; holds a quoted value back until it is complete."""

    _separator = ","
    _quote = '"'
    _escape = "\\"

    def __init__(self, errors: str = "strict") -> None:
        super().__init__(errors)
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors)
        quote, escape = re.escape(self._quote), re.escape(self._escape)
        before = re.escape(self._separator + _LINE_ENDS)
        inside = f"[^{quote}{escape}]"
        self._token = re.compile(
            rf"(?<=[{before}]){quote}(?:{inside}+|{escape}.)*+({quote}?)|{escape}", re.DOTALL
        )
        self._escapes = re.compile(rf"{escape}[{quote}{escape}]|{escape}")
        # The last character returned: a quote opens a value only at the start of one.
        self._last = "\n"
        self._held = ""

    def decode(self, data: bytes, final: bool = False) -> str:  # type: ignore[override] # pyarrow's buffers
        """Return the text of the next bytes, without a quoted value that is still incomplete."""
        text = self._held + self._utf8.decode(bytes(data), final)
        self._held = ""
        if self._quote in text or self._escape in text:
            text = self._translate(text, final)
        if text:
            self._last = text[-1]
        return text

    def _translate(self, text: str, final: bool) -> str:
        text = self._last + text
        pieces, done = [], 1
        for found in self._token.finditer(text, 1):
            if found[0] == self._escape:
                pieces += [text[done : found.end()], self._escape]
            elif not found[1] and not final:
                self._held = text[found.start() :]
                return "".join([*pieces, text[done : found.start()]])
            else:
                pieces += [text[done : found.start()], self._escapes.sub(self._double_stray, found[0])]
            done = found.end()
        return "".join([*pieces, text[done:]])

    def _double_stray(self, found: re.Match[str]) -> str:
        """Double an escape character that escapes nothing; keep any other escape."""
        return self._escape * 2 if found[0] == self._escape else found[0]


def _find(name: str) -> codecs.CodecInfo | None:
    if not name.startswith(_PREFIX):
        return None
    separator, quote, escape = (chr(int(code, 16)) for code in name.removeprefix(_PREFIX).split("_"))
    decoder = type("_Decoder", (_Decoder,), {"_separator": separator, "_quote": quote, "_escape": escape})
    return codecs.CodecInfo(
        name=name,
        encode=codecs.utf_8_encode,
        decode=codecs.utf_8_decode,
        incrementalencoder=codecs.getincrementalencoder("utf-8"),
        incrementaldecoder=cast("type[_Decoder]", decoder),
    )


codecs.register(_find)

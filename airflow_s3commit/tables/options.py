"""Options of reads and writes: their declaration, parsing and checks; file formats, and the options of files.

Each option is declared once, by the dataclass field that it sets. The parsers of an option's text raise a
ValueError that says what is wrong with the text. The module does not import pyarrow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from typing import Any

from airflow_s3commit.exceptions import InvalidOption, Refused
from airflow_s3commit.protocol.model.codec import MIB
from airflow_s3commit.store.credentials import without_userinfo

_SIZE = re.compile(r"(\d+)\s*([kmg]?)(i?b)?", re.IGNORECASE)

_WHOLE = re.compile(r"[+-]?[0-9]+")

_REGION = re.compile(r"([A-Za-z0-9]+(-[A-Za-z0-9]+)*)?")

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}

#: The texts of true and false, in lower case.
FLAGS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def parse_columns(value: str) -> tuple[str, ...]:
    """Parse column names: separated by commas, or a JSON list for names that have commas."""
    if value.lstrip().startswith("["):
        try:
            names = json.loads(value)
        except ValueError:
            names = [None]
        if not all(isinstance(name, str) for name in names):
            raise ValueError('not a JSON list of strings, such as ["dt", "region"]')
    else:
        names = [name.strip() for name in value.split(",")] if value.strip() else []
    if "" in names:
        raise ValueError("a column name is empty: remove a comma, or name the column")
    if len({name.lower() for name in names}) < len(names):
        raise ValueError("a column is named twice: name it once")
    return tuple(names)


def parse_bytes(value: str) -> int:
    """Parse a positive number of bytes such as ``33554432``, ``32m`` or ``32MiB``."""
    matched = _SIZE.fullmatch(value.strip())
    if matched is None or int(matched[1]) == 0:
        raise ValueError("not a size such as 33554432, 32m or 32MiB")
    return int(matched[1]) * _UNITS[matched[2].lower()]


def parse_region(value: str) -> str:
    """Parse a store's region; empty for none."""
    if not _REGION.fullmatch(value):
        raise ValueError("not a region, which has letters, digits and hyphens, such as us-east-1")
    return value


def parse_flag(value: str) -> bool:
    """Parse ``true`` or ``false``, regardless of case; ``1``, ``yes``, ``0`` and ``no`` are accepted too."""
    try:
        return FLAGS[value.strip().lower()]
    except KeyError:
        raise ValueError("neither true nor false: give one of them") from None


def parse_limit(value: str) -> int:
    """Parse a limit; return 0 for zero and negative numbers, which mean "no limit" in Spark."""
    return max(_whole(value), 0)


def _whole(value: str) -> int:
    if not _WHOLE.fullmatch(value.strip()):
        raise ValueError("not a whole number, such as 1000")
    return int(value)


def _positive(value: str) -> int:
    if (number := _whole(value)) < 1:
        raise ValueError("less than 1: give 1 or more")
    return number


def one_of(*choices: str) -> Callable[[str], str]:
    """Return a parser that accepts one of the choices, regardless of case, and returns it in lower case."""

    def read(value: str) -> str:
        if value.lower() not in choices:
            raise ValueError(f"not one of {', '.join(choices)}")
        return value.lower()

    return read


@dataclass(frozen=True, slots=True)
class Option:
    """The declaration of one option.

    Attributes:
        name: The option's name; its case does not matter.
        read: Parses the option's text; raises a ValueError that says what is wrong with the text.
        meaning: The option's effect, in one sentence.
        unit: Unit of the value.
        formats: The file formats that the option applies to; empty for all.
        default: The default as the documentation shows it; empty to derive it from the field.
        field: The dataclass field that the option sets; filled in by `options_of`.
    """

    name: str
    read: Callable[[str], object]
    meaning: str
    unit: str = ""
    formats: tuple[str, ...] = ()
    default: str = ""
    field: str = ""


def set_by(value: Any, *option: Any, **more: Any) -> Any:
    """Declare a dataclass field by its default and the `Option` that sets it."""
    return field(default=value, metadata={"option": Option(*option, **more)})


def options_of(declared: type) -> tuple[Option, ...]:
    """Return the options that a dataclass declares with `set_by`, in the order of its fields."""
    return tuple(
        replace(option, field=known.name, default=option.default or _shown(known.default, option.unit))
        for known in fields(declared)
        if (option := known.metadata.get("option")) is not None
    )


def _shown(default: Any, unit: str) -> str:
    """Return a default as the text of an option, or as a word if there is no such text."""
    if isinstance(default, bool):
        return str(default).lower()
    if unit == "bytes":
        return f"{default // _UNITS['m']}m" if default else "no limit"
    if default in (None, ()):
        return "none"
    return str(default) or "nothing"


def read_fields(options: Mapping[str, str], known: Sequence[Option]) -> dict[str, Any]:
    """Parse the texts of options, regardless of their names' case; return the values by field.

    An error lists the known options in their order.
    """
    by_name = {option.name.lower(): option for option in known}
    found: dict[str, Any] = {}
    names: dict[str, str] = {}
    for name, value in options.items():
        option = by_name.get(name.lower())
        if option is None:
            all_ = ", ".join(option.name for option in known)
            close = get_close_matches(name.lower().replace("_", ""), by_name, n=1, cutoff=0.8)
            hint = f", did you mean {by_name[close[0]].name}?" if close else ";"
            raise InvalidOption(f"s3commit has no option {name}{hint} its options are {all_}")
        if option.field in found:
            raise InvalidOption(f"option {name} is given twice, also as {names[option.field]}")
        names[option.field] = option.name
        if not isinstance(value, str):
            raise InvalidOption(f"option {option.name} is of type {type(value).__name__}: give it as text")
        try:
            found[option.field] = option.read(value)
        except (ValueError, Refused) as error:
            shown = without_userinfo(value)
            raise InvalidOption(f"option {option.name}={shown!r} of s3commit: {error}") from error
    return found


@dataclass(frozen=True, slots=True)
class Codec:
    """A compression.

    Attributes:
        engine: The name that the compressing library uses.
        infix: The part of file names that Spark adds, such as ``.snappy``; may be empty.
        level: The level of Spark's own writer, where pyarrow's default differs.
    """

    engine: str
    infix: str
    level: int | None = None


@dataclass(frozen=True, slots=True)
class TableFormat:
    """A file format; its name is the ending of its files' names.

    Attributes:
        codecs: Supported compressions, by the values of Spark's option ``compression``.
        default: The compression that Spark uses by default.
        text: Whether files are text, compressed as a whole.
    """

    name: str
    content_type: str
    codecs: Mapping[str, Codec]
    default: str
    text: bool = False

    def suffix(self, compression: str) -> str:
        """Return the ending of file names, such as ``.snappy.parquet`` or ``.csv.gz``."""
        infix = self.codecs[compression].infix
        return f".{self.name}{infix}" if self.text else f"{infix}.{self.name}"


_PARQUET_CODECS = {
    "snappy": Codec("snappy", ".snappy"),
    "gzip": Codec("gzip", ".gz", 6),
    "zstd": Codec("zstd", ".zstd", 3),
    "lz4_raw": Codec("lz4", ".lz4raw"),
    "brotli": Codec("brotli", ".br"),
    "none": Codec("none", ""),
    "uncompressed": Codec("none", ""),
}

_ORC_CODECS = {
    **{name: Codec(name, f".{name}") for name in ("zstd", "snappy", "zlib", "lz4")},
    **dict.fromkeys(("none", "uncompressed"), Codec("uncompressed", "")),
}

_TEXT_CODECS = {"none": Codec("none", ""), "uncompressed": Codec("none", ""), "gzip": Codec("gzip", ".gz")}

#: The formats by name.
FORMATS: Mapping[str, TableFormat] = {
    "parquet": TableFormat("parquet", "application/vnd.apache.parquet", _PARQUET_CODECS, "snappy"),
    "orc": TableFormat("orc", "application/octet-stream", _ORC_CODECS, "zstd"),
    "csv": TableFormat("csv", "text/csv", _TEXT_CODECS, "none", text=True),
    "json": TableFormat("json", "application/x-ndjson", _TEXT_CODECS, "none", text=True),
}


#: Spark's own default.
DEFAULT_FORMAT = "parquet"

#: A file of the target size has at least this number of row groups, so that it ends close to that size.
_GROUPS_PER_FILE = 4


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The options of writing a table.

    Attributes:
        encoded_bytes: Encoded bytes buffered by all open files together; no option sets it.
    """

    format: str = set_by(
        DEFAULT_FORMAT, "format", one_of(*FORMATS), "Format of the files: parquet, orc, csv or json."
    )
    partition_by: tuple[str, ...] = set_by(
        (), "partitionBy", parse_columns,
        "Partition columns, outermost first: names separated by commas, or a JSON list.",
    )  # fmt: skip
    compression: str | None = set_by(
        None, "compression", one_of(*sorted({name for known in FORMATS.values() for name in known.codecs})),
        "parquet: snappy, gzip, zstd, lz4_raw, brotli, none; orc: zstd, snappy, zlib, lz4, none;"
        " csv and json: none, gzip.",
        default="snappy, zstd, none, none",
    )  # fmt: skip
    max_records_per_file: int = set_by(
        0, "maxRecordsPerFile", parse_limit, "Rows after which a file is ended; 0 for no limit.", "rows"
    )
    target_file_bytes: int = set_by(
        0, "targetFileBytes", parse_bytes,
        "Encoded size after which a file is ended: at the end of the row group that reaches it.", "bytes",
    )  # fmt: skip
    row_group_bytes: int = set_by(
        48 * MIB, "parquet.block.size", parse_bytes,
        "Size in memory of a row group's rows; no more than rowBytes.", "bytes", ("parquet",),
    )  # fmt: skip
    row_bytes: int = set_by(
        64 * MIB, "rowBytes", parse_bytes,
        "Size in memory of the rows that a task buffers; of partitioned rows half, which leaves room to sort"
        " them.", "bytes",
    )  # fmt: skip
    open_files: int = set_by(64, "openFiles", _positive, "Files that a task has open at a time.", "files")
    header: bool = set_by(
        False, "header", parse_flag, "Begin files with the columns' names.", formats=("csv",)
    )
    encoded_bytes: int = 40 * MIB

    @property
    def file_format(self) -> TableFormat:
        """The files' format."""
        return FORMATS[self.format]

    @property
    def codec(self) -> str:
        """The compression: the option, or the format's default."""
        return self.compression or self.file_format.default

    @property
    def group_bytes(self) -> int:
        """Bytes of rows in a row group, by their size in memory; fewer if files have a target size."""
        target = self.target_file_bytes // _GROUPS_PER_FILE
        return min(self.row_group_bytes, target) if target else self.row_group_bytes


#: Every option of a table; an option that Spark has too has Spark's name.
TABLE_OPTIONS: tuple[Option, ...] = options_of(TableOptions)


def parse_table_options(
    options: Mapping[str, str],
    *,
    format: str | None = None,  # noqa: A002 - as Spark calls it
    partition_by: Sequence[str] | None = None,
) -> TableOptions:
    """Parse the options of writing a table; format and partition columns may be among them.

    Raises:
        InvalidOption: An option is unknown, malformed, does not apply to the format, contradicts another, or
            is given as an argument too.
    """
    for name, argument in (("format", format), ("partitionBy", partition_by)):
        if argument is not None and name.lower() in {given.lower() for given in options}:
            raise InvalidOption(f"{name} is given both as an argument and as an option: leave one out")
    arguments = {} if format is None else {"format": format}
    known = sorted(TABLE_OPTIONS, key=lambda option: option.name)
    fields = read_fields({**options, **arguments}, known)
    chosen = fields.get("format", DEFAULT_FORMAT)
    for option in known:
        if option.field in fields and option.formats and chosen not in option.formats:
            raise InvalidOption(
                f"option {option.name} is only for {' and '.join(option.formats)}; the files' format is"
                f" {chosen}"
            )
    if partition_by is not None:
        fields["partition_by"] = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
    made = TableOptions(**fields)
    if made.codec not in made.file_format.codecs:
        names = ", ".join(made.file_format.codecs)
        raise InvalidOption(f"{made.format} files cannot have compression={made.codec}; use one of {names}")
    return made

"""The options of ``df.write.format("s3commit")``: read once, on the driver, into plain data."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast, get_args

from airflow_s3commit.exceptions import Refused
from airflow_s3commit.protocol.destination import Destination
from airflow_s3commit.protocol.layout import check_id
from airflow_s3commit.protocol.records import Committer, ConflictMode
from airflow_s3commit.spark.encoders import CODECS
from airflow_s3commit.spark.session import StoreSettings, parse_flag
from airflow_s3commit.store.base import MIN_PART_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["InvalidOption", "WriteOptions", "parse_bytes", "parse_columns", "parse_options"]

_MIB = 1024 * 1024
_SIZE = re.compile(r"(\d+)\s*([kmg]?)(i?b)?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1024, "m": _MIB, "g": 1024 * _MIB}


class InvalidOption(ValueError):
    """An option of the data source is unknown, malformed, or contradicts another."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How a DataFrame is written.

    Attributes:
        destination: URI of the destination; None takes the job's.
        partition_by: Names of the partition columns, outermost first.
        compression: Parquet codec, by Spark's name.
        max_records_per_file: Rows after which a file is ended; 0 for no limit.
        conflict_mode: What the user asked for; None where nothing was said and the job decides.
        overwrite: Whether the save mode is ``overwrite``.
        committer: Committer of a job that the write sets up by itself.
        stage: Name of this write within its job; None takes the conf's.
        part_bytes: Size of an uploaded part.
        upload_bytes: Bytes that a task holds after they are encoded, until the store has them.
        row_bytes: Bytes of rows that a task holds before they are encoded.
        row_group_bytes: Bytes of rows, before encoding, that make a row group.
        open_files: Files that a task has open at a time.
        store: How to reach the store.

    """

    destination: str | None = None
    partition_by: tuple[str, ...] = ()
    compression: str = "snappy"
    max_records_per_file: int = 0
    conflict_mode: ConflictMode | None = None
    overwrite: bool = False
    committer: Committer = "partitioned"
    stage: str | None = None
    part_bytes: int = 8 * _MIB
    upload_bytes: int = 96 * _MIB
    row_bytes: int = 64 * _MIB
    row_group_bytes: int = 64 * _MIB
    open_files: int = 32
    store: StoreSettings = field(default_factory=StoreSettings)

    @property
    def own_conflict_mode(self) -> ConflictMode:
        """Conflict mode of a job that the write sets up by itself."""
        return self.conflict_mode or ("replace" if self.overwrite else "append")


def parse_options(
    options: Mapping[str, str], *, overwrite: bool, store_defaults: StoreSettings | None = None
) -> WriteOptions:
    """Read the options of a write; their names are not case-sensitive.

    Args:
        options: As Spark hands them over.
        overwrite: Whether the save mode is ``overwrite`` (else it is ``append``).
        store_defaults: Store settings of the session, for options that are not given.

    Raises:
        InvalidOption: An option is unknown, malformed, or contradicts another or the save mode.

    """
    given = {name.lower(): value for name, value in options.items()}
    unknown = sorted(given.keys() - _FIELDS.keys() - _STORE_FIELDS.keys())
    if unknown:
        known = ", ".join(sorted(_NAMES))
        raise InvalidOption(f"s3commit has no option {', '.join(unknown)}; its options are {known}")
    fields: dict[str, Any] = {}
    store: dict[str, Any] = {}
    for name, value in given.items():
        target, (name_of, read) = (fields, _FIELDS[name]) if name in _FIELDS else (store, _STORE_FIELDS[name])
        try:
            target[name_of] = read(value)
        except (ValueError, Refused) as error:
            raise InvalidOption(f"option {name}={value!r} of s3commit: {error}") from error
    settings = StoreSettings(**store).or_else(store_defaults or StoreSettings())
    parsed = WriteOptions(**fields, overwrite=overwrite, store=settings)
    if overwrite and parsed.conflict_mode not in (None, "replace"):
        raise InvalidOption(
            f"save mode overwrite contradicts conflictMode={parsed.conflict_mode}; "
            f'use .mode("append") with it, or leave it out'
        )
    return parsed


def parse_columns(value: str) -> tuple[str, ...]:
    """Read column names: separated by commas, or a JSON list for names that have commas.

    Raises:
        ValueError: A name is empty or given twice, or the JSON is no list of strings.

    """
    if value.lstrip().startswith("["):
        names = json.loads(value)
        if not all(isinstance(name, str) for name in names):
            raise ValueError("not a JSON list of strings")
    else:
        names = [name.strip() for name in value.split(",")] if value.strip() else []
    if "" in names:
        raise ValueError("a column name is empty")
    if len({name.lower() for name in names}) < len(names):
        raise ValueError("a column is named twice")
    return tuple(names)


def parse_bytes(value: str) -> int:
    """Read a positive number of bytes such as ``33554432``, ``32m`` or ``32MiB``.

    Raises:
        ValueError: It is no such number.

    """
    matched = _SIZE.fullmatch(value.strip())
    if matched is None or int(matched[1]) == 0:
        raise ValueError("not a size such as 33554432, 32m or 32MiB")
    return int(matched[1]) * _UNITS[matched[2].lower()]


def _part_bytes(value: str) -> int:
    size = parse_bytes(value)
    if size < MIN_PART_BYTES:
        raise ValueError(f"S3 takes no parts under {MIN_PART_BYTES} bytes")
    return size


def _at_least(least: int) -> Callable[[str], int]:
    def read(value: str) -> int:
        number = int(value)
        if number < least:
            raise ValueError(f"less than {least}")
        return number

    return read


def _records(value: str) -> int:
    # Spark takes zero and any negative number for "no limit".
    return max(int(value), 0)


def _one_of(*choices: str) -> Callable[[str], str]:
    def read(value: str) -> str:
        if value.lower() not in choices:
            raise ValueError(f"not one of {', '.join(choices)}")
        return value.lower()

    return read


def _flag(value: str) -> bool:
    return parse_flag("pathStyle", value)


def _path(value: str) -> str:
    return Destination.parse(value).uri


def _stage(value: str) -> str:
    return check_id(value, "stage")


_FIELDS: dict[str, tuple[str, Callable[[str], object]]] = {
    "path": ("destination", _path),
    "partitionby": ("partition_by", parse_columns),
    "compression": ("compression", _one_of(*CODECS)),
    "maxrecordsperfile": ("max_records_per_file", _records),
    "conflictmode": ("conflict_mode", _one_of(*cast("tuple[str, ...]", get_args(ConflictMode)))),
    "committer": ("committer", _one_of(*cast("tuple[str, ...]", get_args(Committer)))),
    "stage": ("stage", _stage),
    "partbytes": ("part_bytes", _part_bytes),
    "uploadbytes": ("upload_bytes", parse_bytes),
    "rowbytes": ("row_bytes", parse_bytes),
    "parquet.block.size": ("row_group_bytes", parse_bytes),
    "openfiles": ("open_files", _at_least(1)),
}
_STORE_FIELDS: dict[str, tuple[str, Callable[[str], object]]] = {
    "endpointurl": ("endpoint_url", str),
    "region": ("region", str),
    "pathstyle": ("path_style", _flag),
}
_NAMES = (
    "path", "partitionBy", "compression", "maxRecordsPerFile", "conflictMode", "committer", "stage",
    "partBytes", "uploadBytes", "rowBytes", "parquet.block.size", "openFiles", "endpointUrl", "region",
    "pathStyle",
)  # fmt: skip

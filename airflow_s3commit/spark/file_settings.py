"""A session's settings of files: each that Spark's own writer heeds is honoured here, or refused by name.

Settings that are not set, or set to what Spark does by default, change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_s3commit.exceptions import InvalidOption
from airflow_s3commit.spark.options import WriteOptions
from airflow_s3commit.tables.options import FILE_OPTIONS

if TYPE_CHECKING:
    from airflow_s3commit.spark.session import ConfGet

_PARQUET = ("parquet",)
_ORC = ("orc",)
_TEXT = ("csv", "json")

#: Where to write what this package cannot.
OTHER_WRITER = "use Spark's own writer: writer='spark' of committer_conf and the Spark operator"

#: Spark's and Hadoop's keys, by the option of this package that means the same.
_HONOURED = {
    "spark.sql.parquet.compression.codec": ("compression", _PARQUET),
    "spark.sql.orc.compression.codec": ("compression", _ORC),
    "spark.sql.files.maxRecordsPerFile": ("maxRecordsPerFile", ()),
    "spark.sql.parquet.outputTimestampType": ("outputTimestampType", _PARQUET),
    "parquet.block.size": ("parquet.block.size", _PARQUET),
    "orc.stripe.size": ("orc.stripe.size", _ORC),
}

_ENCRYPTION = "the files would not be encrypted as it asks"


@dataclass(frozen=True, slots=True)
class _Fixed:
    """A setting that this package cannot follow.

    Attributes:
        formats: The formats whose files it changes.
        same: Values, in lower case, with which Spark writes what this package writes.
        effect: The reason, for the error.

    """

    formats: tuple[str, ...]
    same: tuple[str, ...] = ()
    effect: str = "the files would not be as it asks"


_FIXED = {
    "parquet.crypto.factory.class": _Fixed(_PARQUET, effect=_ENCRYPTION),
    "parquet.encryption.footer.key": _Fixed(_PARQUET, effect=_ENCRYPTION),
    "parquet.encryption.column.keys": _Fixed(_PARQUET, effect=_ENCRYPTION),
    "parquet.encryption.uniform.key": _Fixed(_PARQUET, effect=_ENCRYPTION),
    "parquet.encryption.kms.client.class": _Fixed(_PARQUET, effect=_ENCRYPTION),
    "orc.encrypt": _Fixed(_ORC, effect=_ENCRYPTION),
    "orc.mask": _Fixed(_ORC, effect=_ENCRYPTION),
    "orc.key.provider": _Fixed(_ORC, effect=_ENCRYPTION),
    "spark.sql.parquet.writeLegacyFormat": _Fixed(_PARQUET, ("false",)),
    "spark.sql.parquet.datetimeRebaseModeInWrite": _Fixed(_PARQUET, ("corrected",)),
    "spark.sql.parquet.int96RebaseModeInWrite": _Fixed(_PARQUET, ("corrected",)),
    "spark.sql.legacy.parquet.datetimeRebaseModeInWrite": _Fixed(_PARQUET, ("corrected",)),
    "spark.sql.legacy.parquet.int96RebaseModeInWrite": _Fixed(_PARQUET, ("corrected",)),
    "spark.sql.parquet.fieldId.write.enabled": _Fixed(_PARQUET, ("true",)),
    "spark.sql.parquet.variant.annotateLogicalType.enabled": _Fixed(_PARQUET, ("true",)),
    "parquet.writer.version": _Fixed(_PARQUET, ("v1", "parquet_1_0")),
    "parquet.page.size": _Fixed(_PARQUET, ("1048576",)),
    "parquet.page.row.count.limit": _Fixed(_PARQUET, ("20000",)),
    "parquet.dictionary.page.size": _Fixed(_PARQUET, ("1048576",)),
    "parquet.enable.dictionary": _Fixed(_PARQUET, ("true",)),
    "parquet.bloom.filter.enabled": _Fixed(_PARQUET, ("false",)),
    "parquet.statistics.enabled": _Fixed(_PARQUET, ("true",)),
    "parquet.columnindex.truncate.length": _Fixed(_PARQUET, ("64",)),
    "parquet.statistics.truncate.length": _Fixed(_PARQUET, ("2147483647",)),
    "parquet.compression.codec.zstd.level": _Fixed(_PARQUET, ("3",)),
    "parquet.summary.metadata.level": _Fixed(_PARQUET, ("none",)),
    "parquet.enable.summary-metadata": _Fixed(_PARQUET, ("false",)),
    "orc.bloom.filter.columns": _Fixed(_ORC),
    "orc.column.encoding.direct": _Fixed(_ORC),
    "orc.create.index": _Fixed(_ORC, ("true",)),
    "orc.row.index.stride": _Fixed(_ORC, ("10000",)),
    "orc.compress.size": _Fixed(_ORC, ("262144",)),
    "orc.dictionary.key.threshold": _Fixed(_ORC, ("0.8",)),
    "orc.write.format": _Fixed(_ORC, ("0.12",)),
    "mapreduce.output.fileoutputformat.compress": _Fixed(_TEXT, ("false",)),
}

#: Keys of Hadoop's configuration, which sessions set with and without ``spark.hadoop.`` before them. Some
#: name a column after ``#``.
HADOOP_KEYS = tuple(key for key in (*_HONOURED, *_FIXED) if not key.startswith("spark."))

_OPTIONS = {option.name: option for option in FILE_OPTIONS}


def with_file_settings(options: WriteOptions, get: ConfGet) -> WriteOptions:
    """Return a write's options, with the session's settings of files for options that are not given.

    Args:
        options: The options of the write.
        get: Looks a key up in the session's conf.

    Raises:
        InvalidOption: The session sets something that Spark's own writer heeds and this package cannot do.

    """
    file_format = options.table.format
    for key, fixed in _FIXED.items():
        value = _value(get, key) if file_format in fixed.formats else None
        if value is not None and value.lower() not in fixed.same:
            raise InvalidOption(
                f"the session sets {key}={value}, which s3commit cannot do for {file_format}: {fixed.effect};"
                f" unset it for this write, or {OTHER_WRITER}"
            )
    table = options.table
    for key, (name, formats) in _HONOURED.items():
        option = _OPTIONS[name]
        value = None if formats and file_format not in formats else _value(get, key)
        if value is None or option.field in options.given:
            continue
        try:
            read = option.read(value)
        except ValueError as error:
            raise InvalidOption(
                f"the session sets {key}={value}, which s3commit cannot do for {file_format}: it is {error};"
                f" set the write's option {name}, or {OTHER_WRITER}"
            ) from error
        changed: dict[str, Any] = {option.field: read}
        table = replace(table, **changed)
    if table.codec not in table.file_format.codecs:
        key = f"spark.sql.{file_format}.compression.codec"
        raise InvalidOption(
            f"the session sets {key}={table.codec}, which s3commit cannot do for {file_format}: set the"
            f" write's option compression to one of {', '.join(table.file_format.codecs)}"
        )
    return options if table is options.table else replace(options, table=table)


def _value(get: ConfGet, key: str) -> str | None:
    keys = (key,) if key.startswith("spark.") else (key, f"spark.hadoop.{key}")
    return next((value for each in keys if (value := (get(each) or "").strip())), None)

"""A session's settings of files: each that Spark's own writer heeds is honoured here, or refused by name.

Settings that are not set, or set to what Spark does by default, change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_s3commit.exceptions import InvalidOption
from airflow_s3commit.spark.options import OTHER_WRITER, WriteOptions
from airflow_s3commit.tables.options import FILE_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_s3commit.spark.session import ConfGet

_PARQUET = ("parquet",)
_ORC = ("orc",)
_TEXT = ("csv", "json")

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


#: Spark's and parquet-java's keys, with the values that change nothing.
_PARQUET_KEYS = {
    "spark.sql.parquet.writeLegacyFormat": ("false",),
    "spark.sql.parquet.datetimeRebaseModeInWrite": ("corrected",),
    "spark.sql.parquet.int96RebaseModeInWrite": ("corrected",),
    "spark.sql.legacy.parquet.datetimeRebaseModeInWrite": ("corrected",),
    "spark.sql.legacy.parquet.int96RebaseModeInWrite": ("corrected",),
    "spark.sql.parquet.fieldId.write.enabled": ("true",),
    "spark.sql.parquet.variant.annotateLogicalType.enabled": ("true",),
    "parquet.writer.version": ("v1", "parquet_1_0"),
    "parquet.block.row.count.limit": ("2147483647",),
    "parquet.page.size": ("1048576",),
    "parquet.page.row.count.limit": ("20000",),
    "parquet.page.size.check.estimate": ("true",),
    "parquet.page.size.row.check.min": ("100",),
    "parquet.page.size.row.check.max": ("10000",),
    "parquet.page.value.count.threshold": ("1073741823",),
    "parquet.page.write-checksum.enabled": ("true",),
    "parquet.dictionary.page.size": ("1048576",),
    "parquet.enable.dictionary": ("true",),
    "parquet.enable.bytestreamsplit": ("false",),
    "parquet.bloom.filter.enabled": ("false",),
    # It asks for a filter by itself.
    "parquet.bloom.filter.expected.ndv": (),
    "parquet.column.statistics.enabled": ("true",),
    "parquet.size.statistics.enabled": ("true",),
    "parquet.columnindex.truncate.length": ("64",),
    "parquet.statistics.truncate.length": ("2147483647",),
    "parquet.compression.codec.zstd.level": ("3",),
    "parquet.summary.metadata.level": ("none",),
    "parquet.enable.summary-metadata": ("false",),
}

#: ORC's keys, with the values that change nothing.
_ORC_KEYS = {
    "spark.sql.orc.impl": ("native",),
    "orc.bloom.filter.columns": (),
    "orc.column.encoding.direct": (),
    "orc.create.index": ("true",),
    "orc.row.index.stride": ("10000",),
    "orc.stripe.row.count": ("2147483647",),
    "orc.compress.size": ("262144",),
    "orc.buffer.size.enforce": ("false",),
    "orc.dictionary.key.threshold": ("0.8",),
    "orc.dictionary.max.size.bytes": ("16777216",),
    "orc.dictionary.early.check": ("true",),
    "orc.encoding.strategy": ("speed",),
    "orc.compression.strategy": ("speed",),
    "orc.compression.zstd.level": ("3",),
    "orc.compression.zstd.windowlog": ("0",),
    "orc.compression.zstd.strategy": ("0",),
    "orc.proleptic.gregorian": ("false",),
    "orc.write.format": ("0.12",),
}

#: Keys that ask for encrypted files, or say how, by format.
_ENCRYPTION_KEYS = {
    _PARQUET: (
        "parquet.crypto.factory.class",
        *(
            f"parquet.encryption.{name}"
            for name in (
                "footer.key", "column.keys", "complete.columns", "uniform.key", "algorithm",
                "plaintext.footer", "kms.client.class", "kms.instance.id", "kms.instance.url",
                "key.access.token", "double.wrapping", "cache.lifetime.seconds",
                "key.material.store.internally", "data.key.length.bits", "kek.length.bits",
            )
        ),
    ),
    _ORC: ("orc.encrypt", "orc.mask", "orc.key.provider"),
}  # fmt: skip

_FIXED = {
    **{key: _Fixed(formats, (), _ENCRYPTION) for formats, keys in _ENCRYPTION_KEYS.items() for key in keys},
    **{key: _Fixed(_PARQUET, same) for key, same in _PARQUET_KEYS.items()},
    **{key: _Fixed(_ORC, same) for key, same in _ORC_KEYS.items()},
    "mapreduce.output.fileoutputformat.compress": _Fixed(_TEXT, ("false",)),
    "zlib.compress.level": _Fixed((*_PARQUET, *_TEXT), ("default_compression",)),
    "zlib.compress.strategy": _Fixed((*_PARQUET, *_TEXT), ("default_strategy",)),
}

#: Every key that a write heeds, or is refused for.
SETTINGS = (*_HONOURED, *_FIXED)

#: Hive's names of ORC's keys, which ORC heeds too.
_HIVE_NAMES = {
    "orc.stripe.size": "hive.exec.orc.default.stripe.size",
    "orc.row.index.stride": "hive.exec.orc.default.row.index.stride",
    "orc.compress.size": "hive.exec.orc.default.buffer.size",
    "orc.buffer.size.enforce": "hive.exec.orc.buffer.size.enforce",
    "orc.write.format": "hive.exec.orc.write.format",
    "orc.encoding.strategy": "hive.exec.orc.encoding.strategy",
    "orc.compression.strategy": "hive.exec.orc.compression.strategy",
    "orc.compression.zstd.level": "hive.exec.orc.compression.zstd.level",
    "orc.compression.zstd.windowlog": "hive.exec.orc.compression.zstd.windowlog",
    "orc.compression.zstd.strategy": "hive.exec.orc.compression.zstd.strategy",
    "orc.dictionary.key.threshold": "hive.exec.orc.dictionary.key.size.threshold",
    "orc.dictionary.early.check": "hive.orc.row.index.stride.dictionary.check",
}

#: Keys of Hadoop's configuration, which sessions set with and without ``spark.hadoop.`` before them. Some
#: name a column after ``#``.
HADOOP_KEYS = frozenset((*(key for key in SETTINGS if not key.startswith("spark.")), *_HIVE_NAMES.values()))

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
            # A key of encryption may have a secret.
            shown = key if fixed.effect == _ENCRYPTION else f"{key}={value}"
            raise InvalidOption(
                f"the session sets {shown}, which s3commit cannot do for {file_format}: {fixed.effect};"
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


def column_settings(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of single columns that this package cannot follow, under their keys without ``#``.

    Args:
        properties: Properties of a conf, with and without ``spark.hadoop.`` before them.

    """
    found = {}
    for name, value in properties.items():
        key, mark, _ = name.removeprefix("spark.hadoop.").partition("#")
        if mark and key in _FIXED and value.strip().lower() not in _FIXED[key].same:
            found[key] = value
    return found


def _value(get: ConfGet, key: str) -> str | None:
    keys = (key,) if key.startswith("spark.") else (key, f"spark.hadoop.{key}")
    if (hive := _HIVE_NAMES.get(key)) is not None:
        keys = (*keys, hive, f"spark.hadoop.{hive}")
    return next((value for each in keys if (value := (get(each) or "").strip())), None)

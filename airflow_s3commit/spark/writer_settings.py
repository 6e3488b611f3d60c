"""The session settings that affect Spark's own writer: each is honoured here, or refused by name.

They are settings of files, and S3A's settings of stored objects. Settings that are unset or at Spark's
defaults change nothing.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import msgspec

from airflow_s3commit.exceptions import InvalidOption
from airflow_s3commit.protocol.model.object_options import ObjectOptions
from airflow_s3commit.spark.options import OTHER_WRITER, WriteOptions
from airflow_s3commit.store.credentials import StoreAddress
from airflow_s3commit.tables.options import FILE_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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

#: Every key that a write follows or refuses.
SETTINGS = (*_HONOURED, *_FIXED)

#: Hive's names of ORC's keys, which ORC follows too.
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
        InvalidOption: The session sets something that affects Spark's own writer and that this package cannot
            do.

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


_ALGORITHM = ("encryption.algorithm", "server-side-encryption-algorithm")
_KEY = ("encryption.key", "server-side-encryption.key")
_CONTEXT = ("encryption.context",)
_STORAGE_CLASS = ("create.storage.class",)
_ACL = ("acl.default",)
_PROVIDERS = ("security.credential.provider.path",)

#: Hadoop's own key of the same, for all file systems.
_ALL_PROVIDERS = "hadoop.security.credential.provider.path"

#: S3's names of server-side encryption, by Hadoop's.
_SSE = {"AES256": "AES256", "SSE-KMS": "aws:kms", "DSSE-KMS": "aws:kms:dsse"}

_PREFIX = "fs.s3a."

_NAMES = (*_ALGORITHM, *_KEY, *_CONTEXT, *_STORAGE_CLASS, *_ACL, *_PROVIDERS)

#: Hadoop's configuration files that Spark loads.
_SITE_FILES = ("core-site.xml", "hdfs-site.xml", "yarn-site.xml", "mapred-site.xml", "hive-site.xml")


@dataclass(frozen=True, slots=True)
class S3ASettings:
    """S3A's settings for one bucket, as Hadoop spells them; None for settings that the session does not have.

    Attributes:
        algorithm: Server-side encryption.
        key: The KMS key.
        context: The encryption context.
        storage_class: The storage class.
        acl: The canned ACL.
        providers: The credential providers, in which S3A looks for the KMS key first.

    """

    algorithm: str | None = None
    key: str | None = None
    context: str | None = None
    storage_class: str | None = None
    acl: str | None = None
    providers: str | None = None

    def fill(self, options: ObjectOptions) -> ObjectOptions:
        """Return object options, with the session's settings for those that are not set.

        Raises:
            InvalidOption: This package does not support a setting of the session, or S3 does not know it.

        """
        fields: dict[str, Any] = {}
        if options.sse is None and self.algorithm is not None:
            fields |= self._encryption()
        if options.storage_class is None and self.storage_class is not None:
            fields["storage_class"] = self.storage_class.upper().replace("-", "_")
        if options.acl is None and self.acl is not None:
            words = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", self.acl)
            fields["acl"] = words.lower().replace("_", "-")
        try:
            return msgspec.structs.replace(options, **fields)
        except InvalidOption as error:
            raise InvalidOption(f"{_PREFIX}* of the session: {error}") from error

    def _encryption(self) -> dict[str, Any]:
        sse = _SSE.get(str(self.algorithm).upper())
        if sse is None or self.context is not None:
            name = _ALGORITHM[0] if sse is None else _CONTEXT[0]
            value = self.algorithm if sse is None else self.context
            raise InvalidOption(
                f"the session sets {_PREFIX}{name}={value}, which s3commit does not support; it supports"
                f" {', '.join(_SSE)}, without a context. Set the encryption of this write with the"
                " option sse or in its job's object_options"
            )
        if self.key is None and self.providers and sse.startswith("aws:kms"):
            raise InvalidOption(
                f"the session sets {_PREFIX}{_ALGORITHM[0]}={self.algorithm} without a key, and credential"
                " providers that may have it, which s3commit does not read: name the key with the options"
                " sse and sseKmsKeyId, in its job's object_options, or in the session's"
                f" {_PREFIX}{_KEY[0]}"
            )
        return {"sse": sse, "sse_kms_key_id": self.key if sse.startswith("aws:kms") else None}


def s3a_settings(get: ConfGet, bucket: str) -> S3ASettings:
    """Return a conf's S3A settings for a bucket; the bucket's own settings override those of all buckets.

    Args:
        get: Looks a key up in the conf.
        bucket: The bucket.

    """

    def first(names: tuple[str, ...]) -> str | None:
        spellings = [f"{scope}{name}" for scope in (f"bucket.{bucket}.", "") for name in names]
        keys = (f"{start}{_PREFIX}{rest}" for rest in spellings for start in ("", "spark.hadoop."))
        return next((value for key in keys if (value := (get(key) or "").strip())), None)

    providers = first(_PROVIDERS) or get(_ALL_PROVIDERS) or get(f"spark.hadoop.{_ALL_PROVIDERS}")
    return S3ASettings(
        first(_ALGORITHM), first(_KEY), first(_CONTEXT), first(_STORAGE_CLASS), first(_ACL), providers
    )


def s3a_address(session: Any, bucket: str) -> StoreAddress:
    """Return where S3A looks for a bucket, by a classic session's Hadoop configuration.

    Raises:
        StoreUnsuitable: The endpoint is not a store's URL.

    """
    conf = session._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001 - there is no other way

    def first(name: str) -> str | None:
        found = conf.getTrimmed(f"{_PREFIX}bucket.{bucket}.{name}") or conf.getTrimmed(f"{_PREFIX}{name}")
        return str(found) if found else None

    endpoint = first("endpoint")
    if endpoint is not None and "://" not in endpoint:
        plain = (first("connection.ssl.enabled") or "true").lower() == "false"
        endpoint = f"{'http' if plain else 'https'}://{endpoint}"
    path_style = (first("path.style.access") or "false").lower() == "true"
    return StoreAddress(endpoint, first("endpoint.region"), path_style=path_style or None)


def conf_of(session: Any) -> ConfGet:
    """Return a lookup in a session's Hadoop configuration, then in its conf; see `hadoop_conf`.

    Spark adds the conf to the Hadoop configuration that a write gets. A session of Spark Connect does not
    show that configuration: Hadoop's configuration files of this machine take its place.
    """
    hadoop, conf = hadoop_conf(session) if is_classic(session) else site_conf(os.environ), session.conf
    if hasattr(type(conf), "getAll"):
        return {**conf.getAll, **hadoop}.get
    # PySpark 3.5 cannot list what a session sets.
    return lambda key: hadoop.get(key) or conf.get(key, None)


def is_classic(session: Any) -> bool:
    """Return whether a session has a JVM in this machine, which a Spark Connect client lacks."""
    return getattr(session, "_jsparkSession", None) is not None


def hadoop_conf(session: Any) -> dict[str, str]:
    """Return the settings of files and stored objects in a session's Hadoop configuration.

    Its configuration files are included. A setting of one column that a write cannot follow, with ``#`` and
    the column after its key, is returned under the key.

    The result is empty in Spark Connect, whose client has no access to that configuration.
    """
    if not is_classic(session):
        return {}
    conf = session._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001 - there is no other way
    keys = (*(f"{_PREFIX}{name}" for name in _NAMES), _ALL_PROVIDERS)
    found = {key: conf.get(key) for key in keys}
    return _kept({**found, **_file_settings(conf), **dict(_bucket_settings(conf))})


def site_conf(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of files and stored objects in Hadoop's configuration files of this machine.

    It is for processes of the driver that have no session. Spark takes each file from the first of its
    classpath's directories that has it: ``SPARK_CONF_DIR``, or ``conf`` in ``SPARK_HOME``; then
    ``HADOOP_CONF_DIR`` and ``YARN_CONF_DIR``.

    Args:
        environment: The process's environment variables.

    Raises:
        InvalidOption: A file cannot be read.

    """
    home = environment.get("SPARK_HOME")
    sparks = environment.get("SPARK_CONF_DIR") or (home and f"{home}/conf")
    directories = (sparks, environment.get("HADOOP_CONF_DIR"), environment.get("YARN_CONF_DIR"))
    found: dict[str, str] = {}
    for name in _SITE_FILES:
        paths = (Path(directory, name) for directory in directories if directory)
        path = next((path for path in paths if path.is_file()), None)
        if path is not None:
            found |= _properties(path)
    return _kept(found)


def _properties(path: Path) -> dict[str, str]:
    try:
        root = ET.parse(path).getroot()  # noqa: S314 - the cluster's own configuration
    except (OSError, ET.ParseError) as error:
        raise InvalidOption(
            f"Hadoop's configuration file {path} cannot be read ({error}), and it may ask for encryption:"
            " repair it, or call airflow_s3commit.spark.register(spark) before the write"
        ) from error
    return {
        name.strip(): value
        for element in root.iter("property")
        if (name := element.findtext("name") or element.get("name"))
        and (value := element.findtext("value") or element.get("value"))
    }


def _kept(properties: Mapping[str, str | None]) -> dict[str, str]:
    """Return those of Hadoop's properties that a write follows or refuses."""
    present = {key: value for key, value in properties.items() if value}
    ends = tuple(f".{name}" for name in _NAMES)
    kept = {
        key: value
        for key, value in present.items()
        if key in HADOOP_KEYS or key == _ALL_PROVIDERS or (key.startswith(_PREFIX) and key.endswith(ends))
    }
    return kept | column_settings(present)


def _file_settings(conf: Any) -> dict[str, str]:
    prefixes = ("parquet.", "orc.", "hive.exec.orc.", "hive.orc.")
    found = {
        f"{prefix}{rest}": str(value)
        for prefix in prefixes
        for rest, value in dict(conf.getPropsWithPrefix(prefix)).items()
    }
    # Hadoop itself sets hundreds of other keys, and reading each is a call of the JVM.
    found |= {key: conf.get(key) for key in HADOOP_KEYS if not key.startswith(prefixes)}
    return found


def _bucket_settings(conf: Any) -> Iterator[tuple[str, str]]:
    prefix = f"{_PREFIX}bucket."
    for rest, value in dict(conf.getPropsWithPrefix(prefix)).items():
        yield f"{prefix}{rest}", str(value)

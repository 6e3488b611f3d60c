"""The session settings that change what Spark's own writer stores: followed here, or refused by name.

They are settings of Parquet files, and S3A's settings of stored objects.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import msgspec

from airflow_s3commit.exceptions import InvalidOption
from airflow_s3commit.protocol.model.job import ObjectOptions
from airflow_s3commit.spark.options import OTHER_WRITER, WRITE_OPTIONS, WriteOptions
from airflow_s3commit.spark.session import HADOOPS_ENCRYPTION
from airflow_s3commit.store.credentials import StoreAddress

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_s3commit.spark.session import ConfGet

#: The settings that are followed, each with the option that means the same.
_FOLLOWED = {
    setting: next(option for option in WRITE_OPTIONS if option.name == name)
    for setting, name in (
        ("spark.sql.parquet.compression.codec", "compression"),
        ("spark.sql.files.maxRecordsPerFile", "maxRecordsPerFile"),
        ("parquet.block.size", "parquet.block.size"),
    )
}

#: The start of a key that changes or encrypts files. Left out are keys of reads, of memory, of summaries
#: beside files, and what Spark sets by itself; and Spark's keys for columns that `plan_table` refuses.
_CHANGES = re.compile(
    r"parquet\.(?!block\.size$|compression$|write\.support\.class|(read|filter|task|strict|split|hadoop|column\.index"
    r"|strings|decrypt|avro|thrift|proto|private|memory|validation|summary|enable\.summary|writer\.max-padding"
    r"|page\.verify-checksum|compression\.codec\.zstd\.(workers|bufferPool))\b)"
    r"|spark\.sql\.(legacy\.)?parquet\.(?!output\.committer|int96Rebase|fieldId|variant).*([wW]rite|output)"
)

#: Values with which Spark writes what this package writes too.
_SAME = re.compile(
    r"(writeLegacyFormat=false|outputTimestampType=timestamp_micros|RebaseModeInWrite=corrected"
    r"|enable\.dictionary=true|page\.size=1048576|writer\.version=(v1|parquet_1_0))$",
    re.IGNORECASE,
)

_ENCRYPTS = re.compile(r"parquet\.(crypto|encryption)\.")


def with_file_settings(options: WriteOptions, conf: Mapping[str, str]) -> WriteOptions:
    """Return a write's options, with the session's settings of files for options that are not given.

    A setting that changes the files of Spark's own writer, and that is not followed here, is refused.
    """
    for name, value in sorted(conf.items()):
        key = name.removeprefix("spark.hadoop.")
        asks = f"{key}={value.strip()}"
        if value.strip() and _CHANGES.match(key) and not _SAME.search(asks):
            # A key of encryption may have a secret.
            what = f"{key}, but s3commit does not encrypt files in Python" if _ENCRYPTS.match(key) else asks
            raise InvalidOption(
                f"the session sets {what}, which would not be followed: unset it for this write, or"
                f" {OTHER_WRITER}"
            )
    table = options.table
    for key, option in _FOLLOWED.items():
        value = (conf.get(key) or conf.get(f"spark.hadoop.{key}") or "").strip()
        if not value or option.field in options.given:
            continue
        try:
            changed: dict[str, Any] = {option.field: option.read(value)}
        except ValueError as error:
            raise InvalidOption(
                f"the session sets {key}={value}, which would not be followed: it is {error}; set the write's"
                f" option {option.name}, or {OTHER_WRITER}"
            ) from error
        table = replace(table, **changed)
    return options if table is options.table else replace(options, table=table)


#: S3A's settings of stored objects, each followed by its older name if it has one.
_SETTINGS = (
    ("encryption.algorithm", "server-side-encryption-algorithm"),
    ("encryption.key", "server-side-encryption.key"),
    ("encryption.context",),
    ("create.storage.class",),
    ("acl.default",),
    ("security.credential.provider.path",),
)

_NAMES = tuple(chain.from_iterable(_SETTINGS))

#: Hadoop's own key of credential providers, for all file systems.
_ALL_PROVIDERS = "hadoop.security.credential.provider.path"

#: S3's names of server-side encryption, by Hadoop's.
_SSE = {hadoops: name for name, hadoops in HADOOPS_ENCRYPTION.items()}

_PREFIX = "fs.s3a."

#: Prefixes of Spark's keys that are read. Lists of jars and the like are left out, because an answer of the
#: JVM of more than 8 KiB takes 40 ms, in which each side waits for the other.
_OF_SPARK = ("spark.hadoop.", "spark.s3commit.", "spark.speculation", "spark.sql.")

#: Hadoop's configuration files that Spark loads.
_SITE_FILES = ("core-site.xml", "hdfs-site.xml", "yarn-site.xml", "mapred-site.xml", "hive-site.xml")


def s3a_settings(get: ConfGet, bucket: str) -> dict[str, str]:
    """Return a conf's S3A settings for a bucket, as Hadoop spells them, by S3A's names; for `with_s3a`."""

    def either(key: str) -> str | None:
        return (get(key) or "").strip() or get(f"spark.hadoop.{key}")

    found = {names[0]: value for names in _SETTINGS if (value := _of_bucket(either, bucket, *names))}
    if everywhere := either(_ALL_PROVIDERS):
        found.setdefault("security.credential.provider.path", everywhere)
    return found


def _of_bucket(get: ConfGet, bucket: str, *names: str) -> str | None:
    """Return a setting of S3A, by any of its names; one for the bucket overrides one for all buckets."""
    keys = (f"{_PREFIX}{scope}{name}" for scope in (f"bucket.{bucket}.", "") for name in names)
    return next((value for key in keys if (value := (get(key) or "").strip())), None)


def with_s3a(options: ObjectOptions, settings: Mapping[str, str]) -> ObjectOptions:
    """Return object options, with a session's S3A settings for unset ones; refuse unsupported settings."""
    fields: dict[str, Any] = {}
    if options.sse is None and "encryption.algorithm" in settings:
        fields |= _encryption(settings)
    if options.storage_class is None and (storage_class := settings.get("create.storage.class")):
        fields["storage_class"] = storage_class.upper().replace("-", "_")
    if options.acl is None and (acl := settings.get("acl.default")):
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", acl)
        fields["acl"] = words.lower().replace("_", "-")
    try:
        return msgspec.structs.replace(options, **fields)
    except InvalidOption as error:
        raise InvalidOption(f"{_PREFIX}* of the session: {error}") from error


def _encryption(settings: Mapping[str, str]) -> dict[str, Any]:
    algorithm, key = settings["encryption.algorithm"], settings.get("encryption.key")
    sse = _SSE.get(algorithm.upper())
    if sse is None or "encryption.context" in settings:
        name = "encryption.algorithm" if sse is None else "encryption.context"
        raise InvalidOption(
            f"the session sets {_PREFIX}{name}={settings[name]}, which s3commit does not support; it supports"
            f" {', '.join(_SSE)}, without a context. Set the encryption of this write with the"
            " option sse or in its job's object_options"
        )
    # S3A looks for the KMS key in the credential providers first.
    if key is None and "security.credential.provider.path" in settings and sse.startswith("aws:kms"):
        raise InvalidOption(
            f"the session sets {_PREFIX}encryption.algorithm={algorithm} without a key, and credential"
            " providers that may have it, which s3commit does not read: name the key with the options"
            " sse and sseKmsKeyId, in its job's object_options, or in the session's"
            f" {_PREFIX}encryption.key"
        )
    return {"sse": sse, "sse_kms_key_id": key if sse.startswith("aws:kms") else None}


def s3a_address(session: Any, bucket: str) -> StoreAddress:
    """Return the address at which S3A looks for a bucket, from a classic session's Hadoop configuration."""
    first = partial(_of_bucket, _jvm_conf(session).get, bucket)
    endpoint = first("endpoint")
    if endpoint is not None and "://" not in endpoint:
        plain = (first("connection.ssl.enabled") or "true").lower() == "false"
        endpoint = f"{'http' if plain else 'https'}://{endpoint}"
    path_style = (first("path.style.access") or "false").lower() == "true"
    return StoreAddress(endpoint, first("endpoint.region"), path_style=path_style or None)


def conf_of(session: Any) -> dict[str, str]:
    """Return what a session and its Hadoop configuration set; if remote, this machine's Hadoop files."""
    if is_classic(session):
        # Spark adds what the session sets to the Hadoop configuration that a write gets.
        conf = _jvm_conf(session)
        return _of_hadoop(session, conf) | _with_prefixes(session, conf, *_OF_SPARK)
    everything: Mapping[str, str] | None = getattr(session.conf, "getAll", None)
    if everything is None:
        # PySpark 3.5 cannot list what a session sets, and this statement hides the values of secrets.
        names = (row["key"] for row in session.sql("SET").collect())
        everything = {name: value for name in names if (value := session.conf.get(name, None))}
    return {**site_conf(os.environ), **everything}


def is_classic(session: Any) -> bool:
    """Return whether a session has a JVM on this machine, which a Spark Connect client lacks."""
    return getattr(session, "_jsparkSession", None) is not None


def class_of_jar(session: Any, name: str) -> Any:
    """Return a class of the package's jar; None without a JVM here, or if the session has no such jar."""
    found = getattr(session.sparkContext._jvm.s3commit.spark, name) if is_classic(session) else None  # noqa: SLF001
    return found if type(found).__name__ == "JavaClass" else None


def hadoop_conf(session: Any) -> dict[str, str]:
    """Return the settings of files and stored objects in a session's Hadoop configuration, if classic."""
    return _of_hadoop(session, _jvm_conf(session)) if is_classic(session) else {}


def _jvm_conf(session: Any) -> Any:
    return session._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001 - there is no other way


def site_conf(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of files and stored objects in Hadoop's configuration files of this machine.

    It is for driver processes without a session. Spark reads a file from its classpath's first directory with
    it: ``SPARK_CONF_DIR`` or ``SPARK_HOME/conf``; then ``HADOOP_CONF_DIR``, ``YARN_CONF_DIR``.

    Raises `InvalidOption` if a file cannot be read.
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
    """Return only those of Hadoop's properties that a write follows or refuses, so no credentials."""
    ends = tuple(f".{name}" for name in _NAMES)

    def is_kept(key: str) -> bool:
        of_s3a = key.startswith(_PREFIX) and key.endswith(ends)
        return of_s3a or key == _ALL_PROVIDERS or key.startswith("parquet.")

    return {key: value for key, value in properties.items() if value and is_kept(key)}


def _of_hadoop(session: Any, conf: Any) -> dict[str, str]:
    # Hadoop itself sets hundreds of other keys, and reading each takes a call of the JVM.
    found = {key: conf.get(key) for key in (*(f"{_PREFIX}{name}" for name in _NAMES), _ALL_PROVIDERS)}
    return _kept(found | _with_prefixes(session, conf, "parquet.", f"{_PREFIX}bucket."))


def _with_prefixes(session: Any, conf: Any, *prefixes: str) -> dict[str, str]:
    # Iterating over a Java map takes a call for each entry, and 75 more for the error that ends it.
    to_scala = session.sparkContext._jvm.PythonUtils.toScalaMap  # noqa: SLF001 - as PySpark does
    found: dict[str, str] = {}
    for prefix in prefixes:
        entries = to_scala(conf.getPropsWithPrefix(prefix)).mkString("\0").split("\0")
        parts = (entry.partition(" -> ") for entry in entries)
        found |= {f"{prefix}{name}": value for name, arrow, value in parts if arrow}
    return found

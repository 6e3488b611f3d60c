"""A session's settings of files and stored objects are followed, or refused by name."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pyarrow.parquet as pq
import pytest
from py4j.clientserver import ClientServerConnection
from pyspark.sql.types import LongType, StructField, StructType

from airflow_s3commit import ObjectOptions
from airflow_s3commit.exceptions import InvalidOption, JobMismatch
from airflow_s3commit.spark import foreach_batch, register, write_pending
from airflow_s3commit.spark.datasource import S3CommitDataSource
from airflow_s3commit.spark.options import OTHER_WRITER, WriteOptions, parse_options
from airflow_s3commit.spark.writer_settings import (
    conf_of,
    s3a_settings,
    site_conf,
    with_file_settings,
    with_s3a,
)
from tests.secret_shapes import MARK
from tests.spark.conftest import write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from airflow_s3commit.store.base import ObjectInfo
    from tests.spark.conftest import Lake

#: Hadoop's property that has Parquet files encrypted.
CRYPTO = "parquet.crypto.factory.class"


def set_by(conf: dict[str, str], **options: str) -> WriteOptions:
    """Return options as a session with this conf completes them."""
    return with_file_settings(parse_options(options, overwrite=False), conf)


@pytest.mark.parametrize(
    ("conf", "options", "read", "expected"),
    [
        ({"spark.sql.parquet.compression.codec": "ZSTD"}, {}, lambda table: table.codec, "zstd"),
        ({"spark.sql.orc.compression.codec": "lz4"}, {}, lambda table: table.codec, "snappy"),
        (
            {"spark.sql.parquet.compression.codec": "lzo"},
            {"compression": "gzip"},
            lambda table: table.codec,
            "gzip",
        ),
        ({"spark.sql.files.maxRecordsPerFile": "7"}, {}, lambda table: table.max_records_per_file, 7),
        (
            {"spark.sql.files.maxRecordsPerFile": "7"},
            {"maxRecordsPerFile": "0"},
            lambda table: table.max_records_per_file,
            0,
        ),
        ({"parquet.block.size": "1048576"}, {}, lambda table: table.row_group_bytes, 1 << 20),
        ({"spark.hadoop.parquet.block.size": "1048576"}, {}, lambda table: table.row_group_bytes, 1 << 20),
        (
            {"spark.sql.parquet.compression.codec": "zstd", "spark.sql.files.maxRecordsPerFile": "7"},
            {},
            lambda table: (table.codec, table.max_records_per_file),
            ("zstd", 7),
        ),
    ],
)
def test_codec_and_sizes_of_a_session_are_followed(
    conf: dict[str, str], options: dict[str, str], read: Any, expected: object
) -> None:
    """A setting is used unless the write's own option is given."""
    assert read(set_by(conf, **options).table) == expected


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MILLIS"),
        ("spark.sql.parquet.outputTimestampType", "INT96"),
        ("spark.sql.parquet.writeLegacyFormat", "true"),
        ("spark.sql.parquet.datetimeRebaseModeInWrite", "LEGACY"),
        ("spark.sql.legacy.parquet.datetimeRebaseModeInWrite", "EXCEPTION"),
        ("parquet.bloom.filter.enabled", "true"),
        ("parquet.bloom.filter.enabled#a.b", "true"),
        ("parquet.enable.dictionary#a", "false"),
        ("spark.hadoop.parquet.page.size", "65536"),
        ("parquet.writer.version", "v2"),
        ("parquet.compression.codec.zstd.level", "19"),
    ],
)
def test_any_other_setting_that_changes_files_is_refused_by_name(key: str, value: str) -> None:
    """The error names the setting, its value, and both ways out, in one line."""
    with pytest.raises(InvalidOption) as error:
        set_by({key: value, "spark.app.name": "x"})
    says = (
        f"the session sets {key.removeprefix('spark.hadoop.')}={value}, which would not be followed: unset it"
    )
    assert str(error.value).startswith(says)
    assert str(error.value).endswith(OTHER_WRITER)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "key",
    [
        CRYPTO, "spark.hadoop.parquet.encryption.footer.key", "parquet.encryption.column.keys",
        "parquet.encryption.key.access.token",
    ],
)  # fmt: skip
def test_encryption_is_never_ignored_and_its_secrets_are_not_shown(key: str) -> None:
    """Files that a session wants encrypted are not written in plain, and the error has no value."""
    with pytest.raises(InvalidOption, match=r"does not encrypt files in Python.*unset it") as error:
        set_by({key: MARK})
    assert MARK not in str(error.value)
    assert key.removeprefix("spark.hadoop.") in str(error.value)


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("spark.sql.parquet.compression.codec", "not one of .*snappy.*set the write's option compression"),
        ("spark.sql.files.maxRecordsPerFile", "not a whole number.*option maxRecordsPerFile"),
        ("parquet.block.size", "not a size.*option parquet.block.size"),
    ],
)
def test_a_value_that_cannot_be_followed_is_refused_with_the_option_that_helps(key: str, says: str) -> None:
    """The write's own option takes the place of the session's setting."""
    with pytest.raises(InvalidOption, match=f"the session sets {key}=odd, which .*{says}"):
        set_by({key: "odd"})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.sql.parquet.writeLegacyFormat", "False"),
        ("spark.sql.parquet.datetimeRebaseModeInWrite", "CORRECTED"),
        ("spark.sql.parquet.int96RebaseModeInWrite", "LEGACY"),
        ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS"),
        ("spark.sql.parquet.output.committer.class", "com.amazon.emr.committer.EmrOptimizedCommitter"),
        ("spark.sql.parquet.fs.optimized.committer.optimization-enabled", "true"),
        ("spark.hadoop.parquet.enable.summary-metadata", "false"),
        ("spark.sql.parquet.mergeSchema", "false"),
        ("spark.sql.parquet.filterPushdown", "true"),
        ("parquet.filter.stats.enabled", "true"),
        ("parquet.compression", "SNAPPY"),
        ("parquet.writer.version", "PARQUET_1_0"),
        ("parquet.page.size", "1048576"),
        (CRYPTO, " "),
        ("spark.sql.files.maxPartitionBytes", "1"),
        ("spark.sql.orc.impl", "hive"),
    ],
)
def test_settings_of_reads_and_what_is_written_anyway_are_silent(key: str, value: str) -> None:
    """What clusters set for reads, for committers, or to what is done anyway changes and refuses nothing."""
    assert set_by({key: value}) == parse_options({}, overwrite=False)


#: Settings that change nothing in a write's files, by the reason.
WITHOUT_EFFECT = {
    "reads": (
        r"spark\.sql\.parquet\.(aggregatePushdown|binaryAsString|columnarReader.*|enable.*Reader|fieldId\.read.*"
        r"|filterPushdown.*|ignoreVariantAnnotation|inferTimestampNTZ.*|int96As.*|int96Timestamp.*|mergeSchema"
        r"|.*RebaseModeInRead|pushdown.*|reader\..*|recordLevelFilter.*|respectSummaryFiles)",
        r"spark\.sql\.legacy\.parquet\.(.*RebaseModeInRead|returnNullStruct.*|nanosAsLong)",
    ),
    "the commit, which is this package's own": (r"spark\.sql\.parquet\.output\.committer\.class",),
    "what is in no file: INT96, ids of columns, variants": (
        r"spark\.sql\.(legacy\.)?parquet\.int96RebaseModeInWrite",
        r"spark\.sql\.parquet\.(fieldId\.write\.enabled|variant\..*)",
    ),
    "memory, checks and summaries": (
        r"parquet\.(validation|memory\..*|compression\.codec\.zstd\.(workers|bufferPool\.enabled))",
        r"parquet\.(enable\.summary-metadata|summary\.metadata\.level)",
    ),
    "blocks, which S3 does not have": (r"parquet\.writer\.max-padding",),
    "set by Spark itself for each write": (r"parquet\.(compression|write\.support\.class)",),
}

#: parquet-java's classes whose constants are the keys of its writer.
PARQUETS = (
    "hadoop.ParquetOutputFormat",
    "hadoop.codec.ZstandardCodec",
    "crypto.EncryptionPropertiesFactory",
    "crypto.keytools.KeyToolkit",
    "crypto.keytools.PropertiesDrivenCryptoFactory",
)


def settings_of(spark: SparkSession) -> set[str]:
    """Return the keys of Parquet that this Spark and its parquet-java know."""
    jvm: Any = spark._jvm
    conf = getattr(getattr(jvm.org.apache.spark.sql.internal, "SQLConf$"), "MODULE$")
    registry = conf.getConfigEntries().iterator()
    found = set()
    while registry.hasNext():
        found.add(registry.next().key())
    for name in PARQUETS:
        for constant in jvm.java.lang.Class.forName(f"org.apache.parquet.{name}").getDeclaredFields():
            if constant.getType().getName() == "java.lang.String":
                constant.setAccessible(True)
                found.add(constant.get(None))
    return {
        key
        for key in found
        if key.startswith(("parquet.", "spark.sql.parquet.", "spark.sql.legacy.parquet."))
    }


@pytest.mark.spark
@pytest.mark.seaweedfs
@pytest.mark.xdist_group("spark")
def test_every_setting_that_spark_knows_is_decided(spark: SparkSession) -> None:
    """A setting of Parquet that a new Spark or parquet-java adds is refused, or known to be harmless."""
    harmless = [pattern for patterns in WITHOUT_EFFECT.values() for pattern in patterns]
    known = settings_of(spark)
    assert len([key for key in known if key.startswith(("parquet.encryption.", "parquet.crypto."))]) > 10
    refused = set()
    for key in known:
        try:
            set_by({key: "odd"})
        except InvalidOption:
            refused.add(key)
    idle = {key for key in known for pattern in harmless if re.fullmatch(pattern, key)}
    assert known - idle == refused


@pytest.mark.spark
@pytest.mark.seaweedfs
@pytest.mark.xdist_group("spark")
def test_settings_of_a_session_reach_both_doors(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    """What the session or its Hadoop configuration sets is honoured, and encryption is never ignored."""
    frame = spark.range(10, numPartitions=1)
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    session = {"spark.sql.parquet.compression.codec": "zstd", "spark.sql.files.maxRecordsPerFile": "4"}
    try:
        for key, value in session.items():
            spark.conf.set(key, value)
        write(frame, lake)
        write_pending(frame, destination=lake.uri, mode="append", options=lake.options)
        for path in lake.download(tmp_path).rglob("*.parquet"):
            metadata = pq.ParquetFile(path).metadata
            assert metadata.row_group(0).column(0).compression == "ZSTD"
            assert metadata.num_rows in (4, 2)
        assert len(lake.visible()) == 6
        hadoop.set(CRYPTO, "org.example.Factory")
        register(spark)
        with pytest.raises(Exception, match="does not encrypt files in Python"):
            write(frame, lake)
        with pytest.raises(InvalidOption, match="does not encrypt files in Python"):
            write_pending(frame, destination=lake.uri, mode="append", options=lake.options)
        assert len(lake.visible()) == 6
        assert lake.pending() == []
    finally:
        hadoop.unset(CRYPTO)
        for key in (*session, "spark.sql.execution.arrow.maxRecordsPerBatch"):
            spark.conf.unset(key)
        spark.conf.unset("spark.sql.execution.arrow.maxBytesPerBatch")
        register(spark)


KEY = "arn:aws:kms:eu-central-1:111122223333:key/1234abcd"

on_spark = [
    pytest.mark.spark,
    pytest.mark.seaweedfs,
    pytest.mark.xdist_group("spark"),
]


def filled(conf: dict[str, str], said: ObjectOptions | None = None) -> ObjectOptions:
    """Return options as a session with this conf fills them for the bucket ``lake``."""
    return with_s3a(said or ObjectOptions(), s3a_settings(conf.get, "lake"))


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ({}, {}),
        ({"fs.s3a.encryption.algorithm": "", "fs.s3a.acl.default": " "}, {}),
        ({"spark.hadoop.fs.s3a.encryption.algorithm": "AES256"}, {"sse": "AES256"}),
        (
            {"fs.s3a.encryption.algorithm": "SSE-KMS", "fs.s3a.encryption.key": KEY},
            {"sse": "aws:kms", "sse_kms_key_id": KEY},
        ),
        ({"fs.s3a.encryption.algorithm": "DSSE-KMS"}, {"sse": "aws:kms:dsse"}),
        (
            {
                "fs.s3a.server-side-encryption-algorithm": "SSE-KMS",
                "fs.s3a.server-side-encryption.key": KEY,
            },
            {"sse": "aws:kms", "sse_kms_key_id": KEY},
        ),
        (
            {
                "fs.s3a.encryption.algorithm": "AES256",
                "fs.s3a.bucket.lake.encryption.algorithm": "SSE-KMS",
                "fs.s3a.bucket.other.encryption.key": "other",
            },
            {"sse": "aws:kms"},
        ),
        ({"fs.s3a.create.storage.class": "intelligent_tiering"}, {"storage_class": "INTELLIGENT_TIERING"}),
        ({"fs.s3a.acl.default": "BucketOwnerFullControl"}, {"acl": "bucket-owner-full-control"}),
        ({"fs.s3a.acl.default": "PUBLIC_READ"}, {"acl": "public-read"}),
        (
            {
                "fs.s3a.encryption.algorithm": "SSE-KMS",
                "fs.s3a.bucket.lake.server-side-encryption-algorithm": "aes256",
                "fs.s3a.encryption.key": KEY,
            },
            {"sse": "AES256"},
        ),
        ({"fs.s3a.create.storage.class": "standard-ia"}, {"storage_class": "STANDARD_IA"}),
        (
            {"fs.s3a.acl.default": "Private", "spark.hadoop.fs.s3a.acl.default": "PublicRead"},
            {"acl": "private"},
        ),
    ],
)
def test_hadoop_s_names_are_translated(conf: dict[str, str], expected: dict[str, Any]) -> None:
    """Each of Hadoop's spellings is read, and a bucket's own setting overrides that of all buckets."""
    assert filled(conf) == ObjectOptions(**expected)


@pytest.mark.parametrize(
    ("conf", "says"),
    [
        ({"fs.s3a.encryption.algorithm": "SSE-C"}, "session sets fs.s3a.encryption.algorithm=SSE-C, which"),
        ({"fs.s3a.encryption.algorithm": "CSE-KMS"}, "AES256, SSE-KMS, DSSE-KMS"),
        (
            {"fs.s3a.encryption.algorithm": "SSE-KMS", "fs.s3a.encryption.context": "a=b"},
            "fs.s3a.encryption.context=a=b",
        ),
        (
            {
                "fs.s3a.encryption.algorithm": "SSE-KMS",
                "hadoop.security.credential.provider.path": "jceks://file/k",
            },
            r"without a key, and credential providers that may have it.*options sse and sseKmsKeyId",
        ),
        (
            {
                "fs.s3a.encryption.algorithm": "DSSE-KMS",
                "spark.hadoop.fs.s3a.bucket.lake.security.credential.provider.path": "jceks://file/k",
            },
            "credential providers that may have it",
        ),
        ({"fs.s3a.acl.default": "LogDeliveryWrite"}, r"fs.s3a.\* of the session: acl="),
    ],
)
def test_object_settings_that_cannot_be_honoured_are_refused(conf: dict[str, str], says: str) -> None:
    """The write itself may choose the encryption instead."""
    with pytest.raises(InvalidOption, match=says):
        filled(conf)
    own = ObjectOptions(sse="AES256", acl="private")
    assert filled(conf, own) == own


def test_credential_providers_only_matter_to_a_kms_key() -> None:
    """A conf with its key, or without KMS, may have providers for other secrets."""
    providers = {"hadoop.security.credential.provider.path": "jceks://file/k"}
    named = {"fs.s3a.encryption.algorithm": "SSE-KMS", "fs.s3a.encryption.key": KEY}
    assert filled(providers | named).sse_kms_key_id == KEY
    assert filled(providers | {"fs.s3a.encryption.algorithm": "AES256"}).sse == "AES256"
    assert filled(providers) == ObjectOptions()


def test_a_write_s_options_override_its_session() -> None:
    """Encryption is set as a whole: a session's key is not used with a write's algorithm."""
    session = {"encryption.algorithm": "SSE-KMS", "encryption.key": KEY}
    session |= {"create.storage.class": "glacier_ir", "acl.default": "Private"}
    own = ObjectOptions(sse="aws:kms", storage_class="STANDARD")
    assert with_s3a(own, session) == ObjectOptions(sse="aws:kms", storage_class="STANDARD", acl="private")


def site(directory: Path, name: str = "core-site.xml", **properties: str) -> None:
    """Write a configuration file of Hadoop; a dot of a property's name is ``__`` here."""
    directory.mkdir(exist_ok=True)
    rows = "".join(
        f"<property><name> {key.replace('__', '.')} </name><value>{value}</value></property>"
        for key, value in properties.items()
    )
    (directory / name).write_text(f"<?xml version='1.0'?><!-- x --><configuration>{rows}</configuration>")


def test_configuration_files_are_read_without_a_session(tmp_path: Path) -> None:
    """Each file counts in the first of Spark's directories that has it, with the settings that matter."""
    site(tmp_path / "conf", fs__s3a__encryption__algorithm="AES256", fs__s3a__secret__key="hidden")
    site(tmp_path / "hadoop", fs__s3a__acl__default="Private", parquet__page__size="1")
    site(tmp_path / "hadoop", "hive-site.xml", hive__exec__orc__write__format="0.11", parquet__x="1")
    site(tmp_path / "yarn", "mapred-site.xml", fs__s3a__bucket__lake__encryption__key="k")
    there = {"HADOOP_CONF_DIR": str(tmp_path / "hadoop"), "YARN_CONF_DIR": str(tmp_path / "yarn")}
    rest = {"parquet.x": "1", "fs.s3a.bucket.lake.encryption.key": "k"}
    assert site_conf(there) == {"fs.s3a.acl.default": "Private", "parquet.page.size": "1"} | rest
    first = {"fs.s3a.encryption.algorithm": "AES256"} | rest
    assert site_conf({**there, "SPARK_HOME": str(tmp_path)}) == first
    assert site_conf({**there, "SPARK_HOME": "/none", "SPARK_CONF_DIR": str(tmp_path / "conf")}) == first
    assert site_conf({}) == site_conf({"SPARK_CONF_DIR": str(tmp_path / "none")}) == {}


def test_a_later_file_overrides_an_earlier_one_in_either_spelling(tmp_path: Path) -> None:
    """Hadoop loads the files in an order, and takes a property's name and value as attributes too."""
    site(
        tmp_path,
        fs__s3a__acl__default="Private",
        hadoop__security__credential__provider__path="jceks://file/k",
    )
    (tmp_path / "hive-site.xml").write_text(
        "<configuration><property name='fs.s3a.acl.default' value='PublicRead'/></configuration>"
    )
    found = site_conf({"HADOOP_CONF_DIR": str(tmp_path)})
    assert found == {
        "fs.s3a.acl.default": "PublicRead",
        "hadoop.security.credential.provider.path": "jceks://file/k",
    }


def test_a_remote_session_has_this_machine_s_files_below_its_own_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client of Spark Connect cannot read the server's own, and what the session sets counts more."""
    site(tmp_path, fs__s3a__acl__default="Private", parquet__x="1")
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    remote = SimpleNamespace(conf=SimpleNamespace(getAll={"fs.s3a.acl.default": "PublicRead"}))
    assert conf_of(remote) == {"fs.s3a.acl.default": "PublicRead", "parquet.x": "1"}


@pytest.mark.parametrize("error", [None, PermissionError("not yours")])
def test_a_configuration_file_that_cannot_be_read_is_refused(
    error: OSError | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may ask for encryption, so the write does not continue without it."""
    (tmp_path / "core-site.xml").write_text("<configuration><property>")
    if error is not None:
        monkeypatch.setattr("builtins.open", Mock(side_effect=error))
    with pytest.raises(InvalidOption, match=r"core-site.xml cannot be read .* repair it, or call .*register"):
        site_conf({"HADOOP_CONF_DIR": str(tmp_path)})


@pytest.mark.parametrize("registered", [None, {"fs.s3a.acl.default": "Private"}])
def test_a_write_without_register_reads_the_configuration_files(
    registered: dict[str, str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What asks for encryption there reaches the tasks; a registration has read the session's own."""
    site(tmp_path, parquet__crypto__factory__class="org.example.Factory")
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    monkeypatch.setattr(S3CommitDataSource, "hadoop_defaults", registered)
    writer = S3CommitDataSource({"path": "s3://lake/t"}).writer(
        StructType([StructField("id", LongType())]), overwrite=False
    )
    expected = registered or {"parquet.crypto.factory.class": "org.example.Factory"}
    assert vars(writer)["hadoop"] == expected


@pytest.fixture
def conf(spark: SparkSession) -> Iterator[Any]:
    """Return a function that sets the session's conf, and Hadoop's, for the length of a test."""
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    keys: set[tuple[str, bool]] = set()

    def set_up(key: str, value: str, *, in_hadoop: bool = False) -> None:
        keys.add((key, in_hadoop))
        if in_hadoop:
            hadoop.set(key, value)
        else:
            spark.conf.set(key, value)

    yield set_up
    for key, in_hadoop in keys:
        if in_hadoop:
            hadoop.unset(key)
        else:
            spark.conf.unset(key)
    register(spark)


def described(lake: Lake) -> list[ObjectInfo]:
    """Return the store's headers of each visible file."""
    return [
        lake.store.get(lake.destination.bucket, lake.destination.prefix + path).info
        for path in lake.visible()
    ]


class TestInSpark:
    pytestmark = on_spark

    def test_a_notebook_s_options_reach_its_files(self, spark: SparkSession, lake: Lake) -> None:
        """Every file follows the options, and its receipt is encrypted too."""
        write(
            spark.range(10, numPartitions=2), lake,
            storageClass="STANDARD_IA", sse="AES256", objectTags=json.dumps({"team": "maps"}),
            objectHeaders=json.dumps({"Cache-Control": "no-store", "x-amz-meta-source": "bts"}),
        )  # fmt: skip
        found = described(lake)
        assert len(found) == 2
        for info in found:
            assert info.headers["x-amz-storage-class"] == "STANDARD_IA"
            assert info.headers["x-amz-server-side-encryption"] == "AES256"
            assert info.headers["x-amz-tagging-count"] == "1"
            assert info.headers["cache-control"] == "no-store"
            assert info.metadata["source"] == "bts"
        job_id = lake.manifest().job_id
        key = f"{lake.destination.prefix}_s3commit/jobs/{job_id}.json"
        headers = lake.store.head(lake.destination.bucket, key).headers
        assert headers == {"x-amz-server-side-encryption": "AES256"}

    @pytest.mark.parametrize("in_hadoop", [pytest.param(False, marks=pytest.mark.all), True])
    def test_a_session_s_encryption_is_used(
        self, spark: SparkSession, lake: Lake, conf: Any, in_hadoop: bool
    ) -> None:
        """It is set in the Spark conf, or in Hadoop's own if the session was registered."""
        prefix = "" if in_hadoop else "spark.hadoop."
        conf(f"{prefix}fs.s3a.encryption.algorithm", "AES256", in_hadoop=in_hadoop)
        conf(f"{prefix}fs.s3a.bucket.lake.create.storage.class", "standard_ia", in_hadoop=in_hadoop)
        register(spark)
        write(spark.range(3, numPartitions=1), lake)
        write_pending(
            spark.range(3, numPartitions=1), destination=lake.uri, mode="append", options=lake.options
        )
        found = described(lake)
        assert len(found) == 2
        assert {info.headers["x-amz-server-side-encryption"] for info in found} == {"AES256"}
        assert {info.headers["x-amz-storage-class"] for info in found} == {"STANDARD_IA"}

    def test_a_job_without_encryption_refuses_an_encrypted_write(
        self, spark: SparkSession, lake: Lake, job_conf: Any, conf: Any
    ) -> None:
        """A session that encrypts, or a write that asks for it, is refused by a job that does not."""
        job = job_conf("append")
        frame = spark.range(3, numPartitions=1)
        with pytest.raises(JobMismatch, match="the write's options set storage_class='GLACIER_IR'"):
            write_pending(frame, job=job.reference, options={**lake.options, "storageClass": "GLACIER_IR"})
        conf("spark.hadoop.fs.s3a.encryption.algorithm", "AES256")
        with pytest.raises(Exception, match=r"fs.s3a.\* of the Spark session set sse='AES256'"):
            frame.write.format("s3commit").mode("append").options(**lake.options).save()
        assert lake.pending() == []

    def test_a_stream_s_batches_have_its_options(self, spark: SparkSession, lake: Lake, conf: Any) -> None:
        """A batch's job has the options of its stream, and the session's if the stream sets none."""
        conf("spark.hadoop.fs.s3a.create.storage.class", "standard_ia")
        batch = foreach_batch(destination=lake.uri, stream="s", options={**lake.options, "sse": "AES256"})
        batch(spark.range(3, numPartitions=1), 0)
        (info,) = described(lake)
        assert info.headers["x-amz-server-side-encryption"] == "AES256"
        assert info.headers["x-amz-storage-class"] == "STANDARD_IA"

    def test_a_session_is_read_in_few_short_answers(
        self, spark: SparkSession, conf: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What a session sets takes tens of calls of the JVM, and no long answer, however much it sets."""
        for number in range(20):
            conf(f"spark.jars.{number}", "/a/jar" * 100)
            conf(f"spark.sql.some.{number}", "is -> it")
        answers: list[int] = []
        send: Any = ClientServerConnection.send_command

        def counted(connection: Any, command: str) -> Any:
            answer = send(connection, command)
            answers.append(len(answer))
            return answer

        monkeypatch.setattr(ClientServerConnection, "send_command", counted)
        found = conf_of(spark)
        assert found["spark.sql.some.19"] == "is -> it"
        assert len(answers) < 60
        # Of 8 KiB and more it would take 40 ms.
        assert max(answers) < 8_192

"""A session's S3A settings for stored objects are used or refused, and never ignored."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from airflow_s3commit import ObjectOptions
from airflow_s3commit.exceptions import InvalidOption, JobMismatch
from airflow_s3commit.spark import foreach_batch, register, write_pending
from airflow_s3commit.spark.s3a_conf import S3ASettings, s3a_settings
from tests.spark.conftest import write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from airflow_s3commit.store.base import ObjectInfo
    from tests.spark.conftest import Lake

KEY = "arn:aws:kms:eu-central-1:111122223333:key/1234abcd"

on_spark = [
    pytest.mark.spark,
    pytest.mark.seaweedfs,
    pytest.mark.xdist_group("spark"),
]


def filled(conf: dict[str, str], said: ObjectOptions | None = None) -> ObjectOptions:
    """Return options as a session with this conf fills them for the bucket ``lake``."""
    return s3a_settings(conf.get, "lake").fill(said or ObjectOptions())


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
    ],
)
def test_hadoops_names_become_ours(conf: dict[str, str], expected: dict[str, Any]) -> None:
    """Each spelling of Hadoop's, and what it says of one bucket before what it says of all."""
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
def test_what_cannot_be_honoured_is_refused(conf: dict[str, str], says: str) -> None:
    """Unless the write says itself how it wants to have it."""
    with pytest.raises(InvalidOption, match=says):
        filled(conf)
    own = ObjectOptions(sse="AES256", acl="private")
    assert filled(conf, own) == own


def test_credential_providers_matter_to_a_kms_key_alone() -> None:
    """A conf with its key, or without KMS, may have providers for other secrets."""
    providers = {"hadoop.security.credential.provider.path": "jceks://file/k"}
    named = {"fs.s3a.encryption.algorithm": "SSE-KMS", "fs.s3a.encryption.key": KEY}
    assert filled(providers | named).sse_kms_key_id == KEY
    assert filled(providers | {"fs.s3a.encryption.algorithm": "AES256"}).sse == "AES256"
    assert filled(providers) == ObjectOptions()


def test_what_a_write_says_beats_its_session() -> None:
    """Encryption is one thing: a session's key does not go with a write's algorithm."""
    session = S3ASettings(algorithm="SSE-KMS", key=KEY, storage_class="glacier_ir", acl="Private")
    own = ObjectOptions(sse="aws:kms", storage_class="STANDARD")
    assert session.fill(own) == ObjectOptions(sse="aws:kms", storage_class="STANDARD", acl="private")


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
    """Return what the store says of each visible file."""
    return [
        lake.store.get(lake.destination.bucket, lake.destination.prefix + path).info
        for path in lake.visible()
    ]


class TestInSpark:
    pytestmark = on_spark

    def test_a_notebooks_options_reach_its_files(self, spark: SparkSession, lake: Lake) -> None:
        """Every file has what the options say, and its manifest is encrypted too."""
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
        key = f"{lake.destination.prefix}_s3commit/manifests/{job_id}.json"
        headers = lake.store.head(lake.destination.bucket, key).headers
        assert headers == {"x-amz-server-side-encryption": "AES256"}

    @pytest.mark.parametrize("in_hadoop", [pytest.param(False, marks=pytest.mark.all), True])
    def test_a_session_s_encryption_is_taken_over(
        self, spark: SparkSession, lake: Lake, conf: Any, in_hadoop: bool
    ) -> None:
        """Said in the Spark conf, or in Hadoop's own where the session was registered."""
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

    def test_a_job_that_says_otherwise_refuses_the_write(
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

    def test_a_stream_s_batches_are_kept_so_too(self, spark: SparkSession, lake: Lake, conf: Any) -> None:
        """A batch's job has the options of its stream, and the session's where the stream says nothing."""
        conf("spark.hadoop.fs.s3a.create.storage.class", "standard_ia")
        batch = foreach_batch(destination=lake.uri, stream="s", options={**lake.options, "sse": "AES256"})
        batch(spark.range(3, numPartitions=1), 0)
        (info,) = described(lake)
        assert info.headers["x-amz-server-side-encryption"] == "AES256"
        assert info.headers["x-amz-storage-class"] == "STANDARD_IA"

"""Pendingsets are Hadoop's: we read theirs, and Hadoop could read ours."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec
import pytest

from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol.model.codec import decode, encode
from airflow_s3commit.protocol.model.pendingset import (
    IOStatistics,
    PendingSet,
    PendingUpload,
    TaskExtra,
    UploadEtag,
    UploadExtra,
)
from airflow_s3commit.protocol.model.sealed_job import ColumnStatistics
from airflow_s3commit.store.base import CheckedEtag
from tests.protocol.model.test_records import ETAG, JOB, changed, golden, without

#: What Hadoop's own loader requires of the fields, in the order in which it writes them.
PENDING_FIELDS = [
    "version",
    "filename",
    "uri",
    "uploadId",
    "bucket",
    "destinationKey",
    "created",
    "saved",
    "date",
    "jobId",
    "taskId",
    "text",
    "etags",
    "extraData",
    "length",
    "partCount",
    "iostatistics",
]
SET_FIELDS = ["version", "jobId", "commits", "iostatistics"]

TASK = TaskExtra(stage="spark", stage_attempt="1", task="00004", attempt="12", nonce="n-1")
UPLOAD = PendingUpload(
    uri=f"s3://lake/flights/dt=2013-01-01/part-00004-{JOB}.parquet",
    uploadId="Vh3kQ2",
    bucket="lake",
    destinationKey=f"flights/dt=2013-01-01/part-00004-{JOB}.parquet",
    created=1739800000123,
    saved=1739800000123,
    jobId=JOB,
    etags=[ETAG, "41aa35e2fcbd5c4e0a1f5d4b8f0e7c11"],
    length=91234567,
    partCount=2,
    s3commit=UploadExtra(
        upload="u-1", rows=336776, statistics={"delay": ColumnStatistics(values=9, least=-43)}
    ),
)
SET = PendingSet(jobId=JOB, commits=[UPLOAD], s3commit=TASK)


def test_ours_are_written_byte_for_byte() -> None:
    """Our records have looked the same since their first version, and are read back equal."""
    assert encode(UPLOAD) == golden("pending-2")
    assert decode(PendingUpload, golden("pending-2"), "x") == UPLOAD
    assert encode(SET) == golden("pendingset-3")
    assert decode(PendingSet, golden("pendingset-3"), "x") == SET


def test_both_spellings_of_etags_are_written_and_read() -> None:
    """From Hadoop 3.4.2 on an ETag is an object with a checksum; up to 3.4.1 it is a string without one."""
    upload = decode(PendingUpload, golden("pending-2-hadoop-3.4.2"), "x")
    assert encode(upload) == golden("pending-2-hadoop-3.4.2")
    assert upload.etags == [UploadEtag(ETAG), UploadEtag(UPLOAD.bare_etags[1], "CRC32C", "yZRlqg==")]
    assert decode(PendingSet, golden("pendingset-3-hadoop-3.4.2"), "x").commits == [upload]
    old = upload.in_format("hadoop-3.3")
    assert old == msgspec.structs.replace(UPLOAD, uri=UPLOAD.uri.replace("s3:", "s3a:"))
    new = msgspec.structs.replace(upload, etags=[UploadEtag(etag) for etag in UPLOAD.bare_etags])
    assert old.in_format("hadoop-3.4.2") == new
    assert upload.in_format("hadoop-3.4.2") == upload
    assert upload.expected_etag == old.expected_etag != ""


def test_a_completion_names_the_checksums_that_stores_know() -> None:
    """Checksums are passed on, except incomplete ones and those of algorithms that S3 does not have."""
    etags = [
        UploadEtag("a", "CRC32C", "yZRlqg=="), UploadEtag("b", None, "x"), UploadEtag("c", "SHA1"),
        UploadEtag("d", "MD17", "x"), "e",
    ]  # fmt: skip
    upload = msgspec.structs.replace(UPLOAD, etags=etags)
    assert upload.part_etags == [CheckedEtag("a", "CRC32C", "yZRlqg=="), "b", "c", "d", "e"]


def test_ours_have_hadoop_s_fields() -> None:
    """Every field that Hadoop's loader reads exists under its name, and ours is one field more."""
    pendingset = json.loads(golden("pendingset-3"))
    assert list(pendingset) == [*SET_FIELDS, "s3commit"]
    upload = pendingset["commits"][0]
    assert list(upload) == [*PENDING_FIELDS, "s3commit"]
    for field in ("uri", "uploadId", "bucket", "destinationKey"):
        assert upload[field]
    assert upload["length"] >= 0
    assert all(upload["etags"])
    assert upload["extraData"] == {}


def test_a_pending_file_of_hadoop_is_read() -> None:
    """A ``.pending`` file that the magic committer wrote is understood, without any field of ours."""
    upload = decode(PendingUpload, golden("hadoop-pending-2"), "x")
    assert upload.s3commit is None
    assert upload.filename is None
    assert upload.bucket == "lake"
    assert upload.destinationKey == "sales/day=17/part-00004.parquet"
    assert upload.uri.startswith("s3a://lake/sales/__magic_job-")
    assert upload.etags == [ETAG, "41aa35e2fcbd5c4e0a1f5d4b8f0e7c11"]
    assert (upload.length, upload.partCount) == (91234567, 2)
    assert upload.iostatistics == IOStatistics()


def test_a_pendingset_of_hadoop_is_read() -> None:
    """A ``.pendingset`` file that the magic committer wrote is understood, statistics included."""
    pendingset = decode(PendingSet, golden("hadoop-pendingset-3"), "x")
    assert pendingset.jobId == JOB
    assert pendingset.s3commit is None
    assert [upload.destinationKey for upload in pendingset.commits] == [
        "sales/day=17/part-00004.parquet",
        "sales/day=18/part-00004.parquet",
    ]
    assert pendingset.commits[0].taskId == "attempt_202502170001_0003_m_000004_0"
    assert pendingset.iostatistics is not None
    assert pendingset.iostatistics.counters["object_multipart_initiated"] == 2
    assert pendingset.iostatistics.meanstatistics["action_executor_acquired.mean"]["samples"] == 2


def test_a_pendingset_of_hadoop_s_staging_committers_is_read() -> None:
    """The staging committers leave the job's id empty and put the partition in the text."""
    body = changed("hadoop-pendingset-3", jobId="", commits=[json.loads(golden("hadoop-pending-2"))])
    pendingset = decode(PendingSet, body, "x")
    assert pendingset.jobId == ""
    text = changed("hadoop-pending-2", text="partition: day=17", jobId=None, date=None)
    assert decode(PendingUpload, text, "x").text == "partition: day=17"


@pytest.mark.parametrize("name", ["pending-2", "hadoop-pending-2"])
def test_unknown_fields_are_ignored(name: str) -> None:
    """Later versions of Hadoop, or of this package, may add fields."""
    known = decode(PendingUpload, golden(name), "x")
    assert decode(PendingUpload, changed(name, later={"a": 1}), "x") == known
    body = changed("pendingset-3", later=1, commits=[json.loads(changed(name, later=1))])
    assert decode(PendingSet, body, "x").commits == [known]


@pytest.mark.parametrize("version", [0, 1, 3, "2", None])
def test_only_version_2_of_a_pending_file_is_accepted(version: Any) -> None:
    """A pending file of another version is refused, alone and in a pendingset."""
    body = changed("hadoop-pending-2", version=version)
    with pytest.raises(InvalidRecord):
        decode(PendingUpload, body, "x")
    with pytest.raises(InvalidRecord):
        decode(PendingSet, changed("pendingset-3", commits=[json.loads(body)]), "x")


@pytest.mark.parametrize("version", [0, 2, 4, "3", None])
def test_only_version_3_of_a_pendingset_is_accepted(version: Any) -> None:
    """A pendingset of another version is refused."""
    with pytest.raises(InvalidRecord):
        decode(PendingSet, changed("hadoop-pendingset-3", version=version), "x")


@pytest.mark.parametrize(
    "fields",
    [
        {"uploadId": ""}, {"bucket": ""}, {"destinationKey": ""}, {"uri": ""}, {"length": -1},
        {"etags": None}, {"etags": [""]}, {"etags": [1]}, {"etags": "e"}, {"created": "now"},
        {"s3commit": {"rows": 1}}, {"s3commit": {"upload": "u", "rows": -1}},
    ],
)  # fmt: skip
def test_what_hadoop_s_loader_refuses_is_refused(fields: dict[str, Any]) -> None:
    """An upload without a key, bucket, id or ETags, or with a negative length, is invalid."""
    with pytest.raises(InvalidRecord):
        decode(PendingUpload, changed("pending-2", **fields), "x")


@pytest.mark.parametrize("field", ["uploadId", "bucket", "destinationKey", "uri", "length", "etags"])
def test_a_pending_file_needs_its_fields(field: str) -> None:
    """Each field that a completion needs is required."""
    with pytest.raises(InvalidRecord):
        decode(PendingUpload, without("hadoop-pending-2", field), "x")


def test_a_pendingset_needs_its_uploads() -> None:
    """A pendingset without a list of uploads is invalid; one with an empty list is a task without output."""
    with pytest.raises(InvalidRecord):
        decode(PendingSet, without("pendingset-3", "commits"), "x")
    assert decode(PendingSet, changed("pendingset-3", commits=[]), "x").commits == []


@pytest.mark.parametrize("name", ["hadoop-pending-2", "hadoop-pendingset-3", "pendingset-3"])
def test_a_file_cut_short_is_refused(name: str) -> None:
    """A truncated file is refused, however much of its end is missing."""
    body = golden(name)
    kind = PendingSet if "set" in name else PendingUpload
    for length in range(len(body)):
        with pytest.raises(InvalidRecord):
            decode(kind, body[:length], "x")


def test_one_key_twice_in_a_pendingset_is_refused_both_ways() -> None:
    """Two uploads of one key in one pendingset are refused, when it is read and when it is written."""
    commits = [json.loads(golden("pending-2"))] * 2
    with pytest.raises(InvalidRecord, match="more than one pending upload"):
        decode(PendingSet, changed("pendingset-3", commits=commits), "x")
    with pytest.raises((InvalidRecord, ValueError), match="more than one pending upload"):
        encode(PendingSet(jobId=JOB, commits=[UPLOAD, UPLOAD], s3commit=TASK))


def test_the_etag_of_the_object_follows_from_its_parts() -> None:
    """It is the MD5 of the parts' MD5s and their number, whether Hadoop quoted them or not."""
    parts = [hashlib.md5(body).digest() for body in (b"one", b"two")]
    expected = f"{hashlib.md5(b''.join(parts)).hexdigest()}-2"
    for quote in ("", '"'):
        etags = [f"{quote}{part.hex()}{quote}" for part in parts]
        body = changed("pending-2", etags=etags)
        assert decode(PendingUpload, body, "x").expected_etag == expected


def test_parts_that_are_not_md5_say_nothing_about_the_object() -> None:
    """Under SSE-KMS, or on stores with their own ETags, no ETag is expected."""
    for etags in (["opaque"], [ETAG, f"{ETAG}-1"]):
        assert decode(PendingUpload, changed("pending-2", etags=etags), "x").expected_etag == ""

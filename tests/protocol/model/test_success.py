"""``_SUCCESS`` is Hadoop's: we read theirs, and Hadoop could read ours."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol.model.codec import decode, encode
from airflow_s3commit.protocol.model.manifest import (
    MANIFEST_DIAGNOSTIC,
    MAX_FILENAMES,
    SUCCESS_NAME,
    SuccessData,
)
from airflow_s3commit.protocol.model.pendingset import IOStatistics
from tests.protocol.model.test_records import JOB, changed, golden, without

#: The fields in the order in which Hadoop's writer puts them.
FIELDS = [
    "name",
    "success",
    "timestamp",
    "date",
    "hostname",
    "committer",
    "description",
    "jobId",
    "jobIdSource",
    "metrics",
    "diagnostics",
    "filenames",
    "state",
    "stage",
    "iostatistics",
]

OURS = SuccessData(
    name=SUCCESS_NAME,
    timestamp=1739800123456,
    date="Mon Feb 17 13:48:43 UTC 2025",
    hostname="worker-0",
    committer="partitioned",
    description="1 files in 1 partitions, replace",
    jobId=JOB,
    jobIdSource="airflow-s3commit",
    metrics={"complete_ms": 12},
    diagnostics={MANIFEST_DIAGNOSTIC: f"s3://lake/flights/_s3commit/jobs/{JOB}.json"},
    filenames=[f"/flights/dt=2013-01-01/part-00004-{JOB}.parquet"],
    iostatistics=IOStatistics(counters={"committer_commits_completed": 1}),
)


def test_ours_is_written_byte_for_byte() -> None:
    """Our marker looks the same as ever, has Hadoop's fields in order, and is read back equal."""
    assert encode(OURS) == golden("success-1")
    assert decode(SuccessData, golden("success-1"), "x") == OURS
    assert list(json.loads(golden("success-1"))) == FIELDS
    assert OURS.manifest_uri == f"s3://lake/flights/_s3commit/jobs/{JOB}.json"


def test_the_format_is_hadoop_s() -> None:
    """The name by which Hadoop's loader knows the format, and its limit, are the same."""
    assert SUCCESS_NAME == "org.apache.hadoop.fs.s3a.commit.files.SuccessData/1"
    assert MAX_FILENAMES == 100


def test_a_marker_of_hadoop_is_read() -> None:
    """A marker that the directory committer wrote is understood, and points to no manifest of ours."""
    success = decode(SuccessData, golden("hadoop-success-1"), "x")
    assert success.success
    assert success.committer == "directory"
    assert success.jobIdSource == "spark.sql.sources.writeJobUUID"
    assert success.metrics == {"object_put_requests": 41}
    assert success.filenames == ["/sales/day=17/part-00004-7f3c.parquet"]
    assert success.manifest_uri is None
    assert success.iostatistics is not None
    assert success.iostatistics.counters == {"committer_commits_completed": 40}
    assert decode(SuccessData, changed("hadoop-success-1", later=[1]), "x") == success


@pytest.mark.parametrize(
    "name",
    ["", "SuccessData", SUCCESS_NAME[:-1] + "2", f"{SUCCESS_NAME}0", f"x{SUCCESS_NAME}", f"{SUCCESS_NAME}\n",
     SUCCESS_NAME.replace(".", "x"), None, 1],
)  # fmt: skip
def test_another_format_is_refused(name: Any) -> None:
    """A file with another format's name, or none, is no marker of this kind."""
    with pytest.raises(InvalidRecord):
        decode(SuccessData, changed("hadoop-success-1", name=name), "x")
    with pytest.raises(InvalidRecord):
        decode(SuccessData, without("hadoop-success-1", "name"), "x")


@pytest.mark.parametrize("name", ["success-1", "hadoop-success-1"])
def test_a_marker_cut_short_is_refused(name: str) -> None:
    """The empty marker of the classic committer, and any half-written one, are not this kind."""
    body = golden(name)
    for length in range(len(body)):
        with pytest.raises(InvalidRecord):
            decode(SuccessData, body[:length], "x")

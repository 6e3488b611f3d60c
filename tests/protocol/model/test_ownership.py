"""What belongs to a job, and what it may destroy."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from airflow_s3commit.exceptions import ForeignRecord
from airflow_s3commit.protocol.metadata.context import check_place
from airflow_s3commit.protocol.metadata.removal import Proof, Thing, is_ours, why_not
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import JobOptions, JobRecord
from airflow_s3commit.protocol.model.layout import Layout, entry_key, job_key, list_key, receipt_key, seal_key
from airflow_s3commit.protocol.model.pendingset import PendingUpload, UploadExtra
from airflow_s3commit.store.base import ObjectInfo
from tests.cases import each
from tests.protocol.building import BUCKET, OURS, ROOT, THEIRS, named

HERE = Destination(BUCKET, ROOT)
LAYOUT = Layout.of(HERE, OURS)
HADOOP = Layout.of(HERE, "job_202502170001_0003")
RECORD_OF_JOB = JobRecord(**LAYOUT.place, options=JobOptions(), created=1, nonce="n-1")
OWN, ADOPTED = RECORD_OF_JOB, msgspec.structs.replace(RECORD_OF_JOB, adopted=True)
PROOFS = get_args(Proof)

OUR_NAME = ROOT + named("dt=1/part-0.parquet")
THEIR_NAME = ROOT + named("dt=1/part-0.parquet", THEIRS)
NO_NAME = f"{ROOT}dt=1/part-0.parquet"


@each("record", [OWN, ADOPTED, None])
@each("proof", [proof for proof in PROOFS if proof not in ("writer", "entry")])
@each("kind", ["upload", "object"])
def test_output_is_known_by_its_name(kind: Any, proof: Any, record: JobRecord | None) -> None:
    """A file with the job's id in its name is the job's; of an adopted job also what a record of it names."""
    assert why_not(LAYOUT, record, Thing(kind, BUCKET, OUR_NAME, proof)) is None
    is_recorded = record is ADOPTED and proof == "record"
    theirs = why_not(LAYOUT, record, Thing(kind, BUCKET, THEIR_NAME, proof))
    assert (theirs is None) == is_recorded
    nobodys = why_not(LAYOUT, record, Thing(kind, BUCKET, NO_NAME, proof))
    assert (nobodys is None) == (is_recorded or (record is None and proof != "name"))


def test_an_id_that_is_not_a_uuid_proves_nothing() -> None:
    """A job of Hadoop owns what its records name, but nothing by a file's name."""
    key = f"{ROOT}dt=1/part-0-{HADOOP.job_id}.parquet"
    for record in (ADOPTED, None):
        assert why_not(HADOOP, record, Thing("upload", BUCKET, key, "name")) is not None
        assert why_not(HADOOP, record, Thing("upload", BUCKET, key, "record")) is None
    assert why_not(HADOOP, None, Thing("upload", BUCKET, THEIR_NAME, "record")) is not None


@each("record", [OWN, ADOPTED, None])
@each("proof", PROOFS)
@each("kind", ["upload", "object"])
@each(
    ("bucket", "key"),
    [
        ("other", OUR_NAME),
        (BUCKET, "trains/" + named("part-0")),
        (BUCKET, "flights"),
        (BUCKET, ROOT),
        (BUCKET, named("part-0")),
    ],
)
def test_nothing_outside_the_destination_belongs_to_a_job(
    bucket: str, key: str, kind: Any, proof: Any, record: JobRecord | None
) -> None:
    """Whatever claims to be the job's, its output is below the destination."""
    assert "lies outside" in (why_not(LAYOUT, record, Thing(kind, bucket, key, proof)) or "")


@each("proof", [proof for proof in PROOFS if proof != "writer"])
@each(
    "path",
    [
        "_SUCCESS",
        "_s3commit/log/00000000000000000001.json",
        f"_s3commit/jobs/{THEIRS}.json",
        f"__magic_job-{THEIRS}/stages/spark-1/sealed.json",
        f"_x/{named('part-0')}",
        f".x/{named('part-0')}",
        "dt=1/",
    ],
)
def test_no_hidden_object_is_output(path: str, proof: Any) -> None:
    """Records, markers and hidden files are never deleted as data, even if a record or plan names them."""
    assert why_not(LAYOUT, ADOPTED, Thing("object", BUCKET, ROOT + path, proof)) is not None


@pytest.mark.parametrize(
    ("bucket", "key", "own"),
    [
        (BUCKET, job_key(HERE, OURS), True),
        (BUCKET, seal_key(HERE, OURS), True),
        (BUCKET, list_key(HERE, OURS, "0" * 64), True),
        (BUCKET, LAYOUT.staging.key("anything"), True),
        (BUCKET, LAYOUT.staging.prefix, True),
        (BUCKET, LAYOUT.partition_success("dt=1"), True),
        (BUCKET, LAYOUT.success, False),
        (BUCKET, LAYOUT.partition_success("_hidden"), False),
        (BUCKET, entry_key(HERE, 1), False),
        (BUCKET, receipt_key(HERE, OURS), False),
        (BUCKET, job_key(HERE, THEIRS), False),
        (BUCKET, list_key(HERE, THEIRS, "0" * 64), False),
        (BUCKET, list_key(HERE, f"{OURS}-x", "0" * 64), False),
        (BUCKET, ROOT, False),
        (BUCKET, f"{ROOT}__magic_job-{THEIRS}/job.json", False),
        (BUCKET, OUR_NAME, False),
        ("other", job_key(HERE, OURS), False),
        ("other", LAYOUT.staging.key("anything"), False),
        ("other", LAYOUT.partition_success("dt=1"), False),
    ],
)
def test_records_are_known_by_their_place(bucket: str, key: str, own: bool) -> None:
    """A job removes its own records and partitions' markers, but no entry, receipt or other job's record."""
    assert (why_not(LAYOUT, OWN, Thing("record", bucket, key, "staging")) is None) == own


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({}, None),
        ({"job_id": THEIRS}, f"of job {THEIRS}"),
        ({"staging": "s3://lake/trains/"}, "copied here"),
        ({"destination": "s3://lake/trains/"}, "on s3://lake/trains/"),
    ],
)
def test_a_record_speaks_for_its_own_place(fields: dict[str, Any], refused: str | None) -> None:
    """A record of another job, or for another place, is refused, and the message says which."""
    record = msgspec.structs.replace(RECORD_OF_JOB, **fields)
    if refused is None:
        check_place(record, LAYOUT, "s3://lake/there")
    else:
        with pytest.raises(ForeignRecord, match=refused):
            check_place(record, LAYOUT, "s3://lake/there")


def test_an_object_that_carries_another_job_s_id_is_not_ours() -> None:
    """The job that an object names outweighs an upload's id and the ETag of its parts."""
    etag = "0cc175b9c0f1b6a831c399e269772661"
    hadoops = PendingUpload(
        uri="s3a://lake/x", uploadId="u", bucket=BUCKET, destinationKey=NO_NAME, jobId=OURS,
        etags=[etag], length=1,
    )  # fmt: skip
    ours = msgspec.structs.replace(hadoops, s3commit=UploadExtra(upload="id-1"))

    def standing(metadata: dict[str, str]) -> ObjectInfo:
        return ObjectInfo(NO_NAME, 1, hadoops.expected_etag, 0.0, metadata)

    assert is_ours(hadoops, standing({}))
    assert not is_ours(hadoops, standing({"s3commit-job": THEIRS}))
    assert is_ours(ours, standing({"s3commit-job": OURS, "s3commit-upload": "id-1"}))
    assert not is_ours(ours, standing({"s3commit-job": THEIRS, "s3commit-upload": "id-1"}))
    assert not is_ours(ours, standing({}))

"""What is a job's own, and what it may destroy: judged from values alone, and held to by every step."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from airflow_s3commit.exceptions import ForeignRecord
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import JobOptions, LockRecord
from airflow_s3commit.protocol.model.layout import Layout, former_lock_key
from airflow_s3commit.protocol.model.ownership import Proof, Thing, check_place, is_ours, why_not
from airflow_s3commit.protocol.model.pendingset import PendingUpload, UploadExtra
from airflow_s3commit.store.base import ObjectInfo
from tests.cases import each
from tests.protocol.building import BUCKET, OURS, ROOT, THEIRS, named

LAYOUT = Layout.of(Destination(BUCKET, ROOT), OURS)
OLD = Layout.of(Destination(BUCKET, ROOT), "job_202502170001_0003")
UNIQUE, FIXED = JobOptions(), JobOptions(unique_filenames=False)
PROOFS = get_args(Proof)

OUR_NAME = ROOT + named("dt=1/part-0.parquet")
THEIR_NAME = ROOT + named("dt=1/part-0.parquet", THEIRS)
NO_NAME = f"{ROOT}dt=1/part-0.parquet"


@each("options", [UNIQUE, FIXED, None])
@each("proof", [proof for proof in PROOFS if proof not in ("writer", "plan", "release")])
@each("kind", ["upload", "object"])
def test_output_is_known_by_its_name(kind: Any, proof: Any, options: JobOptions | None) -> None:
    """A file with the job's id in its name is the job's; another one only where names are fixed."""
    assert why_not(LAYOUT, options, Thing(kind, BUCKET, OUR_NAME, proof)) is None
    theirs = why_not(LAYOUT, options, Thing(kind, BUCKET, THEIR_NAME, proof))
    assert (theirs is None) == (options is FIXED and proof != "name")
    nobodys = why_not(LAYOUT, options, Thing(kind, BUCKET, NO_NAME, proof))
    assert (nobodys is None) == (options is not UNIQUE and proof != "name")


def test_an_id_that_is_no_uuid_proves_nothing() -> None:
    """A job of Hadoop or of an older version owns what its records name, and no name of a file."""
    key = f"{ROOT}dt=1/part-0-{OLD.job_id}.parquet"
    assert why_not(OLD, UNIQUE, Thing("upload", BUCKET, key, "name")) is not None
    assert why_not(OLD, UNIQUE, Thing("upload", BUCKET, key, "record")) is None
    assert why_not(OLD, UNIQUE, Thing("upload", BUCKET, THEIR_NAME, "record")) is not None


@each("options", [UNIQUE, FIXED, None])
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
def test_nothing_outside_the_destination_is_a_job_s(
    bucket: str, key: str, kind: Any, proof: Any, options: JobOptions | None
) -> None:
    """Whatever says that it is the job's, output lies below the destination."""
    assert "lies outside" in (why_not(LAYOUT, options, Thing(kind, bucket, key, proof)) or "")


@each("proof", [proof for proof in PROOFS if proof != "writer"])
@each(
    "path",
    [
        "_SUCCESS",
        "_s3commit/commit-lock.json",
        f"_s3commit/manifests/{THEIRS}.json",
        f"__magic_job-{THEIRS}/state.json",
        f"_x/{named('part-0')}",
        f".x/{named('part-0')}",
        "dt=1/",
    ],
)
def test_no_hidden_object_is_output(path: str, proof: Any) -> None:
    """Records, markers and hidden files are never deleted as data, whatever a record or plan names."""
    assert why_not(LAYOUT, FIXED, Thing("object", BUCKET, ROOT + path, proof)) is not None


@pytest.mark.parametrize(
    ("bucket", "key", "own"),
    [
        (BUCKET, LAYOUT.state, True),
        (BUCKET, LAYOUT.staging.key("anything"), True),
        (BUCKET, former_lock_key(LAYOUT.destination), True),
        (BUCKET, LAYOUT.success, True),
        (BUCKET, LAYOUT.manifest, False),
        (BUCKET, LAYOUT.aborted, False),
        (BUCKET, LAYOUT.staging.prefix, True),
        (BUCKET, ROOT, False),
        (BUCKET, f"{ROOT}__magic_job-{THEIRS}/state.json", False),
        (BUCKET, OUR_NAME, False),
        ("other", LAYOUT.state, False),
        ("other", former_lock_key(LAYOUT.destination), False),
    ],
)
def test_records_are_known_by_their_place(bucket: str, key: str, own: bool) -> None:
    """A job removes records of its own staging, the lock and the marker; never a manifest or another's."""
    assert (why_not(LAYOUT, UNIQUE, Thing("record", bucket, key, "staging")) is None) == own


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({}, None),
        ({"destination": None}, None),
        ({"job_id": THEIRS}, f"of job {THEIRS}"),
        ({"staging": "s3://lake/trains/"}, "copied here"),
        ({"destination": "s3://lake/trains/"}, "on s3://lake/trains/"),
    ],
)
def test_a_record_speaks_for_its_own_place(fields: dict[str, Any], refused: str | None) -> None:
    """A record of another job, or written for another place, is refused and the message says which."""
    record = LockRecord(**LAYOUT.place, owner="o", lease=1.0, nonce="n")
    record = msgspec.structs.replace(record, **fields)
    if refused is None:
        check_place(record, LAYOUT, "s3://lake/there")
    else:
        with pytest.raises(ForeignRecord, match=refused):
            check_place(record, LAYOUT, "s3://lake/there")


def test_an_object_that_carries_another_job_s_id_is_not_ours() -> None:
    """Neither an upload's id nor the ETag of its parts outweighs the job that an object names."""
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

"""The policy allows what jobs do and no more."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_s3commit.protocol.doctor.policy import iam_policies
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import ObjectOptions
from tests.cases import each
from tests.iam import allows

FLIGHTS = Destination("lake", "flights/")
HERE = "arn:aws:s3:::lake/flights/"

COMMITTER, EXECUTORS = "committer", "executors"


def policy_of(role: str, *args: Any, **arguments: Any) -> dict[str, Any]:
    """Return the policy of a role."""
    return iam_policies(*args, **arguments)[role]


@pytest.mark.parametrize(
    "action",
    [
        "s3:PutObject",
        "s3:GetObject",
        "s3:DeleteObject",
        "s3:AbortMultipartUpload",
        "s3:ListMultipartUploadParts",
    ],
)
def test_what_the_committer_does_is_allowed_below_the_destination_and_nowhere_else(action: str) -> None:
    """Objects of the destination may be used in every way that a job uses them; those beside it in none."""
    policy = policy_of(COMMITTER, FLIGHTS)
    for key in ("dt=1/part-0.parquet", "_s3commit/log/1.json", "_SUCCESS", "__magic_job-1/x"):
        assert allows(policy, action, HERE + key)
    for outside in ("lake/flights2/x", "lake/other/x", "lake/x", "elsewhere/flights/x"):
        assert not allows(policy, action, f"arn:aws:s3:::{outside}")


@each(
    ("key", "allowed"),
    [
        ("dt=1/part-0.parquet", {"Get", "Put", "Abort"}),
        ("__magic_job-1/stages/spark-1/tasks/0_1.pendingset", {"Get", "Put", "Abort", "Delete"}),
        ("_s3commit/jobs/1.json", {"Get"}),
        ("_s3commit/open/1/job.json", {"Get"}),
        ("_s3commit/open/1/sealed.json", set()),
        ("_s3commit/log/00000000000000000001.json", set()),
        ("_delta_log/00000000000000000001.json", {"Get"}),
        ("_iceberg/00001.metadata.json", {"Get"}),
        ("_s3commit/lists/1-2.jsonl", set()),
        ("_s3commit/checkpoints/00000000000000000013.jsonl.gz", set()),
        ("_SUCCESS", {"Get"}),
        ("dt=1/_SUCCESS", {"Get"}),
        ("../flights2/x", set()),
    ],
)
def test_executors_write_data_and_stagings_alone(key: str, allowed: set[str]) -> None:
    """Of the records of the destination they read receipts and how jobs are set up, and change none."""
    policy = policy_of(EXECUTORS, FLIGHTS)
    actions = {
        "Get": "s3:GetObject",
        "Put": "s3:PutObject",
        "Delete": "s3:DeleteObject",
        "Abort": "s3:AbortMultipartUpload",
    }
    resource = HERE + key if not key.startswith("../") else f"arn:aws:s3:::lake/{key[3:]}"
    assert {name for name, action in actions.items() if allows(policy, action, resource)} == allowed


@each("role", [COMMITTER, EXECUTORS])
def test_listing_is_allowed_for_the_bucket_alone(role: str) -> None:
    """The bucket may be listed, by the committer its pending uploads too; no other bucket may."""
    policy = policy_of(role, FLIGHTS)
    for action in ("s3:ListBucket", "s3:ListBucketMultipartUploads", "s3:GetLifecycleConfiguration"):
        assert allows(policy, action, "arn:aws:s3:::lake") == (role == COMMITTER or action == "s3:ListBucket")
        assert not allows(policy, action, "arn:aws:s3:::elsewhere")


@each("role", [COMMITTER, EXECUTORS])
def test_staging_elsewhere_is_for_stagings_only(role: str) -> None:
    """In another bucket a job may only keep staging folders; it uploads nothing there."""
    policy = policy_of(role, FLIGHTS, Destination("records", "jobs/"))
    staged = "arn:aws:s3:::records/jobs/__magic_job-1/stages/x"
    for action in ("s3:GetObject", "s3:PutObject", "s3:DeleteObject"):
        assert allows(policy, action, staged)
        assert not allows(policy, action, "arn:aws:s3:::records/jobs/other.json")
    assert not allows(policy, "s3:AbortMultipartUpload", staged)
    assert allows(policy, "s3:ListBucket", "arn:aws:s3:::records")


@each("role", [COMMITTER, EXECUTORS])
def test_records_are_deleted_in_a_staging_below_the_destination(role: str) -> None:
    """A task that aborts deletes its records there; executors delete no data beside them."""
    policy = policy_of(role, FLIGHTS, Destination("lake", "flights/_tmp/"))
    staged = HERE + "_tmp/__magic_job-1/stages/x"
    assert all(allows(policy, f"s3:{action}Object", staged) for action in ("Get", "Put", "Delete"))
    assert allows(policy, "s3:DeleteObject", HERE + "_tmp/dt=1/part-0.parquet") == (role == COMMITTER)


@each("role", [COMMITTER, EXECUTORS])
def test_wildcards_in_a_prefix_are_literal(role: str) -> None:
    """A destination with a star in its name opens, and closes, no other destination."""
    policy = policy_of(role, Destination("lake", "a*b?/"))
    assert allows(policy, "s3:PutObject", "arn:aws:s3:::lake/a*b?/x")
    assert not allows(policy, "s3:PutObject", "arn:aws:s3:::lake/aXbY/x")


@each("role", [COMMITTER, EXECUTORS])
def test_key_and_partition_are_named_where_they_are_needed(role: str) -> None:
    """A bucket that is encrypted with a key needs that key; AWS partitions have their own names."""
    encrypted = ObjectOptions(sse="aws:kms", sse_kms_key_id="arn:aws-cn:kms:cn-north-1:1:key/k")
    policy = policy_of(role, FLIGHTS, object_options=encrypted, partition="aws-cn")
    assert allows(policy, "kms:GenerateDataKey", "arn:aws-cn:kms:cn-north-1:1:key/k")
    assert allows(policy, "s3:PutObject", "arn:aws-cn:s3:::lake/flights/x")
    assert not any("kms" in str(statement) for statement in policy_of(role, FLIGHTS)["Statement"])


@each("role", [COMMITTER, EXECUTORS])
def test_object_options_need_more(role: str) -> None:
    """Tags, an ACL and a key each add what AWS requires; without them nothing is added."""
    key = "arn:aws:kms:eu-central-1:111122223333:key/abcd"
    asked = ObjectOptions(
        sse="aws:kms", sse_kms_key_id=key, acl="bucket-owner-full-control", tags={"team": "flights"}
    )
    policy = policy_of(role, FLIGHTS, Destination("records", "x/"), object_options=asked)
    data, records = "arn:aws:s3:::lake/flights/a", "arn:aws:s3:::records/x/__magic_job-1/stages/x"
    for action in ("s3:PutObjectTagging", "s3:PutObjectAcl"):
        assert allows(policy, action, data)
        assert not allows(policy_of(role, FLIGHTS), action, data)
    assert allows(policy, "s3:PutObjectAcl", records)
    assert not allows(policy, "s3:PutObjectTagging", records)
    assert allows(policy, "kms:GenerateDataKey", key)

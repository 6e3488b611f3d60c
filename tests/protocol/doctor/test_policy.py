"""The policy allows what jobs do and no more; the lifecycle rule is one that AWS reads."""

from __future__ import annotations

import fnmatch
import re
from typing import Any

import pytest

from airflow_s3commit.protocol.doctor.policy import RULE_ID, iam_policy, lifecycle_rule
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.object_options import ObjectOptions
from airflow_s3commit.store.s3.store import abort_days

FLIGHTS = Destination("lake", "flights/")


def _allows(policy: dict[str, Any], action: str, resource: str) -> bool:
    """Judge as IAM does: any statement that names the action and matches the resource."""
    return any(
        action in statement["Action"]
        and any(re.fullmatch(_pattern(named), resource) for named in statement["Resource"])
        for statement in policy["Statement"]
    )


def _pattern(named: str) -> str:
    """Return IAM's wildcard pattern as a regular expression; ``${*}`` is a literal star."""
    pieces = re.split(r"(\$\{[*?$]\})", named)
    return "".join(
        re.escape(piece[2]) if piece.startswith("${") else fnmatch.translate(piece)[4:-3] for piece in pieces
    )


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
def test_what_jobs_do_to_objects_is_allowed_below_the_destination_and_nowhere_else(action: str) -> None:
    """Objects of the destination may be used in every way that a job uses them; those beside it in none."""
    policy = iam_policy(FLIGHTS)
    assert _allows(policy, action, "arn:aws:s3:::lake/flights/dt=1/part-0.parquet")
    assert _allows(policy, action, "arn:aws:s3:::lake/flights/_s3commit/store.json")
    for outside in ("lake/flights2/x", "lake/other/x", "lake/x", "elsewhere/flights/x"):
        assert not _allows(policy, action, f"arn:aws:s3:::{outside}")


def test_listing_is_allowed_for_the_bucket_alone() -> None:
    """The bucket may be listed, and its pending uploads; no other bucket may."""
    policy = iam_policy(FLIGHTS)
    for action in ("s3:ListBucket", "s3:ListBucketMultipartUploads", "s3:GetLifecycleConfiguration"):
        assert _allows(policy, action, "arn:aws:s3:::lake")
        assert not _allows(policy, action, "arn:aws:s3:::elsewhere")


def test_staging_elsewhere_is_for_records_only() -> None:
    """In another bucket a job may only keep records in staging folders; it uploads nothing there."""
    policy = iam_policy(FLIGHTS, Destination("records", "jobs/"))
    staged = "arn:aws:s3:::records/jobs/__magic_job-1/job.json"
    for action in ("s3:GetObject", "s3:PutObject", "s3:DeleteObject"):
        assert _allows(policy, action, staged)
        assert not _allows(policy, action, "arn:aws:s3:::records/jobs/other.json")
    assert not _allows(policy, "s3:AbortMultipartUpload", staged)
    assert _allows(policy, "s3:ListBucket", "arn:aws:s3:::records")


def test_staging_below_the_destination_needs_nothing_more() -> None:
    """What the destination's statement allows is not repeated."""
    assert iam_policy(FLIGHTS, Destination("lake", "flights/x/")) == iam_policy(FLIGHTS)


def test_wildcards_in_a_prefix_are_literal() -> None:
    """A destination with a star in its name opens no other destination."""
    policy = iam_policy(Destination("lake", "a*b?/"))
    assert _allows(policy, "s3:PutObject", "arn:aws:s3:::lake/a*b?/x")
    assert not _allows(policy, "s3:PutObject", "arn:aws:s3:::lake/aXbY/x")


def test_key_and_partition_are_named_where_they_are_needed() -> None:
    """A bucket that is encrypted with a key needs that key; AWS partitions have their own names."""
    policy = iam_policy(FLIGHTS, kms_key="arn:aws-cn:kms:cn-north-1:1:key/k", partition="aws-cn")
    assert _allows(policy, "kms:GenerateDataKey", "arn:aws-cn:kms:cn-north-1:1:key/k")
    assert _allows(policy, "s3:PutObject", "arn:aws-cn:s3:::lake/flights/x")
    assert not any("kms" in str(statement) for statement in iam_policy(FLIGHTS)["Statement"])


def test_the_printed_lifecycle_rule_is_recognised() -> None:
    """The code that reads a bucket's rules finds the printed rule, with its days."""
    configuration = lifecycle_rule(FLIGHTS, 9)
    assert [rule["ID"] for rule in configuration["Rules"]] == [RULE_ID]
    assert abort_days(configuration["Rules"], "flights/") == 9
    assert abort_days(configuration["Rules"], "other/") is None
    with pytest.raises(ValueError, match="1 day"):
        lifecycle_rule(FLIGHTS, 0)


def test_object_options_need_more() -> None:
    """Tags, an ACL and a key each add what AWS requires; without them nothing is added."""
    key = "arn:aws:kms:eu-central-1:111122223333:key/abcd"
    asked = ObjectOptions(
        sse="aws:kms", sse_kms_key_id=key, acl="bucket-owner-full-control", tags={"team": "flights"}
    )
    policy = iam_policy(FLIGHTS, Destination("records", "x/"), object_options=asked)
    data, records = "arn:aws:s3:::lake/flights/a", "arn:aws:s3:::records/x/__magic_job-1/job.json"
    for action in ("s3:PutObjectTagging", "s3:PutObjectAcl"):
        assert _allows(policy, action, data)
        assert not _allows(iam_policy(FLIGHTS), action, data)
    assert _allows(policy, "s3:PutObjectAcl", records)
    assert not _allows(policy, "s3:PutObjectTagging", records)
    assert _allows(policy, "kms:GenerateDataKey", key)

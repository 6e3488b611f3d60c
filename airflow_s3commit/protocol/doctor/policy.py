"""What a bucket's owner has to allow and to set for jobs: an IAM policy and a lifecycle rule, as values.

Both are in the form that AWS reads, keys and all, so that they can be pasted as they are.
"""

from __future__ import annotations

from typing import Any

from airflow_s3commit.protocol.doctor.object_options import required_actions
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.layout import MAGIC_PREFIX
from airflow_s3commit.protocol.model.object_options import ObjectOptions

#: Days after which pending uploads are removed, unless told otherwise: longer than any job should take.
DEFAULT_DAYS = 7

#: Id of the lifecycle rule.
RULE_ID = "s3commit-abort-incomplete-uploads"

#: What a job does to single objects below its destination: data, records, pending uploads.
_DATA_ACTIONS = (
    "s3:AbortMultipartUpload",
    "s3:DeleteObject",
    "s3:GetObject",
    "s3:ListMultipartUploadParts",
    "s3:PutObject",
)

#: What a job does to its records, where they are not below the destination.
_RECORD_ACTIONS = ("s3:DeleteObject", "s3:GetObject", "s3:PutObject")


def iam_policy(
    destination: Destination,
    staging_root: Destination | None = None,
    *,
    kms_key: str | None = None,
    object_options: ObjectOptions | None = None,
    partition: str = "aws",
) -> dict[str, Any]:
    """Return the least that the role of a pipeline must be allowed, as an identity-based policy.

    It is for all who take part in a job: writers, and whoever commits. Access to objects ends at the
    destination and the staging. Listing cannot be narrowed down as far: a HEAD of the bucket, the answer
    that an object is *not* there, and the list of pending uploads are granted for a bucket or not at all.

    Args:
        destination: Where jobs write.
        staging_root: Where their records are, if not below it.
        kms_key: ARN of the key that encrypts the buckets, if one does; by default that of the options.
        object_options: How jobs have their objects kept.
        partition: Which part of AWS the buckets are in: ``aws``, ``aws-cn`` or ``aws-us-gov``.

    """
    buckets = [destination.bucket]
    asked = object_options or ObjectOptions()
    if kms_key is None and (asked.sse_kms_key_id or "").startswith("arn:"):
        kms_key = asked.sse_kms_key_id
    actions = (*_DATA_ACTIONS, *required_actions(asked))
    statements = [_statement("S3CommitData", actions, [_objects(partition, destination, destination.prefix)])]
    if staging_root is not None and not _is_below(staging_root, destination):
        if staging_root.bucket not in buckets:
            buckets.append(staging_root.bucket)
        records = _objects(partition, staging_root, staging_root.key(MAGIC_PREFIX))
        actions = (
            (*_RECORD_ACTIONS, "s3:PutObjectAcl") if "x-amz-acl" in asked.of_records else _RECORD_ACTIONS
        )
        statements.append(_statement("S3CommitRecords", actions, [records]))
    statements += [
        _statement("S3CommitList", ("s3:ListBucket",), [_bucket(partition, name) for name in buckets]),
        _statement(
            "S3CommitUploads",
            ("s3:GetLifecycleConfiguration", "s3:ListBucketMultipartUploads"),
            [_bucket(partition, destination.bucket)],
        ),
    ]
    if kms_key is not None:
        statements.append(_statement("S3CommitKey", ("kms:Decrypt", "kms:GenerateDataKey"), [kms_key]))
    return {"Version": "2012-10-17", "Statement": statements}


def lifecycle_rule(destination: Destination, days: int = DEFAULT_DAYS) -> dict[str, Any]:
    """Return a lifecycle configuration of one rule, which removes what crashed uploads leave for ever.

    Setting a bucket's configuration replaces all of its rules: this one is to be added to them.

    Args:
        destination: Where jobs write.
        days: Days after which a pending upload is removed; a job must be committed before.

    Raises:
        ValueError: Fewer than one day.

    """
    if days < 1:
        raise ValueError(f"{days} days: pending uploads are removed after 1 day at the soonest")
    rule = {
        "ID": RULE_ID,
        "Status": "Enabled",
        "Filter": {"Prefix": destination.prefix},
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": days},
    }
    return {"Rules": [rule]}


def _statement(sid: str, actions: tuple[str, ...], resources: list[str]) -> dict[str, Any]:
    return {"Sid": sid, "Effect": "Allow", "Action": list(actions), "Resource": resources}


def _bucket(partition: str, bucket: str) -> str:
    return f"arn:{partition}:s3:::{bucket}"


def _objects(partition: str, place: Destination, prefix: str) -> str:
    # What would be a wildcard or a variable to IAM stands for itself in this form only.
    literal = "".join(f"${{{char}}}" if char in "*?$" else char for char in prefix)
    return f"{_bucket(partition, place.bucket)}/{literal}*"


def _is_below(place: Destination, above: Destination) -> bool:
    return place.bucket == above.bucket and place.prefix.startswith(above.prefix)

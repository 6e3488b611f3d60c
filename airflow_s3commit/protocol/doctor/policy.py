"""The IAM policy and the lifecycle rule that jobs need, as AWS reads them: ready to paste."""

from __future__ import annotations

from typing import Any

from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.layout import MAGIC_PREFIX
from airflow_s3commit.protocol.model.object_options import ObjectOptions

#: Default number of days after which pending uploads are removed: longer than any job should take.
DEFAULT_DAYS = 7

#: Id of the lifecycle rule.
RULE_ID = "s3commit-abort-incomplete-uploads"

#: Actions of a job on objects below its destination: data, records, pending uploads.
_DATA_ACTIONS = (
    "s3:AbortMultipartUpload",
    "s3:DeleteObject",
    "s3:GetObject",
    "s3:ListMultipartUploadParts",
    "s3:PutObject",
)

#: Actions of a job on its records, where they are not below the destination.
_RECORD_ACTIONS = ("s3:DeleteObject", "s3:GetObject", "s3:PutObject")


def iam_policy(
    destination: Destination,
    staging_root: Destination | None = None,
    *,
    kms_key: str | None = None,
    object_options: ObjectOptions | None = None,
    partition: str = "aws",
) -> dict[str, Any]:
    """Return an identity-based policy with the least permissions that a pipeline's role needs.

    One policy serves all processes of a job: those that write and the one that commits. Object permissions
    are limited to the destination and the staging. Those to list are not: S3 grants a HEAD of the bucket,
    a 404 for a missing object, and the list of pending uploads only for a whole bucket.

    Args:
        destination: The destination of the jobs.
        staging_root: The directory of their records, if not below the destination.
        kms_key: ARN of the key that encrypts the buckets; by default that of ``object_options``, if any.
        object_options: The object options of the jobs.
        partition: The AWS partition of the buckets: ``aws``, ``aws-cn`` or ``aws-us-gov``.

    """
    buckets = [destination.bucket]
    options = object_options or ObjectOptions()
    if kms_key is None and (options.sse_kms_key_id or "").startswith("arn:"):
        kms_key = options.sse_kms_key_id
    actions = (*_DATA_ACTIONS, *_actions_of(options))
    statements = [_statement("S3CommitData", actions, [_objects(partition, destination, destination.prefix)])]
    if staging_root is not None and not _is_below(staging_root, destination):
        if staging_root.bucket not in buckets:
            buckets.append(staging_root.bucket)
        records = _objects(partition, staging_root, staging_root.key(MAGIC_PREFIX))
        actions = (
            (*_RECORD_ACTIONS, "s3:PutObjectAcl") if "x-amz-acl" in options.of_records else _RECORD_ACTIONS
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


def _actions_of(options: ObjectOptions) -> tuple[str, ...]:
    """Return the actions on data that these options need besides those of every job."""
    tagging = ("s3:PutObjectTagging",) if options.tags else ()
    return (*tagging, "s3:PutObjectAcl") if options.acl else tagging


def lifecycle_rule(destination: Destination, days: int = DEFAULT_DAYS) -> dict[str, Any]:
    """Return a lifecycle configuration with one rule, which aborts the pending uploads of crashed jobs.

    A new configuration of a bucket replaces all of its rules: add this rule to the existing ones.

    Args:
        destination: The destination of the jobs.
        days: Days after its start when a pending upload is aborted; a job must be committed before that.

    Raises:
        ValueError: ``days`` is less than 1.

    """
    if days < 1:
        raise ValueError(f"days is {days}: S3 keeps pending uploads for at least 1 day")
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
    # IAM takes its wildcards and variables literally only in this form.
    literal = "".join(f"${{{char}}}" if char in "*?$" else char for char in prefix)
    return f"{_bucket(partition, place.bucket)}/{literal}*"


def _is_below(place: Destination, above: Destination) -> bool:
    return place.bucket == above.bucket and place.prefix.startswith(above.prefix)

"""The IAM policies of a pipeline's two roles, executors and committer, as AWS reads them."""

from __future__ import annotations

from typing import Any

from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import ObjectOptions
from airflow_s3commit.protocol.model.layout import DELTA_LOG, HOME, MAGIC_PREFIX, SUCCESS

#: Fewest days after which a lifecycle rule may remove pending uploads: a job may have to wait for an audit.
SAFE_DAYS = 2

#: What both roles do to objects below a destination.
_DATA_ACTIONS = ("s3:AbortMultipartUpload", "s3:GetObject", "s3:ListMultipartUploadParts", "s3:PutObject")

#: What both roles do to pendingsets and seals of stages.
_STAGING_ACTIONS = ("s3:DeleteObject", "s3:GetObject", "s3:PutObject")

#: What only the committer may do to its records, to markers and to what other engines read.
_WRITES = ("s3:AbortMultipartUpload", "s3:DeleteObject", "s3:PutObject")


def iam_policies(
    destination: Destination,
    staging_root: Destination | None = None,
    *,
    object_options: ObjectOptions | None = None,
    partition: str = "aws",
) -> dict[str, dict[str, Any]]:
    """Return identity-based policies with the least permissions that the roles of a pipeline need.

    ``executors`` is for the writers: Spark's driver and executors, and Python tasks. They write data and
    records in stagings. Of the destination's records they read job records and, to see which jobs ended,
    receipts. ``committer`` is for what sets up, seals, commits, aborts and sweeps: Airflow's workers.

    Permissions on objects are limited to the destination and the staging. List permissions are not: S3 grants
    a HEAD of the bucket, a 404 for a missing object, and the list of pending uploads only for a whole bucket.

    Args:
        staging_root: The directory of the jobs' stagings, if not the destination.
        object_options: The object options of the jobs. A key must be given by its ARN.
        partition: The AWS partition of the buckets: ``aws``, ``aws-cn``, ``aws-us-gov`` or ``aws-eusc``.
    """
    options = object_options or ObjectOptions()
    kms_key = options.sse_kms_key_id or ""
    staging = staging_root or destination
    buckets = [_bucket(partition, name) for name in dict.fromkeys((destination.bucket, staging.bucket))]
    acl = ("s3:PutObjectAcl",) if staging != destination and "x-amz-acl" in options.of_records else ()

    def below(place: Destination, *names: str) -> list[str]:
        return [_arn(partition, place.bucket, place.key(name), "*") for name in names]

    needed = (("s3:PutObjectTagging", options.tags), ("s3:PutObjectAcl", options.acl))
    data = (*_DATA_ACTIONS, *(action for action, given in needed if given))
    shared = [
        _statement("S3CommitStaging", (*_STAGING_ACTIONS, *acl), below(staging, MAGIC_PREFIX)),
        _statement("S3CommitList", ("s3:ListBucket",), buckets),
    ]
    if kms_key.startswith("arn:"):
        shared.append(_statement("S3CommitKey", ("kms:Decrypt", "kms:GenerateDataKey"), [kms_key]))
    markers = [
        _arn(partition, destination.bucket, destination.prefix, end) for end in (SUCCESS, f"*/{SUCCESS}")
    ]
    seals = _arn(partition, destination.bucket, destination.key(f"{HOME}/open/"), "*/sealed.json")
    protected = below(destination, f"{HOME}/", f"{DELTA_LOG}/", "_iceberg/")
    hidden = below(destination, f"{HOME}/checkpoints/", f"{HOME}/lists/", f"{HOME}/log/")
    executors = [
        _statement("S3CommitData", data, below(destination, "")),
        *shared,
        _statement("S3CommitProtected", _WRITES, [*protected, *markers], "Deny"),
        _statement("S3CommitHidden", ("s3:GetObject",), [*hidden, seals], "Deny"),
    ]
    committer = [
        _statement("S3CommitData", (*data, "s3:DeleteObject"), below(destination, "")),
        *shared,
        _statement(
            "S3CommitUploads",
            ("s3:GetLifecycleConfiguration", "s3:ListBucketMultipartUploads"),
            [_bucket(partition, destination.bucket)],
        ),
    ]
    return {
        role: {"Version": "2012-10-17", "Statement": statements}
        for role, statements in (("executors", executors), ("committer", committer))
    }


def _statement(
    sid: str, actions: tuple[str, ...], resources: list[str], effect: str = "Allow"
) -> dict[str, Any]:
    return {"Sid": sid, "Effect": effect, "Action": sorted(actions), "Resource": resources}


def _bucket(partition: str, bucket: str) -> str:
    return f"arn:{partition}:s3:::{bucket}"


def _arn(partition: str, bucket: str, prefix: str, end: str) -> str:
    """Return the ARN pattern of some keys: ``prefix`` is taken literally, ``end`` may have wildcards."""
    # IAM takes its wildcards and variables literally only in this form.
    literal = "".join(f"${{{char}}}" if char in "*?$" else char for char in prefix)
    return f"{_bucket(partition, bucket)}/{literal}{end}"

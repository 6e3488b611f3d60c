"""Airflow operators for the steps of a commit."""

from __future__ import annotations

from airflow_s3commit._names import lazy

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from airflow_s3commit.operators.abort import S3CommitAbortOperator
    from airflow_s3commit.operators.commit import S3CommitJobOperator, S3CommitPartOperator
    from airflow_s3commit.operators.seal import (
        S3CommitAuditOperator,
        S3CommitResolveConflictsOperator,
        S3CommitStagesOperator,
    )
    from airflow_s3commit.operators.setup import S3CommitSetupOperator
    from airflow_s3commit.operators.spark_submit import S3CommitSparkSubmitOperator
    from airflow_s3commit.operators.tables import (
        S3CommitCompactOperator,
        S3CommitPublishIcebergOperator,
        S3CommitRegisterPartitionsOperator,
        S3CommitRegisterTableOperator,
        S3CommitSweepOperator,
    )

__all__ = [
    "S3CommitAbortOperator",
    "S3CommitAuditOperator",
    "S3CommitCompactOperator",
    "S3CommitJobOperator",
    "S3CommitPartOperator",
    "S3CommitPublishIcebergOperator",
    "S3CommitRegisterPartitionsOperator",
    "S3CommitRegisterTableOperator",
    "S3CommitResolveConflictsOperator",
    "S3CommitSetupOperator",
    "S3CommitSparkSubmitOperator",
    "S3CommitStagesOperator",
    "S3CommitSweepOperator",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy(__spec__)

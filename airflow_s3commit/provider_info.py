"""What Airflow's providers manager is told about this package.

Imports nothing: every Airflow process loads it, while Airflow itself is still being imported.
"""

from __future__ import annotations

__all__ = ["get_provider_info"]

_INTEGRATION = "S3 Commit"


def get_provider_info() -> dict[str, object]:
    """Describe the package in the terms of Airflow's ``provider_info.schema.json``."""
    return {
        "package-name": "airflow-s3commit",
        "name": _INTEGRATION,
        "description": "Zero-rename commits to S3: Spark uploads, one task makes the output visible.",
        "integrations": [
            {
                "integration-name": _INTEGRATION,
                "external-doc-url": "https://docs.aws.amazon.com/AmazonS3/latest/userguide/mpuoverview.html",
                "tags": ["aws", "software"],
            }
        ],
        "operators": [
            {
                "integration-name": _INTEGRATION,
                "python-modules": [
                    "airflow_s3commit.operators.setup",
                    "airflow_s3commit.operators.spark_submit",
                    "airflow_s3commit.operators.collect",
                    "airflow_s3commit.operators.audit",
                    "airflow_s3commit.operators.resolve",
                    "airflow_s3commit.operators.commit",
                    "airflow_s3commit.operators.abort",
                    "airflow_s3commit.operators.sweep",
                ],
            }
        ],
        "sensors": [
            {
                "integration-name": _INTEGRATION,
                "python-modules": ["airflow_s3commit.sensors.success_manifest"],
            }
        ],
        "hooks": [
            {"integration-name": _INTEGRATION, "python-modules": ["airflow_s3commit.hooks.s3_commit"]},
        ],
        "triggers": [
            {
                "integration-name": _INTEGRATION,
                "python-modules": ["airflow_s3commit.triggers.success_manifest"],
            }
        ],
        "notifications": ["airflow_s3commit.notifications.abort_uploads.AbortUploadsNotifier"],
        "extra-links": ["airflow_s3commit.links.manifest.ManifestLink"],
    }

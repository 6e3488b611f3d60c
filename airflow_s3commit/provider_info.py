"""The provider entry point that Airflow's providers manager reads.

Imports nothing: every Airflow process loads it while Airflow itself is being imported.
"""

from __future__ import annotations

__all__ = ["get_provider_info"]

_INTEGRATION = "S3 Commit"

#: The section ``[s3commit]``, which `airflow_s3commit.settings` and the page in the UI read.
_OPTIONS: dict[str, dict[str, str | None]] = {
    "aws_conn_id": {
        "description": "The default aws connection of operators, sensors and notifiers.",
        "version_added": "0.1.0",
        "type": "string",
        "example": "lake",
        "default": "aws_default",
    },
    "poke_interval": {
        "description": "Seconds between two searches of a sensor or trigger that waits for a manifest.",
        "version_added": "0.1.0",
        "type": "float",
        "example": "30",
        "default": "60",
    },
    "sweep_age_days": {
        "description": "Days without activity after which the sweep operator treats a job as dead. Set it"
        " longer than any job runs, and than any audit waits for a human.",
        "version_added": "0.1.0",
        "type": "float",
        "example": "14",
        "default": "7",
    },
    "destinations": {
        "description": "The destinations that the page S3 commits shows: URIs separated by whitespace or"
        " commas, or a JSON list of URIs or of objects with destination, aws_conn_id and staging.",
        "version_added": "0.1.0",
        "type": "string",
        "example": "s3://lake/flights/, s3://lake/weather/",
        "default": "",
    },
    "registry": {
        "description": "A prefix for the registry: one small object for each destination, written by the "
        "setup of its first job. The page and sweeps then know every destination. Empty: no registry.",
        "version_added": "0.1.0",
        "type": "string",
        "example": "s3://lake-ops/s3commit/",
        "default": "",
    },
    "registry_conn_id": {
        "description": "The aws connection of the registry's store. Empty: aws_conn_id of this section.",
        "version_added": "0.1.0",
        "type": "string",
        "example": "lake",
        "default": "",
    },
}


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
                    "airflow_s3commit.operators.seal",
                    "airflow_s3commit.operators.commit",
                    "airflow_s3commit.operators.abort",
                    "airflow_s3commit.operators.tables",
                ],
            }
        ],
        "sensors": [{"integration-name": _INTEGRATION, "python-modules": ["airflow_s3commit.sensors"]}],
        "hooks": [{"integration-name": _INTEGRATION, "python-modules": ["airflow_s3commit.hooks"]}],
        "triggers": [{"integration-name": _INTEGRATION, "python-modules": ["airflow_s3commit.triggers"]}],
        "notifications": ["airflow_s3commit.notifications.AbortUploadsNotifier"],
        "extra-links": [
            "airflow_s3commit.links.ManifestLink",
            "airflow_s3commit.links.PendingsetsLink",
        ],
        "cli": ["airflow_s3commit.airflow_commands.get_cli_commands"],
        "config": {"s3commit": {"description": "Commits to S3 without renames.", "options": _OPTIONS}},
    }

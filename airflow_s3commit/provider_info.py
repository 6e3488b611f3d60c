"""The provider entry point that Airflow's providers manager reads.

Imports nothing: every Airflow process loads it while Airflow itself is being imported.
"""

from __future__ import annotations

__all__ = ["get_provider_info"]

_INTEGRATION = "S3 Commit"


def _option(description: str, example: str, default: str = "", kind: str = "string") -> dict[str, str]:
    about = {"description": description, "version_added": "0.1.0", "type": kind}
    return {**about, "example": example, "default": default}


#: The section ``[s3commit]``, which `airflow_s3commit.settings` and the page in the UI read.
_OPTIONS = {
    "aws_conn_id": _option(
        "The default aws connection of operators, sensors and notifiers.", "lake", "aws_default"
    ),
    "poke_interval": _option(
        "Seconds between two searches of a sensor or trigger that waits for a manifest.", "30", "60", "float"
    ),
    "sweep_age_days": _option(
        "Days without activity after which the sweep operator treats a job as dead. Set it longer than any"
        " job runs, and than any audit waits for a human.",
        "14",
        "7",
        "float",
    ),
    "destinations": _option(
        "The destinations that the page S3 commits shows: URIs separated by whitespace or commas, or a JSON"
        " list of URIs or of objects with destination, aws_conn_id and staging.",
        "s3://lake/flights/, s3://lake/weather/",
    ),
    "registry": _option(
        "A prefix for the registry: one small object for each destination, written by the setup of its first"
        " job. The page and sweeps then know every destination. Empty: no registry.",
        "s3://lake-ops/s3commit/",
    ),
    "registry_conn_id": _option(
        "The aws connection of the registry's store. Empty: aws_conn_id of this section.", "lake"
    ),
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
        "extra-links": ["airflow_s3commit.links.ManifestLink", "airflow_s3commit.links.PendingsetsLink"],
        "cli": ["airflow_s3commit.airflow_commands.get_cli_commands"],
        "config": {"s3commit": {"description": "Commits to S3 without renames.", "options": _OPTIONS}},
    }

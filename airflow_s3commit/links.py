"""Links from a task in Airflow's UI to its manifest and to its job."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from airflow.sdk import BaseOperator, BaseOperatorLink

from airflow_s3commit.settings import api_base_url, page_destinations

if TYPE_CHECKING:
    from airflow.sdk.types import TaskInstanceKey

__all__ = ["ManifestLink", "PendingsetsLink"]

#: The domain of the S3 console by the beginning of a region's name; other regions have the first one.
_CONSOLES = {
    "": "aws.amazon.com",
    "cn-": "amazonaws.cn",
    "us-gov-": "amazonaws-us-gov.com",
    "eusc-": "amazonaws-eusc.eu",
}


class ManifestLink(BaseOperatorLink):
    """Opens the manifest that a commit wrote, or that a sensor found, in the S3 console of its partition.

    On a store other than AWS it opens the tab of the run on the page of the plugin, if
    ``[s3commit] destinations`` is set: a browser has no credentials for the object itself. Airflow makes
    the link in the worker, when the task has ended. A task without a manifest has no link.
    """

    name = "Commit manifest"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the URL; empty if there is none."""
        uri, address = getattr(operator, "manifest_uri", None), getattr(operator, "address", None)
        if not uri or address is None:
            return ""
        if address.endpoint_url is not None:
            return run_url(ti_key)
        return console_url(uri, address.region or os.environ.get("AWS_DEFAULT_REGION"))


class PendingsetsLink(BaseOperatorLink):
    """Opens the job of a stage, on the tab of the run, if ``[s3commit] destinations`` is set.

    The tab shows the stages with their seals until the job ends, which deletes the seals.
    """

    name = "Sealed pendingsets"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the URL; empty if the task sealed nothing, or the page is not configured."""
        return run_url(ti_key) if getattr(operator, "seal_uri", None) else ""


def console_url(uri: str, region: str | None = None) -> str:
    """Return the URL of an object's page in the S3 console of the region's AWS partition."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    prefix = next((each for each in _CONSOLES if each and (region or "").startswith(each)), "")
    query = {"prefix": key} if region is None else {"region": region, "prefix": key}
    return f"https://console.{_CONSOLES[prefix]}/s3/object/{bucket}?{urlencode(query)}"


def run_url(ti_key: TaskInstanceKey) -> str:
    """Return the URL of the page with the jobs of a run; empty if the page shows no destinations."""
    if not page_destinations():
        return ""
    query = urlencode({"dag_id": ti_key.dag_id, "run_id": ti_key.run_id})
    return f"{api_base_url().rstrip('/')}/s3commit/run?{query}"

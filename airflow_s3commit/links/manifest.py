"""The link to a job's manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

__all__ = ["ManifestLink", "object_url"]


class ManifestLink(BaseOperatorLink):
    """Opens the manifest that a commit wrote, or that a sensor met.

    Airflow asks for the link in the worker, when the task has ended; a task that left no manifest has none.
    """

    @property
    def name(self) -> str:
        """The button's text."""
        return "Commit manifest"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002 - Airflow's shape
        """Return the URL of the manifest's page in the S3 console, or at the store's own endpoint.

        :param operator: The task's operator, after it ran.
        :param ti_key: Which task instance it was.
        """
        manifest = getattr(operator, "manifest_uri", None)
        if not manifest:
            return ""
        return object_url(manifest, getattr(operator, "endpoint_url", None))


def object_url(uri: str, endpoint_url: str | None = None) -> str:
    """Return a URL under which a browser finds an object.

    :param uri: The object, as ``s3://bucket/key``.
    :param endpoint_url: The store's endpoint; None means AWS, whose console is linked.
    """
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    if endpoint_url:
        return f"{endpoint_url.rstrip('/')}/{bucket}/{quote(key)}"
    return f"https://console.aws.amazon.com/s3/object/{bucket}?{urlencode({'prefix': key})}"

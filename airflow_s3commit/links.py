"""Links from a task in Airflow's UI to the objects it left on S3."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar
from urllib.parse import quote, urlencode

from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

__all__ = ["ManifestLink", "PendingsetsLink"]

#: Lets the import system ask for modules below this one, which earlier releases had.
__path__: list[str] = []


class LinkToStoredObject(BaseOperatorLink):
    """Opens an object on the store.

    Airflow asks for the link in the worker, when the task has ended. A task without the object has no link.
    """

    #: The operator's attribute with the object's URI, once it is known.
    uri_attribute: ClassVar[str]

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002 - Airflow's shape
        """Return the URL of its page in the S3 console, or its URL at the store's own endpoint.

        :param operator: The task's operator, after it ran.
        :param ti_key: Which task instance it was.
        """
        uri = getattr(operator, self.uri_attribute, None)
        return object_url(uri, getattr(operator, "endpoint_url", None)) if uri else ""


class ManifestLink(LinkToStoredObject):
    """Opens the manifest that a commit wrote, or that a sensor found."""

    uri_attribute = "manifest_uri"

    @property
    def name(self) -> str:
        """The button's text."""
        return "Commit manifest"


class PendingsetsLink(LinkToStoredObject):
    """Opens the seal of a stage, or of the job, which names the pendingsets that count.

    The seal is deleted with the job's other records when the job has ended.
    """

    uri_attribute = "seal_uri"

    @property
    def name(self) -> str:
        """The button's text."""
        return "Sealed pendingsets"


def object_url(uri: str, endpoint_url: str | None = None) -> str:
    """Return a URL under which a browser finds an object.

    :param uri: The object, as ``s3://bucket/key``.
    :param endpoint_url: The store's endpoint; None means AWS, whose console is linked.
    """
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    if endpoint_url:
        return f"{endpoint_url.rstrip('/')}/{bucket}/{quote(key)}"
    return f"https://console.aws.amazon.com/s3/object/{bucket}?{urlencode({'prefix': key})}"

"""What the links have in common: an object that the task's operator names, and where a browser finds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar
from urllib.parse import quote, urlencode

from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

__all__ = ["LinkToStoredObject", "object_url"]


class LinkToStoredObject(BaseOperatorLink):
    """Opens an object on the store.

    Airflow asks for the link in the worker, when the task has ended; a task that left none has no link.
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


def object_url(uri: str, endpoint_url: str | None = None) -> str:
    """Return a URL under which a browser finds an object.

    :param uri: The object, as ``s3://bucket/key``.
    :param endpoint_url: The store's endpoint; None means AWS, whose console is linked.
    """
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    if endpoint_url:
        return f"{endpoint_url.rstrip('/')}/{bucket}/{quote(key)}"
    return f"https://console.aws.amazon.com/s3/object/{bucket}?{urlencode({'prefix': key})}"

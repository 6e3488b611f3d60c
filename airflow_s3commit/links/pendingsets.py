"""The link to what stages have sealed: which pendingsets count."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseOperatorLink

from airflow_s3commit.links.manifest import object_url

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

__all__ = ["PendingsetsLink"]


class PendingsetsLink(BaseOperatorLink):
    """Opens the seal that a stage, or the job, was given: it names the pendingsets that count.

    The seal is removed with the job's other records when the job has ended.
    """

    @property
    def name(self) -> str:
        """The button's text."""
        return "Sealed pendingsets"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002 - Airflow's shape
        """Return the URL of the seal's page in the S3 console, or at the store's own endpoint.

        :param operator: The task's operator, after it ran.
        :param ti_key: Which task instance it was.
        """
        seal = getattr(operator, "seal_uri", None)
        return object_url(seal, getattr(operator, "endpoint_url", None)) if seal else ""

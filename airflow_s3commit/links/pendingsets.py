"""The link to what stages have sealed: which pendingsets count."""

from __future__ import annotations

from airflow_s3commit.links.stored_object import LinkToStoredObject

__all__ = ["PendingsetsLink"]


class PendingsetsLink(LinkToStoredObject):
    """Opens the seal that a stage, or the job, was given: it names the pendingsets that count.

    The seal is removed with the job's other records when the job has ended.
    """

    uri_attribute = "seal_uri"

    @property
    def name(self) -> str:
        """The button's text."""
        return "Sealed pendingsets"

"""The link to a job's manifest."""

from __future__ import annotations

from airflow_s3commit.links.stored_object import LinkToStoredObject

__all__ = ["ManifestLink"]


class ManifestLink(LinkToStoredObject):
    """Opens the manifest that a commit wrote, or that a sensor met."""

    uri_attribute = "manifest_uri"

    @property
    def name(self) -> str:
        """The button's text."""
        return "Commit manifest"

"""The record of a destination in a registry, the list of destinations below a prefix."""

from __future__ import annotations

from fnmatch import fnmatchcase

from airflow_s3commit.protocol.model.codec import Versioned
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.digest import text_digest
from airflow_s3commit.protocol.model.limits import Line, Text


class RegisteredDestination(Versioned, frozen=True, kw_only=True):
    """``<registry><digest>.json``: a destination, and how its jobs reach it.

    Every writer writes the same bytes. It says where to look and not what is there, so nothing is destroyed
    because of it.

    Attributes:
        version: Always 1.
        destination: URI of the destination.
        aws_conn_id: Airflow's connection of the destination's store; None outside Airflow, or for boto3's
            default credentials.
        staging: URI of the root of the jobs' staging; None if it is the destination.

    """

    destination: Text
    aws_conn_id: Line | None = None
    staging: Line | None = None

    @property
    def name(self) -> str:
        """The file name: a digest of the fields, so that a changed or copied record shows."""
        fields = (self.destination, self.aws_conn_id or "", self.staging or "")
        return text_digest("\0".join(fields)).hex() + ".json"

    @property
    def place(self) -> Destination:
        """The destination."""
        return Destination.parse(self.destination)

    @property
    def staging_root(self) -> Destination | None:
        """The root of the jobs' staging; None if it is the destination."""
        return Destination.parse(self.staging) if self.staging is not None else None


def matches(uri: str, pattern: str) -> bool:
    """Return whether the URI of a destination matches a pattern, in which ``*`` matches slashes too.

    Args:
        uri: The URI of a destination.
        pattern: The pattern, with or without a slash at its end.

    """
    return fnmatchcase(uri, pattern) or fnmatchcase(uri.rstrip("/"), pattern)

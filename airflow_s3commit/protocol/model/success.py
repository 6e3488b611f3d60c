"""The ``_SUCCESS`` manifest in the format of Hadoop's S3A committers (``SuccessData/1``)."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol.model.codec import decode
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.layout import SUCCESS, Layout
from airflow_s3commit.protocol.model.limits import Integer, Line, Milliseconds, Prose
from airflow_s3commit.protocol.model.pendingset import IOStatistics

#: The format's name, which distinguishes it from the empty marker of the classic committer.
SUCCESS_NAME = "org.apache.hadoop.fs.s3a.commit.files.SuccessData/1"

#: ``_SUCCESS`` lists no more names than this (Hadoop's limit); the full manifest lists all.
MAX_FILENAMES = 100

#: The entries of ``diagnostics`` that hold the URI of the full manifest, the number of the commit's entry in
#: the log, and what makes each marker unlike all others, so that its ETag never returns.
MANIFEST_DIAGNOSTIC = "s3commit.manifest"
GENERATION_DIAGNOSTIC = "s3commit.generation"
NONCE_DIAGNOSTIC = "s3commit.nonce"

#: Longer than the digits of any number that fits into 64 bits.
_NUMBER_CHARACTERS = 20


class SuccessData(Struct, frozen=True, kw_only=True):
    """Contents of ``_SUCCESS``: the last job committed to a destination.

    Attributes:
        name: The format's name.
        success: True.
        timestamp: When it was written, in milliseconds since the epoch.
        date: The same, for people.
        hostname: Where the commit ran.
        committer: ``magic``, ``directory`` or ``partitioned``.
        description: Summary of the job, for people.
        jobId: The job's id.
        jobIdSource: Program that chose the id.
        metrics: Counts and durations.
        diagnostics: Free text by name; ours has the manifest's URI.
        filenames: Up to 100 keys, with a leading ``/``.
        state: Unused; for Hadoop's manifest committer.
        stage: Unused; for Hadoop's manifest committer.
        iostatistics: Counters under Hadoop's statistic names.

    """

    name: Annotated[str, Meta(pattern="^" + SUCCESS_NAME.replace(".", r"\.") + r"\Z")]
    success: bool = True
    timestamp: Milliseconds = 0
    date: Line | None = ""
    hostname: Line | None = ""
    committer: Line | None = ""
    description: Prose | None = ""
    jobId: Line | None = ""  # noqa: N815 - Hadoop's name
    jobIdSource: Line | None = ""  # noqa: N815 - Hadoop's name
    metrics: dict[Line, Integer] = field(default_factory=dict)
    diagnostics: dict[Line, Prose] = field(default_factory=dict)
    filenames: list[Line] = field(default_factory=list)
    state: Line | None = None
    stage: Line | None = None
    iostatistics: IOStatistics | None = None

    @property
    def generation(self) -> int | None:
        """Number of the commit's entry in the log; None in markers of older versions and other programs."""
        text = self.diagnostics.get(GENERATION_DIAGNOSTIC, "")
        return int(text) if len(text) < _NUMBER_CHARACTERS and text.isascii() and text.isdigit() else None

    @property
    def manifest_uri(self) -> str | None:
        """URI of the full manifest, if this package wrote the marker."""
        return self.diagnostics.get(MANIFEST_DIAGNOSTIC)


def older_job(body: bytes, destination: Destination) -> str | None:
    """Return the job that a ``_SUCCESS`` names which a version without a log wrote here; None for any other.

    Args:
        body: The marker.
        destination: Where it was found. A copied marker names the manifest of another place.

    """
    try:
        success = decode(SuccessData, body, SUCCESS)
        layout = Layout.of(destination, success.jobId or "")
    except InvalidRecord:
        return None
    is_here = success.manifest_uri == join_uri(destination.bucket, layout.manifest)
    return layout.job_id if is_here and success.generation is None else None

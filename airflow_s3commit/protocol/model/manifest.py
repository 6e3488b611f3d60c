"""The manifest, which lists the files that a job committed, and ``_SUCCESS``, its short form for Hadoop."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field
from msgspec.structs import force_setattr

from airflow_s3commit.protocol.model.codec import (
    Count,
    Generation,
    Integer,
    JobOwned,
    Line,
    Milliseconds,
    Prose,
    Schemas,
    Text,
)
from airflow_s3commit.protocol.model.job import Committer, ConflictMode
from airflow_s3commit.protocol.model.pendingset import IOStatistics
from airflow_s3commit.protocol.model.sealed_job import Counts
from airflow_s3commit.protocol.model.statistics import KnownColumns

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


class FileEntry(Struct, frozen=True, kw_only=True):
    """One committed file, a line of the manifest's list.

    Attributes:
        key: Its key in the destination's bucket.
        size: Its bytes.
        etag: The multipart ETag computed from its parts; empty where parts' ETags are not MD5 sums.
        rows: Its rows, where counted.
        partition: Its directory below the destination, ``""`` for the root.
        upload: Our id of the upload, which the object carries as metadata.
        statistics: What the writer knows of each column.

    """

    key: Text
    size: Count
    etag: Line
    rows: Count | None = None
    partition: Line
    upload: Line = ""
    statistics: KnownColumns | None = None


class ManifestRecord(JobOwned, frozen=True, kw_only=True):
    """``_s3commit/manifests/<job id>.json``: what a job committed, and the proof that it did.

    Attributes:
        version: Always 1.
        job_id: The job.
        destination: URI of its destination.
        staging: URI of its staging.
        committer: Its committer.
        conflict_mode: Its conflict mode.
        committed: Commit time, in milliseconds since the epoch by the committing machine's clock.
        counts: Files, bytes and rows committed.
        partitions: The same by partition directory.
        replaced: Files and bytes replaced; their rows are unknown.
        files: URI of the list of files: `FileEntry` records, one a line. If the list is within, the URI of
            the manifest itself: a version that looks for an object refuses it.
        files_sha256: SHA-256 of that list, in hexadecimal: of its lines, each with a line feed.
        within: The lines themselves, if they are short; not there if the list is an object.
        schemas: The schemas of the files, as base64 of Arrow's encoding; empty if they are unknown.
        context: The job's context (DAG, run, partition).
        metrics: Durations in milliseconds and counts of requests.
        generation: Number of the commit's entry in the log.
        tasks: How many task attempts count; None in manifests that no job wrote.
        rolled_back_to: Of a rollback of the table, the generation; 0 for a job.
        nonce: Unique to each write.

    """

    committer: Committer
    conflict_mode: ConflictMode
    committed: Milliseconds
    counts: Counts
    partitions: dict[Line, Counts]
    replaced: Counts
    files: Text
    files_sha256: Text
    within: list[Raw] | UnsetType = UNSET
    schemas: Schemas = field(default_factory=list)
    context: dict[Line, Prose] = field(default_factory=dict)
    metrics: dict[Line, Integer] = field(default_factory=dict)
    generation: Generation = 0
    tasks: Count | None = None
    rolled_back_to: Generation = 0
    nonce: Text

    def __post_init__(self) -> None:
        """Let go of the bytes that a list within was decoded from."""
        super().__post_init__()
        if self.within is not UNSET:
            force_setattr(self, "within", [line.copy() for line in self.within])

    @property
    def listed(self) -> bytes | None:
        """The list of files, if it is within; None if it is an object."""
        return None if self.within is UNSET else b"".join(bytes(line) + b"\n" for line in self.within)

    @property
    def mode(self) -> str:
        """The conflict mode, for people; of a rollback the generation that it led back to."""
        return f"rollback to {self.rolled_back_to}" if self.rolled_back_to else self.conflict_mode

    def to_dict(self) -> dict[str, Any]:
        """Return the totals as plain values, small enough for XCom: partitions are only counted."""
        return {
            "job_id": self.job_id,
            "destination": self.destination,
            "conflict_mode": self.conflict_mode,
            "committed": self.committed,
            "files": self.counts.files,
            "bytes": self.counts.bytes,
            "rows": self.counts.rows,
            "partitions": len(self.partitions),
            "replaced_files": self.replaced.files,
        }


class SuccessData(Struct, frozen=True, kw_only=True):
    """Contents of ``_SUCCESS``, in the format of Hadoop's S3A committers: the last job committed here.

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
        """Number of the commit's entry in the log; None in markers of other programs."""
        text = self.diagnostics.get(GENERATION_DIAGNOSTIC, "")
        return int(text) if len(text) < _NUMBER_CHARACTERS and text.isascii() and text.isdigit() else None

    @property
    def manifest_uri(self) -> str | None:
        """URI of the full manifest, if this package wrote the marker."""
        return self.diagnostics.get(MANIFEST_DIAGNOSTIC)

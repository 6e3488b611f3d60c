"""The manifest: the files that a job committed."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from airflow_s3commit.protocol.model.codec import JobOwned
from airflow_s3commit.protocol.model.job import Committer, ConflictMode, LostFiles
from airflow_s3commit.protocol.model.limits import (
    Count,
    Generation,
    Integer,
    Line,
    Milliseconds,
    Prose,
    Schemas,
    Text,
)
from airflow_s3commit.protocol.model.seal import Counts
from airflow_s3commit.protocol.model.statistics import KnownColumns


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
        staging: URI of its staging; None in manifests of older versions.
        committer: Its committer.
        conflict_mode: Its conflict mode.
        committed: Commit time, in milliseconds since the epoch by the committing machine's clock.
        counts: Files, bytes and rows committed.
        partitions: The same by partition directory.
        replaced: Files and bytes replaced; their rows are unknown.
        files: URI of the list of files: `FileEntry` records, one a line.
        files_sha256: SHA-256 of that list, in hexadecimal.
        schemas: The schemas of the files, as base64 of Arrow's encoding; empty if they are unknown.
        context: The job's context (DAG, run, partition).
        metrics: Durations in milliseconds and counts of requests.
        generation: Number of the commit's entry in the log; 0 in manifests of older versions.
        tasks: How many task attempts count; None in manifests of older versions.
        rolled_back_to: Of a rollback of the table, the generation; 0 for a job.
        lost: Set if the job is lost, not committed: files that are missing, and not in ``files``.
        nonce: Unique to each write.
        signature: By the committer's key, where jobs are signed.

    """

    destination: Text
    committer: Committer
    conflict_mode: ConflictMode
    committed: Milliseconds
    counts: Counts
    partitions: dict[Line, Counts]
    replaced: Counts
    files: Text
    files_sha256: Text
    schemas: Schemas = field(default_factory=list)
    context: dict[Line, Prose] = field(default_factory=dict)
    metrics: dict[Line, Integer] = field(default_factory=dict)
    generation: Generation = 0
    tasks: Count | None = None
    rolled_back_to: Generation = 0
    lost: LostFiles | None = None
    nonce: Text
    signature: Text | None = None

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

"""What a job committed: its manifest, its files, and ``_SUCCESS``, the short form that Hadoop knows."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Raw, Struct, field

from airflow_s3commit.protocol.model.codec import Count, Integer, Line, Milliseconds, Prose, Text
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.layout import OLDER_DATA, receipt_key
from airflow_s3commit.protocol.model.pendingset import IOStatistics
from airflow_s3commit.protocol.model.sealed_job import Counts, KnownColumns
from airflow_s3commit.protocol.model.table import Entry, Source

#: The format's name, which distinguishes it from the empty marker of the classic committer.
SUCCESS_NAME = "org.apache.hadoop.fs.s3a.commit.files.SuccessData/1"

#: ``_SUCCESS`` lists no more names than this (Hadoop's limit); the full manifest lists all.
MAX_FILENAMES = 100

#: The entries of ``diagnostics`` that hold the URI of the job's receipt, the number of the commit's entry in
#: the log, and a nonce that makes each marker unique, so that its ETag never recurs.
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


class Manifest(Struct, frozen=True, kw_only=True):
    """What a job committed: its entry in the log, as readers, sensors and audits use it.

    Attributes:
        job_id: The job.
        destination: URI of its destination.
        conflict_mode: Its conflict mode; ``rollback`` for a rollback of the table.
        committed: Commit time, in milliseconds since the epoch by the committing machine's clock.
        counts: Totals of what it wrote.
        partitions: Totals by partition, in directories below the destination.
        replaced: Files and bytes that it replaced; their rows are unknown.
        files_sha256: SHA-256 of the list of files, in hexadecimal: of its lines, each with a line feed.
        within: The lines themselves, if they are short; None if the list is an object.
        schemas: The schemas of the files, as base64 of Arrow's encoding; empty if they are unknown.
        context: The job's context (DAG, run, partition).
        metrics: Durations in milliseconds and counts of requests.
        generation: Number of the commit's entry in the log.
        tasks: How many task attempts count.
        rolled_back_to: For a rollback of the table, the generation; 0 for a job.
        delta_version: Its version as a Delta table; None if the table is not published.
    """

    job_id: str
    destination: str
    conflict_mode: str
    committed: int
    counts: Counts
    partitions: dict[str, Counts]
    replaced: Counts
    files_sha256: str
    within: list[Raw] | None
    schemas: list[str]
    context: dict[str, str]
    metrics: dict[str, int]
    generation: int
    tasks: int
    rolled_back_to: int
    delta_version: int | None = None

    @classmethod
    def of(cls, entry: Entry) -> Manifest:
        """Return the manifest of a ``commit`` entry; any other entry is a `ValueError`."""
        commit = entry.commit
        if commit is None:
            raise ValueError(f"entry {entry.number} of {entry.destination} is no commit")
        return cls(
            job_id=entry.job_id or OLDER_DATA,
            destination=entry.destination,
            conflict_mode=commit.mode,
            committed=entry.since,
            counts=commit.counts,
            partitions=commit.partitions,
            replaced=commit.replaced,
            files_sha256=commit.files_sha256,
            within=None if commit.within is UNSET else commit.within,
            schemas=commit.schemas,
            context=entry.context,
            metrics=commit.metrics,
            generation=entry.number,
            tasks=commit.tasks,
            rolled_back_to=commit.rolled_back_to,
            delta_version=entry.delta_version,
        )

    @property
    def is_of_job(self) -> bool:
        """Whether a job or a rollback committed it; otherwise it lists data that is older than the log."""
        return self.job_id != OLDER_DATA

    @property
    def mode(self) -> str:
        """The conflict mode, for people; for a rollback, the generation that it went back to."""
        return f"rollback to {self.rolled_back_to}" if self.rolled_back_to else self.conflict_mode

    @property
    def uri(self) -> str:
        """URI of the job's receipt, which has the same facts; empty for data that is older than the log."""
        if not self.is_of_job:
            return ""
        home = Destination.parse(self.destination)
        return join_uri(home.bucket, receipt_key(home, self.job_id))

    @property
    def source(self) -> Source:
        """The commit, as the table knows it; this is enough to read its list of files."""
        return Source(
            self.generation,
            self.job_id if self.is_of_job else None,
            self.files_sha256,
            self.within is not None,
            self.partitions,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return URI and totals as plain values, small enough for XCom: partitions are only counted."""
        return {
            "manifest": self.uri,
            "job_id": self.job_id,
            "destination": self.destination,
            "generation": self.generation,
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
        timestamp: When it was written, in milliseconds since the epoch.
        committer: ``magic``, ``directory`` or ``partitioned``.
        description: Summary of the job, for people.
        jobIdSource: Program that chose the id.
        diagnostics: Free text by name; ours has the URI of the job's receipt.
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
        """URI of the job's receipt, if this package wrote the marker."""
        return self.diagnostics.get(MANIFEST_DIAGNOSTIC)

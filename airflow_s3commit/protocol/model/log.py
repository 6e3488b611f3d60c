"""Entries of a destination's log of commits."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from airflow_s3commit.protocol.model.codec import JobOwned
from airflow_s3commit.protocol.model.job import AbortedRecord
from airflow_s3commit.protocol.model.limits import Generation, Text
from airflow_s3commit.protocol.model.manifest import ManifestRecord

EntryKind: TypeAlias = Literal["commit", "abandon"]
Removal: TypeAlias = Literal["nothing", "partitions", "everything"]


class PlanName(Struct, frozen=True, kw_only=True):
    """Id and ETag of a plan."""

    plan_id: Text
    etag: Text


class LogEntry(JobOwned, frozen=True, kw_only=True):
    """``_s3commit/log/<number>.json``: the end of one job. Created if absent, never changed or deleted.

    The numbers are consecutive: whoever creates an entry has read all before it. The log alone decides
    whether a job is committed, and in which order jobs were.

    Attributes:
        version: Always 1.
        job_id: The job.
        destination: URI of its destination. In a copy of the log it names the original: not this history.
        staging: URI of its staging.
        number: Number of the entry, from 1; the generation of a commit.
        kind: ``commit``: the job is committed. ``abandon``: it never will be.
        manifest: The manifest of a commit; its copy below ``manifests/`` is derived.
        removes: What a commit removes from the table before it adds its files: ``nothing``, all files of the
            ``partitions`` that its manifest names, or ``everything``.
        plan: The plan of a commit that replaces objects, in its staging: they may be deleted from now on.
        aborted: The record of an abandoned job; its copy below ``aborted/`` is derived.
        nonce: Unique to each write.
        signature: By the committer's key, where jobs are signed.

    Raises:
        ValueError: The kind and the fields do not fit, or another job's manifest is in it.

    """

    destination: Text
    number: Generation
    kind: EntryKind
    manifest: ManifestRecord | None = None
    removes: Removal = "nothing"
    plan: PlanName | None = None
    aborted: AbortedRecord | None = None
    nonce: Text
    signature: Text | None = None

    def __post_init__(self) -> None:
        """Check that the fields fit the kind."""
        super().__post_init__()
        ending = self.manifest if self.kind == "commit" else self.aborted
        if ending is None or (self.manifest is not None) == (self.aborted is not None):
            raise ValueError(f"an entry of kind {self.kind} needs its own record and no other")
        if (ending.job_id, ending.destination) != (self.job_id, self.destination):
            raise ValueError("the entry and the record in it are of different jobs")

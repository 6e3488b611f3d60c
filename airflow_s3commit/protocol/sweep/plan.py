"""The plan of a sweep: what to remove, each thing with its reason."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from airflow_s3commit.protocol.model.job import State

#: What S3 Standard costs in us-east-1 for the first 50 TB, in US dollars for a GB and month; the parts of
#: pending uploads are billed like objects. Source: AWS's public price list, https://aws.amazon.com/s3/pricing/
USD_PER_GB_MONTH = 0.023

_GB = 1024**3

#: ``finish``: finish the commit. ``abort``: abort the job. ``discard``: abort the uploads that the staging
#: of an unknown job names, and remove it.
Action: TypeAlias = Literal["finish", "abort", "discard"]


def monthly_cost(stored: int) -> float:
    """Return the cost of storing bytes for a month, in US dollars, at `USD_PER_GB_MONTH`."""
    return stored / _GB * USD_PER_GB_MONTH


class OrphanUpload(Struct, frozen=True, kw_only=True):
    """A pending upload that no job claims.

    ``initiated`` is in seconds since the epoch, ``age`` in seconds, both by the store's clock.
    """

    key: str
    upload_id: str
    initiated: float
    age: float
    bytes: int
    reason: str


class DeadJob(Struct, frozen=True, kw_only=True):
    """A dead job, to be ended and removed with its uploads.

    Attributes:
        job_id: The job, by its staging's name.
        staging: URI of the staging.
        action: What to do.
        state: The state it was left in; None if it has none.
        state_etag: ETag of that state's record; another one means that the job was moved on.
        silent: Seconds since its last activity.
        uploads: Pending uploads that its keys or records claim.
        bytes: Their bytes.
        reason: Why it is dead.

    """

    job_id: str
    staging: str
    action: Action
    state: State | None
    state_etag: str | None
    silent: float
    uploads: int = 0
    bytes: int = 0
    reason: str


class LapsedLock(Struct, frozen=True, kw_only=True):
    """A lapsed commit lock whose job is gone. ``age`` is in seconds."""

    uri: str
    etag: str
    job_id: str
    staging: str
    age: float


class SpentId(Struct, frozen=True, kw_only=True):
    """The record of an abort, of a job that has nothing left. ``age`` is in seconds."""

    job_id: str
    uri: str
    etag: str
    age: float


class LeftAlone(Struct, frozen=True, kw_only=True):
    """Something that a sweep leaves, and why."""

    what: str
    reason: str


class SweepPlan(Struct, frozen=True, kw_only=True):
    """Everything that a sweep would remove.

    Attributes:
        destination: URI of the destination.
        staging_root: URI of another directory with staging, if given.
        older_than: Seconds without activity after which a job is dead, and minimum age of an orphan.
        now: The store's time at the plan, in seconds since the epoch; None if there was nothing to decide.
        jobs: Jobs to end.
        uploads: Uploads to abort.
        lock: A lock to remove.
        spent: Records of aborted jobs to remove.
        left: What it leaves, and why; jobs to be recovered among them.

    """

    destination: str
    staging_root: str | None = None
    older_than: float
    now: float | None = None
    jobs: list[DeadJob] = []
    uploads: list[OrphanUpload] = []
    lock: LapsedLock | None = None
    spent: list[SpentId] = []
    left: list[LeftAlone] = []

    @property
    def pending(self) -> int:
        """How many pending uploads would be aborted."""
        return len(self.uploads) + sum(job.uploads for job in self.jobs)

    @property
    def bytes(self) -> int:
        """Bytes of these uploads, which are stored and billed."""
        return sum(upload.bytes for upload in self.uploads) + sum(job.bytes for job in self.jobs)

    @property
    def oldest(self) -> float:
        """Age of the oldest thing in the plan, in seconds."""
        ages = [upload.age for upload in self.uploads] + [job.silent for job in self.jobs]
        return max(ages, default=0.0)

    @property
    def monthly_cost(self) -> float:
        """Estimated cost of these bytes, in US dollars per month, at `USD_PER_GB_MONTH`."""
        return monthly_cost(self.bytes)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, totals included."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        totals = {
            "pending": self.pending,
            "bytes": self.bytes,
            "oldest": self.oldest,
            "monthly_cost_usd": self.monthly_cost,
        }
        return plain | totals

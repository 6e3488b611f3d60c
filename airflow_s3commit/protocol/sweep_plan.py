"""What a sweep would remove from a destination, as a value, with the reason for every single thing."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from airflow_s3commit.protocol.records import State

__all__ = [
    "USD_PER_GB_MONTH",
    "Action",
    "DeadJob",
    "LapsedLock",
    "LeftAlone",
    "OrphanUpload",
    "SpentId",
    "SweepPlan",
    "monthly_cost",
]

#: What S3 Standard costs in us-east-1 for the first 50 TB, in US dollars for a GB and month; the parts of
#: pending uploads are billed like objects. Source: AWS's public price list, https://aws.amazon.com/s3/pricing/
USD_PER_GB_MONTH = 0.023

_GB = 1024**3

#: ``finish``: do what is left of a commit. ``abort``: abort the job. ``discard``: abort what the remains of
#: an unknown job name, and remove them.
Action: TypeAlias = Literal["finish", "abort", "discard"]


def monthly_cost(stored: int) -> float:
    """Return what keeping bytes costs a month, in US dollars, at `USD_PER_GB_MONTH`."""
    return stored / _GB * USD_PER_GB_MONTH


class OrphanUpload(Struct, frozen=True, kw_only=True):
    """A pending upload that no job claims.

    It was ``initiated`` then, in seconds since the epoch, and has that ``age``, in seconds, by the store.
    """

    key: str
    upload_id: str
    initiated: float
    age: float
    bytes: int
    reason: str


class DeadJob(Struct, frozen=True, kw_only=True):
    """A job whose staging, and whose uploads with it, can go.

    Attributes:
        job_id: The job, by its staging's name.
        staging: URI of the staging.
        action: What to do.
        state: The state it was left in; None if it has none.
        state_etag: ETag of that state's record: if it is another by then, somebody moved the job on.
        silent: Seconds since its last sign of life.
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
    """A commit lock whose lease is over and whose job is gone. ``age`` is in seconds."""

    uri: str
    etag: str
    job_id: str
    staging: str
    age: float


class SpentId(Struct, frozen=True, kw_only=True):
    """The record that a job was aborted, of a job that has nothing left. ``age`` is in seconds."""

    job_id: str
    uri: str
    etag: str
    age: float


class LeftAlone(Struct, frozen=True, kw_only=True):
    """Something that a sweep looked at and leaves, and why."""

    what: str
    reason: str


class SweepPlan(Struct, frozen=True, kw_only=True):
    """Everything that a sweep would remove.

    Attributes:
        destination: URI of the destination.
        staging_root: URI of where else staging folders were looked for.
        older_than: Seconds of silence after which a job is taken for dead, and age of an orphan.
        now: The store's time that ages were counted from, in seconds since the epoch; None if there was
            nothing to judge.
        jobs: Jobs to bring to an end.
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
        """How many bytes are stored, and billed, in these uploads."""
        return sum(upload.bytes for upload in self.uploads) + sum(job.bytes for job in self.jobs)

    @property
    def oldest(self) -> float:
        """Age of the oldest thing in the plan, in seconds."""
        ages = [upload.age for upload in self.uploads] + [job.silent for job in self.jobs]
        return max(ages, default=0.0)

    @property
    def monthly_cost(self) -> float:
        """An estimate of what keeping these bytes costs, in US dollars a month, at `USD_PER_GB_MONTH`."""
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

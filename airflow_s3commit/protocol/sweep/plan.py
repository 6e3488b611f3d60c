"""The plan of a sweep: what to remove, and why."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

from msgspec import Struct

from airflow_s3commit._columns import Column, some
from airflow_s3commit._format import age, several, size
from airflow_s3commit.protocol.model.codec import Plain
from airflow_s3commit.protocol.model.job import State

#: Price of S3 Standard in us-east-1 for the first 50 TB, in US dollars per GB and month. Parts of pending
#: uploads are billed like objects. Source: AWS's public price list, https://aws.amazon.com/s3/pricing/
USD_PER_GB_MONTH = 0.023

_GB = 1024**3

#: ``finish``: finish the commit. ``abort``: abort the job, or finish its abort. ``discard``: remove what a
#: successful job of Hadoop left.
Action: TypeAlias = Literal["finish", "abort", "discard"]


def monthly_cost(stored: int) -> float:
    """Return the cost in US dollars of storing a number of bytes for a month, at `USD_PER_GB_MONTH`."""
    return stored / _GB * USD_PER_GB_MONTH


class OrphanUpload(Struct, frozen=True, kw_only=True):
    """A pending upload that no job claims.

    Attributes:
        key: Key of its object.
        upload_id: Its id.
        age: Seconds from its start to the plan.
        bytes: Size of its parts.
        reason: Why it is to be aborted.

    """

    key: str
    upload_id: str
    age: float
    bytes: int
    reason: str


class DeadJob(Struct, frozen=True, kw_only=True):
    """A dead job, to be ended and removed with its uploads.

    Attributes:
        job_id: The job.
        staging: URI of its staging.
        action: How to end it.
        state: How far it is; None if nothing says so.
        silent: Seconds since its last activity.
        uploads: Number of its pending uploads.
        bytes: Size of their parts.
        objects: Number of its published objects; known once it was ended.
        reason: Why it is to be ended.

    """

    job_id: str
    staging: str
    action: Action
    state: State | None
    silent: float
    uploads: int = 0
    bytes: int = 0
    objects: int = 0
    reason: str


class ReplacedFiles(Struct, frozen=True, kw_only=True):
    """Files that a commit replaced and retained, to be released and deleted.

    Attributes:
        generation: The commit that replaced them.
        files: How many they are.
        bytes: Their bytes, but for files of other programs.
        age: Seconds since that commit.
        retain: Seconds that it retains them.
        reason: Why they are to be deleted.

    """

    generation: int
    files: int
    bytes: int
    age: float = 0.0
    retain: int = 0
    reason: str

    @property
    def what(self) -> str:
        """Its name, for people."""
        return f"{several(self.files, 'file')} that generation {self.generation} replaced"


class LeftAlone(Struct, frozen=True, kw_only=True):
    """Something that a sweep does not remove.

    Attributes:
        what: Its name: a job, an upload or a URI.
        reason: Why the sweep leaves it.

    """

    what: str
    reason: str

    def __str__(self) -> str:
        """Return it in words."""
        return f"{self.what}: {self.reason}"


class Item(NamedTuple):
    """Something that a sweep would remove, of whatever kind: its name, and the fields of that kind."""

    what: str
    action: str
    silent: float
    uploads: int
    bytes: int
    reason: str


class SweepPlan(Plain, Struct, kw_only=True):
    """Everything that a sweep would remove.

    Attributes:
        destination: URI of the destination.
        staging_roots: URIs of other directories with stagings of its jobs, as given.
        older_than: Seconds without activity after which a job is dead, and minimum age of an orphan.
        now: The store's time at the plan, in seconds since the epoch; None if there was nothing to date.
        jobs: Jobs to end.
        uploads: Orphaned uploads to abort.
        replaced: Retained files to release and delete.
        left: What it leaves, and why.
        jobs_left: Number of jobs that it leaves.

    """

    derived = ("pending", "bytes", "oldest")
    columns = (
        Column("what", "what", folds=True),
        Column("action", "action"),
        Column("silent", "silent", age),
        Column("uploads", "uploads", some, room=90),
        Column("size", "bytes", size),
        Column("why", "reason", room=120, folds=True),
    )

    destination: str
    staging_roots: list[str] = []
    older_than: float
    now: float | None = None
    jobs: list[DeadJob] = []
    uploads: list[OrphanUpload] = []
    replaced: list[ReplacedFiles] = []
    left: list[LeftAlone] = []
    jobs_left: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to remove."""
        return not (self.jobs or self.uploads or self.replaced)

    @property
    def items(self) -> list[Item]:
        """Everything that it would remove."""
        items = [
            Item(f"job {job.job_id}", job.action, job.silent, job.uploads, job.bytes, job.reason)
            for job in self.jobs
        ]
        items += [Item(one.key, "discard", one.age, 1, one.bytes, one.reason) for one in self.uploads]
        return items + [Item(one.what, "delete", one.age, 0, one.bytes, one.reason) for one in self.replaced]

    @property
    def pending(self) -> int:
        """Number of pending uploads to abort: orphans, and those of the jobs to end."""
        return len(self.uploads) + sum(job.uploads for job in self.jobs)

    @property
    def bytes(self) -> int:
        """Size of the parts of these uploads, which are billed."""
        return sum(upload.bytes for upload in self.uploads) + sum(job.bytes for job in self.jobs)

    @property
    def oldest(self) -> float:
        """Age of the oldest orphan or job in the plan, in seconds; 0 if there is none."""
        ages = [upload.age for upload in self.uploads] + [job.silent for job in self.jobs]
        return max(ages, default=0.0)

    @property
    def monthly_cost(self) -> float:
        """Estimated cost of `bytes` in US dollars per month, at `USD_PER_GB_MONTH`."""
        return monthly_cost(self.bytes)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, with the totals."""
        return {**super().to_dict(), "monthly_cost_usd": self.monthly_cost}

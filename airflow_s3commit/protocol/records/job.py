"""What a job is and where it stands: options, reference, state, lock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct, field

from airflow_s3commit.exceptions import InvalidDestination, InvalidOption
from airflow_s3commit.protocol.destination import Destination
from airflow_s3commit.protocol.limits import (
    MAX_SHARDS,
    Attempt,
    Count,
    Lease,
    Line,
    Milliseconds,
    Prose,
    Text,
)
from airflow_s3commit.protocol.pendingset import PendingsetFormat
from airflow_s3commit.protocol.records.checked import Checked
from airflow_s3commit.protocol.records.codec import JobOwned, from_plain
from airflow_s3commit.protocol.records.object_options import ObjectOptions

__all__ = [
    "AbortReport",
    "AbortedRecord",
    "Committer",
    "ConflictMode",
    "JobOptions",
    "JobRecord",
    "JobReference",
    "LockRecord",
    "ReplaceOrder",
    "SavedSuccess",
    "State",
    "StateRecord",
]

Committer: TypeAlias = Literal["directory", "partitioned", "magic"]
ConflictMode: TypeAlias = Literal["fail", "append", "replace"]
ReplaceOrder: TypeAlias = Literal["publish-then-delete", "delete-then-publish"]
State: TypeAlias = Literal["open", "sealed", "committing", "committed", "aborting", "aborted"]


class JobOptions(Checked, frozen=True, kw_only=True):
    """How a job commits. Part of its identity: a job id set up again must come with the same options.

    Attributes:
        committer: ``directory`` (conflicts are judged over the whole destination) or ``partitioned``
            (over each partition that gets data), both staged on local disk; ``magic`` (streamed, conflicts
            as ``partitioned``).
        conflict_mode: What happens to data that is there already: ``fail``, ``append`` or ``replace``.
        replace_order: ``publish-then-delete`` never shows neither generation; ``delete-then-publish``, as
            Hadoop does it, never shows both but has a loss window and no way back.
        unique_filenames: Put the job id in every file name.
        track_pending: Where a task keeps its uploads until its pendingset is written: in the ``task`` or,
            file by file, on ``s3``.
        fencing: ``required`` refuses stores without conditional writes; ``best-effort`` goes on without.
        staging: URI of another prefix for the job's records, if not below the destination.
        pendingset_format: Which Hadoop can read the job's pending uploads: ``hadoop-3.4.2`` or later, or
            ``hadoop-3.3`` to 3.4.1, whose ETags have no checksums beside them. This package reads both.
        object_options: How the store keeps what the job writes: its class, encryption, ACL, tags, headers.

    Raises:
        InvalidOption: A field has another type, is none of its choices, or contradicts another.

    """

    committer: Committer = "partitioned"
    conflict_mode: ConflictMode = "fail"
    replace_order: ReplaceOrder = "publish-then-delete"
    unique_filenames: bool = True
    track_pending: Literal["task", "s3"] = "task"
    fencing: Literal["required", "best-effort"] = "required"
    staging: Line | None = None
    pendingset_format: PendingsetFormat = "hadoop-3.4.2"
    object_options: ObjectOptions = field(default_factory=ObjectOptions)

    def check(self) -> None:
        """Refuse a staging that is no directory."""
        if self.staging is not None:
            try:
                Destination.parse(self.staging)
            except InvalidDestination as error:
                raise InvalidOption(f"staging: {error}") from error

    @property
    def needs_lock(self) -> bool:
        """Whether two such jobs on one destination must commit one after the other."""
        return self.conflict_mode != "append" or not self.unique_filenames

    @property
    def whole_destination(self) -> bool:
        """Whether conflicts are judged over the whole destination."""
        return self.committer == "directory"


class JobReference(Struct, frozen=True, kw_only=True):
    """What it takes to find a job again: ids and URIs, safe to pass anywhere."""

    job_id: Text
    destination: Text
    staging: Text

    def to_dict(self) -> dict[str, str]:
        """Return it as plain strings, for XCom."""
        return {"job_id": self.job_id, "destination": self.destination, "staging": self.staging}

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> JobReference:
        """Read it from plain strings; other entries are ignored.

        Raises:
            InvalidRecord: An entry is missing or is no string.

        """
        return from_plain(cls, mapping, "a job reference")


class JobRecord(JobOwned, frozen=True, kw_only=True):
    """``job.json``: what a job is. Written once."""

    destination: Text
    staging: Text
    options: JobOptions
    context: dict[Line, Prose] = field(default_factory=dict)
    conditional_writes: bool = True
    created: Milliseconds
    nonce: Text
    signature: Text | None = None


class SavedSuccess(Struct, frozen=True, kw_only=True):
    """The ``_SUCCESS`` that a commit removed, so that a rollback can put it back."""

    etag: Text
    body: bytes


class StateRecord(JobOwned, frozen=True, kw_only=True):
    """``state.json``: where a job is. Changed only by compare-and-swap.

    Attributes:
        version: Always 1.
        job_id: The job.
        destination: URI of its destination; None in states of older versions.
        staging: URI of its staging; likewise.
        state: Its state.
        owner: Who made the last change, for people.
        attempt: How many changes were made.
        since: When, in milliseconds since the epoch by the owner's clock, for people.
        nonce: Unique to each write.
        seal_etag: ETag of the job's seal, from ``sealed`` on.
        plan_etag: ETag of the plan, from ``committing`` on.
        begun: Uploads may have been completed.
        reversible: What was done so far can be undone; false from the moment the commit may have
            overwritten or deleted old data.
        shards: Into how many shards the commit is cut.
        saved_success: The ``_SUCCESS`` that stood when the commit began.
        reason: Why the job was aborted.

    """

    state: State
    owner: Text
    attempt: Attempt
    since: Milliseconds
    nonce: Text
    seal_etag: Text | None = None
    plan_etag: Text | None = None
    begun: bool = False
    reversible: bool = True
    shards: Annotated[int, Meta(ge=1, le=MAX_SHARDS)] = 1
    saved_success: SavedSuccess | None = None
    reason: Prose | None = None


class LockRecord(JobOwned, frozen=True, kw_only=True):
    """``_s3commit/lock.json``: which job may publish to the destination.

    Attributes:
        version: Always 1.
        job_id: The job.
        destination: URI of the destination; None in locks of older versions.
        staging: URI of its staging, where the process that finds it dead looks for its state.
        owner: Who took or renewed it, for people.
        lease: Seconds after which it lapses, counted by the store's clock from when it was written.
        nonce: Unique to each write.

    """

    staging: Text
    owner: Text
    lease: Lease
    nonce: Text


class AbortedRecord(JobOwned, frozen=True, kw_only=True):
    """``_s3commit/aborted/<job id>.json``: this job was aborted, and its id is spent. Written once.

    It outlives the staging, so that a process which slept through the abort cannot set the job up anew, and
    one that cleans up knows the staging to be this job's.

    Attributes:
        version: Always 1.
        job_id: The job.
        destination: URI of its destination; None in records of older versions.
        staging: URI of its staging; likewise.
        since: When, in milliseconds since the epoch by the aborting machine's clock, for people.
        reason: Why, if the caller said so.
        context: What the orchestrator said of the job, as its record had it; empty if that could not be read.

    """

    since: Milliseconds
    reason: Prose | None = None
    context: dict[Line, Prose] = field(default_factory=dict)


class AbortReport(Struct, frozen=True, kw_only=True):
    """What an abort did.

    Attributes:
        uploads: Pending uploads that it discarded, or found discarded.
        objects: Published objects that it took back.
        state: ``aborted``; or ``absent``, if no such job was known.

    """

    uploads: Count
    objects: Count
    state: Literal["aborted", "absent"]

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return msgspec.structs.asdict(self)

"""Records of a job: options, reference, state, abort."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct, field

from airflow_s3commit._format import seconds_of
from airflow_s3commit.exceptions import InvalidDestination, InvalidOption
from airflow_s3commit.protocol.model.codec import (
    MAX_SHARDS,
    Attempt,
    Count,
    Generation,
    JobOwned,
    Line,
    Milliseconds,
    Plain,
    Prose,
    Text,
    from_plain,
)
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.object_options import Checked, ObjectOptions
from airflow_s3commit.protocol.model.pendingset import PendingsetFormat

Committer: TypeAlias = Literal["directory", "partitioned", "magic"]
ConflictMode: TypeAlias = Literal["fail", "append", "replace", "as-written"]
Removal: TypeAlias = Literal["nothing", "partitions", "everything"]
State: TypeAlias = Literal["open", "sealed", "committing", "committed", "aborting", "aborted"]

#: States in which the commit has not begun.
BEFORE_COMMIT: tuple[State, ...] = ("open", "sealed")


#: The longest retention, in seconds.
_RETAIN_SECONDS = 100 * 366 * 86_400


class JobOptions(Checked, frozen=True, kw_only=True):
    """How a job commits. Fixed for a job: another setup with its id must have the same options.

    Attributes:
        committer: ``directory`` (conflicts are judged over the whole destination) or ``partitioned``
            (over each partition that gets data), both staged on local disk; ``magic`` (streamed, conflicts
            as ``partitioned``).
        conflict_mode: Treatment of existing data: ``fail``, ``append`` or ``replace``; or ``as-written``:
            what the save modes of Spark's own writes mean (``writer="spark"``); for any other writer
            ``append``.
        track_pending: Where a task records its uploads before its pendingset is written: in the memory of the
            ``task`` or, file by file, on ``s3``.
        staging: URI of another prefix for the job's records; by default they are below the destination.
        pendingset_format: Hadoop releases that can read the job's pending uploads: ``hadoop-3.4.2`` or
            later, or ``hadoop-3.3`` to 3.4.1, whose ETags have no checksums. This package reads both.
        object_options: Storage class, encryption, ACL, tags and headers of the objects that the job writes.
        retain: How long the files that the commit replaces stay in place before a sweep may delete them:
            ``7d``, ``36h``. ``0s`` deletes them at once. For tables that are read by generation: a reader by
            listing sees old and new files.
        partition_success: Write a ``_SUCCESS`` in each partition too, for readers that wait for one. From
            then on every commit to the destination does. Excludes ``retain``: such readers list.

    Raises:
        InvalidOption: A field has a wrong type or value, or contradicts another.

    """

    committer: Committer = "partitioned"
    conflict_mode: ConflictMode = "fail"
    track_pending: Literal["task", "s3"] = "task"
    staging: Line | None = None
    pendingset_format: PendingsetFormat = "hadoop-3.4.2"
    object_options: ObjectOptions = field(default_factory=ObjectOptions)
    retain: Line = "0s"
    partition_success: bool = False

    def check(self) -> None:
        """Check the URI of the staging, and the retention."""
        if self.staging is not None:
            try:
                Destination.parse(self.staging)
            except InvalidDestination as error:
                raise InvalidOption(f"staging: {error}") from error
        try:
            seconds = self.retain_seconds
        except ValueError as error:
            raise InvalidOption(f"retain: {error}") from error
        if seconds > _RETAIN_SECONDS:
            raise InvalidOption(f"retain={self.retain!r} is more than a hundred years")
        if seconds and self.partition_success:
            raise InvalidOption(
                f"retain={self.retain!r} and partition_success=True exclude each other: a reader that waits"
                " for the marker of a partition lists it, and sees the retained files too"
            )

    @property
    def retain_seconds(self) -> int:
        """Seconds that replaced files stay in place."""
        return math.ceil(seconds_of(self.retain))

    @property
    def only_adds(self) -> bool:
        """Whether the commit can neither replace anything, nor be refused because of data."""
        return self.conflict_mode == "append"

    def as_sealed(self, removes: Removal | None) -> JobOptions:
        """Return the options of the commit, by what the writers asked to remove if they decide."""
        if self.conflict_mode != "as-written":
            return self
        if removes in (None, "nothing"):
            return msgspec.structs.replace(self, conflict_mode="append")
        whole = removes == "everything"
        committer: Committer = "directory" if whole else "partitioned"
        return msgspec.structs.replace(self, conflict_mode="replace", committer=committer)

    @property
    def whole_destination(self) -> bool:
        """Whether conflicts are judged over the whole destination."""
        return self.committer == "directory"


class JobReference(Plain, Struct, frozen=True, kw_only=True):
    """Id and URIs that open a job in another process. Holds no credentials.

    Attributes:
        job_id: The job's id.
        destination: URI of its destination.
        staging: URI of the directory of its records.

    """

    job_id: Text
    destination: Text
    staging: Text

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> JobReference:
        """Read it from plain strings.

        Args:
            mapping: The result of `to_dict`; other entries are ignored.

        Raises:
            InvalidRecord: An entry is missing or is no string.

        """
        return from_plain(cls, mapping, "a job reference")


class JobRecord(JobOwned, frozen=True, kw_only=True):
    """``job.json``: a job's options and context. Written once.

    Attributes:
        version: Always 1.
        job_id: The job.
        destination: URI of its destination.
        staging: URI of its staging.
        options: How it commits.
        context: Facts of the orchestrator: DAG, run, partition.
        adopted: Hadoop wrote its output, under names of its own: its sealed uploads say what is the job's.
        created: Time of the setup, in milliseconds since the epoch by that machine's clock, for people.
        log: Number of the log's newest entry at setup; 0 without one. The job's own entry comes later.
        epoch: Number of the entry that the history began with, at setup; 0 if it had not begun.
        retaining: Whether a commit of the history had retained replaced files, at setup.
        marking: Whether commits of the history write a ``_SUCCESS`` in each partition, at setup.
        nonce: Unique to each write.

    """

    options: JobOptions
    context: dict[Line, Prose] = field(default_factory=dict)
    adopted: bool = False
    created: Milliseconds
    log: Generation = 0
    epoch: Generation = 0
    retaining: bool = False
    marking: bool = False
    nonce: Text


class SavedSuccess(Struct, frozen=True, kw_only=True):
    """The ``_SUCCESS`` that a commit found when it began: it removes this one; a rollback may put it back."""

    etag: Text
    body: bytes


class StateRecord(JobOwned, frozen=True, kw_only=True):
    """``state.json``: the state of a job. Changed only by compare-and-swap.

    Attributes:
        version: Always 1.
        job_id: The job.
        destination: URI of its destination.
        staging: URI of its staging.
        state: Its state.
        owner: Host and process of the last change, for people.
        attempt: Number of changes.
        since: Time of the last change, in milliseconds since the epoch by the owner's clock, for people.
        nonce: Unique to each write.
        seal_etag: ETag of the job's seal, from ``sealed`` on.
        plan_etag: ETag of the plan, once there is one.
        plan_id: Its id.
        begun: Uploads may have been completed.
        shards: Number of shards of the commit.
        generation: Number of the commit's entry in the log, from ``committed`` on.
        saved_success: The ``_SUCCESS`` that was there when the commit began.
        reason: Why the job was aborted.
        job: The job's record, so that a step reads both at once; None if it is large.

    """

    state: State
    owner: Text
    attempt: Attempt
    since: Milliseconds
    nonce: Text
    seal_etag: Text | None = None
    plan_etag: Text | None = None
    plan_id: Text | None = None
    generation: Generation | None = None
    begun: bool = False
    shards: Annotated[int, Meta(ge=1, le=MAX_SHARDS)] = 1
    saved_success: SavedSuccess | None = None
    reason: Prose | None = None
    job: JobRecord | None = None


class AbortedRecord(JobOwned, frozen=True, kw_only=True):
    """``_s3commit/aborted/<job id>.json``: a job was aborted, and its id is spent. Written once.

    It outlives the staging, so that a suspended process cannot set the job up again, and clean-up has proof
    that the staging is this job's.

    Attributes:
        version: Always 1.
        job_id: The job.
        destination: URI of its destination.
        staging: URI of its staging.
        since: Time of the abort, in milliseconds since the epoch by the aborting machine's clock, for people.
        reason: Why, if given.
        context: Context of the job's record; empty if that could not be read.

    """

    since: Milliseconds
    reason: Prose | None = None
    context: dict[Line, Prose] = field(default_factory=dict)


class AbortReport(Plain, Struct, frozen=True, kw_only=True):
    """Result of an abort.

    Attributes:
        uploads: Pending uploads that are aborted.
        objects: Published objects that it deleted.
        state: ``aborted``; or ``absent`` if the job had no state.

    """

    uploads: Count
    objects: Count
    state: Literal["aborted", "absent"]

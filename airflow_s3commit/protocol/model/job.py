"""A job: its options, its record, how far it is, and what opens it in another process."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct, field

from airflow_s3commit._format import seconds_of
from airflow_s3commit.exceptions import InvalidDestination, InvalidOption
from airflow_s3commit.protocol.model.codec import (
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
State: TypeAlias = Literal["open", "sealed", "committed", "aborted"]

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
        publish: ``delta`` makes each commit a version of a Delta table, which other engines read at the
            destination. From then on every commit to the destination does. For Parquet files that this
            package wrote; a longer ``retain`` than the longest query keeps files that the query reads.

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
    publish: Literal["delta"] | None = None

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
        staging: URI of the directory of its pendingsets.
        sha256: SHA-256 of the job's record, in hexadecimal: any other record is refused. Empty where a person
            names the job by its id.
    """

    job_id: Text
    destination: Text
    staging: Text
    sha256: Line = ""

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> JobReference:
        """Read it from plain strings.

        Args:
            mapping: The result of `to_dict`; other entries are ignored.

        Raises:
            InvalidRecord: An entry is missing or is no string.
        """
        return from_plain(cls, mapping, "a job reference")


class Position(Struct, frozen=True):
    """An entry of a log by its number and the SHA-256 of its bytes; number 0 before the first entry.

    A record that keeps a position pins the log: an entry of that number with other bytes is of another log.
    """

    number: Generation = 0
    sha256: Line = ""


class JobRecord(JobOwned, frozen=True, kw_only=True):
    """``_s3commit/open/<job id>/job.json``: a job that was set up and whose clean-up is not finished.

    Attributes:
        version: Always 1.
        job_id: The job.
        destination: URI of its destination.
        staging: URI of the directory of its pendingsets.
        options: How it commits.
        context: Facts of the orchestrator: DAG, run, task, partition.
        adopted: Hadoop wrote its output, under names of its own: its sealed uploads say what is the job's.
        publishes: The job, or one before it, publishes the table: its files must have columns that Delta has.
        base: The newest entry of the log at setup. The job's own entry comes later.
        created: Time of the setup, in milliseconds since the epoch by that machine's clock, for people.
        nonce: Unique to each write.
    """

    options: JobOptions
    context: dict[Line, Prose] = field(default_factory=dict)
    adopted: bool = False
    publishes: bool = False
    base: Position = Position()
    created: Milliseconds
    nonce: Text


class JobState(Plain, Struct, frozen=True, kw_only=True):
    """How far a job is, by its records and by the log.

    Attributes:
        state: ``open``, ``sealed``, ``committed`` or ``aborted``.
        generation: Number of its commit's entry in the log; None if it is not committed.
        since: When it was set up, sealed or ended, in milliseconds since the epoch by the clock of the
            machine that did it. For display only.
        reason: Why it was aborted; empty if nobody said.
        finished: It has ended and has no record of its own left: nothing remains to be cleaned up.
    """

    state: State
    generation: Generation | None = None
    since: Milliseconds
    reason: Prose = ""
    finished: bool = False


class AbortReport(Plain, Struct, frozen=True, kw_only=True):
    """Result of an abort.

    Attributes:
        uploads: Pending uploads that are aborted.
        objects: Published objects that it deleted.
    """

    uploads: Count
    objects: Count

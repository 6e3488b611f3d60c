"""The protocol's own records: versioned, frozen, and validated when they are saved and when they are read.

Unknown fields are ignored, so that a newer writer can be read. Every record that is written under a
condition carries a nonce of its writer: a condition that fails after a lost answer may have met the
writer's own object, and the nonce tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct, field

from airflow_s3commit.exceptions import InvalidRecord

__all__ = [
    "AbortReport",
    "CommittedTask",
    "Committer",
    "ConflictMode",
    "Counts",
    "FileEntry",
    "JobOptions",
    "JobRecord",
    "JobReference",
    "LockRecord",
    "ManifestRecord",
    "PlanPart",
    "PlanRecord",
    "PlanReference",
    "PlannedObject",
    "ReplaceOrder",
    "SavedSuccess",
    "SealRecord",
    "SealReference",
    "SealedStage",
    "SealedTask",
    "ShardRecord",
    "StageSealRecord",
    "State",
    "StateRecord",
    "decode",
    "encode",
]

Committer: TypeAlias = Literal["directory", "partitioned", "magic"]
ConflictMode: TypeAlias = Literal["fail", "append", "replace"]
ReplaceOrder: TypeAlias = Literal["publish-then-delete", "delete-then-publish"]
State: TypeAlias = Literal["open", "sealed", "committing", "committed", "aborting", "aborted"]

_Text = Annotated[str, Meta(min_length=1)]
_Count = Annotated[int, Meta(ge=0)]

R = TypeVar("R", bound=Struct)


def encode(record: Struct) -> bytes:
    """Return a record as JSON, after checking that it would be read back.

    Raises:
        InvalidRecord: It would not.

    """
    try:
        body = msgspec.json.encode(record)
        msgspec.json.decode(body, type=type(record))
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise InvalidRecord(f"a {type(record).__name__} cannot be saved: {error}") from error
    return body


def decode(kind: type[R], body: bytes, where: str) -> R:
    """Read a record.

    Args:
        kind: Its type.
        body: Its JSON.
        where: The URI it came from, for the message.

    Raises:
        InvalidRecord: It is empty, cut short, or not of this type and version.

    """
    if not body:
        raise InvalidRecord(f"{where} is empty; a {kind.__name__} was expected")
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise InvalidRecord(f"{where} is not a valid {kind.__name__}: {error}") from error


class _Versioned(Struct, frozen=True, kw_only=True):
    version: int = 1

    def __post_init__(self) -> None:
        if self.version != 1:
            raise ValueError(f"version {self.version} of {type(self).__name__} is not known, only 1 is")


class Counts(Struct, frozen=True, kw_only=True):
    """How much: files, their bytes, and their rows where every file's writer counted them."""

    files: _Count = 0
    bytes: _Count = 0
    rows: _Count | None = 0

    def plus(self, other: Counts) -> Counts:
        """Add two of them; unknown rows make the sum's rows unknown."""
        rows = None if self.rows is None or other.rows is None else self.rows + other.rows
        return Counts(files=self.files + other.files, bytes=self.bytes + other.bytes, rows=rows)

    @classmethod
    def total(cls, parts: Iterable[Counts]) -> Counts:
        """Add any number of them."""
        total = cls()
        for part in parts:
            total = total.plus(part)
        return total


class JobOptions(Struct, frozen=True, kw_only=True):
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

    """

    committer: Committer = "partitioned"
    conflict_mode: ConflictMode = "fail"
    replace_order: ReplaceOrder = "publish-then-delete"
    unique_filenames: bool = True
    track_pending: Literal["task", "s3"] = "task"
    fencing: Literal["required", "best-effort"] = "required"
    staging: str | None = None

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

    job_id: _Text
    destination: _Text
    staging: _Text

    def to_dict(self) -> dict[str, str]:
        """Return it as plain strings, for XCom."""
        return {"job_id": self.job_id, "destination": self.destination, "staging": self.staging}

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> JobReference:
        """Read it from plain strings; other entries are ignored.

        Raises:
            InvalidRecord: An entry is missing or is no string.

        """
        try:
            return msgspec.convert(dict(mapping), type=cls)
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            raise InvalidRecord(f"{mapping!r} is not a job reference: {error}") from error


class JobRecord(_Versioned, frozen=True, kw_only=True):
    """``job.json``: what a job is. Written once."""

    job_id: _Text
    destination: _Text
    staging: _Text
    options: JobOptions
    context: dict[str, str] = field(default_factory=dict)
    conditional_writes: bool = True
    created: _Count
    nonce: _Text


class SavedSuccess(Struct, frozen=True, kw_only=True):
    """The ``_SUCCESS`` that a commit removed, so that a rollback can put it back."""

    etag: _Text
    body: bytes


class StateRecord(_Versioned, frozen=True, kw_only=True):
    """``state.json``: where a job is. Changed only by compare-and-swap.

    Attributes:
        version: Always 1.
        job_id: The job.
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

    job_id: _Text
    state: State
    owner: _Text
    attempt: _Count
    since: _Count
    nonce: _Text
    seal_etag: str | None = None
    plan_etag: str | None = None
    begun: bool = False
    reversible: bool = True
    shards: Annotated[int, Meta(ge=1)] = 1
    saved_success: SavedSuccess | None = None
    reason: str | None = None


class AbortReport(Struct, frozen=True, kw_only=True):
    """What an abort did.

    Attributes:
        uploads: Pending uploads that it discarded, or found discarded.
        objects: Published objects that it took back.
        state: ``aborted``; or ``absent``, if no such job was known.

    """

    uploads: _Count
    objects: _Count
    state: Literal["aborted", "absent"]

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return msgspec.structs.asdict(self)


class CommittedTask(Struct, frozen=True, kw_only=True):
    """What a task attempt hands to whoever seals its stage."""

    stage: _Text
    stage_attempt: _Text
    task: _Text
    attempt: _Text
    location: _Text
    etag: _Text
    files: _Count
    bytes: _Count
    rows: _Count | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return msgspec.structs.asdict(self)

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> CommittedTask:
        """Read it from plain values.

        Raises:
            InvalidRecord: An entry is missing or of another type.

        """
        try:
            return msgspec.convert(dict(mapping), type=cls)
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            raise InvalidRecord(f"{mapping!r} is not a committed task: {error}") from error


class SealedTask(Struct, frozen=True, kw_only=True):
    """One task attempt that counts; its pendingset's key follows from its ids."""

    task: _Text
    attempt: _Text
    etag: _Text
    counts: Counts


class StageSealRecord(_Versioned, frozen=True, kw_only=True):
    """``stages/<stage>-<attempt>/sealed.json``: exactly which task attempts of a stage count."""

    job_id: _Text
    stage: _Text
    stage_attempt: _Text
    tasks: list[SealedTask]
    counts: Counts
    partitions: dict[str, Counts]
    created: _Count
    nonce: _Text


class SealedStage(Struct, frozen=True, kw_only=True):
    """One stage attempt that counts, pinned by its seal's ETag."""

    stage: _Text
    stage_attempt: _Text
    etag: _Text
    tasks: _Count
    counts: Counts


class SealRecord(_Versioned, frozen=True, kw_only=True):
    """``sealed.json``: exactly which stage attempts of a job count."""

    job_id: _Text
    stages: list[SealedStage]
    counts: Counts
    partitions: dict[str, Counts]
    created: _Count
    nonce: _Text


class SealReference(Struct, frozen=True, kw_only=True):
    """Where a seal is, its ETag, and what it adds up to."""

    location: _Text
    etag: _Text
    tasks: _Count
    counts: Counts
    partitions: dict[str, Counts]

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values; the partitions are counted, not listed."""
        return {
            "location": self.location,
            "etag": self.etag,
            "tasks": self.tasks,
            "files": self.counts.files,
            "bytes": self.counts.bytes,
            "rows": self.counts.rows,
            "partitions": len(self.partitions),
        }


class PlannedObject(Struct, frozen=True, kw_only=True):
    """An object that a commit replaces.

    Attributes:
        key: Its key.
        size: Its bytes.
        etag: Its ETag when the plan was made.
        overwritten: The job writes this very key: completing the upload replaces it, nothing is deleted.

    """

    key: _Text
    size: _Count
    etag: str
    overwritten: bool = False


class PlanPart(Struct, frozen=True, kw_only=True):
    """One piece of a plan's list of objects."""

    number: _Count
    etag: _Text
    objects: _Count


class PlanRecord(_Versioned, frozen=True, kw_only=True):
    """``plan/summary.json``: the resolved conflicts of a job.

    Attributes:
        version: Always 1.
        job_id: The job.
        plan_id: Names the directory of its parts, and is its writer's nonce.
        seal_etag: The seal it was made for.
        parts: The pieces of the list of planned objects.
        objects: How many objects are planned.
        bytes: Their bytes.
        overwritten: How many of them the job overwrites in place.
        digest: Sum over every planned object of a hash of its key, size and ETag: equal for equal sets,
            whatever their order.

    """

    job_id: _Text
    plan_id: _Text
    seal_etag: _Text
    parts: list[PlanPart]
    objects: _Count
    bytes: _Count
    overwritten: _Count
    digest: _Text


class PlanReference(Struct, frozen=True, kw_only=True):
    """Where a plan is, its ETag, and what it will replace."""

    location: _Text
    etag: _Text
    partitions: _Count
    objects: _Count
    bytes: _Count

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return msgspec.structs.asdict(self)


class ShardRecord(_Versioned, frozen=True, kw_only=True):
    """``shards/<number>.json``: all uploads of one shard of a commit are complete."""

    job_id: _Text
    shard: _Count
    seal_etag: _Text
    counts: Counts


class FileEntry(Struct, frozen=True, kw_only=True):
    """One committed file, a line of the manifest's list.

    Attributes:
        key: Its key in the destination's bucket.
        size: Its bytes.
        etag: The multipart ETag computed from its parts; empty where parts' ETags are not MD5 sums.
        rows: Its rows, where counted.
        partition: Its directory below the destination, ``""`` for the root.
        upload: Our id of the upload, which the object carries as metadata.
        statistics: Column statistics, as the writer gave them.

    """

    key: _Text
    size: _Count
    etag: str
    rows: _Count | None = None
    partition: str
    upload: str = ""
    statistics: dict[str, Any] | None = None


class ManifestRecord(_Versioned, frozen=True, kw_only=True):
    """``_s3commit/manifests/<job id>.json``: what a job committed; its presence is the proof of commit.

    Attributes:
        version: Always 1.
        job_id: The job.
        destination: URI of its destination.
        committer: Its committer.
        conflict_mode: Its conflict mode.
        committed: When, in milliseconds since the epoch by the committing machine's clock.
        counts: What was committed.
        partitions: The same by partition directory.
        replaced: What was replaced; its rows are not known.
        files: URI of the list of files: `FileEntry` records, one a line.
        files_sha256: SHA-256 of that list, in hexadecimal.
        context: What the orchestrator said of the job (DAG, run, partition).
        metrics: Durations in milliseconds and counts of requests.
        nonce: Unique to each write.

    """

    job_id: _Text
    destination: _Text
    committer: Committer
    conflict_mode: ConflictMode
    committed: _Count
    counts: Counts
    partitions: dict[str, Counts]
    replaced: Counts
    files: _Text
    files_sha256: _Text
    context: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, int] = field(default_factory=dict)
    nonce: _Text

    def to_dict(self) -> dict[str, Any]:
        """Return its totals as plain values, without the partitions: small enough for XCom."""
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


class LockRecord(_Versioned, frozen=True, kw_only=True):
    """``_s3commit/lock.json``: which job may publish to the destination.

    Attributes:
        version: Always 1.
        job_id: The job.
        staging: URI of its staging, where whoever finds it dead looks for its state.
        owner: Who took or renewed it, for people.
        lease: Seconds after which it lapses, counted by the store's clock from when it was written.
        nonce: Unique to each write.

    """

    job_id: _Text
    staging: _Text
    owner: _Text
    lease: Annotated[float, Meta(gt=0)]
    nonce: _Text

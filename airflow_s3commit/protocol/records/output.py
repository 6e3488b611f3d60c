"""What was written: counts, task attempts, and the seals that say which of them count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from airflow_s3commit.protocol.limits import Count, Line, Milliseconds, Shard, Text
from airflow_s3commit.protocol.records.codec import JobOwned, from_plain
from airflow_s3commit.protocol.statistics import KnownColumns, add_columns

__all__ = [
    "CommittedTask",
    "Counts",
    "SealRecord",
    "SealReference",
    "SealedStage",
    "SealedTask",
    "ShardRecord",
    "StageSealRecord",
]


class Counts(Struct, frozen=True, kw_only=True):
    """How much: files, their bytes, and what every file's writer knew of rows and columns.

    Attributes:
        files: Number of files.
        bytes: Their sizes together.
        rows: Their rows together; None where a writer did not count.
        columns: Their columns' statistics together; None where a writer knew none.

    """

    files: Count = 0
    bytes: Count = 0
    rows: Count | None = 0
    columns: KnownColumns | None = None

    def plus(self, other: Counts) -> Counts:
        """Add two of them; what is not known of one is not known of the sum."""
        if not self.files or not other.files:
            columns = self.columns if self.files else other.columns
        else:
            columns = add_columns(self.columns, other.columns)
        return Counts(
            files=self.files + other.files,
            bytes=self.bytes + other.bytes,
            rows=None if self.rows is None or other.rows is None else self.rows + other.rows,
            columns=columns,
        )

    def without_columns(self) -> Counts:
        """Return the same without the columns' statistics."""
        return msgspec.structs.replace(self, columns=None)

    @classmethod
    def total(cls, parts: Iterable[Counts]) -> Counts:
        """Add any number of them."""
        total = cls()
        for part in parts:
            total = total.plus(part)
        return total


class CommittedTask(Struct, frozen=True, kw_only=True):
    """What a task attempt hands to whoever seals its stage."""

    stage: Text
    stage_attempt: Text
    task: Text
    attempt: Text
    location: Text
    etag: Text
    files: Count
    bytes: Count
    rows: Count | None = None
    sha256: Text | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return msgspec.structs.asdict(self)

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> CommittedTask:
        """Read it from plain values.

        Raises:
            InvalidRecord: An entry is missing or of another type.

        """
        return from_plain(cls, mapping, "a committed task")


class SealedTask(Struct, frozen=True, kw_only=True):
    """One task attempt that counts, and its pendingset's digests; that one's key follows from its ids."""

    task: Text
    attempt: Text
    etag: Text
    counts: Counts
    sha256: Text | None = None


class StageSealRecord(JobOwned, frozen=True, kw_only=True):
    """``stages/<stage>-<attempt>/sealed.json``: exactly which task attempts of a stage count."""

    stage: Text
    stage_attempt: Text
    tasks: list[SealedTask]
    counts: Counts
    partitions: dict[Line, Counts]
    created: Milliseconds
    nonce: Text


class SealedStage(Struct, frozen=True, kw_only=True):
    """One stage attempt that counts, pinned by its seal's digests."""

    stage: Text
    stage_attempt: Text
    etag: Text
    tasks: Count
    counts: Counts
    sha256: Text | None = None


class SealRecord(JobOwned, frozen=True, kw_only=True):
    """``sealed.json``: exactly which stage attempts of a job count."""

    stages: list[SealedStage]
    counts: Counts
    partitions: dict[Line, Counts]
    created: Milliseconds
    nonce: Text
    signature: Text | None = None


class SealReference(Struct, frozen=True, kw_only=True):
    """Where a seal is, its ETag, and what it adds up to."""

    location: Text
    etag: Text
    tasks: Count
    counts: Counts
    partitions: dict[Line, Counts]

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


class ShardRecord(JobOwned, frozen=True, kw_only=True):
    """``shards/<number>.json``: all uploads of one shard of a commit are complete."""

    shard: Shard
    seal_etag: Text
    counts: Counts

"""An entry of the log. It alone says how a job ended; receipt and ``_SUCCESS`` are derived from it."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import UNSET, Raw, Struct, UnsetType, field
from msgspec.structs import force_setattr

from airflow_s3commit.protocol.model.codec import (
    Count,
    Generation,
    Integer,
    Line,
    Milliseconds,
    Prose,
    Schemas,
    Text,
    Versioned,
)
from airflow_s3commit.protocol.model.job import Removal
from airflow_s3commit.protocol.model.sealed_job import Counts

EntryKind: TypeAlias = Literal["commit", "abandon", "release"]


class UnownedObject(Struct, frozen=True, kw_only=True, gc=False):
    """A data object that is not in the table, and that no job of the destination wrote."""

    key: Text
    etag: Line
    size: Count


class Commit(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a ``commit`` entry does to the table.

    Attributes:
        mode: ``append``, ``replace`` or ``fail``; ``older-data`` for the first entry, which lists what is
            older than the log; ``rollback``.
        takes: What leaves the table before the files are added: ``nothing``, the files of the
            ``partitions``, or ``everything``.
        unowned: Objects that leave with them. They are named because the table does not have them.
        partitions: Totals by partition, in directories below the destination. One without files is emptied.
        counts: The sum of the partitions.
        replaced: Files and bytes that leave; their rows are unknown.
        files_sha256: SHA-256 of the list of files: `FileEntry` records, one JSON line each.
        within: The lines, if they are short; otherwise the list is an object of its own.
        retain: Seconds that what leaves stays in place; 0 deletes it at once.
        adopted: Hadoop wrote the files, whose names do not have the job's id.
        restores: Of a rollback, the commits that each partition consists of again.
        rolled_back_to: Of a rollback, the generation; otherwise 0.
        tasks: How many task attempts count.
        schemas: The schemas of the files; empty if that of one is unknown.
        metrics: Durations in milliseconds and counts of requests.
    """

    mode: Line
    takes: Removal = "nothing"
    unowned: list[UnownedObject] = field(default_factory=list)
    partitions: dict[Line, Counts]
    counts: Counts
    replaced: Counts = Counts()
    files_sha256: Text
    within: list[Raw] | UnsetType = UNSET
    retain: Count = 0
    adopted: bool = False
    restores: dict[Line, list[Generation]] = field(default_factory=dict)
    rolled_back_to: Generation = 0
    tasks: Count = 0
    schemas: Schemas = field(default_factory=list)
    metrics: dict[Line, Integer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Copy the lines: as decoded they would keep the bytes of the whole entry in memory."""
        if self.within is not UNSET:
            force_setattr(self, "within", [line.copy() for line in self.within])


class Entry(Versioned, frozen=True, kw_only=True, omit_defaults=True):
    """``_s3commit/log/<number>.json``: an entry of the log; for a job its end.

    Attributes:
        version: Always 1.
        destination: URI of the destination whose log it is in. In a copy it names the original.
        number: Its number, from 1; for a commit the generation.
        kind: ``commit``: files entered the table. ``abandon``: the job is aborted. ``release``: files that
            earlier commits retained may be deleted.
        prev: SHA-256 of the bytes of the entry before; empty for the first.
        since: When it was made, in milliseconds since the epoch by that machine's clock, for people.
        job_id: The job that it ends; None for the first entry and a release.
        staging: URI of the job's staging.
        context: The orchestrator's facts about the job.
        commit: Of a commit, what it does.
        why: Of an abandoned job, the reason.
        frees: Of a release, the generations whose removed files may be deleted.
        marks: Whether each partition of the table has a ``_SUCCESS`` of its own. Once an entry has it, every
            later one does.
        published: Number of the first entry that other engines see, as a version of a Delta table; 0 if the
            table is not published. Once an entry has it, every later one does.
        nonce: Unique to each write.

    Raises:
        ValueError: The kind and the fields do not fit.
    """

    destination: Text
    number: Generation
    kind: EntryKind
    prev: Line = ""
    since: Milliseconds
    job_id: Text | None = None
    staging: Line = ""
    context: dict[Line, Prose] = field(default_factory=dict)
    commit: Commit | None = None
    why: Prose = ""
    frees: list[Generation] = field(default_factory=list)
    marks: bool = False
    published: Generation = 0
    nonce: Text

    def __post_init__(self) -> None:
        """Check that the fields fit the kind."""
        super().__post_init__()
        if (self.commit is not None) != (self.kind == "commit"):
            raise ValueError(f"an entry of kind {self.kind} with or without the facts of a commit")
        if self.kind == "abandon" and self.job_id is None:
            raise ValueError("an abandoned job without its id")
        if bool(self.frees) != (self.kind == "release"):
            raise ValueError(f"an entry of kind {self.kind} with or without generations that it frees")
        if bool(self.prev) != (self.number > 1):
            raise ValueError(f"entry {self.number} with or without the digest of the one before")
        if self.published > self.number:
            raise ValueError(f"entry {self.number} is published since entry {self.published}")

    @property
    def delta_version(self) -> int | None:
        """Its version in the Delta table; None if the table is not published."""
        return self.number - self.published if self.published else None

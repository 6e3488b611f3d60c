"""Entries of a destination's log of commits, and checkpoints: what entries add up to, as compressed JSON."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct, field

from airflow_s3commit.exceptions import InvalidRecord, TooLarge
from airflow_s3commit.protocol.model.codec import (
    GIB,
    Count,
    Generation,
    JobOwned,
    Line,
    Milliseconds,
    Prose,
    Text,
    Versioned,
    decode,
    decode_lines,
)
from airflow_s3commit.protocol.model.job import AbortedRecord, Removal
from airflow_s3commit.protocol.model.manifest import ManifestRecord

EntryKind: TypeAlias = Literal["commit", "abandon", "baseline", "release"]
BaselineReason: TypeAlias = Literal["data", "copy"]

#: Bytes of a checkpoint's text: a million commits of one partition each are 200 MiB.
_TEXT_BYTES = GIB


class PlanName(Struct, frozen=True, kw_only=True):
    """Id and ETag of a plan."""

    plan_id: Text
    etag: Text


class Baseline(Struct, frozen=True, kw_only=True):
    """What a dataset holds before the first commit of its history.

    It names no files, so that no commit lists the whole table. It stands for the data objects that no later
    entry names, that belong to no unfinished job, and whose partition no later commit removes: a reader lists
    them.

    Attributes:
        reason: ``data`` if there was data; ``copy`` if the log before it was copied here, with its dataset.
        since: Time of the entry, in milliseconds since the epoch by the writer's clock, for people.

    """

    reason: BaselineReason
    since: Milliseconds


class Release(Struct, frozen=True, kw_only=True):
    """Retained files that may be deleted from now on, and that no later entry may bring back.

    Attributes:
        commits: Generations that replaced them: what these commits removed and retained is released, but for
            files that the table has again.
        finished: Number of the newest earlier release whose files are all deleted; 0 without one.
        since: Time of the entry, in milliseconds since the epoch by the writer's clock, for people.

    """

    commits: list[Generation]
    finished: Generation = 0
    since: Milliseconds


class LiveCommit(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A commit with files that no later one removed: a line of a checkpoint, or a part of a rollback.

    Attributes:
        number: Number of its entry.
        job_id: The job.
        files_sha256: SHA-256 of the job's list of files, in hexadecimal.
        partitions: The partitions whose files are still in the table.
        within: Its list lies within its entry.
        schemas: Which of the checkpoint's schemas its files have; empty if they are unknown.

    """

    number: Generation
    job_id: Text
    files_sha256: Line
    partitions: list[Line]
    within: bool = False
    schemas: list[Count] = field(default_factory=list)


class LogEntry(JobOwned, frozen=True, kw_only=True):
    """``_s3commit/log/<number>.json``: how a job ends, or a release. Created if absent, never changed.

    The numbers are consecutive: a process that creates an entry has read all before it. The log alone decides
    whether a job is committed, and in which order jobs were.

    Attributes:
        version: Always 1.
        job_id: The job; of a baseline, the one whose commit needs it; of a release, an id of its own.
        destination: URI of its destination. In a copy of the log it names the original: not this history.
        staging: URI of its staging.
        number: Number of the entry, from 1; the generation of a commit.
        kind: ``commit``: the job is committed. ``abandon``: it never will be. ``baseline``: the history
            begins here, with data that is older. ``release``: retained files may be deleted.
        epoch: Number of the entry that this history begins with, a baseline or the first commit to an empty
            destination; 0 in an ``abandon`` before it.
        manifest: The manifest of a commit, whose copy below ``manifests/`` is derived.
        removes: What a commit removes from the table before it adds its files: ``nothing``, all files of the
            ``partitions`` that its manifest names, or ``everything``.
        retain: Seconds that the files which a commit removes stay in place; 0: they may be deleted at once.
        retaining: Whether this commit, or an earlier one of the history, retains files that it removed.
        marking: Whether this commit, or an earlier one of the history, asked for a ``_SUCCESS`` in each
            partition: from then on every commit writes them.
        restores: Of a rollback, the commits that the partitions in its manifest consist of again; else None.
        closing: Of the ``commit`` whose manifest lists the files of the baseline, which has none after
            that; it may be the first entry of the history.
        plan: The plan of a commit that replaces objects, in its staging: they may be deleted from now on.
        aborted: The record of an abandoned job; its copy below ``aborted/`` is derived.
        baseline: What a baseline says.
        release: What a release says.
        nonce: Unique to each write.

    Raises:
        ValueError: The kind and the fields do not fit, or another job's manifest is in it.

    """

    number: Generation
    kind: EntryKind
    epoch: Generation = 0
    manifest: ManifestRecord | None = None
    removes: Removal = "nothing"
    retain: Count = 0
    retaining: bool = False
    marking: bool = False
    restores: list[LiveCommit] | None = None
    closing: bool = False
    plan: PlanName | None = None
    aborted: AbortedRecord | None = None
    baseline: Baseline | None = None
    release: Release | None = None
    nonce: Text

    def __post_init__(self) -> None:
        """Check that the fields fit the kind."""
        super().__post_init__()
        contents = {
            "commit": self.manifest,
            "abandon": self.aborted,
            "baseline": self.baseline,
            "release": self.release,
        }
        if [kind for kind, content in contents.items() if content is not None] != [self.kind]:
            raise ValueError(f"an entry of kind {self.kind} needs its own record and no other")
        if self.epoch > max(self.number, 0) or (self.kind == "baseline" and self.epoch != self.number):
            raise ValueError(f"entry {self.number} cannot be of epoch {self.epoch}")
        ending = self.manifest or self.aborted
        if ending is not None and (ending.job_id, ending.destination) != (self.job_id, self.destination):
            raise ValueError("the entry and the record in it are of different jobs")


class RetainedCommit(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Files of a commit that a later one removed and left in place; a line of a checkpoint.

    Attributes:
        number: Number of its entry.
        job_id: The job.
        files_sha256: SHA-256 of the job's list of files, in hexadecimal.
        partitions: The partitions whose files have left the table.
        removed: Generation that removed them.
        retain: Seconds that it retains them.
        released: Number of the entry that has released them; 0 without one.
        within: As in a `LiveCommit`.
        schemas: Which of the checkpoint's schemas they have; empty if they are unknown.

    """

    number: Generation
    job_id: Text
    files_sha256: Line
    partitions: list[Line]
    removed: Generation
    retain: Count
    released: Generation = 0
    within: bool = False
    schemas: list[Count] = field(default_factory=list)


class NewestSchemas(Struct, frozen=True, kw_only=True):
    """A job, and which of a checkpoint's schemas it wrote."""

    job_id: Text
    schemas: list[Count]


class CheckpointHead(Versioned, frozen=True, kw_only=True):
    """The first line of a checkpoint. One for each `LiveCommit` follows, then one for each `RetainedCommit`.

    Attributes:
        version: Always 1.
        destination: URI of the destination. In a copy of a dataset it names the original.
        number: Number of the last entry.
        entry_nonce: Nonce of that entry: a checkpoint of another log is not used.
        generation: Generation of the newest commit.
        commits: How many lines of commits with live files follow.
        retained: How many lines of commits with retained files follow them.
        baseline: Number of the baseline whose objects are still in the table; 0 without one.
        removed: Partitions from which commits after the baseline have removed everything.
        schemas: The different schemas of commits, as in their manifests.
        newest: The newest commit whose schemas are known, with or without files.

    """

    destination: Text
    number: Generation
    entry_nonce: Text
    generation: Generation
    commits: Count
    retained: Count = 0
    baseline: Generation = 0
    removed: list[Line] = field(default_factory=list)
    schemas: list[Prose] = field(default_factory=list)
    newest: NewestSchemas | None = None


class Checkpoint(NamedTuple):
    """The lines of a checkpoint; those of commits are read as they are drawn.

    Attributes:
        head: The first line.
        commits: The commits with files in the table, by number.
        retained: The commits with retained files.

    """

    head: CheckpointHead
    commits: Iterable[LiveCommit]
    retained: Iterable[RetainedCommit]

    def to_bytes(self) -> bytes:
        """Return it as it is stored: the same bytes for the same lines."""
        text = msgspec.json.Encoder().encode_lines([self.head, *self.commits, *self.retained])
        compressor = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
        return compressor.compress(text) + compressor.flush()

    @classmethod
    def from_bytes(cls, body: bytes, where: str) -> Checkpoint:
        """Read it as it is stored.

        Args:
            body: Its bytes.
            where: Its URI, for the message.

        Raises:
            InvalidRecord: It is damaged, or too large.

        """
        first, *lines = _decompressed(body, where).splitlines() or [b""]
        head = decode(CheckpointHead, first, where)
        if len(lines) != head.commits + head.retained:
            raise InvalidRecord(f"{where} has {len(lines)} commits; it names {head.commits + head.retained}")
        return cls(
            head,
            decode_lines(LiveCommit, lines[: head.commits], where),
            decode_lines(RetainedCommit, lines[head.commits :], where),
        )


def _decompressed(body: bytes, where: str) -> bytes:
    decompressor = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        text = decompressor.decompress(body, _TEXT_BYTES)
    except zlib.error as error:
        raise InvalidRecord(f"{where} cannot be decompressed: {error}") from error
    if decompressor.unconsumed_tail:
        raise TooLarge.of(where, len(body), _TEXT_BYTES)
    if not decompressor.eof:
        raise InvalidRecord(f"{where} is truncated")
    return text

"""A checkpoint: what a destination's log adds up to, as compressed lines of JSON."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
from msgspec import Struct, field

from airflow_s3commit.exceptions import InvalidRecord, TooLarge
from airflow_s3commit.protocol.model.codec import Versioned, decode, decode_lines
from airflow_s3commit.protocol.model.limits import GIB, Count, Generation, Line, Prose, Text
from airflow_s3commit.protocol.model.log import LiveCommit

#: Bytes of a checkpoint's text: a million commits of one partition each are 200 MiB.
_TEXT_BYTES = GIB


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
        rebased: As in a `LiveCommit`.
        schemas: Which of the checkpoint's schemas they have; empty if they are unknown.

    """

    number: Generation
    job_id: Text
    files_sha256: Line
    partitions: list[Line]
    removed: Generation
    retain: Count
    released: Generation = 0
    rebased: bool = False
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

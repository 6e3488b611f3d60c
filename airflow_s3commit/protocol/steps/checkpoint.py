"""A checkpoint: a table as compressed JSON lines, from which readers go on instead of folding the whole log.

It is derived from the log and never needed: one that is damaged, or of another log, is passed over. It is
read line by line, and each line is decoded as a small record: a hostile checkpoint costs time, but no memory.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator

from msgspec import Struct

from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol.model.codec import (
    Count,
    Generation,
    Line,
    Schema,
    Text,
    Versioned,
    decode_lines,
    encode,
    largest,
)
from airflow_s3commit.protocol.model.job import Position
from airflow_s3commit.protocol.model.sealed_job import Counts
from airflow_s3commit.protocol.model.table import Retained, Source, Table
from airflow_s3commit.store.execute import in_batches


class CheckpointStart(Versioned, frozen=True, kw_only=True):
    """The first line: the position of the table, the number of following lines by kind, and all schemas."""

    destination: Text
    head: Position
    generation: Generation
    sources: Count
    #: How many lines of them: one for each 10,000 commits of a partition.
    partitions: Count
    unowned: Count
    schemas: list[Schema]
    newest_schemas: list[Count]
    retained: dict[Generation, Count]
    freed: dict[Generation, Count]


class SourceLine(Struct, frozen=True, omit_defaults=True):
    """A commit whose files are in the table, or are retained."""

    number: Generation
    job_id: Text | None
    files_sha256: Line
    is_within: bool
    adopted: bool = False
    schemas: list[Count] = []


class PartitionLine(Struct, frozen=True, omit_defaults=True):
    """Commits of a partition: those in the table and, by the generation that took them, those that left."""

    name: Line
    live: list[Generation] = []
    left: dict[Generation, list[Generation]] = {}
    counts: dict[Generation, Counts] = {}


class UnownedLine(Struct, frozen=True):
    """An object of another program that a generation took, and that may still be there."""

    generation: Generation
    key: Text
    etag: Line


#: The longest line that is written or read.
_LINE_BYTES = max(largest(CheckpointStart), largest(PartitionLine))

#: Commits of a partition on a line.
_COMMITS = 10_000

_STEP_BYTES = 64 * 1024


def to_bytes(table: Table, destination: str) -> bytes:
    """Return the checkpoint of a table: the same bytes for the same log."""
    left = table.retained | table.freed
    partitions = [line for name in sorted(table.partitions()) for line in _partition(table, name)]
    unowned = [
        UnownedLine(generation, key, etag)
        for generation, one in sorted(left.items())
        for key, etag in sorted(one.unowned.items())
    ]
    held = {text for source in table.sources.values() for text in source.schemas}
    texts = sorted(held | {*table.newest_schemas})
    positions = {text: number for number, text in enumerate(texts)}
    head = CheckpointStart(
        destination=destination,
        head=table.head,
        generation=table.generation,
        sources=len(table.sources),
        partitions=len(partitions),
        unowned=len(unowned),
        schemas=texts,
        newest_schemas=[positions[text] for text in table.newest_schemas],
        retained={generation: one.seconds for generation, one in sorted(table.retained.items())},
        freed={generation: one.seconds for generation, one in sorted(table.freed.items())},
    )
    lines: list[Struct] = [head]
    lines += (
        SourceLine(
            one.number,
            one.job_id,
            one.files_sha256,
            one.is_within,
            one.adopted,
            [positions[text] for text in one.schemas],
        )
        for _, one in sorted(table.sources.items())
    )
    lines += partitions
    lines += unowned
    return gzip.compress(b"".join(encode(line) + b"\n" for line in lines), mtime=0)


def _partition(table: Table, name: str) -> Iterator[PartitionLine]:
    every = sorted((table.retained | table.freed).items())
    for numbers in in_batches(sorted(table.numbers_in(name)), _COMMITS):
        counts = {number: table.sources[number].partitions[name] for number in numbers}
        left = {one: [n for n in taken.pieces.get(name, ()) if n in counts] for one, taken in every}
        live = [number for number in table.live.get(name, ()) if number in counts]
        yield PartitionLine(name, live, {one: found for one, found in left.items() if found}, counts)


def from_bytes(body: bytes, destination: str, where: str) -> Table:
    """Read a checkpoint; `InvalidRecord` if it is damaged, or of another destination."""
    lines = _lines(body, where)
    head = next(decode_lines(CheckpointStart, lines, where), None)
    if head is None or head.destination != destination:
        raise InvalidRecord(f"{where} is not a checkpoint of the log of {destination}")
    # A log has no more commits than entries, which bounds the lines to read, whatever the checkpoint says.
    if head.sources > head.head.number or head.generation > head.head.number:
        raise InvalidRecord(f"{where} has more commits than its log has entries")
    sources: dict[int, tuple[SourceLine, dict[str, Counts]]] = {}
    for source in decode_lines(SourceLine, (next(lines, b"") for _ in range(head.sources)), where):
        sources[source.number] = (source, {})
    table = Table()
    table.head, table.generation = head.head, head.generation
    table.retained = {generation: Retained({}, seconds, {}) for generation, seconds in head.retained.items()}
    table.freed = {generation: Retained({}, seconds, {}) for generation, seconds in head.freed.items()}
    left = table.retained | table.freed
    try:
        for partition in decode_lines(
            PartitionLine, (next(lines, b"") for _ in range(head.partitions)), where
        ):
            _add(table, partition, left, sources)
        for one in decode_lines(UnownedLine, (next(lines, b"") for _ in range(head.unowned)), where):
            left[one.generation].unowned[one.key] = one.etag
    except KeyError as error:
        raise InvalidRecord(f"{where} names the commit {error}, and says nothing of it") from error
    if next(lines, None) is not None:
        raise InvalidRecord(f"{where} goes on after its last line")
    for number, (source, totals) in sources.items():
        table.sources[number] = Source(
            number,
            source.job_id,
            source.files_sha256,
            source.is_within,
            totals,
            source.adopted,
            _picked(head.schemas, source.schemas, where),
        )
    table.newest_schemas = _picked(head.schemas, head.newest_schemas, where)
    table.count_references()
    return table


def _picked(texts: list[str], positions: list[int], where: str) -> tuple[str, ...]:
    if any(position >= len(texts) for position in positions):
        raise InvalidRecord(f"{where} names a schema that it does not have")
    return tuple(texts[position] for position in positions)


def _add(
    table: Table,
    line: PartitionLine,
    left: dict[int, Retained],
    sources: dict[int, tuple[SourceLine, dict[str, Counts]]],
) -> None:
    if line.live:
        table.live.setdefault(line.name, []).extend(line.live)
    for generation, numbers in line.left.items():
        left[generation].pieces.setdefault(line.name, []).extend(numbers)
    for number in {*line.live}.union(*line.left.values()):
        sources[number][1][line.name] = line.counts[number]


def _lines(body: bytes, where: str) -> Iterator[bytes]:
    """Yield the lines, decompressing little by little; each is whole, not empty, and not too long."""
    stream, held = zlib.decompressobj(wbits=31), b""
    for start in range(0, len(body), _STEP_BYTES):
        waiting = body[start : start + _STEP_BYTES]
        while waiting and not stream.eof:
            try:
                piece = stream.decompress(waiting, _STEP_BYTES)
            except zlib.error as error:
                raise InvalidRecord(f"{where} is not a checkpoint: {error}") from error
            waiting = stream.unconsumed_tail
            *whole, held = (held + piece).split(b"\n")
            for line in whole:
                if not line:
                    raise InvalidRecord(f"{where} has an empty line")
                yield line
            if len(held) > _LINE_BYTES:
                raise InvalidRecord(f"{where} has a line of more than {_LINE_BYTES} bytes")
    if held or not stream.eof:
        raise InvalidRecord(f"{where} is cut off")

"""An entry of the log, and the table: what the entries add up to, one after the other.

Only an entry says how a job ended; receipt and ``_SUCCESS`` are derived from it.

The table holds no names of files. It knows which commits each partition consists of; a commit's list of files
has the names. So the table stays small for a million files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Literal, TypeAlias

from msgspec import UNSET, Raw, Struct, UnsetType, field
from msgspec.structs import force_setattr, replace

from airflow_s3commit.exceptions import InvalidRecord
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
from airflow_s3commit.protocol.model.job import Position, Removal
from airflow_s3commit.protocol.model.sealed_job import Counts


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
        restores: For a rollback, the commits that each partition consists of again.
        rolled_back_to: For a rollback, the generation; 0 for any other commit.
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
        destination: URI of the destination whose log it is in. In a copy it names the original.
        number: Its number, from 1; for a commit the generation.
        kind: ``commit`` adds files; ``abandon`` aborts the job; ``release`` lets retained files be deleted.
        prev: SHA-256 of the bytes of the entry before; empty for the first.
        since: When it was made, in milliseconds since the epoch by that machine's clock, for people.
        job_id: The job that it ends; None for the first entry and a release.
        staging: URI of the job's staging.
        context: The orchestrator's facts about the job.
        commit: For a commit, what it does to the table.
        why: For an abandoned job, the reason.
        frees: For a release, the generations whose removed files may be deleted.
        marks: Whether each partition has its own ``_SUCCESS``. Once an entry has it, every later one does.
        published: Number of the first entry that other engines see, as a version of a Delta table; 0 if the
            table is not published. Once an entry has it, every later one does.

    Raises:
        ValueError: The kind and the fields do not fit.
    """

    destination: Text
    number: Generation
    kind: Literal["commit", "abandon", "release"]
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


#: Numbers of commits by the partition whose files are meant.
Pieces: TypeAlias = Mapping[str, Collection[int]]


class Source(Struct, frozen=True):
    """A commit whose files are in the table, or are retained.

    Attributes:
        number: Number of its entry.
        job_id: Its job; None for the entry that lists what is older than the log.
        files_sha256: SHA-256 of its list of files.
        is_within: Whether the list lies within the entry.
        partitions: Its totals by partition.
        adopted: Hadoop wrote the files, whose names need not have the job's id.
        schemas: The schemas of the files; empty if that of one is unknown.
    """

    number: int
    job_id: str | None
    files_sha256: str
    is_within: bool
    partitions: Mapping[str, Counts]
    adopted: bool = False
    schemas: tuple[str, ...] = ()

    @classmethod
    def of(cls, entry: Entry, commit: Commit) -> Source:
        """Return the source of an entry's commit, with the partitions that have files."""
        return cls(
            entry.number,
            entry.job_id,
            commit.files_sha256,
            commit.within is not UNSET,
            {name: counts.without_columns() for name, counts in commit.partitions.items() if counts.files},
            commit.adopted,
            tuple(commit.schemas),
        )

    @property
    def owners(self) -> tuple[str | None, ...]:
        """The job whose id its file names have; None stands for names without one."""
        return (self.job_id, None) if self.adopted else (self.job_id,)


class Left(Struct, frozen=True):
    """What a commit took from the table, and what it brought.

    Attributes:
        pieces: The commits that left, by partition.
        sources: These commits, by number.
        gained: The commits that entered, by partition: itself, and those that it restores.
    """

    pieces: Mapping[str, list[int]]
    sources: Mapping[int, Source]
    gained: Mapping[str, list[int]] = {}


class Retained(Struct, frozen=True):
    """What a commit took from the table and leaves in place for a while.

    Attributes:
        pieces: The commits by partition.
        seconds: How long it stays, from the commit's entry on.
        unowned: ETags of the objects of other programs that it took, by key.
    """

    pieces: dict[str, list[int]]
    seconds: int
    unowned: dict[str, str] = {}


class Table:
    """A table after some entries of its log.

    Attributes:
        head: The last of these entries.
        generation: Number of the last commit among them; 0 without one.
        live: The commits that each partition consists of.
        retained: What left the table and stays in place, by the generation that took it.
        freed: The same for what the newest release freed. Some of it may still be there; what earlier
            releases freed is deleted.
        sources: The commits that are live or retained, by number.
        newest_schemas: The schemas of the newest commit that has some: the columns of a table without files.
    """

    def __init__(self) -> None:
        self.head = Position()
        self.generation = 0
        self.live: dict[str, list[int]] = {}
        self.retained: dict[int, Retained] = {}
        self.freed: dict[int, Retained] = {}
        self.sources: dict[int, Source] = {}
        self.newest_schemas: tuple[str, ...] = ()
        self._references: Counter[int] = Counter()
        # Each schema is in memory once.
        self._schemas: dict[str, str] = {}

    def apply(self, entry: Entry, sha256: str) -> Left:
        """Apply the entry after the head, and return what left the table.

        Raises `InvalidRecord`, and leaves the table as it was, if the entry restores what is not in place.
        """
        for name, numbers in entry.commit.restores.items() if entry.commit is not None else ():
            if len({*numbers}) < len(numbers) or not all(self.can_restore(name, one) for one in numbers):
                raise InvalidRecord(
                    f"entry {entry.number} of the log of {entry.destination} restores files of generations"
                    f" {numbers[:5]} in {name[:200]!r}, which are not all in place"
                )
        self.head = Position(entry.number, sha256)
        if entry.frees:
            for deleted in self.freed.values():
                self._forget(deleted.pieces)
            self.freed = {one: self.retained.pop(one) for one in entry.frees if one in self.retained}
        if entry.commit is None:
            return Left({}, {})
        left, gained = self._commit(entry, entry.commit)
        sources = {number: self.sources[number] for numbers in left.values() for number in numbers}
        unowned = {one.key: one.etag for one in entry.commit.unowned}
        if entry.commit.retain and (left or unowned):
            self.retained[entry.number] = Retained(left, entry.commit.retain, unowned)
        else:
            self._forget(left)
        return Left(left, sources, gained)

    @property
    def left(self) -> list[Retained]:
        """What left the table and may be in place: what is freed, then what is retained, which is newer."""
        return [*self.freed.values(), *self.retained.values()]

    def copy(self) -> Table:
        """Return a table that entries can be applied to without changing this one."""
        made = Table()
        made.head, made.generation, made.newest_schemas = self.head, self.generation, self.newest_schemas
        made.live = {name: [*numbers] for name, numbers in self.live.items()}
        made.retained = {one: replace(kept, pieces={**kept.pieces}) for one, kept in self.retained.items()}
        made.freed, made.sources, made._schemas = {**self.freed}, {**self.sources}, {**self._schemas}
        made._references = self._references.copy()
        return made

    def left_by(self, takes: str, partitions: Iterable[str]) -> dict[str, list[int]]:
        """Return the pieces that would leave if the next commit took these partitions, or everything."""
        if takes == "nothing":
            return {}
        touched = list(self.live) if takes == "everything" else list(partitions)
        return {name: list(self.live[name]) for name in touched if name in self.live}

    def counts_of(self, pieces: Pieces) -> Counts:
        """Return the totals of some pieces."""
        return Counts.total(
            self.sources[number].partitions[name] for name, numbers in pieces.items() for number in numbers
        )

    def can_restore(self, partition: str, number: int) -> bool:
        """Return whether the files of a commit in a partition are still in place, by the log alone."""
        if number in self.live.get(partition, ()):
            return True
        return any(number in one.pieces.get(partition, ()) for one in self.retained.values())

    def numbers_in(self, partition: str) -> set[int]:
        """Return the commits whose files in a partition are in the table, retained or freed."""
        numbers = {*self.live.get(partition, ())}
        for one in self.left:
            numbers.update(one.pieces.get(partition, ()))
        return numbers

    def partitions(self) -> set[str]:
        """Return the partitions with files that are in the table, retained or freed."""
        return {*self.live}.union(*(one.pieces for one in self.left))

    def jobs_in(self, partition: str) -> set[str | None]:
        """Return the jobs whose files in a partition are in the table, retained or freed; None for no id."""
        return {owner for number in self.numbers_in(partition) for owner in self.sources[number].owners}

    def commits(self, since: int = 0) -> dict[int, list[str]]:
        """Return the commits after a generation that have files in the table, each with their partitions."""
        found: dict[int, list[str]] = {}
        for name in sorted(self.live):
            for number in self.live[name]:
                if number > since:
                    found.setdefault(number, []).append(name)
        return dict(sorted(found.items()))

    def schemas(self) -> list[str]:
        """Return the different schemas of the files, oldest first; of an empty table the last that it had."""
        found = {text: None for number in self.commits() for text in self.sources[number].schemas}
        return list(found or dict.fromkeys(self.newest_schemas))

    def without_schemas(self) -> list[int]:
        """Return the commits whose schemas are unknown, in their order."""
        return [number for number in self.commits() if not self.sources[number].schemas]

    def unowned_in_place(self) -> dict[str, str]:
        """Return the ETags of other programs' objects that are retained or freed, by key."""
        return {key: etag for one in self.left for key, etag in one.unowned.items()}

    def count_references(self) -> None:
        """Count the partitions that refer to each commit, after the other attributes were set."""
        self._references.clear()
        for pieces in (self.live, *(one.pieces for one in self.left)):
            for numbers in pieces.values():
                self._references.update(numbers)

    def _commit(self, entry: Entry, commit: Commit) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
        """Return what left the table, and what entered it."""
        number = self.generation = entry.number
        gained: dict[str, list[int]] = {}
        left = self.left_by(commit.takes, commit.partitions)
        for name in left:
            del self.live[name]
        for name, numbers in commit.restores.items():
            gained[name] = [one for one in numbers if one not in self.live.get(name, ())]
            self._restore(name, numbers, left)
        if commit.schemas:
            self.newest_schemas = tuple(commit.schemas)
        source = Source.of(entry, commit)
        if source.partitions:
            known = tuple(self._schemas.setdefault(text, text) for text in commit.schemas)
            self.sources[number] = replace(source, schemas=known)
            self._references[number] += len(source.partitions)
        for name in source.partitions:
            self.live.setdefault(name, []).append(number)
            gained.setdefault(name, []).append(number)
        return {name: numbers for name, numbers in left.items() if numbers}, gained

    def _restore(self, partition: str, numbers: list[int], left: dict[str, list[int]]) -> None:
        """Give a partition the commits that it had: some of them are live now, the others are retained."""
        before = self.live.pop(partition, [])
        for generation, kept in list(self.retained.items()):
            if still := [one for one in kept.pieces.pop(partition, ()) if one not in numbers]:
                kept.pieces[partition] = still
            elif not kept.pieces and not kept.unowned:
                del self.retained[generation]
        if numbers:
            self.live[partition] = list(numbers)
        left[partition] = [one for one in before if one not in numbers]

    def _forget(self, pieces: Pieces) -> None:
        for numbers in pieces.values():
            for number in numbers:
                self._references[number] -= 1
                if not self._references[number]:
                    del self._references[number], self.sources[number]

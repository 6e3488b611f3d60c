"""The table: what the entries of a log add up to, one after the other.

The table holds no names of files. It knows which commits each partition consists of; the list of files of a
commit has the names. So it stays small for a million files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

from msgspec import UNSET, Struct
from msgspec.structs import replace

from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol.model.entry import Commit, Entry
from airflow_s3commit.protocol.model.job import Position
from airflow_s3commit.protocol.model.sealed_job import Counts

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
    """What a commit took from the table.

    Attributes:
        pieces: The commits by partition.
        sources: These commits, by number.
    """

    pieces: Mapping[str, list[int]]
    sources: Mapping[int, Source]


class Retained(Struct, frozen=True):
    """What a commit took from the table, and what stays in place for a while.

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
        freed: The same, of what the newest release freed. Some of it may still be there; what earlier
            releases freed is deleted.
        sources: The commits that are live or retained, by number.
        newest_schemas: The schemas of the newest commit that has some: a table without files has its columns.
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
        """Apply the next entry, and return what left the table.

        Args:
            entry: The entry after the head.
            sha256: SHA-256 of its bytes.

        Raises:
            InvalidRecord: It restores what is not in place. The table is as before.
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
        left = self._commit(entry, entry.commit)
        sources = {number: self.sources[number] for numbers in left.values() for number in numbers}
        unowned = {one.key: one.etag for one in entry.commit.unowned}
        if entry.commit.retain and (left or unowned):
            self.retained[entry.number] = Retained(left, entry.commit.retain, unowned)
        else:
            self._forget(left)
        return Left(left, sources)

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
        for one in (*self.retained.values(), *self.freed.values()):
            numbers.update(one.pieces.get(partition, ()))
        return numbers

    def partitions(self) -> set[str]:
        """Return the partitions with files that are in the table, retained or freed."""
        left = (*self.retained.values(), *self.freed.values())
        return {*self.live}.union(*(one.pieces for one in left))

    def jobs_in(self, partition: str) -> set[str | None]:
        """Return the jobs whose files in a partition are in the table, retained or freed; None for no id."""
        return {owner for number in self.numbers_in(partition) for owner in self.sources[number].owners}

    def commits(self, since: int = 0) -> dict[int, list[str]]:
        """Return the commits after a generation whose files are in the table, and their partitions here."""
        found: dict[int, list[str]] = {}
        for name in sorted(self.live):
            for number in self.live[name]:
                if number > since:
                    found.setdefault(number, []).append(name)
        return dict(sorted(found.items()))

    def schemas(self) -> list[str]:
        """Return the different schemas of the files, oldest first; of an empty table its last ones."""
        found = {text: None for number in self.commits() for text in self.sources[number].schemas}
        return list(found or dict.fromkeys(self.newest_schemas))

    def without_schemas(self) -> list[int]:
        """Return the commits whose schemas are unknown, in their order."""
        return [number for number in self.commits() if not self.sources[number].schemas]

    def unowned_in_place(self) -> dict[str, str]:
        """Return the ETags of other programs' objects that are retained or freed, by key."""
        found: dict[str, str] = {}
        for one in (*self.retained.values(), *self.freed.values()):
            found |= one.unowned
        return found

    def count_references(self) -> None:
        """Count the partitions that refer to each commit, after the other attributes were set."""
        self._references.clear()
        left = (*self.retained.values(), *self.freed.values())
        for pieces in (self.live, *(one.pieces for one in left)):
            for numbers in pieces.values():
                self._references.update(numbers)

    def _commit(self, entry: Entry, commit: Commit) -> dict[str, list[int]]:
        number = self.generation = entry.number
        left = self.left_by(commit.takes, commit.partitions)
        for name in left:
            del self.live[name]
        for name, numbers in commit.restores.items():
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
        return {name: numbers for name, numbers in left.items() if numbers}

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

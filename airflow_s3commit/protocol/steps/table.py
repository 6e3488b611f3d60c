"""The table: what the entries of a log add up to, one after the other.

The table holds no names of files. It knows which commits each partition consists of; the list of files of a
commit has the names. So it stays small for a million files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

from msgspec import UNSET, Struct

from airflow_s3commit.protocol.model.sealed_job import Counts
from airflow_s3commit.protocol.steps.entry import Commit, Entry, Position

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

    """

    number: int
    job_id: str | None
    files_sha256: str
    is_within: bool
    partitions: Mapping[str, Counts]


class Left(Struct, frozen=True):
    """What a commit took from the table.

    Attributes:
        pieces: The commits by partition.
        sources: These commits, by number.

    """

    pieces: Mapping[str, list[int]]
    sources: Mapping[int, Source]


class Table:
    """A table after some entries of its log.

    Attributes:
        head: The last of these entries.
        generation: Number of the last commit among them; 0 without one.
        live: The commits that each partition consists of.
        retained: The pieces that left the table and stay in place, by the generation that took them.
        sources: The commits that are live or retained, by number.

    """

    def __init__(self) -> None:
        self.head = Position()
        self.generation = 0
        self.live: dict[str, list[int]] = {}
        self.retained: dict[int, dict[str, list[int]]] = {}
        self.sources: dict[int, Source] = {}
        self._references: Counter[int] = Counter()

    def apply(self, entry: Entry, sha256: str) -> Left:
        """Apply the next entry, and return what left the table.

        Args:
            entry: The entry after the head.
            sha256: SHA-256 of its bytes.

        """
        self.head = Position(entry.number, sha256)
        for generation in entry.frees:
            self._forget(self.retained.pop(generation, {}))
        if entry.commit is None:
            return Left({}, {})
        sources = dict(self.sources)
        left = self._commit(entry, entry.commit)
        numbers = {number for numbers in left.values() for number in numbers}
        if entry.commit.retain and left:
            self.retained[entry.number] = left
        else:
            self._forget(left)
        return Left(left, {number: sources[number] for number in numbers})

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
        return any(number in pieces.get(partition, ()) for pieces in self.retained.values())

    def _commit(self, entry: Entry, commit: Commit) -> dict[str, list[int]]:
        number = self.generation = entry.number
        left = self.left_by(commit.takes, commit.partitions)
        for name in left:
            del self.live[name]
        for name, numbers in commit.restores.items():
            self._restore(name, numbers, left)
        added = [name for name, counts in commit.partitions.items() if counts.files]
        if added:
            self.sources[number] = Source(
                number,
                entry.job_id,
                commit.files_sha256,
                commit.within is not UNSET,
                {name: commit.partitions[name].without_columns() for name in added},
            )
            self._references[number] += len(added)
        for name in added:
            self.live.setdefault(name, []).append(number)
        return {name: numbers for name, numbers in left.items() if numbers}

    def _restore(self, partition: str, numbers: list[int], left: dict[str, list[int]]) -> None:
        """Give a partition the commits that it had: some of them are live now, the others are retained."""
        before = self.live.pop(partition, [])
        for pieces in self.retained.values():
            pieces[partition] = [one for one in pieces.get(partition, ()) if one not in numbers]
        if numbers:
            self.live[partition] = list(numbers)
        left[partition] = [one for one in before if one not in numbers]

    def _forget(self, pieces: Pieces) -> None:
        for numbers in pieces.values():
            for number in numbers:
                self._references[number] -= 1
                if not self._references[number]:
                    del self._references[number], self.sources[number]

"""The table at a generation: what a destination's log adds up to."""

from __future__ import annotations

import dataclasses
from bisect import insort
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol.model.layout import check_id
from airflow_s3commit.protocol.model.log import (
    Checkpoint,
    CheckpointHead,
    LiveCommit,
    LogEntry,
    NewestSchemas,
    Release,
    RetainedCommit,
)
from airflow_s3commit.protocol.model.manifest import ManifestRecord


class JobSchema(NamedTuple):
    """The schema of files, as in a manifest, and a job that wrote such files."""

    job_id: str
    schema: str


@dataclass(slots=True)
class _Commit:
    job_id: str
    files_sha256: str
    #: Partitions of it that are still in the table.
    live: int
    schemas: tuple[str, ...] = ()
    within: bool = False


@dataclass(frozen=True, slots=True)
class _Retained:
    job_id: str
    files_sha256: str
    removed: int
    retain: int
    released: int = 0
    schemas: tuple[str, ...] = ()
    within: bool = False


@dataclass(slots=True)
class TableSnapshot:
    """The commits that a table consists of, after a number of entries of its log.

    Attributes:
        destination: URI of the table.
        number: Number of the last entry.
        nonce: Nonce of that entry.
        generation: Generation of the newest commit; 0 without one.
        baseline: Number of the baseline whose objects are still in the table; 0 without one. Its objects
            are those that no commit lists and no job owns that is in the log or unfinished.
        removed: Partitions that have no such objects, because commits have removed them.
        original: URI that the last entry names, if it was copied here with the dataset; else empty.

    """

    destination: str
    number: int = 0
    nonce: str = ""
    generation: int = 0
    baseline: int = 0
    removed: set[str] = dataclasses.field(default_factory=set)
    original: str = ""
    _commits: dict[int, _Commit] = dataclasses.field(default_factory=dict)
    #: The commits that have files in a partition, in their order.
    _partitions: dict[str, list[int]] = dataclasses.field(default_factory=dict)
    #: The commits that have retained files in a partition, by number.
    _retained: dict[str, dict[int, _Retained]] = dataclasses.field(default_factory=dict)
    #: The newest commit whose schemas are known: a table without files has its columns.
    _newest: tuple[str, tuple[str, ...]] = ("", ())
    #: The schemas, each of which is in memory once.
    _schemas: dict[str, str] = dataclasses.field(default_factory=dict)

    def apply(self, entry: LogEntry) -> None:
        """Take the next entry of the log into account.

        One of another destination was copied here: it is not of this table, and ends what was there before.
        """
        self.number, self.nonce = entry.number, entry.nonce
        self.original = entry.destination if entry.destination != self.destination else ""
        if self.original:
            self.generation = 0
            self._begin_anew()
        elif entry.kind == "baseline":
            self._begin_anew()
            self.baseline = entry.number
        elif entry.release is not None:
            self._release(entry.number, entry.release)
        elif entry.manifest is not None:
            self._commit(entry, entry.manifest)

    def _commit(self, entry: LogEntry, manifest: ManifestRecord) -> None:
        self.generation = entry.number
        touched = manifest.partitions
        if entry.restores is not None:
            self._roll_back(entry, touched)
            return
        number = entry.number
        if entry.closing:
            # Its files came before all others.
            number, self.baseline = self.baseline or number, 0
            self.removed.clear()
        if entry.removes == "everything":
            self._remove(list(self._partitions), entry)
            self.baseline = 0
            self.removed.clear()
        elif entry.removes == "partitions":
            self._remove(touched, entry)
        written = [name for name, counts in touched.items() if counts.files]
        schemas = tuple(self._schemas.setdefault(text, text) for text in manifest.schemas)
        found = _Commit(
            entry.job_id,
            manifest.files_sha256,
            len(written),
            schemas,
            within=manifest.within is not UNSET,
        )
        self._add(number, found, written)
        if schemas:
            self._newest = (entry.job_id, schemas)

    def schemas(self) -> list[JobSchema]:
        """Return the different schemas of the table's files, each with the first job that wrote it.

        Without a commit whose schemas are known and whose files are in the table, they are those of the
        newest commit whose schemas are known.
        """
        found = {
            text: commit.job_id
            for _, commit in sorted(self._commits.items(), reverse=True)
            for text in reversed(commit.schemas)
        }
        if not found:
            return [JobSchema(self._newest[0], text) for text in self._newest[1]]
        return [JobSchema(job_id, text) for text, job_id in reversed(found.items())]

    def without_schemas(self) -> list[int]:
        """Return the numbers of the commits whose schemas are unknown, in their order."""
        return sorted(number for number, commit in self._commits.items() if not commit.schemas)

    @property
    def partitions(self) -> Collection[str]:
        """The directories that have files."""
        return self._partitions.keys()

    def newest_in(self, partitions: Collection[str]) -> str | None:
        """Return the job of the newest commit with files in one of the partitions; None without one."""
        numbers = [self._partitions[name][-1] for name in partitions if name in self._partitions]
        return self._commits[max(numbers)].job_id if numbers else None

    def commits(self, since: int = 0) -> list[LiveCommit]:
        """Return the commits after a generation whose files are still in the table, in their order."""
        partitions: dict[int, list[str]] = {number: [] for number in self._commits if number > since}
        for partition, numbers in sorted(self._partitions.items()):
            for number in numbers:
                if number > since:
                    partitions[number].append(partition)
        return [
            LiveCommit(
                number=number,
                job_id=self._commits[number].job_id,
                files_sha256=self._commits[number].files_sha256,
                partitions=live,
                within=self._commits[number].within,
            )
            for number, live in sorted(partitions.items())
        ]

    def retained(self) -> list[RetainedCommit]:
        """Return the commits that have retained files, by number: released ones until they are deleted."""
        return self._retained_lines({})

    def _retained_lines(self, positions: Mapping[str, int]) -> list[RetainedCommit]:
        """Return the same, with the positions of the schemas where they have one."""
        partitions: dict[tuple[int, _Retained], list[str]] = {}
        for partition, commits in sorted(self._retained.items()):
            for number, retained in commits.items():
                partitions.setdefault((number, retained), []).append(partition)
        return [
            RetainedCommit(
                number=number,
                job_id=retained.job_id,
                files_sha256=retained.files_sha256,
                partitions=theirs,
                removed=retained.removed,
                retain=retained.retain,
                released=retained.released,
                within=retained.within,
                schemas=[positions[text] for text in retained.schemas if text in positions],
            )
            for (number, retained), theirs in sorted(
                partitions.items(), key=lambda item: (item[0][0], item[0][1].removed)
            )
        ]

    def numbers_in(self, partition: str) -> frozenset[int]:
        """Return the commits with files in a partition of the table."""
        return frozenset(self._partitions.get(partition, ()))

    def can_take_back(self, partition: str, number: int) -> bool:
        """Return whether the files of a commit in a partition are retained and not released."""
        retained = self._retained.get(partition, {}).get(number)
        return retained is not None and not retained.released

    def live_jobs(self, partition: str) -> frozenset[str]:
        """Return the jobs with files in a partition of the table."""
        return frozenset(self._commits[number].job_id for number in self._partitions.get(partition, ()))

    def retained_jobs(self, partition: str) -> frozenset[str]:
        """Return the jobs with retained files in a partition, released ones until they are deleted."""
        return frozenset(retained.job_id for retained in self._retained.get(partition, {}).values())

    def _add(self, number: int, commit: _Commit, partitions: Collection[str]) -> None:
        for partition in partitions:
            insort(self._partitions.setdefault(partition, []), number)
        if partitions:
            self._commits[number] = commit

    def _remove(self, partitions: Collection[str], remover: LogEntry) -> None:
        for partition in partitions:
            if self.baseline:
                self.removed.add(partition)
            for number in self._partitions.pop(partition, ()):
                self._drop(partition, number, remover)

    def _drop(self, partition: str, number: int, remover: LogEntry) -> None:
        """Take a commit's files in a partition from the table."""
        commit = self._commits[number]
        if remover.retain:
            retained = _Retained(
                commit.job_id,
                commit.files_sha256,
                remover.number,
                remover.retain,
                schemas=commit.schemas,
                within=commit.within,
            )
            self._retained.setdefault(partition, {})[number] = retained
        commit.live -= 1
        if not commit.live:
            del self._commits[number]

    def _roll_back(self, entry: LogEntry, touched: Collection[str]) -> None:
        """Make the touched partitions consist of the commits that the entry names."""
        restored: dict[str, list[LiveCommit]] = {partition: [] for partition in touched}
        for commit in entry.restores or ():
            for partition in restored.keys() & commit.partitions:
                restored[partition].append(commit)
        for partition, commits in restored.items():
            numbers = [commit.number for commit in commits]
            before = self._partitions.pop(partition, [])
            for number in before:
                if number not in numbers:
                    self._drop(partition, number, entry)
            for commit in commits:
                if commit.number not in before:
                    self._take_back(partition, commit)
            if numbers:
                self._partitions[partition] = sorted(numbers)

    def _take_back(self, partition: str, commit: LiveCommit) -> None:
        retained = self._retained.get(partition, {})
        before = retained.pop(commit.number, None)
        schemas = before.schemas if before is not None else ()
        back = _Commit(commit.job_id, commit.files_sha256, 0, schemas, commit.within)
        self._commits.setdefault(commit.number, back).live += 1
        if not retained:
            self._retained.pop(partition, None)

    def _release(self, number: int, release: Release) -> None:
        """Mark what the named commits have removed as released, and forget what is deleted."""
        removers = frozenset(release.commits)
        for partition, commits in list(self._retained.items()):
            left = {
                commit: dataclasses.replace(retained, released=number)
                if not retained.released and retained.removed in removers
                else retained
                for commit, retained in commits.items()
                if not 0 < retained.released <= release.finished
            }
            if left:
                self._retained[partition] = left
            else:
                del self._retained[partition]

    def _begin_anew(self) -> None:
        self._commits.clear()
        self._partitions.clear()
        self._retained.clear()
        self._newest = ("", ())
        self.baseline = 0
        self.removed.clear()

    def to_bytes(self) -> bytes:
        """Return the checkpoint: compressed JSON lines, the same bytes for the same log."""
        held = [commit.schemas for commit in self._commits.values()]
        held += [retained.schemas for some in self._retained.values() for retained in some.values()]
        texts = sorted({text for schemas in held for text in schemas} | {*self._newest[1]})
        positions = {text: number for number, text in enumerate(texts)}
        commits = [
            msgspec.structs.replace(
                commit, schemas=[positions[text] for text in self._commits[commit.number].schemas]
            )
            for commit in self.commits()
        ]
        retained, (newest, theirs) = self._retained_lines(positions), self._newest
        head = CheckpointHead(
            destination=self.destination,
            number=self.number,
            entry_nonce=self.nonce,
            generation=self.generation,
            commits=len(commits),
            retained=len(retained),
            baseline=self.baseline,
            removed=sorted(self.removed),
            schemas=texts,
            newest=NewestSchemas(job_id=newest, schemas=[positions[text] for text in theirs])
            if theirs
            else None,
        )
        return Checkpoint(head, commits, retained).to_bytes()

    @classmethod
    def from_bytes(cls, body: bytes, destination: str, number: int, where: str) -> TableSnapshot:
        """Read a checkpoint.

        Args:
            body: Its bytes.
            destination: URI of the table.
            number: Number of its last entry.
            where: Its URI, for the message.

        Raises:
            InvalidRecord: It is damaged, too large, or of another table or entry.

        """
        head, commits, retained_commits = Checkpoint.from_bytes(body, where)
        if (head.destination, head.number) != (destination, number):
            raise InvalidRecord(f"{where} is the checkpoint of entry {head.number} of {head.destination}")
        snapshot = cls(
            destination, number, head.entry_nonce, head.generation, head.baseline, set(head.removed)
        )
        snapshot._schemas = {text: text for text in head.schemas}
        if head.newest is not None:
            snapshot._newest = check_id(head.newest.job_id), _picked(head.schemas, head.newest.schemas, where)
        last = 0
        for commit in commits:
            check_id(commit.job_id)
            if not last < commit.number <= number:
                raise InvalidRecord(f"{where} names commit {commit.number} after {last}")
            last = commit.number
            partitions = list(dict.fromkeys(commit.partitions))
            schemas = _picked(head.schemas, commit.schemas, where)
            found = _Commit(
                commit.job_id,
                commit.files_sha256,
                len(partitions),
                schemas,
                commit.within,
            )
            snapshot._add(commit.number, found, partitions)
        for retained in retained_commits:
            check_id(retained.job_id)
            for partition in retained.partitions:
                snapshot._retained.setdefault(partition, {})[retained.number] = _Retained(
                    retained.job_id,
                    retained.files_sha256,
                    retained.removed,
                    retained.retain,
                    retained.released,
                    _picked(head.schemas, retained.schemas, where),
                    retained.within,
                )
        return snapshot


def _picked(texts: list[str], positions: list[int], where: str) -> tuple[str, ...]:
    if any(position >= len(texts) for position in positions):
        raise InvalidRecord(f"{where} names a schema that it does not have")
    return tuple(texts[position] for position in positions)

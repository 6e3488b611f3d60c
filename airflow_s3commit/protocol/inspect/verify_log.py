"""Verifies a destination's log: its entries, and the records that are derived from them. Reads only.

What is wrong is a finding, not an error. A finding is harmless if nothing that a commit or a reader of the
table decides depends on it.
"""

from __future__ import annotations

import copy
import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec import UNSET, Struct

from airflow_s3commit.exceptions import (
    ForeignRecord,
    InvalidRecord,
    NoSuchKey,
    TooLarge,
)
from airflow_s3commit.protocol.inspect.staging import JobFacts, folders_below, job_facts
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.log import each_entry, next_entries
from airflow_s3commit.protocol.metadata.manifests import each_list, key_with_list, read_success
from airflow_s3commit.protocol.metadata.snapshot import read_snapshot
from airflow_s3commit.protocol.model.codec import CHECKPOINT_BYTES, decode, largest, sha256
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.job import AbortedRecord, State
from airflow_s3commit.protocol.model.layout import (
    SUCCESS,
    Layout,
    checkpoint_key,
    checkpoint_number,
    checkpoints_prefix,
    entry_key,
)
from airflow_s3commit.protocol.model.log import LiveCommit, LogEntry
from airflow_s3commit.protocol.model.manifest import ManifestRecord, SuccessData
from airflow_s3commit.protocol.model.snapshot import TableSnapshot
from airflow_s3commit.store.base import Fetched, Get, ObjectStore
from airflow_s3commit.store.execute import in_batches, outcomes

logger = logging.getLogger(__name__)

#: Records to read at once.
_AT_ONCE = 64

#: States of a job that may have taken ``_SUCCESS`` away.
_AT_WORK = ("committing", "committed", "aborting")

#: States of a job that may still delete files.
_DELETING = ("committed", "aborting")


class LogFinding(Struct, frozen=True, kw_only=True):
    """Something that is wrong with a destination's log, or with a record that is derived from it.

    Attributes:
        where: URI of the record.
        problem: What is wrong.
        harmless: Whether commits and readers of the table do without the record.
        remedy: What puts it right.

    """

    where: str
    problem: str
    harmless: bool
    remedy: str


class Misplaced(NamedTuple):
    """A partition whose ``_SUCCESS`` is not the one that follows from the log.

    Attributes:
        partition: The partition.
        generation: The commit whose marker it must have; 0 if it must have none.
        etag: ETag of the marker that it has; empty without one.

    """

    partition: str
    generation: int
    etag: str


@dataclass
class LogCheck:
    """The entries of a log, what they add up to, and what is wrong.

    Args:
        store: The store of the destination.
        destination: The destination.
        generation: The generation that the table is checked at; None for the newest.
        step: Called with the number of entries that were read.

    Attributes:
        table: The table at the generation; None if the log is too damaged to know it.
        newest: The table at the head; None likewise.
        head: Number of the newest entry that was read.
        ended: Number and kind of the entry of each job.
        later: Partitions that commits after the generation added files to or removed files from.
        later_everything: Whether one of them removed everything.
        findings: What is wrong.
        misplaced: Which partitions have another ``_SUCCESS`` than they must have, by its key.

    """

    store: ObjectStore
    destination: Destination
    generation: int | None = None
    step: Callable[[int], None] = lambda _: None
    table: TableSnapshot | None = None
    newest: TableSnapshot | None = None
    head: int = 0
    ended: dict[str, tuple[int, str]] = field(default_factory=dict)
    later: set[str] = field(default_factory=set)
    later_everything: bool = False
    findings: list[LogFinding] = field(default_factory=list)
    misplaced: dict[str, Misplaced] = field(default_factory=dict)
    _newest: int = 0
    #: Which commit's marker each partition must have, 0 for none; of partitions that have ever had one.
    _marked: dict[str, int] = field(default_factory=dict)
    #: Each commit, without its partitions, by its number.
    _lists: dict[int, LiveCommit] = field(default_factory=dict)
    #: Keys of manifests that are missing, by the numbers of their entries.
    _missing: dict[int, str] = field(default_factory=dict)

    def read(self) -> LogCheck:
        """Read the whole log, compare what is derived from it, and return itself.

        Raises:
            NoSuchKey: There is no such generation.
            S3CommitError: A request failed.

        """
        checkpoints = self._checkpoints()
        fold: TableSnapshot | None = TableSnapshot(self.destination.uri)
        for batch in in_batches(each_entry(self.store, self.destination), _AT_ONCE):
            good: list[LogEntry] = []
            for number, entry in batch:
                self.head = number
                if isinstance(entry, InvalidRecord):
                    self._add(entry_key(self.destination, number), str(entry), _NO_ENTRY, harmless=False)
                    fold = None
                    continue
                if self._is_whole(entry):
                    good.append(entry)
                self._take(entry)
                if fold is not None:
                    fold.apply(entry)
                    self._compare_checkpoint(fold, checkpoints)
                    if number == self.generation and not fold.original:
                        self.table = copy.deepcopy(fold)
            self._compare_derived([entry for entry in good if entry.destination == self.destination.uri])
            self.step(self.head)
        self.newest = fold if fold is not None else self._checkpointed(None)
        if self.table is None:
            self.table = self.newest if self.generation is None else self._checkpointed(self.generation)
        for number, key in self._missing.items():
            self._add(key, "is missing", _MANIFEST, harmless=number == self.head)
        if self.table is not None:
            # What is read from here on came after it.
            self.generation = self.table.generation
        self._compare_marker()
        self._compare_partition_markers()
        return self

    def catch_up(self) -> None:
        """Read the entries that were created meanwhile."""
        for entry in next_entries(self.store, self.destination, self.head):
            self._take(entry)

    def is_later(self, partition: str) -> bool:
        """Return whether a commit after the generation changed a partition."""
        return self.later_everything or partition in self.later

    def compare_lists(self, live: Iterable[LiveCommit]) -> None:
        """Compare the lists of files of commits that are not live with the SHA-256 in their entries.

        Lists within entries were compared when these were read.

        Args:
            live: The commits whose lists the caller reads, which compares them too.

        """
        for commit in live:
            self._lists.pop(commit.number, None)
        objects = (commit for commit in self._lists.values() if not commit.within)
        for commit, pieces in each_list(self.store, self.destination, objects):
            digest = hashlib.sha256()
            try:
                for piece in pieces:
                    digest.update(piece)
                if digest.hexdigest() != commit.files_sha256:
                    self.add_list(commit, "is not the list that the commit's entry names")
            except (NoSuchKey, InvalidRecord) as error:
                self.add_list(commit, str(error))

    def add_list(self, commit: LiveCommit, problem: str) -> None:
        """Add a finding about the list of files of a commit."""
        self._add(key_with_list(self.destination, commit), problem, NO_LIST, harmless=False)

    def _take(self, entry: LogEntry) -> None:
        self.head = entry.number
        if entry.destination != self.destination.uri:
            # Copied here: the history before it is of another place.
            self.ended.clear()
            self._lists.clear()
            self._marked.clear()
            self._newest = 0
            self.later_everything = self.generation is not None and entry.number > self.generation
            return
        if entry.manifest is not None:
            self._newest = entry.number
            self._lists[entry.number] = LiveCommit(
                number=entry.number,
                job_id=entry.job_id,
                files_sha256=entry.manifest.files_sha256,
                partitions=[],
                within=entry.manifest.within is not UNSET,
            )
            if self.generation is not None and entry.number > self.generation:
                self.later |= entry.manifest.partitions.keys()
                self.later_everything |= entry.removes == "everything"
            self._mark(entry, entry.manifest)
        if entry.manifest is not None or entry.aborted is not None:
            self.ended[entry.job_id] = (entry.number, entry.kind)

    def _is_whole(self, entry: LogEntry) -> bool:
        """Return whether the list of files within an entry, if there is one, is the one that it names."""
        listed = entry.manifest.listed if entry.manifest is not None else None
        is_own = entry.destination == self.destination.uri
        if entry.manifest is None or listed is None or not is_own:
            return True
        if sha256(listed) == entry.manifest.files_sha256:
            return True
        key = entry_key(self.destination, entry.number)
        self._add(key, "has another list of files within than it names", NO_LIST, harmless=False)
        return False

    def _mark(self, entry: LogEntry, manifest: ManifestRecord) -> None:
        """Take into account which markers of partitions a commit writes and takes away."""
        if entry.closing:
            # It writes no markers: its files came before those of other commits.
            return
        if entry.removes == "everything":
            self._marked = dict.fromkeys(self._marked, 0)
        for partition, counts in manifest.partitions.items():
            # The marker of the root is the destination's.
            if entry.marking and counts.files and partition:
                self._marked[partition] = entry.number
            elif entry.removes == "partitions" and partition in self._marked:
                self._marked[partition] = 0

    def _checkpointed(self, generation: int | None) -> TableSnapshot | None:
        """Return a table from its newest checkpoint, where entries before that are damaged."""
        try:
            return read_snapshot(self.store, self.destination, generation)
        except InvalidRecord as error:
            logger.warning("%s: the table is not known: %s", self.destination.uri, error)
            return None

    def _checkpoints(self) -> set[int]:
        prefix = checkpoints_prefix(self.destination)
        listed = self.store.list_objects(self.destination.bucket, prefix, recursive=False)
        return {checkpoint_number(self.destination, info.key) or 0 for info in listed}

    def _compare_checkpoint(self, fold: TableSnapshot, checkpoints: set[int]) -> None:
        if fold.number not in checkpoints or fold.original:
            # Readers pass over one that was copied here.
            return
        key = checkpoint_key(self.destination, fold.number)
        where = join_uri(self.destination.bucket, key)
        try:
            body = self.store.get(self.destination.bucket, key, limit=CHECKPOINT_BYTES).body
            if TableSnapshot.from_bytes(body, self.destination.uri, fold.number, where) != fold:
                raise InvalidRecord("is not what the log up to it adds up to")
        except NoSuchKey:
            return
        except InvalidRecord as error:
            is_own = "adds up" in str(error)
            self._add(key, str(error), _CHECKPOINT_READ if is_own else _CHECKPOINT, harmless=not is_own)

    def _compare_derived(self, entries: list[LogEntry]) -> None:
        """Compare the manifest or abort record of each job with its entry."""
        bucket, limits = self.destination.bucket, (largest(ManifestRecord), largest(AbortedRecord))
        calls: list[tuple[tuple[LogEntry, ManifestRecord | AbortedRecord, str], Get]] = []
        for entry in entries:
            layout = Layout.of(self.destination, entry.job_id)
            record = entry.manifest or entry.aborted
            if isinstance(record, ManifestRecord):
                calls.append(((entry, record, layout.manifest), Get(bucket, layout.manifest, limits[0])))
            elif record is not None:
                calls.append(((entry, record, layout.aborted), Get(bucket, layout.aborted, limits[1])))
        for (entry, record, key), outcome in outcomes(self.store, calls, NoSuchKey, InvalidRecord):
            if isinstance(outcome, NoSuchKey):
                # A sweep removes records of aborts; the newest entry's record is written with the next one.
                if entry.kind != "abandon":
                    self._missing[entry.number] = key
                continue
            try:
                if isinstance(outcome, InvalidRecord):
                    raise outcome
                assert isinstance(outcome, Fetched)
                if decode(type(record), outcome.body, join_uri(bucket, key)) != record:
                    raise InvalidRecord(f"differs from the one in entry {entry.number}")
            except InvalidRecord as error:
                self._add(key, str(error), _MANIFEST, harmless=False)

    def _compare_marker(self) -> None:
        """Compare ``_SUCCESS`` with the newest commit, unless a job is at work that may have removed it."""
        # Twice, because a job may have ended since the first look, or have removed it before the second.
        problem = None
        for _ in range(2):
            problem = self._success_problem()
            if problem is None or self._is_at_work():
                return
        newest = self._newest
        self.catch_up()
        if problem is not None and self._newest == newest:
            self._add(self.destination.key(SUCCESS), problem, _MARKER, harmless=False)

    def _success_problem(self) -> str | None:
        """Return what is wrong with the destination's ``_SUCCESS``; None if nothing is."""
        if not self._newest:
            return None
        try:
            success = read_success(self.store, self.destination)
        except NoSuchKey:
            return f"is missing; the newest generation is {self._newest}"
        except (ForeignRecord, InvalidRecord) as error:
            return str(error)
        if success.generation is None:
            return f"is of job {success.jobId or '?'}, which is not in the log"
        if success.generation < self._newest:
            return f"names generation {success.generation}; the newest is {self._newest}"
        return None

    def _compare_partition_markers(self) -> None:
        """Compare ``_SUCCESS`` in each partition with the log, unless a job that may change it is at work."""
        wrong = self._wrong_markers(self._marked)
        if not wrong or self._is_at_work():
            return
        # Again, because a job may have ended since: its markers are in place before its records go.
        expected = {misplaced.partition: misplaced.generation for misplaced, _ in wrong}
        wrong = self._wrong_markers(expected)
        self.catch_up()
        for misplaced, problem in wrong:
            if self._marked.get(misplaced.partition) == misplaced.generation:
                key = self._marker_key(misplaced.partition)
                self.misplaced[key] = misplaced
                self._add(key, problem, _PARTITION_MARKER, harmless=False)

    def _wrong_markers(self, expected: dict[str, int]) -> list[tuple[Misplaced, str]]:
        """Return the partitions whose marker is not the expected one, in their order, and what is wrong."""
        bucket, limit = self.destination.bucket, largest(SuccessData)
        wrong: list[tuple[Misplaced, str]] = []
        calls = ((one, Get(bucket, self._marker_key(one), limit)) for one in expected)
        for partition, outcome in outcomes(self.store, calls, NoSuchKey, TooLarge):
            generation = expected[partition]
            etag, success = "", None
            if isinstance(outcome, Fetched):
                etag = outcome.info.etag
                with suppress(InvalidRecord):
                    success = decode(SuccessData, outcome.body, outcome.info.key)
            elif isinstance(outcome, TooLarge):
                etag = self.store.head(bucket, self._marker_key(partition)).etag
            problem = self._marker_problem(generation, success, is_there=bool(etag))
            if problem is not None:
                wrong.append((Misplaced(partition, generation, etag), problem))
        return sorted(wrong)

    def _marker_key(self, partition: str) -> str:
        return self.destination.key(f"{partition}/{SUCCESS}")

    def _marker_problem(self, generation: int, found: SuccessData | None, *, is_there: bool) -> str | None:
        """Return what is wrong with the marker of a partition; None if it is the one of its newest commit."""
        named = found.generation if found is not None else None
        if not generation:
            # The marker of another program stays there.
            return None if named is None else f"names generation {named}; no commit's files are left there"
        job_id = self._lists[generation].job_id
        newest = f"the newest commit there is generation {generation}, of job {job_id}"
        if not is_there:
            return f"is missing; {newest}"
        if found is None or named is None:
            return f"is damaged or of another program; {newest}"
        if (named, found.jobId) == (generation, job_id):
            return None
        return f"names generation {named}, of job {found.jobId or '?'}; {newest}"

    def _is_at_work(self) -> bool:
        return any(
            facts.problem is not None or (facts.state and facts.state.record.state in _AT_WORK)
            for _, facts in self._jobs()
        )

    def deleting(self) -> dict[str, State]:
        """Return the jobs that may still delete files: what they replaced, or what they had published.

        Returns:
            ``committed`` or ``aborting``, by the job's id.

        """
        reached = {job_id: facts.reached for job_id, facts in self._jobs()}
        return {job_id: state for job_id, state in reached.items() if state in _DELETING}

    def _jobs(self) -> Iterator[tuple[str, JobFacts]]:
        for folder in folders_below(self.store, self.destination):
            yield folder.job_id, job_facts(JobContext(self.store, folder.layout(self.destination)))

    def _add(self, key: str, problem: str, remedy: str, *, harmless: bool) -> None:
        where = join_uri(self.destination.bucket, key)
        problem = problem.removeprefix(f"{where} ")
        self.findings.append(LogFinding(where=where, problem=problem, harmless=harmless, remedy=remedy))


_NO_ENTRY = "restore it from a version of the object or a backup: until then nobody can commit"
NO_LIST = "restore it from a version of the object or a backup, or let a job replace its partitions"
_CHECKPOINT = "run s3commit repair; readers pass it over"
_CHECKPOINT_READ = "run s3commit repair; until then readers believe it"
_MANIFEST = "run s3commit repair; reads of this one job need it, reads of the table do not"
_MARKER = "run s3commit repair, or commit again"
_PARTITION_MARKER = "run s3commit repair, or commit to the partition again"

"""Verifies a destination's log: its entries, and the records that are derived from them. Reads only.

What is wrong is a finding, not an error. A finding is harmless if nothing that a commit or a reader of the
table decides depends on it. What a job at work explains is no finding: so the records of open jobs are read
after the log, and the log is read again before anything is reported that such a job may explain.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from msgspec import UNSET, Struct

from airflow_s3commit.exceptions import InvalidRecord, NoSuchKey, TooLarge
from airflow_s3commit.protocol.model.codec import CHECKPOINT_BYTES, MIB, Line, decode, largest, sha256
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.job import Position
from airflow_s3commit.protocol.model.layout import (
    CHECKPOINTS,
    SUCCESS,
    VERSIONS,
    checkpoint_key,
    checkpoint_number,
    delta_version,
    entry_key,
    is_id,
    job_key,
    receipt_key,
    version_key,
)
from airflow_s3commit.protocol.model.manifest import SuccessData
from airflow_s3commit.protocol.model.table import Entry, Pieces, Source, Table
from airflow_s3commit.protocol.steps import checkpoint
from airflow_s3commit.protocol.steps.files import FileSummary, each_list, key_with_list
from airflow_s3commit.protocol.steps.fold import (
    Outcome,
    entries_after,
    fetch_entries,
    read_success,
    read_table,
)
from airflow_s3commit.protocol.steps.log import Read, find_head, read_entry
from airflow_s3commit.protocol.steps.publish import START_BYTES, is_of, last_checkpoint, missing_versions
from airflow_s3commit.protocol.steps.sweep import Found, find_jobs
from airflow_s3commit.store.base import Fetched, Get, ObjectInfo, ObjectStore
from airflow_s3commit.store.execute import outcomes

logger = logging.getLogger(__name__)

#: Bytes of a version to read at once.
_PIECE = 8 * MIB


class LogFinding(Struct, frozen=True, kw_only=True):
    """Something that is wrong with a destination's log, or with a record that is derived from it.

    ``where`` is the record's URI. A finding is harmless if commits and readers do without the record.
    """

    where: str
    problem: str
    harmless: bool
    remedy: str

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}; {self.remedy}"


class Cure(NamedTuple):
    """How to put a record right: in words, and as the kind that a repair derives; None if it derives none."""

    words: str
    kind: Literal["receipt", "checkpoint", "marker", "partition marker", "version"] | None = None
    harmless: bool = False


class ListedFile(FileSummary, frozen=True, kw_only=True, gc=False):
    """What a comparison needs of a committed file."""

    etag: Line = ""
    upload: Line = ""


class Ending(NamedTuple):
    """How a job has ended: the number of its entry, and whether that is a commit."""

    number: int
    is_commit: bool


@dataclass
class LogCheck:
    """The entries of a log, what they add up to, and what is wrong.

    Attributes:
        newest: The table at the head; None if the log is too damaged to know it.
        open: The jobs with records of their own, as they were after the log was read.
        unfinished: The jobs that have ended, and that may not be cleaned up yet: those that had a record of
            their own after the log was read, and those that ended later.
        unread: The commits whose lists of files cannot be read, once `files` has read them.
        marked: For each partition that has had a marker, the newest entry that touched it.
        cures: How to derive a record again, by the URI of the finding: its key, cure and entry.
    """

    store: ObjectStore
    destination: Destination
    step: Callable[[int], None] = lambda _: None
    newest: Table | None = None
    head: int = 0
    ended: dict[str, Ending] = field(default_factory=dict)
    open: dict[str, Found] = field(default_factory=dict)
    unfinished: dict[str, Ending] = field(default_factory=dict)
    unread: set[int] = field(default_factory=set)
    marked: dict[str, int] = field(default_factory=dict)
    findings: list[LogFinding] = field(default_factory=list)
    cures: dict[str, tuple[str, Cure, int]] = field(default_factory=dict)
    _digests: dict[int, str] = field(default_factory=dict)
    #: By Delta version: number and nonce of its entry; files added and removed, None if the table is unknown.
    _versions: dict[int, tuple[int, str, int | None]] = field(default_factory=dict)
    #: How many files each commit has.
    _counted: dict[int, int] = field(default_factory=dict)
    #: The commits whose lists of files are objects of their own.
    _lists: dict[int, Source] = field(default_factory=dict)

    def read(self) -> LogCheck:
        """Read the whole log, and compare what is derived from it. Raises `NoSuchKey` if there is no log."""
        self._read_entries()
        # After the log: a job that has ended by then, and has no record of its own any more, is finished.
        self.open = find_jobs(self.store, self.destination)
        self.unfinished = {job_id: self.ended[job_id] for job_id in self.open if job_id in self.ended}
        self._compare_receipts()
        self.catch_up()
        self._compare_bases()
        self._compare_marker()
        self._compare_partition_markers()
        self._compare_versions()
        return self

    def catch_up(self) -> None:
        """Read the entries that were created meanwhile."""
        if self.head not in self._digests:
            return
        position = Position(self.head, self._digests[self.head])
        try:
            for read in entries_after(self.store, self.destination, position):
                self._take(read)
                if read.entry.job_id is not None:
                    self.unfinished[read.entry.job_id] = self.ended[read.entry.job_id]
        except InvalidRecord as error:
            key = entry_key(self.destination, self.head + 1)
            if not any(one.where.endswith(key) for one in self.findings):
                self._add(key, str(error), _NO_ENTRY)

    def files(self, more: Mapping[int, Source] = {}) -> Iterator[tuple[Source, ListedFile]]:
        """Yield the files of commits whose lists are objects, and of ``more``; compare lists with entries."""
        sources = {**self._lists, **more}
        for source, files in each_list(ListedFile, self.store, self.destination, sources.values()):
            # Not by the source: one from a checkpoint has only the partitions that are still of use.
            count, counted = 0, self._counted.get(source.number)
            try:
                for file in files:
                    count += 1
                    yield source, file
                if counted not in (None, count):
                    raise InvalidRecord(f"lists {count} files; entry {source.number} counts {counted}")
            except InvalidRecord as error:
                self.unread.add(source.number)
                self._add_list(source.number, str(error))

    def _add_list(self, number: int, problem: str) -> None:
        """Add a finding about the list of files of a commit, unless there is one."""
        source = self._lists.get(number)
        key = entry_key(self.destination, number)
        key = key if source is None else key_with_list(self.destination, source)
        if not any(one.where.endswith(key) for one in self.findings):
            self._add(key, problem, _NO_LIST)

    def _read_entries(self) -> None:
        """Read all entries, and add them up."""
        home = self.destination
        if not (listed := find_head(self.store, home)):
            raise NoSuchKey(f"{home.uri} has no log: no job was set up there")
        prefix = home.key(CHECKPOINTS)
        found = self.store.list_objects(home.bucket, prefix, recursive=False)
        checkpoints = {checkpoint_number(home, info.key) for info in found}
        self.newest = Table()
        # Entries that the listing does not show are read by `catch_up`.
        for number, outcome in fetch_entries(self.store, home, range(1, listed + 1)):
            read = self._checked(number, outcome)
            if read is None:
                self.head, self.newest = number, None
                continue
            self._take(read)
            if self.newest is not None and number in checkpoints:
                self._compare_checkpoint(self.newest)
            self.step(number)
        if self.newest is None:
            # The newest checkpoint may come after the damaged entry.
            try:
                self.newest = read_table(self.store, home, self.head)
            except (InvalidRecord, NoSuchKey) as error:
                logger.warning("%s: the table is not known: %s", home.uri, error)

    def _checked(self, number: int, outcome: Outcome) -> Read | None:
        """Return an entry if it is whole and follows the one before; otherwise add a finding."""
        remedy, before = _NO_ENTRY, self._digests.get(number - 1)
        if isinstance(outcome, NoSuchKey):
            problem = "is missing"
        elif isinstance(outcome, InvalidRecord):
            problem = str(outcome)
        elif outcome.entry.destination != self.destination.uri:
            problem, remedy = f"is of the log of {outcome.entry.destination}: this dataset is a copy", _COPY
        elif before is not None and outcome.entry.prev != before:
            problem = f"does not follow entry {number - 1}"
        elif outcome.entry.job_id is not None and not is_id(outcome.entry.job_id):
            problem = "is of a job with an impossible id"
        else:
            return outcome
        # One finding is enough to say that all entries were copied.
        if remedy != _COPY or all(finding.remedy != _COPY.words for finding in self.findings):
            self._add(entry_key(self.destination, number), problem, remedy)
        return None

    def _take(self, read: Read) -> None:
        """Note an entry, and add it up; the table is not known any more if the entry cannot follow."""
        entry, commit = read.entry, read.entry.commit
        self.head = entry.number
        self._digests[entry.number] = read.sha256
        if (version := entry.delta_version) is not None:
            self._versions[version] = entry.number, entry.nonce, None
        if entry.job_id is not None:
            self.ended[entry.job_id] = Ending(entry.number, commit is not None)
        if commit is not None:
            self._counted[entry.number] = sum(one.files for one in commit.partitions.values())
            if commit.within is UNSET:
                self._lists[entry.number] = Source(entry.number, entry.job_id, commit.files_sha256, False, {})
            elif sha256(b"".join(bytes(line) + b"\n" for line in commit.within)) != commit.files_sha256:
                self._add_list(entry.number, "has another list of files within than it names")
        if self.newest is None:
            return
        try:
            left = self.newest.apply(entry, read.sha256)
        except InvalidRecord as error:
            self._add(entry_key(self.destination, entry.number), str(error), _NO_ENTRY)
            self.newest = None
            return
        if version is not None:
            # The first version has the whole table.
            gained, lost = (left.gained, left.pieces) if version else (self.newest.live, {})
            files = _files(gained, self.newest.sources) + _files(lost, left.sources)
            self._versions[version] = entry.number, entry.nonce, files
        if entry.marks and commit is not None:
            touched = {*commit.partitions, *commit.restores, *left.pieces} - {""}
            self.marked |= dict.fromkeys(touched, entry.number)

    def _compare_checkpoint(self, fold: Table) -> None:
        home, number = self.destination, fold.head.number
        key = checkpoint_key(home, number)
        try:
            body = self.store.get(home.bucket, key, limit=CHECKPOINT_BYTES).body
            table = checkpoint.from_bytes(body, home.uri, join_uri(home.bucket, key))
        except NoSuchKey:
            return
        except InvalidRecord as error:
            self._add(key, str(error), _CHECKPOINT, number)
            return
        if table.head != fold.head:
            self._add(key, "is of another log", _CHECKPOINT, number)
        elif checkpoint.to_bytes(table, home.uri) != checkpoint.to_bytes(fold, home.uri):
            self._add(key, "is not what the log up to it adds up to", _CHECKPOINT_READ, number)

    def _compare_receipts(self) -> None:
        """Compare the receipts of jobs with their entries: only the newest one may lack its receipt."""
        bucket, limit = self.destination.bucket, largest(Entry)
        keys = {job_id: receipt_key(self.destination, job_id) for job_id in self.ended}
        calls = [(job_id, Get(bucket, key, limit)) for job_id, key in keys.items()]
        for job_id, outcome in outcomes(self.store, calls, NoSuchKey, InvalidRecord):
            number = self.ended[job_id].number
            if isinstance(outcome, NoSuchKey):
                if number != self.head:
                    self._add(keys[job_id], "is missing", _RECEIPT, number)
            elif not isinstance(outcome, Fetched) or sha256(outcome.body) != self._digests[number]:
                is_sure = number < self.head or not _is_entry(outcome)
                cure = _RECEIPT if is_sure else _EITHER
                self._add(keys[job_id], f"differs from entry {number}", cure, number)

    def _compare_bases(self) -> None:
        """Compare the log with what it was when open jobs were set up: another log may be in its place."""
        for job_id, job in self.open.items():
            base = job.record.base if job.record is not None else Position()
            key = job_key(self.destination, job_id)
            if base.number > self.head:
                self._add(key, f"begins after entry {base.number}; the log ends with {self.head}", _CUT)
            elif self._digests.get(base.number, base.sha256) != base.sha256:
                self._add(key, f"begins after another entry {base.number} than the log has", _CUT)

    def _compare_marker(self) -> None:
        """Compare ``_SUCCESS`` with the log: it names the newest commit that is finished, or a later one."""
        key = self.destination.key(SUCCESS)
        done = (one for job_id, one in self.ended.items() if job_id not in self.unfinished)
        finished = max((one.number for one in done if one.is_commit), default=0)
        try:
            success = read_success(self.store, self.destination)
            generation = success.generation or 0
            if generation > self.head:
                self.catch_up()
            if generation > self.head:
                self._add(key, f"names generation {generation}; the log ends with {self.head}", _CUT)
                return
            named = self.ended.get(success.jobId or "") == (generation, True)
            if generation >= finished and (named or generation not in self._digests):
                return
            problem = f"names generation {generation} and job {success.jobId}"
            problem = problem if generation else "is of another program"
        except NoSuchKey:
            problem = "is missing"
        except InvalidRecord as error:
            problem = str(error)
        if finished:
            newest = max(one.number for one in self.ended.values() if one.is_commit)
            self._add(key, f"{problem}; generation {finished} is finished", _MARKER, newest)

    def _compare_partition_markers(self) -> None:
        """Compare ``_SUCCESS`` in each partition with the log, unless an unfinished job may change it."""
        if self.newest is None or not (wrong := self._wrong_markers(self.newest)):
            return
        self.catch_up()
        touched: set[str] = set()
        for ending in self.unfinished.values():
            commit = read_entry(self.store, self.destination, ending.number).entry.commit
            if commit is not None:
                every = self.marked if commit.takes == "everything" else ()
                touched.update(commit.partitions, commit.restores, every)
        for partition in sorted(wrong.keys() - touched):
            key = self.destination.key(f"{partition}/{SUCCESS}")
            self._add(key, wrong[partition], _PARTITION_MARKER, self.marked[partition])

    def _wrong_markers(self, table: Table) -> dict[str, str]:
        """Return what is wrong, by partition. Markers name the newest entry; without files there is none."""
        bucket, limit, wrong = self.destination.bucket, largest(SuccessData), {}
        keys = {name: self.destination.key(f"{name}/{SUCCESS}") for name in self.marked}
        calls = [(name, Get(bucket, key, limit)) for name, key in keys.items()]
        for name, outcome in outcomes(self.store, calls, NoSuchKey, TooLarge):
            found = None
            if isinstance(outcome, Fetched):
                with suppress(InvalidRecord):
                    found = decode(SuccessData, outcome.body, keys[name]).generation
            generation = self.marked[name] if table.live.get(name) else None
            says = "is damaged or of another program" if found is None else f"names generation {found}"
            says = "is missing" if isinstance(outcome, NoSuchKey) else says
            if generation is not None and found != generation:
                wrong[name] = f"{says}; the newest commit there is generation {generation}"
            elif generation is None and found is not None:
                # A marker of another program is left alone.
                wrong[name] = f"{says}; the table has no files there"
        return wrong

    def _compare_versions(self) -> None:
        """Compare the versions of the Delta table with their entries. The newest waits for its job."""
        if not self._versions:
            return
        home, hint = self.destination, last_checkpoint(self.store, self.destination)
        listed = [*self.store.list_objects(home.bucket, home.key(VERSIONS), recursive=False)]
        numbers = {
            info.key: number for info in listed if (number := delta_version(home, info.key)) is not None
        }
        for info in listed:
            if info.key in numbers and info.key.endswith(".parquet") and not self._is_parquet(info):
                self._add(info.key, "is no whole Parquet file", _BAD_CHECKPOINT)
        # A version is written after its entry, so every version that was listed has its entry by now.
        self.catch_up()
        newest = max(self._versions)
        for key in (key for key, number in numbers.items() if number > newest):
            self._add(key, "is of no entry of the log", _FOREIGN_VERSION)
        checkpoints = {number for key, number in numbers.items() if key != version_key(home, number)}
        if hint is not None and hint not in checkpoints:
            self._add(
                home.key(f"{VERSIONS}_last_checkpoint"), f"names checkpoint {hint}, which is not there", _HINT
            )
        missing = {*missing_versions(self.store, home, newest)}
        keys = {version: version_key(home, version) for version in self._versions.keys() - missing}
        calls = [(version, Get(home.bucket, key, START_BYTES)) for version, key in keys.items()]
        for version, outcome in outcomes(self.store, calls, NoSuchKey, TooLarge):
            # Where a version is gone, a checkpoint of Delta stands for it.
            with suppress(NoSuchKey):
                pieces = [outcome.body] if isinstance(outcome, Fetched) else self._pieces(keys[version])
                if says := _wrong_version(pieces, *self._versions[version]):
                    self._add(keys[version], says, _FOREIGN_VERSION)
        done = {one.number for job_id, one in self.ended.items() if job_id not in self.unfinished}
        for number, version in ((self._versions[version][0], version) for version in sorted(missing)):
            if version < newest or number in done:
                self._add(version_key(home, version), "is missing", _VERSION, number)

    def _pieces(self, key: str) -> Iterator[bytes]:
        bucket, info = self.destination.bucket, self.store.head(self.destination.bucket, key)
        for first in range(0, info.size, _PIECE):
            yield self.store.get_range(bucket, key, first, _PIECE, etag=info.etag)

    def _is_parquet(self, info: ObjectInfo) -> bool:
        """Return whether an object begins and ends as a Parquet file does, whose footer says its size."""
        bucket, magic, end = self.destination.bucket, b"PAR1", info.size - 8
        if end < len(magic):
            return False
        start = self.store.get_range(bucket, info.key, 0, len(magic), etag=info.etag)
        footer = self.store.get_range(bucket, info.key, end, 8, etag=info.etag)
        return start == footer[4:] == magic and int.from_bytes(footer[:4], "little") < end

    def _add(self, key: str, problem: str, cure: Cure, number: int = 0) -> None:
        where = join_uri(self.destination.bucket, key)
        problem = problem.removeprefix(f"{where} ")
        finding = LogFinding(where=where, problem=problem, harmless=cure.harmless, remedy=cure.words)
        self.findings.append(finding)
        if cure.kind is not None:
            self.cures[where] = key, cure, number


def _files(pieces: Pieces, sources: Mapping[int, Source]) -> int:
    return sum(sources[one].partitions[name].files for name, numbers in pieces.items() for one in numbers)


def _wrong_version(pieces: Iterable[bytes], number: int, nonce: str, files: int | None) -> str:
    """Return what is wrong with a version of a Delta table, by its bytes; empty if nothing is."""
    held, found, is_first = b"", 0, True
    for piece in pieces:
        if is_first and not is_of(piece, nonce):
            return f"is not the version of entry {number}"
        *lines, held = (held + piece).split(b"\n")
        found += sum(line.startswith((b'{"add"', b'{"remove"')) for line in lines)
        is_first = False
    return f"is not all of the version of entry {number}" if held or files not in (None, found) else ""


def _is_entry(outcome: object) -> bool:
    with suppress(InvalidRecord):
        return isinstance(outcome, Fetched) and bool(decode(Entry, outcome.body, "a receipt"))
    return False


_NO_ENTRY = Cure("restore it from a version of the object or a backup: until then nobody can commit")
_COPY = Cure("remove _s3commit/ from the copy: its next job lists the files and begins a log")
_CUT = Cure("compare the log with a backup: entries are gone, or another log was put in its place")
_NO_LIST = Cure("restore it from a version of the object or a backup, or replace its partitions with retain")
_CHECKPOINT = Cure("run s3commit repair; readers pass it over", "checkpoint", harmless=True)
_CHECKPOINT_READ = Cure("run s3commit repair; until then readers believe it", "checkpoint")
_RECEIPT = Cure("run s3commit repair: late tasks and setups of the job go by it", "receipt")
_EITHER = Cure("compare both with a backup: no later entry says which of the two was changed")
_MARKER = Cure("run s3commit repair, or commit again", "marker")
_VERSION = Cure("run s3commit repair: until then other engines cannot read the table", "version")
_HINT = Cure("delete it: other engines find a checkpoint without it, and stop at this")
_BAD_CHECKPOINT = Cure("delete it, and _last_checkpoint if that names it: other engines begin at it, or stop")
_FOREIGN_VERSION = Cure("move it away, then run s3commit repair: other engines read it")
_PARTITION_MARKER = Cure("run s3commit repair, or commit to the partition again", "partition marker")

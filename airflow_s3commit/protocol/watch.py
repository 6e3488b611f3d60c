"""Wait for commits: conditions, a search of the newest ones, and a feed of each commit once.

Only the first look lists the log: after that one request tells whether the next entry is there. Every
twentieth look notices a log that was deleted and begun anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.structs import asdict

from airflow_s3commit._clock import Clock
from airflow_s3commit._format import moment, shortened, time_of
from airflow_s3commit.exceptions import (
    AccessDenied,
    InvalidRecord,
    NoSuchBucket,
    NoSuchKey,
    Refused,
    S3CommitError,
    Unavailable,
)
from airflow_s3commit.protocol.model.codec import Plain
from airflow_s3commit.protocol.model.delta import COMPACTION, SAME_ROWS
from airflow_s3commit.protocol.model.destination import (
    Destination,
    check_partition_names,
    join_uri,
    partition_form,
)
from airflow_s3commit.protocol.model.job import Position
from airflow_s3commit.protocol.model.layout import LOG, is_id, receipt_key
from airflow_s3commit.protocol.model.manifest import Manifest
from airflow_s3commit.protocol.model.table import Entry
from airflow_s3commit.protocol.steps.fold import entries_after, entries_before, newest_entries, newest_entry
from airflow_s3commit.protocol.steps.log import Read, find_receipt, read_entry
from airflow_s3commit.store.base import ObjectStore

logger = logging.getLogger(__name__)

#: Number of looks from one check that the known entry is still there to the next check.
_CHECK_EVERY = 20

#: Older entries to read at once: most searches end with the newest few.
_AT_ONCE = 8

#: Seconds from one look for new commits to the next, for a person who follows them.
_INTERVAL = 5.0


class Snapshot:
    """The newest commits of a destination as of the last `refresh`, each entry of the log read once.

    It knows at most ``depth`` commits. An error is kept until the next `refresh`, so that of many waiters
    only one asks a failing store. Not thread-safe.
    """

    def __init__(self, store: ObjectStore, destination: Destination, *, depth: int = 100) -> None:
        self.destination = destination
        self._depth = depth
        self._store = store
        self._looks = 0
        self._failure: S3CommitError | None = None
        #: The newest entry that was read; None before, and without a log.
        self._newest: Read | None = None
        #: The newest commits of jobs, newest first, and the entries before them.
        self._commits: list[Manifest] = []
        self._older: Iterator[Read] = iter(())
        #: How each job that somebody asked for has ended; None if it has not.
        self._ends: dict[str, Entry | None] = {}

    def refresh(self) -> None:
        """Read what is new in the log. Never raises: later calls that need what could not be read do."""
        self._failure = None
        self._looks += 1
        try:
            if not self._goes_on():
                self._begin()
        except S3CommitError as error:
            self._failure = error

    def _begin(self) -> None:
        store, home = self._store, self.destination
        self._newest, self._commits, self._older, self._ends = None, [], iter(()), {}
        if (read := newest_entry(store, home)) is not None:
            self._older = entries_before(store, home, read, at_once=_AT_ONCE)
            self._take(read)

    def newest(self) -> Iterator[Manifest]:
        """Yield the newest commits of jobs, newest first; reads older entries only as the caller goes on."""
        self._raise_failure()
        yield from self._commits
        while len(self._commits) < self._depth:
            try:
                read = next(self._older, None)
            except S3CommitError as error:
                # The next refresh begins anew at the end of the log.
                self._failure, self._newest = error, None
                raise
            if read is None:
                return
            if _is_commit(read.entry):
                self._commits.append(Manifest.of(read.entry))
                yield self._commits[-1]

    def end_of(self, job_id: str) -> Entry | None:
        """Return the entry that ended a job; None if it has not ended. Raises what the refresh did."""
        self._raise_failure()
        if job_id not in self._ends:
            newest = self._newest.entry if self._newest is not None else None
            # The newest entry alone may lack its receipt.
            is_newest = newest is None or newest.job_id == job_id
            self._ends[job_id] = newest if is_newest else find_receipt(self._store, self.destination, job_id)
        return self._ends[job_id]

    def search(self, wanted: Criteria) -> SearchResult:
        """Search the newest commits, or look up how the wanted job has ended. Repeatable.

        Raises the refresh's `S3CommitError`, unless a record was damaged, or that of another request.
        """
        try:
            return self._search(wanted) if wanted.job_id is None else self._look_up(wanted, wanted.job_id)
        except InvalidRecord as error:
            return SearchResult(None, str(error), "damaged")

    def _search(self, wanted: Criteria) -> SearchResult:
        newest, why = None, ""
        for manifest in self.newest():
            unmet = "; ".join(wanted.unmet(manifest))
            if not unmet:
                return _found(manifest)
            newest, why = newest or manifest, why or unmet
        if newest is None:
            where = join_uri(self.destination.bucket, self.destination.key(LOG))
            return SearchResult(None, f"no commit in {where} yet", "absent")
        return SearchResult(None, f"the newest commit {newest.uri} does not meet {why}", "stale")

    def _look_up(self, wanted: Criteria, job_id: str) -> SearchResult:
        end = self.end_of(job_id)
        where = join_uri(self.destination.bucket, receipt_key(self.destination, job_id))
        if end is None:
            return SearchResult(None, f"no {where} yet", "absent")
        if end.commit is None:
            return SearchResult(None, f"{where}: the job is aborted, and never commits: {end.why}", "absent")
        manifest = Manifest.of(end)
        if unmet := wanted.unmet(manifest):
            return SearchResult(None, f"{where} does not meet {'; '.join(unmet)}", "stale")
        return _found(manifest)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            # Each waiter raises the same exception: drop the traceback of the waiter before.
            raise self._failure.with_traceback(None)

    def _goes_on(self) -> bool:
        """Read the entries that follow; return whether the log is the one that was read before."""
        if self._newest is None:
            return False
        try:
            for read in _entries_since(self._store, self.destination, self._newest.position, self._looks):
                self._take(read)
        except InvalidRecord:
            # The log was begun anew, or its new entry is damaged; the newest one may be readable.
            return False
        return True

    def _take(self, read: Read) -> None:
        self._newest = read
        if read.entry.job_id in self._ends:
            self._ends[read.entry.job_id] = read.entry
        if _is_commit(read.entry):
            self._commits = [Manifest.of(read.entry), *self._commits][: self._depth]


def _is_commit(entry: Entry) -> bool:
    """Return whether an entry is the commit of a job or a rollback, and not data older than the log."""
    return entry.commit is not None and entry.job_id is not None


class ManifestFeed:
    """Yields each new commit of a destination once.

    A new feed skips the commits that exist at its first look; one with the `memory` of an earlier feed goes
    on where that stopped. If the log is deleted and begun anew, a feed goes on with its newest commit. It
    skips the commits for which ``unmet`` gives reasons, as `Criteria.unmet` does.
    """

    def __init__(
        self,
        store: ObjectStore,
        destination: Destination,
        unmet: Callable[[Manifest], list[str]],
        memory: Mapping[str, Any] | None = None,
    ) -> None:
        self._store = store
        self._destination = destination
        self._unmet = unmet
        self._looks = 0
        self._position = None if memory is None else Position(int(memory["number"]), str(memory["sha256"]))

    @property
    def memory(self) -> dict[str, Any] | None:
        """The last entry that was read, as JSON values, to continue in another process; None at first."""
        return asdict(self._position) if self._position is not None else None

    def look(self) -> Iterator[Manifest]:
        """Look once, and yield the new commits, oldest first. Reads only.

        A commit counts as seen once the next one is requested. Raises `InvalidRecord` for a damaged entry.
        """
        store, home = self._store, self._destination
        if self._position is None:
            newest = newest_entry(store, home)
            self._position = newest.position if newest is not None else Position()
            return
        self._looks += 1
        try:
            for read in _entries_since(store, home, self._position, self._looks):
                yield from self._take(read)
        except InvalidRecord:
            if _is_there(store, home, self._position):
                raise
            yield from self._begin_anew()

    def _begin_anew(self) -> Iterator[Manifest]:
        """Yield the newest commit of another log than the one that was read before."""
        logger.warning("%s: the log was begun anew; going on with its newest commit", self._destination.uri)
        position = Position()
        for read in newest_entries(self._store, self._destination, at_once=_AT_ONCE):
            position = position if position.number else read.position
            if _is_commit(read.entry):
                yield from self._take(read)
                break
        self._position = position

    def _take(self, read: Read) -> Iterator[Manifest]:
        if read.entry.commit is not None:
            manifest = Manifest.of(read.entry)
            if unmet := self._unmet(manifest):
                logger.info("skipping the commit of job %s: %s", manifest.job_id, "; ".join(unmet))
            else:
                yield manifest
        self._position = read.position


def follow(store: ObjectStore, destination: Destination, after: int, clock: Clock) -> Iterator[Manifest]:
    """Yield the manifest of each commit after a generation, 0 for all, for ever; waits for new ones.

    Each look for new ones takes one request, 5 seconds after the look before. A store that is unavailable is
    asked again at the next look. Raises `NoSuchKey` without such a generation.
    """
    sha256 = read_entry(store, destination, after).sha256 if after else ""
    feed = ManifestFeed(store, destination, lambda _: [], {"number": after, "sha256": sha256})
    while True:
        try:
            yield from (one for one in feed.look() if one.is_of_job or one.counts.files)
        except Unavailable as error:
            logger.warning("%s: trying again later: %s", destination.uri, error)
        clock.sleep(_INTERVAL)


def _entries_since(store: ObjectStore, home: Destination, known: Position, looks: int) -> Iterator[Read]:
    """Yield the entries after a known one; each twentieth look checks that. Raises as `entries_after`."""
    if not looks % _CHECK_EVERY and not _is_there(store, home, known):
        raise InvalidRecord(f"the log of {home.uri} was begun anew")
    yield from entries_after(store, home, known)


def _is_there(store: ObjectStore, destination: Destination, position: Position) -> bool:
    """Return whether a log still has an entry that was read before; true before the first entry."""
    try:
        return not position.number or read_entry(store, destination, position.number).position == position
    except (NoSuchKey, InvalidRecord):
        return False


#: Outcome of a search. ``absent``: there is no commit. ``stale``: there are commits, but none matches.
#: ``damaged``: an entry of the log is damaged, or of the log of another destination. The others are errors;
#: ``refused`` is an invalid request, and ``unavailable`` is temporary.
Outcome: TypeAlias = Literal[
    "found", "absent", "stale", "damaged",
    "missing-bucket", "no-permission", "refused", "unavailable", "error",
]  # fmt: skip

#: Outcomes that a later search does not change.
FINAL: Final[frozenset[Outcome]] = frozenset({"missing-bucket", "no-permission", "refused"})


class SearchResult(NamedTuple):
    """Result of one search: the matching manifest, if any, and what was found, for logs and as one word."""

    manifest: Manifest | None
    seen: str
    outcome: Outcome


def outcome_of(error: Exception) -> Outcome:
    """Return the outcome of a search that ended in an error."""
    if isinstance(error, NoSuchBucket):
        return "missing-bucket"
    if isinstance(error, AccessDenied):
        return "no-permission"
    if isinstance(error, Refused):
        return "refused"
    return "unavailable" if isinstance(error, Unavailable) else "error"


class Criteria(Plain, Struct, frozen=True, kw_only=True):
    """Conditions that a manifest must all meet; a compaction's only meets them if they name it or its job.

    Attributes:
        job_id: Id of the job that committed; None for any.
        context: Entries that the job's context has (``dag_id``, ``run_id``, ``partition_key``, …).
        newer_than: Earliest commit time, exclusive: seconds since the epoch by the committer's clock.
        min_files: Minimum number of files.
        partitions: Partitions that the job wrote, such as ``dt=2013-01-01``.
    """

    job_id: str | None = None
    context: dict[str, str] = {}
    newer_than: float | None = None
    min_files: int = 0
    partitions: list[str] = []

    @classmethod
    def of(
        cls,
        *,
        job: Any = None,
        run_id: str | None = None,
        context: Mapping[str, Any] | None = None,
        newer_than: datetime | str | None = None,
        partitions: Iterable[str] | str | None = None,
        min_files: int | str | None = None,
    ) -> Criteria:
        """Build criteria from user input, in which rendered templates may be text in place of other types.

        A job is given by its reference or its id, and a time without a zone is in UTC.

        Raises:
            ValueError: A condition is given but empty, as a template without a value renders: without it any
                manifest could match. Or ``newer_than`` is not a time, ``min_files`` is not a number, or
                ``context`` is no mapping.
        """
        if not isinstance(context, Mapping | None):
            raise ValueError(  # noqa: TRY004 - as for every other condition
                f"the condition context is {context!r}, and not a mapping of names to values"
            )
        job_id = job.get("job_id") if isinstance(job, Mapping) else job
        is_one = isinstance(partitions, str) or not isinstance(partitions, Iterable | None)
        names = [partitions] if is_one else partitions and [*partitions]
        for name, asked, values in (
            ("job", job, [job_id]),
            ("run_id", run_id, [run_id]),
            ("context", context, [*(context or {}).values()]),
            ("newer_than", newer_than, [newer_than]),
            ("partitions", names, [*(names or ())]),
            ("min_files", min_files, [min_files]),
        ):
            if asked is not None and (not values or any(map(_is_empty, values))):
                raise ValueError(
                    f"the condition {name} is empty: look at the rendered template, and its XCom"
                )
        if job_id is not None and not is_id(_text("job", job_id)):
            raise ValueError(f"the condition job is {job_id!r}, and neither a job's reference nor its id")
        facts = {name: _text(name, value) for name, value in (context or {}).items()}
        if run_id is not None:
            facts["run_id"] = _text("run_id", run_id)
        return cls(
            job_id=job_id,
            context=facts,
            newer_than=_seconds(newer_than),
            min_files=int(min_files or 0),
            partitions=sorted({*check_partition_names(names or (), "the condition partitions")}),
        )

    def unmet(self, manifest: Manifest) -> list[str]:
        """Return the conditions that a manifest does not meet: what each wants, and what was found."""
        unmet = [] if manifest.is_of_job else ["job: wanted one, found data that is older than the log"]
        if self.job_id is not None and manifest.job_id != self.job_id:
            unmet.append(f"job: wanted {self.job_id}, found {manifest.job_id}")
        asked = self.job_id is not None or COMPACTION in self.context.values()
        if not asked and SAME_ROWS.items() <= manifest.context.items():
            unmet.append("rows: wanted others than before, found a compaction, which changes none")
        for name, value in self.context.items():
            if (found := manifest.context.get(name)) != value:
                unmet.append(f"{name}: wanted {value!r}, found {found!r}")
        written = manifest.partitions if self.partitions else {}
        forms = {partition_form(name) for name, counts in written.items() if counts.files}
        if missing := sorted(name for name in self.partitions if partition_form(name) not in forms):
            there = sorted(name or "the root" for name in manifest.partitions) or ["no files"]
            unmet.append(f"partitions: wanted {shortened(missing)}, found {shortened(there)}")
        if self.newer_than is not None and manifest.committed <= self.newer_than * 1000:
            wanted, found = moment(round(self.newer_than * 1000)), moment(manifest.committed)
            unmet.append(f"newer_than: wanted a commit after {wanted}, found one at {found}")
        if manifest.counts.files < self.min_files:
            unmet.append(f"min_files: wanted {self.min_files}, found {manifest.counts.files}")
        return unmet


def _text(name: str, value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, str):
        return value.replace(" ", "T", 1) if name == "logical_date" else value  # a template's has a space
    raise ValueError(
        f"the condition {name} is {value!r}, and not text: native rendering makes 20130101 a number"
    )


def _is_empty(value: Any) -> bool:
    # Text is what a template without a value renders to.
    return value is None or (isinstance(value, str) and value.strip() in {"", "None"})


def _seconds(moment: datetime | str | None) -> float | None:
    if moment is None:
        return None
    try:
        return time_of(moment.isoformat() if isinstance(moment, datetime) else moment).timestamp()
    except (TypeError, ValueError) as error:
        raise ValueError(f"the condition newer_than is {moment!r}; give a time as ISO 8601 text") from error


def _found(manifest: Manifest) -> SearchResult:
    return SearchResult(manifest, f"manifest {manifest.uri}", "found")

"""Searches a destination for a manifest that meets criteria, once for all waiters of an event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple, TypeAlias
from weakref import WeakValueDictionary

from msgspec import Struct

from airflow_s3commit._format import moment, shortened
from airflow_s3commit.exceptions import (
    AccessDenied,
    InvalidRecord,
    NoSuchBucket,
    Refused,
    Unavailable,
)
from airflow_s3commit.protocol.model.codec import Plain
from airflow_s3commit.protocol.model.destination import Destination, check_partition_names, partition_form
from airflow_s3commit.protocol.model.job import JobReference
from airflow_s3commit.protocol.model.manifest import Manifest
from airflow_s3commit.protocol.watch.new_manifests import Snapshot
from airflow_s3commit.store.base import ObjectStore

#: Outcome of a search. ``absent``: there is no commit. ``stale``: there are commits, but none matches.
#: ``damaged``: an entry of the log is damaged, or of the log of another destination. The others are errors;
#: ``refused`` is an invalid request, and ``unavailable`` is temporary.
Outcome: TypeAlias = Literal[
    "found",
    "absent",
    "stale",
    "damaged",
    "missing-bucket",
    "no-permission",
    "refused",
    "unavailable",
    "error",
]

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
    """Conditions that a manifest must all meet.

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
                manifest could match. Or ``newer_than`` is not a time, or ``min_files`` is not a number.
        """
        job_id = job.get("job_id") if isinstance(job, Mapping) else job
        names = [partitions] if isinstance(partitions, str) else partitions
        conditions = {
            "job": None if job is None else [job_id],
            "run_id": None if run_id is None else [run_id],
            "context": None if context is None else list(context.values()),
            "newer_than": None if newer_than is None else [newer_than],
            "partitions": None if names is None else list(names),
            "min_files": None if min_files is None else [min_files],
        }
        for name, values in conditions.items():
            if values is not None and (not values or any(map(_is_empty, values))):
                raise ValueError(
                    f"the condition {name} is empty; any manifest could match without it. Look at the"
                    " rendered template, and at the task whose XCom it reads"
                )
        facts = {name: _text(name, value) for name, value in (context or {}).items()}
        if run_id is not None:
            facts["run_id"] = _text("run_id", run_id)
        return cls(
            job_id=None if job_id is None else _text("job", job_id),
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
        for name, value in self.context.items():
            found = manifest.context.get(name)
            if found != value:
                unmet.append(f"{name}: wanted {value!r}, found {found!r}")
        forms = {partition_form(name) for name, counts in manifest.partitions.items() if counts.files}
        missing = sorted(name for name in self.partitions if partition_form(name) not in forms)
        if missing:
            there = sorted(name or "the root" for name in manifest.partitions) or ["no files"]
            unmet.append(f"partitions: wanted {shortened(missing)}, found {shortened(there)}")
        if self.newer_than is not None and manifest.committed <= self.newer_than * 1000:
            newer_than = moment(round(self.newer_than * 1000))
            unmet.append(
                f"newer_than: wanted a commit after {newer_than}, found one at {moment(manifest.committed)}"
            )
        if manifest.counts.files < self.min_files:
            unmet.append(f"min_files: wanted {self.min_files}, found {manifest.counts.files}")
        return unmet


def _text(name: str, value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, str):
        return value
    raise ValueError(
        f"the condition {name} is {value!r}, which is not text; native rendering turns text such as 20130101"
        " into a number"
    )


def _is_empty(value: Any) -> bool:
    """Return whether a value is None, or text that a template without a value renders to."""
    return value is None or (isinstance(value, str) and value.strip() in {"", "None"})


def _seconds(moment: datetime | str | None) -> float | None:
    if moment is None:
        return None
    try:
        known = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    except ValueError as error:
        raise ValueError(f"the condition newer_than is {moment!r}; give a time in ISO 8601") from error
    return (known if known.tzinfo else known.replace(tzinfo=UTC)).timestamp()


def search_manifest(
    store: ObjectStore,
    destination: str | Destination,
    *,
    job: JobReference | Mapping[str, str] | str | None = None,
    run_id: str | None = None,
    context: Mapping[str, str] | None = None,
    newer_than: datetime | str | None = None,
    partitions: Iterable[str] | str | None = None,
    min_files: int = 0,
    depth: int = 100,
) -> Manifest | None:
    """Return the newest manifest that meets all criteria; None if none does. Reads only.

    Polls once; to wait for a manifest in Airflow, use `S3SuccessManifestSensor`.

    Args:
        store: The store of the destination.
        destination: URI of the dataset's directory, or a `Destination`.
        job: Reference or id of the job that committed.
        run_id: The Airflow run of the job.
        context: Further entries of the job's context: ``dag_id``, ``partition_key``, …
        newer_than: Earliest commit time, exclusive: a datetime, or ISO 8601 text; UTC without a time zone.
        partitions: Partitions that the job wrote, such as ``dt=2013-01-01``.
        min_files: Minimum number of files.
        depth: Maximum number of commits to look at, newest first.

    Raises:
        NoSuchBucket: The destination's bucket does not exist.
        AccessDenied: The credentials may not read the destination.
        S3CommitError: Another request failed.
        ValueError: A condition is given but empty, or ``newer_than`` is not a time.
    """
    criteria = Criteria.of(
        job=job.job_id if isinstance(job, JobReference) else job,
        run_id=run_id,
        context=context,
        newer_than=newer_than,
        partitions=partitions,
        min_files=min_files,
    )
    view = Snapshot(store, Destination.of(destination), depth=depth)
    view.refresh()
    return ManifestSearch(criteria).look(view).manifest


class ManifestSearch:
    """Repeated search of one destination for a manifest.

    The commit that matches need not be the last one, so the search looks at the newest ones. A commit never
    changes: each is judged once.
    """

    def __init__(self, criteria: Criteria) -> None:
        self._criteria = criteria
        #: The conditions that each commit looked at so far does not meet, by its job.
        self._judged: dict[str, list[str]] = {}

    def look(self, view: Snapshot) -> SearchResult:
        """Search a snapshot once, always the same one; refresh it between two searches. Repeatable.

        Raises:
            S3CommitError: What the refresh raised, unless a record was damaged; or another request failed.
        """
        try:
            if self._criteria.job_id is not None:
                return self._look_up(view, self._criteria.job_id)
            newest = None
            for manifest in view.newest():
                newest = newest or manifest
                if manifest.job_id not in self._judged:
                    self._judged[manifest.job_id] = self._criteria.unmet(manifest)
                if not self._judged[manifest.job_id]:
                    return _found(manifest)
            if newest is None:
                return SearchResult(None, f"no commit in {view.where()} yet", "absent")
            unmet = "; ".join(self._judged[newest.job_id])
            return SearchResult(None, f"the newest commit {newest.uri} does not meet {unmet}", "stale")
        except InvalidRecord as error:
            return SearchResult(None, str(error), "damaged")

    def _look_up(self, view: Snapshot, job_id: str) -> SearchResult:
        where = view.where(job_id)
        end = view.end_of(job_id)
        if end is None:
            return SearchResult(None, f"no {where} yet", "absent")
        if end.commit is None:
            return SearchResult(None, f"{where}: the job is aborted, and never commits: {end.why}", "absent")
        manifest = Manifest.of(end)
        unmet = self._criteria.unmet(manifest)
        if unmet:
            return SearchResult(None, f"{where} does not meet {'; '.join(unmet)}", "stale")
        return _found(manifest)


def _found(manifest: Manifest) -> SearchResult:
    return SearchResult(manifest, f"manifest {manifest.uri}", "found")


class SharedPoller:
    """Polls one destination for all waiters of this event loop.

    A triggerer runs thousands of triggers in one event loop. The first trigger whose poll is due polls the
    store in a thread; the others reuse its snapshot while it is younger than their own interval. So a
    destination costs one poll per interval and at most one thread.

    ``open_view`` returns the snapshot; it is called once, in a thread.
    """

    def __init__(
        self, open_view: Callable[[], Snapshot], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._open_view = open_view
        self._clock = clock
        self._turn = asyncio.Lock()
        # A cancelled waiter releases its turn while its thread is still polling.
        self._polling = threading.Lock()
        self._view: Snapshot | None = None
        self._polled_at: float | None = None

    def next_due(self, interval: float) -> float:
        """Return the seconds until the next poll at this interval."""
        if self._polled_at is None:
            return 0.0
        return max(0.0, self._polled_at + interval - self._clock())

    async def look(self, search: ManifestSearch, max_age: float) -> SearchResult:
        """Search the snapshot for one waiter, after a poll if it is older than ``max_age`` seconds.

        Raises:
            S3CommitError: As `ManifestSearch.look`.
        """
        async with self._turn:
            return await asyncio.to_thread(self._look, search, max_age)

    def _look(self, search: ManifestSearch, max_age: float) -> SearchResult:
        with self._polling:
            is_due = self._polled_at is None or self._clock() - self._polled_at >= max_age
            if is_due:
                # Set before the request, so that after a failed poll the next one is due an interval later.
                self._polled_at = self._clock()
            if self._view is None:
                self._view, is_due = self._open_view(), True
            if is_due:
                self._view.refresh()
            return search.look(self._view)


#: The pollers by event loop and key. A poller lives as long as one of its waiters.
_POLLERS: WeakValueDictionary[Hashable, SharedPoller] = WeakValueDictionary()
_GUARD = threading.Lock()


def shared_poller(key: Hashable, open_view: Callable[[], Snapshot]) -> SharedPoller:
    """Return the running event loop's poller for a key, which has all settings that matter; or create it."""
    place = (asyncio.get_running_loop(), key)
    with _GUARD:
        poller = _POLLERS.get(place)
        if poller is None:
            poller = _POLLERS[place] = SharedPoller(open_view)
        return poller

"""A small lake for the steps on the log alone: its jobs, its processes, and the rules that always hold."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import count
from typing import Any, TypeAlias, TypeVar

from greenlet import getcurrent, greenlet

from airflow_s3commit import Destination, JobOptions, MemoryStore
from airflow_s3commit.exceptions import AlreadyCommitted, S3CommitError
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.removal import (
    PendingId,
    abort_uploads,
    delete_record,
    object_metadata,
)
from airflow_s3commit.protocol.metadata.sealed_job import committed_attempts
from airflow_s3commit.protocol.model.destination import is_hidden
from airflow_s3commit.protocol.model.job import Committer, ConflictMode
from airflow_s3commit.protocol.model.layout import Layout, owner_of, partition_of, unique_name
from airflow_s3commit.protocol.model.pendingset import PendingUpload, TaskExtra, UploadExtra
from airflow_s3commit.protocol.steps.abort import abort
from airflow_s3commit.protocol.steps.commit import commit, complete_part
from airflow_s3commit.protocol.steps.seal import commit_attempt, seal, seal_stage
from airflow_s3commit.protocol.steps.setup import load_job, set_up
from airflow_s3commit.protocol.steps.sweep import carry_out, find_left, judge, release
from airflow_s3commit.protocol.table_rollback import roll_back
from airflow_s3commit.store.base import Call, Outcome
from airflow_s3commit.store.execute import one_by_one
from airflow_s3commit.store.forwarding import ForwardingStore
from airflow_s3commit.testing import Crash, FaultyStore, StoreCall
from tests.fakes import ManualClock

BUCKET = "lake"
ROOT = "flights/"
URI = f"s3://{BUCKET}/{ROOT}"

A = "aaaaaaaa-0000-4000-8000-000000000001"
B = "bbbbbbbb-0000-4000-8000-000000000002"
C = "cccccccc-0000-4000-8000-000000000003"

#: The id that a sweep and a release use, of no job.
NOBODY = "dddddddd-0000-4000-8000-000000000004"

#: What each job writes, by path.
WRITES: dict[str, tuple[str, ...]] = {
    A: ("dt=1/a.parquet", "dt=2/a.parquet"),
    B: ("dt=1/b.parquet",),
    C: ("dt=2/c.parquet", "dt=3/c.parquet"),
}

#: What is there before the log, by path.
OLDER = ("dt=1/older.parquet", "dt=4/older.parquet")

#: One process: what it does with its store.
Actor: TypeAlias = Callable[[Any], object]

T = TypeVar("T")


def withdraw_attempt(context: JobContext, extra: TaskExtra, uploads: list[PendingUpload]) -> None:
    """Abort the uploads of an attempt of a job that has ended, then delete its pendingset. Repeatable."""
    abort_uploads(context, map(PendingId.of, uploads))
    key = context.layout.pendingset(extra.stage, extra.stage_attempt, extra.task, extra.attempt)
    delete_record(context, context.staging_bucket, key)


class Lake:
    """A destination on a store in memory, and what its processes do.

    Args:
        older: Whether there is data before the log.
    """

    def __init__(self, *, older: bool = True) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore((BUCKET,), min_part_bytes=1, now=self.clock.time)
        self.ids = count()
        for path in OLDER if older else ():
            self.store.put(BUCKET, ROOT + path, b"older")

    def context(self, job_id: str, store: Any = None) -> JobContext:
        """Return a job as a fresh process sees it."""
        layout = Layout.of(Destination.parse(URI), job_id)
        return JobContext(store or self.store, layout, clock=self.clock, new_id=self.new_id, threads=0)

    def new_id(self) -> str:
        """Return a new id."""
        return f"id-{next(self.ids):06d}"

    def prepare(self, job_id: str, mode: ConflictMode, retain: str = "0s") -> None:
        """Set a job up, write its files and seal it."""
        self.set_up(job_id, mode, retain=retain)(self.store)
        self.write(job_id)(self.store)

    # What processes do.

    def set_up(
        self, job_id: str, mode: ConflictMode, committer: Committer = "partitioned", retain: str = "0s"
    ) -> Actor:
        """Return the setup of a job."""
        options = JobOptions(conflict_mode=mode, committer=committer, retain=retain)
        return lambda store: set_up(self.context(job_id, store), options, {})

    def attempt(self, job_id: str, name: str = "1") -> Actor:
        """Return a task attempt of a job, which uploads its files and records them."""

        def act(store: Any) -> object:
            context = self.context(job_id, store)
            load_job(context)
            extra = TaskExtra(
                stage="spark", stage_attempt="1", task="00000", attempt=name, nonce=self.new_id()
            )
            uploads = [self._upload(context, path, name) for path in WRITES[job_id]]
            return commit_attempt(
                context, extra, uploads, undo=lambda: withdraw_attempt(context, extra, uploads)
            )

        return act

    def write(self, job_id: str) -> Actor:
        """Return all that comes between a job's setup and its commit."""

        def act(store: Any) -> None:
            self.attempt(job_id)(store)
            self.seal(job_id)(store)

        return act

    def seal(self, job_id: str) -> Actor:
        """Return the seal of a job and its stage, with the attempts that are committed."""

        def act(store: Any) -> None:
            context = self.context(job_id, store)
            seal_stage(context, "spark", "1", committed_attempts(context, "spark", "1"))
            seal(context, [("spark", "1")])

        return act

    def until_sealed(self, job_id: str) -> Actor:
        """Return a whole job up to its commit."""

        def act(store: Any) -> None:
            self.set_up(job_id, "append")(store)
            self.write(job_id)(store)

        return act

    def commit(self, job_id: str) -> Actor:
        """Return a commit of a job."""
        return lambda store: commit(self.context(job_id, store))

    def abort(self, job_id: str) -> Actor:
        """Return an abort of a job."""
        return lambda store: abort(self.context(job_id, store), "asked")

    def roll_back(self, job_id: str, to: int, retain: str = "0s") -> Actor:
        """Return a rollback of the table, as a job of its own."""
        return lambda store: roll_back(self.context(job_id, store), to, retain=retain).generation

    def part(self, job_id: str) -> Actor:
        """Return the only part of a commit's uploads."""
        return lambda store: complete_part(self.context(job_id, store), 0, 1)

    def release(self, after: float = 0.0) -> Actor:
        """Return a release of what will be due after some seconds."""
        return lambda store: release(self.context(NOBODY, store), self.clock.time() + after)

    def sweep(self, older_than: float = 0.0) -> Actor:
        """Return a sweep."""

        def act(store: Any) -> None:
            context, now = self.context(NOBODY, store), self.clock.time()
            left = find_left(context)
            for found in left.jobs.values() if left.has_log else ():
                action, _ = judge(found, now, older_than)
                with suppress(AlreadyCommitted):
                    _ = action and carry_out(context, found, "swept")

        return act

    def _upload(self, context: JobContext, path: str, attempt: str) -> PendingUpload:
        store, key = context.store, ROOT + unique_name(path, context.job_id)
        upload, body = self.new_id(), f"{context.job_id} {path} {attempt}".encode()
        metadata = object_metadata(context.layout.destination, context.job_id, upload)
        upload_id = store.create_upload(BUCKET, key, metadata=metadata, content_type="x")
        etag = store.upload_part(BUCKET, key, upload_id, 1, body)
        return PendingUpload(
            uri=f"s3://{BUCKET}/{key}",
            uploadId=upload_id,
            bucket=BUCKET,
            destinationKey=key,
            jobId=context.job_id,
            etags=[etag],
            length=len(body),
            partCount=1,
            s3commit=UploadExtra(upload=upload, rows=1),
        )


class Watched(ForwardingStore):
    """Looks at the lake after every effect, and fails at the one that breaks a rule.

    The rules are read off the bytes that are there; they share no code with the steps.

    Args:
        lake: The lake.
    """

    def __init__(self, lake: Lake) -> None:
        super().__init__(lake.store)
        self._lake = lake
        self._objects = lake.store._buckets[BUCKET].objects
        self._highest = 0

    def perform(self, calls: Iterable[tuple[T, Call]]) -> Iterator[tuple[T, Outcome]]:
        """Make the calls one by one."""
        return one_by_one(self, calls)

    def forward(self, verb: str, bucket: str, key: str, make: Callable[[], T]) -> T:
        """Make a call, and look at what it did."""
        if verb == "abort_upload":
            assert owner_of(key) in self.ended(), "an upload of a living job is aborted"
        made = make()
        if verb in ("put", "delete", "delete_many", "complete_upload"):
            self.check()
        return made

    def entries(self) -> list[dict[str, Any]]:
        """Return the entries of the log in their order."""
        keys = sorted(key for key in self._objects if key.startswith(f"{ROOT}_s3commit/log/"))
        return [_decoded(self._objects[key].body) for key in keys]

    def ended(self) -> set[str]:
        """Return the jobs that an entry has ended."""
        return {entry["job_id"] for entry in self.entries() if "job_id" in entry}

    def table(self) -> set[str]:
        """Return the keys of the table's files, by the log."""
        return self._fold()[0]

    def _fold(self) -> tuple[set[str], set[str]]:
        """Return the keys of the table's files, and of those that are retained, by the log."""
        files: set[str] = set()
        kept: dict[int, set[str]] = {}
        added: dict[int, set[str]] = {}
        for entry in self.entries():
            for generation in entry.get("frees", ()):
                kept.pop(generation)
            made = entry.get("commit")
            if made is None:
                continue
            before, number = set(files), entry["number"]
            takes, touched = made.get("takes", "nothing"), set(made["partitions"])
            if takes == "everything":
                files.clear()
            elif takes == "partitions":
                files -= {key for key in files if _partition(key) in touched}
            for name, numbers in made.get("restores", {}).items():
                files -= {key for key in files if _partition(key) == name}
                files |= {key for one in numbers for key in added[one] if _partition(key) == name}
            added[number] = {line["key"] for line in made.get("within", [])}
            files |= added[number]
            if made.get("retain"):
                kept[number] = before - files
            kept = {generation: keys - files for generation, keys in kept.items()}
        return files, set().union(*kept.values())

    def data(self) -> set[str]:
        """Return the keys that a reader by listing takes for data."""
        return {key for key in self._objects if _is_data(key)}

    def marked(self) -> int:
        """Return the generation of the marker; 0 without one."""
        marker = self._objects.get(f"{ROOT}_SUCCESS")
        return int(_decoded(marker.body)["diagnostics"]["s3commit.generation"]) if marker else 0

    def check(self) -> None:
        """Check what holds at every moment."""
        ends = [entry["job_id"] for entry in self.entries() if "job_id" in entry]
        assert len(ends) == len(set(ends)), "a job ended twice"
        (files, kept), data = self._fold(), self.data()
        assert files <= data, "a file of the table is missing"
        assert kept <= data, "a retained file is missing"
        marked = self.marked()
        assert marked >= self._highest, "the marker went back"
        self._highest = marked

    def check_left(self) -> None:
        """Check that ended jobs leave a receipt and nothing else; holds if none of their processes died."""
        for job_id in self.ended():
            assert f"{ROOT}_s3commit/jobs/{job_id}.json" in self._objects, "no receipt"
            files = set().union(*self._fold())
            # A probe of the store that lands late is left to a sweep.
            kept = ("/_s3commit/jobs/", "/_s3commit/probe-")
            left = [key for key in self._objects if job_id in key and not any(part in key for part in kept)]
            assert set(left) <= files, "an object of an ended job"
            uploads = self._lake.store.list_uploads(BUCKET, "")
            assert not [one.key for one in uploads if job_id in one.key], "an upload of an ended job"

    def check_at_rest(self) -> None:
        """Check what holds when every job has ended and nobody is at work."""
        self.check()
        entries = self.entries()
        assert self.data() == set().union(*self._fold()), "objects are not the table"
        self.check_left()
        assert not list(self._lake.store.list_uploads(BUCKET, "")), "an upload of no job"
        commits = [e["number"] for e in entries if e["kind"] == "commit" and "job_id" in e]
        assert self.marked() == max(commits, default=0), "the marker is not of the newest commit"


# Schedules by the thousand make the same few objects.


@lru_cache(10_000)
def _decoded(body: bytes) -> Any:
    return json.loads(body)


@lru_cache(10_000)
def _is_data(key: str) -> bool:
    return key.startswith(ROOT) and not is_hidden(key.removeprefix(ROOT))


@lru_cache(10_000)
def _partition(key: str) -> str:
    return partition_of(key.removeprefix(ROOT))


class _Process:
    """A process that runs for a number of calls at a time."""

    def __init__(self, inner: Any, act: Actor) -> None:
        self.outcome: BaseException | None = None
        self.store = FaultyStore(inner, before=self._before_call)
        self._left = 0
        self._scheduler = getcurrent()
        self._greenlet = greenlet(lambda: self._run(act))

    def run(self, calls: int) -> None:
        self._left = calls
        if not self._greenlet.dead:
            self._greenlet.switch()

    def _run(self, act: Actor) -> None:
        try:
            act(self.store)
        except (S3CommitError, Crash) as error:
            self.outcome = error

    def _before_call(self, _: StoreCall) -> None:
        while self._left == 0:
            self._scheduler.switch()
        self._left -= 1


#: Which process runs for how many of its calls; then all run to their ends, in their order.
Schedule: TypeAlias = Sequence[tuple[int, int]]


def play(
    lake: Lake, actors: Sequence[Actor], schedule: Schedule, dies: int | None = None
) -> tuple[Watched, list[BaseException | None]]:
    """Run processes by a schedule; return the watched store and how each ended.

    Args:
        lake: The lake.
        actors: What each process does.
        schedule: Who runs when.
        dies: The process that dies at the end of its last turn.
    """
    watched = Watched(lake)
    processes = [_Process(watched, act) for act in actors]
    for number, calls in schedule:
        processes[number].run(calls)
    for number, process in enumerate(processes):
        if number != dies:
            process.run(1_000_000)
    return watched, [process.outcome for process in processes]


def calls_of(lake: Lake, actor: Actor) -> int:
    """Return how many calls a process makes that is alone."""
    store = FaultyStore(lake.store)
    with suppress(S3CommitError):
        actor(store)
    return len(store.calls)

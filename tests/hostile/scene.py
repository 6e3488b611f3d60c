"""Jobs in all their states, beside other jobs that they must not touch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from airflow_s3commit import FileEntry
from airflow_s3commit.exceptions import S3CommitError
from airflow_s3commit.protocol.model.job import JobRecord
from airflow_s3commit.protocol.model.manifest import SuccessData
from airflow_s3commit.protocol.model.pendingset import PendingSet, PendingUpload
from airflow_s3commit.protocol.model.sealed_job import ColumnStatistics, SealRecord, StageSealRecord
from airflow_s3commit.protocol.model.table import Entry
from airflow_s3commit.store.base import Fetched
from tests.protocol.building import BUCKET, HOME, OURS, ROOT, THEIRS, Crash, Lake, WatchedStore, apart
from tests.protocol.hadoop.dead_jobs import ROOT as SALES
from tests.protocol.hadoop.dead_jobs import TASKS, UUID, DeadJob, task_id

__all__ = [
    "BEFORE",
    "DEAD",
    "FOREIGN_KEY",
    "INNOCENT",
    "KEPT",
    "SCENES",
    "GuardedLake",
    "Mutation",
    "Scene",
    "Site",
    "TooMuch",
    "scene",
]

DEAD = "33333333-aaaa-4bbb-8ccc-000000000003"
ENDED = "44444444-aaaa-4bbb-8ccc-000000000004"
BEFORE = "55555555-aaaa-4bbb-8ccc-000000000005"
INNOCENT = "innocent/"
FOREIGN_KEY = f"{INNOCENT}dt=1/data.csv"

#: A file of a partition that no job of a scene writes.
KEPT = f"{ROOT}dt=9/kept.csv"

#: Calls to the store that any one command may make on a scene of a handful of objects.
MOST_CALLS = 1_500

_STAGING = f"{ROOT}__magic_job-{OURS}/"


class TooMuch(BaseException):
    """A command never stops asking the store, or reads an object without a limit; no handler sees this."""


class GuardedStore(WatchedStore):
    """A store that stops a command after too many calls, and takes any length of a hostile record."""

    def get(self, bucket: str, key: str, limit: int | None = None) -> Fetched:
        """Refuse to be read without a limit."""
        if limit is None:
            raise TooMuch(f"{key} is read without a limit")
        if len(self.calls) > MOST_CALLS:
            raise TooMuch(f"{len(self.calls)} calls")
        return super().get(bucket, key, limit=limit)


class GuardedLake(Lake):
    """A lake on such a store, as a scene left it.

    Attributes:
        job_id: The job that the scene is about.
        others: Ids of the pending uploads that are not that job's.
    """

    def __init__(self, buckets: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.job_id = OURS
        self.others: frozenset[str] = frozenset()
        self.store = GuardedStore((BUCKET, "other"), now=self.store_clock.time, min_part_bytes=1)
        if buckets is not None:
            self.store.inner._buckets = _copied(buckets)
            # Later writes have ids of their own.
            self._ids = iter(range(1_000_000, 2_000_000))  # type: ignore[assignment]
            self.store.inner._uploads_started = 1_000_000

    def get(self, key: str) -> bytes:
        """Return an object's content."""
        return self.store.inner._buckets[BUCKET].objects[key].body

    def pretend(self, key: str, size: int) -> None:
        """Have the store claim that an object is longer than it is."""
        objects = self.store.inner._buckets[BUCKET].objects
        objects[key] = replace(objects[key], info=replace(objects[key].info, size=size))


@dataclass(frozen=True, slots=True)
class Site:
    """A record of a scene.

    Attributes:
        scene: The scene's name.
        kind: The record's type.
        key: Its key.
        lines: Whether there is one on each line.
    """

    scene: str
    kind: type[msgspec.Struct]
    key: str
    lines: bool = False


@dataclass(frozen=True, slots=True)
class Mutation:
    """One record, changed in one place.

    Attributes:
        site: Which record.
        what: Where it is changed, and into what, for people.
        body: The body instead; None leaves the body, and has the store say that it is 1 TiB.
    """

    site: Site
    what: str
    body: bytes | None

    def __str__(self) -> str:
        return f"{self.site.scene}: {self.site.key}: {self.what}"


class Scene:
    """Some jobs in some state.

    Args:
        build: Makes it in an empty lake.
        kinds: Which records it is for, by their key.
    """

    def __init__(
        self,
        name: str,
        build: Callable[[Lake], None],
        kinds: Callable[[Lake], Mapping[str, type[msgspec.Struct]]],
    ) -> None:
        self.name = name
        lake = GuardedLake()
        _surround(lake)
        self._others = frozenset(lake.store.inner._buckets[BUCKET].uploads)
        build(lake)
        self._about = (lake.job_id, lake.prefix)
        lake.store.rest()
        self._buckets = _copied(lake.store.inner._buckets)
        self._now = lake.store_clock.time()
        self.sites = [
            Site(name, kind, key, lines=key.endswith(".jsonl")) for key, kind in sorted(kinds(lake).items())
        ]
        self._bodies = {site.key: lake.get(site.key) for site in self.sites}

    def body(self, site: Site) -> bytes:
        """Return a record as it is."""
        return self._bodies[site.key]

    def lake(self) -> GuardedLake:
        """Return a fresh copy of the lake."""
        lake = GuardedLake(self._buckets)
        lake.others, (lake.job_id, lake.prefix) = self._others, self._about
        lake.store_clock.sleep(self._now - lake.store_clock.time() + 1.0)
        return lake

    def spoiled(self, mutation: Mutation, *, pinned: bool) -> GuardedLake:
        """Return a copy with a record changed; ``pinned`` updates what points to it."""
        lake = self.lake()
        if mutation.body is None:
            lake.pretend(mutation.site.key, 2**40)
        else:
            lake.store.put(BUCKET, mutation.site.key, mutation.body)
        if pinned:
            _pin(lake)
        # Longer than any lease in it.
        lake.store_clock.sleep(120.0)
        lake.store.calls.clear()
        return lake


def _copied(buckets: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: replace(
            bucket,
            objects=dict(bucket.objects),
            uploads={
                upload_id: replace(pending, parts=dict(pending.parts))
                for upload_id, pending in bucket.uploads.items()
            },
        )
        for name, bucket in buckets.items()
    }


def _surround(lake: Lake) -> None:
    """Make what belongs to others: a dataset, a job on the same destination, and objects of no job."""
    lake.put({"dt=1/old.csv": b"old", "dt=2/old.csv": b"older", "dt=9/kept.csv": b"kept"})
    other = Lake()
    other.store, other.prefix, other._ids = lake.store, INNOCENT, lake._ids  # type: ignore[assignment]
    other.clock = lake.clock
    other.put({"dt=1/data.csv": b"innocent"})
    other.sealed({"dt=1/a.csv": b"innocent"}, job_id=BEFORE).commit()
    other.run_stage(other.set_up(THEIRS), {"dt=1/b.csv": b"innocent"})
    lake.run_stage(
        lake.set_up(THEIRS, conflict_mode="append"), {"dt=1/theirs.csv": b"theirs", "dt=7/x.csv": b"x"}
    )
    lake.store.put(BUCKET, "private/secret", b"private")
    lake.store.put("other", f"{ROOT}dt=1/old.csv", b"elsewhere")
    for key in ("private/pending", f"{ROOT}dt=1/manual.bin"):
        lake.store.create_upload(BUCKET, key, metadata={}, content_type="text/plain")


_STATISTICS = {
    "delay": ColumnStatistics(values=1, nulls=0, least=-1, greatest=5),
    "price": ColumnStatistics(values=1, nulls=0, least="1.5", greatest="2.5", decimal=True),
}


def _write(lake: Lake, **options: Any) -> Any:
    job = lake.set_up(said={"dag_id": "nightly", "run_id": "r"}, **options)
    tasks = []
    for number, path in enumerate(("dt=1/a.csv", "dt=2/b.csv")):
        with job.task_attempt(
            "spark", "1", f"{number:05d}", "1", part_bytes=1, threads=0, min_part_bytes=1
        ) as writer:
            file = writer.open(path)
            file.write(b"12")
            file.close(rows=1, statistics=_STATISTICS)
            tasks.append(writer.commit())
    return job, tasks


def _open(lake: Lake) -> None:
    _write(lake, track_pending="s3")


def _sealed(lake: Lake) -> None:
    lake.sealed({"dt=5/before.csv": b"1"}, job_id=BEFORE, conflict_mode="append").commit()
    job, tasks = _write(lake)
    job.seal_stage("spark", "1", tasks)
    job.seal()


def _publishing(lake: Lake) -> None:
    lake.sealed({"dt=5/before.csv": b"1"}, job_id=BEFORE, conflict_mode="append").commit()
    job, tasks = _write(lake)
    job.seal_stage("spark", "1", tasks)
    job.seal()
    job.complete_part(0, 2)


def _entered(lake: Lake) -> None:
    lake.sealed({"dt=5/before.csv": b"1"}, job_id=BEFORE, conflict_mode="append").commit()
    _commit_until(lake, "log/00000000000000000003.json", after=True)


@apart()
def _finishing(lake: Lake) -> None:
    _commit_until(lake, f"jobs/{OURS}.json")


def _commit_until(lake: Lake, ending: str, *, after: bool = False) -> None:
    """Commit the job in a process that dies when it writes the record with this ending."""
    job, tasks = _write(lake)
    job.seal_stage("spark", "1", tasks)
    job.seal()
    assert isinstance(lake.store, WatchedStore)
    lake.store.die("put", ending, after=after)
    with pytest.raises(Crash):
        job.commit()
    lake.store.rest()


def _aborting(lake: Lake) -> None:
    job, tasks = _write(lake)
    job.seal_stage("spark", "1", tasks)
    job.seal()
    job.complete_part(0, 2)
    assert isinstance(lake.store, WatchedStore)
    lake.store.die("list_uploads")
    try:
        job.abort(reason="enough")
    except Crash:
        lake.store.rest()


def _committed(lake: Lake) -> None:
    job, tasks = _write(lake)
    job.seal_stage("spark", "1", tasks)
    job.seal()
    job.commit()
    lake.set_up(ENDED, said={"dag_id": "nightly"}).abort(reason="no longer wanted")


@apart()
def _listed(lake: Lake) -> None:
    _committed(lake)


def _hadoop(lake: Lake) -> None:
    dead = DeadJob()
    dead.store = lake.store
    for number, files in TASKS.items():
        dead.commit_magic_task(number, files)
    dead.leave_magic_attempt(1, {"day=18/part-00001.parquet": (b"left",)})
    assert isinstance(lake, GuardedLake)
    lake.job_id, lake.prefix = UUID, SALES


def _records(lake: Lake) -> dict[str, type[msgspec.Struct]]:
    """Return the records of the job, and of its destination, by key."""
    by_ending: dict[str, type[msgspec.Struct]] = {
        f"_s3commit/open/{OURS}/job.json": JobRecord,
        f"_s3commit/open/{OURS}/sealed.json": SealRecord,
        "/000000.pending": PendingUpload,
        "spark-1/sealed.json": StageSealRecord,
        "00000_1.pendingset": PendingSet,
        f"{task_id(0)}.pendingset": PendingSet,
        "part-00001.parquet.pending": PendingUpload,
        **{f"_s3commit/log/{number:020d}.json": Entry for number in (1, 2, 3, 4)},
        **{f"_s3commit/jobs/{one}.json": Entry for one in (OURS, ENDED)},
        ".jsonl": FileEntry,
        "_SUCCESS": SuccessData,
    }
    return {
        key: kind
        for key in lake.keys(lake.prefix)
        if THEIRS not in key
        for ending, kind in by_ending.items()
        if key.endswith(ending)
    }


SCENES: dict[str, Callable[[Lake], None]] = {
    "open": _open,
    "sealed": _sealed,
    "publishing": _publishing,
    "entered": _entered,
    "finishing": _finishing,
    "aborting": _aborting,
    "committed": _committed,
    "listed": _listed,
    "hadoop": _hadoop,
}


@cache
def scene(name: str) -> Scene:
    """Return a scene, which is made once."""
    return Scene(name, SCENES[name], _records)


def _compact(plain: Any) -> bytes:
    return json.dumps(plain, separators=(",", ":")).encode()


def _pin(lake: GuardedLake) -> None:
    """Update the references between records: a writer that can change one can change all."""
    objects = lake.store.inner._buckets[BUCKET].objects

    def rewrite(key: str, change: Callable[[Any], None]) -> None:
        if key not in objects or objects[key].info.size > len(objects[key].body):
            return
        try:
            plain = json.loads(objects[key].body)
            before = json.dumps(plain)
            change(plain)
            if json.dumps(plain) != before:
                # As compact as before, so that the list's digest is that of its lines here.
                lake.store.put(BUCKET, key, _compact(plain))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, S3CommitError):
            return

    def digest(key: str) -> str:
        return hashlib.sha256(objects[key].body).hexdigest()

    def stage(plain: Any) -> None:
        for task in plain["tasks"]:
            name = f"{task['task']}_{task['attempt']}.pendingset"
            task["sha256"] = digest(f"{_STAGING}stages/spark-1/tasks/{name}")

    def seal(plain: Any) -> None:
        for one in plain["stages"]:
            one["sha256"] = digest(f"{_STAGING}stages/{one['stage']}-{one['stage_attempt']}/sealed.json")

    def entry(plain: Any) -> None:
        number = int(plain["number"])
        if number > 1:
            plain["prev"] = digest(f"{HOME}log/{number - 1:020d}.json")
        commit = plain.get("commit")
        if commit is not None and "within" in commit:
            listed = b"".join(_compact(line) + b"\n" for line in commit["within"])
            commit["files_sha256"] = hashlib.sha256(listed).hexdigest()

    def base(plain: Any) -> None:
        if plain["base"]["number"]:
            plain["base"]["sha256"] = digest(f"{HOME}log/{plain['base']['number']:020d}.json")

    rewrite(f"{_STAGING}stages/spark-1/sealed.json", stage)
    rewrite(f"{HOME}open/{OURS}/sealed.json", seal)
    for key in sorted(key for key in objects if key.startswith(f"{HOME}log/")):
        rewrite(key, entry)
    rewrite(f"{HOME}open/{OURS}/job.json", base)

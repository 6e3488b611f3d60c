"""A small lake for tests of the protocol, and the shortest ways to get a job there into a given state."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any, Literal
from unittest.mock import patch
from uuid import NAMESPACE_URL, uuid5

import msgspec

import airflow_s3commit
from airflow_s3commit import CommittedTask, Destination, Job, JobOptions, JobReference, MemoryStore
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.model.codec import encode, sha256
from airflow_s3commit.protocol.model.layout import Layout
from airflow_s3commit.protocol.model.pendingset import PendingSet, PendingUpload, TaskExtra, UploadExtra
from airflow_s3commit.protocol.steps import files as file_lists
from airflow_s3commit.protocol.steps import output_file
from airflow_s3commit.protocol.steps.output_file import OutputFile
from airflow_s3commit.store.base import DeleteFailure, ObjectStore, ObjectToDelete
from airflow_s3commit.testing import Crash, FaultyStore, StoreCall
from tests.fakes import ManualClock

if TYPE_CHECKING:
    from airflow_s3commit.protocol.sweep import SweepReport

__all__ = [
    "BUCKET",
    "HOME",
    "OURS",
    "ROOT",
    "THEIRS",
    "Crash",
    "Lake",
    "WatchedStore",
    "an_id",
    "apart",
    "by_s3a",
    "named",
    "once",
]

BUCKET = "lake"
ROOT = "flights/"
HOME = f"{ROOT}_s3commit/"
OURS = "11111111-aaaa-4bbb-8ccc-000000000001"
THEIRS = "22222222-aaaa-4bbb-8ccc-000000000002"

_SMALL: dict[str, Any] = {"part_bytes": 1, "threads": 0, "min_part_bytes": 1}


class WatchedStore(FaultyStore):
    """A `FaultyStore` in memory whose hooks a test sets as it runs; they may raise or act."""

    inner: MemoryStore

    def __init__(self, *args: Any, **arguments: Any) -> None:
        super().__init__(MemoryStore(*args, **arguments))

    def delete_many(self, bucket: str, objects: Sequence[ObjectToDelete]) -> list[DeleteFailure]:
        """Delete one by one, so that each delete is a call with a key."""
        return MemoryStore.delete_many(self, bucket, objects)  # type: ignore[arg-type]  # it has `delete`

    def rest(self) -> None:
        """Remove the hooks; further calls are from another process."""
        self.crashed = False
        self.before = self.after = lambda _: None

    def die(self, verb: str, ending: str = "", *, nth: int = 1, after: bool = False) -> None:
        """Kill the process before, or after, its n-th call of ``verb`` on a key with this ending."""
        setattr(self, "after" if after else "before", once(verb, ending, self.crash, nth=nth))


def once(
    verb: str, ending: str, act: Callable[[], object] | BaseException, *, nth: int = 1
) -> Callable[[StoreCall], None]:
    """Return a hook that acts, or raises, at the n-th call of ``verb`` on a key with this ending."""
    seen = count(1)

    def watch(call: StoreCall) -> None:
        if call.verb == verb and call.key.endswith(ending) and next(seen) == nth:
            if isinstance(act, BaseException):
                raise act
            act()

    return watch


def complete(store: ObjectStore, key: str, upload_id: str) -> None:
    """Complete an upload with all of its parts, past the protocol."""
    etags = [part.etag for part in store.list_parts(BUCKET, key, upload_id)]
    store.complete_upload(BUCKET, key, upload_id, etags)


@contextmanager
def apart(when: bool = True) -> Iterator[None]:
    """Let commits write each list of files as an object, as if it were long; also a decorator for tests."""
    limit = -1 if when else file_lists.WITHIN_BYTES
    with patch.object(file_lists, "WITHIN_BYTES", limit):
        yield


@contextmanager
def by_s3a(when: bool = True) -> Iterator[None]:
    """Let task attempts upload as S3A does for Spark's own writers: objects carry nothing of the job."""
    made = OutputFile._record

    def bare(*arguments: Any, **more: Any) -> PendingUpload:
        return msgspec.structs.replace(made(*arguments, **more), s3commit=None)

    with patch.object(OutputFile, "_record", bare if when else made):
        metadata = (lambda *_: {}) if when else output_file.object_metadata
        with patch.object(output_file, "object_metadata", metadata):
            yield


def an_id(name: str) -> str:
    """Return a job id that depends only on the name."""
    return str(uuid5(NAMESPACE_URL, name))


def named(path: str, job_id: str = OURS) -> str:
    """Return a path as unique file names make it; spelled out here, not taken from the code under test."""
    directory, slash, name = path.rpartition("/")
    stem, dot, ending = name.partition(".")
    return f"{directory}{slash}{stem}-{job_id}{dot}{ending}"


class Lake:
    """Two buckets, a dataset in one of them, and jobs that refresh it.

    Args:
        conditions: Whether the store honours conditional writes.
        repeat_complete: What a second completion of a finished upload gets.
        prefix: The dataset's prefix.

    Attributes:
        clock: The clock of every process.
        store_clock: The store's own.
    """

    def __init__(
        self,
        *,
        conditions: bool = True,
        repeat_complete: Literal["ok", "gone"] = "ok",
        prefix: str = ROOT,
        stale_upload_days: int | None = None,
    ) -> None:
        self.clock = ManualClock()
        self.store_clock = ManualClock()
        self.store = WatchedStore(
            (BUCKET, "other"),
            now=self.store_clock.time,
            min_part_bytes=1,
            repeat_complete=repeat_complete,
            conditions=conditions,
            stale_upload_days=stale_upload_days,
        )
        self.prefix = prefix
        self._ids = count(1)

    @property
    def destination(self) -> str:
        """URI of the dataset."""
        return f"s3://{BUCKET}/{self.prefix}"

    def new_id(self) -> str:
        """Return an id that no one else has."""
        return f"id-{next(self._ids):06d}"

    def context(self, job_id: str = OURS, **changes: Any) -> JobContext:
        """Return what the steps of a job need, without threads."""
        layout = Layout.of(Destination.parse(self.destination), job_id)
        context = JobContext(self.store, layout, clock=self.clock, new_id=self.new_id, threads=0)
        return replace(context, **changes)

    def reference(self, job_id: str = OURS) -> JobReference:
        """Return what finds a job."""
        return JobReference(
            job_id=job_id, destination=self.destination, staging=f"{self.destination}__magic_job-{job_id}/"
        )

    def set_up(self, job_id: str = OURS, *, said: Mapping[str, str] | None = None, **options: Any) -> Job:
        """Set a job up, by default one that streams its files and replaces partitions."""
        options = {"committer": "magic", "conflict_mode": "replace", **options}
        Job.setup(
            self.store, self.destination, options=JobOptions(**options), job_id=job_id, context=said,
            clock=self.clock, new_id=self.new_id,
        )  # fmt: skip
        return self.job(job_id)

    def job(self, job_id: str = OURS) -> Job:
        """Return the job as a process that has just started sees it."""
        job = Job.at(self.store, self.reference(job_id), clock=self.clock, new_id=self.new_id)
        job._context = replace(job._context, threads=0)
        return job

    def run_task(
        self,
        job: Job,
        files: Mapping[str, bytes],
        *,
        stage: str = "spark",
        stage_attempt: str = "1",
        task: str = "00000",
        attempt: str = "1",
    ) -> CommittedTask:
        """Run one task attempt: every file has as many rows as bytes."""
        with job.task_attempt(stage, stage_attempt, task, attempt, **_SMALL) as writer:
            for path, body in files.items():
                file = writer.open(path)
                file.write(body)
                file.close(rows=len(body))
            return writer.commit()

    def run_stage(
        self, job: Job, *tasks: Mapping[str, bytes], stage: str = "spark", stage_attempt: str = "1"
    ) -> list[CommittedTask]:
        """Run a stage whose n-th task writes the n-th files, and seal it."""
        committed = [
            self.run_task(job, files, stage=stage, stage_attempt=stage_attempt, task=f"{number:05d}")
            for number, files in enumerate(tasks)
        ]
        job.seal_stage(stage, stage_attempt, committed)
        return committed

    def sealed(self, *tasks: Mapping[str, bytes], job_id: str = OURS, **options: Any) -> Job:
        """Return a sealed job of one stage whose n-th task wrote the n-th files."""
        job = self.set_up(job_id, **options)
        self.run_stage(job, *tasks)
        job.seal()
        return job

    def stray(self, path: str = "dt=1/stray.parquet", body: bytes = b"stray") -> str:
        """Begin an upload that belongs to no job, and return its id."""
        key = self.prefix + path
        upload_id = self.store.create_upload(BUCKET, key, metadata={}, content_type="x")
        self.store.upload_part(BUCKET, key, upload_id, 1, body)
        return upload_id

    def sweep(self, store: Any = None, **asked: Any) -> SweepReport:
        """Sweep with the patience of a day."""
        asked = {"older_than": 86_400.0, "threads": 0, "dry_run": False, **asked}
        return airflow_s3commit.sweep(
            store or self.store, self.destination, clock=self.clock, new_id=self.new_id, **asked
        )

    def put(self, files: Mapping[str, bytes]) -> None:
        """Put objects below the dataset's prefix."""
        for path, body in files.items():
            self.store.put(BUCKET, self.prefix + path, body)

    def get(self, key: str) -> bytes:
        """Return an object's content."""
        return self.store.get(BUCKET, key).body

    def tamper(self, key: str, *, old: bytes = b"", new: bytes = b"", cut: int = 0) -> None:
        """Change a record behind the protocol's back: replace some bytes, or cut some off its end."""
        body = self.get(key)
        assert old in body
        body = body.replace(old, new) if old else body
        self.store.put(BUCKET, key, body[:-cut] if cut else body)

    def keys(self, prefix: str) -> list[str]:
        """Return the keys of the bucket below a prefix."""
        return [info.key for info in self.store.inner.list_objects(BUCKET, prefix)]

    def left(self) -> list[str]:
        """Return the keys of the bucket except what lasts: the log and receipts."""
        lasting = ("_s3commit/jobs/", "_s3commit/log/")
        return [key for key in self.keys("") if not any(part in key for part in lasting)]

    def visible(self) -> dict[str, bytes]:
        """Return everything in the bucket that is not a record of the protocol, by key."""
        return {
            key: self.store.inner._buckets[BUCKET].objects[key].body
            for key in self.keys("")
            if "__magic_job-" not in key and "_s3commit/" not in key
        }

    def data(self) -> dict[str, bytes]:
        """Return what is visible below the dataset's prefix, by path, without ``_SUCCESS``."""
        return {
            key.removeprefix(self.prefix): body
            for key, body in self.visible().items()
            if key.startswith(self.prefix) and key != f"{self.prefix}_SUCCESS"
        }

    def everything(self) -> dict[str, Any]:
        """Return all objects and all pending uploads, to compare with later."""
        return {
            name: (
                {key: (stored.info.etag, stored.body) for key, stored in bucket.objects.items()},
                sorted(bucket.uploads),
            )
            for name, bucket in self.store.inner._buckets.items()
        }

    def pending(self) -> list[str]:
        """Return the keys of all pending uploads."""
        return [upload.key for upload in self.store.inner.list_uploads(BUCKET, "")]

    def staging(self, job_id: str = OURS) -> list[str]:
        """Return the keys in a job's staging, relative to it."""
        prefix = f"{self.prefix}__magic_job-{job_id}/"
        return [key.removeprefix(prefix) for key in self.keys(prefix)]

    def open_key(self, name: str = "job.json", job_id: str = OURS) -> str:
        """Return the key of a record that a job has until its clean-up is finished."""
        return f"{self.prefix}_s3commit/open/{job_id}/{name}"

    def receipt_key(self, job_id: str = OURS) -> str:
        """Return the key of a job's receipt."""
        return f"{self.prefix}_s3commit/jobs/{job_id}.json"

    def entries(self) -> list[dict[str, Any]]:
        """Return the entries of the log in their order."""
        return [json.loads(self.get(key)) for key in self.keys(f"{self.prefix}_s3commit/log/")]

    def pendingset_key(self, task: str = "00000", attempt: str = "1", job_id: str = OURS) -> str:
        """Return the key of a pendingset of stage ``spark``, attempt 1."""
        tasks = f"{self.prefix}__magic_job-{job_id}/stages/spark-1/tasks/"
        return f"{tasks}{task}_{attempt}.pendingset"

    def forge_task(
        self, keys: Mapping[str, str], *, task: str = "00000", job_id: str = OURS, **changes: Any
    ) -> CommittedTask:
        """Forge a pendingset whose uploads have the given keys and buckets; return its committed task.

        Args:
            keys: Buckets by destination key.
            job_id: The job in whose staging it is written.
            **changes: Fields of the pendingset to set.
        """
        commits = [
            PendingUpload(
                uri=f"s3://{bucket}/x", uploadId="forged", bucket=bucket, destinationKey=key, etags=["e"],
                length=1, jobId=job_id, s3commit=UploadExtra(upload=self.new_id(), rows=1),
            )
            for key, bucket in keys.items()
        ]  # fmt: skip
        extra = TaskExtra(stage="spark", stage_attempt="1", task=task, attempt="1", nonce=self.new_id())
        record = PendingSet(jobId=job_id, commits=commits, s3commit=extra)
        return self.place_task(encode(msgspec.structs.replace(record, **changes)), len(keys), task, job_id)

    def place_task(self, body: bytes, files: int, task: str = "00000", job_id: str = OURS) -> CommittedTask:
        """Put any bytes in place of a task's pendingset, and return a committed task of one-byte files."""
        key = self.pendingset_key(task, job_id=job_id)
        self.store.put(BUCKET, key, body)
        return CommittedTask(
            stage="spark", stage_attempt="1", task=task, attempt="1", location=f"s3://{BUCKET}/{key}",
            files=files, bytes=files, rows=files, sha256=sha256(body),
        )  # fmt: skip

"""A Hadoop job that died: its uploads, and its files as Hadoop's own serialiser writes them, in both layouts.

The JSON is spelt out here, field by field, in the order in which Hadoop 3.5.0 emits it; nothing of the code
under test takes part.
"""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass, field
from typing import Any

from airflow_s3commit.store.memory import MemoryStore

__all__ = [
    "BUCKET",
    "MAGIC",
    "ROOT",
    "TASKS",
    "UPLOADS_DIR",
    "UUID",
    "DeadJob",
    "attempt_id",
    "crc32",
    "task_id",
]

BUCKET = "lake"
ROOT = "sales/"
UUID = "7f3c1c0e-2b8e-4b0a-9d0c-0d6a2b9b7a11"
MAGIC = f"{ROOT}__magic_job-{UUID}/"
UPLOADS_DIR = f"tmp/staging/etl/{UUID}/staging-uploads/_temporary/0/"

_MILLIS = 1739800000123
_DATE = "Mon Feb 17 13:46:40 UTC 2025"
_STATISTICS = '{"counters":{},"gauges":{},"minimums":{},"maximums":{},"meanstatistics":{}}'
_TASK_STATISTICS = (
    '{"counters":{"object_put_requests":2,"stream_write_bytes":91},"gauges":{},'
    '"minimums":{"action_executor_acquired.min":-1},"maximums":{},'
    '"meanstatistics":{"object_multipart_initiated.mean":{"samples":2,"sum":17}}}'
)

#: What each task writes, by path below the destination.
TASKS: dict[int, dict[str, tuple[bytes, ...]]] = {
    0: {"day=17/part-00000.parquet": (b"first part ", b"second part"), "day=18/part-00000.parquet": (b"a",)},
    1: {"day=17/part-00001.parquet": (b"",)},
    2: {},
}


def crc32(part: bytes) -> str:
    """Return the checksum of a part as S3 writes it."""
    return base64.b64encode(zlib.crc32(part).to_bytes(4, "big")).decode()


def task_id(number: int) -> str:
    """Return a task's id as MapReduce spells it."""
    return f"task_202502170001_0003_m_{number:06d}"


def attempt_id(number: int, attempt: int = 0) -> str:
    """Return a task attempt's id as MapReduce spells it."""
    return f"attempt_202502170001_0003_m_{number:06d}_{attempt}"


@dataclass
class DeadJob:
    """The store, and the job's uploads and files on it.

    Attributes:
        store: The store; a part may have any size.
        checksums: Whether ETags are objects with checksums, as of Hadoop 3.4.2 on.
        uploads: Upload ids by destination key, in the order they were started.
        contents: What each of those uploads would become, by destination key.
    """

    repeat_complete: Any = "ok"
    checksums: bool = False
    store: MemoryStore = field(init=False)
    uploads: dict[str, list[str]] = field(default_factory=dict)
    contents: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store = MemoryStore((BUCKET, "other"), min_part_bytes=1, repeat_complete=self.repeat_complete)

    @property
    def destination(self) -> str:
        return f"s3a://{BUCKET}/{ROOT}"

    @property
    def pendingsets_uri(self) -> str:
        return f"s3a://{BUCKET}/{UPLOADS_DIR}"

    # Uploads and the JSON that names them.

    def upload(self, path: str, parts: tuple[bytes, ...]) -> tuple[str, list[Any]]:
        """Upload parts to a final key as Hadoop does, without metadata; return id and ETags as written."""
        key = ROOT + path
        upload_id = self.store.create_upload(BUCKET, key, metadata={}, content_type="binary/octet-stream")
        etags = [
            self.store.upload_part(BUCKET, key, upload_id, n, part) for n, part in enumerate(parts, start=1)
        ]
        self.uploads.setdefault(key, []).append(upload_id)
        self.contents[key] = b"".join(parts)
        quoted = [f'"{etag}"' for etag in etags]
        if self.checksums:
            return upload_id, [
                {"etag": etag, "checksumAlgorithm": "CRC32", "checksum": crc32(part)}
                for etag, part in zip(quoted, parts, strict=True)
            ]
        return upload_id, quoted

    def pending(
        self,
        path: str,
        parts: tuple[bytes, ...],
        *,
        magic: str = "",
        job: str = "",
        task: str = "",
        **other: Any,
    ) -> str:
        """Upload a file and return its SinglePendingCommit; ``other`` replaces fields."""
        upload_id, etags = self.upload(path, parts)
        uri = f"s3a://{BUCKET}/{magic}__base/{path}" if magic else f"s3a://{BUCKET}/{ROOT}{path}"
        directory = path.rpartition("/")[0]
        values: dict[str, Any] = {
            "version": 2, "filename": None, "uri": uri, "uploadId": upload_id, "bucket": BUCKET,
            "destinationKey": ROOT + path, "created": _MILLIS, "saved": _MILLIS, "date": _DATE,
            "jobId": job, "taskId": task, "text": "" if magic else f"partition: {directory}",
            "etags": etags, "extraData": {}, "length": sum(map(len, parts)), "partCount": len(parts),
        }  # fmt: skip
        text = json.dumps({**values, **other}, separators=(",", ":"))
        return f'{text[:-1]},"iostatistics":{_STATISTICS}}}'

    @staticmethod
    def pendingset(commits: list[str], *, job: str, version: int = 3) -> bytes:
        """Return a PendingSet."""
        text = f'{{"version":{version},"jobId":"{job}","commits":[{",".join(commits)}]'
        return f'{text},"iostatistics":{_TASK_STATISTICS}}}'.encode()

    def put(self, key: str, body: bytes) -> str:
        self.store.put(BUCKET, key, body)
        return key

    # Tasks, in both layouts.

    def magic_attempt(self, number: int, attempt: int = 0, run: int = 0) -> str:
        """Return the directory that a task attempt of the magic committer works in."""
        return f"{MAGIC}job-{UUID}/{run:02d}/tasks/{attempt_id(number, attempt)}/"

    def commit_magic_task(
        self, number: int, files: dict[str, tuple[bytes, ...]], run: int = 0, **other: Any
    ) -> str:
        """Commit a task as the magic committer does, and return its pendingset's key."""
        magic, task = self.magic_attempt(number, run=run), attempt_id(number)
        commits = [
            self.pending(path, parts, magic=magic, job=UUID, task=task, **other)
            for path, parts in files.items()
        ]
        key = f"{MAGIC}job-{UUID}/{run:02d}/{task_id(number)}.pendingset"
        return self.put(key, self.pendingset(commits, job=UUID))

    def leave_magic_attempt(self, number: int, files: dict[str, tuple[bytes, ...]], attempt: int = 1) -> None:
        """Write the files of a task attempt that will never commit: markers and ``.pending`` files."""
        magic = self.magic_attempt(number, attempt)
        for path, parts in files.items():
            self.put(f"{magic}__base/{path}", b"")
            self.put(f"{magic}__base/{path}.pending", self.pending(path, parts, magic=magic).encode())

    def commit_staging_task(self, number: int, files: dict[str, tuple[bytes, ...]], **other: Any) -> str:
        """Commit a task as the staging committers do; its file has no suffix and names no job."""
        commits = [self.pending(path, parts, **other) for path, parts in files.items()]
        return self.put(UPLOADS_DIR + task_id(number), self.pendingset(commits, job=""))

    def leave_staging_attempt(self, number: int, files: dict[str, tuple[bytes, ...]]) -> None:
        """Leave the pendingset of a task attempt that died before its rename, and stray files around it."""
        commits = [self.pending(path, parts) for path, parts in files.items()]
        self.put(f"{UPLOADS_DIR}_temporary/{attempt_id(number, 1)}", self.pendingset(commits, job=""))
        self.put(f"{UPLOADS_DIR}.{task_id(number)}.crc", b"\x00\x01crc")

    @classmethod
    def magic(cls, **settings: Any) -> DeadJob:
        """Return a job with three committed tasks, and another attempt that died with a file ready."""
        dead = cls(**settings)
        for number, files in TASKS.items():
            dead.commit_magic_task(number, files)
        dead.leave_magic_attempt(1, {"day=17/part-00001.parquet": (b"a twin",)})
        dead.contents[f"{ROOT}day=17/part-00001.parquet"] = b""
        return dead

    @classmethod
    def staging(cls, **settings: Any) -> DeadJob:
        """Return the same job as a staging committer leaves it."""
        dead = cls(**settings)
        for number, files in TASKS.items():
            dead.commit_staging_task(number, files)
        dead.leave_staging_attempt(1, {"day=17/part-00001.parquet": (b"a twin",)})
        dead.contents[f"{ROOT}day=17/part-00001.parquet"] = b""
        return dead

    def succeed(self, job_id: str = UUID) -> None:
        """Complete what the tasks committed, and write ``_SUCCESS``; the job's directory is kept."""
        for key in self.contents:
            self.complete(key)
        self.mark(job_id)

    def mark(self, job_id: str) -> None:
        """Write ``_SUCCESS`` as a job of Hadoop's does."""
        marker = {
            "name": "org.apache.hadoop.fs.s3a.commit.files.SuccessData/1", "success": True, "jobId": job_id,
            "timestamp": _MILLIS, "date": _DATE, "committer": "magic", "filenames": [], "metrics": {},
        }  # fmt: skip
        self.put(f"{ROOT}_SUCCESS", json.dumps(marker).encode())

    # What is there.

    def complete(self, key: str, number: int = 0) -> None:
        """Complete an upload of a key, as a job commit of Hadoop does before its driver dies."""
        upload_id = self.uploads[key][number]
        etags = [part.etag for part in self.store.list_parts(BUCKET, key, upload_id)]
        self.store.complete_upload(BUCKET, key, upload_id, etags)

    def visible(self) -> dict[str, bytes]:
        """Return the objects of the destination that are data, by key."""
        return {
            info.key: self.store.get(BUCKET, info.key).body
            for info in self.store.list_objects(BUCKET, ROOT)
            if "__magic_job-" not in info.key and "_s3commit/" not in info.key and "_SUCCESS" not in info.key
        }

    def keys(self, prefix: str = "") -> list[str]:
        """Return the keys below a prefix."""
        return [info.key for info in self.store.list_objects(BUCKET, prefix)]

    def pending_keys(self) -> list[str]:
        """Return the keys of all pending uploads of the bucket."""
        return [upload.key for upload in self.store.list_uploads(BUCKET, "")]

    def everything(self) -> Any:
        """Return all objects and all pending uploads, to compare with later."""
        home = self.store._buckets[BUCKET]
        return {key: stored.body for key, stored in home.objects.items()}, sorted(home.uploads)

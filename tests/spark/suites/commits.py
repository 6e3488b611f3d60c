"""A server that begins and ends a job for each write of Spark's own tests, and keeps a disk as S3 is."""

from __future__ import annotations

import shutil
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING

from airflow_s3commit import Job, JobOptions
from airflow_s3commit.store.base import ObjectToDelete

if TYPE_CHECKING:
    from airflow_s3commit import S3Store

BUCKET = "lake"


class Commits:
    """The jobs that run, each on a directory of the disk and its copy in S3.

    Args:
        store: The store, whose bucket has nothing else.
    """

    def __init__(self, store: S3Store) -> None:
        self._store = store
        self._jobs: dict[str, tuple[Job, str]] = {}
        self._lock = Lock()
        #: Number of commits.
        self.committed = 0

    def begin(self, directory: str) -> str:
        """Copy a directory to S3, begin a job on it, and return the job's id."""
        folder, prefix = Path(directory), f"{directory.strip('/')}/"
        with self._lock:
            self._empty(prefix)
            for file in folder.rglob("*") if folder.is_dir() else ():
                if file.is_file() and not file.name.endswith(".crc"):
                    self._store.put(BUCKET, prefix + file.relative_to(folder).as_posix(), file.read_bytes())
            options = JobOptions(conflict_mode="as-written")
            job = Job.setup(self._store, f"s3://{BUCKET}/{prefix}", options=options)
            self._jobs[job.reference.job_id] = job, prefix
            return job.reference.job_id

    def commit(self, job_id: str) -> str:
        """Commit a job, and bring its directory to what S3 has."""
        with self._lock:
            job, prefix = self._jobs.pop(job_id)
            job.seal_stage("load", "1")
            job.seal()
            job.commit()
            self.committed += 1
            folder = Path(f"/{prefix}")
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            for found in self._store.list_objects(BUCKET, prefix):
                path = found.key.removeprefix(prefix)
                if not path.endswith("/") and not path.startswith(("_s3commit/", "__magic")):
                    (folder / path).parent.mkdir(parents=True, exist_ok=True)
                    (folder / path).write_bytes(self._store.get(BUCKET, found.key).body)
            self._empty(prefix)
        return ""

    def abort(self, job_id: str) -> str:
        """Abort a job; its directory stays."""
        with self._lock:
            if job_id in self._jobs:
                self._jobs.pop(job_id)[0].abort()
        return ""

    def _empty(self, prefix: str) -> None:
        keys = [ObjectToDelete(found.key) for found in self._store.list_objects(BUCKET, prefix)]
        for at in range(0, len(keys), 1_000):
            assert not self._store.delete_many(BUCKET, keys[at : at + 1_000])


def serve(commits: Commits) -> tuple[ThreadingHTTPServer, str]:
    """Start a server, and return it with its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            try:
                status, answer = 200, getattr(commits, self.path.strip("/"))(body)
            except Exception:
                status, answer = 500, traceback.format_exc()
            self.send_response(status)
            self.end_headers()
            self.wfile.write(answer.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    return server, f"http://127.0.0.1:{server.server_port}"

"""Takes steps of jobs in a process of its own, by orders on standard input, one JSON object a line.

Run as ``python -m tests.integration.worker_process``, with the store's address and keys, and how to send, in
the environment. An order names a step (``do``), its arguments, and perhaps a call to ``hold`` at: a verb, a
pattern of the key, and which of the matching calls. There the process says so and waits for a line. At the
end of a step it says what came of it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from airflow_s3commit import Job, JobOptions, S3Config, S3Store
from airflow_s3commit.exceptions import S3CommitError
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import JobReference
from airflow_s3commit.protocol.model.layout import Layout
from airflow_s3commit.protocol.sweep import sweep
from airflow_s3commit.store.base import Abort, Call, Complete, DeleteMany, Get, Head, Outcome
from airflow_s3commit.store.execute import with_threads
from airflow_s3commit.store.forwarding import ForwardingStore

T = TypeVar("T")

_VERBS = {
    Complete: "complete_upload",
    Abort: "abort_upload",
    Head: "head",
    Get: "get",
    DeleteMany: "delete_many",
}


def say(**what: Any) -> None:
    """Write a line to the parent."""
    os.write(1, json.dumps(what).encode() + b"\n")


class Holding(ForwardingStore):
    """A store that waits for the parent before one call.

    Args:
        verb: Verb of the call; empty for none.
        pattern: Pattern of its key; bulk deletes have none.
        nth: Which of the matching calls, from 1.
    """

    def __init__(self, inner: S3Store, verb: str = "", pattern: str = "*", nth: int = 1) -> None:
        super().__init__(inner)
        self._sends_with = inner.transport
        self._verb, self._pattern, self._left = verb, pattern, nth
        self._lock = threading.Lock()

    def forward(self, verb: str, bucket: str, key: str, make: Callable[[], T]) -> T:
        """Make a call, after the parent's permission if it is the held one."""
        self._wait(verb, key)
        return super().forward(verb, bucket, key, make)

    def perform(self, calls: Iterable[tuple[T, Call]]) -> Iterator[tuple[T, Outcome]]:
        """Make the calls, from four threads or with libcurl."""
        if self._sends_with == "curl":
            return self.inner.perform(self._drawn(calls))
        return with_threads(self, calls, 4)

    def _drawn(self, calls: Iterable[tuple[T, Call]]) -> Iterator[tuple[T, Call]]:
        for tag, call in calls:
            self._wait(_VERBS[type(call)], getattr(call, "key", ""))
            yield tag, call

    def _wait(self, verb: str, key: str) -> None:
        if verb != self._verb or not fnmatchcase(key, self._pattern):
            return
        with self._lock:
            self._left -= 1
            if self._left == 0:
                say(held=f"{verb} {key}")
                sys.stdin.readline()


def set_up(store: Any, destination: str, mode: Any, job_id: str | None = None) -> Job:
    """Set a job up."""
    return Job.setup(store, destination, options=JobOptions(conflict_mode=mode), job_id=job_id)


def write(store: Any, destination: str, mode: Any, partitions: list[str], files: int) -> Job:
    """Upload some files to each partition, and seal them."""
    job = set_up(store, destination, mode)
    with job.task_attempt("spark", "1", "00000", "0") as attempt:
        for partition in partitions:
            for number in range(files):
                with attempt.open(f"{partition}/part-{number}.bin") as file:
                    file.write(f"{job.reference.job_id}: {partition}, {number}".encode())
        tasks = [attempt.commit()]
    job.seal_stage("spark", "1", tasks)
    job.seal()
    return job


def take(store: Any, do: str, destination: str, job: str | None = None, **arguments: Any) -> Any:
    """Take a step, and return what the parent needs to know."""
    place = Destination.parse(destination)
    if job is not None:
        layout = Layout.of(place, job)
        opened = Job.at(store, JobReference(job_id=job, destination=destination, staging=layout.staging.uri))
    match do:
        case "set up" | "write":
            step = write if do == "write" else set_up
            return step(store, destination, **arguments).reference.job_id
        case "refresh":
            return write(store, destination, **arguments).commit().generation
        case "commit" | "recover":
            return getattr(opened, do)().generation
        case "abort":
            return opened.abort().uploads
        case "part":
            return opened.complete_part(**arguments)
        case "sweep":
            report = sweep(store, destination, dry_run=False, **arguments)
            assert not report.failures, report.failures
            return [swept.job_id for swept in report.jobs]
    raise ValueError(do)


def main() -> None:
    """Take the steps that the parent orders, until it closes the pipe."""
    config = S3Config(endpoint_url=os.environ["S3_ENDPOINT"], region="us-east-1")
    transport: Any = os.environ["S3_TRANSPORT"]
    store = S3Store.connect(config, transport=transport)
    for line in iter(sys.stdin.readline, ""):
        order = json.loads(line)
        try:
            say(done=take(Holding(store, *order.pop("hold", ())), **order))
        except S3CommitError as error:
            say(failed=type(error).__name__, why=str(error))


if __name__ == "__main__":
    main()

"""Commits whose process is really killed, and what another process makes of their jobs.

Run as ``python -m dev.killed <reference as JSON> commit|abort``, with the store's address, its keys and the
transport in the environment, this takes the step, and prints a line before every call to the store. So the
process that started it can choose where to kill it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

from airflow_s3commit import Job, JobOptions, JobReference, RetryPolicy, S3Config, S3Store
from airflow_s3commit.exceptions import AlreadyCommitted, JobFailed
from airflow_s3commit.store.base import Call, Outcome
from airflow_s3commit.store.execute import with_threads
from airflow_s3commit.store.forwarding import ForwardingStore

ROOT = Path(__file__).parents[1]

#: Tasks of a generation, and the partitions that each writes to.
TASKS, PARTITIONS = 6, 5

#: Calls of the commit of a generation that replaces another one; a store may need one more.
COMMIT_CALLS = 60

#: How many commits `finish_killed` kills, each at another call.
KILLS = 10

#: The transports of the killed processes, in turn.
TRANSPORTS = ("boto3", "curl")

#: Seconds that a request is retried: a store may be slow right after a start.
_DEADLINE = 20.0

T = TypeVar("T")


class Announcing(ForwardingStore):
    """A store that writes a line before each call."""

    def __init__(self, inner: S3Store) -> None:
        super().__init__(inner)
        self._sends_with = inner.transport

    def forward(self, verb: str, bucket: str, key: str, make: Callable[[], T]) -> T:
        """Announce the call and make it."""
        os.write(1, f"{verb}\n".encode())
        return super().forward(verb, bucket, key, make)

    def perform(self, calls: Iterable[tuple[T, Call]]) -> Iterator[tuple[T, Outcome]]:
        """Make the calls, from four threads or with libcurl, announcing each."""
        if self._sends_with == "curl":
            return self.inner.perform(self._announced(calls))
        return with_threads(self, calls, 4)

    @staticmethod
    def _announced(calls: Iterable[tuple[T, Call]]) -> Iterator[tuple[T, Call]]:
        for tag, call in calls:
            os.write(1, f"{type(call).__name__}\n".encode())
            yield tag, call


class Generation:
    """One generation of a dataset, written by a sealed job.

    Args:
        destination: URI of the dataset, with a slash at its end.
        name: The generation's name, which its files contain.
        options: The options of the job, which replaces what is there.

    Attributes:
        job: The job.
        keys: The keys of its uploads, with that of a late task attempt, which is not part of the output.
    """

    def __init__(self, store: S3Store, destination: str, name: str, options: JobOptions) -> None:
        self.job = Job.setup(store, destination, options=options)
        self.keys: list[str] = []
        committed = []
        for task in range(TASKS):
            with self.job.task_attempt("spark", "1", f"{task:05d}", "0") as attempt:
                for partition in range(PARTITIONS):
                    with attempt.open(f"dt={partition}/part-{task}.parquet") as file:
                        file.write(_data(name, task, partition))
                    self.keys.append(file.key)
                committed.append(attempt.commit())
        with self.job.task_attempt("spark", "1", "00000", "twin") as late:
            with late.open("dt=0/part-0.parquet") as file:
                file.write(b"a speculative twin")
            self.keys.append(file.key)
            late.commit()
        self.job.seal_stage("spark", "1", committed)
        self.job.seal()


def _data(name: str, task: int, partition: int) -> bytes:
    return f"{name}: task {task}, partition {partition}".encode() * 50


def run_and_kill(
    config: S3Config, reference: JobReference, step: Literal["commit", "abort"], calls: int, transport: str
) -> bool:
    """Take a step in its own process, and kill it before call ``calls``; return whether it got so far."""
    environment = {
        **os.environ,
        "S3_ENDPOINT": str(config.endpoint_url),
        "S3_TRANSPORT": transport,
        "AWS_ACCESS_KEY_ID": str(config.access_key),
        "AWS_SECRET_ACCESS_KEY": str(config.secret_key),
    }
    command = [sys.executable, "-m", "dev.killed", json.dumps(reference.to_dict()), step]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE)
    assert process.stdout is not None
    made = 0
    for made, _ in enumerate(process.stdout, start=1):
        if made == calls:
            process.send_signal(signal.SIGKILL)
            break
    process.stdout.close()
    process.wait()
    print(f"{step} killed at call {made}, exit code {process.returncode}")
    return process.returncode == -signal.SIGKILL


def call_of(strike: int, strikes: int) -> int:
    """Return the number of the call before which a strike kills a commit; strikes spread over all calls.

    It is never the last call, because the process might end before it is killed.
    """
    each = COMMIT_CALLS // strikes
    return each * strike + random.Random(strike).randint(1, each - 1)  # noqa: S311 - no secret


def check_generation(store: S3Store, bucket: str, prefix: str, name: str, keys: Iterable[str] = ()) -> None:
    """Check that a dataset has exactly the files of one generation, and that no job left anything.

    Args:
        prefix: The dataset's prefix.
        name: The generation's name.
        keys: The keys of all uploads, for stores that list uploads by exact keys only.

    Raises:
        AssertionError: The dataset has other files, or something is left.
    """
    expected = sorted(_data(name, task, part) for task in range(TASKS) for part in range(PARTITIONS))
    found = [info.key for info in store.list_objects(bucket, prefix) if "/dt=" in info.key]
    assert sorted(store.get(bucket, key).body for key in found) == expected
    for place in (prefix, *keys):
        assert list(store.list_uploads(bucket, place)) == []
    assert [info.key for info in store.list_objects(bucket, f"{prefix}__magic_job-")] == []


def finish_killed(
    config: S3Config,
    bucket: str,
    prefix: str,
    options: JobOptions,
    strike: int,
    *,
    loses_uploads: bool = False,
) -> None:
    """Kill a commit, then commit or abort its job, and check that one complete generation exists.

    Args:
        config: Address and keys of the store.
        prefix: The prefix of the dataset, with nothing below it.
        options: The options of the jobs.
        strike: Number of the strike, which decides where the process is killed and how its job is ended.
        loses_uploads: Whether the store may lose the upload that was being completed: then the second commit
            fails, and the old generation stays.

    Raises:
        AssertionError: The dataset has other files, or something is left.
        S3CommitError: A job failed.
    """
    store = S3Store.connect(config, retry=RetryPolicy(deadline=_DEADLINE))
    destination = f"s3://{bucket}/{prefix}"
    old = Generation(store, destination, "old", options)
    old.job.commit()
    new = Generation(store, destination, "new", options)
    transport = TRANSPORTS[strike % len(TRANSPORTS)]
    calls = call_of(strike, KILLS)
    assert run_and_kill(config, new.job.reference, "commit", calls, transport), "the commit has fewer calls"
    again = Job.at(S3Store.connect(config, retry=RetryPolicy(deadline=_DEADLINE)), new.job.reference)
    name = "new"
    try:
        if strike % 3 == 2:  # noqa: PLR2004 - every third one
            again.abort()
            name = "old"
        else:
            again.commit()
    except AlreadyCommitted:
        again.commit()
    except JobFailed:
        if not loses_uploads:
            raise
        name = "old"
    check_generation(store, bucket, prefix, name, {*old.keys, *new.keys})


def main() -> None:
    """Take the step named on the command line."""
    reference = JobReference.from_dict(json.loads(sys.argv[1]))
    config = S3Config(endpoint_url=os.environ["S3_ENDPOINT"], region="us-east-1")
    transport: Any = os.environ["S3_TRANSPORT"]
    store = S3Store.connect(config, transport=transport)
    getattr(Job.at(Announcing(store), reference), sys.argv[2])()


if __name__ == "__main__":
    main()

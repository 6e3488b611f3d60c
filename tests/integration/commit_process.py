"""Commits or aborts a job in a process of its own, saying a line before every call to the store.

Run as ``python -m tests.integration.commit_process <reference as JSON> commit|abort``, with the store's
address and keys, and how to send, in the environment.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from airflow_s3commit import Job, JobReference, S3Config, S3Store
from airflow_s3commit.store.base import Call, Outcome
from airflow_s3commit.store.execute import with_threads
from airflow_s3commit.store.forwarding import ForwardingStore

T = TypeVar("T")


class Announcing(ForwardingStore):
    """A store that writes a line before each call, so that a parent can choose where to strike."""

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


def main() -> None:
    """Take the step named on the command line."""
    reference = JobReference.from_dict(json.loads(sys.argv[1]))
    config = S3Config(endpoint_url=os.environ["S3_ENDPOINT"], region="us-east-1")
    transport: Any = os.environ["S3_TRANSPORT"]
    store = S3Store.connect(config, transport=transport)
    getattr(Job.at(Announcing(store), reference), sys.argv[2])()


if __name__ == "__main__":
    main()

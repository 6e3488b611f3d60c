"""Commits or aborts a job in a process of its own, saying a line before every call to the store.

Run as ``python -m tests.integration.commit_process <reference as JSON> commit|abort``, with the store's
address and keys, and how to send, in the environment.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.records import JobReference
from airflow_s3commit.store.base import Call, Outcome
from airflow_s3commit.store.calls import with_threads
from airflow_s3commit.store.s3 import S3Config, S3Store


class Announcing:
    """A store that writes a line before each call, so that a parent can choose where to strike."""

    def __init__(self, inner: S3Store) -> None:
        self._inner = inner

    def __getattr__(self, verb: str) -> Any:
        attribute = getattr(self._inner, verb)
        if not callable(attribute):
            return attribute

        def call(*args: Any, **kwargs: Any) -> Any:
            os.write(1, f"{verb}\n".encode())
            return attribute(*args, **kwargs)

        return call

    def perform(self, calls: Iterable[tuple[Any, Call]]) -> Iterator[tuple[Any, Outcome]]:
        """Make the calls, from four threads or with libcurl, announcing each."""
        if self._inner.transport == "curl":
            return self._inner.perform(self._announced(calls))
        return with_threads(self, calls, 4)  # type: ignore[arg-type]

    @staticmethod
    def _announced(calls: Iterable[tuple[Any, Call]]) -> Iterator[tuple[Any, Call]]:
        for tag, call in calls:
            os.write(1, f"{type(call).__name__}\n".encode())
            yield tag, call


def main() -> None:
    """Take the step named on the command line."""
    reference = JobReference.from_dict(json.loads(sys.argv[1]))
    config = S3Config(endpoint_url=os.environ["S3_ENDPOINT"], region="us-east-1")
    transport: Any = os.environ["S3_TRANSPORT"]
    store = S3Store.connect(config, transport=transport)
    getattr(Job.at(Announcing(store), reference), sys.argv[2])()  # type: ignore[arg-type]


if __name__ == "__main__":
    main()

"""Killing the worker's container while it commits."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self

from airflow_s3commit.demo.compose.reach import STORE, WORKER
from airflow_s3commit.demo.story import REFRESH
from airflow_s3commit.protocol.survey import list_jobs

if TYPE_CHECKING:
    from types import TracebackType

    from airflow_s3commit.demo.compose.containers import ContainerStack
    from airflow_s3commit.protocol.destination import Destination
    from airflow_s3commit.store.base import ObjectStore

__all__ = ["KillWhileCommitting"]

_COMMIT = "refresh.commit"

#: Of one processor, for the store while it is waited for the moment: a request takes some tenths of a second.
_SHARE = 0.03


class KillWhileCommitting:
    """Kills the worker's container between the first and the last step of a commit, and starts it again.

    A commit of a few files is over before anything could be killed: so the store gets little of the processor
    from the commit task's start on, until the worker is dead.

    Args:
        stack: The stack.
        store: Where the dataset is.
        destination: The dataset.

    Attributes:
        killed: Whether the worker was killed while a job was committing, so that the job was left like that.

    """

    def __init__(self, stack: ContainerStack, store: ObjectStore, destination: Destination) -> None:
        self._stack = stack
        self._store = store
        self._destination = destination
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kill-while-committing", daemon=True)
        self._error: Exception | None = None
        self.killed = False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._committing():
                if self._over.wait(0.3):
                    return
            self._stack.limit(STORE, _SHARE)
            try:
                while not self._in_the_middle():
                    if self._over.wait(0.05):
                        return
                self._stack.kill(WORKER)
            finally:
                self._stack.limit(STORE, None)
            self.killed = self._in_the_middle()  # still, with nobody left to go on
            self._stack.start(WORKER)
        except Exception as error:
            self._error = error

    def _committing(self) -> bool:
        """Whether the commit task of a run is running."""
        api = self._stack.api
        return any(
            task["task_id"] == _COMMIT and task["state"] == "running"
            for run in api.runs(REFRESH)
            if run["state"] == "running"
            for task in api.tasks(REFRESH, run["dag_run_id"])
        )

    def _in_the_middle(self) -> bool:
        """Whether a job has begun to commit and is not yet committed."""
        return any(job.state == "committing" for job in list_jobs(self._store, self._destination))

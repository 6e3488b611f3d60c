"""Killing the worker's container while it commits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_s3commit.protocol.inspect.jobs import list_jobs
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.model.layout import Layout
from airflow_s3commit.protocol.steps.setup import is_publishing
from dev.background import Background
from dev.demo.story import REFRESH

if TYPE_CHECKING:
    from airflow_s3commit.protocol.model.destination import Destination
    from airflow_s3commit.store.base import ObjectStore
    from dev.stack.containers import ContainerStack

_COMMIT = "refresh.commit"

STORE, WORKER = "seaweedfs", "airflow-worker"

#: The store's share of one processor until the kill, so that a request takes some tenths of a second.
_SHARE = 0.03


class KillWhileCommitting(Background):
    """Kills the worker's container between the first and the last step of a commit, and starts it again.

    A commit of a few files is over before anything could be killed: so the store gets little of the processor
    from the commit task's start on, until the worker is dead.

    Args:
        stack: The stack.
        store: Where the dataset is.
        destination: The dataset.

    Attributes:
        killed: Whether the worker was killed while a job was committing, and left the job in that state.
    """

    def __init__(self, stack: ContainerStack, store: ObjectStore, destination: Destination) -> None:
        super().__init__()
        self._stack = stack
        self._store = store
        self._destination = destination
        self.killed = False

    def run(self) -> None:
        """Wait for a commit to begin, slow it down, and kill the worker in the middle of it."""
        self._stack.container(WORKER)  # so that the kill itself takes no longer than it must
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
        self.killed = self._in_the_middle()  # still, with no process left to continue
        self._stack.start(WORKER)

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
        """Whether some files of a sealed job are objects, and the job is not yet committed."""
        sealed = [job for job in list_jobs(self._store, self._destination) if job.state == "sealed"]
        layouts = (Layout.of(self._destination, job.job_id) for job in sealed)
        return any(is_publishing(JobContext(self._store, layout)) for layout in layouts)

"""What one run of a command works with: the place it is about, the store, and where its words go."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import cached_property

from airflow_s3commit.cli import connect
from airflow_s3commit.cli.connect import Connection, Door
from airflow_s3commit.cli.output import Output
from airflow_s3commit.protocol.context import JobContext
from airflow_s3commit.protocol.destination import Destination
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.layout import MAGIC_PREFIX, Layout
from airflow_s3commit.protocol.records import JobReference
from airflow_s3commit.protocol.signing import Signer
from airflow_s3commit.store.base import ObjectStore
from airflow_s3commit.store.headers import with_headers

__all__ = ["Session"]


@dataclass
class Session:
    """One run of a command.

    Attributes:
        connection: How to reach the store.
        output: Where its words go.
        destination: What it is about.
        job_id: The job it is about, if it is about one.
        staging_root: Where jobs have their records, if not below the destination.
        yes: The person has confirmed already.
        door: Another way to the store than the command line's options, if the program has one.

    """

    connection: Connection
    output: Output
    destination: Destination
    job_id: str | None = None
    staging_root: Destination | None = None
    yes: bool = False
    door: Door | None = None

    def __post_init__(self) -> None:
        # People copy what they see, and what they see of a staging is a job's own directory.
        name = f"{MAGIC_PREFIX}{self.job_id}/"
        root = self.staging_root
        if root is not None and self.job_id is not None and f"/{root.prefix}".endswith(f"/{name}"):
            root = Destination(root.bucket, root.prefix.removesuffix(name))
        self.staging_root = None if root == self.destination else root

    @cached_property
    def store(self) -> ObjectStore:
        """The store, opened when it is first needed."""
        store = self.door.open(self.connection) if self.door else connect.open_store(self.connection)
        return with_headers(store, self.connection.object_options.of_records)

    @cached_property
    def signer(self) -> Signer | None:
        """Who signs the records of jobs, and checks them before a command acts on one."""
        return self.door.signer() if self.door else connect.environments_signer()

    @property
    def layout(self) -> Layout:
        """The keys of the job."""
        assert self.job_id is not None
        return Layout.of(self.destination, self.job_id, self.staging_root)

    @property
    def context(self) -> JobContext:
        """The job, for functions that only read."""
        return JobContext(self.store, self.layout)

    def job(self, *, lock_wait: float = 60.0) -> Job:
        """Return the job, without asking the store yet."""
        layout = self.layout
        reference = JobReference(
            job_id=layout.job_id, destination=layout.destination.uri, staging=layout.staging.uri
        )
        return Job.at(self.store, reference, lock_wait=lock_wait, signer=self.signer)

    def command(self, name: str, *more: str, job_id: str | None = None) -> str:
        """Return the command line that does something else about the same place, to be pasted."""
        words = [*self._program, name, self.destination.uri]
        job_id = job_id or self.job_id
        if job_id is not None:
            words.append(job_id)
        words += more
        if self.staging_root is not None:
            words += ["--staging", self.staging_root.uri]
        return shlex.join(words + self._way_in)

    def about_all(self, name: str, *more: str) -> str:
        """Return the command line that is about the destination and no single job."""
        words = [*self._program, name, self.destination.uri, *more]
        if self.staging_root is not None:
            words += ["--staging", self.staging_root.uri]
        return shlex.join(words + self._way_in)

    @property
    def _program(self) -> tuple[str, ...]:
        return self.door.program if self.door else ("s3commit",)

    @property
    def _way_in(self) -> list[str]:
        own = self.connection.arguments()
        return [*own, *self.door.arguments] if self.door else own

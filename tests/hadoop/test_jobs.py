"""Real jobs of Hadoop's magic committer, killed at chosen requests; and our jobs, completed by Hadoop."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from airflow_s3commit import Destination, Job, JobOptions, JobReference, sweep
from airflow_s3commit.exceptions import AlreadyCommitted, AuditFailed, S3CommitError
from airflow_s3commit.protocol.hadoop.adopt import Adoption
from airflow_s3commit.protocol.hadoop.jobs import classify, find_hadoop_job
from airflow_s3commit.protocol.model.destination import hadoop_uri
from tests.hadoop.real_hadoop import Hadoop
from tests.hadoop.test_formats import SPELLING

if TYPE_CHECKING:
    from airflow_s3commit import S3Store
    from airflow_s3commit.testing import S3Server

pytestmark = [pytest.mark.all, pytest.mark.seaweedfs, pytest.mark.xdist_group("hadoop")]

KILLED = 9

#: Where a job of three tasks is killed, and what it is to be taken for then.
STOPS = {
    "before:PutObject:000000.pendingset:1": "partial",
    "before:CompleteMultipartUpload:.csv:1": "unpublished",
    "after:CompleteMultipartUpload:.csv:2": "half-published",
    "before:PutObject:_SUCCESS:1": "half-published",
    "after:PutObject:_SUCCESS:1": "successful",
}


@dataclass(frozen=True)
class World:
    """A release of Hadoop, and a destination on a real store.

    Attributes:
        hadoop: The release.
        server: The store's server.
        store: The store.
        place: The destination.
    """

    hadoop: Hadoop
    server: S3Server
    store: S3Store
    place: Destination

    def run(self, *words: str, exit_code: int = 0, **options: str) -> list[list[str]]:
        """Run the program on this store."""
        environment = {**self.server.environment, "ENDPOINT": self.server.endpoint_url}
        properties = {name.replace("_", "."): value for name, value in options.items()}
        return self.hadoop.run(
            "RunJobs", *words, exit_code=exit_code, environment=environment, properties=properties
        )

    def job(self, stop: str, tasks: str = "2,1,0", **options: str) -> str:
        """Run a job of the magic committer until it is killed, and return its id."""
        job_id, uri = str(uuid.uuid4()), hadoop_uri(self.place.bucket, self.place.prefix)
        self.run("run", uri, job_id, tasks, stop, exit_code=0 if stop == "never" else KILLED, **options)
        return job_id

    def visible(self) -> dict[str, bytes]:
        """Return the data that readers see, by path."""
        listed = self.store.list_objects(self.place.bucket, self.place.prefix)
        paths = [info.key.removeprefix(self.place.prefix) for info in listed]
        # Hadoop's mkdirs leaves an object for the destination itself.
        seen = [path for path in paths if path and not path.startswith("_") and not path.endswith("/")]
        return {path: self.store.get(self.place.bucket, self.place.key(path)).body for path in seen}

    def left(self, job_id: str) -> list[str]:
        """Return the keys of pending uploads, and of a job's directory."""
        uploads = [upload.key for upload in self.store.list_uploads(self.place.bucket, self.place.prefix)]
        listed = self.store.list_objects(self.place.bucket, self.place.key(f"__magic_job-{job_id}/"))
        return [*uploads, *(info.key for info in listed if info.size)]

    def end(self, job_id: str, *, commit: bool = True, **asked: Any) -> S3CommitError | None:
        """Adopt a job and return the error."""
        adoption = Adoption(self.store, self.place, job_id=job_id, **asked)
        try:
            adoption.commit() if commit else adoption.abort()
        except S3CommitError as error:
            return error
        return None


@pytest.fixture
def world(hadoop: Hadoop, seaweed: S3Server, seaweed_store: S3Store, bucket: str, prefix: str) -> World:
    """Return an empty destination."""
    return World(hadoop, seaweed, seaweed_store, Destination(bucket, prefix))


def written(*tasks: int) -> dict[str, bytes]:
    """Return what tasks write."""
    return {
        f"{day}/part {task}.csv": f"rows of {day}, {task}\n".encode()
        for task in tasks
        for day in ("day=17", "day=18")
    }


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("stop", STOPS)
def test_a_job_killed_at_a_request_is_known_and_ended(world: World, stop: str, commit: bool) -> None:
    """It is taken for what it is, never cut in two, and finished or taken back whole."""
    job_id, status = world.job(stop), STOPS[stop]
    found = find_hadoop_job(world.store, world.place, job_id)
    assert found is not None
    assert classify(found).status == status, found
    before = world.visible()
    if status in ("half-published", "successful"):
        with pytest.raises(S3CommitError, match=r"s3commit (adopt|sweep)"):
            Job.at(world.store, reference(world, job_id)).abort()
        assert world.visible() == before
    if status == "half-published":
        assert sweep(world.store, world.place, older_than=0.0, dry_run=False).jobs == []
    if status == "successful":
        assert isinstance(world.end(job_id, commit=commit), AlreadyCommitted)
        assert Adoption(world.store, world.place, job_id=job_id).clean_up() == 0
    elif status == "partial" and commit:
        error = world.end(job_id)
        assert isinstance(error, AuditFailed)
        assert "1 task numbers have no pendingset" in str(error)
        assert world.visible() == {}
        assert world.end(job_id, accept_partial=True) is None
    else:
        assert world.end(job_id, commit=commit) is None
    if status == "successful" or commit:
        assert world.visible() == (written(1, 2) if status == "partial" else written(0, 1, 2))
    else:
        assert world.visible() == {}
    assert world.left(job_id) == []


def test_a_job_that_keeps_its_directory_is_not_taken_back(world: World) -> None:
    """As of 3.4.2 a successful job may leave everything; a sweep removes that and nothing else."""
    job_id = world.job("never", fs_s3a_committer_magic_cleanup_enabled="false")
    if world.hadoop.release == "3.4.1":
        assert world.left(job_id) == []
    else:
        assert isinstance(world.end(job_id, commit=False, force=True), AlreadyCommitted)
        assert [
            job.job_id for job in sweep(world.store, world.place, older_than=0.0, dry_run=False).jobs
        ] == [job_id]
    assert world.visible() == written(0, 1, 2)
    assert world.left(job_id) == []


def test_checksums_of_parts_survive_adoption(world: World) -> None:
    """A job with checksums is finished by a completion that names them."""
    job_id = world.job(
        "before:CompleteMultipartUpload:.csv:1", tasks="0", fs_s3a_create_checksum_algorithm="CRC32C"
    )
    named: list[Any] = []
    complete = type(world.store).perform

    def watch(calls: Any) -> Any:
        def seen() -> Any:
            for tag, call in calls:
                named.extend(getattr(call, "etags", ()))
                yield tag, call

        return complete(world.store, seen())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.store, "perform", watch)
        assert world.end(job_id) is None
    assert world.visible() == written(0)
    algorithms = {getattr(etag, "algorithm", None) for etag in named}
    assert algorithms == ({None} if world.hadoop.release == "3.4.1" else {"CRC32C"})


def test_hadoop_completes_what_we_uploaded(world: World) -> None:
    """Its own CommitOperations takes our pendingsets; our commit then finds every upload complete."""
    spelling = SPELLING[world.hadoop.release]
    options = JobOptions(committer="magic", conflict_mode="append", pendingset_format=spelling)
    job = Job.setup(world.store, world.place.uri, options=options)
    with job.task_attempt("spark", "1", "00000", "1") as attempt:
        for path in ("day=17/part 0.csv", "day=18/ü%20.csv"):
            with attempt.open(path) as file:
                file.write(path.encode())
        committed = attempt.commit()
    job.seal_stage("spark", "1", [committed])
    job.seal()
    listed = world.store.list_objects(world.place.bucket, world.place.prefix)
    pendingsets = [info.key for info in listed if info.key.endswith(".pendingset")]
    said = world.run("complete", *(hadoop_uri(world.place.bucket, key) for key in pendingsets))
    assert len([line for line in said if line[0] == "completed"]) == 2
    seen = world.visible()
    assert sorted(seen.values()) == [b"day=17/part 0.csv", "day=18/ü%20.csv".encode()]
    assert job.commit().counts.files == 2
    assert world.visible() == seen


def reference(world: World, job_id: str) -> JobReference:
    """Return what finds a job in its magic directory."""
    staging = world.place.below(f"__magic_job-{job_id}").uri
    return JobReference(job_id=job_id, destination=world.place.uri, staging=staging)

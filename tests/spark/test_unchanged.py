"""Spark's own writers, unchanged, on real S3A: their output is pending until the job's commit."""

from __future__ import annotations

import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from airflow_s3commit import Job, JobOptions, S3Store
from airflow_s3commit.exceptions import JobClosed, NoSuchJob
from airflow_s3commit.spark import committer_conf
from tests.spark.conftest import Lake, Submit
from tests.spark.engines import ENGINES, Engine

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

    from airflow_s3commit.testing import S3Server

pytestmark = [pytest.mark.spark, pytest.mark.seaweedfs, pytest.mark.xdist_group("spark-submit")]

TABLES = ("static", "partition", "saved", "created", "twice", "added", "dynamic", "elsewhere")

#: Rows that Spark counts; unknown if a later write discards some of a task's files.
ROWS = {
    "static": 40,
    "partition": 10,
    "saved": 40,
    "created": 40,
    "twice": None,
    "added": 60,
    "dynamic": None,
}


@pytest.fixture(
    scope="module",
    params=[name if name == "installed" else pytest.param(name, marks=pytest.mark.all) for name in ENGINES],
)
def engine(request: pytest.FixtureRequest) -> Engine:
    """Return each Spark that the jar is for."""
    return ENGINES[request.param](request.config.cache)


@dataclass
class Night:
    """Tables with data of another program, at a place on S3 and the same on a disk."""

    server: S3Server
    store: S3Store
    prefix: str
    local: Path
    run: Submit

    def lake(self, table: str) -> Lake:
        return Lake(self.store, self.server, f"s3://lake/{self.prefix}{table}/")

    def put_old_rows(self) -> None:
        """Put a file with two rows into each of six partitions of each table."""
        for table in TABLES:
            for day in range(3):
                for half in range(2):
                    path = f"{table}/dt=d{day}/h={half}/old.parquet"
                    target = self.local / path
                    target.parent.mkdir(parents=True)
                    pq.write_table(pa.table({"id": [-1 - day, -11 - day]}), target)
                    self.store.put("lake", self.prefix + path, target.read_bytes())

    def jobs(self, mode: str = "as-written") -> dict[str, Job]:
        """Set a job up for each table except ``elsewhere``."""
        options = JobOptions(conflict_mode=mode)
        return {table: Job.setup(self.store, self.lake(table).uri, options=options) for table in TABLES[:-1]}

    def submit(self, jobs: dict[str, Job], **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the application."""
        conf = {"spark.sql.warehouse.dir": str(self.local / "warehouse")}
        for job in jobs.values():
            conf |= committer_conf(job.reference, "load", "1", writer="spark")
        places = {table: self.lake(table).uri.replace("s3://", "s3a://").rstrip("/") for table in TABLES}
        return self.run("unchanged.py", [json.dumps(places), str(self.local)], conf, **environment)

    def rows_there(self, table: str, folder: Path) -> set[tuple[int, str, str]]:
        return rows_of(self.lake(table).download(folder / table))


def rows_of(folder: Path) -> set[tuple[int, str, str]]:
    """Return each row of a folder's files: its id, its directory, and what Spark reads from the file's name.

    That is the bucket, and the number of the file among those of its task.
    """
    found = set()
    for file in folder.rglob("*.parquet"):
        directory = file.relative_to(folder).parent.as_posix()
        (told,) = re.findall(r"(?:_\d{5})?(?:\.c\d{3})?\.\w+(?:\.\w+)?$", file.name)
        rows = pq.ParquetFile(file).read(columns=["id"]).column("id").to_pylist()
        assert not found & {(row, directory, told) for row in rows}
        found |= {(row, directory, told) for row in rows}
    return found


@pytest.fixture
def night(
    seaweed: S3Server, seaweed_store: S3Store, prefix: str, tmp_path: Path, submit_unchanged: Submit
) -> Iterator[Night]:
    """Return this test's tables, with rows."""
    night = Night(seaweed, seaweed_store, prefix, tmp_path / "local", submit_unchanged)
    night.put_old_rows()
    return night


def test_save_modes_match_spark_s(night: Night, tmp_path: Path) -> None:
    """Overwrites, static, partition and dynamic, and appends give at the commit the rows of a disk."""
    jobs = night.jobs()
    before = {table: night.lake(table).visible() for table in jobs}
    done = night.submit(jobs)
    assert done.returncode == 0, done.stderr[-4000:]
    assert {table: night.lake(table).visible() for table in jobs} == before
    assert [path for path in night.lake("elsewhere").visible() if path.endswith(".json")]
    for table, job in jobs.items():
        lake = night.lake(table)
        sealed = job.seal_stage("load", "1")
        assert job.seal_stage("load", "1") == sealed
        job.seal()
        manifest = job.commit()
        assert night.rows_there(table, tmp_path / "there") == rows_of(night.local / table), table
        assert lake.pending() == []
        assert not [key for key in lake.everything() if job.reference.job_id in key and "__magic" in key]
        assert sealed.counts.files == manifest.counts.files
        assert manifest.counts.rows == ROWS[table]


@pytest.mark.all
def test_a_write_that_looks_at_the_destination_does_not_see_pending_files(night: Night) -> None:
    """Modes that depend on existing data see the job's own records, or are refused; nothing is visible."""
    jobs = night.jobs()
    before = night.lake("static").visible()
    done = night.submit(jobs, REFUSED="1")
    assert done.returncode == 0, done.stderr[-4000:]
    errors = json.loads(done.stdout.splitlines()[-1])
    allowed = {"ignored", "errorifexists once", "errorifexists beside", "ignore once", "ignore beside"}
    assert {name for name, error in errors.items() if not error} == allowed
    assert "already exists" in errors["exists"]
    assert "allowNonEmptyLocationInCTAS" in errors["created"]
    assert "goes to the partition's own location" in errors["located"]
    for mode in ("errorifexists", "ignore"):
        assert f"static/{mode} is pending, and Spark does not see it" in errors[f"{mode} again"]
    assert night.lake("static").visible() == before
    jobs["static"].abort()
    assert night.lake("static").pending() == []


@pytest.mark.all
def test_a_killed_driver_leaves_nothing_unwanted(night: Night, tmp_path: Path) -> None:
    """Any process can commit a job whose writes were sealed; an abort of the others leaves nothing."""
    jobs = night.jobs()
    before = {table: night.lake(table).visible() for table in jobs}
    assert night.submit(jobs, KILLED="1").returncode != 0
    assert {table: night.lake(table).visible() for table in jobs} == before
    static = jobs.pop("static")
    assert static.seal_stage("load", "1").counts.rows == ROWS["static"]
    static.seal()
    assert static.commit().counts.rows == ROWS["static"]
    assert len(night.rows_there("static", tmp_path / "there")) == ROWS["static"]
    for table in ("partition", "added"):
        assert night.lake(table).pending()
    # An abort takes back what a commit that stopped half-way has published.
    jobs["saved"].seal_stage("load", "1")
    jobs["saved"].seal()
    assert jobs["saved"].complete_part(0, 2) > 0
    assert night.lake("saved").visible() != before["saved"]
    for table, job in jobs.items():
        job.abort()
        lake = night.lake(table)
        assert lake.pending() == []
        assert lake.visible() == before[table]
        # Spark's catalog makes markers of directories for the partitions that it adds.
        assert [key for key in lake.left() if "/_s3commit/" not in key and not key.endswith("/")] == [
            night.prefix + f"{table}/{path}" for path in before[table]
        ]


@pytest.mark.all
def test_of_twin_applications_one_counts(lake: Lake, submit_unchanged: Submit, tmp_path: Path) -> None:
    """Of two that write one stage attempt at once, one is committed and nothing is left of the other."""
    job = Job.setup(lake.store, lake.uri, options=JobOptions(conflict_mode="as-written"))
    conf = committer_conf(job.reference, "load", "1", writer="spark")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    place = lake.uri.replace("s3://", "s3a://").rstrip("/")
    with ThreadPoolExecutor() as pool:
        twins = [
            pool.submit(submit_unchanged, "twins.py", [place, str(pipe), mode], conf) for mode in ("rb", "wb")
        ]
    ended = sorted(twin.result().returncode for twin in twins)
    assert len(lake.pending()) == 12
    assert lake.visible() == []
    if ended == [0, 0]:
        with pytest.raises(JobClosed, match="2 Spark drivers began to write at once"):
            job.seal_stage("load", "1")
        job.abort()
        assert lake.visible() == []
    else:
        assert ended[0] == 0
        assert any("so that one's output counts" in twin.result().stderr for twin in twins)
        assert job.seal_stage("load", "1").counts.files == 6
        job.seal()
        assert job.commit().counts.rows == 30
        rows = lake.table("dt")
        assert sorted(rows.column("id").to_pylist()) == list(range(30))
        assert len(set(rows.column("twin").to_pylist())) == 1
    assert lake.pending() == []
    assert [key for key in lake.everything() if f"__magic_job-{job.reference.job_id}" in key] == []


def test_every_context_and_every_command_of_a_statement_counts(
    lake: Lake, submit_unchanged: Submit, tmp_path: Path
) -> None:
    """Rows of two contexts, and of the INSERTs in one statement, are committed over old and pending ones."""
    lakes = {
        name: Lake(lake.store, lake.server, f"{lake.uri}{name}/")
        for name in ("appended", "dynamic", "parts", "mixed")
    }
    body = tmp_path / "old.parquet"
    pq.write_table(pa.table({"id": [-1]}), body)
    for name, day in product(("parts", "mixed"), "ab"):
        home = lakes[name].destination
        lake.store.put(home.bucket, home.key(f"dt={day}/old.parquet"), body.read_bytes())
    jobs = {
        name: Job.setup(one.store, one.uri, options=JobOptions(conflict_mode="as-written"))
        for name, one in lakes.items()
    }
    conf = {"spark.sql.warehouse.dir": str(tmp_path / "warehouse")}
    for job in jobs.values():
        conf |= committer_conf(job.reference, "load", "1", writer="spark")
    places = [one.uri.replace("s3://", "s3a://").rstrip("/") for one in lakes.values()]
    done = submit_unchanged("contexts.py", places, conf)
    assert done.returncode == 0, done.stderr[-4000:]
    last = json.loads(done.stdout.splitlines()[-1])
    # Spark 4 loads the guard by itself; an earlier context's guard does not count for a later one.
    without_guard = last["version"].startswith("3.")
    assert ("nothing in its session says what it overwrites" in last["error"]) == without_guard, last["error"]
    for job in jobs.values():
        job.seal_stage("load", "1")
        job.seal()
        job.commit()
    found = {name: sorted(one.table("dt").column("id").to_pylist()) for name, one in lakes.items()}
    assert found == {
        "appended": list(range(60 if without_guard else 90)),
        # The second context overwrites the partition that both write.
        "dynamic": [*range(0, 30, 2), *range(30, 60)],
        "parts": list(range(30)),
        "mixed": [-1, -1, *range(30), *range(100, 130)],
    }
    assert all(one.pending() == [] for one in lakes.values())


@pytest.mark.all
@pytest.mark.parametrize("first", ["stopped", "left", "failed", "killed"])
def test_rows_of_a_driver_that_was_not_killed_are_not_discarded(
    lake: Lake, submit_unchanged: Submit, first: str
) -> None:
    """A second submission for a stage is refused before any upload, unless the first one was killed."""
    job = Job.setup(lake.store, lake.uri, options=JobOptions(conflict_mode="as-written"))
    conf = committer_conf(job.reference, "load", "1", writer="spark")
    place = lake.uri.replace("s3://", "s3a://").rstrip("/")
    begun = submit_unchanged("submitted.py", [place, "0", first], conf)
    assert (begun.returncode == 0) == (first in {"stopped", "left"}), begun.stderr[-4000:]
    pending = lake.pending()
    assert pending
    again = submit_unchanged("submitted.py", [place, "30", "stopped"], conf)
    if first == "killed":
        assert again.returncode == 0, again.stderr[-4000:]
        job.seal_stage("load", "1")
        job.seal()
        assert job.commit().counts.rows == 30
        assert sorted(lake.table().column("id").to_pylist()) == list(range(30, 60))
    else:
        assert again.returncode != 0
        assert "has written for stage attempt load-1 before, and was not killed" in again.stdout
        assert lake.pending() == pending
        with pytest.raises(JobClosed, match="has begun to write and finished no write"):
            job.seal_stage("load", "1")
        job.abort()
        assert lake.visible() == []
    assert lake.pending() == []
    assert [key for key in lake.everything() if f"__magic_job-{job.reference.job_id}" in key] == []


@pytest.mark.all
def test_a_driver_that_outlives_its_job_leaves_nothing(
    lake: Lake, submit_unchanged: Submit, tmp_path: Path
) -> None:
    """The end of a driver leaves no record in a job that another process has committed before."""
    job = Job.setup(lake.store, lake.uri, options=JobOptions(conflict_mode="as-written"))
    conf = committer_conf(job.reference, "load", "1", writer="spark")
    place = lake.uri.replace("s3://", "s3a://").rstrip("/")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        submitted = pool.submit(submit_unchanged, "submitted.py", [place, "0", str(pipe)], conf)
        with pipe.open("wb"):
            job.seal_stage("load", "1")
            job.seal()
            assert job.commit().counts.rows == 30
        done = submitted.result()
    assert done.returncode == 0, done.stderr[-4000:]
    assert [key for key in lake.everything() if f"__magic_job-{job.reference.job_id}" in key] == []


@pytest.mark.all
@pytest.mark.parametrize(
    "unset", ["", "multipart.uploads.enabled", "committer.magic.track.commits.in.memory.enabled"]
)
def test_writes_that_would_not_stay_pending_are_refused(
    lake: Lake, submit_unchanged: Submit, unset: str
) -> None:
    """A write above the destination, for a removed or changed job, or that S3A would publish, is refused."""
    uri = f"{lake.uri}db/t/"
    job = Job.setup(lake.store, uri, options=JobOptions(conflict_mode="as-written"))
    conf = committer_conf(job.reference, "load", "1", writer="spark")
    options = JobOptions(conflict_mode="as-written", track_pending="s3")
    tracked = Job.setup(lake.store, f"{lake.uri}db-tracked/", options=options)
    conf |= committer_conf(tracked.reference, "load", "1", writer="spark")
    swapped = Job.setup(lake.store, f"{lake.uri}db-swapped/").reference
    conf |= committer_conf(replace(swapped, sha256="0" * 64), "load", "1", writer="spark")
    if unset:
        conf[f"spark.hadoop.fs.s3a.{unset}"] = "false"
    done = submit_unchanged("removed.py", [uri.replace("s3:", "s3a:").rstrip("/")], conf)
    assert done.returncode == 0, done.stderr[-4000:]
    errors = json.loads(done.stdout.splitlines()[-1])
    for name in ("overwritten", "appended"):
        assert f"job {job.reference.job_id} writes to {uri}, and this write to" in errors[name]
    # Spark 3.5 saves this model's metadata as an RDD, which no commit protocol of SQL sees.
    saved = [path for path in lake.visible() if path.startswith("db/t/metadata/")]
    if unset:
        assert f"fs.s3a.{unset} is false" in errors["written"]
    else:
        assert errors["written"] == ""
        assert "its option track_pending is s3" in errors["tracked"]
        assert "job.json was changed after the job was set up" in errors["swapped"]
        gone = "is gone: the job has ended, or something deleted its directory"
        assert gone in errors["deleted"]
        assert gone in errors["saved"] or saved
        with pytest.raises(NoSuchJob, match="a program deleted its record"):
            Job.at(S3Store.connect(lake.server.config), job.reference).seal_stage("load", "1")
    assert lake.visible() == saved

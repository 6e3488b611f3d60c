"""A sweep aborts no upload that a job beside this destination claims, or a file of Hadoop."""

from __future__ import annotations

from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.sweep import SweepReport, sweep
from tests.fakes import ManualClock
from tests.protocol.building import an_id
from tests.protocol.hadoop.dead_jobs import BUCKET, MAGIC, ROOT, UUID, DeadJob

SALES = Destination(BUCKET, ROOT)
DAY = 86_400.0

#: A name as Spark makes it, with an id of its own that is no job's.
PART = f"day=17/part-00000-{an_id('of the write')}-c000.snappy.parquet"


def spark_job() -> tuple[DeadJob, ManualClock]:
    """Return a job of Hadoop with one committed task, on a destination of ours, and the store's clock."""
    dead, clock = DeadJob(), ManualClock()
    dead.store._now = clock.time
    Job.setup(dead.store, SALES, job_id=an_id("ours")).abort()
    dead.commit_magic_task(0, {PART: (b"rows",)})
    return dead, clock


def swept(dead: DeadJob, place: Destination = SALES) -> SweepReport:
    """Sweep with the patience of a day."""
    return sweep(dead.store, place, older_than=DAY, dry_run=False, threads=0)


def test_a_living_job_of_hadoop_keeps_uploads_whose_names_have_another_id() -> None:
    """The id in a name that Spark made is no job's: the file of Hadoop that names the upload decides."""
    dead, clock = spark_job()
    clock.advance(2 * DAY)
    dead.commit_magic_task(1, {"day=17/later.parquet": (b"more",)})
    before = dead.everything()
    report = swept(dead)
    assert (report.jobs, report.uploads) == ([], 0)
    assert [left.what for left in report.plan.left] == [f"job {UUID} (s3://{BUCKET}/{MAGIC})"]
    assert dead.everything() == before


def test_a_dead_job_of_hadoop_is_aborted_with_what_its_files_name() -> None:
    """It is ended by an entry, so that no adoption commits it; nothing of it is left."""
    dead, clock = spark_job()
    clock.advance(2 * DAY)
    report = swept(dead)
    assert [(done.job_id, done.action, done.uploads) for done in report.jobs] == [(UUID, "abort", 1)]
    assert (report.uploads, dead.pending_keys(), dead.keys(MAGIC)) == (0, [], [])
    assert dead.keys(f"{ROOT}_s3commit/jobs/{UUID}") == [f"{ROOT}_s3commit/jobs/{UUID}.json"]
    assert swept(dead).plan.is_empty


def test_a_job_of_hadoop_on_a_directory_above_keeps_its_uploads() -> None:
    """A sweep below says where the file is that names them."""
    dead, clock = spark_job()
    clock.advance(2 * DAY)
    before = dead.pending_keys()
    report = swept(dead, SALES.below("day=17"))
    assert (report.jobs, report.uploads, dead.pending_keys()) == ([], 0, before)
    [left] = report.plan.left
    assert (left.what, f"s3://{BUCKET}/{MAGIC} name them" in left.reason) == ("1 upload", True)


def test_an_upload_that_no_readable_file_names_is_judged_by_its_age() -> None:
    """A damaged file of Hadoop claims nothing, and does not keep the sweep from the rest."""
    dead, clock = spark_job()
    dead.put(f"{MAGIC}job-{UUID}/00/task_202502170001_0003_m_000009.pendingset", b"{")
    clock.advance(2 * DAY)
    dead.store.create_upload(BUCKET, f"{ROOT}young", metadata={}, content_type="x")
    assert swept(dead).failures == []
    assert dead.pending_keys() == [f"{ROOT}young"]

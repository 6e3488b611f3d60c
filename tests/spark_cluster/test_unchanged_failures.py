"""Spark's own writers on a standalone cluster: tasks, executors and drivers killed at chosen requests.

What they wrote is pending until the job's commit, which this process does: another one than the driver.
"""

from __future__ import annotations

import os
import re
import signal
from typing import TYPE_CHECKING

import pytest

from airflow_s3commit import JobClosed
from airflow_s3commit.spark import pending_jar
from airflow_s3commit.spark.session import IN_MEMORY
from airflow_s3commit.spark.shipping import GUARD_CLASS
from airflow_s3commit.store.base import ObjectToDelete
from tests.hadoop.real_hadoop import Hadoop
from tests.spark_cluster.cluster import ApplicationFailed, wait_until
from tests.spark_cluster.conftest import Driver
from tests.spark_cluster.rules import Counts, Kills, Throttles, Twins
from tests.spark_cluster.test_failures import ROWS, commit_and_check, write_for_airflow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_s3commit import Job
    from tests.spark_cluster.cluster import Cluster
    from tests.spark_cluster.conftest import Table
    from tests.spark_cluster.gate import Gate, Request

pytestmark = [
    pytest.mark.all,
    pytest.mark.spark,
    pytest.mark.seaweedfs,
    pytest.mark.xdist_group("spark-cluster"),
]

#: Writing requests, in the order in which an application sends the first of each.
REQUESTS: dict[str, Callable[[Request], bool]] = {
    "the driver's number": lambda request: request.writes("/driver.json"),
    "an upload is begun": lambda request: request.method == "POST" and "?uploads" in request.path,
    "a part": lambda request: request.uploads_part,
    "a task's commit": lambda request: request.writes(".pendingset"),
    "the driver's seal": lambda request: (
        re.search(r"/spark/[^?]*/\d+\.json", request.path) is not None and request.method == "PUT"
    ),
}


@pytest.fixture(scope="module")
def unchanged(
    driver: Driver, cluster: Cluster, gate: Gate, request: pytest.FixtureRequest
) -> Iterator[Driver]:
    """Return an application that has S3A, in place of the shared one: the cluster has cores for one."""
    driver.stop()
    jars = Hadoop.get("3.5.0", request.config.cache.mkdir("hadoop")).jars_for_spark
    class_path = ":".join([*jars, pending_jar()])
    s3a = "spark.hadoop.fs.s3a."
    more = {
        "spark.sql.extensions": GUARD_CLASS,
        IN_MEMORY: "true",
        "spark.driver.extraClassPath": class_path,
        "spark.executor.extraClassPath": class_path,
        f"{s3a}endpoint": gate.endpoint_url,
        f"{s3a}endpoint.region": "us-east-1",
        f"{s3a}path.style.access": "true",
        f"{s3a}access.key": gate.server.access_key,
        f"{s3a}secret.key": gate.server.secret_key,
    }
    unchanged = Driver(cluster, gate, more=more)
    yield unchanged
    unchanged.stop()


def seal_and_check(table: Table, job: Job) -> None:
    """Seal the stage with what the driver sealed, and commit; then each row is there once."""
    job.seal_stage("load", "1")
    commit_and_check(table, job)


def abort_and_check(table: Table, job: Job) -> None:
    """Abort a job without a driver's seal; then nothing is there, visible or pending."""
    assert table.files() == []
    with pytest.raises(
        JobClosed, match=r"no Spark application has written|has begun to write and finished no write"
    ):
        job.seal_stage("load", "1")
    job.abort()
    assert table.pending() == []
    assert table.data() == []


def kill_driver(driver: Driver, table: Table, job: Job, at: str, *, answered: bool) -> None:
    """Write with a driver that is killed before, or after, the store does what a request asks for."""
    rule = Kills(driver.kill, REQUESTS[at], answered)
    with table.gate.ruled_by(rule):
        with pytest.raises(ApplicationFailed, match="died"):
            write_for_airflow(driver, table, job, "spark")
        driver.wait_for_its_executors()
    assert rule.done


@pytest.mark.all
def test_a_file_takes_two_requests_before_the_commit(unchanged: Driver, table: Table) -> None:
    """An upload is begun and gets its part; nothing else is asked of the store file by file."""
    job, counts = table.job(), Counts()
    with table.gate.ruled_by(counts):
        write_for_airflow(unchanged, table, job, "spark")
    files = job.seal_stage("load", "1").counts.files
    assert files > 12
    begun = [request for request in counts.seen if REQUESTS["an upload is begun"](request)]
    parts = [request for request in counts.seen if request.uploads_part]
    assert (len(begun), len(parts)) == (files, files)
    assert len(counts.seen) - 2 * files <= 40
    commit_and_check(table, job)


@pytest.mark.all
def test_the_driver_asks_the_store_little(unchanged: Driver, table: Table) -> None:
    """The driver of a write sends eight requests, each once; a later write of the application sends six."""
    job = table.job()
    for expected in (
        ["HEAD job", "GET job", "list", "PUT driver", "HEAD receipt", "list", "PUT seal", "HEAD receipt"],
        ["HEAD job", "GET job", "HEAD driver", "list", "PUT seal", "HEAD receipt"],
    ):
        counts = Counts()
        with table.gate.ruled_by(counts):
            write_for_airflow(unchanged, table, job, "spark")
        assert [told for request in counts.seen if (told := of_driver(request))] == expected
    job.abort()


def of_driver(request: Request) -> str:
    """Return a request of a driver in short; nothing for what tasks ask."""
    if re.search(r"uploads|uploadId=|\.pendingset", request.path):
        return ""
    if "list-type=" in request.path:
        return "list"
    names = {"/job.json": "job", "/driver.json": "driver", "/_s3commit/jobs/": "receipt"}
    found = [name for part, name in names.items() if part in request.path]
    return f"{request.method} {found[0] if found else 'seal'}"


def delete_drivers(table: Table, job: Job) -> None:
    """Delete what a driver has written, and nothing else."""
    home = table.destination.bucket
    keys = [ObjectToDelete(key) for key in table.data() if "/spark/" in key]
    assert not table.store.delete_many(home, keys)


def begin_another(table: Table, job: Job) -> None:
    """Take the number after the driver's, as one does that was started in its place."""
    (key,) = [key for key in table.data() if key.endswith("/driver.json")]
    table.store.put(table.destination.bucket, re.sub("/000001-[^/]*/", "/000002-other/", key), b"{}")


@pytest.mark.all
@pytest.mark.parametrize(
    ("at", "happens", "said"),
    [
        ("a task's commit", delete_drivers, "is gone: the job has ended, or something deleted its directory"),
        ("a task's commit", begin_another, "after this one, so that one's output counts"),
        ("the last listing", lambda _, job: job.abort(), "the job has ended, as"),
    ],
    ids=["driver-deleted", "driver-followed", "job-aborted"],
)
def test_what_happens_during_a_write_refuses_its_seal(
    unchanged: Driver, table: Table, at: str, happens: Callable[[Table, Job], None], said: str
) -> None:
    """A driver whose records or job are gone, or after which another began, leaves no seal."""
    job = table.job()

    def is_then(request: Request) -> bool:
        is_last = of_driver(request) == "list" and any(key.endswith(".pendingset") for key in table.data())
        return is_last if at == "the last listing" else REQUESTS[at](request)

    rule = Kills(lambda: happens(table, job), is_then, answered=True)
    with table.gate.ruled_by(rule), pytest.raises(ApplicationFailed, match=said):
        write_for_airflow(unchanged, table, job, "spark")
    assert rule.done
    assert [key for key in table.data() if re.search(r"/spark/000001-[^/]*/\d+\.json", key)] == []
    job.abort()
    assert (table.pending(), table.data()) == ([], [])


@pytest.mark.all
def test_a_write_after_its_driver_was_deleted_is_refused(unchanged: Driver, table: Table) -> None:
    """An earlier write whose records were deleted is not forgotten: the next one is refused at its begin."""
    job = table.job()
    write_for_airflow(unchanged, table, job, "spark")
    pending = table.pending()
    delete_drivers(table, job)
    with pytest.raises(ApplicationFailed, match="is gone: the job has ended, or something deleted"):
        write_for_airflow(unchanged, table, job, "spark")
    assert table.pending() == pending
    abort_and_check(table, job)


def test_an_executor_that_is_killed_is_replaced(unchanged: Driver, table: Table) -> None:
    """What an executor had pending when it was killed never appears; its tasks are run again elsewhere."""
    job = table.job()
    write_for_airflow(unchanged, table, job, "spark", tasks=3, fault=table.fault("kill"))
    assert "kill-0-0" in table.marks()
    assert len(table.pending()) > job.seal_stage("load", "1").counts.files
    commit_and_check(table, job)


@pytest.mark.all
@pytest.mark.parametrize("answered", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", REQUESTS)
def test_a_driver_that_is_killed(unchanged: Driver, table: Table, at: str, answered: bool) -> None:
    """Before the driver's seal is there an abort leaves nothing; after it any process can commit."""
    job = table.job()
    kill_driver(unchanged, table, job, at, answered=answered)
    if at == "the driver's seal" and answered:
        seal_and_check(table, job)
    else:
        abort_and_check(table, job)


@pytest.mark.all
def test_a_driver_that_is_started_again_counts_alone(unchanged: Driver, table: Table) -> None:
    """When a cluster manager starts a killed driver again, under the same attempt, each row counts once."""
    job = table.job()
    kill_driver(unchanged, table, job, "the driver's seal", answered=True)
    write_for_airflow(unchanged, table, job, "spark", tasks=3)
    seal_and_check(table, job)


@pytest.mark.all
def test_executors_killed_when_a_task_has_committed(unchanged: Driver, table: Table) -> None:
    """A task whose commit the driver never heard of is run again, and counts once."""
    job = table.job()

    def kill_executors() -> None:
        for process, line in unchanged.cluster.executor_processes().items():
            if "java" in line[0]:
                os.kill(process, signal.SIGKILL)

    rule = Kills(kill_executors, REQUESTS["a task's commit"], answered=True)
    with table.gate.ruled_by(rule):
        write_for_airflow(unchanged, table, job, "spark")
    assert rule.done
    assert len([key for key in table.data() if key.endswith(".pendingset")]) > 2
    seal_and_check(table, job)


@pytest.mark.all
def test_a_task_whose_udf_raised_is_retried(unchanged: Driver, table: Table) -> None:
    """After a task failed with uploads pending, and was retried, each row counts once."""
    job = table.job()
    write_for_airflow(unchanged, table, job, "spark", fault=table.fault("raise"))
    assert "raise-0-0" in table.marks()
    seal_and_check(table, job)


@pytest.mark.all
def test_a_udf_that_always_raises_fails_the_write(unchanged: Driver, table: Table) -> None:
    """When all attempts at a task fail nothing is visible, and the job's abort leaves nothing pending."""
    job = table.job()
    with pytest.raises(ApplicationFailed, match="injected into what feeds the writer"):
        write_for_airflow(unchanged, table, job, "spark", fault=table.fault("raise", attempts=9))
    assert {"raise-0-0", "raise-0-3"} <= table.marks()
    abort_and_check(table, job)


@pytest.mark.all
def test_lost_shuffle_files_run_a_stage_again(unchanged: Driver, table: Table) -> None:
    """When the executor with the shuffle files is killed, the stage is run again and each row counts once."""
    job = table.job()
    seen = unchanged.events("FetchFailed")
    write_for_airflow(unchanged, table, job, "spark", tasks=4, shuffle=True, fault=table.fault("kill-other"))
    assert "kill-other-0-0" in table.marks()
    wait_until("a fetch failure is logged", lambda: unchanged.events("FetchFailed") > seen)
    seal_and_check(table, job)


@pytest.mark.all
def test_of_two_speculative_attempts_that_finish_one_counts(unchanged: Driver, table: Table) -> None:
    """A slow task and its speculative twin both write their pendingset; the driver's seal has one of them."""
    job = table.job()
    twins = Twins("00000")
    with table.gate.ruled_by(twins):
        write_for_airflow(unchanged, table, job, "spark", tasks=4, fault=table.fault("linger"))
    assert twins.written == 2
    seal_and_check(table, job)


@pytest.mark.all
def test_a_store_that_throttles_delays_only(unchanged: Driver, table: Table) -> None:
    """A store that turns every third request away gets each of them again; no task fails."""
    job, throttle = table.job(), Throttles()
    with table.gate.ruled_by(throttle):
        write_for_airflow(unchanged, table, job, "spark")
    assert throttle.refused > 10
    seal_and_check(table, job)
    assert job.manifest().counts.rows == ROWS

"""A standalone cluster whose tasks, executors and drivers fail at chosen moments, really killed.

After each failure the rows are there exactly once, and nothing is pending once the job has ended. Tests go
through both doors: a job that Airflow set up and commits, and a write of its own as in a notebook.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from airflow_s3commit import Destination, Job, JobReference
from airflow_s3commit.protocol.inspect.jobs import list_jobs
from tests.spark_cluster.cluster import ApplicationFailed, wait_until
from tests.spark_cluster.rules import Expires, Kills, Throttles, Twins

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.spark_cluster.conftest import Driver, ExecutorKeys, Table

pytestmark = [
    pytest.mark.all,
    pytest.mark.spark,
    pytest.mark.seaweedfs,
    pytest.mark.xdist_group("spark-cluster"),
]

ROWS = 1_500


def write_for_airflow(
    driver: Driver, table: Table, job: Job, door: str, attempt: str = "1", **how: Any
) -> None:
    """Write as an application does that Airflow has submitted."""
    how = {"rows": ROWS, "tasks": 2, **how}
    driver.call("write", door=door, destination=table.uri, conf=table.conf(job, attempt, door=door), **how)


def write_as_notebook(driver: Driver, table: Table, door: str, **how: Any) -> None:
    """Write as a notebook does, with a job of the write's own."""
    how = {"rows": ROWS, "tasks": 2, **how}
    driver.call("write", door=door, destination=table.uri, conf={}, **how)


def commit_and_check(table: Table, job: Job, rows: int = ROWS) -> None:
    """Commit as Airflow does; then each row is there once, and nothing is pending."""
    assert table.files() == [], "rows are visible before the commit"
    job.seal()
    job.commit()
    check(table, rows)


def check(table: Table, rows: int = ROWS) -> None:
    """Check that each row is there once, and nothing is pending."""
    assert table.rows() == list(range(rows))
    assert table.manifest().counts.rows == rows
    assert table.pending() == []


@pytest.mark.all
def test_a_task_whose_udf_raised_is_retried(driver: Driver, table: Table) -> None:
    """After a task failed with uploads pending, and was retried, each row counts once."""
    job = table.job()
    write_for_airflow(driver, table, job, "format", fault=table.fault("raise"))
    assert "raise-0-0" in table.marks()
    commit_and_check(table, job)


@pytest.mark.all
def test_a_udf_that_always_raises_fails_the_stage(driver: Driver, table: Table) -> None:
    """When all attempts at a task fail nothing is visible, and the job's abort leaves nothing pending."""
    job = table.job()
    with pytest.raises(ApplicationFailed, match="injected into what feeds the writer"):
        write_for_airflow(driver, table, job, "write_pending", fault=table.fault("raise", attempts=9))
    assert {"raise-0-0", "raise-0-3"} <= table.marks()
    assert table.files() == []
    job.abort()
    assert table.pending() == []
    assert table.data() == []


def test_an_executor_that_is_killed_is_replaced(driver: Driver, table: Table) -> None:
    """What an executor had pending when it was killed never appears; its tasks are run again elsewhere."""
    job = table.job()
    write_for_airflow(driver, table, job, "format", tasks=3, fault=table.fault("kill"))
    assert "kill-0-0" in table.marks()
    seal = job.stage_seal("load", "1")
    assert seal is not None
    assert len(table.pending()) > seal.counts.files, "what the dead executor had pending is gone already"
    commit_and_check(table, job)


@pytest.mark.all
def test_a_notebook_survives_an_executor(driver: Driver, table: Table) -> None:
    """A write without a job loses an executor, commits, and discards what the dead one had pending."""
    write_as_notebook(driver, table, "write_pending", fault=table.fault("kill"))
    assert "kill-0-0" in table.marks()
    check(table)


@pytest.mark.all
def test_lost_shuffle_files_run_a_stage_again(driver: Driver, table: Table) -> None:
    """When the executor with the shuffle files is killed, the stage is run again and each row counts once."""
    job = table.job()
    seen = driver.events("FetchFailed")
    write_for_airflow(
        driver, table, job, "write_pending", tasks=4, shuffle=True, fault=table.fault("kill-other")
    )
    assert "kill-other-0-0" in table.marks()
    wait_until("a fetch failure is logged", lambda: driver.events("FetchFailed") > seen)
    commit_and_check(table, job)


def test_of_two_speculative_attempts_that_finish_one_counts(driver: Driver, table: Table) -> None:
    """A slow task and its speculative twin both write their pendingset; the seal has one of them."""
    job = table.job()
    twins = Twins("00000")
    with table.gate.ruled_by(twins):
        write_for_airflow(driver, table, job, "write_pending", tasks=4, fault=table.fault("linger"))
    assert twins.written == 2
    assert len([key for key in table.data() if "/tasks/00000_" in key]) == 2
    commit_and_check(table, job)


@pytest.mark.all
def test_a_store_that_throttles_delays_only(driver: Driver, table: Table) -> None:
    """A store that turns every third request away gets each of them again; no task fails."""
    throttle = Throttles()
    with table.gate.ruled_by(throttle):
        write_as_notebook(driver, table, "write_pending")
    assert throttle.refused > 10
    check(table)


@pytest.mark.all
def test_keys_that_expire_in_a_task(driver: Driver, table: Table, executor_keys: ExecutorKeys) -> None:
    """A task whose keys expire fails; the attempt after it asks its own chain, and each row counts once."""
    job = table.job()
    rule = Expires(executor_keys)
    with table.gate.ruled_by(rule):
        write_for_airflow(driver, table, job, "write_pending")
    assert rule.refused > 0
    commit_and_check(table, job)


def killed_while_sealing(driver: Driver, table: Table, write: Callable[[], None], *, answered: bool) -> None:
    """Run a write whose driver is killed before, or after, its stage's seal is there."""
    rule = Kills(driver.kill, lambda request: request.writes("/sealed.json"), answered)
    with table.gate.ruled_by(rule):
        with pytest.raises(ApplicationFailed, match="died"):
            write()
        driver.wait_for_its_executors()
    assert rule.done


@pytest.mark.all
def test_drivers_killed_before_and_after_the_seal(driver: Driver, table: Table) -> None:
    """Airflow runs a driver again that died before its seal; one that died after it need not run again."""
    job = table.job()
    killed_while_sealing(
        driver, table, lambda: write_for_airflow(driver, table, job, "format"), answered=False
    )
    assert job.stage_seal("load", "1") is None
    job.abort_stage("load", "1")
    again = "2"
    killed_while_sealing(
        driver,
        table,
        lambda: write_for_airflow(driver, table, job, "write_pending", again, fault=table.fault("raise")),
        answered=True,
    )
    assert job.stage_seal("load", again) is not None
    commit_and_check(table, job)


@pytest.mark.all
def test_a_notebook_killed_before_its_seal(driver: Driver, table: Table) -> None:
    """The job of a write whose driver died is found in the destination, and its abort leaves nothing."""
    killed_while_sealing(driver, table, lambda: write_as_notebook(driver, table, "format"), answered=False)
    assert table.pending() != []
    assert table.files() == []
    (found,) = list_jobs(table.store, Destination.parse(table.uri))
    assert found.state == "open"
    assert found.destination is not None
    assert found.staging is not None
    dead = JobReference(job_id=found.job_id, destination=found.destination, staging=found.staging)
    Job.at(table.store, dead).abort()
    assert table.pending() == []
    assert table.data() == []

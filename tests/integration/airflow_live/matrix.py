"""The rows of the matrix: what is done to each run, at a moment that the run itself announces."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from airflow_s3commit.protocol.sweep import sweep
from tests.integration.airflow_live.control import RUN_TIMEOUT
from tests.integration.airflow_live.scenario import Run, Story


def stage_ends(run: Run, order: str) -> Story:
    """The stage is told to finish, or to raise."""
    run.start()
    yield run.held("write")
    run.go("write", order)
    yield from settled(run)


def ended(run: Run) -> Story:
    """Nothing is done to the run."""
    run.start()
    yield from settled(run)


def retried(run: Run) -> Story:
    """The stage raises, and has a retry left."""
    run.start()
    yield run.held("write")
    run.go("write", "raise")
    yield run.held("write", 2)
    run.go("write", "finish", 2)
    yield from settled(run)


def stage_timed_out(run: Run) -> Story:
    """The stage gets no order: its own time limit ends it."""
    yield from ended(run)


def run_timed_out(run: Run) -> Story:
    """The whole run reaches its time limit while its stage writes."""
    run.start()
    yield run.held("write")
    run.grow_old(2 * RUN_TIMEOUT)
    yield from settled(run)


def run_timed_out_by_default(run: Run) -> Story:
    """The notifier has its short time limit: as it then says, a sweep must do the rest."""
    yield from run_timed_out(run)
    task = run.place.read("held.write.1")["task"]
    yield f"the task of {run.dag_id} is dead", lambda: not _lives(task)
    if run.left().pending:
        assert run.stage.airflow.has_parsed_with("a sweep aborts")
        sweep(run.stage.store, run.destination, older_than=0, dry_run=False)


def run_timed_out_and_swept(run: Run) -> Story:
    """The notifier has no time at all; once the task is dead, the sweep that it asks for runs."""
    yield from run_timed_out(run)
    task = run.place.read("held.write.1")["task"]
    yield f"the task of {run.dag_id} is dead", lambda: not _lives(task)
    assert run.stage.airflow.has_parsed_with("so 0 of its jobs are aborted; a later teardown or a sweep")
    left = run.left()
    assert left.visible == {}
    assert len(left.pending) >= 2
    sweep_run = Run(run.stage, "sweep", run.dag_id)
    sweep_run.start({"destination": run.destination.uri})
    yield sweep_run.over()
    assert sweep_run.state == "success", run.stage.airflow.report("sweep", run.dag_id)
    swept = run.stage.airflow.api.xcom("sweep", run.dag_id, "sweep")
    run.place.say("swept", {"uploads": len(left.pending), "report": swept})


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def killed(run: Run, *processes: str) -> Story:
    """Processes of the stage get SIGKILL."""
    run.start()
    yield run.held("write")
    run.kill("held.write.1", *processes)
    yield from settled(run)


def task_marked_failed(run: Run) -> Story:
    """Mark the running stage as failed."""
    run.start()
    yield run.held("write")
    run.stage.airflow.api.mark_task(run.dag_id, run.run_id, "refresh.write", "failed")
    yield from settled(run)


def marked_success(run: Run, held: str, task_id: str) -> Story:
    """Mark the stage as successful while it runs."""
    run.start()
    yield run.held(held)
    run.stage.airflow.api.mark_task(run.dag_id, run.run_id, f"refresh.{task_id}", "success")
    yield from settled(run)


def run_marked_failed(run: Run) -> Story:
    """Mark the whole run as failed while its stage runs."""
    run.start()
    yield run.held("write")
    run.stage.airflow.api.mark_run_failed(run.dag_id, run.run_id)
    yield from settled(run)


def with_old_data(run: Run) -> Story:
    """The destination already has data."""
    run.stage.store.put("lake", f"{run.destination.prefix}old.txt", b"old")
    yield from ended(run)


def file_removed(run: Run) -> Story:
    """The DAG's file is gone while the stage runs, and comes back: Airflow leaves the run until then."""
    airflow, file = run.stage.airflow, run.stage.project / f"{run.dag_id}.py"
    run.start()
    yield run.held("write")
    aside = file.rename(file.with_suffix(".removed"))
    yield f"{run.dag_id} is stale", lambda: airflow.api.is_stale(run.dag_id)
    run.go("write", "finish")
    yield run.task_is("write", "success")
    left = run.left()
    assert (left.visible, len(left.pending)) == ({}, 2)
    aside.rename(file)
    yield from settled(run)


def cleared_while_running(run: Run) -> Story:
    """Clear the stage while it runs: it is killed, and runs again with a new job."""
    run.start()
    yield run.held("write")
    run.stage.airflow.api.clear(run.dag_id, run.run_id, "refresh.write")
    yield run.held("write", 2)
    run.go("write", "finish", 2)
    yield from settled(run)


def sensor_marked_failed(run: Run) -> Story:
    """Mark the sensor as failed while it is deferred, with pending output behind it."""
    run.start()
    yield run.task_is("wait", "deferred")
    run.stage.airflow.api.mark_task(run.dag_id, run.run_id, "refresh.wait", "failed")
    yield from settled(run)


def run_marked_failed_while_deferred(run: Run) -> Story:
    """Mark the whole run as failed while its sensor is deferred."""
    run.start()
    yield run.task_is("wait", "deferred")
    run.stage.airflow.api.mark_run_failed(run.dag_id, run.run_id)
    yield from settled(run)


def triggerer_killed(run: Run) -> Story:
    """The triggerer dies while the sensor is deferred; another one takes the trigger over."""
    run.start()
    yield run.task_is("wait", "deferred")
    run.stage.airflow.lose("triggerer")
    run.stage.commit(f"s3://lake/{run.dag_id}.upstream/", "dt=2013-01-01/part-0.txt", b"upstream")
    run.stage.airflow.begin("triggerer")
    yield from settled(run)


def spark_killed(run: Run) -> Story:
    """The processes of a Spark application get SIGKILL while it writes."""
    run.start()
    yield run.held("spark")
    run.kill("driver", "python", "spark-submit")
    run.kill("held.spark.1", "task")
    yield from settled(run)


def commit_killed(run: Run) -> Story:
    """The commit gets SIGKILL with one of its files visible, and its retry continues."""
    run.start()
    yield run.held("commit")
    run.kill("held.commit.1", "task")
    yield from settled(run)


def commit_marked_failed(run: Run) -> Story:
    """Mark the commit as failed, with one of its files visible or past the point of no return."""
    run.start()
    yield run.held("commit")
    run.stage.airflow.api.mark_task(run.dag_id, run.run_id, "commit", "failed")
    yield from settled(run)


def store_away(run: Run) -> Story:
    """The store fails the commit; somebody clears the commit when it is back, and later setup alone."""
    run.start()
    yield from settled(run)
    assert run.state == "failed"
    left = run.left()
    assert (left.visible, len(left.pending)) == ({}, 2)
    yield from cleared(run, "refresh.commit")
    assert (run.state, len(run.left().visible)) == ("success", 2)
    yield from cleared(run, "refresh.setup")


def cleared(run: Run, task_id: str) -> Story:
    """Clear a task of a finished run, and wait until it has ended again."""
    for note in ("dag-failed", "dag-succeeded"):
        run.place.forget(note)
    run.stage.airflow.api.clear(run.dag_id, run.run_id, task_id)
    yield run.running()
    yield from settled(run)


def asked(run: Run, answer: str) -> Story:
    """The audit asks, nothing is visible yet, and a human answers."""
    run.start()
    yield run.task_is("audit", "awaiting_input")
    left, airflow = run.left(), run.stage.airflow
    assert (left.visible, len(left.pending)) == ({}, 2)
    assert "1 of 1 checks" in airflow.api.question(run.dag_id, run.run_id, "refresh.audit")["subject"]
    noted = f"the scheduler knows that {run.dag_id} waits"
    yield noted, lambda: airflow.has_noted_the_end_of(run.dag_id, "refresh.audit")
    airflow.api.answer(run.dag_id, run.run_id, "refresh.audit", answer)
    yield from settled(run)


def settled(run: Run) -> Story:
    """Wait until the run has ended and its DAG's callback has been called."""
    yield run.over()
    yield run.noted("dag-failed", "dag-succeeded")


#: Each row's story, by its DAG.
STORIES: dict[str, Callable[[Run], Story]] = {
    # The first ones take the longest.
    "run_timed_out": run_timed_out,
    "run_timed_out_by_default": run_timed_out_by_default,
    "run_timed_out_and_swept": run_timed_out_and_swept,
    "stage_timed_out": stage_timed_out,
    "spark_killed": spark_killed,
    "node_lost": lambda run: killed(run, "supervisor", "task"),
    "committed": lambda run: stage_ends(run, "finish"),
    "stage_raises": lambda run: stage_ends(run, "raise"),
    "skipped": ended,
    "one_of_two_skipped": ended,
    "one_of_two_skipped_by_default": ended,
    "nothing_written": ended,
    "empty_committed": ended,
    "empty_refused": with_old_data,
    "emptied": with_old_data,
    "retried": retried,
    "sealed_and_lost": ended,
    "named_sealed_and_lost": ended,
    "application_found_again": ended,
    "named_without_output": ended,
    "task_killed": lambda run: killed(run, "task"),
    "task_marked_failed": task_marked_failed,
    "run_marked_failed": run_marked_failed,
    "marked_success_when_sealed": partial(marked_success, held="engine", task_id="seal_and_vanish"),
    "marked_success_too_soon": partial(marked_success, held="write", task_id="write"),
    "file_removed": file_removed,
    "setup_fails": with_old_data,
    "cleared_while_running": cleared_while_running,
    "sensor_marked_failed": sensor_marked_failed,
    "run_marked_failed_while_deferred": run_marked_failed_while_deferred,
    "triggerer_killed": triggerer_killed,
    "approved": lambda run: asked(run, "Approve"),
    "rejected": lambda run: asked(run, "Reject"),
    "commit_killed": commit_killed,
    "store_away": store_away,
    "commit_marked_failed": commit_marked_failed,
    "commit_marked_failed_too_late": commit_marked_failed,
}

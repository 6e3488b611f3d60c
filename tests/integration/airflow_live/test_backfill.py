"""A month filled by a real backfill, four days at once, and what clearing does to its result."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from airflow_s3commit import Destination
from tests.integration.airflow_live.control import Place
from tests.integration.airflow_live.scenario import OVER, Left, Run, Stage, Story, look, play

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.all,
    pytest.mark.airflow,
    pytest.mark.seaweedfs,
    pytest.mark.xdist_group("airflow-live"),
    pytest.mark.timeout(1800),  # the first test waits for the whole month
]

DAG = "month"
MONTH = Destination.parse("s3://lake/month/")
DAYS = [f"2013-01-{day:02d}" for day in range(1, 32)]
ACTIVE = 4

#: Days that had data before the backfill, which replaces it.
OLD_DAYS = ["2013-01-02", "2013-01-17"]

#: Days whose worker is killed while it writes.
KILLED_DAYS = ["2013-01-03", "2013-01-16"]

#: Days of the month that are run again afterwards, each in its own way.
REPROCESSED, STAGE_CLEARED, COMMIT_CLEARED, RUN_CLEARED = (
    "2013-01-07",
    "2013-01-08",
    "2013-01-09",
    "2013-01-10",
)


@dataclass(slots=True)
class Filled:
    """What was observed of the month.

    Attributes:
        failures: Stories that did not come to their end, and why.
        runs: The runs of each day, as they were after the backfill.
        after: The destination after the backfill.
        again: The destination after days of it were run again.
    """

    failures: dict[str, str]
    runs: dict[str, dict[str, Any]]
    after: Left
    again: Left


def backfill(stage: Stage, first: str, last: str, *more: str, dag_id: str = DAG) -> Story:
    """Let Airflow's own command make a backfill."""
    command = ["backfill", "create", "--dag-id", dag_id, "--from-date", first, "--to-date", last, *more]
    with stage.airflow.command(*command) as program:
        yield "the backfill is made", lambda: not program.running
        assert program.exit_code == 0, program.last_words(30)


def fill(stage: Stage) -> Story:
    """Backfill the month, and kill the workers of two days on the way."""
    Place.of(stage.control, DAG, "plan").say("held-days", KILLED_DAYS)
    for day in OLD_DAYS:
        stage.commit(MONTH.uri, f"dt={day}/old.txt", b"old")
    yield from backfill(stage, DAYS[0], DAYS[-1], "--max-active-runs", str(ACTIVE))
    for day in KILLED_DAYS:
        yield f"there is a run of {day}", lambda day=day: day in days_of(stage)
        run = Run(stage, DAG, days_of(stage)[day]["dag_run_id"])
        yield run.held("write")
        run.kill("held.write.1", "supervisor", "task")
    yield "the month is filled", lambda: states(stage) == Counter({"success": len(DAYS)}) or any_failed(stage)


def days_of(stage: Stage) -> dict[str, dict[str, Any]]:
    """Return the newest run of each day."""
    runs = sorted(stage.runs.values(), key=lambda run: str(run["queued_at"]))
    return {run["partition_key"]: run for run in runs if run["dag_id"] == DAG}


def states(stage: Stage) -> Counter[str]:
    """Count the days' runs by their state."""
    return Counter(run["state"] for run in days_of(stage).values())


def any_failed(stage: Stage) -> bool:
    """Whether a day has failed, so that waiting for all to succeed has no end."""
    return states(stage)["failed"] > 0 and states(stage)["running"] + states(stage)["queued"] == 0


def run_again(run: Run, how: Any) -> Story:
    """Run a finished run again, and wait for its end."""
    before = run.stage.runs[DAG, run.run_id]["last_scheduling_decision"]
    how()
    yield (
        f"{run.run_id} is over again",
        lambda: run.state in OVER and run.stage.runs[DAG, run.run_id]["last_scheduling_decision"] != before,
    )


def reprocess(stage: Stage) -> Story:
    """Backfill a day that the month's backfill has filled."""
    known = {run_id for dag_id, run_id in stage.runs if dag_id == DAG}
    began = stage.runs[DAG, days_of(stage)[REPROCESSED]["dag_run_id"]]["end_date"]
    # A DAG has one backfill at a time, and the scheduler only closes them now and then.
    yield "the month's backfill is closed", lambda: stage.airflow.api.backfills_are_over(DAG)
    yield from backfill(stage, REPROCESSED, REPROCESSED, "--reprocess-behavior", "completed")
    yield (
        f"{REPROCESSED} is reprocessed",
        lambda: any(
            run["state"] in OVER and (run["dag_run_id"] not in known or run["end_date"] > began)
            for run in stage.runs.values()
            if run["partition_key"] == REPROCESSED
        ),
    )


@pytest.fixture(scope="module")
def filled(stage: Stage) -> Filled:
    """Fill the month, then run days of it again."""
    failures = play(stage, {"month": fill(stage)})
    runs, after = days_of(stage), look(stage.store, MONTH)
    api = stage.airflow.api

    def day(which: str) -> Run:
        return Run(stage, DAG, runs[which]["dag_run_id"])

    def cleared(which: str, *tasks: str) -> Story:
        run = day(which)
        return run_again(run, lambda: api.clear(DAG, run.run_id, *tasks))

    def whole_cleared(which: str) -> Story:
        run = day(which)
        return run_again(run, lambda: api.clear_run(DAG, run.run_id))

    if not failures:
        failures = play(
            stage,
            {
                "reprocess": reprocess(stage),
                "stage cleared": cleared(STAGE_CLEARED, "refresh.write_day"),
                "commit cleared": cleared(COMMIT_CLEARED, "refresh.commit"),
                "run cleared": whole_cleared(RUN_CLEARED),
            },
        )
    return Filled(failures, runs, after, look(stage.store, MONTH))


def files_of(left: Left, day: str) -> list[str]:
    """Return what a day's files say: the run and the job that wrote each."""
    return [body.decode() for path, body in left.visible.items() if path.startswith(f"dt={day}/")]


def test_every_day_exists_exactly_once(stage: Stage, filled: Filled) -> None:
    """Each day has only the file of its own run, even the killed ones, and older data is gone."""
    assert filled.failures == {}, trouble(stage)
    assert sorted(filled.runs) == DAYS
    for day in DAYS:
        (said,) = files_of(filled.after, day)
        assert said.split()[0] == filled.runs[day]["dag_run_id"]
    assert len(filled.after.visible) == len(DAYS)


def test_nothing_is_left_behind(filled: Filled) -> None:
    """No upload is pending, no job's records are left, and no job holds the lock."""
    for left in (filled.after, filled.again):
        assert left.pending == []
        assert left.staging == []


def test_four_days_were_refreshed_at_once(filled: Filled) -> None:
    """The backfill kept to its limit, and used it."""
    assert most_at_once(filled.runs.values()) == ACTIVE


def test_the_killed_days_took_a_second_try(stage: Stage, filled: Filled) -> None:
    """The workers were really killed while they wrote: Airflow started those stages again."""
    for day in KILLED_DAYS:
        tries = stage.airflow.api.states(DAG, filled.runs[day]["dag_run_id"])
        assert tries["write_day"] == ("success", 2)


def test_a_reprocessed_day_is_replaced(stage: Stage, filled: Filled) -> None:
    """A day that is backfilled again has only the files of the new job."""
    (before,), (after,) = files_of(filled.after, REPROCESSED), files_of(filled.again, REPROCESSED)
    assert after != before
    assert days_of(stage)[REPROCESSED]["state"] == "success", trouble(stage)


def test_a_cleared_run_is_replaced(stage: Stage, filled: Filled) -> None:
    """A finished run that is cleared as a whole commits again, replacing its first commit."""
    (before,), (after,) = files_of(filled.after, RUN_CLEARED), files_of(filled.again, RUN_CLEARED)
    assert after != before
    assert state_of(stage, filled, RUN_CLEARED) == "success", trouble(stage)


@pytest.mark.parametrize(
    ("day", "state"), [(STAGE_CLEARED, "failed"), (COMMIT_CLEARED, "success")], ids=["stage", "commit"]
)
def test_a_run_cleared_in_part_changes_nothing(stage: Stage, filled: Filled, day: str, state: str) -> None:
    """A stage without the commit is refused, and the run fails; a cleared commit finds it done."""
    assert files_of(filled.again, day) == files_of(filled.after, day)
    assert state_of(stage, filled, day) == state, stage.airflow.report(DAG, filled.runs[day]["dag_run_id"])


def state_of(stage: Stage, filled: Filled, day: str) -> str:
    """Return the current state of the day's first run."""
    return str(stage.airflow.api.run(DAG, filled.runs[day]["dag_run_id"])["state"])


def most_at_once(runs: Any) -> int:
    """Return the highest number of these runs that were active at the same time."""
    moments = sorted(_moments(runs))
    active = most = 0
    for _, change in moments:
        active += change
        most = max(most, active)
    return most


def _moments(runs: Any) -> Iterator[tuple[datetime, int]]:
    for run in runs:
        yield datetime.fromisoformat(run["start_date"]), 1
        yield datetime.fromisoformat(run["end_date"]), -1


def trouble(stage: Stage) -> str:
    """Return the reports of the runs that did not succeed."""
    wrong = [run for run in days_of(stage).values() if run["state"] != "success"]
    reports = [stage.airflow.report(DAG, run["dag_run_id"]) for run in wrong[:2]]
    return "\n".join([json.dumps(dict(states(stage))), *reports])

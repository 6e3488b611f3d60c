"""What users do with their own DAGs: clears in part, mappings that shrink, mended code, runs side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from tests.integration.airflow_live.control import PASSWORD, Place
from tests.integration.airflow_live.scenario import Left, Run, Stage, Story, play
from tests.integration.airflow_live.test_backfill import backfill

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [
    pytest.mark.all,
    pytest.mark.airflow,
    pytest.mark.seaweedfs,
    pytest.mark.xdist_group("airflow-live"),
    pytest.mark.timeout(1800),  # the first test waits until every story has been played
]


def mapping_shrinks(run: Run) -> Story:
    """A run that wrote three parts is cleared, and has two then."""
    plan = Place.of(run.stage.control, run.dag_id, "plan")
    plan.say("parts", 3)
    run.start()
    yield run.over()
    note(run, "before")
    plan.say("parts", 2)
    yield from run.clear()
    note(run, "after")


def one_instance_cleared(run: Run) -> Story:
    """One of three mapped instances is cleared with what is behind it, after a commit; then the whole run."""
    Place.of(run.stage.control, run.dag_id, "plan").say("parts", 3)
    run.start()
    yield run.over()
    yield from run.clear(("refresh.write_part", 1))
    note(run, "before")
    yield from run.clear()
    note(run, "after")


def code_changed(run: Run) -> Story:
    """A run has failed by a bug; its file is mended, with another option, and the run is cleared."""
    run.start()
    yield run.over()
    note(run, "before")
    file = run.stage.project / f"{run.dag_id}.py"
    file.write_text(
        file.read_text().replace("fail()", "parts()").replace("fail,", "parts,").replace("0s", "1d")
    )
    Place.of(run.stage.control, run.dag_id, "plan").say("parts", 1)
    yield from run.clear()
    note(run, "after")


def triggering(run: Run) -> Story:
    """A run starts one of another DAG, and waits for it."""
    run.start()
    yield run.over()
    note(Run(run.stage, "triggered", f"of-{run.run_id}"), "after", run.place)


def past(run: Run) -> Story:
    """A run waits for the one before, which failed, and is given up; then both are cleared, in order."""
    later = Run(run.stage, run.dag_id, "later")
    run.start(logical_date="2013-01-01T00:00:00Z")
    yield run.held("write")
    run.go("write", "raise")
    yield run.over()
    later.start(logical_date="2013-01-02T00:00:00Z")
    yield later.task_is("setup", "success")
    run.stage.airflow.api.mark_run_failed(later.dag_id, later.run_id)
    yield later.task_is("abort", "success", "failed", "upstream_failed", "skipped")
    yield later.over()
    note(later, "before", run.place)
    for each, number in ((run, 2), (later, 1)):
        again = each.clear()
        yield next(again)
        yield each.held("write", number)
        each.go("write", "finish", number)
        yield from again
    note(later, "after", run.place)


def beside(run: Run) -> Story:
    """A backfill and the nightly run of its day write at the same time, and commit together."""
    # In this order: where a day has an active run, Airflow leaves it out of a backfill.
    yield from backfill(run.stage, "2013-01-05", "2013-01-05", dag_id=run.dag_id)

    def made() -> list[str]:
        return [name for dag_id, name in run.stage.runs if dag_id == run.dag_id]

    yield "the backfill has a run", made
    filling = Run(run.stage, run.dag_id, made()[0])
    run.start({"conflict_mode": "replace"}, partition_key="2013-01-05")
    for each in (filling, run):
        yield each.held("write")
    for each in (filling, run):
        each.go("write", "finish")
    for each in (filling, run):
        yield each.over()
    note(filling, "before", run.place)
    note(run, "after")


def secret_in_template(run: Run) -> Story:
    """A task of the group fails, and what it raises has the password of a connection."""
    run.start()
    yield run.over()
    note(run, "after")


def note(run: Run, name: str, place: Place | None = None) -> None:
    """Note how a run has ended, and what readers see at its destination."""
    left: Left = run.left()
    tasks = [
        [task["task_id"].rpartition(".")[2], task["map_index"], task["state"]]
        for task in run.stage.airflow.api.tasks(run.dag_id, run.run_id)
    ]
    seen = {
        "state": run.stage.airflow.api.run(run.dag_id, run.run_id)["state"],
        "tasks": tasks,
        "visible": sorted(body.decode() for body in left.visible.values()),
        "left": [*left.pending, *left.staging],
    }
    (place or run.place).say(name, seen)


STORIES: dict[str, Callable[[Run], Story]] = {
    story.__name__: story
    for story in (
        mapping_shrinks,
        one_instance_cleared,
        code_changed,
        triggering,
        past,
        beside,
        secret_in_template,
    )
}


@dataclass(frozen=True, slots=True)
class Ended:
    """How the stories have ended: what went wrong, by name."""

    stage: Stage
    failures: dict[str, str]

    def of(self, name: str, when: str = "after") -> dict[str, Any]:
        """Return what a story has noted of its run."""
        report = self.stage.airflow.report(name, "row")
        assert name not in self.failures, f"{self.failures[name]}\n{report}"
        seen: dict[str, Any] = Place.of(self.stage.control, name, "row").read(when)
        assert seen["left"] == [], report
        return seen


@pytest.fixture(scope="module")
def ended(stage: Stage) -> Ended:
    """Play all stories side by side."""
    return Ended(
        stage, play(stage, {name: story(Run(stage, name, "row")) for name, story in STORIES.items()})
    )


def test_a_mapping_that_shrank_commits_what_it_has_now(ended: Ended) -> None:
    """The part that is gone is replaced with the others, and its removed instance fails nothing."""
    assert ended.of("mapping_shrinks", "before")["visible"] == [f"part-{part} try 1" for part in range(3)]
    after = ended.of("mapping_shrinks")
    assert (after["state"], after["visible"]) == ("success", ["part-0 try 2", "part-1 try 2"])
    assert ["write_part", 2, "removed"] in after["tasks"]


def test_one_cleared_instance_replaces_nothing(ended: Ended) -> None:
    """A commit with one of three parts would lose two: setup refuses, and a whole clear replaces all."""
    before = ended.of("one_instance_cleared", "before")
    assert (before["state"], before["visible"]) == ("failed", [f"part-{part} try 1" for part in range(3)])
    assert ["setup", -1, "failed"] in before["tasks"]
    after = ended.of("one_instance_cleared")
    assert after["state"] == "success"
    assert [said.partition(" ")[0] for said in after["visible"]] == ["part-0", "part-1", "part-2"]
    assert "part-0 try 2" in after["visible"]


def test_mended_code_runs_after_a_clear(ended: Ended) -> None:
    """The cleared run has the new code and options; the failed one has left nothing."""
    before, after = ended.of("code_changed", "before"), ended.of("code_changed")
    assert (before["state"], before["visible"]) == ("failed", [])
    assert (after["state"], after["visible"]) == ("success", ["row try 2"] * 2)


def test_a_triggered_run_commits(ended: Ended) -> None:
    """It has its own job, and the run that waits for it succeeds."""
    after = ended.of("triggering")
    assert (after["state"], after["visible"]) == ("success", ["of-row try 1"] * 2)
    assert ended.stage.airflow.api.run("triggering", "row")["state"] == "success"


def test_a_run_that_waits_for_the_last_one_leaves_nothing(ended: Ended) -> None:
    """Its teardown does not wait for that of a failed run; after clears in order both commit."""
    before, after = ended.of("past", "before"), ended.of("past")
    assert before["visible"] == []
    assert ["abort", -1, "success"] in before["tasks"]
    assert (after["state"], after["visible"]) == ("success", ["later try 1"] * 2)


def test_a_backfill_beside_its_nightly_leaves_one_of_them(ended: Ended) -> None:
    """Both replace the day at the same time: readers see the files of one run, and both runs succeed."""
    filling, nightly = ended.of("beside", "before"), ended.of("beside")
    assert (filling["state"], nightly["state"]) == ("success", "success")
    one, other = nightly["visible"]
    assert one == other


def test_a_secret_of_a_template_is_masked(ended: Ended) -> None:
    """Neither logs, rendered fields and XComs nor what is on S3 has it, though a task raised it."""
    run, airflow, store = (
        Run(ended.stage, "secret_in_template", "row"),
        ended.stage.airflow,
        ended.stage.store,
    )
    assert ended.of("secret_in_template")["state"] == "failed"
    tasks = {task["task_id"].rpartition(".")[2]: task for task in airflow.api.tasks(run.dag_id, run.run_id)}
    assert tasks["cannot_sign_in"]["rendered_fields"]["op_args"] == ["***"]
    tried = {name: task["task_id"] for name, task in tasks.items() if task["try_number"]}
    logs = {name: airflow.api.log(run.dag_id, run.run_id, task_id, 1) for name, task_id in tried.items()}
    assert "cannot sign in with ***" in logs["cannot_sign_in"]
    engine = sa.create_engine(ended.stage.database_url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        kept = {
            table: str(connection.execute(sa.text(f"SELECT * FROM {table}")).all())
            for table in ("rendered_task_instance_fields", "xcom", "task_instance_note", "log")
        }
    keys = [info.key for info in store.list_objects("lake", run.destination.prefix)]
    records = {key: store.get("lake", key).body.decode(errors="replace") for key in keys}
    assert any("log/" in key for key in records)
    everything = {**logs, **kept, **records, "tasks": str(tasks)}
    assert [place for place, text in everything.items() if PASSWORD in text] == []

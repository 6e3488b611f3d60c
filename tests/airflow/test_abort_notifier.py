"""The callback that aborts where no teardown runs."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.execution_time.xcom import XCom
from airflow.serialization.serialized_objects import DagSerialization

from airflow_s3commit import Job, notifications
from airflow_s3commit.exceptions import Unavailable
from airflow_s3commit.metrics import count_retry
from airflow_s3commit.notifications import AbortUploadsNotifier
from airflow_s3commit.operators import S3CommitAbortOperator, S3CommitSetupOperator
from tests.airflow.runs import FLIGHTS, at, commit, new_context, pending, set_up, visible, write_stage


def notifier(**arguments: Any) -> AbortUploadsNotifier:
    """Return a notifier that looks once."""
    return AbortUploadsNotifier(**{"kill_window": 0, **arguments})


@pytest.fixture
def dag() -> DAG:
    """Return a DAG with one setup task."""
    with DAG("nightly", schedule=None) as made:
        S3CommitSetupOperator(task_id="setup", destination=FLIGHTS)
    return made


@pytest.fixture
def xcoms(monkeypatch) -> dict[tuple[str, ...], list]:
    """XComs by DAG, run and task: what Airflow's API server would answer."""
    known: dict[tuple[str, ...], list] = {}
    monkeypatch.setattr(
        XCom,
        "get_all",
        classmethod(
            lambda _, *, key, dag_id, task_id, run_id: known.get(
                (dag_id, run_id, task_id, *(() if key == "return_value" else (key,))), []
            )
        ),
    )
    return known


def test_it_needs_no_task_instance(store, dag, xcoms) -> None:
    """The context of a run that timed out, with DAG and run id alone, is enough."""
    reference = set_up(store)
    write_stage(store, reference)
    xcoms["nightly", "run", "setup"] = [reference]
    notifier()({"dag": dag, "run_id": "run", "reason": "timed_out"})
    assert pending(store) == []


def test_the_scheduler_s_copy_of_a_dag_is_enough(store, dag, xcoms) -> None:
    """It has the tasks by their types, and no environment for templates."""
    reference = set_up(store)
    write_stage(store, reference)
    xcoms["nightly", "run", "setup"] = [reference]
    copy = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
    notifier()({"dag": copy, "run_id": "run"})
    assert pending(store) == []


@pytest.mark.parametrize(("limit", "step", "timeout"), [(30.0, 10.0, 10.0), (1.5, 0.5, 1.0)])
def test_a_store_that_does_not_answer_is_given_up_in_time(store, monkeypatch, limit, step, timeout) -> None:
    """A third of the time is for the retries of one request, which waits for a second at least."""
    made, hook = [], notifications.S3CommitHook
    monkeypatch.setattr(notifications, "_row", SimpleNamespace(began=0.0, ended=0.0))
    monkeypatch.setattr(notifications, "monotonic", lambda: 1000.0)
    monkeypatch.setattr(
        notifications, "S3CommitHook", lambda conn, **how: made.append((conn, how)) or hook(conn, **how)
    )
    notifier(job=set_up(store), time_limit=limit, aws_conn_id="lake").notify({"run_id": "run"})
    assert made == [("lake", {"retry_deadline": step, "timeout": timeout, "on_retry": count_retry})]


def test_it_works_as_a_tasks_callback(store, dag, xcoms) -> None:
    """With a full context it does the same."""
    reference = set_up(store)
    write_stage(store, reference)
    xcoms["nightly", "scheduled__2013-01-02", "setup"] = [reference]
    notifier()(new_context(dag=dag))
    assert pending(store) == []


@pytest.mark.parametrize("several", [False, True])
def test_it_takes_references_by_template(store, dag, xcoms, several) -> None:
    """A reference that is passed in, or several, need no XCom at all."""
    references = [set_up(store), set_up(store)]
    for reference in references:
        write_stage(store, reference)
    notifier(job=references if several else references[0])({"dag": dag, "run_id": "run"})
    assert len(pending(store)) == 1 - several


def test_each_run_has_its_own_references(store) -> None:
    """One process calls the DAG's callback for several runs, and each call renders the templates anew."""
    with DAG("nightly", schedule=None, render_template_as_native_obj=True) as dag:
        calling = notifier(job="{{ reference }}")
    for run_id in ("r1", "r2"):
        write_stage(store, reference := set_up(store, run_id=run_id))
        calling({"dag": dag, "run_id": run_id, "reference": reference})
        assert pending(store) == []


def test_xcoms_that_are_no_reference_are_left_out(store, dag, xcoms) -> None:
    """A setup that failed may have left anything there; the others' jobs are aborted."""
    write_stage(store, reference := set_up(store))
    xcoms["nightly", "run", "setup"] = [None, "text", {"state": "open"}, reference]
    notifier(setup_task_ids="setup")({"dag": dag, "dag_run": SimpleNamespace(run_id="run")})
    assert pending(store) == []


def test_a_reference_that_became_text_is_an_error(store, dag, xcoms) -> None:
    """Unless a DAG renders native objects, a template makes text of it; that aborts nothing, and says so."""
    reference = set_up(store)
    with pytest.raises(ValueError, match=f"job is the text .*{reference['job_id']}.*setup_task_ids"):
        notifier(job="{{ ti.reference }}")(
            {**new_context(dag=dag), "ti": SimpleNamespace(reference=reference)}
        )


def test_a_setup_task_that_is_not_in_the_dag_is_an_error(store, dag, xcoms, monkeypatch) -> None:
    """A misspelt id would let the callback do nothing, as if the run had no job; the others are aborted."""
    reference = set_up(store)
    write_stage(store, reference)
    xcoms["nightly", "run", "setup"] = [reference]
    calling, said = notifier(setup_task_ids=["refresh.set_up", "setup"]), []
    monkeypatch.setattr(calling.log, "error", lambda text, *rest: said.append(text % rest))
    calling({"dag": dag, "run_id": "run"})
    assert said == ["The DAG has no setup task refresh.set_up, so no job of it is aborted"]
    assert pending(store) == []


def test_it_may_be_called_again_and_leaves_commits_alone(store, dag, xcoms, monkeypatch) -> None:
    """Called twice for a committed and an uncommitted job, it leaves the one and aborts the other."""
    committed, failed = commit(store), set_up(store)
    write_stage(store, failed)
    xcoms["nightly", "run", "setup"] = [committed, failed]
    before = visible(store)
    for _ in range(2):
        calling = notifier()
        monkeypatch.setattr(calling.log, "error", pytest.fail)
        calling({"dag": dag, "run_id": "run"})
    assert (visible(store), pending(store)) == (before, [])


def test_a_run_that_set_nothing_up_is_left_alone(store, dag, xcoms) -> None:
    """Without an XCom of the setup task it does nothing and raises nothing."""
    notifier()({"dag": dag, "run_id": "run"})


def test_a_process_without_xcoms_leaves_the_jobs_to_the_teardown(store, dag, monkeypatch) -> None:
    """``dag.test()`` calls a DAG's callbacks in one; its run has failed for another reason than this."""

    def without(**_: object) -> object:
        raise ImportError("no SUPERVISOR_COMMS")

    monkeypatch.setattr(XCom, "get_all", without)
    calling, said = notifier(), []
    monkeypatch.setattr(calling.log, "warning", lambda text, *rest: said.append(text % rest))
    calling({"dag": dag, "run_id": "run"})
    assert said == [
        "The run's jobs are unknown in this process (no SUPERVISOR_COMMS); its teardown aborts them"
    ]


def test_a_deadline_s_callback_is_told_that_it_aborts_nothing(store) -> None:
    """Airflow calls it without a DAG and without XComs, where it would seem to have worked."""
    with pytest.raises(ValueError, match="no DAG here, as in a deadline's callback"):
        notifier(setup_task_ids="setup")({"dag_run": {"dag_id": "nightly", "run_id": "run"}})


def test_another_run_is_left_alone(store, dag, xcoms) -> None:
    """Only the jobs of the failed run are aborted."""
    write_stage(store, other := set_up(store))
    xcoms["nightly", "other run", "setup"] = [other]
    notifier()({"dag": dag, "run_id": "run"})
    assert len(pending(store)) == 1


@pytest.mark.parametrize("beats", [1, 3, 9])
def test_it_aborts_until_a_killed_task_is_quiet(store, dag, xcoms, monkeypatch, beats) -> None:
    """Airflow calls it while tasks still write, so it looks up to six times while it finds uploads."""
    reference = set_up(store)
    write_stage(store, reference)
    xcoms["nightly", "run", "setup"] = [set_up(store), reference]
    late = f"flights/dt=2013-01-01/part-00009-{reference['job_id']}.parquet"
    slept: list[float] = []

    def writing(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) <= beats:
            store.create_upload("lake", late, metadata={}, content_type="application/octet-stream")

    monkeypatch.setattr("airflow_s3commit.operators.abort.sleep", writing)
    said: list[str] = []
    calling = notifier(kill_window=10, time_limit=3600)
    monkeypatch.setattr(calling.log, "warning", lambda text, *rest: said.append(text % rest))
    store.create_upload("lake", late, metadata={}, content_type="application/octet-stream")
    calling({"dag": dag, "run_id": "run"})
    assert pending(store) == []
    assert slept == [10] * min(beats + 1, 5)
    assert len(said) == (beats > 5)


@pytest.mark.parametrize("error", [Unavailable("slow down"), RuntimeError("a bug")], ids=["store", "any"])
def test_one_job_s_error_is_logged_and_the_others_are_aborted(store, dag, xcoms, monkeypatch, error) -> None:
    """Any error with a job is logged, and the other jobs get their turn in each look."""
    broken, whole = set_up(store), set_up(store)
    write_stage(store, whole)
    error.add_note("the step")
    xcoms["nightly", "run", "setup"] = [broken, whole]
    abort, tried = Job.abort, []

    def watched(job: Job, **how: Any) -> Any:
        tried.append(job.reference.job_id)
        if job.reference.job_id == broken["job_id"]:
            raise error
        return abort(job, **how)

    monkeypatch.setattr(Job, "abort", watched)
    monkeypatch.setattr("airflow_s3commit.operators.abort.sleep", lambda _: None)
    said: list[str] = []
    calling = notifier(kill_window=1)
    of_store = isinstance(error, Unavailable)
    for level, expected in (("error", of_store), ("exception", not of_store)):
        log = (lambda text, *rest: said.append(text % rest)) if expected else pytest.fail
        monkeypatch.setattr(calling.log, level, log)
    calling({"dag": dag, "run_id": "run"})
    assert tried == [broken["job_id"], whole["job_id"]] * 6
    assert pending(store) == []
    assert all(broken["job_id"] in line and ("the step" in line) == of_store for line in said)
    assert len(said) == 6


def test_it_returns_within_its_limit(store, dag, xcoms, monkeypatch) -> None:
    """A store that does not answer holds neither the callback nor the end of its process."""
    xcoms["nightly", "run", "setup"] = [set_up(store)]
    answered = threading.Event()
    monkeypatch.setattr(Job, "abort", lambda self, **_: answered.wait(60) and SimpleNamespace(uploads=0))
    before = {*threading.enumerate()}
    notifier(time_limit=0.05)({"dag": dag, "run_id": "run"})
    assert [one.daemon for one in {*threading.enumerate()} - before] == [True]
    answered.set()


def test_notifiers_in_a_row_share_the_time(store, dag, xcoms, monkeypatch) -> None:
    """Airflow kills a process whose callbacks together take too long, and the log names what is left out."""
    now = [1000.0]
    for module in ("notifications", "operators.abort"):
        monkeypatch.setattr(f"airflow_s3commit.{module}.monotonic", lambda: now[0])
    monkeypatch.setattr(
        "airflow_s3commit.operators.abort.sleep", lambda seconds: now.append(now.pop() + seconds)
    )
    monkeypatch.setattr(notifications, "_row", SimpleNamespace(began=0.0, ended=0.0))
    ends, said = [], []
    for _ in range(3):
        write_stage(store, reference := set_up(store))
        xcoms["nightly", "run", "setup"] = [reference]
        calling = AbortUploadsNotifier(kill_window=10, time_limit=15)
        monkeypatch.setattr(calling.log, "warning", lambda text, *_: said.append(text))
        calling({"dag": dag, "run_id": "run"})
        ends.append(now[0])
    assert ends == [1010.0, 1010.0, 1010.0]
    assert len(said) == 2
    assert pending(store) == []
    now[0] += 5
    AbortUploadsNotifier(kill_window=10, time_limit=15)({"dag": dag, "run_id": "run"})
    assert now[0] == 1010.0 + 5 + 10


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [({}, [35, 25, 15, 5, 4]), ({"time_limit": 15}, [15, 5, 4, 4, 4]), ({"time_limit": 2}, [2, 2, 2, 2, 2])],
)
def test_each_notifier_of_a_row_has_a_few_seconds(monkeypatch, limit, seconds) -> None:
    """The last one of a long row makes its first abort, too, unless its own limit is shorter."""
    now, given = [1000.0], []

    def notified(self: AbortUploadsNotifier, context: Any, deadline: float) -> None:
        given.append(deadline - now[0])
        now[0] += 10

    monkeypatch.setattr(notifications, "monotonic", lambda: now[0])
    monkeypatch.setattr(notifications, "_row", SimpleNamespace(began=0.0, ended=0.0))
    monkeypatch.setattr(AbortUploadsNotifier, "_notify", notified)
    for _ in seconds:
        AbortUploadsNotifier(**limit).notify({})
    assert given == seconds


@pytest.mark.parametrize(
    ("reason", "state", "left"),
    [("task_failure", "kept", 1), ("task_failure", "aborted", 0), ("timed_out", "kept", 0)],
)
def test_a_job_that_the_teardown_kept_is_left_alone(store, dag, xcoms, *, reason, state, left) -> None:
    """The callback of a failed run keeps it too, but a timeout runs no teardown, and the report is older."""
    reference = set_up(store)
    write_stage(store, reference)
    with dag:
        S3CommitAbortOperator(task_id="abort", job=reference)
    xcoms["nightly", "run", "setup"] = [reference]
    xcoms["nightly", "run", "abort", "abort_report"] = [{"job_id": reference["job_id"], "state": state}]
    notifier()({"dag": dag, "run_id": "run", "reason": reason})
    assert len(pending(store)) == left


@pytest.mark.parametrize(
    ("started", "left"), [(at(2013, 1, 1), 1), (at(2013, 1, 2), 0), (at(2013, 1, 3), 0), (None, 0)]
)
@pytest.mark.parametrize("recorded", [True, False])
def test_a_late_call_leaves_the_job_of_the_cleared_run_alone(
    store, dag, xcoms, *, started, left, recorded
) -> None:
    """Airflow calls with the run as it was when it failed; the XCom has the job of the run's new life."""
    reference = set_up(store, run_started="2013-01-02T00:00:00.000000+00:00")
    write_stage(store, reference)
    if not recorded:
        for info in [*store.list_objects("lake", "flights/")]:
            store.delete("lake", info.key)
    xcoms["nightly", "run", "setup"] = [reference]
    run = SimpleNamespace(run_id="run", start_date=started)
    notifier()({"dag": dag, "run_id": "run", "reason": "task_failure", "dag_run": run})
    assert len(pending(store)) == (left if recorded else 0)


@pytest.mark.parametrize(("seconds", "left"), [(1.0, 0), (6.0, 2), (20.0, 4)])
def test_slow_xcoms_take_half_of_the_time(store, xcoms, monkeypatch, seconds, left) -> None:
    """The jobs known by then are aborted, but none before it is known which jobs teardowns kept."""
    now = [1000.0]
    monkeypatch.setattr(notifications, "monotonic", lambda: now[0])
    monkeypatch.setattr(notifications, "_row", SimpleNamespace(began=0.0, ended=0.0))
    read = XCom.get_all

    def slow(**what: Any) -> Any:
        now[0] += seconds
        return read(**what)

    monkeypatch.setattr(XCom, "get_all", slow)
    with DAG("nightly", schedule=None) as dag:
        for number in range(4):
            S3CommitSetupOperator(task_id=f"setup{number}", destination=FLIGHTS)
            write_stage(store, reference := set_up(store))
            xcoms["nightly", "run", f"setup{number}"] = [reference]
        S3CommitAbortOperator(task_id="abort", job=reference)
    notifier(time_limit=35.0)({"dag": dag, "run_id": "run", "reason": "task_failure"})
    assert len(pending(store)) == left

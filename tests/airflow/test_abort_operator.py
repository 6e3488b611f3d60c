"""The fail-loud teardown's truth table: it succeeds if, and only if, the job committed."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import count

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, TaskGroup
from airflow.sdk.exceptions import AirflowFailException

from airflow_s3commit import Destination, Job, JobReference
from airflow_s3commit.exceptions import NoSuchKey, Unavailable
from airflow_s3commit.hooks import S3CommitHook
from airflow_s3commit.operators import S3CommitAbortOperator, S3CommitJobOperator
from airflow_s3commit.operators.base import FAILURE, NO_OUTPUT, failures_are_noted
from airflow_s3commit.protocol.inspect.jobs import latest_endings
from airflow_s3commit.store.forwarding import CountingStore
from airflow_s3commit.testing import FaultyStore
from tests.airflow.runs import commit, cut_commit_off, new_context, pending, set_up, visible, write_stage


def teardown(reference) -> S3CommitAbortOperator:
    """Return the teardown of a job."""
    return S3CommitAbortOperator(task_id="abort", job=reference, kill_window=0)


def opened(store, reference) -> Job:
    """Return the job of a reference."""
    return Job.at(store, JobReference.from_dict(reference))


def test_a_committed_job_is_left_alone(store, context) -> None:
    """A committed job has nothing to abort: the task succeeds and the data stays."""
    reference = commit(store)
    before = visible(store)
    assert teardown(reference).execute(context)["state"] == "committed"
    assert visible(store) == before


def test_a_finished_commit_takes_a_handful_of_requests(store, context, monkeypatch) -> None:
    """After a success the teardown reads the job's end and lists what may be left, and changes nothing."""
    reference = commit(store)
    counting = CountingStore(store)
    monkeypatch.setattr(S3CommitHook, "store", property(lambda self: counting))
    assert teardown(reference).execute(context)["state"] == "committed"
    asked = {"action_http_get_request": 3, "object_list_request": 2, "object_multipart_list": 1}
    assert counting.counters == asked


@pytest.mark.parametrize("record", [True, False])
def test_uploads_that_came_after_the_commit_are_aborted(store, context, record) -> None:
    """A task that outlived the commit leaves an upload, or a record in the staging; neither stays."""
    reference = commit(store)
    late = f"flights/dt=2013-01-01/part-00009-{reference['job_id']}.parquet"
    store.create_upload("lake", late, metadata={}, content_type="application/octet-stream")
    if record:
        _, _, staging = reference["staging"].removeprefix("s3://").partition("/")
        store.put("lake", f"{staging}stages/late/task", b"?")
    assert teardown(reference).execute(context)["state"] == "committed"
    assert pending(store) == []
    assert not [info.key for info in store.list_objects("lake", "flights/__magic_job-")]


@pytest.mark.parametrize("progress", ["set up", "written", "sealed", "published"])
def test_a_job_that_did_not_commit_is_aborted_and_the_run_fails(
    store, context, monkeypatch, progress
) -> None:
    """At every stage before the commit nothing is pending or visible, and the task fails without retries."""
    reference = set_up(store)
    if progress != "set up":
        write_stage(store, reference, seal=progress != "written")
    if progress in {"sealed", "published"}:
        opened(store, reference).seal()
    if progress == "published":
        cut_commit_off(store, opened(store, reference), monkeypatch, before="log/")
        assert len(visible(store)) == 1
    with pytest.raises(AirflowFailException, match=r"^No commit ran\. Job .* none of its output is visible"):
        teardown(reference).execute(context)
    assert (pending(store), visible(store)) == ([], [])
    assert context["ti"].pushed["abort_report"]["uploads"] == (progress != "set up")


def test_a_job_that_was_already_aborted_still_fails_the_run(store, context) -> None:
    """The notifier may have been first, but the run still did not commit."""
    reference = set_up(store)
    write_stage(store, reference)
    opened(store, reference).abort()
    with pytest.raises(AirflowFailException, match="none of its output is visible"):
        teardown(reference).execute(context)


@pytest.mark.parametrize(("limits", "pauses"), [({}, 5), ({"kill_window": 0}, 0)])
def test_uploads_begun_between_the_looks_are_found(store, context, monkeypatch, limits, pauses) -> None:
    """A writer that lives on while it is being killed leaves nothing pending, and all its uploads count."""
    reference = set_up(store)
    write_stage(store, reference, seal=False)
    late, slept = f"flights/dt=2013-01-01/part-00009-{reference['job_id']}.parquet", []

    def writing(seconds: float) -> None:
        slept.append(seconds)
        store.create_upload("lake", late, metadata={}, content_type="application/octet-stream")

    monkeypatch.setattr("airflow_s3commit.operators.abort.sleep", writing)
    with pytest.raises(AirflowFailException):
        S3CommitAbortOperator(task_id="abort", job=reference, **limits).execute(context)
    assert pending(store) == []
    assert slept == [10.0] * pauses
    assert context["ti"].pushed["abort_report"]["uploads"] == 1 + pauses


def test_a_commit_cut_off_after_its_entry_is_finished(store, context, monkeypatch) -> None:
    """The job is in the log, so the teardown finishes the commit and succeeds."""
    reference = set_up(store)
    write_stage(store, reference)
    job = opened(store, reference)
    job.seal()
    cut_commit_off(store, job, monkeypatch)
    assert (job.state().state, job.state().finished) == ("committed", False)
    monkeypatch.setattr(Job, "has_leftovers", lambda _: False)
    assert teardown(reference).execute(context)["state"] == "committed"
    assert (len(visible(store)), job.state().finished) == (1, True)
    assert store.head("lake", "flights/_SUCCESS")


def test_another_jobs_uploads_stay(store, context) -> None:
    """Aborting one job touches no other."""
    reference, other = set_up(store), set_up(store)
    write_stage(store, reference)
    write_stage(store, other)
    with pytest.raises(AirflowFailException):
        teardown(reference).execute(context)
    assert [other["job_id"] in key for key in pending(store)] == [True]


def test_trouble_with_the_store_keeps_the_retries(store, context, monkeypatch) -> None:
    """An error that a retry may resolve is raised unchanged, not as a final failure."""
    reference = set_up(store)

    def unavailable(*_: object, **__: object) -> object:
        raise Unavailable("503 Slow Down")

    monkeypatch.setattr(store, "get", unavailable)
    with pytest.raises(Unavailable):
        teardown(reference).execute(context)


def test_a_teardown_without_its_setups_output_fails(store, context) -> None:
    """Without a reference it cannot say that nothing is pending, so it fails."""
    with pytest.raises(AirflowFailException, match="not a job reference"):
        teardown(None).execute(context)
    with pytest.raises(NoSuchKey):
        store.head("lake", "flights/_SUCCESS")
    with pytest.raises(AirflowFailException, match="InvalidDestination"):
        teardown({**set_up(store), "destination": "flights"}).execute(context)


def test_a_commit_that_ends_while_the_teardown_looks_counts(store, context, monkeypatch) -> None:
    """Only the log decides: a job that another process commits meanwhile is committed."""
    reference, look = sealed(store), Job.state

    def late(job: Job) -> object:
        found = look(job)
        job.commit()
        return found

    monkeypatch.setattr(Job, "state", late)
    assert teardown(reference).execute(context)["state"] == "committed"


def test_the_uploads_of_a_job_whose_records_were_deleted_are_aborted(store, context) -> None:
    """An application may delete the whole directory: the run fails, and nothing stays pending."""
    reference = set_up(store)
    write_stage(store, reference)
    for info in [*store.list_objects("lake", "flights/")]:
        store.delete("lake", info.key)
    with pytest.raises(AirflowFailException, match="was aborted with 1 pending uploads"):
        teardown(reference).execute(context)
    assert pending(store) == []


#: What a task notes that the store made fail.
BY_STORE = {"why": "Unavailable: 503 Slow Down", "by_store": True}


class Group:
    """The teardown of a job in its task group, with the given states of the other tasks."""

    def __init__(self, reference, context, **states: str) -> None:
        self.failures: dict[str, dict[str, object]] = {}
        with DAG("nightly", schedule=None), TaskGroup("refresh"):
            setup = EmptyOperator(task_id="setup").as_setup()
            self.teardown = S3CommitAbortOperator(task_id="abort", job=reference, kill_window=0)
            [setup, EmptyOperator(task_id="other")] >> self.teardown
        found = {f"refresh.{name}": state for name, state in states.items()}
        ti = context["ti"]
        ti.get_task_states = lambda **_: {ti.run_id: {"refresh.abort": "running", **found}}
        self.no_output: dict[str, str] = {}
        ti.xcom_pull = lambda *, task_ids, key: [
            self.failures.get(name)
            if key == FAILURE
            else self.no_output.get(name)
            if key == NO_OUTPUT
            else None
            for name in task_ids
        ]


NOTHING_TO_DO = {"setup": "success", "stage": "skipped", "commit": "skipped"}


@pytest.mark.parametrize("others", [{}, {"other": "success"}])
def test_a_run_with_nothing_to_do_succeeds(store, context, others) -> None:
    """Without data the job ends and the run succeeds, also beside a stage that wrote nothing."""
    reference = set_up(store)
    group = Group(reference, context, **NOTHING_TO_DO, **others)
    assert group.teardown.execute(context)["state"] == "skipped"
    ended = opened(store, reference).state()
    assert (ended.state, ended.reason) == ("aborted", "a task was skipped, or did not run")


def test_a_skipped_stage_does_not_silently_lose_another_s_output(store, context) -> None:
    """What another stage wrote is aborted, so the run fails and says how to commit it."""
    reference = set_up(store)
    write_stage(store, reference)
    group = Group(reference, context, **NOTHING_TO_DO, other="success")
    with pytest.raises(
        AirflowFailException, match=r'refresh.stage.*1 pending.*skipped_stages="ignore".*short circuit'
    ):
        group.teardown.execute(context)
    # A retry, or a teardown after an abort by hand, finds no upload any more.
    with pytest.raises(AirflowFailException, match=r"refresh\.other"):
        group.teardown.execute(context)


def test_an_abort_meanwhile_loses_no_output_without_a_word(store, context, monkeypatch) -> None:
    """An earlier try that was taken for dead may abort at any moment; the run fails all the same."""
    for before in count(1):
        reference = set_up(store)
        write_stage(store, reference)
        beside = FaultyStore(store)

        def abort(_, *, beside=beside, before=before, reference=reference) -> None:
            if len(beside.calls) == before:
                opened(store, reference).abort()

        beside.before = abort
        monkeypatch.setattr(S3CommitHook, "store", property(lambda self, beside=beside: beside))
        group = Group(reference, context, **NOTHING_TO_DO, other="success")
        with pytest.raises(AirflowFailException, match=r"refresh\.other"):
            group.teardown.execute(context)
        if len(beside.calls) < before:
            break
    assert before > 10
    assert pending(store) == []


def test_a_damaged_seal_beside_a_skip_fails_the_run(store, context) -> None:
    """Nothing tells that its stage wrote nothing; the job is aborted all the same."""
    reference = set_up(store)
    write_stage(store, reference)
    seal = opened(store, reference).stage_seal("spark_submit", "1")
    store.put("lake", seal.location.removeprefix("s3://lake/"), b"?")
    group = Group(reference, context, **NOTHING_TO_DO, other="success")
    with pytest.raises(AirflowFailException, match=r"refresh\.other"):
        group.teardown.execute(context)
    assert pending(store) == []


def test_output_of_an_earlier_try_alone_does_not_fail_a_run(store, context) -> None:
    """A stage that found nothing in its last try, or sealed no files then, loses no output."""
    for states, no_output in (
        (NOTHING_TO_DO, []),
        ({**NOTHING_TO_DO, "stage": "success", "resolve": "skipped"}, ["refresh.resolve"]),
    ):
        reference = set_up(store)
        write_stage(store, reference, attempt="1")
        group = Group(reference, context, **states)
        group.no_output = dict.fromkeys(no_output, reference["job_id"])
        assert group.teardown.execute(context)["state"] == "skipped"
        assert pending(store) == []


@pytest.mark.parametrize("state", ["failed", "upstream_failed", "running", "up_for_retry"])
def test_a_failure_beside_a_skip_fails_the_run(store, context, state) -> None:
    """A task that failed, or still runs, prevents the run from being called done."""
    group = Group(set_up(store), context, **NOTHING_TO_DO, other=state)
    with pytest.raises(AirflowFailException, match=r"was aborted"):
        group.teardown.execute(context)


def test_an_instance_that_a_mapping_no_longer_has_does_not_count(store, context) -> None:
    """A mapping that shrank before the run was cleared has an instance without an outcome."""
    group = Group(set_up(store), context, **NOTHING_TO_DO, other_1="removed")
    assert group.teardown.execute(context)["state"] == "skipped"
    reference = sealed(store)
    group = Group(reference, context, **FAILED_COMMIT, stage_1="removed", other="skipped")
    group.failures["refresh.commit"] = BY_STORE
    with pytest.raises(AirflowFailException, match="was kept"):
        group.teardown.execute(context)


FAILED_COMMIT = {"setup": "success", "stage": "success", "commit": "failed"}


def sealed(store) -> dict[str, str]:
    """Return a job that is sealed."""
    reference = set_up(store)
    write_stage(store, reference)
    opened(store, reference).seal()
    return reference


def test_a_job_that_the_store_prevented_from_committing_is_kept(store, context, monkeypatch) -> None:
    """Computed and sealed output outlives an outage of the store, and the failure names the next step."""
    reference = sealed(store)

    def unavailable(*_: object, **__: object) -> object:
        raise Unavailable("503 Slow Down")

    with monkeypatch.context() as away:
        away.setattr(Job, "commit", unavailable)
        with pytest.raises(Unavailable):
            S3CommitJobOperator(task_id="commit", job=reference).execute(context)
    group = Group(reference, context, **FAILED_COMMIT)
    group.failures["refresh.commit"] = context["ti"].pushed[FAILURE]
    with pytest.raises(
        AirflowFailException, match=r"refresh\.commit: clear that task.*s3commit commit s3://"
    ):
        group.teardown.execute(context)
    assert context["ti"].pushed["abort_report"] == {"job_id": reference["job_id"], "state": "kept"}
    opened(store, reference).commit()
    assert len(visible(store)) == 1


def test_a_kept_job_may_have_published_some_of_its_files(store, context, monkeypatch) -> None:
    """The store may fail in the middle of a commit, which the same command then finishes."""
    reference = sealed(store)
    cut_commit_off(store, opened(store, reference), monkeypatch, before="log/")
    group = Group(reference, context, **FAILED_COMMIT, other="upstream_failed")
    group.failures["refresh.commit"] = BY_STORE
    with pytest.raises(AirflowFailException, match=r"is sealed and was kept.*s3commit commit s3://"):
        group.teardown.execute(context)
    assert opened(store, reference).commit().counts.files == 1


@pytest.mark.parametrize(
    ("states", "store_failed"),
    [
        (FAILED_COMMIT, False),  # refused, killed, or marked failed
        ({**FAILED_COMMIT, "check": "failed"}, True),
        ({**FAILED_COMMIT, "check": "running"}, True),
    ],
)
def test_a_job_is_kept_for_no_other_failure(store, context, states, store_failed) -> None:
    """A refusal, a kill, or another failed task ends the job, whatever else the store did."""
    reference = sealed(store)
    group = Group(reference, context, **states)
    if store_failed:
        group.failures["refresh.commit"] = BY_STORE
    with pytest.raises(AirflowFailException, match="was aborted"):
        group.teardown.execute(context)
    assert pending(store) == []


@pytest.mark.parametrize("beside", ["running", "failed", "up_for_retry"])
def test_a_task_that_the_commit_does_not_wait_for_decides_nothing(store, context, beside) -> None:
    """A cluster's teardown, or a check after a stage, spoils neither an empty run nor a kept job."""
    for ended, said in (("skipped", None), ("failed", "was kept")):
        reference = sealed(store) if said else set_up(store)
        with DAG("nightly", schedule=None), TaskGroup("refresh"):
            create, delete = EmptyOperator(task_id="create"), EmptyOperator(task_id="delete")
            setup, stage = EmptyOperator(task_id="setup").as_setup(), EmptyOperator(task_id="stage")
            abort = S3CommitAbortOperator(task_id="abort", job=reference, kill_window=0)
            create.as_setup() >> stage >> delete.as_teardown()
            setup >> stage >> EmptyOperator(task_id="commit") >> abort
            stage >> EmptyOperator(task_id="check")
        states = {"setup": "success", "create": "success", "delete": beside, "check": beside}
        states |= {"stage": "success" if said else "skipped", "commit": ended}
        known = {f"refresh.{name}": state for name, state in states.items()}
        ti = context["ti"]
        ti.get_task_states = lambda *, task_ids, ti=ti, known=known, **_: {
            ti.run_id: {name: known[name] for name in task_ids if name in known}
        }
        ti.xcom_pull = lambda *, task_ids, key: [BY_STORE for _ in task_ids if key == FAILURE]
        with pytest.raises(AirflowFailException, match=said) if said else nullcontext():
            abort.execute(context)


def test_a_job_that_is_not_sealed_is_not_kept(store, context) -> None:
    """An open job cannot be continued, so it is aborted."""
    reference = set_up(store)
    write_stage(store, reference)
    group = Group(reference, context, setup="success", stage="success", resolve="failed")
    group.failures["refresh.resolve"] = BY_STORE
    with pytest.raises(AirflowFailException, match="was aborted with 1 pending uploads"):
        group.teardown.execute(context)


@pytest.mark.parametrize("before", ["success", "upstream_failed", "failed"])
def test_after_a_stage_was_cleared_alone_the_teardown_says_what_to_clear(store, context, before) -> None:
    """However the tasks after it have ended for an earlier job: the message and the end name the remedy."""
    reference = set_up(store)
    write_stage(store, reference)
    group = Group(reference, context, setup="success", stage="success", resolve="success", commit=before)
    group.failures["refresh.commit"] = {**BY_STORE, "job_id": "an earlier one"}
    with pytest.raises(AirflowFailException, match="clear all stages together with the tasks after them"):
        group.teardown.execute(context)
    (end,) = latest_endings(store, Destination.parse(reference["destination"]), 1)
    assert end.reason == "No commit ran: clear all stages together with the tasks after them"


def test_output_of_a_stage_that_was_cleared_alone_is_not_lost_without_a_word(store, context) -> None:
    """That the stages wrote nothing for an earlier job does not make the run succeed now."""
    reference = set_up(store)
    write_stage(store, reference)
    group = Group(reference, context, setup="success", stage="success", resolve="skipped", commit="skipped")
    group.no_output = {"refresh.resolve": "an earlier one"}
    with pytest.raises(AirflowFailException, match=r"refresh\.resolve, .* skipped.*cleared alone"):
        group.teardown.execute(context)


def test_after_only_failed_tasks_were_cleared_the_teardown_says_what_to_clear(store, context) -> None:
    """Airflow does not clear setup with them, so they ran for a job that had ended."""
    reference = set_up(store)
    group = Group(reference, context, setup="success", stage="failed", commit="upstream_failed")
    for try_number, said in ((1, r"flights/\.$"), (2, "clear setup too, with all that is downstream")):
        context["ti"].try_number = try_number
        with pytest.raises(AirflowFailException, match=rf"^refresh\.stage failed, see its log\. .*{said}"):
            group.teardown.execute(context)


def test_the_first_failure_is_named(store, context) -> None:
    """Message and end name the first that failed for this job, by tasks and then instances, and why."""
    reference = set_up(store)
    with DAG("nightly", schedule=None), TaskGroup("refresh"):
        setup = EmptyOperator(task_id="setup").as_setup()
        last, first = EmptyOperator(task_id="a_last"), EmptyOperator(task_id="b")
        abort = S3CommitAbortOperator(task_id="abort", job=reference, kill_window=0)
        setup >> first >> last >> abort
    failed = ("a_last", "a", "b_10", "b_3")
    states = {"refresh.setup": "success", **{f"refresh.{name}": "failed" for name in failed}}
    why = "the Spark application ended with ValueError"
    notes = {
        "refresh.a_last": [{"why": "NoSuchUpload: late", "by_store": False}],
        "refresh.b": [
            {"why": "of an instance that is not cleared", "by_store": False, "job_id": "an earlier one"},
            {"why": why, "by_store": False, "job_id": reference["job_id"]},
            {"why": "of the tenth", "by_store": False},
        ],
    }
    ti = context["ti"]
    ti.get_task_states = lambda **_: {ti.run_id: states}
    asked: list[str] = []
    ti.xcom_pull = lambda *, task_ids, key: asked.extend(task_ids) or notes.get(*task_ids, [None])
    with pytest.raises(AirflowFailException, match=rf"^refresh\.b_3 failed: {why}\. Job"):
        abort.execute(context)
    (end,) = latest_endings(store, Destination.parse(reference["destination"]), 1)
    assert end.reason == f"refresh.b_3 failed: {why}"
    assert sorted(asked) == ["refresh.a", "refresh.a_last", "refresh.b"]


def test_a_mapped_instance_is_named_with_its_own_reason(store, context) -> None:
    """Of two instances that failed, the first may have been killed before it could note why."""
    reference = set_up(store)
    killed, noted = new_context(map_index=0)["ti"], new_context(map_index=1)
    noted["ti"].task_id = "refresh.stage"
    with pytest.raises(RuntimeError), failures_are_noted(noted, reference):
        raise RuntimeError("the second's reason")
    for name in ("stage_0", "stage_1"):
        group = Group(reference, context, setup="success", **{name: "failed"})
        context["ti"].xcom_pull = lambda *, task_ids, key: [
            xcom for ti in (killed, noted["ti"]) if (xcom := ti.pushed.get(key))
        ]
        why = "RuntimeError: the second's reason" if name == "stage_1" else "see its log"
        with pytest.raises(AirflowFailException, match=rf"^refresh\.{name} failed\S? {why}"):
            group.teardown.execute(context)


def test_the_states_of_a_group_that_was_renamed_meanwhile_are_known(store, context) -> None:
    """Airflow finds a group only in the newest version of the DAG, so the teardown names its tasks."""
    group, asked = Group(set_up(store), context, setup="success", stage="failed"), {}
    states = context["ti"].get_task_states
    context["ti"].get_task_states = lambda **given: asked.update(given) or states()
    with pytest.raises(AirflowFailException, match=r"^refresh\.stage failed"):
        group.teardown.execute(context)
    assert "task_group_id" not in asked
    assert sorted(asked["task_ids"]) == ["refresh.abort", "refresh.other", "refresh.setup"]


def test_a_job_is_kept_whatever_an_instance_noted_of_an_earlier_one(store, context) -> None:
    """Only what tasks noted of this job says whether the store alone made it fail."""
    group = Group(sealed(store), context, **FAILED_COMMIT)
    notes = [{**BY_STORE, "job_id": "an earlier one"}, BY_STORE]
    context["ti"].xcom_pull = lambda *, task_ids, key: notes
    with pytest.raises(AirflowFailException, match="was kept"):
        group.teardown.execute(context)

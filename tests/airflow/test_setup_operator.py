"""Setting a job up."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from datetime import datetime, timedelta, timezone
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, BaseSensorOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_s3commit import Destination, Job, JobReference, MemoryStore, operators
from airflow_s3commit.exceptions import AccessDenied, InvalidOption, InvalidRecord, Unavailable
from airflow_s3commit.hooks import S3CommitHook
from airflow_s3commit.operators import (
    S3CommitJobOperator,
    S3CommitResolveConflictsOperator,
    S3CommitSetupOperator,
    setup,
)
from airflow_s3commit.protocol.inspect.jobs import open_jobs
from airflow_s3commit.protocol.metadata.registry import read_registry
from airflow_s3commit.task_group import s3_commit_task_group
from tests.airflow.runs import (
    FLIGHTS,
    at,
    commit,
    cut_commit_off,
    new_context,
    pending,
    visible,
    write_stage,
)


def operator(**arguments: Any) -> S3CommitSetupOperator:
    """Return a setup task."""
    return S3CommitSetupOperator(
        task_id="setup",
        **{"destination": FLIGHTS, "conflict_mode": "fail", "kill_window": 0, **arguments},
    )


def state(store, reference) -> str | None:
    """Return a job's state, from its record."""
    record = Job.at(store, JobReference.from_dict(reference)).state()
    return record.state if record is not None else None


@pytest.mark.parametrize("destination", [FLIGHTS, Destination.parse(FLIGHTS)])
def test_it_opens_a_job_and_returns_its_reference(store, context, destination) -> None:
    """The XCom is a reference of four strings, which pins the record, and the job is open on the store."""
    reference = operator(destination=destination).execute(context)
    assert sorted(reference) == ["destination", "job_id", "sha256", "staging"]
    stored = store.get("lake", f"flights/_s3commit/open/{reference['job_id']}/job.json")
    assert reference["sha256"] == sha256(stored.body).hexdigest()
    assert reference["destination"] == FLIGHTS
    assert state(store, reference) == "open"


def test_the_record_names_its_run(store, context) -> None:
    """The job's record has the run's facts, such as the partition key of a partitioned run."""
    group = SimpleNamespace(group_id="refresh")
    reference = operator().execute({**context, "task": SimpleNamespace(task_group=group)})
    facts = Job.at(store, JobReference.from_dict(reference)).record().context
    assert facts == {
        "dag_id": "nightly",
        "run_id": "scheduled__2013-01-02",
        "run_type": "scheduled",
        "task_id": "refresh.task",
        "task_group_id": "refresh",
        "map_index": "-1",
        "try_number": "1",
        "try_id": "00000001-0000-7000-8000-000000000000",
        "partition_key": "2013-01-01",
    }


@pytest.mark.parametrize(("rendered", "known"), [("True", True), ("False", False), (True, True)])
def test_a_flag_may_be_a_template(store, context, rendered, known) -> None:
    """A DAG that does not render native objects gives text, and other text is refused."""
    task = operator(partition_success="{{ params.it }}")
    task.options["partition_success"] = rendered
    reference = task.execute(context)
    assert Job.at(store, JobReference.from_dict(reference)).record().options.partition_success is known
    task.options["partition_success"] = "yes"
    with pytest.raises(AirflowFailException, match="partition_success='yes' is not True or False"):
        task.execute(context)


def test_a_run_without_partition_has_its_logical_date(store) -> None:
    """The record of a run that is not partitioned has the logical date instead."""
    reference = operator().execute(new_context(partition_key=None, logical_date=at(2013, 1, 1)))
    facts = Job.at(store, JobReference.from_dict(reference)).record().context
    assert facts["logical_date"] == "2013-01-01T00:00:00+00:00"
    assert "partition_key" not in facts


@pytest.mark.parametrize("number", [1, 9])
def test_each_try_has_a_job_of_its_own_and_aborts_the_former(store, number) -> None:
    """A later try opens a new job, and the former one's uploads are gone."""
    first = operator().execute(new_context(number))
    write_stage(store, first)
    assert len(pending(store)) == 1
    second = operator().execute(new_context(number + 1))
    assert second["job_id"] != first["job_id"]
    assert pending(store) == []
    ended = Job.at(store, JobReference.from_dict(first)).state()
    assert (ended.state, ended.reason) == ("aborted", "a later try of setup")
    assert state(store, second) == "open"


def test_tries_with_one_number_and_start_are_in_the_order_of_their_ids() -> None:
    """A run that ``dag.test()`` makes again counts its tries anew, and has the start of the deleted one."""
    first, second = ({"run_started": "2026", "try_number": "1", "try_id": each} for each in "ab")
    assert setup.place_in_order(first, "z") < setup.place_in_order(second, "a")


def test_a_job_that_committed_is_left_alone(store) -> None:
    """A cleared run does not touch what its first pass committed."""
    commit(store)
    before = visible(store)
    operator(conflict_mode="append").execute(new_context(2))
    assert visible(store) == before


def test_an_upload_that_a_cleared_stage_begins_while_it_dies_is_found(store, monkeypatch) -> None:
    """Airflow runs a cleared setup again while the cleared stage is still being killed."""
    first = operator().execute(new_context(1))
    write_stage(store, first, seal=False)
    key = f"flights/dt=2013-01-01/part-00009-{first['job_id']}.parquet"
    late = iter([key, key])  # two looks in a row find something, the third does not

    def write_on(_: float) -> None:
        for begun in itertools.islice(late, 1):
            store.create_upload("lake", begun, metadata={}, content_type="application/octet-stream")

    monkeypatch.setattr("airflow_s3commit.operators.abort.sleep", write_on)
    operator(kill_window=10).execute(new_context(2))
    assert (pending(store), [*late]) == ([], [])


def test_there_is_no_wait_after_a_teardown(store, monkeypatch) -> None:
    """A cleared run whose first pass ended in its teardown starts over at once."""
    first = operator().execute(new_context(1))
    Job.at(store, JobReference.from_dict(first)).abort()

    def waited(_: float) -> None:
        raise AssertionError("waited")

    monkeypatch.setattr("airflow_s3commit.operators.abort.sleep", waited)
    assert state(store, operator(kill_window=10).execute(new_context(2))) == "open"


def test_a_commit_cut_off_after_its_entry_is_finished(store, monkeypatch) -> None:
    """What an earlier try has entered in the log is finished, whatever the new job does."""
    first = operator().execute(new_context(1))
    write_stage(store, first)
    job = Job.at(store, JobReference.from_dict(first))
    job.seal()
    cut_commit_off(store, job, monkeypatch)
    operator(conflict_mode="replace").execute(new_context(2))
    assert (job.state().state, job.state().finished) == ("committed", True)


def test_airflow_knows_a_job_before_it_exists(store, context, monkeypatch) -> None:
    """A try that dies while it sets its job up has told Airflow whose job it is."""

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Job, "setup", die)
    with pytest.raises(KeyboardInterrupt):
        operator().execute(context)
    assert JobReference.from_dict(context["ti"].pushed[setup.JOB]).destination == FLIGHTS


def test_a_clear_finds_the_earlier_job_without_airflow_s_task_state(store) -> None:
    """All that a clear needs is on S3, because Airflow forgets its state of a task that has succeeded."""
    first = operator().execute(new_context(1))
    write_stage(store, first)
    cleared = new_context(2)
    del cleared["task_state_store"]
    second = operator().execute(cleared)
    assert (pending(store), state(store, first), state(store, second)) == ([], "aborted", "open")


def test_records_in_a_staging_of_their_own_are_found_too(store) -> None:
    """The earlier job is aborted wherever the records of the destination's jobs are."""
    first = operator(staging="s3://lake/private/").execute(new_context(1))
    other = operator(destination="s3://lake/x/", staging="s3://lake/private/").execute(new_context(1))
    operator(staging="s3://lake/private/").execute(new_context(2))
    assert (state(store, first), state(store, other)) == ("aborted", "open")


@pytest.mark.parametrize(
    "other",
    [
        {"map_index": 1},
        {"map_index": -1},
        {"run_id": "scheduled__2013-01-03"},
        {"dag_id": "weekly"},
        {"task_id": "other.setup"},
    ],
)
def test_another_task_run_or_map_index_is_left_alone(store, other) -> None:
    """Each task of each run, and each index of a mapped group, ends only its own earlier jobs."""
    first = operator().execute(new_context(1, map_index=0))
    context = new_context(2, map_index=0)
    vars(context["ti"]).update(other)
    context["run_id"] = context["ti"].run_id
    operator().execute(context)
    assert state(store, first) == "open"
    operator().execute(new_context(2, map_index=0))
    assert state(store, first) == "aborted"


def test_a_job_without_airflow_s_facts_is_left_alone(store) -> None:
    """A program's own job is nobody's earlier try, not even that of a setup without a run."""
    program = Job.setup(store, FLIGHTS)
    bare = {"ti": SimpleNamespace(xcom_push=lambda **_: None)}
    reference = operator().execute(bare)
    assert [state(store, program.reference.to_dict()), state(store, reference)] == ["open", "open"]


@pytest.mark.parametrize(("first", "meanwhile"), [(1, 2), (2, 1)])
def test_of_two_tries_at_the_same_time_the_later_one_wins(store, monkeypatch, first, meanwhile) -> None:
    """Whichever writes its record first, one job stays open: that of the try that Airflow waits for."""
    set_up_job, ended = Job.setup, []

    def attempt(number: int) -> None:
        try:
            operator().execute(new_context(number))
        except AirflowException as error:
            ended.append((number, "is of a later try" in str(error)))

    def set_up_beside(*arguments: Any, **options: Any) -> Job:
        monkeypatch.setattr(Job, "setup", set_up_job)
        job = set_up_job(*arguments, **options)
        attempt(meanwhile)
        return job

    monkeypatch.setattr(Job, "setup", set_up_beside)
    attempt(first)
    (left,) = open_jobs(store, Destination.parse(FLIGHTS))
    assert (left.context["try_number"], ended) == ("2", [(1, True)])


def test_a_setup_that_slept_ends_itself(store, monkeypatch) -> None:
    """Its record comes long after the later try has looked: it looks itself, and withdraws."""
    later = operator().execute(new_context(2))
    write_stage(store, later)
    slept = f"job {later['job_id']} of {FLIGHTS} is of a later try"
    with pytest.raises(AirflowException, match=slept):
        operator().execute(new_context(1))
    assert (len(pending(store)), state(store, later)) == (1, "open")
    assert [job.job_id for job in open_jobs(store, Destination.parse(FLIGHTS))] == [later["job_id"]]


def test_a_setup_that_cannot_end_itself_says_why_it_ends(store, monkeypatch) -> None:
    """Its own job stays open until a sweep, and the error is still that of the later try."""
    operator().execute(new_context(2))

    def unavailable(*_: object, **__: object) -> None:
        raise Unavailable("503 Slow Down")

    monkeypatch.setattr(Job, "abort", unavailable)
    with pytest.raises(AirflowException, match="is of a later try") as ended:
        operator().execute(new_context(1))
    (note,) = ended.value.__notes__
    assert "503 Slow Down" in note
    assert "it stays open, without uploads, until a sweep" in note


#: Before midnight in UTC.
IN_TOKYO = datetime(2013, 1, 1, 8, tzinfo=timezone(timedelta(hours=9)))


@pytest.mark.parametrize(
    ("first", "again"),
    [
        ({"run": at(2013, 1, 2), "try": 3, "id": "c"}, {"run": at(2013, 1, 3), "try": 1, "id": "b"}),
        ({"run": at(2013, 1, 2), "try": 1, "id": "a"}, {"run": at(2013, 1, 2), "try": 1, "id": "b"}),
        ({"run": IN_TOKYO, "try": 3, "id": "c"}, {"run": at(2013, 1, 1), "try": 1, "id": "b"}),
    ],
)
def test_a_run_that_was_made_again_is_later(store, first, again) -> None:
    """Tries of a run that was deleted, or tested by hand, count from one under the same id."""

    def of(facts: dict[str, Any]) -> dict[str, Any]:
        context = new_context(facts["try"], dag_run={"start_date": facts["run"]})
        context["ti"].id = facts["id"]
        return context

    abandoned = operator().execute(of(first))
    assert state(store, operator().execute(of(again))) == "open"
    assert state(store, abandoned) == "aborted"


def test_what_an_earlier_try_has_published_does_not_refuse_the_next(store, monkeypatch) -> None:
    """A commit that died half-way is taken back, and its files are not taken for the table's."""
    whole = {"committer": "directory", "conflict_mode": "fail"}
    first = operator(**whole).execute(new_context(1))
    write_stage(store, first)
    job = Job.at(store, JobReference.from_dict(first))
    job.seal()
    cut_commit_off(store, job, monkeypatch, before="log/")
    assert len(visible(store)) == 1
    second = operator(**whole).execute(new_context(2))
    assert (visible(store), state(store, second)) == ([], "open")
    commit(store)
    with pytest.raises(AirflowFailException, match="DestinationNotEmpty"):
        operator(**whole).execute(new_context(3))


def test_a_refused_abort_of_an_earlier_job_ends_the_new_one(store, monkeypatch) -> None:
    """The task fails, so nobody would end the job that it has just set up."""
    operator().execute(new_context(1))

    def refuse(*_: object, **__: object) -> None:
        raise InvalidRecord("damaged")

    monkeypatch.setattr("airflow_s3commit.operators.setup.abort_until_quiet", refuse)
    with pytest.raises(AirflowFailException, match="damaged"):
        operator().execute(new_context(2))
    (left,) = open_jobs(store, Destination.parse(FLIGHTS))
    assert left.context["try_number"] == "1"


def test_a_record_that_cannot_be_read_is_nobody_s(store, caplog) -> None:
    """It does not prevent a setup, and the log names it."""
    first = operator().execute(new_context(1))
    store.put("lake", f"flights/_s3commit/open/{first['job_id']}/job.json", b"{")
    assert state(store, operator().execute(new_context(2))) == "open"
    assert sum("unknown whose job this is" in line for line in caplog.messages) == 1


WRONG = [
    ({"conflict_mode": "overwrite"}, "conflict_mode='overwrite' is not 'fail' or 'append'"),
    ({"committer": "hourly"}, "committer"),
    ({"track_pending": "disk"}, "track_pending"),
    ({"pendingset_format": "hadoop-2"}, "pendingset_format"),
    ({"retain": "7d", "partition_success": True}, "exclude each other"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG)
def test_wrong_options_are_refused_when_the_dag_is_parsed(wrong, message) -> None:
    """A value that is no template is known then; the file does not become a DAG."""
    with pytest.raises(InvalidOption, match=message):
        operator(**wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"destination": "{{ 'https://lake/flights' }}"}, "not an S3 URI"),
        ({"conflict_mode": "{{ 'overwrite' }}"}, "conflict_mode"),
    ],
)
def test_wrong_arguments_fail_without_retry(store, context, wrong, message) -> None:
    """An error that a retry cannot resolve fails at once, with a message that says what is wrong."""
    setup = operator(**wrong)
    setup.render_template_fields(context)
    with pytest.raises(AirflowFailException, match=message):
        setup.execute(context)


def test_a_store_may_need_other_options(store, context) -> None:
    """The job's record has the task's tracking and Hadoop format."""
    asked = {
        "track_pending": "s3",
        "pendingset_format": "hadoop-3.3",
    }
    reference = operator(**asked).execute(context)
    options = Job.at(store, JobReference.from_dict(reference)).record().options
    assert {name: getattr(options, name) for name in asked} == asked


def test_a_store_without_conditions_fails_without_retry(monkeypatch, context) -> None:
    """No retry makes a store suitable, so the task fails at once."""
    store = MemoryStore(conditions=False)
    monkeypatch.setattr(S3CommitHook, "store", store)
    with pytest.raises(AirflowFailException, match="If-None-Match"):
        operator().execute(context)


def test_options_for_a_store_may_be_templates(store, context) -> None:
    """One DAG serves several stores: the tracking of uploads is rendered for each run."""
    setup = operator(track_pending="{{ params.track }}")
    setup.render_template_fields({**context, "params": {"track": "s3"}})
    reference = setup.execute(context)
    options = Job.at(store, JobReference.from_dict(reference)).record().options
    assert options.track_pending == "s3"


@pytest.mark.parametrize("staging", ["s3://lake/private/", Destination.parse("s3://lake/private/")])
def test_staging_may_be_elsewhere(store, context, staging) -> None:
    """The records go below the given staging prefix."""
    reference = operator(staging=staging).execute(context)
    assert reference["staging"].startswith("s3://lake/private/")
    assert context["ti"].pushed[setup.JOB] == {**reference, "sha256": ""}
    assert state(store, reference) == "open"


def test_nothing_is_asked_of_the_store_before_execute(monkeypatch) -> None:
    """Building the operator touches neither connection nor store."""

    def touched(self: object) -> None:
        raise AssertionError("touched")

    monkeypatch.setattr(S3CommitHook, "aws", property(touched))
    monkeypatch.setattr(S3CommitHook, "store", property(touched))
    operator()


KMS = {"sse": "aws:kms", "sse_kms_key_id": "alias/lake"}


def test_object_options_of_the_task_are_used(store, context) -> None:
    """Options may be templates, reach the job's record and its files, and have no unknown entry."""
    setup = operator(object_options={**KMS, "tags": {"run": "{{ run_id }}"}})
    setup.render_template_fields({**context, "run_id": "r-1"})
    reference = setup.execute(context)
    options = Job.at(store, JobReference.from_dict(reference)).record().options.object_options
    assert (options.sse, options.tags) == ("aws:kms", {"run": "r-1"})
    write_stage(store, reference)
    (upload,) = store._buckets["lake"].uploads.values()
    assert upload.headers["x-amz-server-side-encryption-aws-kms-key-id"] == "alias/lake"
    assert upload.headers["x-amz-tagging"] == "run=r-1"
    with pytest.raises(InvalidOption, match="no entry 'storageClass'"):
        operator(object_options={"storageClass": "GLACIER"})
    with pytest.raises(InvalidOption, match="sse='SSE-KMS' is not"):
        operator(object_options={"sse": "SSE-KMS"})


class Wait(BaseSensorOperator):
    """A sensor."""


class Run:
    """A run whose setup is cleared again and again, beside stages in the given states."""

    def __init__(self) -> None:
        self.tries = 0
        self.commit: str | None = None
        self.stages: dict[str, Any] = {"one": EmptyOperator, "two": EmptyOperator}

    def set_up(self, states: dict[str, str | None], **arguments: Any) -> dict[str, str]:
        """Execute setup in front of stages ``one`` and ``two`` in the given states, and of messages."""
        with DAG("nightly", schedule=None):
            setup = operator(**arguments)
            resolve = S3CommitResolveConflictsOperator(task_id="resolve", job=setup.output)
            commit_task = S3CommitJobOperator(task_id="commit", job=setup.output)
            for name, kind in self.stages.items():
                setup >> kind(task_id=name) >> [resolve, EmptyOperator(task_id=f"message_of_{name}")]
            resolve >> commit_task >> EmptyOperator(task_id="report")
        self.tries += 1
        context = new_context(self.tries)
        ti = context["ti"]

        def states_of(*, dag_id: str, task_ids: list[str], run_ids: list[str], **_: None) -> dict[str, Any]:
            stages = [name for name, kind in self.stages.items() if kind is EmptyOperator]
            assert (dag_id, run_ids) == (ti.dag_id, [ti.run_id])
            assert task_ids in (stages, ["commit"])
            known = {"commit": self.commit} if task_ids == ["commit"] else states
            return {ti.run_id: known}

        if self.tries > 1:
            ti.get_task_states = states_of
        return setup.execute(context)


DONE = {"one": "success", "two_0": "success", "two_1": "skipped"}


def sealed_in(run: Run, store: MemoryStore) -> dict[str, str]:
    """Return the run's first job, sealed with one file."""
    reference = run.set_up({"one": None, "two": None})
    write_stage(store, reference)
    Job.at(store, JobReference.from_dict(reference)).seal()
    return reference


def test_a_cleared_commit_continues_the_sealed_job(store) -> None:
    """Airflow clears setup with the commit, and the stages' output is not computed again."""
    run = Run()
    run.set_up({"one": None, "two": None})
    reference = sealed_in(run, store)
    assert run.set_up(DONE) == reference
    Job.at(store, JobReference.from_dict(reference)).commit()
    assert len(visible(store)) == 1


def test_a_sealed_job_that_is_committed_meanwhile_is_continued(store, monkeypatch) -> None:
    """Somebody may commit it by hand, between two looks of the cleared setup."""
    run, look = Run(), Job.state
    reference = sealed_in(run, store)

    def late(job: Job) -> object:
        found = look(job)
        Job.at(store, job.reference).commit()
        return found

    monkeypatch.setattr(Job, "state", late)
    assert run.set_up(DONE)["job_id"] == reference["job_id"]


@pytest.mark.parametrize(
    "states", [{"one": None, "two": "skipped"}, {"one": "failed"}, {"onefold": "success"}]
)
def test_cleared_stages_compute_again(store, states) -> None:
    """Data from before a fix is never committed after it: its job is aborted, and a new one begins."""
    run = Run()
    reference = sealed_in(run, store)
    again = run.set_up(states)
    assert again["job_id"] != reference["job_id"]
    assert (pending(store), state(store, again)) == ([], "open")


@pytest.mark.parametrize(
    "states",
    [
        {"one": None, "two": "success"},
        {"one": "success", "two_0": "success", "two_1": "queued"},
        {"one": "success", "two": "failed"},
        {"one": "success"},
        {"one": "running", "two": "None"},
        {"one": "deferred", "two": "success"},
    ],
)
def test_a_stage_that_was_not_cleared_with_the_others_is_refused(store, states) -> None:
    """A new job would be committed without what that stage wrote, or writes yet; the earlier is aborted."""
    run = Run()
    reference = sealed_in(run, store)
    with pytest.raises(AirflowFailException, match=r"ended before .* clear all stages"):
        run.set_up(states)
    assert (pending(store), state(store, reference)) == ([], "aborted")
    assert state(store, run.set_up({"one": None, "two": None})) == "open"


@pytest.mark.parametrize("commit", ["success", "skipped", "upstream_failed"])
def test_stages_are_not_cleared_without_the_commit(store, commit) -> None:
    """A commit that succeeded or was skipped stays so, and nobody would commit the new job in that run."""
    run = Run()
    reference = sealed_in(run, store)
    run.commit = commit
    silent = commit != "upstream_failed"
    with pytest.raises(AirflowFailException, match=r"commit ended before") if silent else nullcontext():
        run.set_up({"one": None, "two": None})
    assert state(store, reference) == "aborted"


@pytest.mark.parametrize(
    "sensor", [Wait, lambda task_id: Wait.partial(task_id=task_id).expand(poke_interval=[1, 2])]
)
def test_a_sensor_need_not_be_cleared(store, sensor) -> None:
    """It only waits, mapped or not, so a new job lacks nothing of it."""
    run = Run()
    sealed_in(run, store)
    run.stages["two"] = sensor
    assert state(store, run.set_up({"one": None})) == "open"


@pytest.mark.parametrize("step", ["Stages", "Audit", "ResolveConflicts", "Part", "Job", "Abort"])
def test_no_step_of_a_commit_is_a_stage(store, step) -> None:
    """A step that failed or waits does not make the stages before it compute again."""
    arguments = {"Audit": {"rules": {"min_rows": 1}}, "Part": {"part": 0, "parts": 1}}.get(step, {})
    with DAG("nightly", schedule=None):
        first = operator()
        of_job = {} if step == "Stages" else {"job": first.output}
        tested = getattr(operators, f"S3Commit{step}Operator")(task_id="step", **of_job, **arguments)
        end = S3CommitJobOperator(task_id="commit", job=first.output)
        first >> EmptyOperator(task_id="load") >> tested >> end
    assert asked_by(first)[0] == ["load"]


def asked_by(task: S3CommitSetupOperator) -> list[list[str]]:
    """Return the tasks whose states a cleared setup asks for: the stages, then the commit."""
    context, asked = new_context(2), []
    context["ti"].get_task_states = lambda *, task_ids, **_: asked.append(task_ids) or {}
    task.execute(context)
    return asked


@pytest.mark.parametrize("inner", [False, True])
def test_another_group_s_commit_is_no_step_of_this_job(store, inner) -> None:
    """A stage after it is a stage all the same, and the stages of a group further down are not this job's."""
    groups = [
        s3_commit_task_group(name, destination=f"s3://lake/{name}/", conflict_mode="append", kill_window=0)
        for name in ("one", "two")
    ]
    with DAG("nightly", schedule=None):
        with groups[0] as first:
            load = first.stage(EmptyOperator(task_id="load"))
            if inner:
                with groups[1] as second:
                    second.stage(EmptyOperator(task_id="load"))
                load >> second.setup
                second.commit >> first.stage(EmptyOperator(task_id="late"))
        if not inner:
            with groups[1] as second:
                load >> second.stage(EmptyOperator(task_id="load"))
    stages, _ = asked_by(first.setup)
    assert ("one.late" in stages, "one.load" in stages, "two.load" in stages) == (inner, True, False)


def test_a_cleared_setup_leaves_a_successful_run_its_job(store) -> None:
    """Clearing setup alone returns the committed job, so that the teardown finds it committed."""
    run = Run()
    reference = sealed_in(run, store)
    Job.at(store, JobReference.from_dict(reference)).commit()
    commit(store, run_id="another", try_number="9", partition="dt=2013-01-09")
    assert run.set_up(DONE) == {**reference, "sha256": ""}
    assert run.set_up({"one": None, "two": None}) != reference


def test_an_aborted_or_open_job_is_not_continued(store) -> None:
    """Only a sealed job has all output of its stages; a new one would have none, and is not set up."""
    run = Run()
    first = run.set_up({"one": None, "two": None})
    third = sealed_in(run, store)
    Job.at(store, JobReference.from_dict(third)).abort()
    for _ in range(2):
        with pytest.raises(AirflowFailException, match="one, two_0 ended before"):
            run.set_up(DONE)
    assert [state(store, job) for job in (first, third)] == ["aborted", "aborted"]
    assert not list(open_jobs(store, Destination.parse(FLIGHTS)))


def test_a_commit_that_many_have_followed_is_not_repeated(store, monkeypatch) -> None:
    """Setup does not find it, and says how to look first: in mode append, its rows would be there twice."""
    monkeypatch.setattr(setup, "_MOST_ENDINGS", 2)
    run = Run()
    reference = sealed_in(run, store)
    Job.at(store, JobReference.from_dict(reference)).commit()
    for number in (3, 4):
        assert run.set_up(DONE)["job_id"] == reference["job_id"]
        commit(store, run_id="later", partition=f"dt=2013-01-0{number}")
    with pytest.raises(AirflowFailException, match=r"If it has committed .* else clear all stages"):
        run.set_up(DONE)


def test_a_job_with_other_options_or_destination_is_not_continued(store) -> None:
    """After a change of the DAG nobody knows which options count: the job is kept, and the task says why."""
    run = Run()
    first = sealed_in(run, store)
    with pytest.raises(AirflowFailException, match="or has other options"):
        run.set_up(DONE, conflict_mode="append")
    with pytest.raises(AirflowFailException, match="ended before"):
        run.set_up(DONE, destination="s3://lake/other/")
    assert state(store, first) == "sealed"
    assert run.set_up(DONE) == first


def test_it_registers_the_destination(store, context, monkeypatch) -> None:
    """The object has the connection and the staging by which others find the jobs, or is soon given up."""
    monkeypatch.setattr(setup, "REGISTRY", "s3://lake/registry/")
    monkeypatch.setattr(setup, "REGISTRY_CONNECTION", "ops")
    made: list[Any] = []
    monkeypatch.setattr(
        setup, "S3CommitHook", lambda *conn, **how: made.append((*conn, how)) or S3CommitHook()
    )
    operator(aws_conn_id="lake", staging="s3://lake/records/").execute(context)
    assert made == [("ops", {"retry_deadline": 5.0, "timeout": 5.0})]
    (entry,) = read_registry(store, Destination.parse("s3://lake/registry/"))
    assert entry.record.destination == FLIGHTS
    assert (entry.record.aws_conn_id, entry.record.staging) == ("lake", "s3://lake/records/")


@pytest.mark.parametrize("registry", ["s3://no-such-bucket/registry/", "nonsense"])
def test_a_registry_that_fails_does_not_fail_the_job(store, context, monkeypatch, caplog, registry) -> None:
    """The job is open, and the log says once that its destination is not in the registry."""
    monkeypatch.setattr(setup, "REGISTRY", registry)
    reference = operator().execute(context)
    assert state(store, reference) == "open"
    assert sum("could not be entered in the registry" in line for line in caplog.messages) == 1


@pytest.mark.parametrize(("days", "warns"), [(1, True), (2, False), (7, False), (None, False)])
def test_a_rule_that_aborts_uploads_too_soon_is_warned_of(monkeypatch, capsys, days, warns) -> None:
    """A rule that a job may outlast is logged until a job has ended there; later setups ask no more."""
    store, home = MemoryStore(("lake",), stale_upload_days=days), Destination.parse(FLIGHTS)
    asked = []
    ask = store.stale_upload_days
    monkeypatch.setattr(store, "stale_upload_days", lambda *place: asked.append(place) or ask(*place))
    monkeypatch.setattr(S3CommitHook, "store", store)
    for _ in range(3):
        reference = operator().execute(new_context())
        Job.at(store, JobReference.from_dict(reference)).abort()
        assert asked == [(home.bucket, home.prefix)]
    assert capsys.readouterr().out.count("aborts incomplete uploads") == warns


def test_keys_that_may_not_read_the_rules_set_jobs_up(store, context, monkeypatch) -> None:
    """The warning is a service, and no reason to fail."""

    def denied(*_: object) -> None:
        raise AccessDenied("403 on GetBucketLifecycleConfiguration")

    monkeypatch.setattr(store, "stale_upload_days", denied)
    assert state(store, operator().execute(context)) == "open"

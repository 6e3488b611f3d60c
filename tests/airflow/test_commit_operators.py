"""Sealing, previewing and committing as tasks."""

from __future__ import annotations

import re
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset, AssetAlias
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_s3commit import Job, JobOptions, JobReference, Progress, links
from airflow_s3commit.hooks import StoreAddress
from airflow_s3commit.links import console_url, run_url
from airflow_s3commit.operators import (
    S3CommitJobOperator,
    S3CommitResolveConflictsOperator,
    S3CommitStagesOperator,
)
from airflow_s3commit.operators.base import NO_OUTPUT
from airflow_s3commit.protocol.steps.seal import seal_stage
from tests.airflow.runs import (
    DAY,
    FLIGHTS,
    commit,
    new_context,
    pending,
    rendered,
    set_up,
    visible,
    write_stage,
)
from tests.fakes import ManualClock


def resolve(reference, stages=None):
    """Return the resolve task of a job."""
    return S3CommitResolveConflictsOperator(task_id="resolve", job=reference, stages=stages)


def test_the_resolve_task_returns_where_the_seal_is(store, context) -> None:
    """The XCom has location, digest and counts, but no uploads."""
    reference = set_up(store)
    stage = write_stage(store, reference)
    sealed = resolve(reference, [stage]).execute(context)["seal"]
    assert sealed["location"].endswith("/sealed.json")
    key = sealed["location"].removeprefix("s3://lake/")
    assert sealed["sha256"] == sha256(store.get("lake", key).body).hexdigest()
    assert (sealed["files"], sealed["bytes"], sealed["rows"], sealed["partitions"]) == (1, 4, 1, 1)


def test_stages_of_other_engines_are_found(store, context) -> None:
    """If no stages are named, every sealed stage attempt of the job is taken."""
    reference = set_up(store)
    write_stage(store, reference, stage="emr")
    write_stage(store, reference, stage="glue", files={"dt=2013-01-02/part.parquet": b"more"})
    assert resolve(reference).execute(context)["seal"]["files"] == 2


def test_of_several_tries_of_another_engine_the_last_one_counts(store, context) -> None:
    """A try that sealed and was taken for failed stays invisible, and its uploads are aborted."""
    reference = set_up(store)
    for attempt in ("9", "10"):
        write_stage(store, reference, stage="emr", attempt=attempt, files={f"{DAY}/{attempt}.txt": b"x"})
    write_stage(store, reference, stage="glue", attempt="a")
    assert resolve(reference).execute(context)["seal"]["files"] == 2
    S3CommitJobOperator(task_id="commit", job=reference).execute(context)
    assert [key.rpartition("/")[2].partition("-")[0] for key in visible(store)] == ["10", "part"]
    assert pending(store) == []


@pytest.mark.parametrize("attempts", ["ab", "1b"])
def test_attempts_without_try_numbers_have_no_last_one(store, context, attempts) -> None:
    """Two sealed attempts with the user's own ids are refused, as nothing says which one counts."""
    reference = set_up(store)
    for attempt in attempts:
        write_stage(store, reference, stage="emr", attempt=attempt, files={f"{DAY}/{attempt}.txt": b"x"})
    with pytest.raises(AirflowFailException, match="several sealed attempts of stage emr"):
        resolve(reference).execute(context)


def with_states(context, **states: str) -> None:
    """Let a context's Airflow know the states of the run's task instances."""
    ti = context["ti"]
    ti.get_task_states = lambda **_: {ti.run_id: states}


def named(reference, context, *tries, **states: str) -> S3CommitResolveConflictsOperator:
    """Return the resolve task of a job whose mapped task ``emr`` notes its instances' stages and tries.

    All instances succeed, unless ``states`` says otherwise.
    """
    notes = [{"stage": stage, "try": number} for stage, number in tries]
    instances = [f"emr_{index}" for index in range(len(notes))]
    xcoms = [{**note, "instance": name} for note, name in zip(notes, instances, strict=True)]
    context["ti"].xcom_pull = lambda *, task_ids, key: (
        xcoms if (task_ids, key) == (["emr"], "stage_try") else []
    )
    with_states(context, **{**dict.fromkeys(instances, "success"), **states})
    return S3CommitResolveConflictsOperator(task_id="resolve", job=reference, named_stages=["emr"])


def test_a_stage_with_a_name_is_its_last_try_only(store, context) -> None:
    """An earlier try's output is refused if the last try succeeded, or was skipped, without any."""
    reference = set_up(store)
    write_stage(store, reference, stage="emr", attempt="1")
    for state in ("success", "skipped"):
        with pytest.raises(AirflowFailException, match=r"try 2 of stage emr was its last.* 1 does not"):
            named(reference, context, ("emr", 2), emr_0=state).execute(context)
    write_stage(
        store, reference, stage="emr", attempt="2", files={f"{DAY}/2.txt": b"x", f"{DAY}/3.txt": b"x"}
    )
    last = named(reference, context, ("emr", 2), ("check", 1))
    assert last.execute(context)["seal"]["files"] == 2
    beside = set_up(store)
    for attempt in ("2", "manual"):
        write_stage(store, beside, stage="emr", attempt=attempt)
    assert named(beside, context, ("emr", 2)).execute(context)["seal"]["files"] == 1


def test_a_stage_s_name_that_could_not_be_noted_is_refused(store, context) -> None:
    """Nothing says then whether the output of a stage that no task has noted is of the last try."""
    reference = set_up(store)
    write_stage(store, reference, stage="emr", attempt="1")
    with pytest.raises(AirflowFailException, match=r"emr_1 has not noted its stage's name.* stage emr may"):
        named(reference, context, ("other", 1), emr_1="success").execute(context)
    noted = named(reference, context, ("emr", 1), emr_1="success")
    assert noted.execute(context)["seal"]["files"] == 1


def test_in_a_mapped_group_a_note_is_that_of_the_item(store) -> None:
    """Airflow ends the names of a mapped group's tasks with the map index of the item."""
    reference, context = set_up(store), new_context(map_index=3)
    for stage in ("emr", "spark"):
        write_stage(store, reference, stage=stage, files={f"{stage}.txt": b"x"})
    note = {"stage": "emr", "try": 1, "instance": "emr_3"}
    resolving = named(reference, context, emr_3="success")
    context["ti"].xcom_pull = lambda **asked: [note] if asked["map_indexes"] == 3 else []
    assert resolving.execute(context)["seal"]["files"] == 2


def test_one_stage_of_two_tasks_is_refused(store, context) -> None:
    """The stage has the output of one of them: a retry uses what is sealed, or seals under another number."""
    reference = set_up(store)
    eu = write_stage(store, reference, stage="load", files={f"{DAY}/eu.txt": b"x"})
    write_stage(store, reference, stage="load", attempt="2", files={f"{DAY}/us.txt": b"x"})
    refused = pytest.raises(AirflowFailException, match=r"several tasks .* have written stage load")
    for attempt in ("1", "2"):
        with refused:
            resolve(reference, [[eu, {**eu, "stage_attempt": attempt}]]).execute(context)
        with refused:
            named(reference, context, ("load", 2), ("load", int(attempt))).execute(context)
    # Airflow keeps the note of a task that a branch has left out since.
    assert named(reference, context, ("load", 1), ("load", 2), emr_1="skipped").execute(context)


def test_a_mapped_stage_counts_with_all_its_instances(store, context) -> None:
    """The XCom of a mapped stage is a sequence, and each of its stage attempts counts."""
    reference = set_up(store)
    mapped = [
        write_stage(store, reference, stage=f"s-{n}", files={f"dt={n}/part.parquet": b"x"}) for n in range(3)
    ]
    assert resolve(reference, [mapped]).execute(context)["seal"]["files"] == 3


def test_no_stage_is_neither_every_stage_nor_an_empty_output(store, context) -> None:
    """If all were skipped, what an earlier try has sealed does not count; if none sealed, that is refused."""
    reference = set_up(store)
    with pytest.raises(AirflowFailException, match="has no sealed stage"):
        resolve(reference).execute(context)
    write_stage(store, reference)
    assert resolve(reference, []).execute(context)["seal"]["files"] == 0


def test_a_stage_without_output_is_refused_by_name(store, context) -> None:
    """A skipped stage's missing XCom is an error with the reason."""
    for xcom in (None, "text", {"stage": "emr"}):
        with pytest.raises(AirflowFailException, match=f"{xcom!r} has no stage attempt"):
            resolve(set_up(store), [xcom]).execute(context)


def test_from_stage_to_manifest(store, context) -> None:
    """Resolve and commit make the output visible, and the summary is small and true."""
    reference = set_up(store)
    stage = write_stage(store, reference)
    conflicts = resolve(reference, [stage]).execute(context)
    assert visible(store) == []
    committing = S3CommitJobOperator(task_id="commit", job=reference, conflicts=conflicts)
    summary = committing.execute(context)
    assert len(visible(store)) == 1
    assert pending(store) == []
    assert summary["job_id"] == reference["job_id"]
    assert summary["manifest"].endswith(f"_s3commit/jobs/{reference['job_id']}.json")
    assert (summary["files"], summary["rows"]) == (1, 1)
    (link,) = committing.operator_extra_links
    assert reference["job_id"] in link.get_link(committing, ti_key=None)
    committing.address = StoreAddress("http://127.0.0.1:8333")
    assert link.get_link(committing, ti_key=None) == ""


def test_a_second_commit_returns_the_same(store, context) -> None:
    """A commit that is run again returns the same summary and changes nothing."""
    reference = set_up(store)
    write_stage(store, reference)
    conflicts = resolve(reference).execute(context)
    first = S3CommitJobOperator(task_id="commit", job=reference, conflicts=conflicts).execute(context)
    before = visible(store)
    again = S3CommitJobOperator(task_id="commit", job=reference, conflicts=conflicts).execute(context)
    assert (again, visible(store)) == (first, before)


def test_resolving_a_committed_job_again_changes_nothing(store, context) -> None:
    """A cleared resolve task of a committed job succeeds, and the commit returns its summary again."""
    reference = set_up(store)
    stage = write_stage(store, reference)
    conflicts = resolve(reference, [stage]).execute(context)
    summary = S3CommitJobOperator(task_id="commit", job=reference, conflicts=conflicts).execute(context)
    conflicts = resolve(reference, [stage]).execute(context)
    again = S3CommitJobOperator(task_id="commit", job=reference, conflicts=conflicts).execute(context)
    assert again == summary


def test_resolve_refuses_existing_data(store, context) -> None:
    """In mode fail a touched partition with data fails the resolve task, before anything is visible."""
    commit(store)
    reference = set_up(store)
    write_stage(store, reference)
    before = visible(store)
    with pytest.raises(AirflowFailException, match="DestinationNotEmpty"):
        resolve(reference).execute(context)
    assert visible(store) == before


def test_resolve_says_what_would_be_replaced(store, context, capsys) -> None:
    """The XCom has the generation and counts, and the log names the partitions that would lose files."""
    commit(store)
    job = Job.setup(store, FLIGHTS, options=JobOptions(conflict_mode="replace"))
    reference = job.reference.to_dict()
    write_stage(store, reference, files={f"{DAY}/a.parquet": b"x", "dt=2013-01-02/a.parquet": b"x"})
    preview = resolve(reference).execute(context)["preview"]
    assert preview == {"generation": 2, "partitions": 1, "objects": 1, "bytes": 4}
    _, _, named = capsys.readouterr().out.partition("would lose files")
    assert DAY in named
    assert "dt=2013-01-02" not in named


def test_a_seal_other_than_the_expected_one_is_refused(store, context) -> None:
    """The commit refuses a seal whose digest is not the one that XCom carried, and output of another task."""
    reference = set_up(store)
    write_stage(store, reference)
    conflicts = resolve(reference).execute(context)
    conflicts["seal"]["sha256"] = "0" * 64
    sealed = {"seal": conflicts["seal"]}
    previews = ({**sealed, "preview": one} for one in ({}, {"generation": "next"}))
    for wrong in (conflicts, sealed, *previews, {}, "conflicts"):
        with pytest.raises(AirflowFailException, match=r"is not the seal|pass the output of"):
            rendered(S3CommitJobOperator, "commit", job=reference, conflicts=wrong).execute(context)
    assert visible(store) == []


def test_a_preview_of_an_earlier_job_says_what_to_clear(store, context) -> None:
    """The commit was cleared without the task that seals, and setup has made a new job."""
    earlier, reference = set_up(store), set_up(store)
    write_stage(store, earlier)
    write_stage(store, reference)
    conflicts = resolve(earlier).execute(context)
    told = f"job {reference['job_id']} on {FLIGHTS} was not sealed.*Clear all stages together with the tasks"
    with pytest.raises(AirflowFailException, match=told):
        S3CommitJobOperator(task_id="commit", job=reference, conflicts=conflicts).execute(context)
    assert visible(store) == []


def test_a_stage_s_seal_that_was_changed_is_refused(store, context) -> None:
    """The stage's XCom has the digest of its seal, by which the job is sealed."""
    reference = set_up(store)
    stage = {**write_stage(store, reference), "sha256": "0" * 64}
    with pytest.raises(AirflowFailException, match="InvalidRecord"):
        resolve(reference, [stage]).execute(context)


@pytest.fixture
def overtaken(store, context) -> dict:
    """A previewed replace of a day to which another job has appended since."""
    job = Job.setup(store, FLIGHTS, options=JobOptions(conflict_mode="replace"))
    reference = job.reference.to_dict()
    write_stage(store, reference)
    conflicts = resolve(reference).execute(context)
    appended = Job.setup(store, FLIGHTS, options=JobOptions(conflict_mode="append"))
    write_stage(store, appended.reference.to_dict(), files={f"{DAY}/more.parquet": b"more"})
    appended.seal()
    appended.commit()
    return {"job": reference, "conflicts": conflicts}


def test_a_pinned_preview_is_refused_when_its_partitions_have_changed(store, context, overtaken) -> None:
    """What was looked at in the resolve task is what the commit replaces, or nothing is."""
    before = visible(store)
    with pytest.raises(AirflowFailException, match="DestinationChanged"):
        S3CommitJobOperator(task_id="commit", **overtaken).execute(context)
    assert visible(store) == before


def test_without_a_pin_the_commit_replaces_what_is_there(store, context, overtaken) -> None:
    """It also takes what other jobs added since the resolve task."""
    summary = S3CommitJobOperator(task_id="commit", pin_preview=False, **overtaken).execute(context)
    (left,) = visible(store)
    assert summary["job_id"] in left


def test_it_can_be_mapped() -> None:
    """Airflow adds a mapped task's outlets to a list before the task runs."""
    with DAG("nightly", schedule=None):
        mapped = S3CommitJobOperator.partial(task_id="commit").expand(job=[{}, {}])
    assert mapped.outlets == []


def test_outlets_get_the_summary(store, context) -> None:
    """The asset's event names the manifest, files, rows and bytes, in total and by partition."""
    table = Asset("flights")
    context["outlet_events"] = OutletEventAccessors()
    reference = set_up(store)
    write_stage(store, reference)
    resolve(reference).execute(context)
    summary = S3CommitJobOperator(task_id="commit", job=reference, outlets=[table]).execute(context)
    counts = {DAY: {"files": 1, "bytes": 4, "rows": 1}}
    assert context["outlet_events"][table].extra == {**summary, "partition_counts": counts}
    assert context["outlet_events"][table].partition_keys == set()


def test_an_outlet_may_be_a_reference(store, context) -> None:
    """An asset that is named in another DAG gets the same summary; an alias has no event of its own."""
    table = Asset.ref(name="flights")
    context["outlet_events"] = events = {table: SimpleNamespace(extra={})}
    reference = set_up(store)
    write_stage(store, reference)
    resolve(reference).execute(context)
    committing = S3CommitJobOperator(task_id="commit", job=reference, outlets=[table, AssetAlias("some")])
    summary = committing.execute(context)
    assert events[table].extra == {**summary, "partition_counts": {DAY: {"files": 1, "bytes": 4, "rows": 1}}}


def test_partitions_have_their_own_events(store, context) -> None:
    """The partitions' asset gets one event for each partition with new files, the table's asset one."""
    table, days = Asset("flights"), Asset("flight_days")
    context["outlet_events"] = OutletEventAccessors()
    reference = set_up(store)
    write_stage(store, reference, files={f"dt=2013-01-0{day}/part.parquet": b"rows" for day in (1, 2)})
    resolve(reference).execute(context)
    committing = S3CommitJobOperator(task_id="commit", job=reference, outlets=[table], partition_asset=days)
    assert committing.outlets == [table, days]
    committing.execute(context)
    events = context["outlet_events"]
    assert events[days].partition_keys == {"dt=2013-01-01", "dt=2013-01-02"}
    whole = dict(events[table].extra)
    del whole["partition_counts"]
    assert events[days].extra == whole
    assert events[table].partition_keys == set()


def test_one_asset_is_not_both() -> None:
    """Events with a partition key start no ordinary DAGs, so table and partitions are two assets."""
    with pytest.raises(ValueError, match="a separate asset"):
        S3CommitJobOperator(
            task_id="commit", job={}, outlets=[Asset("flights")], partition_asset=Asset("flights")
        )


def test_a_killed_commit_stops_completing(store, context, monkeypatch) -> None:
    """After on_kill the next report of progress ends the commit before its entry in the log."""
    reference = set_up(store)
    write_stage(store, reference)
    resolve(reference).execute(context)
    task, complete = S3CommitJobOperator(task_id="commit", job=reference), store.complete_upload
    monkeypatch.setattr(store, "complete_upload", lambda *what: task.on_kill() or complete(*what))
    with pytest.raises(AirflowException, match="killed after 1 of 1 files"):
        task.execute(context)
    assert Job.at(store, JobReference.from_dict(reference)).state().state == "sealed"


def test_a_long_commit_logs_its_progress(store, monkeypatch, capsys) -> None:
    """Every few seconds, and not only at its end, the log says how far it is."""
    clock = ManualClock()
    monkeypatch.setattr("airflow_s3commit.protocol.metadata.pending_uploads.SystemClock", lambda: clock)
    task = S3CommitJobOperator(task_id="commit", job=set_up(store))
    for done in range(1, 9):
        task.report_progress(Progress(files_done=done, files_total=9, bytes_done=done, seconds=1.0))
        clock.advance(2)
    assert re.findall(r"Completed (\d) of 9", capsys.readouterr().out) == ["4", "7"]


def test_a_stage_of_another_job_is_refused(store, context) -> None:
    """If setup was cleared and a mapped stage's instance was not, its XCom names the former job."""
    reference = set_up(store)
    stage = {**write_stage(store, reference), "job_id": "the-former"}
    with pytest.raises(AirflowFailException, match=r"wrote for job the-former.*Clear it"):
        resolve(reference, [[stage]]).execute(context)


def test_a_former_instance_s_output_for_another_job_is_left_out(store, context) -> None:
    """Airflow keeps the XCom of an instance that is removed or skipped when the run is cleared."""
    reference = set_up(store)
    own = write_stage(store, reference)
    former = {**own, "stage": "more", "job_id": "the-former"}
    resolving = resolve(reference, [[own, former]])
    resolving.named_stages = ["load"]
    with_states(context, load_0="success", load_1="success")
    with pytest.raises(AirflowFailException, match=r"stage more wrote for job the-former"):
        resolving.execute(context)
    with_states(context, load_0="success", load_1="removed", load_2="skipped")
    assert resolving.execute(context)["seal"]["files"] == 1


def test_the_seal_is_linked(store, context, monkeypatch) -> None:
    """The link of a sealing task leads to its run's jobs: the seal itself is deleted with the job."""
    reference = set_up(store)
    write_stage(store, reference)
    task = resolve(reference)
    monkeypatch.setattr(links, "page_destinations", lambda: "s3://lake/flights/")
    (link,) = task.operator_extra_links
    key = SimpleNamespace(dag_id="nightly", run_id="r")
    assert link.get_link(task, ti_key=key) == ""
    task.execute(context)
    assert link.get_link(task, ti_key=key).endswith("/s3commit/run?dag_id=nightly&run_id=r")


def test_a_task_without_a_job_says_so(store, context) -> None:
    """A missing XCom of setup is an error that says where the reference comes from."""
    for job in (None, {"job_id": "j"}):
        with pytest.raises(AirflowFailException, match=f"job is {job}, not a job reference"):
            S3CommitJobOperator(task_id="commit", job=job).execute(context)


def test_a_job_that_is_gone_is_refused(store, context) -> None:
    """Committing an aborted job fails without retries."""
    reference = set_up(store)
    write_stage(store, reference)
    Job.at(store, JobReference.from_dict(reference)).abort()
    with pytest.raises(AirflowFailException):
        S3CommitJobOperator(task_id="commit", job=reference).execute(context)


@pytest.mark.parametrize(
    ("region", "host"),
    [
        (None, "console.aws.amazon.com"),
        ("eu-central-1", "console.aws.amazon.com"),
        ("cn-north-1", "console.amazonaws.cn"),
        ("us-gov-west-1", "console.amazonaws-us-gov.com"),
        ("eusc-de-east-1", "console.amazonaws-eusc.eu"),
    ],
)
def test_links_go_to_the_console_of_the_partition(region: str | None, host: str) -> None:
    """Each AWS partition has its own console, with the same pages."""
    query = f"region={region}&" if region else ""
    expected = f"https://{host}/s3/object/lake?{query}prefix=flights%2Fdt%3D1%2Fa.json"
    assert console_url("s3://lake/flights/dt=1/a.json", region) == expected


def test_the_region_of_a_link_is_that_of_the_connection_or_of_the_environment(monkeypatch) -> None:
    """boto3 takes the variable where the connection has no region; without a manifest there is no link."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "cn-north-1")
    uri, key = "s3://lake/a.json", SimpleNamespace(dag_id="nightly", run_id="r")

    def link(**found: Any) -> str:
        return links.ManifestLink().get_link(SimpleNamespace(**found), ti_key=key)

    there = StoreAddress(region="us-gov-west-1")
    assert link(manifest_uri=uri, address=there) == console_url(uri, "us-gov-west-1")
    assert link(manifest_uri=uri, address=StoreAddress()) == console_url(uri, "cn-north-1")
    assert link(manifest_uri=None, address=there) == link(manifest_uri=uri, address=None) == ""


def test_links_to_the_page_need_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the address of Airflow, with the run's ids escaped; without destinations there is no link."""
    key = SimpleNamespace(dag_id="nightly", run_id="manual__2013-01-01T00:00:00+00:00")
    assert run_url(key) == ""
    monkeypatch.setattr(links, "page_destinations", lambda: "s3://lake/flights/")
    monkeypatch.setattr(links, "api_base_url", lambda: "https://airflow.example.org/a/")
    run = "manual__2013-01-01T00%3A00%3A00%2B00%3A00"
    assert run_url(key) == f"https://airflow.example.org/a/s3commit/run?dag_id=nightly&run_id={run}"


def stages_left(context, xcoms, asked: dict[str, str] | None = None, **states: str) -> Any:
    """Return what the task behind the stages returns, with the given states of the stages."""
    with DAG("nightly", schedule=None):
        task = S3CommitStagesOperator(task_id="stages", stages=xcoms, **(asked or {}))
        for name in states:
            EmptyOperator(task_id=name) >> task
    ti = context["ti"]
    ti.get_task_states = lambda *, dag_id, task_ids, run_ids, map_index: {
        run_ids[0]: {name: states[name] for name in task_ids if dag_id == ti.dag_id}
    }
    return task.execute(context)


def test_stages_that_were_skipped_are_left_out(context) -> None:
    """A skipped stage has no XCom, and a mapped one whose instances were all skipped an empty list."""
    xcom = {"stage": "c", "stage_attempt": "1"}
    states = {"a": "skipped", "b": "skipped", "c": "success"}
    assert stages_left(context, [None, [], xcom], **states) == [xcom]
    assert stages_left(context, None, **states) is None


@pytest.mark.parametrize("xcoms", [None, [None, []]])
def test_nothing_but_skipped_stages_skips_the_commit(context, xcoms) -> None:
    """Airflow then skips the commit, and the teardown ends the job."""
    with pytest.raises(AirflowSkipException):
        stages_left(context, xcoms, a="skipped", b="skipped")


def test_skips_follow_the_option(context) -> None:
    """Skipped stages make an empty commit on request; some of them make none without ``ignore``."""
    asked = {"skipped_stages": "skip", "on_empty": "commit"}
    assert stages_left(context, None, asked, a="skipped", b="skipped") == []
    assert stages_left(context, None, asked, a="success", b="success") is None
    with pytest.raises(AirflowSkipException):
        stages_left(context, None, asked, a="skipped", b="success")


def without_files(store, reference, context, **asked: str) -> dict:
    """Return what the resolve task of a job whose stage wrote no files does."""
    write_stage(store, reference, files={})
    task = S3CommitResolveConflictsOperator(task_id="resolve", job=reference, **asked)
    return task.execute(context)


def test_a_commit_without_files_follows_the_option(store, context) -> None:
    """By a group's default there is no commit; ``commit`` makes an empty one."""
    reference = set_up(store)
    with pytest.raises(AirflowSkipException):
        without_files(store, reference, context, on_empty="skip")
    assert context["ti"].pushed == {NO_OUTPUT: reference["job_id"]}
    reference = set_up(store)
    without_files(store, reference, context, on_empty="commit")
    summary = S3CommitJobOperator(task_id="commit", job=reference).execute(context)
    assert (summary["files"], visible(store)) == (0, [])


def test_replacing_everything_by_nothing_needs_its_name(store, context) -> None:
    """A replace of a whole table by no files is refused or skipped, and made if its own name is given."""
    commit(store)
    before = visible(store)
    everything = JobOptions(committer="directory", conflict_mode="replace")
    for asked, refusal in (("commit", AirflowFailException), ("skip", AirflowSkipException)):
        reference = Job.setup(store, FLIGHTS, options=everything).reference.to_dict()
        with pytest.raises(refusal):
            without_files(store, reference, context, on_empty=asked)
        Job.at(store, JobReference.from_dict(reference)).abort()
    assert visible(store) == before
    reference = Job.setup(store, FLIGHTS, options=everything).reference.to_dict()
    without_files(store, reference, context, on_empty="remove")
    S3CommitJobOperator(task_id="commit", job=reference).execute(context)
    assert visible(store) == []


@pytest.mark.parametrize("word", [None, "{{ params.on_empty }}", "Remove", ""])
def test_an_unknown_word_never_removes_and_ignores_nothing(store, context, word) -> None:
    """A subclass may render these arguments, to anything: only the words themselves have their effects."""
    commit(store)
    options = JobOptions(committer="directory", conflict_mode="replace")
    reference = Job.setup(store, FLIGHTS, options=options).reference.to_dict()
    write_stage(store, reference, files={})
    task = S3CommitResolveConflictsOperator(task_id="resolve", job=reference)
    task.on_empty = word
    with pytest.raises(AirflowFailException, match="would remove 1 objects"):
        task.execute(context)

    class Rendering(S3CommitStagesOperator):
        template_fields = ("stages", "skipped_stages")

    with DAG("nightly", schedule=None):
        left = Rendering(task_id="stages", skipped_stages="{{ params.it }}")
        [EmptyOperator(task_id="a"), EmptyOperator(task_id="b")] >> left
    left.skipped_stages = word
    context["ti"].get_task_states = lambda *, run_ids, **_: {run_ids[0]: {"a": "skipped", "b": "success"}}
    with pytest.raises(AirflowSkipException):
        left.execute(context)


def test_a_save_mode_that_only_removes_is_not_skipped(store, context) -> None:
    """An overwrite by nothing says that it was not done, as success would be a silent loss."""
    commit(store)
    job = Job.setup(store, FLIGHTS, options=JobOptions(conflict_mode="as-written"))
    seal_stage(job._recorded(), "spark", "1", [], removes="everything")
    task = S3CommitResolveConflictsOperator(task_id="resolve", job=job.reference.to_dict(), on_empty="skip")
    with pytest.raises(AirflowFailException, match=r'would remove 1 objects.*on_empty="remove"'):
        task.execute(context)
    task.on_empty = "remove"
    assert task.execute(context)["preview"]["objects"] == 1

"""The sweep as a task."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_s3commit import Destination, Job, JobOptions, register_destination
from airflow_s3commit.exceptions import AccessDenied
from airflow_s3commit.metrics import count_retry
from airflow_s3commit.operators import S3CommitSweepOperator, tables
from airflow_s3commit.protocol import sweep_plan
from airflow_s3commit.protocol.metadata.registry import read_registry
from airflow_s3commit.protocol.sweep_plan import plan_sweep
from tests.airflow.runs import FLIGHTS, commit, pending, rendered, set_up, visible, write_stage

DAY = 86_400.0


@pytest.fixture
def dead(store) -> dict[str, str]:
    """A job that wrote, and was heard of last ten days ago."""
    now = [1_000_000.0]
    store._now = lambda: now[0]
    reference = set_up(store)
    write_stage(store, reference)
    now[0] += 10 * DAY
    return reference


def sweeper(**arguments: object) -> S3CommitSweepOperator:
    """Return the task."""
    return S3CommitSweepOperator(**{"task_id": "sweep", "destination": FLIGHTS, **arguments})


def denied(*_: object, **__: object) -> object:
    """Take the place of a removal."""
    raise AccessDenied("403 on AbortMultipartUpload")


def test_it_is_a_dry_run_by_default(store, context, dead) -> None:
    """What is dead is counted, and nothing is touched."""
    report = sweeper().execute(context)
    assert report["dry_run"]
    assert (report["found"]["jobs"], report["found"]["uploads"]) == (1, 1)
    assert report["swept"]["jobs"] == 0
    assert len(pending(store)) == 1


def test_it_removes_what_is_dead(store, context, dead) -> None:
    """With ``apply`` it ends dead jobs and their uploads, and a second sweep finds nothing."""
    report = sweeper(apply=True).execute(context)
    assert (report["swept"]["jobs"], report["swept"]["uploads"]) == (1, 1)
    assert pending(store) == []
    json.dumps(report)
    again = sweeper(apply=True).execute(context)
    assert (again["found"]["jobs"], again["swept"]["uploads"]) == (0, 0)


def test_what_is_alive_or_committed_stays(store, context) -> None:
    """A young job keeps its uploads, a committed one its files."""
    commit(store)
    write_stage(store, set_up(store))
    report = sweeper(apply=True, older_than=timedelta(days=1)).execute(context)
    assert (report["found"]["jobs"], report["found"]["uploads"]) == (0, 0)
    assert (len(visible(store)), len(pending(store))) == (1, 1)


@pytest.mark.parametrize("older_than", [timedelta(days=11), 11 * DAY, str(11 * DAY), "11d"])
def test_the_age_is_a_duration(store, context, dead, older_than) -> None:
    """A more recent job is alive, however the age is written."""
    report = sweeper(older_than=older_than).execute(context)
    assert report["older_than"] == 11 * DAY
    assert report["found"]["jobs"] == 0


@pytest.mark.parametrize(
    "arguments",
    [{"older_than": "a week"}, {"older_than": -1}, {"older_than": "nan"}, {"apply": "perhaps"}],
    ids=str,
)
def test_invalid_arguments_delete_nothing(store, context, dead, arguments) -> None:
    """An argument that cannot be read fails the task for good, before anything is done."""
    task = rendered(S3CommitSweepOperator, "sweep", **{"destination": FLIGHTS, "apply": True, **arguments})
    with pytest.raises(AirflowFailException, match=f"sweep: {next(iter(arguments))}: "):
        task.execute(context)
    assert len(pending(store)) == 1


@pytest.mark.parametrize(("written", "left"), [(True, 1), (False, 0)])
def test_its_arguments_are_templates(store, context, dead, written, left) -> None:
    """Params reach it as text, and mean what they say."""
    context["params"] = {"destination": FLIGHTS, "days": 7, "dry_run": written}
    task = sweeper(
        destination="{{ params.destination }}",
        older_than="{{ params.days * 86400 }}",
        apply="{{ not params.dry_run }}",
    )
    task.render_template_fields(context)
    task.execute(context)
    assert len(pending(store)) == left


def test_a_failure_leaves_room_for_a_retry(store, context, dead, monkeypatch) -> None:
    """What could not be removed fails the task after the rest, with the totals pushed."""
    monkeypatch.setattr("airflow_s3commit.protocol.sweep.carry_out", denied)
    with pytest.raises(AirflowException, match="403") as raised:
        sweeper(apply=True).execute(context)
    assert not isinstance(raised.value, AirflowFailException)
    assert context["ti"].pushed["sweep_report"]["swept"]["failures"] == 1


def test_the_log_is_a_table_of_what_was_found(store, context, dead, capsys) -> None:
    """Job, action, age, size and reason stand in the log."""
    sweeper().execute(context)
    logged = capsys.readouterr().out
    assert f"job {dead['job_id']}" in logged
    assert "silent" in logged


def test_a_staging_elsewhere_is_swept_too(store, context) -> None:
    """What outlived the record that names it is found by the argument alone."""
    job = Job.setup(store, FLIGHTS, options=JobOptions(staging="s3://lake/private/"))
    job.abort()
    left = f"private/__magic_job-{job.reference.job_id}/left"
    store.put("lake", left, b"")
    for staging, count in ((None, 1), ("s3://lake/private/", 0)):
        sweeper(apply=True, older_than=0, staging=staging).execute(context)
        assert len([*store.list_objects("lake", "private/")]) == count


def test_the_log_names_what_is_not_removed(store, context, dead, capsys, monkeypatch) -> None:
    """What is too young, what has changed since the plan, and what cannot be removed."""
    plan, young = sweep_plan.plan_sweep, set_up(store)
    write_stage(store, young)
    stray = store.create_upload("lake", "flights/stray", metadata={}, content_type="x")

    def overtaken(*what: Any, **how: Any) -> Any:
        planned = plan(*what, **how)
        store.abort_upload("lake", "flights/stray", stray)
        return planned

    now = store._now() + 2 * DAY
    store._now = lambda: now
    write_stage(store, young, attempt="2")
    monkeypatch.setattr(sweep_plan, "plan_sweep", overtaken)
    monkeypatch.setattr("airflow_s3commit.protocol.sweep.carry_out", denied)
    with pytest.raises(AirflowException, match="403"):
        sweeper(apply=True, older_than="1d").execute(context)
    logged = capsys.readouterr().out
    assert re.search(f"Left alone: .*{young['job_id']}", logged)
    assert re.search("Skipped: .*flights/stray.*it is gone", logged)
    assert re.search(f"Failed: .*{dead['job_id']}.*403", logged)


def test_a_lost_destination_is_refused(store, context) -> None:
    """An invalid destination is not retried."""
    with pytest.raises(AirflowFailException, match="InvalidDestination"):
        rendered(S3CommitSweepOperator, "sweep", destination="/flights").execute(context)


def test_its_probes_are_encrypted_as_asked(store, context, monkeypatch) -> None:
    """Asking the store its time takes an object, which a bucket may demand to be encrypted."""
    sent: list[Any] = []
    put = store.put
    monkeypatch.setattr(
        store, "put", lambda *args, **kwargs: sent.append(kwargs.get("headers")) or put(*args, **kwargs)
    )
    store.create_upload("lake", "flights/stray", metadata={}, content_type="x")
    asked = {"apply": True, "older_than": 0, "object_options": {"sse": "AES256"}}
    assert sweeper(**asked).execute(context)["swept"]["uploads"] == 1
    assert sent
    assert all(headers == {"x-amz-server-side-encryption": "AES256"} for headers in sent)


def test_a_pattern_sweeps_the_destinations_of_the_registry(store, context, dead, monkeypatch) -> None:
    """Each is swept by its own records, and left alone without any; a failure does not stop the others."""
    registry = Destination.parse("s3://lake/registry/")
    monkeypatch.setattr(tables, "REGISTRY", registry.uri)
    store.create_upload("lake", "foreign/part-0", metadata={}, content_type="text/plain")
    for destination in (FLIGHTS, "s3://lake/foreign/", "s3://lake/gone/", "s3://no-such-bucket/x/"):
        register_destination(store, registry, destination)

    def known() -> set[str]:
        return {entry.record.destination for entry in read_registry(store, registry)}

    before = known()
    report = sweeper(destination="s3://lake/*", older_than=0).execute(context)
    assert (report["found"]["jobs"], report["gone"], known()) == (1, 1, before)
    report = sweeper(destination="s3://lake/*", apply=True, older_than=0).execute(context)
    assert (report["destinations"], report["swept"]["jobs"], report["failures"]) == (1, 1, 0)
    assert [upload.key for upload in store.list_uploads("lake", "")] == ["foreign/part-0"]
    assert before - known() == {"s3://lake/gone/"}
    nothing = sweeper(destination="s3://lake/none-*", apply=True).execute(context)
    assert (nothing["destinations"], nothing["dry_run"]) == (0, False)
    with pytest.raises(AirflowException, match="s3://no-such-bucket/x/"):
        sweeper(destination="*", older_than=0).execute(context)


def test_each_registered_destination_is_swept_as_it_is_asked(store, context, dead, monkeypatch) -> None:
    """By its own connection, with the task's age and encryption; what cannot be removed is a failure."""
    monkeypatch.setattr(tables, "REGISTRY", "s3://lake/registry/")
    monkeypatch.setattr(tables, "REGISTRY_CONNECTION", "ops")
    register_destination(store, tables.REGISTRY, FLIGHTS, aws_conn_id="lake")
    made, sent, hook, put = [], [], tables.S3CommitHook, store.put
    monkeypatch.setattr(
        tables, "S3CommitHook", lambda conn, **how: made.append((conn, how)) or hook(conn, **how)
    )
    monkeypatch.setattr(
        store, "put", lambda *what, **how: sent.append(how.get("headers")) or put(*what, **how)
    )
    sweep = {"destination": "s3://lake/*", "apply": True, "object_options": {"sse": "AES256"}}
    assert sweeper(**sweep, older_than="11d").execute(context)["found"]["jobs"] == 0
    assert made == [("ops", {}), ("lake", {"on_retry": count_retry})]
    with monkeypatch.context() as kept:
        kept.setattr("airflow_s3commit.protocol.sweep.carry_out", denied)
        with pytest.raises(AirflowException, match=f"{FLIGHTS}: 1 removals failed"):
            sweeper(**sweep, older_than="7d").execute(context)
    told = context["ti"].pushed["sweep_report"]
    assert (told["failed"], told["swept"]["failures"]) == ([FLIGHTS], 1)
    assert sweeper(**sweep, older_than="7d").execute(context)["swept"]["jobs"] == 1
    assert {json.dumps(headers) for headers in sent} == {'{"x-amz-server-side-encryption": "AES256"}'}


def test_a_registered_destination_without_its_connection_is_a_failure(store, context, monkeypatch) -> None:
    """The others are swept; the task names the connection that cannot be used."""
    monkeypatch.setattr(tables, "REGISTRY", "s3://lake/registry/")
    register_destination(store, tables.REGISTRY, FLIGHTS, aws_conn_id="missing")
    hook = tables.S3CommitHook

    def missing(conn_id: str, **how: Any) -> Any:
        if conn_id == "missing":
            raise AccessDenied("the connection 'missing' does not exist")
        return hook(conn_id, **how)

    monkeypatch.setattr(tables, "S3CommitHook", missing)
    with pytest.raises(AirflowException, match="the connection 'missing' does not exist"):
        sweeper(destination="*").execute(context)


def test_jobs_are_listed_again_only_if_there_are_any(store, context, dead, monkeypatch) -> None:
    """A destination without jobs in progress, as most are, costs only its plan."""
    listed: list[str] = []
    listing = store.list_objects
    monkeypatch.setattr(
        store,
        "list_objects",
        lambda bucket, *how, **more: listed.append(bucket) or listing(bucket, *how, **more),
    )
    requests = []
    for destination in (FLIGHTS, "s3://lake/idle/"):
        for read in (
            lambda uri: plan_sweep(store, Destination.parse(uri), older_than=7 * DAY),
            lambda uri: sweeper(destination=uri).execute(context),
        ):
            listed.clear()
            read(destination)
            requests.append(len(listed))
    planned, swept, idle_planned, idle_swept = requests
    assert idle_swept == idle_planned
    assert swept > planned


def test_a_pattern_needs_a_registry(store, context) -> None:
    """Without one the task fails for good, and says which option it needs."""
    with pytest.raises(AirflowFailException, match=r"set \[s3commit\] registry"):
        sweeper(destination="s3://lake/*").execute(context)

"""What a user may see and end, by what the auth manager and Airflow's database say."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_s3commit import JobReference
from airflow_s3commit.plugin.auth import Access, Origin
from airflow_s3commit.protocol.inspect.jobs import JobSummary
from tests.plugin.scene import FLIGHTS, NIGHTLY, ORDERS
from tests.plugin.users import KnownRuns, PerDagAuthManager, user

pytestmark = pytest.mark.airflow

JOB = JobSummary(
    job_id="j",
    destination=FLIGHTS,
    staging=f"{FLIGHTS}__magic_job-j/",
    state="open",
    context={**NIGHTLY, "task_id": "setup"},
)
REFERENCE = JobReference(job_id="j", destination=FLIGHTS, staging=f"{FLIGHTS}__magic_job-j/")


def access(name: str, *known: JobReference) -> Access:
    """Return what a user may do, where the nightly run set up these jobs."""
    return Access(PerDagAuthManager(), user(name), KnownRuns({tuple(NIGHTLY.values()): list(known)}))  # type: ignore[dict-item]


@pytest.mark.parametrize(
    "context",
    [
        {},
        {"dag_id": "", "run_id": "r"},
        {"dag_id": "never_heard_of"},
        {"dag_id": "DAG:nightly_flights"},
        {"dag_id": "nightly_flights\x00"},
        {"dag_id": "s3commit:no-dag"},
        {"dag_id": ".."},
        {"dag_id": "\ud800"},
        {"dag_id": "d" * 251},
    ],
)
def test_a_job_of_no_dag_takes_a_right_to_all_dags(context: dict[str, str]) -> None:
    """A right to one DAG, to each by name, or to all but one is not a right to all of them."""
    seeing = {
        name
        for name in ("root", "auditor", "barred", "keeper", "collector", "owner", "viewer", "stranger")
        if access(name).may_read(context)
    }
    assert seeing == {"root", "auditor", "keeper"}
    homeless = JobSummary(job_id="j", destination=ORDERS, staging=JOB.staging, state="open", context=context)
    ending = {
        name
        for name in ("root", "auditor", "barred", "keeper", "collector", "owner", "stranger")
        if access(name, REFERENCE).why_not_end(homeless, ORDERS) is None
    }
    assert ending == {"root"}


def test_a_job_is_read_by_those_who_may_read_its_dag() -> None:
    """The auth manager is asked for the runs of this DAG by its id."""
    names = ("root", "auditor", "barred", "collector", "owner", "viewer", "stranger", "lister")
    assert [name for name in names if not access(name).may_read(NIGHTLY)] == ["stranger", "lister"]
    assert not access("barred").may_read({"dag_id": "payroll"})


def test_the_auth_manager_is_told_the_team_of_a_dag(monkeypatch: pytest.MonkeyPatch) -> None:
    """Managers decide by teams too."""
    asked = []

    def answer(*_: object, details: Any, **__: object) -> bool:
        asked.append((details.id, details.team_name))
        return True

    monkeypatch.setattr(KnownRuns, "teams_of", lambda _, dag_ids: dict.fromkeys(dag_ids, "blue"))
    monkeypatch.setattr(PerDagAuthManager, "is_authorized_dag", answer)
    assert access("owner").may_read(NIGHTLY)
    assert asked == [("nightly_flights", "blue")]


@pytest.mark.parametrize("others", [[{"dag_id": "payroll"}, {"dag_id": "weather"}, {}], []])
@pytest.mark.parametrize("name", ["auditor", "barred", "owner", "stranger", "lister"])
def test_asking_ahead_changes_no_answer(name: str, others: list[dict[str, str]]) -> None:
    """One refusal among many neither hides the others nor is hidden by them."""
    contexts = [{"dag_id": "nightly_flights"}, *others]
    ahead = access(name)
    may_read = ahead.readable(contexts)
    assert [may_read(context) for context in contexts] == [
        access(name).may_read(context) for context in contexts
    ]


def test_an_editor_ends_a_job_that_the_run_itself_knows() -> None:
    """A reader of its DAG does not, nor does an editor of another."""
    assert access("owner", REFERENCE).why_not_end(JOB, FLIGHTS) is None
    for name in ("viewer", "stranger", "auditor"):
        assert "edit the runs of the DAG nightly_flights" in str(
            access(name, REFERENCE).why_not_end(JOB, FLIGHTS)
        )


@pytest.mark.parametrize(
    "known",
    [
        None,
        JobReference(job_id="other", destination=FLIGHTS, staging=REFERENCE.staging),
        JobReference(job_id="j", destination=ORDERS, staging=REFERENCE.staging),
        JobReference(job_id="j", destination=FLIGHTS, staging="s3://elsewhere/__magic_job-j/"),
    ],
)
def test_a_record_alone_gives_no_right(known: JobReference | None) -> None:
    """If the run does not know this job at this place, only an editor of all DAGs may end it."""
    knows = [known] if known is not None else []
    for name in ("owner", "barred", "collector"):
        assert "Airflow has no record" in str(access(name, *knows).why_not_end(JOB, FLIGHTS))
    assert access("root", *knows).why_not_end(JOB, FLIGHTS) is None


def test_a_run_of_another_id_gives_no_right() -> None:
    """The run that knows the job is the one that the job's record names."""
    other = JobSummary(
        job_id="j",
        destination=FLIGHTS,
        staging=JOB.staging,
        state="open",
        context={**NIGHTLY, "run_id": "manual__other"},
    )
    assert access("owner", REFERENCE).why_not_end(other, FLIGHTS) is not None


@pytest.mark.parametrize(
    ("dag_id", "run_id", "url"),
    [
        ("flights", "m__T04:00+00:00", "dags/flights/runs/m__T04%3A00%2B00%3A00"),
        ("flights", "../../auth/logout", "dags/flights/runs/..%2F..%2Fauth%2Flogout"),
        ("flights", "..", None),
        ("flights", ".", None),
        ("..", "x", None),
        ("../../auth", "x", None),
        ("javascript:alert(1)", "x", None),
        ("//evil", "x", None),
        ("flights", "a\x00b", None),
        ("flights", "\ud800", None),
        ("flights", "", None),
    ],
)  # fmt: skip
def test_a_link_to_a_run_leads_to_a_run_and_nowhere_else(dag_id: str, run_id: str, url: str | None) -> None:
    """What a record names is a link only if it can be a run of a DAG."""
    origin = Origin.of({"dag_id": dag_id, "run_id": run_id})
    assert (origin.url if origin is not None else None) == url


def test_a_task_of_a_record_is_asked_for_by_its_instance() -> None:
    """A mapped setup task's instance is part of where the job comes from; nonsense is not."""
    context = {**NIGHTLY, "task_id": "refresh.setup", "map_index": "3"}
    assert Origin.of(context) == Origin(*NIGHTLY.values(), "refresh.setup", 3)  # type: ignore[arg-type]
    for strange in ("-1", "", "3.5", "9" * 400, "\u0663"):
        assert Origin.of({**context, "map_index": strange}) == Origin(*NIGHTLY.values(), "refresh.setup", -1)  # type: ignore[arg-type]
    assert Origin.of({**context, "task_id": "no task"}) == Origin(*NIGHTLY.values(), None, 3)  # type: ignore[arg-type]

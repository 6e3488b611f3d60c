"""Who sees and ends which jobs in an Airflow with FAB's auth manager, over HTTP, with a real store."""

from __future__ import annotations

import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from airflow_s3commit import Destination, Job, JobReference, S3Store
from airflow_s3commit.protocol.inspect.jobs import JobSummary, list_jobs
from tests.plugin.live import FAB, LiveAirflow
from tests.plugin.scene import FLIGHTS, ORDERS

if TYPE_CHECKING:
    from airflow_s3commit.testing import S3Server

pytestmark = [
    pytest.mark.all,
    pytest.mark.airflow,
    pytest.mark.seaweedfs,
    pytest.mark.xdist_group("airflow-page"),
]


@dataclass(frozen=True)
class Jobs:
    """Ids of the jobs that the page may show.

    Attributes:
        own: The one that the run of ``left_open`` set up.
        foreign: The one of ``left_open_too``.
        forged: One whose record says that the run of ``left_open`` set it up.
        homeless: One of no DAG.
    """

    own: str
    foreign: str
    forged: str
    homeless: str


@pytest.fixture(scope="module")
def store(seaweed: S3Server) -> S3Store:
    """The store behind the page."""
    return S3Store.connect(seaweed.config, transport="boto3")


@pytest.fixture(scope="module")
def airflow(
    seaweed: S3Server, store: S3Store, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveAirflow]:
    """An API server whose users are FAB's, and which knows the DAGs' destination by a registry."""
    dags, home = ("left_open", "left_open_too", "left_to_end"), tmp_path_factory.mktemp("fab")
    registry = "s3://lake/fab-registry/"
    with LiveAirflow(home, seaweed, *dags, auth_manager=FAB, registry=registry) as running:
        yield running


@pytest.fixture(scope="module")
def runs(airflow: LiveAirflow, store: S3Store) -> dict[str, JobSummary]:
    """The jobs that the runs left open, by the DAG."""
    return {
        job.context["dag_id"]: job
        for job in list_jobs(store, Destination.parse(FLIGHTS))
        if job.context.get("run_id") in airflow.runs.values() and job.context["dag_id"] in airflow.runs
    }


@pytest.fixture(scope="module")
def jobs(runs: dict[str, JobSummary], store: S3Store) -> Jobs:
    """The jobs of two runs, one that claims to be of the first run, and one of no DAG. No test ends them."""
    forged = Job.setup(store, FLIGHTS, context=runs["left_open"].context)
    homeless = Job.setup(store, ORDERS)
    return Jobs(
        own=runs["left_open"].job_id,
        foreign=runs["left_open_too"].job_id,
        forged=forged.reference.job_id,
        homeless=homeless.reference.job_id,
    )


def asked(airflow: LiveAirflow, user: str, path: str, *, post: bool = False, **query: str) -> tuple[int, str]:
    """Return the status and the text of a page, as a user sees it."""
    request = urllib.request.Request(
        f"{airflow.url}/s3commit/{path}?{urllib.parse.urlencode(query)}",
        b"" if post else None,
        {"Authorization": f"Bearer {airflow.token(user)}", "Sec-Fetch-Site": "same-origin"},
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def aborted(airflow: LiveAirflow, user: str, job_id: str) -> tuple[int, str]:
    """Send the form by which a user aborts a job; return the status and the text of the answer."""
    return asked(airflow, user, "end", post=True, at=FLIGHTS, job_id=job_id, offer="abort")


def state_of(store: S3Store, job_id: str) -> str | None:
    """Return a job's state; None if it was never set up."""
    reference = JobReference(job_id=job_id, destination=FLIGHTS, staging=f"{FLIGHTS}__magic_job-{job_id}/")
    state = Job.at(store, reference).state()
    return state.state if state is not None else None


@pytest.mark.parametrize(
    ("user", "shown"),
    [
        ("ann", {"own", "foreign", "forged", "homeless"}),
        ("otto", {"own", "foreign", "forged", "homeless"}),
        ("vera", {"own", "foreign", "forged", "homeless"}),
        ("one", {"own", "forged"}),
        ("two", {"foreign"}),
    ],
)
def test_a_right_to_one_dag_shows_that_dags_jobs(
    airflow: LiveAirflow, jobs: Jobs, user: str, shown: set[str]
) -> None:
    """Jobs of another DAG, or of none, are neither in the lists nor at their addresses."""
    for state in ("", "open"):
        status, page = asked(airflow, user, "", state=state)
        assert status == 200
        assert {name for name, job_id in vars(jobs).items() if job_id in page} == shown
    for name, job_id in vars(jobs).items():
        at = ORDERS if name == "homeless" else FLIGHTS
        assert asked(airflow, user, "job", at=at, job_id=job_id)[0] == (200 if name in shown else 404)


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("", {}),
        ("", {"state": "open"}),
        ("destination", {"at": FLIGHTS}),
        ("uploads", {"at": FLIGHTS}),
        ("job", {"at": FLIGHTS, "job_id": "own"}),
        ("run", {"dag_id": "left_open", "run_id": "own"}),
    ],
)
def test_the_public_sees_nothing(airflow: LiveAirflow, jobs: Jobs, path: str, query: dict[str, str]) -> None:
    """The role Public, which may read no DAG, gets neither a job nor the name of a destination."""
    real = {"job_id": jobs.own, "run_id": airflow.runs["left_open"]}
    query = {name: real[name] if value == "own" else value for name, value in query.items()}
    assert asked(airflow, "vera", path, **query)[0] == 200
    status, page = asked(airflow, "paul", path, **query)
    assert status == 403
    assert not any(name in page for name in (*vars(jobs).values(), FLIGHTS, ORDERS))


@pytest.mark.parametrize(
    ("user", "ends"),
    [
        ("ann", {"own", "foreign", "forged", "homeless"}),
        ("otto", {"own", "foreign", "forged", "homeless"}),
        ("vera", set()),
    ],
)
def test_a_role_of_fab_ends_jobs_if_it_may_edit_runs(
    airflow: LiveAirflow, jobs: Jobs, user: str, ends: set[str]
) -> None:
    """Admin and Op are offered each job's end, Viewer is not, and sees which right it takes."""
    for name, job_id in vars(jobs).items():
        at = {"at": ORDERS if name == "homeless" else FLIGHTS, "job_id": job_id}
        status, page = asked(airflow, user, "job", **at)
        assert status == 200
        assert ("Abort the job" in page) == (name in ends)
        assert ("requires permission to edit" in page) == (name not in ends)


def test_a_viewer_ends_no_job_with_the_form_of_another(
    airflow: LiveAirflow, jobs: Jobs, store: S3Store
) -> None:
    """What the page offers to an Op is refused to a Viewer, and to the public, who send the same form."""
    for user in ("vera", "paul"):
        assert aborted(airflow, user, jobs.foreign)[0] == 403
    assert state_of(store, jobs.foreign) == "open"


def test_a_record_that_names_a_run_gives_its_editor_no_right(
    airflow: LiveAirflow, jobs: Jobs, store: S3Store
) -> None:
    """The run has the job that its setup task created, and no other, and the page says so."""
    status, page = asked(airflow, "one", "job", at=FLIGHTS, job_id=jobs.forged)
    assert status == 200
    assert "Abort the job" not in page
    assert "Airflow has no record that it set up the job" in page
    assert aborted(airflow, "one", jobs.forged)[0] == 403
    assert "Abort the job" in asked(airflow, "ann", "job", at=FLIGHTS, job_id=jobs.forged)[1]
    assert state_of(store, jobs.forged) == "open"


def test_an_editor_of_the_dag_ends_the_job_of_its_run(
    airflow: LiveAirflow, runs: dict[str, JobSummary], store: S3Store
) -> None:
    """The job is known by the XCom of the run's own setup task."""
    job_id = runs["left_to_end"].job_id
    assert aborted(airflow, "two", job_id)[0] == 404
    status, page = aborted(airflow, "one", job_id)
    assert status == 200
    assert "Aborted" in page, page
    assert state_of(store, job_id) == "aborted"


def test_an_op_ends_a_job_that_airflow_does_not_know(airflow: LiveAirflow, store: S3Store) -> None:
    """The role Op may edit the runs of every DAG, which is what that takes."""
    job_id = Job.setup(store, FLIGHTS).reference.job_id
    status, page = aborted(airflow, "otto", job_id)
    assert status == 200
    assert "Aborted" in page, page
    assert state_of(store, job_id) == "aborted"

"""Who sees and ends which jobs in an Airflow with FAB's auth manager, over HTTP, with a real store."""

from __future__ import annotations

import html
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from airflow_s3commit import Destination, Job, JobReference, S3Store
from airflow_s3commit.protocol.inspect.jobs import list_jobs
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
    return S3Store.connect(seaweed.config, transport="boto3", threads=2)


@pytest.fixture(scope="module")
def airflow(
    seaweed: S3Server, store: S3Store, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveAirflow]:
    """An API server whose users are FAB's."""
    dags = ("left_open", "left_open_too")
    with LiveAirflow(tmp_path_factory.mktemp("fab"), seaweed, *dags, auth_manager=FAB) as running:
        yield running


@pytest.fixture(scope="module")
def jobs(airflow: LiveAirflow, store: S3Store) -> Jobs:
    """The jobs that the two runs left open, one that claims to be of the first run, and one of no DAG."""
    runs = {
        job.context["dag_id"]: job
        for job in list_jobs(store, Destination.parse(FLIGHTS))
        if job.context.get("run_id") in airflow.runs.values() and job.context["dag_id"] in airflow.runs
    }
    forged = Job.setup(store, FLIGHTS, context=runs["left_open"].context)
    homeless = Job.setup(store, ORDERS)
    return Jobs(
        own=runs["left_open"].job_id,
        foreign=runs["left_open_too"].job_id,
        forged=forged.reference.job_id,
        homeless=homeless.reference.job_id,
    )


def asked(
    airflow: LiveAirflow, user: str, path: str, form: dict[str, str] | None = None, **query: str
) -> tuple[int, str]:
    """Return the status and the text of a page, as a user sees it."""
    request = urllib.request.Request(
        f"{airflow.url}/s3commit/{path}?{urllib.parse.urlencode(query)}",
        urllib.parse.urlencode(form).encode() if form is not None else None,
        {"Authorization": f"Bearer {airflow.token(user)}", "Sec-Fetch-Site": "same-origin"},
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def state_of(store: S3Store, job_id: str) -> str | None:
    """Return a job's state; None if it ended."""
    reference = JobReference(job_id=job_id, destination=FLIGHTS, staging=f"{FLIGHTS}__magic_job-{job_id}/")
    state = Job.at(store, reference).state()
    return state.state if state is not None else None


@pytest.mark.parametrize(
    ("user", "shown"),
    [
        ("ann", {"own", "foreign", "forged", "homeless"}),
        ("one", {"own", "forged"}),
        ("two", {"foreign"}),
    ],
)
def test_a_right_to_one_dag_shows_that_dags_jobs(
    airflow: LiveAirflow, jobs: Jobs, user: str, shown: set[str]
) -> None:
    """And neither another DAG's, nor those of no DAG: not in the list, nor by their addresses."""
    status, page = asked(airflow, user, "")
    assert status == 200
    assert {name for name, job_id in vars(jobs).items() if job_id in page} == shown
    for name, job_id in vars(jobs).items():
        at = ORDERS if name == "homeless" else FLIGHTS
        assert asked(airflow, user, "job", at=at, job_id=job_id)[0] == (200 if name in shown else 404)


def test_a_record_that_names_a_run_gives_its_editor_no_right(
    airflow: LiveAirflow, jobs: Jobs, store: S3Store
) -> None:
    """The run has the job that its setup task created, and no other; the page says so."""
    status, page = asked(airflow, "one", "job", at=FLIGHTS, job_id=jobs.forged)
    assert status == 200
    assert "Abort the job" not in page
    assert "Airflow has no record that it set up the job" in page
    status, page = asked(airflow, "one", "end", at=FLIGHTS, job_id=jobs.forged, step="abort")
    assert status == 403
    assert asked(airflow, "ann", "end", at=FLIGHTS, job_id=jobs.forged, step="abort")[0] == 200
    assert state_of(store, jobs.forged) == "open"


def test_an_editor_of_the_dag_ends_the_job_of_its_run(
    airflow: LiveAirflow, jobs: Jobs, store: S3Store
) -> None:
    """The job is known by the XCom of the run's own setup task."""
    at = {"at": FLIGHTS, "job_id": jobs.own, "step": "abort"}
    assert asked(airflow, "two", "end", **at)[0] == 404
    status, page = asked(airflow, "one", "end", **at)
    assert status == 200
    form = {
        name: html.unescape(value)
        for name, value in re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page)
    }
    status, page = asked(airflow, "one", "end", form)
    assert status == 200
    assert "Aborted" in page
    assert state_of(store, jobs.own) is None

"""Who sees which pages, and who may end a job from them."""

from __future__ import annotations

import html
import json
import re
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pytest
from airflow.api_fastapi import app as airflow_app
from airflow.models.log import Log
from airflow.utils.db import initdb
from airflow.utils.session import create_session
from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from sqlalchemy import select

from airflow_s3commit import Counts, Job, JobReference, MemoryStore
from airflow_s3commit.exceptions import AccessDenied, Unavailable
from airflow_s3commit.plugin import app as page_app
from airflow_s3commit.plugin import auth as page_auth
from airflow_s3commit.plugin.app import create_app, render
from airflow_s3commit.plugin.service import DestinationService, read_places
from airflow_s3commit.plugin.views import DestinationView, Listed, search_fleet
from airflow_s3commit.protocol.inspect.jobs import JobSummary
from tests.plugin.scene import FLIGHTS, NIGHTLY, ORDERS, SECRET, Scene, begin, commit, seal, set_scene
from tests.plugin.users import KnownRuns, PerDagAuthManager, user

if TYPE_CHECKING:
    from airflow_s3commit import ObjectStore

pytestmark = [pytest.mark.airflow, pytest.mark.xdist_group("airflow-page")]

SAME_ORIGIN = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture(scope="module", autouse=True)
def manager() -> Iterator[PerDagAuthManager]:
    """Airflow with users who may do different things."""
    initdb()
    before = airflow_app._AuthManagerState.instance
    airflow_app._AuthManagerState.instance = PerDagAuthManager()
    yield airflow_app._AuthManagerState.instance
    airflow_app._AuthManagerState.instance = before


@pytest.fixture
def store() -> MemoryStore:
    """An empty lake."""
    return MemoryStore(buckets=("lake",))


@pytest.fixture
def runs() -> KnownRuns:
    """What Airflow knows of runs."""
    return KnownRuns()


@pytest.fixture
def scene(store: MemoryStore, runs: KnownRuns) -> Scene:
    """The lake with jobs in every state; Airflow knows those of the flights."""
    scene = set_scene(store)
    for job_id in (scene.committed, scene.sealed, scene.publishing, scene.open, scene.aborted):
        runs.tell(**NIGHTLY, reference=reference_of(job_id))
    return scene


@pytest.fixture
def client(store: MemoryStore, runs: KnownRuns) -> TestClient:
    """A browser without a session."""
    return browser(lambda _: store, runs=runs)


def browser(
    open_store: Any, text: str = f"{FLIGHTS} {ORDERS}", wait: float = 30.0, runs: KnownRuns | None = None
) -> TestClient:
    """Return a browser for an Airflow whose page watches some destinations."""

    def connect(aws_conn_id: str | None, _: float) -> ObjectStore:
        return open_store(aws_conn_id)

    service = DestinationService(lambda: read_places(text), connect, wait)
    airflow = FastAPI()
    airflow.mount("/s3commit", create_app(service, runs or KnownRuns()))
    return TestClient(airflow, base_url="http://airflow")


def reference_of(job_id: str, at: str = FLIGHTS) -> JobReference:
    """Return the reference of a job that has its records below its destination."""
    return JobReference(job_id=job_id, destination=at, staging=f"{at}__magic_job-{job_id}/")


def signed_in(client: TestClient, name: str) -> TestClient:
    """Sign a user in, as Airflow does: with a cookie."""
    client.cookies.set("_token", airflow_app.get_auth_manager().generate_jwt(user(name)))
    return client


def job_url(job_id: str, at: str = FLIGHTS) -> str:
    """Return the address of a job's page."""
    return f"/s3commit/job?at={at}&job_id={job_id}"


def end_url(job_id: str, offer: str, at: str = FLIGHTS) -> str:
    """Return the address that the form to end a job is sent to."""
    return f"/s3commit/end?at={at}&job_id={job_id}&offer={offer}"


def forms(page: str) -> list[str]:
    """Return the addresses that the forms on a page are sent to."""
    return [f"/s3commit/{html.unescape(one)}" for one in re.findall(r'method="post" action="([^"]*)"', page)]


def state_of(store: ObjectStore, job_id: str, at: str = FLIGHTS) -> str | None:
    """Return a job's state; None if it was never set up."""
    state = Job.at(store, reference_of(job_id, at)).state()
    return state.state if state is not None else None


#: One address of each page.
ADDRESSES = [
    "/s3commit/",
    f"/s3commit/destination?at={FLIGHTS}",
    f"/s3commit/uploads?at={FLIGHTS}",
    job_url("any"),
    "/s3commit/run?dag_id=nightly_flights&run_id=any",
]

every_page = pytest.mark.parametrize("path", ADDRESSES)


@every_page
def test_no_page_is_shown_without_signing_in(client: TestClient, path: str) -> None:
    """Every address answers 401 without a session, and 403 with one that Airflow did not sign."""
    assert client.get(path).status_code == 401
    client.cookies.set("_token", "forged")
    assert client.get(path).status_code == 403


@every_page
def test_a_user_without_a_dag_sees_no_page(client: TestClient, path: str) -> None:
    """Without a right to any DAG not even the destinations, some of other teams, are shown."""
    page = signed_in(client, "public").get(path)
    assert page.status_code == 403
    assert "You need permission to read a DAG." in page.text
    assert FLIGHTS not in page.text


def test_no_address_is_left_out() -> None:
    """The addresses that are tried for refusals are all that the page has."""
    known = {route.path for route in create_app().routes if isinstance(route, APIRoute)}
    assert {urlsplit(path).path.removeprefix("/s3commit") for path in ADDRESSES} | {"/end"} == known


@pytest.mark.parametrize(
    ("name", "status"), [(None, 401), ("public", 403), ("viewer", 403), ("stranger", 404)]
)
def test_who_may_not_end_a_job_ends_none(
    client: TestClient, store: MemoryStore, scene: Scene, name: str | None, status: int
) -> None:
    """Without a session, a right to any DAG, or the right to edit or to see this one; nothing changes."""
    if name is not None:
        signed_in(client, name)
    assert client.post(end_url(scene.open, "abort"), headers=SAME_ORIGIN).status_code == status
    assert state_of(store, scene.open) == "open"


def test_a_bearer_token_serves_as_well_as_the_cookie(client: TestClient, scene: Scene) -> None:
    """A page can be fetched as Airflow's API is."""
    token = airflow_app.get_auth_manager().generate_jwt(user("viewer"))
    page = client.get(job_url(scene.sealed), headers={"Authorization": f"Bearer {token}"})
    assert page.status_code == 200


def test_the_list_shows_the_jobs_of_readable_dags_alone(client: TestClient, scene: Scene) -> None:
    """A reader of one DAG sees its jobs, and neither another DAG's, nor those of no DAG, nor their sums."""
    page = signed_in(client, "viewer").get("/s3commit/").text
    for shown in (scene.open, scene.sealed, scene.publishing, scene.committed, scene.aborted):
        assert shown in page
    for hidden in (scene.secret, scene.homeless, "payroll"):
        assert hidden not in page
    assert re.search(r"Jobs in progress</dt><dd>3<", page)
    everything = signed_in(client, "auditor").get("/s3commit/").text
    for shown in (scene.secret, scene.homeless, scene.aborted, scene.open):
        assert shown in everything


@pytest.mark.parametrize(("name", "status"), [("viewer", 200), ("owner", 200), ("stranger", 404)])
def test_a_job_is_shown_to_readers_of_its_dag(
    client: TestClient, scene: Scene, name: str, status: int
) -> None:
    """For everyone else it does not exist."""
    page = signed_in(client, name).get(job_url(scene.sealed))
    assert page.status_code == status
    if status == 404:
        unknown = client.get(job_url("no-such-job"))
        assert unknown.status_code == 404
        assert unknown.text == page.text.replace(scene.sealed, "no-such-job")


def test_an_aborted_job_is_shown_to_readers_of_its_dag(client: TestClient, scene: Scene) -> None:
    """Nothing is left of it but its entry in the log, which names the DAG."""
    assert "teardown refresh.abort" in signed_in(client, "viewer").get(job_url(scene.aborted)).text
    assert signed_in(client, "stranger").get(job_url(scene.aborted)).status_code == 404


def test_a_page_of_a_job_shows_how_far_it_is(client: TestClient, scene: Scene) -> None:
    """A sealed job names the files that it would replace, a commit its progress, a manifest its receipt."""
    signed_in(client, "viewer")
    sealed = client.get(job_url(scene.sealed)).text
    assert f"s3commit commit {FLIGHTS} {scene.sealed} --endpoint-url memory:" in sealed
    assert "6 files, 61.5 KiB in 1 partition" in sealed
    assert len(re.findall(rf"part-0-0000\d-{scene.committed}.parquet</th>", sealed)) == 6
    publishing = client.get(job_url(scene.publishing)).text
    assert "sealed, publishing (3 of 6 files)" in publishing
    assert 'aria-label="50 percent completed"' in publishing
    committed = client.get(job_url(scene.committed)).text
    assert f"{FLIGHTS}_s3commit/jobs/{scene.committed}.json" in committed
    assert "Generation 4" in committed


def test_an_end_that_is_not_finished_is_finished_from_the_page(
    client: TestClient, store: MemoryStore, runs: KnownRuns
) -> None:
    """Of a committed job that still has records, the page offers the remaining steps."""
    job = seal(store, context=NIGHTLY, day=1)
    job_id = job.reference.job_id
    runs.tell(**NIGHTLY, reference=reference_of(job_id))
    kept = store.get("lake", f"flights/_s3commit/open/{job_id}/job.json").body
    job.commit()
    store.put("lake", f"flights/_s3commit/open/{job_id}/job.json", kept)
    signed_in(client, "owner")
    assert "committed, not finished" in client.get("/s3commit/").text
    assert "Finish the remaining steps" in client.get(job_url(job_id)).text
    done = client.post(end_url(job_id, "finish"), headers=SAME_ORIGIN)
    assert "Committed: 2 files" in done.text
    assert not list(store.list_objects("lake", "flights/_s3commit/open/"))


def test_a_job_without_a_dag_takes_the_right_to_all_of_them(
    client: TestClient, store: MemoryStore, scene: Scene
) -> None:
    """A job from outside Airflow, or whose abort names no DAG, is only shown to readers of all DAGs."""
    nameless = "7f3c1c0e-2b8e-4b0a-9d0c-0d6a2b9b7a11"
    Job.at(store, reference_of(nameless)).abort()
    for job_id, at in ((scene.homeless, ORDERS), (nameless, FLIGHTS)):
        assert signed_in(client, "owner").get(job_url(job_id, at)).status_code == 404
        assert signed_in(client, "auditor").get(job_url(job_id, at)).status_code == 200


def test_uploads_of_hidden_jobs_are_hidden(client: TestClient, scene: Scene) -> None:
    """A user without the right to a DAG sees neither keys nor sizes of its pending uploads."""
    assert "part-0" in signed_in(client, "auditor").get(f"/s3commit/uploads?at={ORDERS}").text
    page = signed_in(client, "viewer").get(f"/s3commit/uploads?at={ORDERS}").text
    assert "part-0" not in page
    assert "No pending uploads" in page


def test_a_viewer_reads_and_is_offered_nothing(client: TestClient, scene: Scene) -> None:
    """A user who may only read a DAG sees which right it takes to end its job."""
    page = signed_in(client, "viewer").get(job_url(scene.open)).text
    assert forms(page) == []
    assert "requires permission to edit the runs of the DAG nightly_flights" in page


def test_an_editor_aborts_a_job(client: TestClient, store: MemoryStore, scene: Scene) -> None:
    """The form does what it says, the record says who, and Airflow's audit log has it."""
    page = signed_in(client, "owner").get(job_url(scene.open))
    assert "This cannot be undone" in page.text
    assert state_of(store, scene.open) == "open"
    (form,) = forms(page.text)
    done = client.post(form, headers=SAME_ORIGIN)
    assert done.status_code == 200
    assert "Aborted: 6 uploads discarded" in done.text
    ended = Job.at(store, reference_of(scene.open)).state()
    assert ended is not None
    assert (ended.state, ended.finished) == ("aborted", True)
    assert "abort by owner" in ended.reason
    with create_session() as session:
        written = session.scalars(select(Log).where(Log.event == "s3commit.abort")).all()
        assert any((row.owner, row.dag_id) == ("owner", "nightly_flights") for row in written)
        assert any(scene.open in row.extra for row in written)


def test_a_job_whose_run_has_ended_with_another_one_is_only_aborted(
    client: TestClient, store: MemoryStore
) -> None:
    """The page names the job of the later try, and offers no commit of data that the run has replaced."""
    task = {**NIGHTLY, "task_id": "refresh.setup", "map_index": "-1"}
    left = seal(store, context={**task, "try_number": "2"}, day=1).reference.job_id
    commit(store, context={**task, "try_number": "1"}, day=1)
    commit(store, context={**task, "try_number": "3", "map_index": "4"}, day=1)
    page = signed_in(client, "root").get(job_url(left)).text
    assert ("ended with another" in page, "Commit the job" in page) == (False, True)
    winner = commit(store, context={**task, "try_number": "3"}, day=1).reference.job_id
    page = client.get(job_url(left)).text
    assert f"the run has ended with another job, {winner}, which is committed: abort this one" in page
    assert ("Commit the job" in page, "Abort the job" in page) == (False, True)
    assert f"s3commit abort {FLIGHTS} {left}" in page


@pytest.mark.parametrize(("offer", "says"), [("continue", "Committed: 6 files"), ("undo", "Aborted")])
def test_an_editor_settles_a_commit_that_was_cut_off(
    client: TestClient, scene: Scene, offer: str, says: str
) -> None:
    """A commit can be continued or undone."""
    signed_in(client, "owner")
    assert end_url(scene.publishing, offer) in map(unquote, forms(client.get(job_url(scene.publishing)).text))
    assert says in client.post(end_url(scene.publishing, offer), headers=SAME_ORIGIN).text


def test_a_form_sent_twice_says_what_became_of_the_job(client: TestClient, scene: Scene) -> None:
    """A step that no longer fits the job is refused and changes nothing."""
    signed_in(client, "root").post(end_url(scene.open, "abort"), headers=SAME_ORIGIN)
    again = client.post(end_url(scene.open, "abort"), headers=SAME_ORIGIN)
    assert again.status_code == 409
    assert "aborted now" in again.text


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://evil"},
        {"Origin": "null"},
        {},
    ],
)
def test_a_form_of_another_site_is_refused(
    client: TestClient, store: MemoryStore, scene: Scene, headers: dict[str, str]
) -> None:
    """The browser sends the session's cookie with it, and says where the form was."""
    signed_in(client, "owner")
    assert client.post(end_url(scene.open, "abort"), headers=headers).status_code == 403
    assert client.get(end_url(scene.open, "abort"), headers=SAME_ORIGIN).status_code == 405
    assert state_of(store, scene.open) == "open"


def test_a_browser_that_only_sends_its_origin_is_believed(client: TestClient, scene: Scene) -> None:
    """Over plain HTTP browsers send no Sec-Fetch-Site."""
    signed_in(client, "owner")
    done = client.post(end_url(scene.open, "abort"), headers={"Origin": "http://airflow"})
    assert done.status_code == 200


def test_only_configured_destinations_are_read(client: TestClient, scene: Scene) -> None:
    """The page cannot be sent to look elsewhere."""
    for path in ("destination?at=", "uploads?at=", "job?job_id=x&at="):
        assert signed_in(client, "root").get(f"/s3commit/{path}s3://lake/").status_code == 404


def test_names_are_escaped(client: TestClient, store: MemoryStore) -> None:
    """Text from records of others is escaped."""
    nasty = {"dag_id": "<script>alert(1)</script>", "run_id": '"><img src=x>', "note": "<b>"}
    job = begin(store, context=nasty, day=1)
    signed_in(client, "root")
    for path in ("/s3commit/", job_url(job.reference.job_id)):
        page = client.get(path)
        assert page.status_code == 200
        assert "<script>alert" not in page.text
        assert "<img" not in page.text
        assert "<b>" not in page.text


def test_pages_run_nothing_but_their_own_script(client: TestClient, scene: Scene) -> None:
    """The policy names the style and the script by their sums, and no other site may frame a page."""
    policy = signed_in(client, "root").get(job_url(scene.sealed)).headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'self'" in policy
    assert "unsafe" not in policy
    page = client.get(job_url(scene.sealed)).text
    assert not re.findall(r'<[^>]+\s(?:style|on\w+)="', page)


def test_without_destinations_the_page_says_what_to_configure(store: MemoryStore) -> None:
    """An empty configuration is no error."""
    page = signed_in(browser(lambda _: store, text=""), "root").get("/s3commit/")
    assert page.status_code == 200
    assert "No destinations are configured" in page.text


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('[{"destinatoin": 1}]', "destinatoin"),
        ("s3://lake/my flights/", "flights/"),
        ("s3://lake/*", "s3://lake/* is a pattern"),
    ],
)
def test_a_configuration_that_cannot_be_read_is_shown(store: MemoryStore, text: str, named: str) -> None:
    """The message says which option it is, and what is wrong with it."""
    page = signed_in(browser(lambda _: store, text=text), "root").get("/s3commit/")
    assert page.status_code == 500
    assert "[s3commit] destinations is no list of URIs" in page.text
    assert named in page.text


def test_a_store_without_credentials_is_a_message(scene: Scene, store: MemoryStore) -> None:
    """The other destinations are still shown."""

    def open_store(aws_conn_id: str | None) -> MemoryStore:
        if aws_conn_id == "broken":
            raise AccessDenied("the connection 'broken' has no credentials")
        return store

    text = json.dumps([FLIGHTS, {"destination": ORDERS, "aws_conn_id": "broken"}])
    client = signed_in(browser(open_store, text), "root")
    page = client.get("/s3commit/")
    assert page.status_code == 200
    assert scene.open in page.text
    assert "has no credentials" in page.text
    assert client.get(job_url(scene.secret, ORDERS)).status_code == 503


def test_a_store_that_does_not_answer_does_not_hang_the_page() -> None:
    """A page waits a limited time for all destinations together, and does not blame a store for its start."""
    release = threading.Event()

    def open_store(_: str | None) -> MemoryStore:
        release.wait(30)
        raise Unavailable("too late")

    try:
        page = signed_in(browser(open_store, wait=0.2), "root").get("/s3commit/")
    finally:
        release.set()
    assert page.status_code == 200
    assert page.text.count("it could not be read within 0.2 s") == 1
    assert "2 destinations could not be read" in page.text


def test_many_jobs_are_counted_and_the_first_shown() -> None:
    """No table shows more than its limit of jobs, and it says how many there are."""
    (home,) = read_places(FLIGHTS)
    jobs = [
        Listed(home, JobSummary(job_id=f"{number:036}", destination=FLIGHTS, staging="x", state="open"))
        for number in range(130)
    ]
    view = DestinationView(home, jobs)
    page = render("destination", view=view, fleet=search_fleet([view]))
    assert len(re.findall(r'title="[0-9a-f-]{36}"', page)) == 100
    assert "the first 100 of 130" in page


def test_jobs_that_were_not_read_are_said(
    client: TestClient, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A destination with more jobs than a page reads is named wherever numbers are shown, and no other is."""
    monkeypatch.setattr("airflow_s3commit.plugin.views.MOST_JOBS", 2)
    begin(store, context=NIGHTLY, day=1)
    for count in (2, 3):
        begin(store, context=NIGHTLY, day=2)
        for path in ("/s3commit/", f"/s3commit/destination?at={FLIGHTS}"):
            page = signed_in(client, "viewer").get(path).text
            assert (f"Not all jobs in progress of {FLIGHTS} were read" in page) == (count == 3)


def test_generations_are_shown_with_what_led_to_them(client: TestClient, store: MemoryStore) -> None:
    """Newest first, with job, day, what was added and replaced, and jobs that were aborted between them."""
    ids = [commit(store, context=NIGHTLY, day=day).reference.job_id for day in (1, 2)]
    aborted = begin(store, context=NIGHTLY, day=3)
    aborted.abort(reason="not needed")
    ids += [aborted.reference.job_id, commit(store, context=NIGHTLY, day=1, mode="replace").reference.job_id]
    page = signed_in(client, "viewer").get(f"/s3commit/destination?at={FLIGHTS}").text
    assert re.findall(r'title="([0-9a-f-]{36})"', page) == ids[::-1]
    newest = page[page.index(ids[-1]) : page.index(ids[-2])]
    cells = [re.sub("<[^>]*>", "", cell).strip() for cell in re.findall("<td[^>]*>(.*?)</td>", newest, re.S)]
    assert (cells[0], cells[2]) == ("committed", "5")
    assert cells[4:] == ["replace", "dt=2013-01-01", "2", "3,000", "8.8 KiB", "2"]


def test_generations_of_hidden_jobs_are_hidden(client: TestClient, store: MemoryStore) -> None:
    """They are not shown to users who may not read their DAG."""
    secret = commit(store, context=SECRET, day=1).reference.job_id
    shown = commit(store, context=NIGHTLY, day=2).reference.job_id
    page = signed_in(client, "viewer").get(f"/s3commit/destination?at={FLIGHTS}").text
    assert (shown in page, secret in page, "payroll" in page) == (True, False, False)
    assert secret in signed_in(client, "auditor").get(f"/s3commit/destination?at={FLIGHTS}").text


def test_a_log_that_cannot_be_read_is_a_message(client: TestClient, store: MemoryStore) -> None:
    """Jobs in progress are shown beside it, and by themselves, whoever may see them."""
    commit(store, context=NIGHTLY, day=1)
    left = seal(store, context=NIGHTLY, day=2).reference.job_id
    store.put("lake", f"flights/_s3commit/log/{2:020d}.json", b"{")
    for name in ("viewer", "auditor"):
        page = signed_in(client, name).get(job_url(left))
        assert (page.status_code, f"{2:020d}.json" in page.text) == (200, True)
    page = client.get(f"/s3commit/destination?at={FLIGHTS}")
    assert (page.status_code, "The log is damaged" in page.text) == (200, True)
    assert "No job has ended" not in page.text
    assert f"{2:020d}.json" in page.text


def test_a_run_shows_the_jobs_that_its_tasks_recorded(client: TestClient, scene: Scene) -> None:
    """By their XComs, with nothing to click; whoever may not read the DAG sees none."""
    run = f"/s3commit/run?dag_id=nightly_flights&run_id={NIGHTLY['run_id'].replace('+', '%2B')}"
    page = signed_in(client, "viewer").get(run).text
    for shown in (scene.committed, scene.sealed, scene.publishing, scene.open, scene.aborted):
        assert shown in page
    assert scene.secret not in page
    assert "<form" not in page
    assert signed_in(client, "stranger").get(run).status_code == 403


def test_a_run_names_the_jobs_that_it_cannot_show(client: TestClient, runs: KnownRuns) -> None:
    """One that is gone, and one at a destination that the page does not know."""
    runs.tell(**NIGHTLY, reference=reference_of("gone"))
    runs.tell(**NIGHTLY, reference=reference_of("away", "s3://elsewhere/x/"))
    run = f"/s3commit/run?dag_id=nightly_flights&run_id={NIGHTLY['run_id'].replace('+', '%2B')}"
    page = signed_in(client, "viewer").get(run).text
    assert f"Job gone on {FLIGHTS}: NoSuchJob" in page
    assert "Job away on s3://elsewhere/x/: " in page
    assert "is neither in [s3commit] destinations nor in a registry" in page


def test_a_run_with_many_jobs_says_how_many_are_left_out(client: TestClient, runs: KnownRuns) -> None:
    """The tab shows a few, and the others can be searched for."""
    for number in range(10):
        runs.tell(**NIGHTLY, reference=reference_of(f"job-{number}"))
    run = f"/s3commit/run?dag_id=nightly_flights&run_id={NIGHTLY['run_id'].replace('+', '%2B')}"
    assert "2 more jobs of this run" in signed_in(client, "viewer").get(run).text


def test_only_references_to_jobs_are_taken_from_xcoms() -> None:
    """As Airflow's database has them, or as JSON; other values are no references."""
    reference = {"job_id": "j", "destination": FLIGHTS, "staging": FLIGHTS + "x/"}
    assert page_auth.reference_in(reference) == JobReference(**reference)
    assert page_auth.reference_in(json.dumps({**reference, "sha256": "1"})) == JobReference(**reference)
    for other in (None, 3, "text", "[" * 100_000, [1], {"job_id": "x"}, {**reference, "job_id": 7}):
        assert page_auth.reference_in(other) is None


def test_a_staging_of_its_own_is_found(store: MemoryStore) -> None:
    """Jobs are shown wherever on the destination they keep their records."""
    below = begin(store, context=NIGHTLY, day=1).reference.job_id
    text = json.dumps([{"destination": FLIGHTS, "staging": "s3://lake/records/"}])
    client = signed_in(browser(lambda _: store, text), "root")
    assert [home.staging for home in read_places(text)] == ["s3://lake/records/"]
    assert client.get(job_url(below)).status_code == 200
    assert below in client.get("/s3commit/").text


def test_a_record_alone_ends_no_job(client: TestClient, store: MemoryStore, scene: Scene) -> None:
    """Airflow's run does not know this job, so its DAG's editor sees the reason and may not end it."""
    forged = begin(store, context=NIGHTLY, day=1).reference.job_id
    page = signed_in(client, "owner").get(job_url(forged))
    assert page.status_code == 200
    assert forms(page.text) == []
    assert "Airflow has no record that it set up the job" in page.text
    assert client.post(end_url(forged, "abort"), headers=SAME_ORIGIN).status_code == 403
    assert state_of(store, forged) == "open"
    assert len(forms(signed_in(client, "root").get(job_url(forged)).text)) == 1


def test_a_slow_destination_is_one_line_and_the_others_are_whole(scene: Scene, store: MemoryStore) -> None:
    """The same holds while several browsers ask for it, and more than once."""
    release = threading.Event()

    class Slow(MemoryStore):
        def list_objects(self, *args: Any, **kwargs: Any) -> Any:
            release.wait(30)
            return iter(())

    text = json.dumps([FLIGHTS, {"destination": ORDERS, "aws_conn_id": "slow"}])
    slow = Slow(buckets=("lake",))
    client = signed_in(browser(lambda name: slow if name == "slow" else store, text, wait=1.0), "root")
    try:
        for _ in range(3):
            page = client.get("/s3commit/")
            assert len(re.findall("could not be read within 1 s", page.text)) == 1
            assert all(shown in page.text for shown in (scene.open, scene.sealed, scene.committed))
            assert client.get(job_url(scene.open, ORDERS)).status_code == 503
        assert client.get(job_url(scene.open)).status_code == 200
    finally:
        release.set()


@pytest.mark.parametrize("verb", ["list_objects", "get"])
@pytest.mark.parametrize("error", [RecursionError("x"), OverflowError("x"), AssertionError("<b>")])
def test_whatever_reading_a_destination_raises_is_one_row(
    scene: Scene, store: MemoryStore, verb: str, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """The other destinations are complete, no page answers 500, and the log has the cause."""

    def fail(*_: Any, **__: Any) -> Any:
        raise error

    bad = MemoryStore(buckets=("lake",))
    set_scene(bad)
    setattr(bad, verb, fail)
    text = json.dumps([FLIGHTS, {"destination": ORDERS, "aws_conn_id": "bad"}])
    client = signed_in(browser(lambda name: bad if name == "bad" else store, text), "root")
    page = client.get("/s3commit/")
    assert page.status_code == 200
    assert page.text.count("1 destination could not be read") == 1
    assert f"reading failed with {type(error).__name__};" in page.text
    assert "<b>" not in page.text
    assert all(shown in page.text for shown in (scene.open, scene.sealed, scene.committed))
    assert any(record.exc_info and record.exc_info[1] is error for record in caplog.records)
    for path in (
        f"uploads?at={ORDERS}",
        f"destination?at={ORDERS}",
        f"job?at={ORDERS}&job_id={scene.secret}",
    ):
        assert client.get(f"/s3commit/{path}").status_code in {200, 404, 422}


def test_absurd_numbers_are_question_marks() -> None:
    """A record that has them hides neither its own row nor another."""
    absurd = Counts(files=10**5000, bytes=10**400, rows=10**5000)
    jobs = [
        JobSummary(job_id="whole", destination=FLIGHTS, staging=None, state="open"),
        JobSummary(
            job_id="absurd",
            destination=FLIGHTS,
            staging=None,
            state="open",
            output=absurd,
            silent=float("inf"),
        ),
    ]
    (home,) = read_places(FLIGHTS)
    listed = [Listed(home, job) for job in jobs]
    view = DestinationView(home, jobs=listed, ended=listed)
    page = render("destination", view=view, fleet=search_fleet([view]))
    for shown in ("whole", "absurd"):
        assert page.count(f'title="{shown}"') == 2
    assert page[page.index("absurd") :].count('<td class="n">?</td>') >= 4


def test_an_error_that_nothing_expects_is_a_page(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its text, which may be anything, is not on it."""

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("<secret>")

    monkeypatch.setattr(page_app, "render", fail)
    client = signed_in(browser(lambda _: store), "root")
    with pytest.raises(RuntimeError):
        client.get("/s3commit/")
    monkeypatch.undo()
    monkeypatch.setattr(page_app, "search_fleet", fail)
    quiet = TestClient(client.app, base_url="http://airflow", raise_server_exceptions=False)
    page = signed_in(quiet, "root").get("/s3commit/")
    assert page.status_code == 500
    assert "The page failed with RuntimeError" in page.text
    assert "secret" not in page.text


@pytest.mark.parametrize(
    "context",
    [
        {"dag_id": "..", "run_id": ".."},
        {"dag_id": "../../auth/logout", "run_id": "x"},
        {"dag_id": "javascript:alert(1)", "run_id": "x"},
        {"dag_id": "nightly_flights", "run_id": ".."},
    ],
)
def test_a_link_made_of_a_record_leads_to_a_run_or_is_none(
    client: TestClient, store: MemoryStore, context: dict[str, str]
) -> None:
    """A value that cannot be a run of a DAG is text."""
    job = begin(store, context=context, day=1)
    signed_in(client, "root")
    for path in ("/s3commit/", job_url(job.reference.job_id)):
        page = client.get(path)
        assert page.status_code == 200
        assert 'data-airflow="' not in page.text

"""Who sees which pages, and who may end a job from them."""

from __future__ import annotations

import html
import json
import re
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from airflow.api_fastapi import app as airflow_app
from airflow.configuration import conf
from airflow.models.log import Log
from airflow.utils.db import initdb
from airflow.utils.session import create_session
from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from sqlalchemy import select

from airflow_s3commit import Counts, Destination, Job, JobReference, MemoryStore
from airflow_s3commit.exceptions import AccessDenied, Unavailable
from airflow_s3commit.plugin import app as page_app
from airflow_s3commit.plugin import auth as page_auth
from airflow_s3commit.plugin.app import create_app
from airflow_s3commit.plugin.auth import FormTokens
from airflow_s3commit.plugin.render import Pages
from airflow_s3commit.plugin.service import DestinationService
from airflow_s3commit.plugin.stores import Place, read_places
from airflow_s3commit.plugin.views import DestinationView, Fleet
from airflow_s3commit.protocol.inspect.jobs import JobSummary
from airflow_s3commit.settings import api_secret_key
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
    service = DestinationService(lambda: read_places(text), open_store, lambda _: "http://store:8333", wait)
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


def ask_url(job_id: str, step: str, at: str = FLIGHTS) -> str:
    """Return the address of the form that ends a job."""
    return f"/s3commit/end?at={at}&job_id={job_id}&step={step}"


def fields(page: str) -> dict[str, str]:
    """Return the hidden fields of the form on a page."""
    found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page)
    return {name: html.unescape(value) for name, value in found}


def state_of(store: ObjectStore, job_id: str, at: str = FLIGHTS) -> str | None:
    """Return a job's state; None if it was never set up."""
    state = Job.at(store, reference_of(job_id, at)).state()
    return state.state if state is not None else None


#: One address of each page.
ADDRESSES = [
    "/s3commit/",
    f"/s3commit/destination?at={FLIGHTS}",
    f"/s3commit/uploads?at={FLIGHTS}",
    f"/s3commit/history?at={FLIGHTS}",
    job_url("any"),
    ask_url("any", "abort"),
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
    assert {urlsplit(path).path.removeprefix("/s3commit") for path in ADDRESSES} == known


def test_a_user_without_a_dag_ends_no_job(client: TestClient, store: MemoryStore, scene: Scene) -> None:
    """They may not, even with a form that the page has signed for them; the job is unchanged."""
    sent = {"at": FLIGHTS, "job_id": scene.open, "step": "abort"}
    token = FormTokens(api_secret_key()).sign("public", "abort", FLIGHTS, scene.open)
    refused = signed_in(client, "public").post(
        "/s3commit/end", data={**sent, "token": token}, headers=SAME_ORIGIN
    )
    assert refused.status_code == 403
    assert "You need permission to read a DAG." in refused.text
    assert state_of(store, scene.open) == "open"


def test_no_job_is_ended_without_signing_in(client: TestClient, store: MemoryStore, scene: Scene) -> None:
    """A form without a session is refused, and the job is unchanged."""
    sent = {"at": FLIGHTS, "job_id": scene.open, "step": "abort", "token": "x"}
    assert client.post("/s3commit/end", data=sent, headers=SAME_ORIGIN).status_code == 401
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
    asked = client.get(ask_url(job_id, "recover"))
    done = client.post("/s3commit/end", data=fields(asked.text), headers=SAME_ORIGIN)
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


def test_a_viewer_reads_but_does_not_end(client: TestClient, store: MemoryStore, scene: Scene) -> None:
    """A user who may only read a DAG is offered nothing, and refused if they send the form anyway."""
    signed_in(client, "viewer")
    assert "/end?" not in client.get(job_url(scene.open)).text
    assert client.get(ask_url(scene.open, "abort")).status_code == 403
    token = page_app.FormTokens(_secret()).sign("viewer", "abort", FLIGHTS, scene.open)
    sent = {"at": FLIGHTS, "job_id": scene.open, "step": "abort", "token": token}
    assert client.post("/s3commit/end", data=sent, headers=SAME_ORIGIN).status_code == 403
    assert state_of(store, scene.open) == "open"


def test_an_editor_aborts_a_job(client: TestClient, store: MemoryStore, scene: Scene) -> None:
    """The form does what it says, the record says who, and Airflow's audit log has it."""
    signed_in(client, "owner")
    assert ask_url(scene.open, "abort").partition("?")[0] in client.get(job_url(scene.open)).text
    asked = client.get(ask_url(scene.open, "abort"))
    assert asked.status_code == 200
    assert state_of(store, scene.open) == "open"
    done = client.post("/s3commit/end", data=fields(asked.text), headers=SAME_ORIGIN)
    assert done.status_code == 200
    assert "Aborted: 6 uploads discarded" in done.text
    ended = Job.at(store, reference_of(scene.open)).state()
    assert ended is not None
    assert (ended.state, ended.finished) == ("aborted", True)
    assert "abort by owner" in ended.reason
    with create_session() as session:
        written = session.scalars(select(Log).where(Log.event == "s3commit.abort")).all()
        assert any(row.owner == "owner" and scene.open in row.extra for row in written)


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


@pytest.mark.parametrize(("step", "says"), [("recover", "Committed: 6 files"), ("abort", "Aborted")])
def test_an_editor_settles_a_commit_that_was_cut_off(
    client: TestClient, scene: Scene, step: str, says: str
) -> None:
    """A commit can be continued or undone."""
    asked = signed_in(client, "owner").get(ask_url(scene.publishing, step))
    done = client.post("/s3commit/end", data=fields(asked.text), headers=SAME_ORIGIN)
    assert says in done.text


def test_a_form_sent_twice_says_what_became_of_the_job(client: TestClient, scene: Scene) -> None:
    """A step that no longer fits the job is refused and changes nothing."""
    asked = signed_in(client, "root").get(ask_url(scene.open, "abort"))
    client.post("/s3commit/end", data=fields(asked.text), headers=SAME_ORIGIN)
    again = client.post("/s3commit/end", data=fields(asked.text), headers=SAME_ORIGIN)
    assert again.status_code == 409
    assert "aborted now" in again.text


@pytest.mark.parametrize(
    "change",
    [
        {"token": "forged"},
        {"step": "recover"},
        {"at": ORDERS},
    ],
)
def test_a_form_that_was_not_shown_is_refused(
    client: TestClient, store: MemoryStore, scene: Scene, change: dict[str, str]
) -> None:
    """A token is good for one user, one step and one job."""
    asked = signed_in(client, "owner").get(ask_url(scene.open, "abort"))
    sent = {**fields(asked.text), **change}
    assert client.post("/s3commit/end", data=sent, headers=SAME_ORIGIN).status_code == 403
    signed_in(client, "root")
    assert client.post("/s3commit/end", data=fields(asked.text), headers=SAME_ORIGIN).status_code == 403
    assert state_of(store, scene.open) == "open"


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
    """It is refused even with a good token, because the browser says where a form was."""
    asked = signed_in(client, "owner").get(ask_url(scene.open, "abort"))
    assert client.post("/s3commit/end", data=fields(asked.text), headers=headers).status_code == 403
    assert state_of(store, scene.open) == "open"


def test_a_browser_that_only_sends_its_origin_is_believed(client: TestClient, scene: Scene) -> None:
    """Over plain HTTP browsers send no Sec-Fetch-Site."""
    asked = signed_in(client, "owner").get(ask_url(scene.open, "abort"))
    done = client.post("/s3commit/end", data=fields(asked.text), headers={"Origin": "http://airflow"})
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
    for path in ("/s3commit/", job_url(job.reference.job_id), ask_url(job.reference.job_id, "abort")):
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


def test_a_configuration_that_cannot_be_read_is_shown(store: MemoryStore) -> None:
    """The message says what is wrong with it."""
    page = signed_in(browser(lambda _: store, text='[{"destinatoin": 1}]'), "root").get("/s3commit/")
    assert page.status_code == 200
    assert "neither a URI nor an object" in page.text


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


def test_a_connection_that_is_gone_when_its_address_is_asked_for_is_a_message(
    scene: Scene, store: MemoryStore
) -> None:
    """It is read again each minute, which may be between the store's response and the page."""

    def endpoint_url(_: str | None) -> str:
        raise AccessDenied("the connection 'lake' is not defined")

    service = DestinationService(lambda: read_places(FLIGHTS), lambda _: store, endpoint_url)
    airflow = FastAPI()
    airflow.mount("/s3commit", create_app(service, KnownRuns()))
    page = signed_in(TestClient(airflow, base_url="http://airflow"), "root").get(job_url(scene.open))
    assert page.status_code == 503
    assert "is not defined" in page.text


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
    assert page.text.count("the API server was still connecting after 0.2 s") == 1
    assert "2 destinations could not be read" in page.text
    assert "the store did not respond" not in page.text


def test_many_jobs_are_shown_page_by_page(client: TestClient, store: MemoryStore) -> None:
    """No page shows more than its limit of jobs, and each job is on one page."""
    ids = {begin(store, context=NIGHTLY, day=1, files=0).reference.job_id for _ in range(30)}
    signed_in(client, "root")
    pages = [client.get(f"/s3commit/destination?at={FLIGHTS}&page={page}").text for page in (1, 2)]
    found = [set(re.findall(r'title="([0-9a-f-]{36})"', page)) for page in pages]
    assert [len(ids & shown) for shown in found] == [25, 5]
    assert found[0] | found[1] == ids
    assert len(re.findall(r'title="[0-9a-f-]{36}"', client.get("/s3commit/").text)) == 25


def test_generations_are_shown_page_by_page(client: TestClient, store: MemoryStore) -> None:
    """Newest first, with their jobs and runs, and the size of the table."""
    ids = [commit(store, context=NIGHTLY, day=number).reference.job_id for number in range(1, 31)]
    page = signed_in(client, "viewer").get(f"/s3commit/history?at={FLIGHTS}").text
    assert re.findall(r'title="([0-9a-f-]{36})"', page) == ids[:4:-1]
    assert '<td class="n">60<br><span class="dim">263.7 KiB</span></td>' in page
    (older,) = re.findall(r'href="([^"]*before=[^"]*)"', page)
    last = client.get(html.unescape(older)).text
    assert re.findall(r'title="([0-9a-f-]{36})"', last) == ids[4::-1]
    assert "Older" not in last
    assert "No older entries" in client.get(f"/s3commit/history?at={FLIGHTS}&before=1").text
    assert "No commit is in the log" in client.get(f"/s3commit/history?at={ORDERS}").text
    assert client.get(f"/s3commit/history?at={FLIGHTS}&before=0").status_code == 422
    assert client.get("/s3commit/history?at=s3://elsewhere/x/").status_code == 404


def test_generations_of_hidden_jobs_are_hidden(client: TestClient, store: MemoryStore) -> None:
    """Neither they nor the size of their table are shown to users who may not read their DAG."""
    secret = commit(store, context=SECRET, day=1).reference.job_id
    shown = [commit(store, context=NIGHTLY, day=day).reference.job_id for day in range(2, 30)]
    whole = '<td class="n">58<br>'
    for before in ("", "&before=20"):
        page = signed_in(client, "viewer").get(f"/s3commit/history?at={FLIGHTS}{before}").text
        assert shown[10] in page
        assert (secret in page, "payroll" in page) == (False, False)
        assert ("1 of the entries on this page is hidden" in page) is bool(before)
        assert whole not in page
    assert whole in signed_in(client, "auditor").get(f"/s3commit/history?at={FLIGHTS}").text


def test_a_log_that_cannot_be_read_is_a_message(client: TestClient, store: MemoryStore) -> None:
    """A damaged entry is named."""
    commit(store, context=NIGHTLY, day=1)
    store.put("lake", f"flights/_s3commit/log/{1:020d}.json", b"{")
    page = signed_in(client, "auditor").get(f"/s3commit/history?at={FLIGHTS}")
    assert (page.status_code, f"{1:020d}.json" in page.text) == (422, True)


def test_a_run_shows_its_own_jobs(client: TestClient, store: MemoryStore, scene: Scene) -> None:
    """They are those that say so themselves, and those that its tasks returned, with nothing to click."""
    run = f"/s3commit/run?dag_id=nightly_flights&run_id={NIGHTLY['run_id'].replace('+', '%2B')}"
    page = signed_in(client, "viewer").get(run).text
    for shown in (scene.committed, scene.sealed, scene.publishing, scene.open, scene.aborted):
        assert shown in page
    assert scene.secret not in page
    assert "<form" not in page
    assert signed_in(client, "stranger").get(run).status_code == 403


def test_a_run_finds_its_job_by_what_its_setup_task_returned(client: TestClient, scene: Scene) -> None:
    """A task's XCom leads to it, even where the job itself names no run; other XComs are no references."""
    reference = {"job_id": scene.aborted, "destination": FLIGHTS, "staging": FLIGHTS + "x/"}
    assert list(page_auth._references(reference)) == [JobReference(**reference)]
    assert list(page_auth._references(json.dumps(reference))) == [JobReference(**reference)]
    for other in (None, 3, "text", "[" * 100_000, [1], {"job_id": "x"}, {**reference, "job_id": 7}):
        assert list(page_auth._references(other)) == []


def test_a_staging_of_its_own_is_found(store: MemoryStore) -> None:
    """Jobs are shown wherever on the destination they keep their records."""
    below = begin(store, context=NIGHTLY, day=1).reference.job_id
    text = json.dumps([{"destination": FLIGHTS, "staging": "s3://lake/records/"}])
    client = signed_in(browser(lambda _: store, text), "root")
    assert read_places(text) == [
        Place(Destination.parse(FLIGHTS), "aws_default", Destination.parse("s3://lake/records/"))
    ]
    assert client.get(job_url(below)).status_code == 200
    assert below in client.get("/s3commit/").text


def _secret() -> str:
    return str(conf.get("api", "secret_key"))


def test_a_record_alone_ends_no_job(client: TestClient, store: MemoryStore, scene: Scene) -> None:
    """Airflow's run does not know this job, so its DAG's editor sees the reason and may not end it."""
    forged = begin(store, context=NIGHTLY, day=1).reference.job_id
    page = signed_in(client, "owner").get(job_url(forged))
    assert page.status_code == 200
    assert "/end?" not in page.text
    assert "Airflow has no record that it set up the job" in page.text
    assert client.get(ask_url(forged, "abort")).status_code == 403
    token = page_app.FormTokens(_secret()).sign("owner", "abort", FLIGHTS, forged)
    sent = {"at": FLIGHTS, "job_id": forged, "step": "abort", "token": token}
    assert client.post("/s3commit/end", data=sent, headers=SAME_ORIGIN).status_code == 403
    assert state_of(store, forged) == "open"
    assert signed_in(client, "root").get(ask_url(forged, "abort")).status_code == 200


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
            assert len(re.findall("did not (?:respond|end) within 1 s", page.text)) == 1
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


def test_a_job_that_cannot_be_shown_is_one_row() -> None:
    """Its neighbours are complete, and absurd numbers are question marks."""
    absurd = Counts(files=10**5000, bytes=10**400, rows=10**5000)
    jobs = [
        JobSummary(job_id="whole", destination=FLIGHTS, staging=None, state="open"),
        JobSummary(job_id="damaged", destination=FLIGHTS, staging=None, state="open", output=None),  # type: ignore[arg-type]
        JobSummary(
            job_id="absurd",
            destination=FLIGHTS,
            staging=None,
            state="open",
            output=absurd,
            silent=float("inf"),
        ),
    ]
    (place,) = read_places(FLIGHTS)
    view = DestinationView(place, jobs=jobs, ended=jobs)
    page = Pages().render(
        "destination",
        "",
        destination_view=view,
        fleet=Fleet([], [(view, job) for job in jobs], [(view, job) for job in jobs], [], 0),
        page=1,
        ended=1,
        per_page=9,
    )
    assert page.count("cannot be shown") == 1
    for shown in ("whole", "absurd"):
        assert page.count(f'title="{shown}"') == 2


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

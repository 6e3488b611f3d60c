"""The page of all destinations: what a search finds, within how many requests, and what is missing."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from airflow_s3commit import Counts, MemoryStore, register_destination
from airflow_s3commit.exceptions import Unavailable
from airflow_s3commit.plugin.app import create_app
from airflow_s3commit.plugin.service import DestinationService, read_places
from airflow_s3commit.plugin.views import (
    DestinationView,
    Listed,
    longest_idle,
    read_job,
    search_fleet,
    stored,
)
from airflow_s3commit.protocol.inspect.jobs import CommitProgress, JobSummary
from airflow_s3commit.store.forwarding import CountingStore
from tests.plugin.scene import FLIGHTS, NIGHTLY, ORDERS, begin, commit, seal
from tests.plugin.test_app import (
    SAME_ORIGIN,
    end_url,
    forms,
    job_url,
    manager,
    reference_of,
    signed_in,
    state_of,
)
from tests.plugin.users import KnownRuns

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastapi.testclient import TestClient

    from airflow_s3commit import ObjectStore

pytestmark = [pytest.mark.airflow, pytest.mark.xdist_group("airflow-page")]

__all__ = ["manager"]

REGISTRY = "s3://lake/registry/"


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def store() -> MemoryStore:
    """An empty lake."""
    return MemoryStore(buckets=("lake",))


def browse(
    open_store: Callable[[str | None], ObjectStore],
    *,
    configured: str = "",
    registry: str | None = REGISTRY,
    runs: KnownRuns | None = None,
    wait: float = 30.0,
    clock: Clock | None = None,
) -> TestClient:
    """Return the browser of a user who may do everything."""
    from fastapi import FastAPI  # noqa: PLC0415 - after Airflow's home is set
    from fastapi.testclient import TestClient  # noqa: PLC0415

    service = DestinationService(
        lambda: read_places(configured),
        lambda aws_conn_id, _: open_store(aws_conn_id),
        wait,
        registry=registry,
        clock=clock or Clock(),  # type: ignore[arg-type]
    )
    airflow = FastAPI()
    airflow.mount("/s3commit", create_app(service, runs or KnownRuns()))
    return signed_in(TestClient(airflow, base_url="http://airflow"), "root")


def registered(store: ObjectStore, count: int, **how: Any) -> list[str]:
    """Enter some destinations in the registry, and return their URIs."""
    uris = [f"s3://lake/team-{number % 7}/table-{number:03d}/" for number in range(count)]
    for uri in uris:
        register_destination(store, REGISTRY, uri, **how)
    return uris


def job(
    job_id: str, state: Any = "open", *, idle: float | None = 60.0, size: int = 10, **context: str
) -> JobSummary:
    """Return a job in progress."""
    output = Counts(files=1, bytes=size, rows=None)
    return JobSummary(
        job_id=job_id, destination=None, staging="x", state=state, silent=idle, output=output, context=context
    )


FLIGHTS_HOME, ORDERS_HOME, IDLE_HOME, AWAY_HOME = read_places(
    f"{FLIGHTS} {ORDERS} s3://lake/idle/ s3://away/x/"
)
VIEWS = [
    DestinationView(
        FLIGHTS_HOME,
        [
            Listed(FLIGHTS_HOME, job("a", "sealed", idle=7200)),
            Listed(FLIGHTS_HOME, job("b", dag_id="Nightly")),
        ],
    ),
    DestinationView(
        ORDERS_HOME,
        [
            Listed(ORDERS_HOME, job("c", "sealed", size=99), CommitProgress(completed=1, files=2)),
            Listed(ORDERS_HOME, job("d", None)),
        ],
    ),
    DestinationView(IDLE_HOME),
    DestinationView(AWAY_HOME, problem="no route"),
]


@pytest.mark.parametrize(
    ("wanted", "jobs", "places"),
    [
        ({}, "cabd", 3),
        ({"text": "FLIGHTS"}, "ab", 1),
        ({"text": "s3://lake/*r*s"}, "cd", 1),
        ({"text": "nightly"}, "b", 1),
        ({"state": "sealed"}, "ac", 2),
        ({"state": "publishing"}, "c", 1),
        ({"state": "damaged"}, "d", 1),
        ({"idle": 3600}, "a", 1),
        ({"text": "s3://lake/idle"}, "", 1),
        ({"text": "nothing"}, "", 0),
    ],
)
def test_a_search_finds_jobs_and_their_destinations(wanted: dict[str, Any], jobs: str, places: int) -> None:
    """By a part of a name, a pattern, a state, an idle time; commits first, then what is idle longest."""
    found = search_fleet(VIEWS, **wanted)
    ids = [listed.job.job_id for listed in found.jobs]
    assert sorted(ids) == sorted(jobs)
    assert len(found.rows) == places
    assert stored(found.jobs) == sum(99 if job_id == "c" else 10 for job_id in ids)
    if not wanted:
        assert ids[:2] == ["c", "a"]
        assert longest_idle(found.jobs) == 7200
        assert found.unread == {"no route": ["s3://away/x/"]}


@pytest.mark.parametrize(
    ("context", "partitions", "shown"),
    [
        (
            {"partition_key": "2013-01-05", "logical_date": "2013-01-06T00:00:00+00:00"},
            ["dt=x"],
            "2013-01-05",
        ),
        ({"logical_date": "2013-01-05T00:00:00+00:00"}, ["dt=2", "dt=1"], "dt=1, dt=2"),
        ({"logical_date": "2013-01-05T00:00:00+00:00"}, [], "2013-01-05"),
        ({"logical_date": "2013-01-05T03:00:00+00:00"}, [""], "2013-01-05 03:00"),
        ({"logical_date": "yesterday", "run_id": "manual__1"}, [], ""),
    ],
)
def test_a_job_is_named_by_what_it_refreshes(
    context: dict[str, str], partitions: list[str], shown: str
) -> None:
    """A run's key comes first, then what was committed, then the logical date; an odd date is no error."""
    committed = replace(
        commit(MemoryStore(buckets=("lake",)), context=context, day=1).manifest(),
        partitions=dict.fromkeys(partitions, Counts()),
    )
    summary = replace(job("a", "committed", **context), manifest=committed)
    listed = Listed(FLIGHTS_HOME, summary)
    assert listed.day == shown
    view = DestinationView(FLIGHTS_HOME, ended=[listed])
    assert len(search_fleet([view], shown or "a").ended) == 1
    assert search_fleet([view], state="open").ended == []


def test_three_hundred_destinations_are_one_page(store: MemoryStore) -> None:
    """It takes a listing, a read of each new entry and two listings for each destination, then none."""
    uris = registered(store, 300)
    for uri in uris[:3]:
        begin(store, uri, context=NIGHTLY, day=1)
    counting, clock = CountingStore(store), Clock()
    client = browse(lambda _: counting, clock=clock)
    page = client.get("/s3commit/").text
    assert "<dt>Destinations</dt><dd>300</dd>" in page
    assert "<dt>Jobs in progress</dt><dd>3</dd>" in page
    assert page.count("</tr>") < 120
    first = sum(counting.counters.values())
    assert first < 301 + 2 * 300 + 3 * 10
    assert uris[0] in client.get("/s3commit/?find=table-000&state=open").text
    assert sum(counting.counters.values()) == first
    clock.sleep(31)
    client.get("/s3commit/")
    assert sum(counting.counters.values()) < first + 1 + 2 * 300 + 3 * 10


def test_a_store_that_is_away_is_named_and_the_others_are_shown(store: MemoryStore) -> None:
    """Each reason for a missing part is given once; what was read before stays."""
    uris = [*registered(store, 10, aws_conn_id="lake"), "s3://lake/other/"]
    register_destination(store, REGISTRY, "s3://lake/other/", aws_conn_id="away")
    begin(store, "s3://lake/other/", context=NIGHTLY, day=1)
    away: list[str] = []

    def open_store(aws_conn_id: str | None) -> MemoryStore:
        if aws_conn_id in away:
            raise Unavailable("no route to the store")
        return store

    clock = Clock()
    client = browse(open_store, clock=clock)
    page = client.get("/s3commit/?find=s3").text
    assert "<dt>Jobs in progress</dt><dd>1</dd>" in page
    away.append("away")
    clock.sleep(31)
    page = client.get("/s3commit/?find=s3").text
    assert f"<dt>Destinations</dt><dd>{len(uris)}</dd>" in page
    assert "1 destination could not be read" in page
    assert "no route to the store" in page
    assert "<dt>Jobs in progress</dt><dd>1</dd>" in page
    assert "the last reading is shown" in page


def test_a_hanging_store_does_not_hold_the_page(store: MemoryStore) -> None:
    """The page comes within its time, with the other connections' destinations."""
    registered(store, 20, aws_conn_id="lake")
    for number in range(40):
        register_destination(store, REGISTRY, f"s3://lake/hang-{number}/", aws_conn_id="hangs")
    release = threading.Event()

    def open_store(aws_conn_id: str | None) -> MemoryStore:
        if aws_conn_id == "hangs":
            release.wait(30)
        return store

    try:
        page = browse(open_store, wait=2.0).get("/s3commit/").text
    finally:
        release.set()
    assert "<dt>Destinations</dt><dd>20 of 60</dd>" in page
    assert "it could not be read within 2 s" in page


@pytest.mark.parametrize("registry", ["s3://no-such-bucket/registry/", "lake-ops/registry"])
def test_a_registry_that_cannot_be_read_hides_nothing_else(store: MemoryStore, registry: str) -> None:
    """Configured destinations are shown, with the reason why others are missing."""
    begun = begin(store, context=NIGHTLY, day=1)
    client = browse(lambda _: store, configured=FLIGHTS, registry=registry)
    page = client.get("/s3commit/").text
    assert "The registry could not be read" in page
    assert f"[s3commit] registry {registry}" in page
    assert begun.reference.job_id in page
    assert client.get(f"/s3commit/destination?at={ORDERS}").status_code == 404


def test_a_destination_of_the_registry_has_its_pages(store: MemoryStore) -> None:
    """It is read with the connection of its entry; a destination that is in neither list is not read."""
    register_destination(store, REGISTRY, FLIGHTS, aws_conn_id="theirs")
    begun = begin(store, context=NIGHTLY, day=1)
    opened = []

    def open_store(aws_conn_id: str | None) -> MemoryStore:
        opened.append(aws_conn_id)
        return store

    client = browse(open_store)
    assert begun.reference.job_id in client.get(f"/s3commit/destination?at={FLIGHTS}").text
    assert "theirs" in opened
    assert client.get(f"/s3commit/destination?at={ORDERS}").status_code == 404


def test_a_damaged_entry_does_not_hide_a_job(store: MemoryStore) -> None:
    """Whether a later try has ended is unknown then; the job is shown, and can be aborted."""
    for day in (1, 2, 3):
        commit(store, context=NIGHTLY, day=day)
    key = "flights/_s3commit/log/00000000000000000002.json"
    store.put("lake", key, b"?")
    view = read_job(store, FLIGHTS_HOME, begin(store, context=NIGHTLY, day=4).reference.job_id)
    assert (view.successor, view.offers) == (None, ["abort"])


def test_a_sealed_job_is_committed_from_the_page(store: MemoryStore) -> None:
    """Its output becomes visible; the form says what it leaves out."""
    register_destination(store, REGISTRY, FLIGHTS)
    sealed = seal(store, context=NIGHTLY, day=1).reference.job_id
    runs = KnownRuns()
    runs.tell(**NIGHTLY, reference=reference_of(sealed))
    client = browse(lambda _: store, runs=runs)
    page = signed_in(client, "owner").get(job_url(sealed)).text
    assert "no asset event is sent" in page
    assert len(forms(page)) == 2
    assert state_of(store, sealed) == "sealed"
    done = client.post(end_url(sealed, "commit"), headers=SAME_ORIGIN)
    assert "Committed: 2 files" in done.text
    assert state_of(store, sealed) == "committed"
    assert forms(signed_in(client, "viewer").get(job_url(sealed)).text) == []

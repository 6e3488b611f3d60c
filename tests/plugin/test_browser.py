"""The page in a browser, in the frame of a real Airflow, with a real store behind it."""

from __future__ import annotations

import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, FrameLocator, Page, expect, sync_playwright

from airflow_s3commit import Job, JobReference, S3Store
from tests.plugin.live import UNREACHABLE, LiveAirflow
from tests.plugin.scene import FLIGHTS, NIGHTLY, Scene, begin, crash, seal, set_scene

if TYPE_CHECKING:
    from airflow_s3commit.testing import S3Server

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.seaweedfs,
    pytest.mark.xdist_group("airflow-page"),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is on this machine"),
]

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

#: Milliseconds; the first pages load half of Airflow.
PATIENCE = 90_000
expect.set_options(timeout=PATIENCE)

#: What Airflow's own frame is warned of, and what its parts ask for that are not there.
HARMLESS = ("allow-scripts and allow-same-origin",)


@pytest.fixture(scope="module")
def store(seaweed: S3Server) -> S3Store:
    """The store, with few requests at once, so that a commit can be cut off in its middle."""
    return S3Store.connect(seaweed.config, transport="boto3")


@pytest.fixture(scope="module")
def scene(store: S3Store) -> Scene:
    """Jobs in every state."""
    return set_scene(store, files=24)


@pytest.fixture(scope="module")
def airflow(
    seaweed: S3Server, scene: Scene, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveAirflow]:
    """An API server with the page."""
    with LiveAirflow(tmp_path_factory.mktemp("live"), seaweed, "nightly_flights") as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A headless Chromium."""
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield started
        started.close()


def opened(
    browser: Browser, airflow: LiveAirflow, user: str, *, width: int = 1400, scheme: str = "light"
) -> tuple[Page, list[str]]:
    """Return a signed-in page, and the list that its console's complaints go into."""
    context = browser.new_context(
        viewport={"width": width, "height": 1000},
        color_scheme=scheme,  # type: ignore[arg-type]
    )
    context.add_cookies([{"name": "_token", "value": airflow.token(user), "url": airflow.url}])
    context.set_default_timeout(PATIENCE)
    page, complaints = context.new_page(), []
    page.add_init_script(f"try {{ localStorage.setItem('theme', '{scheme}') }} catch (_) {{}}")
    page.on(
        "console",
        lambda message: (
            complaints.append(message.text)
            if message.type in {"error", "warning"} and not any(known in message.text for known in HARMLESS)
            else None
        ),
    )
    return page, complaints


def go(page: Page, airflow: LiveAirflow, path: str) -> FrameLocator:
    """Open a page of Airflow that frames one of ours; return the frame when it shows something."""
    page.goto(f"{airflow.url}{path}")
    frame = page.frame_locator("iframe")
    expect(frame.locator("main")).to_be_visible()
    return frame


def job_path(job_id: str) -> str:
    """Return the address of a job's page within Airflow's."""
    return f"/plugin/s3commit/s3commit/job?at={quote(FLIGHTS, safe='')}&job_id={job_id}"


def is_wide(frame: FrameLocator) -> bool:
    """Tell whether a page has to be scrolled sideways."""
    return bool(frame.locator("html").evaluate("(html) => html.scrollWidth > html.clientWidth + 1"))


def ground(frame: FrameLocator) -> str:
    """Return the colour of a page's background."""
    return str(frame.locator("body").evaluate("(body) => getComputedStyle(body).backgroundColor"))


def test_no_page_is_shown_without_a_session(airflow: LiveAirflow) -> None:
    """Airflow mounts a plugin's pages without checking the user, so these check."""
    for path in ("/s3commit/", f"/s3commit/job?at={FLIGHTS}&job_id=x", "/s3commit/run?dag_id=x&run_id=y"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{airflow.url}{path}", timeout=60)
        assert refused.value.code == 401


def test_the_menu_leads_to_the_jobs(browser: Browser, airflow: LiveAirflow, scene: Scene) -> None:
    """The jobs of all destinations are shown with their days; one that does not respond is folded up."""
    page, complaints = opened(browser, airflow, "ann")
    page.goto(airflow.url)
    page.get_by_role("button", name="Browse").click()
    page.get_by_role("menuitem", name="S3 commits").click()
    frame = page.frame_locator("iframe")
    for job_id in (scene.open, scene.sealed, scene.publishing, scene.committed, scene.secret):
        expect(frame.locator(f'a[title="{job_id}"]')).to_be_visible()
    expect(frame.get_by_text(UNREACHABLE)).to_be_hidden()
    frame.get_by_text("1 destination could not be read").click()
    expect(frame.get_by_text(UNREACHABLE)).to_be_visible()
    expect(frame.get_by_role("img", name="percent completed")).to_be_visible()
    expect(frame.get_by_role("row").filter(has_text=scene.open[:8])).to_contain_text("2013-01-05")
    assert complaints == []


def test_on_a_phone_pending_and_idle_are_seen_first(
    browser: Browser, airflow: LiveAirflow, scene: Scene
) -> None:
    """Without scrolling sideways a job's row shows its day, its state, its pending bytes and idle time."""
    page, _ = opened(browser, airflow, "ann", width=430)
    frame = go(page, airflow, "/plugin/s3commit")
    width = int(frame.locator("html").evaluate("(html) => html.clientWidth"))
    row = frame.get_by_role("row").filter(has_text=scene.sealed[:8])
    for cell in row.locator("th, td").all()[:4]:
        right = cell.evaluate("(cell) => cell.getBoundingClientRect().right")
        assert right <= width, cell.inner_text()


def test_a_link_to_a_run_leads_airflow_there(browser: Browser, airflow: LiveAirflow, scene: Scene) -> None:
    """The frame cannot navigate, so it asks Airflow's own router to."""
    page, _ = opened(browser, airflow, "ann")
    frame = go(page, airflow, job_path(scene.committed))
    frame.locator("a[data-airflow]").first.click()
    page.wait_for_url("**/dags/nightly_flights/runs/**")


def test_a_run_has_a_tab_with_its_job(browser: Browser, airflow: LiveAirflow) -> None:
    """It works in a frame without scripts, and is found by what the setup task returned."""
    page, complaints = opened(browser, airflow, "vic", scheme="dark")
    run_id = quote(airflow.runs["nightly_flights"], safe="")
    frame = go(page, airflow, f"/dags/nightly_flights/runs/{run_id}/plugin/s3commit-run")
    expect(frame.get_by_text("committed", exact=True).first).to_be_visible()
    expect(frame.get_by_text("dt=2013-01-31")).to_be_visible()
    assert frame.locator("form, a.button").count() == 0
    # Its script may not run there, which the browser says.
    assert [words for words in complaints if "script" not in words.lower()] == []


@pytest.mark.parametrize(
    ("scheme", "is_dark"), [pytest.param("light", False, marks=pytest.mark.all), ("dark", True)]
)
def test_the_page_has_the_colours_of_airflow(
    browser: Browser, airflow: LiveAirflow, scene: Scene, scheme: str, is_dark: bool
) -> None:
    """This holds in both modes, even if the user's choice differs from their machine's."""
    page, _ = opened(browser, airflow, "vic", scheme=scheme)
    frame = go(page, airflow, job_path(scene.sealed))
    assert (ground(frame) != "rgb(255, 255, 255)") is is_dark
    page.evaluate(
        "(name) => { const on = document.documentElement.classList;"
        " on.remove('light', 'dark'); on.add(name); }",
        "light" if is_dark else "dark",
    )
    expect(frame.locator("html")).to_have_attribute("data-theme", "light" if is_dark else "dark")
    assert (ground(frame) != "rgb(255, 255, 255)") is not is_dark


@pytest.mark.parametrize("width", [1400, pytest.param(480, marks=pytest.mark.all)])
def test_every_page_fits_and_is_accessible(
    browser: Browser, airflow: LiveAirflow, scene: Scene, width: int
) -> None:
    """Nothing scrolls sideways; tables have captions, pictures words, pages one heading."""
    page, complaints = opened(browser, airflow, "ann", width=width)
    at = quote(FLIGHTS, safe="")
    for path in (
        "/plugin/s3commit",
        "/plugin/s3commit/s3commit/?find=s3",
        f"/plugin/s3commit/s3commit/destination?at={at}",
        f"/plugin/s3commit/s3commit/uploads?at={at}",
        job_path(scene.sealed),
        job_path(scene.publishing),
        job_path(scene.committed),
    ):
        frame = go(page, airflow, path)
        assert not is_wide(frame), path
        assert frame.get_by_role("heading", level=1).count() == 1, path
        assert frame.locator("table:not(:has(caption))").count() == 0, path
        assert frame.locator("svg:not([role=img])").count() == 0, path
        assert frame.locator("html").get_attribute("lang") == "en"
    assert complaints == []


def test_a_viewer_is_offered_nothing(browser: Browser, airflow: LiveAirflow, scene: Scene) -> None:
    """A user who may not edit runs sees the job, and no button."""
    page, _ = opened(browser, airflow, "vic")
    frame = go(page, airflow, job_path(scene.open))
    expect(frame.locator("h1")).to_contain_text(scene.open)
    assert frame.get_by_text("Abort the job").count() == 0


def test_a_job_is_aborted_and_another_one_recovered(
    browser: Browser, airflow: LiveAirflow, store: S3Store
) -> None:
    """By two clicks each, through the session's cookie, from Airflow's frame."""
    doomed = begin(store, context=NIGHTLY, day=6, files=24).reference.job_id
    stuck = crash(store, context=NIGHTLY, day=7, files=24).reference.job_id
    page, complaints = opened(browser, airflow, "ann")
    frame = go(page, airflow, job_path(doomed))
    frame.get_by_text("Abort the job…").click()
    expect(frame.get_by_text("This cannot be undone")).to_be_visible()
    frame.get_by_role("button", name="Abort the job").click()
    expect(frame.get_by_role("status")).to_contain_text("Aborted: 24 uploads discarded")
    ended = job_at(store, doomed).state()
    assert ended is not None
    assert (ended.state, ended.finished) == ("aborted", True)

    frame = go(page, airflow, job_path(stuck))
    frame.get_by_text("Continue the commit…").click()
    frame.get_by_role("button", name="Continue the commit").click()
    expect(frame.get_by_role("status")).to_contain_text("Committed: 24 files")
    assert job_at(store, stuck).manifest() is not None
    frame.get_by_role("link", name="Back to the job").click()
    expect(frame.locator("h1")).to_contain_text("committed")
    assert complaints == []


def test_a_sealed_job_is_found_and_committed(browser: Browser, airflow: LiveAirflow, store: S3Store) -> None:
    """By a search over all destinations, which names the one that does not respond, and two clicks."""
    sealed = seal(store, context=NIGHTLY, day=8, files=24).reference.job_id
    page, complaints = opened(browser, airflow, "ann")
    frame = go(page, airflow, "/plugin/s3commit")
    frame.get_by_label("Search").fill("nightly")
    frame.get_by_label("State").select_option("sealed")
    frame.get_by_role("button", name="Search").click()
    expect(frame.get_by_role("link", name="Show all")).to_be_visible()
    expect(frame.locator("tbody .chip.sealed").first).to_be_visible()
    assert frame.locator("tbody .chip.open").count() == 0
    frame.locator(f'a[title="{sealed}"]').click()
    frame.get_by_text("Commit the job…").click()
    frame.get_by_role("button", name="Commit the job").click()
    expect(frame.get_by_role("status")).to_contain_text("Committed: 24 files")
    assert job_at(store, sealed).manifest() is not None
    assert complaints == []


def job_at(store: S3Store, job_id: str) -> Job:
    """Return a job."""
    return Job.at(
        store,
        JobReference(job_id=job_id, destination=FLIGHTS, staging=f"{FLIGHTS}__magic_job-{job_id}/"),
    )

"""The web application of the page: its routes, and their responses as HTML.

Routes read stores without blocking one of Airflow's threads; only queries of its database and the rendering
of pages run on such a thread. An error becomes a page, with a status by its type.
"""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlencode

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import Depends, FastAPI, HTTPException, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.exceptions import HTTPException as AnyHTTPException

from airflow_s3commit import _format
from airflow_s3commit._causes import described
from airflow_s3commit._format import Column, facts, length
from airflow_s3commit.exceptions import (
    InvalidDestination,
    InvalidRecord,
    JobClosed,
    NoSuchJob,
    NoSuchKey,
    Refused,
    S3CommitError,
)
from airflow_s3commit.plugin.auth import Access, Metadata, Origin, is_same_origin
from airflow_s3commit.plugin.service import FEW_PLACES, FRESH, DestinationService, StillRunning
from airflow_s3commit.plugin.views import (
    DestinationView,
    Filter,
    JobView,
    Offer,
    longest_idle,
    read_job,
    search_fleet,
    stored,
)
from airflow_s3commit.present import (
    JOB_COLUMNS,
    PARTITION_COLUMNS,
    CommandLines,
    NextStep,
    amount,
    cost_per_day,
    for_job,
    replacement,
    state,
)
from airflow_s3commit.protocol.inspect.jobs import StageDetails, UploadSummary, pending_uploads
from airflow_s3commit.protocol.model.destination import RegisteredDestination
from airflow_s3commit.settings import api_base_url
from airflow_s3commit.store.base import ObjectStore
from airflow_s3commit.store.credentials import is_aws_host
from airflow_s3commit.store.forwarding import total_requests

logger = logging.getLogger(__name__)

#: Maximum number of pending uploads on a page, and of jobs on the tab of a run.
MOST_UPLOADS, _OF_RUN = 500, 8

_Text = Annotated[str, Query(max_length=2000)]


def create_app(service: DestinationService | None = None, metadata: Metadata | None = None) -> FastAPI:
    """Return the application. Every route requires a signed-in user who may read a DAG."""
    app = FastAPI(
        title="S3 commits",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        default_response_class=HTMLResponse,
        dependencies=[Depends(_visit)],
    )
    app.state.service = service or DestinationService()
    app.state.metadata = metadata or Metadata()
    for show in (overview, destination, uploads, job, run):
        app.add_api_route("/" if show is overview else f"/{show.__name__}", show)
    app.add_api_route("/end", end, methods=["POST"], dependencies=[Depends(_same_origin)])
    for kind in (AnyHTTPException, S3CommitError, Exception):
        app.add_exception_handler(kind, show_error)
    return app


class Visit(NamedTuple):
    """A request of a user who may read a DAG: what the page knows, and what of it the user may see."""

    user: str
    access: Access
    metadata: Metadata
    service: DestinationService

    async def home(self, at: str) -> RegisteredDestination:
        """Return a destination that the page knows; any other is not found."""
        homes, problem = await self.service.places()
        home = next((one for one in homes if one.destination == at), None)
        if home is None:
            why = f"; the registry could not be read: {problem}" if problem is not None else ""
            words = f"{at!r} is neither in [s3commit] destinations nor in a registry{why}"
            raise HTTPException(HTTPStatus.NOT_FOUND, words)
        return home

    async def visible(self, views: Sequence[DestinationView]) -> list[DestinationView]:
        """Return the views without the jobs that the user may not see."""

        def look() -> list[DestinationView]:
            jobs = (one.job for view in views for one in (*view.jobs, *view.ended))
            may_read = self.access.readable(job.context for job in jobs)
            return [view.visible_to(may_read) for view in views]

        return await run_in_threadpool(look)

    async def job(self, at: str, job_id: str) -> JobView:
        """Return a job; raise `NoSuchJob` also for a job that the user may not see."""
        home = await self.home(at)
        try:
            view = await self.service.read(home, lambda store: read_job(store, home, job_id))
            if await run_in_threadpool(self.access.may_read, view.job.context):
                return view
        except NoSuchJob:
            logger.debug("no job %s at %s", job_id, at, exc_info=True)
        except InvalidRecord:
            # The DAG of the job is unknown.
            if await run_in_threadpool(self.access.may_read, {}):
                raise
        raise NoSuchJob(f"no job {job_id} at {at}, or you have no permission to read its DAG")


def _visit(request: Request, user: GetUserDep) -> Visit:
    known = request.app.state
    access = Access(get_auth_manager(), user, known.metadata)
    if not access.may_look():
        raise HTTPException(HTTPStatus.FORBIDDEN, "You need permission to read a DAG.")
    return Visit(user.get_name(), access, known.metadata, known.service)


VisitDep = Annotated[Visit, Depends(_visit)]


async def overview(
    visit: VisitDep,
    find: _Text = "",
    state: Filter = "",
    idle: Annotated[int, Query(ge=0)] = 0,
    every: Annotated[int, Query(ge=0, le=3600)] = 0,
) -> HTMLResponse:
    """Show the jobs of all destinations, or those that a search finds; ended ones if destinations are few."""
    homes, problem = await visit.service.places()
    views = await visit.visible(await visit.service.views(homes))
    return await _page(
        "fleet",
        fleet=search_fleet(views, find.strip(), state, idle),
        known=len(homes),
        problem=problem,
        fresh=FRESH if len(homes) > FEW_PLACES else 0,
        query={"find": find.strip(), "state": state, "idle": idle},
        every=every,
    )


async def destination(visit: VisitDep, at: _Text) -> HTMLResponse:
    """Show the jobs of one destination, and the generations of its table."""
    (view,) = await visit.visible([await visit.service.view(await visit.home(at))])
    return await _page("destination", view=view, fleet=search_fleet([view]))


async def uploads(visit: VisitDep, at: _Text) -> HTMLResponse:
    """Show the pending uploads of one destination, for jobs that the user may see."""
    home = await visit.home(at)

    def reading(store: ObjectStore) -> list[UploadSummary]:
        uploads = pending_uploads(store, home.place, home.staging_root, measure=True, most=MOST_UPLOADS + 1)
        return sorted(uploads, key=lambda upload: upload.initiated)

    found = await visit.service.read(home, reading)
    (view,) = await visit.visible([await visit.service.view(home)])
    # The DAG is unknown of uploads whose job is not in the view, and of those that no job owns.
    sees_all = await run_in_threadpool(visit.access.may_read, {})
    seen = {listed.job.job_id for listed in view.jobs}
    shown = [one for one in found if sees_all or one.job_id in seen]
    return await _page("uploads", home=home, uploads=shown[:MOST_UPLOADS], cut=len(found) > MOST_UPLOADS)


async def job(visit: VisitDep, at: _Text, job_id: _Text) -> HTMLResponse:
    """Show one job, with the forms by which a user ends it."""
    view, refused = await visit.job(at, job_id), None
    if view.offers:
        refused = await run_in_threadpool(visit.access.why_not_end, view.job, at)
    return await _page("job", refused=refused, **job_values(view))


def _same_origin(request: Request) -> None:
    if not is_same_origin(request.headers, api_base_url()):
        raise HTTPException(HTTPStatus.FORBIDDEN, "This form was not sent from this page.")


async def end(visit: VisitDep, at: _Text, job_id: _Text, offer: Offer) -> HTMLResponse:
    """End a job, for a user who confirmed it and may edit its run, after a note in Airflow's audit log."""
    view = await visit.job(at, job_id)
    job = view.job

    def permit() -> None:
        refused = visit.access.why_not_end(job, at)
        if refused is not None:
            raise HTTPException(HTTPStatus.FORBIDDEN, refused)
        if offer not in view.offers:
            raise JobClosed(f"job {job.job_id} is {job.state or 'gone'} now, so {offer} is not possible")
        logger.info("user %s wants to %s job %s on %s", visit.user, offer, job.job_id, at)
        facts = {"job_id": job.job_id, "destination": at}
        visit.metadata.log_action(f"s3commit.{offer}", visit.user, visit.access.origin(job.context), facts)

    await run_in_threadpool(permit)
    failed, reason = False, f"{offer} by {visit.user} on the page in Airflow"
    try:
        words = await visit.service.end(view.home, job, offer, reason)
    except StillRunning as error:
        words = str(error)
    except S3CommitError as error:
        failed, words = True, described(error)
    return await _page("message", title=f"Job {job.job_id}", words=words, failed=failed, view=view)


async def run(visit: VisitDep, dag_id: _Text, run_id: _Text) -> HTMLResponse:
    """Show the jobs that the tasks of one DAG run recorded, on a read-only tab of its page."""
    origin = Origin.of({"dag_id": dag_id, "run_id": run_id})
    if origin is None or not await run_in_threadpool(visit.access.may_read, {"dag_id": dag_id}):
        raise HTTPException(HTTPStatus.FORBIDDEN, "You need permission to read the runs of this DAG.")
    recorded = await run_in_threadpool(visit.metadata.jobs_of, origin)
    shown, problems = [], []
    for one in recorded[:_OF_RUN]:
        try:
            shown.append(job_values(await visit.job(one.destination, one.job_id)))
        except (S3CommitError, HTTPException) as error:
            why = str(error.detail) if isinstance(error, HTTPException) else described(error)
            problems.append(f"Job {one.job_id} on {one.destination}: {why}")
    if more := len(recorded[_OF_RUN:]):
        problems.append(f"{_format.several(more, 'more job')} of this run: search for it in the list of all.")
    return await _page("run", jobs=shown, problems=problems)


#: The status of pages about errors; the first that matches counts.
_STATUS = {
    NoSuchJob: HTTPStatus.NOT_FOUND,
    JobClosed: HTTPStatus.CONFLICT,
    InvalidDestination: HTTPStatus.INTERNAL_SERVER_ERROR,
    InvalidRecord | NoSuchKey: HTTPStatus.UNPROCESSABLE_ENTITY,
    S3CommitError: HTTPStatus.SERVICE_UNAVAILABLE,
    Exception: HTTPStatus.INTERNAL_SERVER_ERROR,
}


async def show_error(_: Request, error: Exception) -> HTMLResponse:
    """Show an error on a page, with a status by its type. Uvicorn logs unexpected errors."""
    words = f"The page failed with {type(error).__name__}; the API server's log has the details."
    if isinstance(error, AnyHTTPException):
        status, words = error.status_code, str(error.detail)
    else:
        status = next(status for kind, status in _STATUS.items() if isinstance(error, kind))
        if isinstance(error, S3CommitError):
            words = str(error) if isinstance(error, Refused) else described(error)
    return await _page("message", status, title="This is not possible", words=words, failed=True, view=None)


async def _page(template: str, status: int = HTTPStatus.OK, **values: Any) -> HTMLResponse:
    return HTMLResponse(await run_in_threadpool(render, template, **values), status, headers=HEADERS)


_TEMPLATES = Path(__file__).parent / "templates"
_STYLE, _SCRIPT = ((_TEMPLATES / name).read_text() for name in ("page.css", "page.js"))

#: Maximum number of rows of a table.
MOST_ROWS = 100


def _amount(title: str, field: str, show: Callable[[Any], str] = _format.number) -> Column:
    """Return a column of numbers; empty where a job has none."""
    return Column(title, field, lambda value: "" if value is None else show(value), to_right=True)


def _partitions(names: Mapping[str, object] | None) -> str:
    return _format.shortened([name or "(root)" for name in sorted(names or ())])


#: The columns of each table. `parts.html` has macros for those whose cells are more than text.
COLUMNS: Mapping[str, Sequence[Column]] = {
    "jobs": (
        Column("Job", "job"),
        Column("State", "job.state"),
        _amount("Pending", "job.output.bytes", _format.size),
        _amount("Idle", "job.silent", _format.age),
        Column("DAG run", "job.context", folds=True),
        Column("Destination", "home.destination", folds=True),
        _amount("Files", "job.output.files"),
        _amount("Rows", "job.output.rows"),
        _amount("Cost per day", "job.output.bytes", cost_per_day),
        _amount("Time in state", "job.age", _format.age),
    ),
    "ended": (
        Column("Job", "job"),
        Column("State", "job.state"),
        _amount("Ended", "job.age", lambda seconds: f"{_format.age(seconds)} ago"),
        _amount("Generation", "job.manifest.generation"),
        Column("DAG run", "job.context", folds=True),
        Column("Destination", "home.destination", folds=True),
        Column("Mode", "job.manifest.mode"),
        Column("Partitions", "job.manifest.partitions", _partitions, folds=True),
        _amount("Files", "job.manifest.counts.files"),
        _amount("Rows", "job.manifest.counts.rows"),
        _amount("Bytes", "job.manifest.counts.bytes", _format.size),
        _amount("Replaced", "job.manifest.replaced.files"),
    ),
    "destinations": (
        Column("Destination", "home.destination", folds=True),
        _amount("Pending", "jobs", lambda jobs: _format.size(stored(jobs))),
        _amount("Longest idle", "jobs", lambda jobs: _format.age(longest_idle(jobs)) if jobs else ""),
        _amount("Jobs", "jobs", length),
        _amount("Cost per day", "jobs", lambda jobs: cost_per_day(stored(jobs))),
        Column("Connection", "home.aws_conn_id", lambda name: name or "none"),
        Column("See also", "home"),
    ),
    "uploads": UploadSummary.columns,
    "stages": StageDetails.columns,
    "partitions": PARTITION_COLUMNS,
    "replaced": (Column("Key", "key", folds=True), _amount("Size", "size", _format.size)),
}


def render(template: str, **values: Any) -> str:
    """Return a page from a template, named without its suffix, with all values escaped."""
    return _ENVIRONMENT.get_template(f"{template}.html").render(**values)


def job_values(view: JobView) -> dict[str, Any]:
    """Return the values of one job for the templates."""
    elsewhere = {"job", "state", "commit replaces", "commit refused"}
    preview = view.details.preview
    return {
        "view": view,
        "facts": facts((one for one in JOB_COLUMNS if one.title not in elsewhere), view.details),
        "replaces": replacement(preview) if preview else view.details.conflict,
        "steps": _steps(view),
    }


def _steps(view: JobView) -> Sequence[NextStep]:
    """Return the next steps, with command lines for the same store."""
    options = () if is_aws_host(view.endpoint) else ("--endpoint-url", view.endpoint)
    commands = CommandLines(view.home.place, view.job.job_id, store_options=options)
    if (successor := view.successor) is not None:
        ended = f"the run has ended with another job, {successor.job_id}, which is {successor.state}"
        return [NextStep(f"{ended}: abort this one", commands.line("abort"))]
    return for_job(view.details, commands)


def _link(page: str, /, **query: object) -> str:
    """Return the address of a page, relative to any other, so that it does not depend on a proxy."""
    given = {name: value for name, value in query.items() if value}
    return (page or "./") + (f"?{urlencode(given, errors='replace')}" if given else "")


def _harmless(value: object) -> object:
    """Escape control characters in text. Anyone who can write to the store chooses keys, ids and reasons."""
    return _format.plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


_ENVIRONMENT = Environment(
    loader=FileSystemLoader(_TEMPLATES),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    finalize=_harmless,
)
_ENVIRONMENT.globals.update(
    columns=COLUMNS,
    most=MOST_ROWS,
    link=_link,
    run_url=lambda context: getattr(Origin.of(context), "url", None),
    state_of=state,
    stored=stored,
    longest_idle=longest_idle,
    style=Markup(_STYLE),  # noqa: S704 - our own
    script=Markup(_SCRIPT),  # noqa: S704
)
_ENVIRONMENT.filters.update(
    age=_format.age,
    amount=amount,
    daily=cost_per_day,
    number=_format.number,
    requests=total_requests,
    size=_format.size,
)
_ENVIRONMENT.globals["parts"] = _ENVIRONMENT.get_template("parts.html").module

#: HTTP headers of every page. Only its own script may run, and no other site may frame it.
HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src {_hash(_STYLE)}; script-src {_hash(_SCRIPT)};"
        " img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
    ),
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}

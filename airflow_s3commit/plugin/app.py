"""The page's web application: which address shows what, and to whom."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from http import HTTPStatus
from itertools import islice
from typing import Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.configuration import conf
from fastapi import Depends, FastAPI, Form, HTTPException, Query, Request
from fastapi.responses import HTMLResponse, Response
from starlette.exceptions import HTTPException as AnyHTTPException

from airflow_s3commit.exceptions import (
    InvalidDestination,
    InvalidRecord,
    JobClosed,
    NoSuchJob,
    Refused,
    S3CommitError,
)
from airflow_s3commit.plugin.access import Access
from airflow_s3commit.plugin.board import MOST_UPLOADS, Board
from airflow_s3commit.plugin.dossier import Dossier
from airflow_s3commit.plugin.ending import Offer, offers
from airflow_s3commit.plugin.forms import FormTokens, comes_from_here
from airflow_s3commit.plugin.pages import Pages
from airflow_s3commit.plugin.places import Place
from airflow_s3commit.plugin.reading import StillRunning
from airflow_s3commit.plugin.run_jobs import jobs_of_run, write_down

__all__ = ["create_app"]

logger = logging.getLogger(__name__)

#: Jobs on one page of a destination.
_PAGE = 25

#: Jobs of each kind that the first page shows of one destination.
_FEW = 8


def _access(user: GetUserDep) -> Access:
    return Access(get_auth_manager(), user)


AccessDep = Annotated[Access, Depends(_access)]
PageNumber = Annotated[int, Query(ge=1, le=1000)]
At = Annotated[str, Query(max_length=2000)]
JobId = Annotated[str, Query(max_length=200)]


def create_app(board: Board | None = None) -> FastAPI:
    """Return the application; every address takes a signed-in user.

    Args:
        board: What reads the stores; by default one that waits eight seconds.

    """
    app = FastAPI(title="S3 commits", docs_url=None, redoc_url=None, openapi_url=None)
    routes = _Routes(board or Board())
    app.add_api_route("/", routes.overview, response_class=HTMLResponse)
    app.add_api_route("/destination", routes.destination, response_class=HTMLResponse)
    app.add_api_route("/uploads", routes.uploads, response_class=HTMLResponse)
    app.add_api_route("/job", routes.job, response_class=HTMLResponse)
    app.add_api_route("/end", routes.ask, response_class=HTMLResponse)
    app.add_api_route("/end", routes.end, methods=["POST"], response_class=HTMLResponse)
    app.add_api_route("/run", routes.run, response_class=HTMLResponse)
    app.add_exception_handler(AnyHTTPException, routes.refusal)
    return app


class _Routes:
    """One method an address. They are plain methods, which FastAPI runs in threads: they wait for stores."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._pages = Pages()
        self._tokens = FormTokens(conf.get("api", "secret_key"))

    def overview(self, request: Request, access: AccessDep, every: int = 0) -> Response:
        """Show all destinations, with the jobs under way and the last ones that ended."""
        try:
            places = self._board.places()
        except InvalidDestination as error:
            return self._page(request, "trouble", title="The configuration cannot be read", words=str(error))
        glances = [glance.seen_by(access.may_read) for glance in self._board.glances(places)]
        return self._page(
            request, "overview", glances=glances, few=_FEW, every=every if every in {5, 10, 30} else 0
        )

    def destination(
        self, request: Request, access: AccessDep, at: At, page: PageNumber = 1, ended: PageNumber = 1
    ) -> Response:
        """Show the jobs of one destination, page by page."""
        place = self._place(at)
        glance = self._board.glances([place])[0].seen_by(access.may_read)
        return self._page(request, "destination", glance=glance, page=page, ended=ended, per_page=_PAGE)

    def uploads(self, request: Request, access: AccessDep, at: At) -> Response:
        """Show the pending uploads of one destination, as far as the user may see the jobs they belong to."""
        place = self._place(at)
        try:
            uploads = self._board.uploads(place)
            glance = self._board.glances([place])[0]
        except S3CommitError as error:
            return self._trouble(request, place, error)
        contexts = {job.job_id: job.context for job in glance.jobs}
        seen = [upload for upload in uploads if access.may_read(contexts.get(upload.job_id or "", {}))]
        return self._page(
            request,
            "uploads",
            place=place,
            uploads=seen[:MOST_UPLOADS],
            cut=len(uploads) > MOST_UPLOADS,
            unclaimed=sum(upload.job_id is None for upload in seen),
        )

    def job(self, request: Request, access: AccessDep, at: At, job_id: JobId) -> Response:
        """Show one job."""
        place = self._place(at)
        try:
            dossier = self._dossier(place, job_id, access)
            values = self._pages.job_values(dossier, self._endpoint_url(place))
        except S3CommitError as error:
            return self._trouble(request, place, error)
        may_end = access.may_end(dossier.summary.context)
        return self._page(
            request,
            "job",
            offers=offers(dossier.summary) if may_end else [],
            **values,
        )

    def ask(  # noqa: PLR0917 - FastAPI's arguments
        self, request: Request, user: GetUserDep, access: AccessDep, at: At, job_id: JobId, step: str
    ) -> Response:
        """Ask whether a job is to be ended; changes nothing."""
        place = self._place(at)
        try:
            dossier, offer = self._endable(place, job_id, step, access)
        except S3CommitError as error:
            return self._trouble(request, place, error)
        token = self._tokens.sign(user.get_id(), step, place.uri, job_id)
        return self._page(
            request,
            "ask",
            place=place,
            job=dossier.summary,
            offer=offer,
            token=token,
            words=None,
            failed=False,
        )

    def end(  # noqa: PLR0917 - FastAPI's arguments
        self,
        request: Request,
        user: GetUserDep,
        access: AccessDep,
        at: Annotated[str, Form(max_length=2000)],
        job_id: Annotated[str, Form(max_length=200)],
        step: Annotated[str, Form(max_length=20)],
        token: Annotated[str, Form(max_length=4000)],
    ) -> Response:
        """End a job, for a user who may edit its run and was shown the form."""
        if not comes_from_here(request.headers, conf.get("api", "base_url", fallback="")):
            raise HTTPException(HTTPStatus.FORBIDDEN, "This form was not sent by this page.")
        if not self._tokens.holds(token, user.get_id(), step, at, job_id):
            raise HTTPException(
                HTTPStatus.FORBIDDEN, "This form is too old, or was not made for you. Open the job again."
            )
        place = self._place(at)
        failed = False
        try:
            dossier, offer = self._endable(place, job_id, step, access)
        except S3CommitError as error:
            return self._trouble(request, place, error)
        job = dossier.summary
        logger.info("%s asks for %s of job %s on %s", user.get_name(), step, job_id, place.uri)
        facts = {"job_id": job_id, "destination": place.uri}
        write_down(f"s3commit.{step}", user.get_name(), job.context, facts)
        try:
            reason = f"{step} by {user.get_name()} on the page in Airflow"
            words = self._board.end(place, job, offer.step, reason)
        except StillRunning:
            words = "This takes a while, and goes on. The job's page shows how far it is."
        except S3CommitError as error:
            failed, words = True, f"{type(error).__name__}: {error}"
        return self._page(
            request, "ask", place=place, job=job, offer=offer, token=None, words=words, failed=failed
        )

    def run(
        self,
        request: Request,
        access: AccessDep,
        dag_id: JobId,
        run_id: Annotated[str, Query(max_length=500)],
    ) -> Response:
        """Show the jobs of one DAG run, on a tab of its page: nothing there can be clicked."""
        context = {"dag_id": dag_id, "run_id": run_id}
        if not access.may_read(context):
            raise HTTPException(HTTPStatus.FORBIDDEN, "You may not read the runs of this DAG.")
        try:
            places = self._board.places()
        except InvalidDestination as error:
            return self._page(request, "trouble", title="The configuration cannot be read", words=str(error))
        shown, troubles = [], []
        for job_id, uri in self._jobs_of(places, dag_id, run_id).items():
            place = next((place for place in places if place.uri == uri), None)
            if place is None:
                troubles.append(f"Job {job_id} is on {uri}, which is not in [s3commit] destinations.")
                continue
            try:
                dossier = self._dossier(place, job_id, access)
                shown.append(self._pages.job_values(dossier, self._endpoint_url(place)))
            except NoSuchJob:
                troubles.append(f"Job {job_id} on {uri}: nothing of it is left.")
            except S3CommitError as error:
                troubles.append(f"Job {job_id} on {uri}: {type(error).__name__}: {error}")
        return self._page(request, "run", jobs=shown, troubles=troubles, dag_id=dag_id, run_id=run_id)

    def refusal(self, request: Request, error: Exception) -> Response:
        """Show why a request is refused, with its status."""
        assert isinstance(error, AnyHTTPException)
        title = {
            HTTPStatus.UNAUTHORIZED: "You are not signed in to Airflow",
            HTTPStatus.FORBIDDEN: "You may not do this",
            HTTPStatus.NOT_FOUND: "There is nothing here",
        }.get(HTTPStatus(error.status_code), "This cannot be shown")
        page = self._page(request, "trouble", title=title, words=str(error.detail))
        page.status_code = error.status_code
        return page

    def _jobs_of(self, places: Sequence[Place], dag_id: str, run_id: str) -> dict[str, str]:
        """Return the destinations of a run's jobs: as its tasks said, and as jobs say of themselves."""
        found = {job.job_id: job.destination for job in jobs_of_run(dag_id, run_id)}
        for glance in self._board.glances(places):
            for job in (*glance.jobs, *glance.ended):
                if (job.context.get("dag_id"), job.context.get("run_id")) == (dag_id, run_id):
                    found.setdefault(job.job_id, glance.place.uri)
        return dict(islice(found.items(), _FEW))

    def _place(self, uri: str) -> Place:
        try:
            return self._board.place(uri)
        except InvalidDestination as error:
            raise HTTPException(HTTPStatus.NOT_FOUND, str(error)) from error

    def _dossier(self, place: Place, job_id: str, access: Access) -> Dossier:
        """Return a job; one that the user may not see is as if it were not there."""
        try:
            dossier = self._board.dossier(place, job_id)
            if access.may_read(dossier.summary.context):
                return dossier
        except (NoSuchJob, InvalidRecord):
            logger.debug("no job %s at %s", job_id, place.uri, exc_info=True)
        raise NoSuchJob(f"no job {job_id} is known at {place.uri}, or it belongs to a DAG you may not read")

    def _endable(self, place: Place, job_id: str, step: str, access: Access) -> tuple[Dossier, Offer]:
        dossier = self._dossier(place, job_id, access)
        if not access.may_end(dossier.summary.context):
            raise HTTPException(HTTPStatus.FORBIDDEN, "Ending a job takes the right to edit its DAG's runs.")
        for offer in offers(dossier.summary):
            if offer.step == step:
                return dossier, offer
        raise JobClosed(f"job {job_id} is {dossier.summary.state or 'gone'} by now; there is no {step} of it")

    def _endpoint_url(self, place: Place) -> str | None:
        return self._board.endpoint_url(place.aws_conn_id)

    def _trouble(self, request: Request, place: Place, error: S3CommitError) -> Response:
        title, status = "The store could not be asked", HTTPStatus.SERVICE_UNAVAILABLE
        if isinstance(error, NoSuchJob):
            title, status = "There is nothing here", HTTPStatus.NOT_FOUND
        elif isinstance(error, JobClosed):
            title, status = "The job has moved on", HTTPStatus.CONFLICT
        words = str(error) if isinstance(error, Refused) else f"{place.uri}: {type(error).__name__}: {error}"
        page = self._page(request, "trouble", title=title, words=words)
        page.status_code = status
        return page

    def _page(self, request: Request, template: str, **values: Any) -> Response:
        root = str(request.scope.get("root_path", ""))
        html = self._pages.render(template, root, **values)
        return HTMLResponse(html, headers=self._pages.headers)

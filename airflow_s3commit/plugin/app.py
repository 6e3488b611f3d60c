"""The web application of the page: its routes and their responses."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from http import HTTPStatus
from itertools import islice
from typing import Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import Depends, FastAPI, Form, HTTPException, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException as AnyHTTPException

from airflow_s3commit._causes import described
from airflow_s3commit.exceptions import (
    InvalidDestination,
    InvalidRecord,
    JobClosed,
    NoSuchJob,
    NoSuchKey,
    Refused,
    S3CommitError,
)
from airflow_s3commit.plugin.auth import Access, FormTokens, Metadata, Origin, is_same_origin
from airflow_s3commit.plugin.history import HistoryView
from airflow_s3commit.plugin.render import Pages
from airflow_s3commit.plugin.service import FRESH, MOST_UPLOADS, DestinationService, Offer, Unreadable, offers
from airflow_s3commit.plugin.stores import Place, StillRunning
from airflow_s3commit.plugin.views import IDLE, STATES, DestinationView, JobView, Wanted, search_fleet
from airflow_s3commit.protocol.inspect.jobs import UploadSummary
from airflow_s3commit.settings import api_base_url, api_secret_key

logger = logging.getLogger(__name__)

#: Rows on one page of a table.
_PAGE = 25

#: Maximum number of destinations to read anew, with their ended jobs, each time the list of jobs is loaded.
_FEW_PLACES = 12

#: Maximum number of jobs on the tab of a run.
_OF_RUN = 8


class CarefulRoute(APIRoute):
    """A route whose unexpected exceptions are logged and become a page with status 503."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of requests."""
        answer = super().get_route_handler()

        async def careful(request: Request) -> Response:
            try:
                return await answer(request)
            except (HTTPException, RequestValidationError):
                raise
            except Exception as error:
                logger.exception("the page %s failed", request.url.path)
                raise HTTPException(
                    HTTPStatus.SERVICE_UNAVAILABLE,
                    f"The page failed with {type(error).__name__}; the API server's log has the details.",
                ) from error

        return careful


def _access(request: Request, user: GetUserDep) -> Access:
    access = Access(get_auth_manager(), user, request.app.state.metadata)
    if not access.may_look():
        raise HTTPException(HTTPStatus.FORBIDDEN, "You need permission to read a DAG.")
    return access


AccessDep = Annotated[Access, Depends(_access)]
PageNumber = Annotated[int, Query(ge=1, le=1000)]
EntryNumber = Annotated[int | None, Query(ge=1, lt=2**63)]
At = Annotated[str, Query(max_length=2000)]
JobId = Annotated[str, Query(max_length=200)]


def create_app(service: DestinationService | None = None, metadata: Metadata | None = None) -> FastAPI:
    """Return the application. Every route requires a signed-in user who may read a DAG.

    Args:
        service: Reads the stores; by default with a timeout of eight seconds.
        metadata: The metadata of DAGs and runs; by default Airflow's database.

    """
    app = FastAPI(title="S3 commits", docs_url=None, redoc_url=None, openapi_url=None)
    app.router.route_class = CarefulRoute
    app.state.metadata = metadata or Metadata()
    routes = _Routes(service or DestinationService(), app.state.metadata)
    app.add_api_route("/", routes.overview, response_class=HTMLResponse)
    app.add_api_route("/destination", routes.destination, response_class=HTMLResponse)
    app.add_api_route("/history", routes.history, response_class=HTMLResponse)
    app.add_api_route("/uploads", routes.uploads, response_class=HTMLResponse)
    app.add_api_route("/job", routes.job, response_class=HTMLResponse)
    app.add_api_route("/end", routes.confirm, response_class=HTMLResponse)
    app.add_api_route("/end", routes.end, methods=["POST"], response_class=HTMLResponse)
    app.add_api_route("/run", routes.run, response_class=HTMLResponse)
    app.add_exception_handler(AnyHTTPException, routes.http_error)
    return app


class _Routes:
    """The routes. They await stores without blocking a thread, and do other work in the thread pool."""

    def __init__(self, service: DestinationService, metadata: Metadata) -> None:
        self._service = service
        self._metadata = metadata
        self._pages = Pages()
        self._tokens = FormTokens(api_secret_key())

    async def overview(  # noqa: PLR0917 - FastAPI's arguments
        self,
        request: Request,
        access: AccessDep,
        find: Annotated[str, Query(max_length=500)] = "",
        state: Annotated[str, Query(max_length=20)] = "",
        idle: int = 0,
        page: PageNumber = 1,
        places: PageNumber = 1,
        ended: PageNumber = 1,
        every: int = 0,
    ) -> Response:
        """Show the jobs of all destinations, or of those that a search finds; of few also the ended ones."""
        try:
            known = await self._service.places()
        except InvalidDestination as error:
            return self._misconfigured(request, error)
        wanted = Wanted(find.strip(), state if state in STATES else "", idle if idle in IDLE else 0)
        few = len(known.places) <= _FEW_PLACES
        views = await self._visible(await self._service.destination_views(known.places, whole=few), access)
        return await self._page(
            request,
            "fleet",
            fleet=search_fleet(views, wanted),
            known=len(known.places),
            fresh=0 if few else FRESH,
            registry_problem=known.problem,
            wanted=wanted,
            states=STATES,
            idles=IDLE,
            every=every if every in {5, 10, 30} else 0,
            page=page,
            places=places,
            ended=ended,
            per_page=_PAGE,
        )

    async def destination(
        self, request: Request, access: AccessDep, at: At, page: PageNumber = 1, ended: PageNumber = 1
    ) -> Response:
        """Show the jobs of one destination, page by page."""
        (destination_view,) = await self._visible(
            await self._service.destination_views([await self._place(at)]), access
        )
        return await self._page(
            request,
            "destination",
            destination_view=destination_view,
            fleet=search_fleet([destination_view], Wanted()),
            page=page,
            ended=ended,
            per_page=_PAGE,
        )

    async def history(
        self, request: Request, access: AccessDep, at: At, before: EntryNumber = None
    ) -> Response:
        """Show the generations of a destination's table, newest first, page by page."""
        place = await self._place(at)
        try:
            whole = await self._service.history(place, before)
        except S3CommitError as error:
            return self._store_error(request, place, error)

        def visible() -> HistoryView:
            access.prefetch([*(step.entry.context for step in whole.steps), *whole.sized])
            return whole.visible_to(access.may_read)

        history_view = await run_in_threadpool(visible)
        return await self._page(request, "history", history_view=history_view, newest=before is None)

    async def uploads(self, request: Request, access: AccessDep, at: At) -> Response:
        """Show the pending uploads of one destination, for jobs that the user may see."""
        place = await self._place(at)
        try:
            uploads = await self._service.uploads(place)
        except S3CommitError as error:
            return self._store_error(request, place, error)
        (destination_view,) = await self._service.destination_views([place])
        contexts = {job.job_id: job.context for job in destination_view.jobs}

        def visible() -> list[UploadSummary]:
            access.prefetch(contexts.values())
            return [upload for upload in uploads if access.may_read(contexts.get(upload.job_id or "", {}))]

        shown = await run_in_threadpool(visible)
        return await self._page(
            request,
            "uploads",
            place=place,
            uploads=shown[:MOST_UPLOADS],
            cut=len(uploads) > MOST_UPLOADS,
            unclaimed=sum(upload.job_id is None for upload in shown),
        )

    async def job(self, request: Request, access: AccessDep, at: At, job_id: JobId) -> Response:
        """Show one job."""
        place = await self._place(at)
        try:
            job_view = await self._job_view(place, job_id, access)
            values = await self._job_values(job_view)
        except S3CommitError as error:
            return self._store_error(request, place, error)
        possible = offers(job_view)
        refused = (
            await run_in_threadpool(access.why_not_end, job_view.summary, place.uri) if possible else None
        )
        return await self._page(request, "job", offers=[] if refused else possible, refused=refused, **values)

    async def confirm(  # noqa: PLR0917 - FastAPI's arguments
        self, request: Request, user: GetUserDep, access: AccessDep, at: At, job_id: JobId, step: str
    ) -> Response:
        """Show the form that confirms the end of a job. Reads only."""
        place = await self._place(at)
        try:
            job_view, offer = await self._endable(place, job_id, step, access)
        except S3CommitError as error:
            return self._store_error(request, place, error)
        token = self._tokens.sign(user.get_id(), step, place.uri, job_id)
        return await self._page(
            request,
            "confirm",
            place=place,
            job=job_view.summary,
            offer=offer,
            token=token,
            words=None,
            failed=False,
        )

    async def end(  # noqa: PLR0917 - FastAPI's arguments
        self,
        request: Request,
        user: GetUserDep,
        access: AccessDep,
        at: Annotated[str, Form(max_length=2000)],
        job_id: Annotated[str, Form(max_length=200)],
        step: Annotated[str, Form(max_length=20)],
        token: Annotated[str, Form(max_length=4000)],
    ) -> Response:
        """End a job, for a user who confirmed it and may edit its run."""
        if not is_same_origin(request.headers, api_base_url()):
            raise HTTPException(HTTPStatus.FORBIDDEN, "This form was not sent from this page.")
        if not self._tokens.is_valid(token, user.get_id(), step, at, job_id):
            raise HTTPException(
                HTTPStatus.FORBIDDEN, "This form has expired, or is for another user. Open the job again."
            )
        place = await self._place(at)
        failed = False
        try:
            job_view, offer = await self._endable(place, job_id, step, access)
        except S3CommitError as error:
            return self._store_error(request, place, error)
        job = job_view.summary
        logger.info("user %s requests %s of job %s on %s", user.get_name(), step, job_id, place.uri)
        await run_in_threadpool(
            self._metadata.log_action,
            f"s3commit.{step}",
            user.get_name(),
            await run_in_threadpool(access.origin, job.context),
            {"job_id": job_id, "destination": place.uri},
        )
        try:
            reason = f"{step} by {user.get_name()} on the page in Airflow"
            words = await self._service.end(place, job, offer.step, reason)
        except StillRunning:
            words = "This takes longer, and continues in the background. The job's page shows the progress."
        except S3CommitError as error:
            failed, words = True, described(error)
        return await self._page(
            request, "confirm", place=place, job=job, offer=offer, token=None, words=words, failed=failed
        )

    async def run(
        self,
        request: Request,
        access: AccessDep,
        dag_id: JobId,
        run_id: Annotated[str, Query(max_length=500)],
    ) -> Response:
        """Show the jobs of one DAG run, on a read-only tab of its page."""
        context = {"dag_id": dag_id, "run_id": run_id}
        origin = Origin.of(context)
        if origin is None or not await run_in_threadpool(access.may_read, context):
            raise HTTPException(HTTPStatus.FORBIDDEN, "You need permission to read the runs of this DAG.")
        try:
            known = await self._service.places()
        except InvalidDestination as error:
            return self._misconfigured(request, error)
        shown, problems = [], []
        for job_id, uri in (await self._jobs_of(known.configured[:_FEW_PLACES], origin)).items():
            place = next((place for place in known.places if place.uri == uri), None)
            if place is None:
                problems.append(
                    f"Job {job_id} is on {uri}, which is not in [s3commit] destinations or the registry."
                )
                continue
            try:
                shown.append(await self._job_values(await self._job_view(place, job_id, access)))
            except NoSuchJob:
                problems.append(f"Job {job_id} on {uri} no longer exists.")
            except S3CommitError as error:
                problems.append(f"Job {job_id} on {uri}: {described(error)}")
        return await self._page(request, "run", jobs=shown, problems=problems, dag_id=dag_id, run_id=run_id)

    def http_error(self, request: Request, error: Exception) -> Response:
        """Show an HTTP error with its status."""
        assert isinstance(error, AnyHTTPException)
        title = {
            HTTPStatus.UNAUTHORIZED: "You are not signed in to Airflow",
            HTTPStatus.FORBIDDEN: "Permission denied",
            HTTPStatus.NOT_FOUND: "Not found",
        }.get(HTTPStatus(error.status_code), "The page cannot be shown")
        return self._error_page(request, title, str(error.detail), error.status_code)

    async def _visible(
        self, destination_views: Sequence[DestinationView], access: Access
    ) -> list[DestinationView]:
        """Return the views without the jobs that the user may not see."""

        def visible() -> list[DestinationView]:
            access.prefetch(
                job.context
                for destination_view in destination_views
                for job in (*destination_view.jobs, *destination_view.ended)
            )
            return [destination_view.visible_to(access.may_read) for destination_view in destination_views]

        return await run_in_threadpool(visible)

    async def _jobs_of(self, places: Sequence[Place], origin: Origin) -> dict[str, str]:
        """Return the destination URIs of a run's jobs by job id, from XComs and from the jobs' records."""
        known = await run_in_threadpool(self._metadata.jobs_of, origin)
        found = {job.job_id: job.destination for job in known}
        for destination_view in await self._service.destination_views(places):
            for job in (*destination_view.jobs, *destination_view.ended):
                claimed = Origin.of(job.context)
                if claimed and (claimed.dag_id, claimed.run_id) == (origin.dag_id, origin.run_id):
                    found.setdefault(job.job_id, destination_view.place.uri)
        return dict(islice(found.items(), _OF_RUN))

    async def _place(self, uri: str) -> Place:
        try:
            return await self._service.place(uri)
        except InvalidDestination as error:
            raise HTTPException(HTTPStatus.NOT_FOUND, str(error)) from error

    async def _job_view(self, place: Place, job_id: str, access: Access) -> JobView:
        """Return a job; raise `NoSuchJob` also for a job that the user may not see."""
        try:
            job_view = await self._service.job_view(place, job_id)
            if await run_in_threadpool(access.may_read, job_view.summary.context):
                return job_view
        except NoSuchJob:
            logger.debug("no job %s at %s", job_id, place.uri, exc_info=True)
        except (InvalidRecord, Unreadable):
            # The DAG of the job is unknown.
            if await run_in_threadpool(access.may_read, {}):
                raise
        raise NoSuchJob(f"no job {job_id} at {place.uri}, or you have no permission to read its DAG")

    async def _job_values(self, job_view: JobView) -> dict[str, Any]:
        def values() -> dict[str, Any]:
            return self._pages.job_values(job_view, self._service.endpoint_url(job_view.place.aws_conn_id))

        return await run_in_threadpool(values)

    async def _endable(self, place: Place, job_id: str, step: str, access: Access) -> tuple[JobView, Offer]:
        job_view = await self._job_view(place, job_id, access)
        refused = await run_in_threadpool(access.why_not_end, job_view.summary, place.uri)
        if refused is not None:
            raise HTTPException(HTTPStatus.FORBIDDEN, refused)
        for offer in offers(job_view):
            if offer.step == step:
                return job_view, offer
        raise JobClosed(f"job {job_id} is {job_view.summary.state or 'gone'} now, so {step} is not possible")

    def _store_error(self, request: Request, place: Place, error: S3CommitError) -> Response:
        title, status = "The store is unavailable", HTTPStatus.SERVICE_UNAVAILABLE
        if isinstance(error, NoSuchJob):
            title, status = "Not found", HTTPStatus.NOT_FOUND
        elif isinstance(error, JobClosed):
            title, status = "The state of the job has changed", HTTPStatus.CONFLICT
        elif isinstance(error, InvalidRecord | NoSuchKey | Unreadable):
            title, status = "The records cannot be read", HTTPStatus.UNPROCESSABLE_ENTITY
        words = str(error) if isinstance(error, Refused) else f"{place.uri}: {described(error)}"
        return self._error_page(request, title, words, status)

    def _misconfigured(self, request: Request, error: InvalidDestination) -> Response:
        return self._error_page(request, "The configuration is not valid", str(error), HTTPStatus.OK)

    def _error_page(self, request: Request, title: str, words: str, status: int) -> Response:
        return self._rendered(request, "error", status, title=title, words=words)

    async def _page(self, request: Request, template: str, **values: Any) -> Response:
        return await run_in_threadpool(self._rendered, request, template, HTTPStatus.OK, **values)

    def _rendered(self, request: Request, template: str, status: int, **values: Any) -> Response:
        root = str(request.scope.get("root_path", ""))
        html = self._pages.render(template, root, **values)
        # Keys from a store may contain lone surrogates, which UTF-8 cannot encode.
        body = html.encode("utf-8", "backslashreplace")
        return HTMLResponse(body, status, headers=self._pages.headers)

"""The plugin that Airflow loads. It imports little, because every task process loads it too."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from airflow_s3commit.airflow_version import AirflowPlugin
from airflow_s3commit.assets import HivePathMapper

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


class _LazyApp:
    """An ASGI application that the first request creates; only the API server receives requests."""

    def __init__(self) -> None:
        self._app: ASGIApp | None = None
        self._lock = threading.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Imports take seconds, in which the API server has other requests.
        app = self._app
        if app is None:
            app = await asyncio.to_thread(self._loaded)
        await app(scope, receive, send)

    def _loaded(self) -> ASGIApp:
        with self._lock:
            if self._app is None:
                from airflow_s3commit.plugin.app import create_app  # noqa: PLC0415 - loads FastAPI
                from airflow_s3commit.plugin.service import load_clients  # noqa: PLC0415

                load_clients()
                self._app = create_app()
            return self._app


class S3CommitPlugin(AirflowPlugin):
    """Adds the page "S3 commits" to the menu Browse, and a tab to the page of each DAG run.

    The URLs are relative, so that they work where Airflow is served below a path.
    """

    name = "s3commit"
    partition_mappers = [HivePathMapper]  # noqa: RUF012 - Airflow's API
    fastapi_apps = [{"app": _LazyApp(), "url_prefix": "/s3commit", "name": "S3 commits"}]  # noqa: RUF012
    external_views = [  # noqa: RUF012 - Airflow's API
        {
            "name": "S3 commits",
            "href": "s3commit/",
            "destination": "nav",
            "category": "browse",
            "url_route": "s3commit",
        },
        {
            "name": "S3 commit",
            "href": "s3commit/run?dag_id={DAG_ID}&run_id={RUN_ID}",
            "destination": "dag_run",
            "url_route": "s3commit-run",
        },
    ]

"""The application that the plugin's first request creates."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from airflow_s3commit.plugin import app, service
from airflow_s3commit.plugin.entry import S3CommitPlugin

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.airflow, pytest.mark.xdist_group("airflow-page")]


def test_the_first_request_waits_for_clients_and_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients are loaded before the page's time begins, once, beside the event loop of the API server."""
    steps: list[str] = []
    release = threading.Event()

    def load() -> None:
        assert threading.current_thread() is not threading.main_thread()
        assert release.wait(60)
        steps.append("clients")

    async def page(*_: Any) -> None:
        steps.append("page")

    def create() -> Callable[..., Any]:
        steps.append("app")
        return page

    monkeypatch.setattr(service, "load_clients", load)
    monkeypatch.setattr(app, "create_app", create)
    lazy = type(S3CommitPlugin.fastapi_apps[0]["app"])()

    async def other() -> None:
        steps.append("other request")
        release.set()

    async def requests() -> None:
        await asyncio.gather(lazy({}, None, None), lazy({}, None, None), other())

    asyncio.run(requests())
    assert steps == ["other request", "clients", "app", "page", "page"]


def test_clients_are_loaded_without_a_request() -> None:
    """Nothing listens there, and nothing fails."""
    service.load_clients()

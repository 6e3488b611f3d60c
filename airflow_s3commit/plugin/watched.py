"""A route that stops when its browser is gone, and that answers whatever a record makes it meet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any

from fastapi import HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute

__all__ = ["WatchedRoute"]

logger = logging.getLogger(__name__)

#: What nobody gets any more; the number that proxies log for it.
_CLIENT_IS_GONE = 499


class WatchedRoute(APIRoute):
    """A route whose GET requests are cancelled when the browser disconnects.

    What it raises unforeseen goes to the log, and the page says that it cannot be shown.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what answers a request."""
        answer = super().get_route_handler()

        async def careful(request: Request) -> Response:
            try:
                if request.method == "GET":
                    return await _while_connected(request, answer(request))
                return await answer(request)
            except (HTTPException, RequestValidationError):
                raise
            except Exception as error:
                logger.exception("the page %s failed", request.url.path)
                raise HTTPException(
                    HTTPStatus.SERVICE_UNAVAILABLE,
                    f"The page met {type(error).__name__}, which the API server's log explains.",
                ) from error

        return careful


async def _while_connected(request: Request, answer: Coroutine[Any, Any, Response]) -> Response:
    answering = asyncio.ensure_future(answer)
    watching = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({answering, watching}, return_when=asyncio.FIRST_COMPLETED)
        return answering.result() if answering.done() else Response(status_code=_CLIENT_IS_GONE)
    finally:
        watching.cancel()
        answering.cancel()
        # So that what it waits for knows that nobody does.
        await asyncio.gather(answering, watching, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass

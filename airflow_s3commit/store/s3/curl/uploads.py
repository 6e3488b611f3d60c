"""Start uploads and send small parts through libcurl, each in the thread that calls.

boto3 spends about two milliseconds of processor time on these two requests of a small file, libcurl less than
a third of that. Only a plain success counts here: after anything else boto3 sends the request, which knows
redirects, renewed credentials, throttling and errors.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any

import pycurl

from airflow_s3commit.store.s3.curl.connections import Connection
from airflow_s3commit.store.s3.curl.messages import BUSY, FAILED, OK, SingleCall, is_sendable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_s3commit.store.s3.curl.messages import Response
    from airflow_s3commit.store.s3.curl.routes import Routes
    from airflow_s3commit.store.s3.request import Request

#: Bytes of the largest part that is sent here: libcurl copies it.
SMALL = 1 << 20

# Headers that libcurl sends as they are: it removes one without a value.
_is_plain = re.compile(r"[!-~]+: [!-~](?:[ -~]*[!-~])?", re.ASCII).fullmatch

# An id with entities is left to boto3.
_find_upload = re.compile(rb"<UploadId>([^<>&]+)</UploadId>").search


class SmallUploads:
    """Two operations of one client; safe to use from several threads.

    Args:
        client: The boto3 client whose model names the headers.
        options: The libcurl options of all connections.
        routes: Where the client sends requests, and how it signs them.
    """

    def __init__(self, client: Any, options: dict[int, Any], routes: Routes) -> None:
        self._model = client.meta.service_model
        self._options = options
        self._routes = routes
        # By process: a forked one leaves its parent's connections alone.
        self._idle: defaultdict[int, deque[Connection]] = defaultdict(deque)

    def start(self, request: Request, options: Mapping[str, Any]) -> dict[str, str] | None:
        """Start an upload; return the response as boto3 does, or None if boto3 has to send the request.

        Args:
            request: The request.
            options: Its parameters, as boto3 names them, besides bucket and key.

        Raises:
            OutcomeUnknown: The upload may have been started.
        """
        response = self._send(request, "uploads", options)
        found = _find_upload(response.body) if response is not None else None
        if response is None or found is None:
            return None
        kind = response.headers.get("x-amz-checksum-type")
        return {"UploadId": found[1].decode()} | ({"ChecksumType": kind} if kind else {})

    def send_part(
        self, request: Request, number: int, body: bytes | bytearray | memoryview, options: Mapping[str, Any]
    ) -> dict[str, str] | None:
        """Send a part of at most `SMALL` bytes; return the response as boto3 does, or None, as for `start`.

        Raises:
            OutcomeUnknown: The part may have been stored.
        """
        content = memoryview(body)
        if content.nbytes > SMALL:
            return None
        response = self._send(request, f"partNumber={number}", options, content.tobytes())
        etag = response.headers.get("etag") if response is not None else None
        return {"ETag": etag} if etag else None

    def _send(
        self, request: Request, query: str, options: Mapping[str, Any], body: bytes = b""
    ) -> Response | None:
        headers = [*self._headers(request.operation, options)]
        call = SingleCall(request.bucket, request.key or "", request.upload_id or "", query, headers, body)
        route = None
        if is_sendable(call) and all(map(_is_plain, headers)):
            route = self._routes.find(request.bucket, request.operation)
        if route is None:
            return None
        idle = self._idle[os.getpid()]
        try:
            connection = idle.pop()
        except IndexError:
            connection = Connection("UploadPart", self._options, [])
        connection.prepare(None, route, call)
        try:
            connection.handle.perform()
            response = connection.response(is_whole=True)
        except pycurl.error:
            response = connection.response(is_whole=False)
        idle.append(connection)
        if response is None or (response.status >= FAILED and response.status not in BUSY):
            raise request.unconfirmed("the response is missing, or an error of the store")
        return response if response.status == OK else None

    def _headers(self, operation: str, options: Mapping[str, Any]) -> Iterator[str]:
        """Yield the header lines that boto3 makes of a request's parameters."""
        members = self._model.operation_model(operation).input_shape.members
        for name, value in options.items():
            header = members[name].serialization["name"]
            if isinstance(value, dict):
                yield from (f"{header}{key}: {text}" for key, text in value.items())
            else:
                yield f"{header}: {str(value).lower() if isinstance(value, bool) else value}"

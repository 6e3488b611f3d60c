"""Faults on the way to a store, put in where botocore would send: its parser, signer and retries are real."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from botocore.awsrequest import AWSResponse

from airflow_s3commit.store.s3.config import S3Config, new_client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from botocore.awsrequest import AWSPreparedRequest
    from mypy_boto3_s3.client import S3Client

__all__ = ["DATE", "Answer", "Wire", "error_body"]

#: What every answer says is the time: Sunday, 6 November 1994, 08:49:37 GMT (the example of RFC 9110).
DATE = 784_111_777.0


class _Raw(io.BytesIO):
    """The body of an answer, as urllib3 offers it."""

    def stream(self, **_: object) -> Iterator[bytes]:
        yield self.read()


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to one request; the time of answering, and the body's length, are added to its headers."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    has_length: bool = True


def error_body(code: str, message: str = "said the store") -> bytes:
    """Return the body of an error as S3 words it."""
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()


@cache
def _shared_client() -> S3Client:
    return new_client(S3Config("https://s3.example.test", "eu-west-1", "the-access-key", "the-secret-key"))


#: What answers for the shared client at present.
_last: list[Callable[..., AWSResponse]] = []


class Wire:
    """A client whose requests are answered from a script; the last line of it repeats.

    Args:
        script: What becomes of each request: an answer, or the error that botocore would raise.
        config: How the client is made; by default towards an https endpoint that does not exist.

    Attributes:
        client: The client.
        requests: The requests that were sent, as they would have gone over the wire.
    """

    def __init__(self, *script: Answer | Exception, config: S3Config | None = None) -> None:
        self.client: S3Client = new_client(config) if config else _shared_client()
        self.requests: list[AWSPreparedRequest] = []
        self._script = list(script)
        events: Any = self.client.meta.events  # its types forbid handlers to answer, which this event is for
        if config is None:
            # One test after the other has the shared client to itself.
            if _last:
                events.unregister("before-send.s3", _last.pop())
            _last.append(self._answer)
        events.register("before-send.s3", self._answer)

    def _answer(self, request: AWSPreparedRequest, **_: object) -> AWSResponse:
        self.requests.append(request)
        step = self._script.pop(0) if len(self._script) > 1 else self._script[0]
        if isinstance(step, Exception):
            raise step
        headers: Any = {"date": "Sun, 06 Nov 1994 08:49:37 GMT"}
        if step.has_length:
            headers["content-length"] = str(len(step.body))
        raw: Any = _Raw(step.body)
        return AWSResponse(request.url, step.status, headers | step.headers, raw)

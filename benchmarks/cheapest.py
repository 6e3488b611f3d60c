"""The cheapest clients, with which `commit_rate` compares ours; both use libcurl's multi interface.

- `Minimal` is the cheapest client that completes uploads: for each upload it computes a signature and a body,
  and it checks each answer for a 200 with an ETag. It retries, limits and reports nothing, renews no
  credentials, and would accept many wrong answers.
- `Bare` sends one request, signed beforehand, again and again, and checks only the status. No client that
  completes uploads can do that, because each upload has a key, an id and hence a signature of its own. Its
  rate is the limit of the server, not of a client.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import math
import re
import select
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import pycurl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_s3commit import S3Config
    from airflow_s3commit.store.base import Complete

#: What a completion's answer must contain.
_HAS_ETAG = re.compile(rb"<ETag>(?:&quot;|&#34;|\")?[^<]+</ETag>").search

_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"


class _Multi:
    """Transfers of libcurl under way; each handle is reused as soon as it is free."""

    def __init__(self, connections: int) -> None:
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_MAXCONNECTS, connections)
        self._poller = select.epoll()
        self._watched: dict[int, int] = {}
        self._alarm = math.inf
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._watch)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._set_alarm)

    def run(self, handles: list[Any], begin: Callable[[Any], bool], end: Callable[[Any], None]) -> None:
        """Let each handle make transfers, one after another, for as long as ``begin`` prepares it for one."""
        busy = 0
        for handle in handles:
            if not begin(handle):
                break
            self._multi.add_handle(handle)
            busy += 1
        while busy:
            for descriptor, events in self._poller.poll(min(60.0, max(0.0, self._alarm - time.monotonic()))):
                ready = pycurl.CSELECT_OUT if events == select.EPOLLOUT else pycurl.CSELECT_IN
                self._multi.socket_action(descriptor, ready)
            if self._alarm <= time.monotonic():
                self._alarm = math.inf
                self._multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)
            left = 1
            while left:
                left, good, bad = self._multi.info_read()
                assert not bad, bad
                for handle in good:
                    end(handle)
                    self._multi.remove_handle(handle)
                    if begin(handle):
                        self._multi.add_handle(handle)
                    else:
                        busy -= 1

    def handle(self) -> Any:
        """Return a new handle."""
        handle = pycurl.Curl()
        handle.setopt(pycurl.SOCKOPTFUNCTION, self._forget)
        return handle

    def _watch(self, events: int, descriptor: int, *_: object) -> None:
        # As our client does, it keeps a socket registered until the socket's number is used again.
        if events == pycurl.POLL_REMOVE or self._watched.get(descriptor) == events:
            return
        self._watched[descriptor] = events
        wanted = (select.EPOLLIN if events & pycurl.POLL_IN else 0) | (
            select.EPOLLOUT if events & pycurl.POLL_OUT else 0
        )
        try:
            self._poller.register(descriptor, wanted)
        except FileExistsError:
            self._poller.modify(descriptor, wanted)

    def _forget(self, descriptor: int, _: int) -> int:
        self._watched.pop(descriptor, None)
        return int(pycurl.SOCKOPT_OK)

    def _set_alarm(self, milliseconds: int) -> None:
        self._alarm = math.inf if milliseconds < 0 else time.monotonic() + milliseconds / 1000


class Minimal:
    """The cheapest client that completes uploads.

    Args:
        config: Address and keys of the server.
        connections: Number of connections.
    """

    def __init__(self, config: S3Config, connections: int) -> None:
        self._multi = _Multi(connections)
        self._endpoint = str(config.endpoint_url)
        self._signer = _Signer(config)
        self._received: dict[Any, list[bytes]] = {}
        for _ in range(connections):
            handle = self._multi.handle()
            self._received[handle] = []
            handle.setopt(pycurl.POST, True)
            handle.setopt(pycurl.WRITEFUNCTION, self._received[handle].append)

    def __call__(self, calls: list[Complete]) -> None:
        """Complete uploads."""
        source = iter(calls)

        def begin(handle: Any) -> bool:
            call = next(source, None)
            if call is None:
                return False
            path = quote(f"/{call.bucket}/{call.key}")
            query = f"uploadId={quote(call.upload_id, safe='')}"
            parts = "".join(
                f'<Part><PartNumber>{number}</PartNumber><ETag>"{etag}"</ETag></Part>'
                for number, etag in enumerate(call.etags, start=1)
            )
            body = f'<CompleteMultipartUpload xmlns="{_NAMESPACE}">{parts}</CompleteMultipartUpload>'.encode()
            handle.setopt(pycurl.URL, f"{self._endpoint}{path}?{query}")
            handle.setopt(pycurl.HTTPHEADER, self._signer.headers(path, query, body))
            handle.setopt(pycurl.POSTFIELDS, body)
            return True

        def end(handle: Any) -> None:
            received = self._received[handle]
            assert handle.getinfo(pycurl.RESPONSE_CODE) == 200
            assert _HAS_ETAG(b"".join(received))
            received.clear()

        self._multi.run(list(self._received), begin, end)


class _Signer:
    """Signs with signature version 4; computes the time and the key once a second."""

    def __init__(self, config: S3Config) -> None:
        self._host = urlsplit(str(config.endpoint_url)).netloc
        self._access_key, self._secret_key = str(config.access_key), str(config.secret_key)
        self._region = config.region
        self._second = 0
        self._stamp = self._scope = ""
        self._key = b""

    def headers(self, path: str, query: str, body: bytes) -> list[str]:
        """Return the headers of a POST."""
        if int(time.time()) != self._second:
            self._begin_second(int(time.time()))
        digest = hashlib.sha256(body).hexdigest()
        names = "content-type;host;x-amz-content-sha256;x-amz-date"
        request = (
            f"POST\n{path}\n{query}\ncontent-type:application/xml\nhost:{self._host}\n"
            f"x-amz-content-sha256:{digest}\nx-amz-date:{self._stamp}\n\n{names}\n{digest}"
        )
        summed = hashlib.sha256(request.encode()).hexdigest()
        signed = f"AWS4-HMAC-SHA256\n{self._stamp}\n{self._scope}\n{summed}".encode()
        signature = hmac.digest(self._key, signed, "sha256").hex()
        return [
            "Accept:",
            "Expect:",
            "Content-Type: application/xml",
            f"X-Amz-Date: {self._stamp}",
            f"X-Amz-Content-SHA256: {digest}",
            f"Authorization: AWS4-HMAC-SHA256 Credential={self._access_key}/{self._scope}, "
            f"SignedHeaders={names}, Signature={signature}",
        ]

    def _begin_second(self, second: int) -> None:
        self._second = second
        self._stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(second))
        day = self._stamp[:8]
        self._scope = f"{day}/{self._region}/s3/aws4_request"
        self._key = f"AWS4{self._secret_key}".encode()
        for word in (day, str(self._region), "s3", "aws4_request"):
            self._key = hmac.digest(self._key, word.encode(), "sha256")


class Bare:
    """Sends one request, signed beforehand, over and over.

    Args:
        config: Address and keys of the server.
        call: The completion to send.
        connections: Number of connections.
    """

    def __init__(self, config: S3Config, call: Complete, connections: int) -> None:
        self._multi = _Multi(connections)
        self._sink = io.BytesIO()
        path, query = quote(f"/{call.bucket}/{call.key}"), f"uploadId={call.upload_id}"
        body = (
            f'<CompleteMultipartUpload xmlns="{_NAMESPACE}"><Part><PartNumber>1</PartNumber>'
            f'<ETag>"{call.etags[0]}"</ETag></Part></CompleteMultipartUpload>'
        ).encode()
        headers = _Signer(config).headers(path, query, body)
        self._handles = []
        for _ in range(connections):
            handle = self._multi.handle()
            handle.setopt(pycurl.URL, f"{config.endpoint_url}{path}?{query}")
            handle.setopt(pycurl.POSTFIELDS, body)
            handle.setopt(pycurl.HTTPHEADER, headers)
            handle.setopt(pycurl.WRITEFUNCTION, self._sink.write)
            self._handles.append(handle)

    def __call__(self, count: int) -> None:
        """Send the request ``count`` times."""
        turns: Iterator[int] = iter(range(count))

        def end(handle: Any) -> None:
            assert handle.getinfo(pycurl.RESPONSE_CODE) == 200
            self._sink.seek(0)

        self._multi.run(self._handles, lambda _: next(turns, None) is not None, end)

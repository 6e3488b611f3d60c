"""One line to a store: a handle of libcurl, how it connects, and how its requests are signed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from ssl import CertificateError
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pycurl
from botocore.exceptions import ConnectionClosedError, EndpointConnectionError, ReadTimeoutError, SSLError

from airflow_s3commit.store.replies import Reply

if TYPE_CHECKING:
    from collections.abc import Iterator

    from botocore.credentials import ReadOnlyCredentials

    from airflow_s3commit.store.addresses import Address

__all__ = ["Line", "LineSettings"]

NOT_TRUSTED = frozenset({pycurl.E_PEER_FAILED_VERIFICATION, pycurl.E_SSL_CACERT_BADFILE})

#: Operations that send a document.
WITH_BODY = frozenset({"CompleteMultipartUpload", "DeleteObjects"})

#: Operations whose answers say all in status and body, but for when to come again. They come by the thousand,
#: and to be handed each line of a head costs a thirtieth of what the whole exchange does.
WITHOUT_HEAD = frozenset({"CompleteMultipartUpload", "AbortMultipartUpload"})

#: Bytes of a body that are read in any case: an error's document has fewer.
ERROR_BYTES = 16 * 1024

#: Options that make a request's method, by S3's name of the operation.
METHODS: dict[str, tuple[tuple[int, Any], ...]] = {
    "CompleteMultipartUpload": ((pycurl.POST, True),),
    "AbortMultipartUpload": ((pycurl.CUSTOMREQUEST, "DELETE"),),
    "HeadObject": ((pycurl.NOBODY, True),),
    "GetObject": ((pycurl.HTTPGET, True),),
    "DeleteObjects": ((pycurl.POST, True),),
}


@dataclass(frozen=True, slots=True)
class LineSettings:
    """How connections are made.

    Attributes:
        authorities: File or folder with the authorities to trust; None not to check certificates.
        connect_seconds: How long connecting may take.
        silent_seconds: How long a store may say nothing; some seconds more if it was sent a body, because
            libcurl averages.
        attempt_seconds: How long one attempt may take from its beginning to its end, however much a store
            says: one that sends a byte now and then would hold a connection for ever.

    """

    authorities: str | None
    connect_seconds: float
    silent_seconds: float
    attempt_seconds: float


class Line:
    """One handle of libcurl, which serves one operation; what stays the same is set only once.

    Args:
        operation: S3's name of the operation.
        settings: How connections are made.
        free: Where it lies while it is not in use.

    Attributes:
        handle: The handle.
        has_body: Whether its requests have a body.
        free: As given.
        of: What its exchange is of.
        limit: Bytes that are read of its answer's body at most; None for no limit.
        address: How its last request was sent.
        keys: Whose that was.

    """

    __slots__ = (
        "_announced",
        "_body",
        "_head",
        "_size",
        "address",
        "free",
        "handle",
        "has_body",
        "keys",
        "limit",
        "of",
    )

    def __init__(self, operation: str, settings: LineSettings, free: list[Line]) -> None:
        self.has_body = operation in WITH_BODY
        self.free = free
        self.of: object = None
        self.limit: int | None = None
        self.address: Address | None = None
        self.keys: ReadOnlyCredentials | None = None
        self._head: list[bytes] = []
        self._body: list[bytes] = []
        self._size = self._announced = 0
        self.handle = handle = pycurl.Curl()
        for option, value in (*_options(settings), *METHODS[operation]):
            handle.setopt(option, value)
        if operation not in WITHOUT_HEAD:
            handle.setopt(pycurl.HEADERFUNCTION, self._head.append)
        # Records are read by the thousand, uploads completed by the million: only the former are measured.
        handle.setopt(pycurl.WRITEFUNCTION, self._keep if operation == "GetObject" else self._body.append)

    def reply(self) -> Reply:
        """Return the answer, which is complete."""
        head, body = self._head, self._body
        reply = Reply(
            self.handle.getinfo(pycurl.RESPONSE_CODE),
            b"".join(head) if head else self._when_to_come_again(),
            body[0] if len(body) == 1 else b"".join(body),
        )
        self._clear()
        return reply

    def _keep(self, piece: bytes) -> int:
        """Keep a piece of the body; beyond the limit take none, which makes libcurl end the transfer."""
        if not self._size and self.limit is not None:
            # Told so before the first byte is kept, an object that is too long costs no more than its head.
            self._announced = _content_length(self._head)
        self._size += len(piece)
        if self._is_full():
            return 0
        self._body.append(piece)
        return len(piece)

    def _is_full(self) -> bool:
        # What a store says of an error is let in, however small the object was to be.
        size = max(self._size, self._announced)
        return self.limit is not None and size > max(self.limit, ERROR_BYTES)

    def _clear(self) -> None:
        self._head.clear()
        self._body.clear()
        self._size = self._announced = 0

    def _when_to_come_again(self) -> bytes:
        """Return as a head what libcurl read in one that was not handed over."""
        seconds = self.handle.getinfo(pycurl.RETRY_AFTER)
        return b"HTTP/1.1\r\nRetry-After: %d\r\n\r\n" % seconds if seconds else b""

    def failure(self, code: int, message: str) -> Reply | Exception:
        """Return botocore's error for one of libcurl's; or the answer that was cut off at its limit."""
        if code == pycurl.E_WRITE_ERROR and self._is_full():
            self._body.clear()
            return self.reply()
        self._clear()
        url = _place(self.handle.getinfo(pycurl.EFFECTIVE_URL))
        if code in NOT_TRUSTED:
            return SSLError(endpoint_url=url, error=CertificateError("CERTIFICATE_VERIFY_FAILED"))
        if self.handle.getinfo(pycurl.REQUEST_SIZE) == 0:
            # Not a byte of the request went out, also not on a connection that was tried before this one.
            return EndpointConnectionError(endpoint_url=url, error=message)
        if code == pycurl.E_OPERATION_TIMEDOUT:
            return ReadTimeoutError(endpoint_url=url, error=message)
        return ConnectionClosedError(endpoint_url=url, error=message)

    def sign_as(self, address: Address, keys: ReadOnlyCredentials, header: str | None) -> None:
        """Send what follows so; ``header`` is one that the next request alone has."""
        handle = self.handle
        headers = [*address.headers, "Accept:", "Expect:"]
        if header is not None:
            headers.append(header)
        if self.has_body:
            headers.append("Content-Type: application/xml")
        if address.url.startswith("https:"):
            # The connection protects the body. Without TLS libcurl signs its hash.
            headers.append("X-Amz-Content-SHA256: UNSIGNED-PAYLOAD")
        if keys.token:
            headers.append(f"X-Amz-Security-Token: {keys.token}")
        handle.setopt(pycurl.HTTPHEADER, headers)
        handle.setopt(pycurl.USERAGENT, address.agent)
        handle.setopt(pycurl.AWS_SIGV4, f"aws:amz:{address.region}:s3")
        handle.setopt(pycurl.USERNAME, keys.access_key)
        # As bytes: pycurl takes text of ASCII only, and botocore signs with the UTF-8 too.
        handle.setopt(pycurl.PASSWORD, (keys.secret_key or "").encode())
        self.address, self.keys = address, keys


def _options(settings: LineSettings) -> Iterator[tuple[int, Any]]:
    yield pycurl.NOSIGNAL, True
    yield pycurl.NOPROXY, "*"
    yield pycurl.PROXY, ""
    yield pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1
    yield pycurl.TCP_NODELAY, True
    yield pycurl.TCP_KEEPALIVE, True
    yield pycurl.CONNECTTIMEOUT_MS, int(settings.connect_seconds * 1000)
    yield pycurl.LOW_SPEED_LIMIT, 1
    yield pycurl.LOW_SPEED_TIME, max(1, round(settings.silent_seconds))
    yield pycurl.TIMEOUT_MS, int(settings.attempt_seconds * 1000)
    if settings.authorities is None:
        yield pycurl.SSL_VERIFYPEER, False
        yield pycurl.SSL_VERIFYHOST, 0
    elif Path(settings.authorities).is_dir():
        yield pycurl.CAPATH, settings.authorities
        yield pycurl.CAINFO, None
    else:
        yield pycurl.CAINFO, settings.authorities


def _content_length(head: list[bytes]) -> int:
    """Return the length that the last answer in a head tells; 0 if it tells none."""
    for line in reversed(head):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length" and value.strip().isdigit():
            return int(value)
    return 0


def _place(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"

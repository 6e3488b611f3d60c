"""The fast path of `ObjectStore.perform`: thousands of small requests from one thread, through libcurl.

boto3 spends about a millisecond of CPU on a request, which limits a commit to under a thousand files per
second, whatever the store can do. Here one loop in the caller's thread draws calls, sends each once, and
yields what its response settles: plain successes, and the answer that an upload is gone, which a repeated
commit gets by the million. After anything else the boto3 store makes the call again: it knows redirects,
renewed credentials, throttling and errors. Uploads are started, and small parts sent, by the same rule.

Where a request goes and how it is signed is learned from the client itself, which knows endpoint rules,
addressing style, redirects and headers that its owner added. It prepares one request per bucket and
operation, anew each second, which is not sent. All others differ from it only in key, upload and body.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from urllib.parse import quote
from uuid import uuid4
from xml.sax.saxutils import escape

import pycurl
from botocore import xform_name

from airflow_s3commit.exceptions import REFUSALS, NoSuchUpload, OutcomeUnknown, S3CommitError
from airflow_s3commit.store.base import Abort, Call, Complete, Fetched, Get, Head, Outcome
from airflow_s3commit.store.execute import Throttle, with_threads
from airflow_s3commit.store.s3.connections import Connections, Handle, Response, Route, connection_options
from airflow_s3commit.store.s3.request import Request, completed_part, object_info, response_time

if TYPE_CHECKING:
    from botocore.awsrequest import AWSRequest
    from mypy_boto3_s3.client import S3Client

    from airflow_s3commit.store.base import ObjectInfo, ObjectStore, PartEtag

#: The calls of `ObjectStore.perform` that libcurl makes.
FastCall: TypeAlias = Complete | Abort | Head | Get

# Responses without an object are short. Nobody needs the headers of those that come by the thousand, and a
# callback for each costs a thirtieth of the whole request.
_SHORT = {pycurl.MAXFILESIZE: 1 << 16}
_HEADLESS = {pycurl.HEADERFUNCTION: None, **_SHORT}

# For each kind of call, S3's name and libcurl's options. A `Request` starts an upload, or sends a part.
_KINDS: dict[type, tuple[str, dict[int, Any]]] = {
    Complete: ("CompleteMultipartUpload", {pycurl.POST: True, **_HEADLESS}),
    Abort: ("AbortMultipartUpload", {pycurl.CUSTOMREQUEST: "DELETE", **_HEADLESS}),
    Head: ("HeadObject", {pycurl.NOBODY: True}),
    Get: ("GetObject", {pycurl.HTTPGET: True}),
    Request: ("", {pycurl.POST: True, **_SHORT}),
}

#: The key of the prepared request and of no other object. All URLs of a route are the same up to the key.
_KEY = f"s3commit-address-{uuid4().hex}"

#: Services and versions of signatures that libcurl makes too: version 4, for one region.
_SIGNATURES = frozenset({("s3", "s3v4"), ("s3", "v4")})

# Matches headers of a single attempt or body, which a route does not keep.
_is_passing = re.compile(
    "amz-sdk-|content-|expect|user-agent|x-amz-(?:sdk-)?checksum-|x-amzn-trace-id", re.IGNORECASE
).match

#: Seconds for which a prepared request is used. After them the client may have renewed its credentials, or
#: learned of another region from a redirect.
ROUTE_SECONDS = 1.0

#: Maximum seconds that the loop sleeps.
_MAX_WAIT = 1.0

_OK, _NO_CONTENT, _NOT_FOUND, _FAILED, _NOT_IMPLEMENTED = 200, 204, 404, 500, 501

#: Statuses of a store that gets too many requests, and has not carried out the one that got the status. A
#: completion may get the error code in the body of a 200.
_BUSY = frozenset({429, 503})
_SLOW_DOWN = b"<Code>SlowDown</Code>"

#: Maximum bytes of a body that is sent through libcurl, which copies it.
SMALL = 1 << 20

# Matches headers that libcurl sends unchanged; it would drop a header without a value.
_is_plain = re.compile(r"[!-~]+: [!-~](?:[ -~]*[!-~])?", re.ASCII).fullmatch

# An id with entities is left to boto3.
_find_upload = re.compile(rb"<UploadId>([^<>&]+)</UploadId>").search

# Quotes a directory; cached, because a job's files are in few directories.
_quoted_folder = lru_cache(4096)(quote)

# Templates: a completion around its parts, and one of a single part.
_COMPLETION = (
    '<CompleteMultipartUpload xmlns="http://s3.amazonaws.com/doc/2006-03-01/">%s</CompleteMultipartUpload>'
)
_ONE_PART = _COMPLETION % '<Part><PartNumber>1</PartNumber><ETag>"%s"</ETag></Part>'

# The usual result of a completion: elements without attributes or children, one of them an ETag of letters,
# digits and hyphens. Possessive quantifiers prevent backtracking. Groups have none: before Python 3.11.5 they
# would never match. The usual declaration and namespace are literals, several times as fast as sets.
_DECLARATION = rb"(?:<\?xml version=\"1\.0\" encoding=\"UTF-8\"\?>|<\?xml [^<>&]*\?>)"
_XMLNS = rb"(?: xmlns=\"(?:http://s3\.amazonaws\.com/doc/2006-03-01/|[^\"<>&]*+)\")"
_LEAF = rb"\s*+<(?!ETag>)([A-Za-z0-9]++)>[^<>&]*+</\%d>"
_whole_result = re.compile(
    rb"\s*+(?:%b\s*+)?<CompleteMultipartUploadResult%b?>(?:%b)*"
    rb"\s*+<ETag>(&quot;|&#34;|\"|)([A-Za-z0-9-]++)\2</ETag>(?:%b)*"
    rb"\s*+</CompleteMultipartUploadResult>\s*+" % (_DECLARATION, _XMLNS, _LEAF % 1, _LEAF % 4)
).fullmatch

T = TypeVar("T")
Lent = TypeVar("Lent", Connections, Handle)

#: Calls that are left to boto3, each with its tag and whether it may have happened already.
_Left: TypeAlias = list[tuple[tuple[T, bool], Call]]


class FastPath:
    """The state that all runs on one client share; safe to use from several threads.

    ``fallback`` makes the calls that libcurl cannot make, in ``threads`` threads. Those are all calls if a
    handler of the client's events responds in place of the store, as test doubles do. ``retries`` counts
    responses that settled nothing.

    Raises `UnsupportedClient` as `connection_options` does.
    """

    def __init__(self, client: S3Client, fallback: ObjectStore, threads: int, throttle: Throttle) -> None:
        common = connection_options(client)
        self._options = {kind: common | own for kind, (_, own) in _KINDS.items()}
        self._learned = lru_cache(64)(partial(_learn, client))
        self.fallback = fallback
        self.threads = threads
        self.throttle = throttle
        self.retries = 0
        # By process, so that a forked one leaves its parent's connections alone. It must not close them
        # either: that would end TLS sessions that the parent still uses.
        self._idle: defaultdict[tuple[int, object], deque[Any]] = defaultdict(deque)
        events: Any = client.meta.events
        events.register_last("before-sign.s3", _intercept, unique_id="s3commit-before-sign")

    def route(self, bucket: str, operation: str) -> Route | None:
        """Return the route of an operation on a bucket; None if only the client can send it."""
        return self._learned(bucket, operation, int(self.throttle.clock.monotonic() / ROUTE_SECONDS))

    def send(
        self, request: Request, query: str, headers: Mapping[str, str], body: memoryview
    ) -> dict[str, str]:
        """Start an upload, or send a part of one; return the id or the ETag, by boto3's names.

        An empty result means that boto3 must make the request, as for a body of more than `SMALL` bytes.

        Raises `OutcomeUnknown` if the request may have taken effect.
        """
        path = path_of(request, query)
        lines = [f"{name}: {value}" for name, value in headers.items()]
        is_ours = path and body.nbytes <= SMALL and all(map(_is_plain, lines))
        route = self.route(request.bucket, request.operation) if is_ours else None
        if route is None:
            return {}
        # libcurl would name the media type of a form.
        lines += ["Content-Type:"] if request.upload_id else []
        with self._lent(Handle, Request, self._options[Request]) as handle:
            handle.aim(route, path)
            handle.curl.setopt(pycurl.HTTPHEADER, [*route.options[pycurl.HTTPHEADER], *lines])
            handle.curl.setopt(pycurl.POSTFIELDS, body.tobytes())
            handle.curl.setopt(pycurl.CUSTOMREQUEST, "PUT" if request.upload_id else "POST")
            response = handle.ask()
        if response.status >= _FAILED and response.status != _NOT_IMPLEMENTED and not _is_busy(response):
            raise request.unconfirmed("the response is missing, or an error of the store")
        if response.status != _OK:
            return {}
        started, etag = _find_upload(response.body), response.headers.get("etag")
        return ({"UploadId": started[1].decode()} if started else {}) | ({"ETag": etag} if etag else {})

    def perform(self, calls: Iterable[tuple[T, Call]]) -> Iterator[tuple[T, Outcome]]:
        """Make many calls; see `ObjectStore.perform`.

        Closing the iterator draws no further call, and waits for those that were sent.
        """
        source = iter(calls)
        # Seconds until more may be sent; None if there is nothing more to send.
        pause: float | None = 0.0
        left: _Left[T] = []
        done: list[tuple[T, Outcome]] = []
        with self._lent(Connections, self._options, self.throttle.most) as pool:
            try:
                while pause is not None or pool.busy or left or done:
                    if pause is not None:
                        pause = self._start(pool, source, left)
                    yield from done
                    is_waiting = pool.busy or (pause and not left)
                    done = self._settle(pool, left, pause or _MAX_WAIT) if is_waiting else []
                    if left and not (pool.busy or done):
                        # Only with nothing in flight, because no response is read meanwhile.
                        yield from self._fall_back(left)
                        left.clear()
            finally:
                while pool.busy:
                    pool.wait(_MAX_WAIT)

    def _start(self, pool: Connections, source: Iterator[tuple[T, Call]], left: _Left[T]) -> float | None:
        """Send while there is room; return the seconds until more may be sent, None if no call remains."""
        # A few calls for each of boto3's threads, which make them with nothing else in flight.
        while len(left) < 4 * self.threads and len(pool.busy) + len(left) < self.throttle.window:
            if pause := self.throttle.pause():
                return pause
            drawn = next(source, None)
            if drawn is None:
                return None
            tag, call = drawn
            route, path = None, path_of(call) if isinstance(call, FastCall) else ""
            if path:
                route = self.route(call.bucket, _KINDS[type(call)][0])
            if route is None:
                left.append(((tag, False), call))
                continue
            handle = pool.handle(type(call))
            handle.tag = drawn
            handle.aim(route, path)
            if isinstance(call, Complete):
                handle.curl.setopt(pycurl.POSTFIELDS, _part_list(call.etags))
            elif isinstance(call, Get):
                # libcurl compares it with the announced length, before the first byte, and with what arrives.
                handle.curl.setopt(pycurl.MAXFILESIZE_LARGE, 0 if call.limit is None else max(call.limit, 1))
            pool.start(handle)
        return 0.0

    def _settle(self, pool: Connections, left: _Left[T], seconds: float) -> list[tuple[T, Outcome]]:
        """Wait for responses; return the outcomes that they settle, and add the other calls to ``left``."""
        done: list[tuple[T, Outcome]] = []
        ended = pool.wait(seconds)
        now = self.throttle.clock.time()
        for (tag, call), response in ended:
            try:
                done.append((tag, plain_outcome(call, response, now)))
            except UNSETTLED:
                if is_busy := _is_busy(response):
                    self.throttle.slow_down()
                is_open = response.status == _OK or response.status >= _FAILED
                may_have_happened = is_open and not is_busy and not isinstance(call, Get | Head)
                left.append(((tag, may_have_happened), call))
        self.retries += len(ended) - len(done)
        if pool.has_waited:
            # A thread that never waits for the store would send no faster with a wider window.
            self.throttle.succeeded(len(done))
        return done

    def _fall_back(self, left: _Left[T]) -> Iterator[tuple[T, Outcome]]:
        """Make calls through the boto3 store."""
        for (tag, may_have_happened), outcome in with_threads(self.fallback, left, self.threads):
            if may_have_happened and isinstance(outcome, REFUSALS):
                # The first attempt may have taken effect all the same.
                outcome = OutcomeUnknown(f"{outcome}; an earlier attempt may or may not have taken effect")  # noqa: PLW2901
            yield tag, outcome

    @contextmanager
    def _lent(self, make: Callable[..., Lent], *arguments: Any) -> Iterator[Lent]:
        """Lend a pool or a handle to one thread, and keep it for the next one unless there is an error."""
        idle = self._idle[os.getpid(), make]
        try:
            lent = idle.pop()
        except IndexError:
            lent = make(*arguments)
        yield lent
        idle.append(lent)


class _Prepared(Exception):
    """Raised instead of signing and sending a prepared request; holds it and its signing arguments."""


def _intercept(request: AWSRequest, **signing: Any) -> None:
    if _KEY in str(request.url):
        raise _Prepared(request, signing)


def _learn(client: S3Client, bucket: str, operation: str, _: int) -> Route | None:
    """Return the route of an operation, to be cached for a second; None if only the client can send it."""
    meta: Any = client.meta
    taken = meta.service_model.operation_model(operation).input_shape.members
    arguments = {name: value for name, value in (("UploadId", "u"), ("PartNumber", 1)) if name in taken}
    try:
        getattr(client, xform_name(operation))(Bucket=bucket, Key=_KEY, **arguments)
        return None
    except _Prepared as prepared:
        request, given = prepared.args
    except Exception:
        # No credentials, unusable ones, or an invalid name: the client itself reports it.
        return None
    names = [given[name] for name in ("signing_name", "region_name", "signature_version")]
    # What the client learned from a redirect takes precedence over its own region.
    learned = request.context.get("signing") or {}
    service, region = learned.get("signing_name", names[0]), learned.get("region", names[1])
    found = request.headers.items()
    headers = {name: text.decode("latin-1") if isinstance(text, bytes) else text for name, text in found}
    lines = [f"{name}: {text}" for name, text in headers.items() if not _is_passing(name)]
    answers = meta.events.emit(f"before-send.s3.{operation}", request=request.prepare())
    is_stood_in_for = bucket.startswith("arn:") or any(answer is not None for _, answer in answers)
    if is_stood_in_for or (service, names[2]) not in _SIGNATURES or not all(map(_is_plain, lines)):
        return None
    keys = given["request_signer"].get_auth_instance(*names).credentials
    lines += ["Accept:", "Expect:"]
    if operation == _KINDS[Complete][0]:
        lines.append("Content-Type: application/xml")
    if request.url.startswith("https:"):
        # The connection protects the body. Without TLS libcurl signs its hash.
        lines.append("X-Amz-Content-SHA256: UNSIGNED-PAYLOAD")
    if keys.token:
        lines.append(f"X-Amz-Security-Token: {keys.token}")
    options = {
        pycurl.HTTPHEADER: lines,
        pycurl.USERAGENT: headers.get("User-Agent", ""),
        pycurl.AWS_SIGV4: f"aws:amz:{region}:s3",
        pycurl.USERNAME: keys.access_key,
        # As bytes: pycurl takes ASCII text only, and botocore signs with the UTF-8 too.
        pycurl.PASSWORD: (keys.secret_key or "").encode(),
    }
    return Route(request.url.partition(_KEY)[0], options)


def path_of(call: FastCall | Request, *query: str) -> str:
    """Return a call's key, and its query if it has one, quoted for a URL; empty if libcurl cannot send it.

    libcurl would resolve dot segments, and without its key or upload a call is another request on the wire.
    """
    key, upload = call.key or "", getattr(call, "upload_id", None)
    has_dots = "/." in f"/{key}" and not {".", ".."}.isdisjoint(key.split("/"))
    if has_dots or not key or upload == "":
        return ""
    folder, slash, name = key.rpartition("/")
    if upload:
        query = (f"uploadId={quote(upload, safe='')}", *query)
    return f"{_quoted_folder(folder)}{slash}{quote(name)}{'?' if query else ''}{'&'.join(query)}"


def _part_list(etags: Sequence[PartEtag]) -> bytes:
    """Return the body of a completion's request."""
    if len(etags) == 1 and isinstance(etags[0], str) and etags[0].isalnum():
        # The usual case: a file of one part, whose ETag is an MD5 in hexadecimal.
        return (_ONE_PART % etags[0]).encode()
    parts = (completed_part(number, etag).items() for number, etag in enumerate(etags, start=1))
    listed = ["".join(f"<{name}>{escape(str(value))}</{name}>" for name, value in part) for part in parts]
    return (_COMPLETION % "".join(f"<Part>{part}</Part>" for part in listed)).encode()


#: What `plain_outcome` raises for a response that settles nothing.
UNSETTLED = (OverflowError, S3CommitError, ValueError)


def plain_outcome(call: FastCall, response: Response, now: float) -> Outcome:
    """Return the outcome that a response settles by itself; raise one of `UNSETTLED` if it settles none.

    A response without a Date was made ``now``, in seconds since the epoch.
    """
    status, body = response.status, response.body
    is_gone = status == _NOT_FOUND and b"<Code>NoSuchUpload</Code>" in body
    match call:
        case Complete() if status == _OK and (result := _whole_result(body)):
            return result[3].decode()
        case Complete() if is_gone:
            request = Request("CompleteMultipartUpload", call.bucket, call.key, call.upload_id)
            return NoSuchUpload(f"{request}: NoSuchUpload")
        case Abort() if is_gone or status == _NO_CONTENT:
            return None
        case Head() | Get() if status == _OK:
            return _found(call, response, now)
    raise ValueError("no plain success")


def _found(call: Head | Get, response: Response, now: float) -> ObjectInfo | Fetched:
    headers, body = response.headers, response.body
    parsed: dict[str, Any] = {
        "ResponseMetadata": {"HTTPHeaders": headers},
        "ETag": headers.get("etag", ""),
        "ContentLength": int(headers.get("content-length", "")),
        "LastModified": parsedate_to_datetime(headers.get("last-modified", "")),
    }
    info = object_info(Request(_KINDS[type(call)][0], call.bucket, call.key), parsed)
    if isinstance(call, Head):
        return info
    if len(body) != info.size or (call.limit is not None and info.size > call.limit):
        raise ValueError("the response is not as long as it says, or too long")
    date = response_time(parsed)
    return Fetched(info, body, now if date is None else date)


def _is_busy(response: Response) -> bool:
    """Return whether the store has refused a request for now, and not carried it out."""
    return response.status in _BUSY or _SLOW_DOWN in response.body

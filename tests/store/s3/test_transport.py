"""The fast path believes plain responses alone, leaves the rest to boto3, and ends every call once."""

from __future__ import annotations

import logging
import os
import resource
import socket
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from botocore.credentials import RefreshableCredentials

from airflow_s3commit.exceptions import (
    AccessDenied,
    NoSuchKey,
    NoSuchUpload,
    OutcomeUnknown,
    PreconditionFailed,
    S3CommitError,
    StoreRejected,
    TooLarge,
    Unavailable,
)
from airflow_s3commit.store.base import Abort, Call, Complete, Fetched, Get, Head, ObjectInfo, Outcome
from airflow_s3commit.store.execute import RetryPolicy
from airflow_s3commit.store.s3.config import LONGEST_RESPONSE, S3Config, new_client
from airflow_s3commit.store.s3.store import S3Store, TransportName
from tests.cases import each
from tests.fakes import ManualClock
from tests.store.s3.fault_server import COMPLETED, DATE_TEXT, Cut, FaultServer, Say, Seen
from tests.store.s3.wire import DATE, Answer, Wire, error_body

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytest.importorskip("pycurl")

from airflow_s3commit.store.s3.connections import Response
from airflow_s3commit.store.s3.fast_path import ROUTE_SECONDS, UNSETTLED, plain_outcome

pytestmark = pytest.mark.loopback

COMPLETE = Complete("lake", "k", "u", ["e"])
ABORT = Abort("lake", "k", "u")
HEAD = Head("lake", "k")
GET = Get("lake", "k")
FOUND = {"ETag": '"e"', "Last-Modified": DATE_TEXT, "x-amz-meta-Job": "j-1"}
SLOW_DOWN = Say(503, error_body("SlowDown"), {"Retry-After": "7"})
SLOW_DOWN_LATE = Say(200, error_body("SlowDown"), {"Retry-After": "7"})


def curl_store(server: FaultServer | S3Config, *, deadline: float = 60.0, **options: Any) -> S3Store:
    """Return a store on libcurl, whose pauses take no time unless it is given a clock."""
    config = server.config if isinstance(server, FaultServer) else server
    clock = options.pop("clock", None) or ManualClock()
    retry = RetryPolicy(deadline=deadline, clock=clock)
    options.setdefault("requests_per_second", None)
    store = S3Store.connect(config, retry=retry, transport="curl", **options)
    assert store.transport == "curl"
    return store


def outcome_of(call: Call, *script: Say | Cut, deadline: float = 0.0) -> tuple[Outcome, list[Seen]]:
    """Return what becomes of a call, and the requests it took."""
    with FaultServer(*script) as server:
        ((_, outcome),) = curl_store(server, deadline=deadline).perform([("tag", call)])
        return outcome, server.seen


class TestAnswers:
    """What one answer to one attempt means."""

    def test_a_completion(self) -> None:
        """A result with an ETag is success; the request names its parts, and is signed with its body."""
        outcome, (seen,) = outcome_of(COMPLETE, COMPLETED)
        assert outcome == "e-1"
        assert (seen.method, seen.path) == ("POST", "/lake/k?uploadId=u")
        assert b'<Part><PartNumber>1</PartNumber><ETag>"e"</ETag></Part>' in seen.body
        assert seen.headers["content-type"] == "application/xml"
        assert seen.headers["user-agent"].startswith("airflow-s3commit/")
        assert "UNSIGNED" not in seen.headers["x-amz-content-sha256"]
        assert "expect" not in seen.headers

    def test_a_completion_that_took_long(self) -> None:
        """Blanks that a store sends while it works do not hide the result behind them."""
        outcome, _ = outcome_of(COMPLETE, replace(COMPLETED, body=b"  \n \n" + COMPLETED.body))
        assert outcome == "e-1"

    @pytest.mark.parametrize(
        "answer",
        [
            Say(),
            replace(COMPLETED, body=COMPLETED.body[:-9]),
            replace(COMPLETED, body=COMPLETED.body.replace(b"&quot;e-1&quot;", b"")),
            Say(body=b"<html>welcome</html>"),
            Say(body=error_body("InternalError")),
            Say(500, error_body("InternalError")),
            Say(502, b"<html>Bad Gateway</html>"),
            Cut(),
        ],
        ids=["empty", "cut XML", "no ETag", "HTML", "200 error", "500", "502", "reset"],
    )
    def test_a_completion_without_a_result(self, answer: Say | Cut) -> None:
        """Whatever is no whole result leaves it open whether the object was made."""
        outcome, seen = outcome_of(COMPLETE, answer)
        assert isinstance(outcome, OutcomeUnknown)
        assert "lake/k" in str(outcome)
        assert len(seen) == 2

    @each(
        ("call", "answer", "error"),
        [
            (COMPLETE, Say(404, error_body("NoSuchUpload")), NoSuchUpload),
            (COMPLETE, Say(412, error_body("PreconditionFailed")), PreconditionFailed),
            (COMPLETE, Say(409, error_body("ConditionalRequestConflict")), StoreRejected),
            (COMPLETE, Say(400, error_body("InvalidPart")), StoreRejected),
            (COMPLETE, Say(403, error_body("AccessDenied")), AccessDenied),
            (COMPLETE, Say(400, error_body("ExpiredToken")), AccessDenied),
            (COMPLETE, Say(200, error_body("SlowDown")), Unavailable),
            (COMPLETE, SLOW_DOWN, Unavailable),
            (COMPLETE, SLOW_DOWN_LATE, Unavailable),
            (COMPLETE, Say(429), Unavailable),
            (ABORT, Say(500, error_body("InternalError")), OutcomeUnknown),
            (ABORT, Say(409, error_body("OperationAborted")), Unavailable),
            (ABORT, Cut(), OutcomeUnknown),
            (HEAD, Say(404), NoSuchKey),
            (HEAD, Say(403), AccessDenied),
            (HEAD, Say(500), Unavailable),
            (HEAD, Say(200, headers={"ETag": '"e"'}), Unavailable),
            (GET, Say(404, error_body("NoSuchKey")), NoSuchKey),
            (GET, Say(200, b"12", FOUND, missing=1), Unavailable),
            (GET, Cut(), Unavailable),
        ],
    )
    def test_refusals(self, call: Call, answer: Say | Cut, error: type[S3CommitError]) -> None:
        """Each refusal is the error that the reference path makes of it."""
        outcome, seen = outcome_of(call, answer)
        assert type(outcome) is error
        assert len(seen) <= 2
        if answer in (SLOW_DOWN, SLOW_DOWN_LATE):
            assert isinstance(outcome, Unavailable)
            assert outcome.retry_after == 7.0

    @pytest.mark.parametrize("answer", [Say(204), Say(404, error_body("NoSuchUpload"))])
    def test_an_abort(self, answer: Say) -> None:
        """An upload is discarded, now or already."""
        outcome, (seen,) = outcome_of(ABORT, answer)
        assert outcome is None
        assert (seen.method, seen.path) == ("DELETE", "/lake/k?uploadId=u")

    @each(
        ("call", "answer"),
        [
            (COMPLETE, Say(404, error_body("NoSuchUpload"))),
            (ABORT, Say(404, error_body("NoSuchUpload"))),
        ],
    )
    def test_what_is_not_there_is_asked_for_once(self, call: Call, answer: Say) -> None:
        """A commit that is repeated meets a million uploads that are gone: boto3 is not asked about them."""
        _, seen = outcome_of(call, answer)
        assert len(seen) == 1

    def test_head_and_get(self) -> None:
        """HEAD and GET describe an object alike; GET brings its content and the store's time."""
        head, (asked,) = outcome_of(HEAD, Say(200, b"12345", FOUND))
        got, _ = outcome_of(GET, Say(200, b"12345", FOUND))
        assert asked.method == "HEAD"
        assert head == ObjectInfo("k", 5, "e", DATE, {"job": "j-1"})
        assert got == Fetched(head, b"12345", DATE)

    @pytest.mark.parametrize("transport", ["curl", "boto3"])
    def test_an_object_that_is_too_long(self, transport: TransportName) -> None:
        """An object beyond its reader's limit is refused by what the answer's head says, its body unread."""
        with FaultServer(Say(200, bytes(100_000), FOUND, missing=600_000_000)) as server:
            store = S3Store.connect(server.config, retry=RetryPolicy(deadline=0.0), transport=transport)
            ((_, outcome),) = store.perform([(0, Get("lake", "k", limit=1_000_000))])
            assert isinstance(outcome, TooLarge)
            assert str(outcome).startswith("s3://lake/k has 600100000 bytes")
            assert len(server.seen) == (2 if transport == "curl" else 1)

    @pytest.mark.parametrize("transport", ["curl", "boto3"])
    @pytest.mark.parametrize(
        "answer", [COMPLETED, Say(404, error_body("NoSuchUpload"))], ids=["completed", "gone"]
    )
    def test_an_answer_beyond_all_bounds(self, answer: Say, transport: TransportName) -> None:
        """An answer to a completion that fills memory is not read to its end, whichever client asked."""
        _, _, element = answer.body.rpartition(b"?>")
        endless = replace(answer, body=b" " * (LONGEST_RESPONSE + 100_000) + element)
        with FaultServer(endless) as server:
            store = S3Store.connect(server.config, retry=RetryPolicy(deadline=0.0), transport=transport)
            ((_, outcome),) = store.perform([(0, COMPLETE)])
            assert isinstance(outcome, OutcomeUnknown)
            assert len(server.seen) == (2 if transport == "curl" else 1)

    @pytest.mark.parametrize("missing", [2, 0])
    def test_a_range_of_another_length(self, missing: int) -> None:
        """A range that is cut off, or goes on beyond what was asked for, is no content."""
        body = b"12" if missing else b"123456"
        answer = Say(206, body, FOUND | {"Content-Range": "bytes 0-3/9"}, missing=missing)
        with FaultServer(answer) as server:
            store = S3Store.connect(server.config, retry=RetryPolicy(deadline=0.0))
            with pytest.raises(Unavailable):
                store.get_range("lake", "k", 0, 4, etag="e")

    def test_a_store_that_is_silent(self) -> None:
        """An answer that does not come in the client's read timeout is asked for again, by boto3."""
        with FaultServer(Say(204, wait=9.0), Say(204)) as server:
            client = new_client(server.config)
            config: Any = client.meta.config
            config.read_timeout = 1
            store = S3Store(client, retry=RetryPolicy(deadline=0.0), transport="curl")
            began = time.monotonic()
            ((_, outcome),) = store.perform([(0, ABORT)])
            assert outcome is None
            assert len(server.seen) == 2
            assert time.monotonic() - began < 8.0

    def test_connections_that_the_store_closed_while_nothing_was_asked(self) -> None:
        """What goes out next is answered, on new connections whose sockets have the numbers of old ones."""
        with FaultServer(Say(200, COMPLETED.body, {"Connection": "close"})) as server:
            store = curl_store(server)
            for _ in range(5):
                calls = [(number, COMPLETE) for number in range(40)]
                assert sorted(store.perform(calls)) == [(number, "e-1") for number in range(40)]

    def test_connections_that_went_away_between_two_rounds(self) -> None:
        """A kept connection that its store has left is replaced, whatever else took its socket's number."""
        calls = [(number, COMPLETE) for number in range(20)]
        with FaultServer(COMPLETED) as server, ExitStack() as others:
            store = curl_store(server)
            assert len(list(store.perform(calls))) == 20
            server.hang_up()
            for _ in range(4):
                others.enter_context(socket.socket())
                assert sorted(store.perform(calls)) == [(number, "e-1") for number in range(20)]
                server.hang_up()

    def test_a_store_that_is_not_there(self) -> None:
        """What could not be sent did not happen."""
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            config = S3Config(f"http://127.0.0.1:{closed.getsockname()[1]}", "us-east-1", "a", "s")
            ((_, outcome),) = curl_store(config, deadline=0.0).perform([(0, COMPLETE)])
        assert type(outcome) is Unavailable

    def test_a_lost_answer_is_not_forgotten_on_a_second_connection(self) -> None:
        """What was sent on a kept connection that died may have happened, also if no other can be opened."""
        with FaultServer(COMPLETED, Cut(down=30.0)) as server:
            store = curl_store(server, deadline=0.0)
            (first,) = store.perform([(0, COMPLETE)])
            (second,) = store.perform([(0, COMPLETE)])
        assert first == (0, "e-1")
        assert isinstance(second[1], OutcomeUnknown)


class TestRetries:
    """What is sent again, and when."""

    @pytest.mark.parametrize(
        "fault",
        [SLOW_DOWN, Say(500), Say(), Cut(), Say(200, error_body("InternalError")), Say(429)],
    )
    def test_what_may_pass_is_tried_again(self, fault: Say | Cut) -> None:
        """A call whose first attempt has a temporary fault ends in its result."""
        outcome, seen = outcome_of(COMPLETE, fault, COMPLETED, deadline=60.0)
        assert outcome == "e-1"
        assert len(seen) == 2

    def test_the_store_says_how_long(self) -> None:
        """The pause before the next attempt is the one that the store asked for."""
        clock = ManualClock()
        with FaultServer(SLOW_DOWN, SLOW_DOWN, COMPLETED) as server:
            list(curl_store(server, clock=clock).perform([(0, COMPLETE)]))
        assert sum(clock.slept) == pytest.approx(7.0, abs=0.01)

    def test_time_runs_out(self) -> None:
        """After the deadline the last error is the outcome, and one unknown outcome outweighs refusals."""
        outcome, seen = outcome_of(COMPLETE, Cut(), SLOW_DOWN, deadline=20.0)
        assert isinstance(outcome, OutcomeUnknown)
        assert len(seen) == 4

    @pytest.mark.parametrize("first", [Cut(), Say(200, error_body("InternalError"))], ids=["cut", "error"])
    @pytest.mark.parametrize("between", [(), (Cut(),)], ids=["libcurl", "boto3"])
    def test_credentials_that_expire_between_attempts(
        self, first: Say | Cut, between: tuple[Cut, ...]
    ) -> None:
        """A refusal after an attempt that may have taken effect does not say that it did not."""
        outcome, seen = outcome_of(
            COMPLETE, first, *between, Say(403, error_body("ExpiredToken")), deadline=60.0
        )
        assert isinstance(outcome, OutcomeUnknown)
        assert "ExpiredToken" in str(outcome)
        assert len(seen) == 2 + len(between)

    @pytest.mark.parametrize("call", [COMPLETE, ABORT], ids=["complete", "abort"])
    @pytest.mark.parametrize("between", [(), (Cut(),)], ids=["libcurl", "boto3"])
    @pytest.mark.parametrize(
        "refusal",
        [
            Say(404, b"default backend - 404"),
            Say(400, b"<html>Bad Request</html>"),
            Say(302, headers={"Location": "https://sorry.example/"}),
            Say(404, error_body("NoSuchBucket")),
        ],
        ids=["404", "400", "redirect", "no bucket"],
    )
    def test_a_gateway_that_refuses_between_attempts(
        self, refusal: Say, between: tuple[Cut, ...], call: Call
    ) -> None:
        """A gateway's refusal does not say that an attempt before it, whose answer it lost, did nothing."""
        outcome, _ = outcome_of(call, Say(502, b"<html>Bad Gateway</html>"), *between, refusal, deadline=60.0)
        assert isinstance(outcome, OutcomeUnknown)

    def test_an_outage_fails_nothing(self) -> None:
        """A store that is gone for half a second in the middle of 2,000 completions delays them, no more."""
        asked = 0

        def decide(_: Seen) -> Say | Cut:
            nonlocal asked
            asked += 1
            return Cut(down=0.5) if asked == 700 else COMPLETED

        calls = [(number, Complete("lake", f"k{number}", "u", ["e"])) for number in range(2000)]
        with FaultServer(decide=decide) as server:
            store = S3Store.connect(server.config, transport="curl", connections=64)
            outcomes = dict(store.perform(calls))
        assert set(outcomes) == set(range(2000))
        assert set(outcomes.values()) == {"e-1"}

    def test_slowing_down(self) -> None:
        """A store that turns calls away is asked fewer at once."""
        with FaultServer(*[COMPLETED] * 100, *[SLOW_DOWN] * 3, COMPLETED) as server:
            store = curl_store(server)
            assert len(list(store.perform((number, COMPLETE) for number in range(200)))) == 200
            assert store._curl is not None
            assert store._curl.throttle.window <= 100


class TestCredentials:
    """Whose requests they are."""

    @staticmethod
    def refreshing(server: FaultServer, current: Callable[[], str]) -> S3Store:
        """Return a store whose credentials are due for renewal whenever they are asked for."""

        def renew() -> dict[str, str]:
            return {
                "access_key": current(),
                "secret_key": "s",
                "token": f"token-of-{current()}",
                "expiry_time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 300)),
            }

        client: Any = new_client(server.config)
        credentials = RefreshableCredentials.create_from_metadata(renew(), renew, "test")
        client._request_signer._credentials = credentials
        return S3Store(client, retry=RetryPolicy(deadline=0.0), transport="curl")

    def test_expired_credentials_are_renewed(self) -> None:
        """A refused call is repeated once if the client has new credentials."""

        def decide(seen: Seen) -> Say:
            is_new = "Credential=new/" in seen.headers["authorization"]
            return COMPLETED if is_new else Say(400, error_body("ExpiredToken"))

        with FaultServer(decide=decide) as server:
            store = self.refreshing(server, lambda: "new" if server.seen else "old")
            ((_, outcome),) = store.perform([(0, COMPLETE)])
            assert outcome == "e-1"
            assert len(server.seen) == 2
            assert server.seen[-1].headers["x-amz-security-token"] == "token-of-new"

    def test_credentials_that_stay_expired(self) -> None:
        """Credentials that renewing does not help end the call, after two attempts at most."""
        with FaultServer(Say(400, error_body("ExpiredToken"))) as server:
            store = self.refreshing(server, lambda: f"key-{len(server.seen)}")
            ((_, outcome),) = store.perform([(0, COMPLETE)])
            assert isinstance(outcome, AccessDenied)
            assert "renew" in str(outcome)
            assert len(server.seen) == 2


class TestDrawing:
    """How calls are taken from their source."""

    def test_many_calls_in_few_connections(self) -> None:
        """Every call has one outcome, and no more are under way at once than there may be."""
        with FaultServer(COMPLETED) as server:
            store = curl_store(server, connections=8)
            tags = sorted(tag for tag, _ in store.perform((number, COMPLETE) for number in range(500)))
        assert tags == list(range(500))
        assert len(server.seen) == 500

    def test_a_process_with_many_open_files(self) -> None:
        """Answers on descriptors from 1024 on, which select() overlooks, are noticed when they come."""
        if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 2048:
            pytest.skip("this process may not open so many files")
        with FaultServer(COMPLETED) as server, ExitStack() as held, Path(os.devnull).open() as file:
            store = curl_store(server, connections=8)
            list(store.perform([(0, COMPLETE)]))
            for _ in range(1100):
                held.callback(os.close, os.dup(file.fileno()))
            began = time.monotonic()
            assert len(list(store.perform((number, COMPLETE) for number in range(100)))) == 100
            # If missed, each round of eight would take the second after which the loop looks anyway.
            assert time.monotonic() - began < 5.0

    def test_closing(self) -> None:
        """Closing draws no further call and waits for those that were sent."""
        drawn = 0

        def endless() -> Iterator[tuple[int, Call]]:
            nonlocal drawn
            while True:
                drawn += 1
                yield drawn, COMPLETE

        with FaultServer(replace(COMPLETED, wait=0.05)) as server:
            store = curl_store(server)
            outcomes = store.perform(endless())
            next(outcomes)
            before = drawn
            outcomes.close()  # type: ignore[attr-defined]
            assert drawn == before == len(server.seen)

    def test_a_source_that_fails(self) -> None:
        """An error of the source reaches the caller, and the store remains usable."""

        def failing() -> Iterator[tuple[int, Call]]:
            yield 1, COMPLETE
            raise ZeroDivisionError

        with FaultServer(COMPLETED) as server:
            store = curl_store(server)
            with pytest.raises(ZeroDivisionError):
                list(store.perform(failing()))
            assert list(store.perform([(2, COMPLETE)])) == [(2, "e-1")]

    def test_no_calls(self) -> None:
        """Nothing to do is nothing sent."""
        with FaultServer(COMPLETED) as server:
            assert list(curl_store(server).perform([])) == []
        assert server.seen == []

    def test_an_empty_key_is_refused_unsent(self) -> None:
        """A call for no object is its own error; on the wire it would be another request."""
        outcome, seen = outcome_of(Abort("lake", "", "u"), COMPLETED)
        assert isinstance(outcome, StoreRejected)
        assert seen == []

    def test_a_key_that_cannot_be_sent_ends_the_calls(self) -> None:
        """A key that UTF-8 cannot encode is the caller's mistake: it is raised, after the calls in flight."""
        with FaultServer(COMPLETED) as server:
            with pytest.raises(UnicodeEncodeError):
                list(curl_store(server).perform([(1, COMPLETE), (2, Head("lake", "a\ud800"))]))
            assert len(server.seen) == 1


class TestReference:
    """What the client itself must send."""

    def test_keys_that_look_like_directions(self) -> None:
        """A key with segments that libcurl would resolve is sent unchanged."""
        outcome, (seen,) = outcome_of(Complete("lake", "a/../b/./c", "u", ["e"]), COMPLETED)
        assert outcome == "e-1"
        assert seen.path == "/lake/a/../b/./c?uploadId=u"

    def test_a_bucket_elsewhere(self) -> None:
        """A redirect is followed by the client, and a second later what it learnt serves all calls."""

        def decide(seen: Seen) -> Say:
            region = {"x-amz-bucket-region": "eu-west-1"}
            if "/eu-west-1/" in seen.headers["authorization"]:
                return COMPLETED
            return Say(301, error_body("PermanentRedirect"), region)

        with FaultServer(decide=decide) as server:
            clock = ManualClock()
            store = curl_store(server, clock=clock)
            assert [outcome for _, outcome in store.perform((n, COMPLETE) for n in range(50))] == ["e-1"] * 50
            before = len(server.seen)
            clock.advance(ROUTE_SECONDS)
            assert list(store.perform([(0, COMPLETE)])) == [(0, "e-1")]
            assert len(server.seen) == before + 1

    def test_a_client_that_is_stood_in_for(self) -> None:
        """Where someone answers requests in the store's place, as test doubles do, all go to him."""
        wire = Wire(Answer(404))
        store = S3Store(wire.client, retry=RetryPolicy(deadline=0.0), transport="curl")
        outcomes = [outcome for _, outcome in store.perform((number, HEAD) for number in range(3))]
        assert [type(outcome) for outcome in outcomes] == [NoSuchKey] * 3

    def test_headers_that_an_owner_adds(self) -> None:
        """What a handler of the client's events adds to a request is in every request, and signed."""
        with FaultServer(COMPLETED) as server:
            client = new_client(server.config)
            events: Any = client.meta.events

            def pays(params: dict[str, Any], **_: object) -> None:
                params["headers"]["x-amz-request-payer"] = "requester"

            events.register("before-call.s3.CompleteMultipartUpload", pays)
            list(S3Store(client, transport="curl").perform([(0, COMPLETE)]))
            assert server.seen[0].headers["x-amz-request-payer"] == "requester"
            assert "x-amz-request-payer" in server.seen[0].headers["authorization"]

    @pytest.mark.parametrize("value", ["", "é", "a\tb"])
    def test_a_header_that_libcurl_would_not_send(self, value: str) -> None:
        """Where an owner adds a header that libcurl would drop or change, the client sends itself."""
        with FaultServer(COMPLETED) as server:
            client = new_client(server.config)
            events: Any = client.meta.events
            events.register(
                "before-call.s3", lambda params, **_: params["headers"].update({"x-owner": value})
            )
            assert list(S3Store(client, transport="curl").perform([(0, COMPLETE)])) == [(0, "e-1")]
            (seen,) = server.seen
            assert "x-owner" in seen.headers
            assert "amz-sdk-request" in seen.headers

    def test_a_proxy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Through a proxy the client sends itself."""
        with FaultServer(COMPLETED) as proxy:
            monkeypatch.setenv("HTTP_PROXY", proxy.endpoint_url)
            monkeypatch.setenv("http_proxy", proxy.endpoint_url)
            store = S3Store.connect(S3Config("http://store.example.test", "us-east-1", "a", "s"))
            assert store.transport == "boto3"
            assert list(store.perform([(0, COMPLETE)])) == [(0, "e-1")]
            assert proxy.seen[0].path.startswith("http://store.example.test/lake/k")

    def test_a_configured_proxy(self, caplog: pytest.LogCaptureFixture) -> None:
        """A client with its own proxy is not carried over, and the caller who asked for libcurl is told."""
        client: Any = new_client(S3Config("http://store.example.test", "us-east-1", "a", "s"))
        client.meta.config.proxies = {"http": "http://127.0.0.1:9"}
        with caplog.at_level(logging.WARNING):
            assert S3Store(client, transport="curl").transport == "boto3"
        assert "proxy" in caplog.text

    def test_boto3_by_choice(self) -> None:
        """boto3 is used where it is asked for."""
        with FaultServer(COMPLETED) as server:
            store = S3Store.connect(server.config, transport="boto3")
            assert store.transport == "boto3"
            assert list(store.perform([(0, COMPLETE)])) == [(0, "e-1")]
            assert "Botocore" in server.seen[0].headers["user-agent"]


def test_libcurl_is_the_default() -> None:
    """A store sends with libcurl over plain HTTP and over TLS by default."""
    for scheme in ("http", "https"):
        config = S3Config(f"{scheme}://127.0.0.1:1", "us-east-1", "key", "secret")
        assert S3Store.connect(config).transport == "curl"
        assert S3Store.connect(config, transport="boto3").transport == "boto3"


class TestResultsAtAGlance:
    """Reading thousands of results costs little, and believes no more than the parser of XML."""

    BODY = COMPLETED.body.replace(b"</Comp", b"<Bucket>lake</Bucket><Key>a/b-1</Key></Comp")

    @pytest.mark.parametrize(
        "body",
        [
            COMPLETED.body,
            BODY,
            b"\n  " + BODY + b"\r\n",
            BODY.replace(b"&quot;", b'"'),
            BODY.replace(b"&quot;", b"&#34;"),
            BODY.replace(b"&quot;", b""),
            BODY.replace(b'"1.0"', b'"1.0" encoding="UTF-8"'),
            BODY.replace(b'"1.0"', b'"1.0" encoding="UTF-8" standalone="yes"'),
            BODY.replace(b"http://s3.amazonaws.com/", b"http://s3.example.com/"),
        ],
    )
    def test_a_whole_result(self, body: bytes) -> None:
        """The ETag of a result is seen whichever way its quotes are written."""
        assert plain_outcome(COMPLETE, Response(200, b"", body), 0.0) == "e-1"

    @each(
        "body",
        [
            b"",
            BODY[:-1],
            BODY + b"<x/>",
            BODY.replace(b"&quot;", b"", 1),
            BODY.replace(b"e-1", b""),
            BODY.replace(b"<ETag>", b"<Tag>").replace(b"</ETag>", b"</Tag>"),
            BODY.replace(b"<Bucket>", b"<Pail>"),
            BODY.replace(b"<Bucket>", b"<Bucket><ETag>"),
            BODY.replace(b"a/b-1", b"a<b"),
            BODY.replace(b"a/b-1", b"a > b"),
            BODY.replace(b"a/b-1", b"a & b"),
            BODY.replace(b"a/b-1", b"a &amp; b"),
            BODY.replace(b"<Bucket>", b"<Bucket><Error>").replace(b"</Bucket>", b"</Error></Bucket>"),
            BODY.replace(b"CompleteMultipartUploadResult", b"Error"),
            BODY.replace(b"<Bucket>", b"<ETag>f</ETag><Bucket>"),
        ],
    )
    def test_anything_else(self, body: bytes) -> None:
        """Anything but a plain, complete result is left to the parser."""
        for response in (Response(200, b"", body), Response(500, b"", self.BODY), Response(599)):
            with pytest.raises(UNSETTLED):
                plain_outcome(COMPLETE, response, 0.0)

"""The store on boto3 sends each request as often as it should, and rejects invalid responses."""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ConnectionClosedError, EndpointConnectionError, ReadTimeoutError

from airflow_s3commit.exceptions import (
    AccessDenied,
    NoSuchKey,
    OutcomeUnknown,
    PreconditionFailed,
    S3CommitError,
    StoreRejected,
    Unavailable,
)
from airflow_s3commit.store.base import DeleteFailure, Get, Head, ObjectToDelete, Part
from airflow_s3commit.store.execute import RetryPolicy
from airflow_s3commit.store.s3.config import S3Config
from airflow_s3commit.store.s3.store import MAX_DELETES, S3Store, abort_days
from tests.cases import each
from tests.fakes import ManualClock
from tests.store.s3.wire import DATE, Answer, Wire, error_body

if TYPE_CHECKING:
    from collections.abc import Callable

URL = "https://s3.example.test/lake/k"


COMPLETED = Answer(
    200, b"<CompleteMultipartUploadResult><ETag>&quot;e-1&quot;</ETag></CompleteMultipartUploadResult>"
)


EMPTY = Answer(200)


ETAG = {"etag": '"e"'}


FOUND = {**ETAG, "last-modified": "Sun, 06 Nov 1994 08:49:37 GMT"}


VERBS: dict[str, Callable[[S3Store], object]] = {
    "check_bucket": lambda store: store.check_bucket("lake"),
    "head": lambda store: store.head("lake", "k"),
    "get": lambda store: store.get("lake", "k"),
    "put": lambda store: store.put("lake", "k", b"content"),
    "delete": lambda store: store.delete("lake", "k"),
    "delete_many": lambda store: store.delete_many("lake", [ObjectToDelete("k")]),
    "list_objects": lambda store: list(store.list_objects("lake", "p/")),
    "create_upload": lambda store: store.create_upload("lake", "k", metadata={}, content_type="a/b"),
    "upload_part": lambda store: store.upload_part("lake", "k", "u", 1, b"content"),
    "complete_upload": lambda store: store.complete_upload("lake", "k", "u", ["e"]),
    "abort_upload": lambda store: store.abort_upload("lake", "k", "u"),
    "list_uploads": lambda store: list(store.list_uploads("lake", "p/")),
    "list_parts": lambda store: list(store.list_parts("lake", "k", "u")),
}


READING = {"check_bucket", "head", "get", "list_objects", "list_uploads", "list_parts"}


#: The verbs for whose answer a status and headers are not enough.
NEED_CONTENT = sorted(set(VERBS) - {"check_bucket", "delete", "abort_upload"})


def store_on(wire: Wire, clock: ManualClock | None = None, deadline: float = 60.0) -> S3Store:
    """Return a store that waits on a clock of the test's."""
    return S3Store(
        wire.client, retry=RetryPolicy(deadline=deadline, clock=clock or ManualClock()), transport="boto3"
    )


def complete(store: S3Store) -> str:
    """Complete an upload."""
    return store.complete_upload("lake", "k", "u", ["e"])


class TestOneAttempt:
    """What becomes of one attempt: nothing is sent twice when there is no time to."""

    @each("verb", sorted(VERBS))
    @each(
        "fault",
        [
            Answer(500, error_body("InternalError")),
            Answer(502, b"<html>Bad Gateway</html>"),
            Answer(504),
            ReadTimeoutError(endpoint_url=URL),
            ConnectionClosedError(endpoint_url=URL),
        ],
    )
    def test_an_answer_that_was_lost(self, verb: str, fault: Answer | Exception) -> None:
        """Whatever changes something may have happened; whatever reads may simply be asked again."""
        wire = Wire(fault)
        with pytest.raises(Unavailable if verb in READING else OutcomeUnknown):
            VERBS[verb](store_on(wire, deadline=0.0))
        assert len(wire.requests) == 1

    @each("verb", sorted(VERBS))
    @each(
        "fault",
        [
            Answer(503, error_body("SlowDown"), {"retry-after": "3"}),
            Answer(429, error_body("TooManyRequests"), {"retry-after": "3"}),
            EndpointConnectionError(endpoint_url=URL),
        ],
    )
    def test_a_request_that_was_turned_away(self, verb: str, fault: Answer | Exception) -> None:
        """What the store turned away, or never got, did not happen."""
        wire = Wire(fault)
        with pytest.raises(Unavailable) as caught:
            VERBS[verb](store_on(wire, deadline=0.0))
        assert caught.value.retry_after == (3.0 if isinstance(fault, Answer) else None)
        assert len(wire.requests) == 1

    @pytest.mark.parametrize("verb", sorted(VERBS))
    def test_refused_credentials(self, verb: str) -> None:
        """Refused credentials end every verb at the first attempt."""
        wire = Wire(Answer(403, error_body("AccessDenied")))
        with pytest.raises(AccessDenied, match="lake"):
            VERBS[verb](store_on(wire))
        assert len(wire.requests) == 1

    @pytest.mark.parametrize("verb", NEED_CONTENT)
    def test_an_empty_answer_is_no_success(self, verb: str) -> None:
        """A 200 without the content or ETag that confirms the effect is taken for a lost answer."""
        with pytest.raises(Unavailable if verb in READING else OutcomeUnknown):
            VERBS[verb](store_on(Wire(EMPTY), deadline=0.0))

    @pytest.mark.parametrize(
        ("body", "expected"),
        [
            (error_body("InternalError"), OutcomeUnknown),
            (error_body("SlowDown"), Unavailable),
            (error_body("AccessDenied"), AccessDenied),
            (b"   \n  ", OutcomeUnknown),
            (COMPLETED.body[:-9], OutcomeUnknown),
        ],
        ids=["internal", "slow down", "denied", "blank", "cut off"],
    )
    def test_an_error_inside_a_200(self, body: bytes, expected: type[S3CommitError]) -> None:
        """A completion whose 200 carries an error, or half an answer, did not succeed."""
        with pytest.raises(expected):
            complete(store_on(Wire(Answer(200, body)), deadline=0.0))

    @pytest.mark.parametrize(
        "headers",
        [{}, ETAG, {**FOUND, "etag": '"9dd4'}, {**ETAG, "last-modified": FOUND["last-modified"]}],
        ids=["none", "no time", "half an ETag", "no length"],
    )
    @pytest.mark.parametrize("verb", ["head", "get"])
    def test_headers_that_are_cut_off(self, verb: str, headers: dict[str, str]) -> None:
        """An answer whose headers say too little does not describe an object."""
        wire = Wire(Answer(200, headers=headers, has_length=False))
        with pytest.raises(Unavailable):
            VERBS[verb](store_on(wire, deadline=0.0))

    def test_a_body_that_is_cut_off(self) -> None:
        """An object is not read if less of it arrives than was announced."""
        wire = Wire(Answer(200, b"1234", {**FOUND, "content-length": "10"}))
        with pytest.raises(Unavailable):
            store_on(wire, deadline=0.0).get("lake", "k")

    @pytest.mark.loopback
    def test_a_closed_port(self) -> None:
        """A connection that a real machine refuses is an unavailable store, to writers too."""
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
            config = S3Config(f"http://127.0.0.1:{port}", "eu-west-1", "a", "s")
            with pytest.raises(Unavailable):
                complete(S3Store.connect(config, retry=RetryPolicy(deadline=0.0)))

    def test_no_credentials(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
        """Without any credentials nothing is sent, and the error says where they should come from."""
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        wire = Wire(COMPLETED, config=S3Config("https://s3.example.test", "eu-west-1"))
        with pytest.raises(AccessDenied, match="s3://lake/k"):
            complete(store_on(wire))
        assert wire.requests == []


class TestRetries:
    """Requests are sent again by our policy, one by one."""

    @pytest.mark.parametrize(
        "fault",
        [
            Answer(500, error_body("InternalError")),
            Answer(503, error_body("SlowDown")),
            Answer(200, error_body("InternalError")),
            EMPTY,
            ReadTimeoutError(endpoint_url=URL),
            EndpointConnectionError(endpoint_url=URL),
        ],
        ids=["500", "503", "200 error", "200 empty", "read timeout", "refused"],
    )
    def test_until_it_succeeds(self, fault: Answer | Exception) -> None:
        """A completion that fails twice and then succeeds was sent three times."""
        wire = Wire(fault, fault, COMPLETED)
        assert complete(store_on(wire)) == "e-1"
        assert len(wire.requests) == 3

    def test_after_the_wait_that_was_asked_for(self) -> None:
        """The wait that a throttled store asks for is waited, not botocore's own."""
        clock = ManualClock()
        wire = Wire(Answer(503, error_body("SlowDown"), {"retry-after": "7"}), COMPLETED)
        complete(store_on(wire, clock))
        assert clock.slept == [7.0]

    def test_until_the_deadline(self) -> None:
        """A store that stays unavailable is given up at the deadline."""
        clock = ManualClock()
        wire = Wire(Answer(503, error_body("SlowDown"), {"retry-after": "4"}))
        with pytest.raises(Unavailable):
            complete(store_on(wire, clock, deadline=10.0))
        assert (len(wire.requests), clock.slept) == (3, [4.0, 4.0])

    def test_each_page_by_itself(self) -> None:
        """A page that fails is fetched again; those before it are not, and none is fetched unasked."""
        first = _listing("a", more="t/1=")
        wire = Wire(first, Answer(503), _listing("b"))
        listed = store_on(wire).list_objects("lake", "")
        assert wire.requests == []
        assert next(listed).key == "a"
        assert len(wire.requests) == 1
        assert [info.key for info in listed] == ["b"]
        assert ["continuation-token=t%2F1%3D" in request.url for request in wire.requests] == [
            False,
            True,
            True,
        ]

    def test_a_client_with_retries_of_its_own(self) -> None:
        """A client that retries, checks parameters and keeps few connections serves as well."""
        client = boto3.Session().client(
            "s3",
            endpoint_url="https://s3.example.test",
            region_name="eu-west-1",
            aws_access_key_id="a",
            aws_secret_access_key="s",
            config=Config(retries={"total_max_attempts": 2, "mode": "legacy"}),
        )
        sent: list[Any] = []
        wire = Wire(EMPTY, Answer(200, headers=ETAG))
        wire.requests = sent
        events: Any = client.meta.events
        events.register("before-send.s3", wire._answer)
        store = S3Store(client, retry=RetryPolicy(clock=ManualClock()))
        assert store.upload_part("lake", "k", "u", 1, memoryview(b"content")) == "e"
        assert len(sent) == 2


def _listing(*keys: str, more: str | None = None) -> Answer:
    contents = "".join(
        f"<Contents><Key>{key}</Key><Size>1</Size><ETag>&quot;e&quot;</ETag>"
        "<LastModified>2013-01-01T00:00:00.000Z</LastModified></Contents>"
        for key in keys
    )
    token = f"<NextContinuationToken>{more}</NextContinuationToken>" if more else ""
    truncated = str(more is not None).lower()
    body = f"<ListBucketResult><IsTruncated>{truncated}</IsTruncated>{token}{contents}</ListBucketResult>"
    return Answer(200, body.encode())


def _uploads(*uploads: tuple[str, str], **markers: str) -> Answer:
    entries = "".join(
        f"<Upload><Key>{key}</Key><UploadId>{upload_id}</UploadId>"
        "<Initiated>2013-01-01T00:00:00.000Z</Initiated></Upload>"
        for key, upload_id in uploads
    )
    named = "".join(f"<{name}>{value}</{name}>" for name, value in markers.items())
    truncated = str(bool(markers)).lower()
    body = (
        f"<ListMultipartUploadsResult><IsTruncated>{truncated}</IsTruncated>{named}{entries}"
        "</ListMultipartUploadsResult>"
    )
    return Answer(200, body.encode())


class TestListings:
    """Listings believe the store's markers and nothing else."""

    def test_uploads_beside_the_prefix_are_left_out(self) -> None:
        """Of a store that lists all its uploads only those below the prefix are yielded."""
        wire = Wire(_uploads(("p/a", "1"), ("q/b", "2")))
        assert [upload.key for upload in store_on(wire).list_uploads("lake", "p/")] == ["p/a"]

    def test_a_circle_of_uploads_ends(self, caplog: pytest.LogCaptureFixture) -> None:
        """A listing of uploads that goes in a circle ends, with a warning that it may lack some."""
        wire = Wire(_uploads(("p/a", "1"), NextUploadIdMarker="1"))
        with caplog.at_level(logging.WARNING):
            listed = list(store_on(wire).list_uploads("lake", "p/"))
        assert {upload.upload_id for upload in listed} == {"1"}
        assert len(wire.requests) == 2
        assert "may be incomplete" in caplog.text

    def test_a_key_that_xml_cannot_hold(self) -> None:
        """An upload whose key XML cannot hold is listed as it is, in its place, and so are its parts."""
        odd, named = "p/odd&#x7;&#x1F; a+%2B&amp;", "p/odd\x07\x1f a+%2B&"
        wire = Wire(_uploads((odd, "1"), ("p/dt=a%3A", "2%"), NextKeyMarker=odd), _uploads(("p/z%3D+", "3")))
        listed = [(one.key, one.upload_id) for one in store_on(wire).list_uploads("lake", "p/")]
        assert listed == [(named, "1"), ("p/dt=a%3A", "2%"), ("p/z%3D+", "3")]
        assert "key-marker=p%2Fodd%07%1F%20a%2B%252B%26" in wire.requests[1].url
        parts = "<Part><PartNumber>1</PartNumber><ETag>e</ETag><Size>3</Size></Part>"
        page = f"<ListPartsResult><Key>{odd}</Key><IsTruncated>false</IsTruncated>{parts}</ListPartsResult>"
        wire = Wire(Answer(200, page.encode()))
        assert list(store_on(wire).list_parts("lake", named, "1")) == [Part(1, "e", 3)]

    @pytest.mark.parametrize("listing", ["list_objects", "list_uploads"])
    def test_a_listing_that_fails_names_its_prefix(self, listing: str) -> None:
        """The error says of which table the listing is."""
        with pytest.raises(AccessDenied, match="of s3://lake/p/: AccessDenied"):
            list(getattr(store_on(Wire(Answer(403, error_body("AccessDenied")))), listing)("lake", "p/"))

    def test_a_circle_of_objects_is_an_error(self) -> None:
        """A listing of objects that goes in a circle is never taken for complete: plans are made of it."""
        wire = Wire(_listing("a", more="t"))
        with pytest.raises(StoreRejected):
            list(store_on(wire).list_objects("lake", ""))
        assert len(wire.requests) == 2


class TestRequests:
    """What is sent."""

    def test_times_are_the_answers_own(self) -> None:
        """The time of a write is the date of its answer."""
        assert store_on(Wire(Answer(200, headers=ETAG))).put("lake", "k", b"").date == DATE

    def test_an_answer_without_a_date_was_made_when_it_came(self) -> None:
        """A response without a date has the time of its arrival."""
        wire = Wire(Answer(200, headers={**ETAG, "date": ""}))
        assert store_on(wire, ManualClock(5.0)).put("lake", "k", b"").date == 5.0

    def test_conditions_are_quoted(self) -> None:
        """An ETag in a condition has its quotes, whether it was given with them or not."""
        for etag in ("abc", '"abc"'):
            wire = Wire(Answer(200, headers=ETAG))
            store_on(wire).put("lake", "k", b"", if_match=etag)
            assert wire.requests[0].headers["if-match"] in (b'"abc"', '"abc"')

    @pytest.mark.parametrize(("key", "upload_id"), [("", "u"), ("k", "")])
    def test_nothing_is_sent_without_a_name(self, key: str, upload_id: str) -> None:
        """An empty key or upload id never reaches the store, where it would be another request."""
        wire = Wire(Answer(204))
        store = store_on(wire)
        with pytest.raises(StoreRejected):
            store.abort_upload("lake", key, upload_id)
        with pytest.raises(StoreRejected):
            store.delete_many("lake", [ObjectToDelete("a"), ObjectToDelete("")])
        with pytest.raises(StoreRejected):
            store.delete("lake", "")
        assert wire.requests == []

    def test_a_bulk_delete_has_a_limit(self) -> None:
        """More objects than S3 takes in one request are refused before anything is sent."""
        wire = Wire(EMPTY)
        with pytest.raises(ValueError, match="1001"):
            store_on(wire).delete_many("lake", [ObjectToDelete(str(n)) for n in range(MAX_DELETES + 1)])
        assert wire.requests == []

    def test_a_bulk_delete_reports_what_it_left(self) -> None:
        """Objects that were left are returned with the store's reason; those that were not there are not."""
        body = (
            b"<DeleteResult><Deleted><Key>a</Key></Deleted>"
            b"<Error><Key>b</Key><Code>AccessDenied</Code><Message>no</Message></Error>"
            b"<Error><Key>c</Key><Code>NoSuchKey</Code></Error></DeleteResult>"
        )
        wire = Wire(Answer(200, body))
        failures = store_on(wire).delete_many(
            "lake", [ObjectToDelete("a"), ObjectToDelete("b"), ObjectToDelete("c", "e")]
        )
        assert failures == [DeleteFailure("b", "AccessDenied", "no")]
        sent: Any = wire.requests[0].body
        assert b"<Key>c</Key>" in sent
        assert b"<ETag>&quot;e&quot;</ETag>" in sent.replace(b'"', b"&quot;")

    def test_a_swap_of_nothing_is_a_failed_condition(self) -> None:
        """AWS answers "not found" to a conditional write without an object: still a failed condition."""
        wire = Wire(Answer(404, error_body("NoSuchKey")))
        with pytest.raises(PreconditionFailed):
            store_on(wire).put("lake", "k", b"", if_match="e")
        with pytest.raises(NoSuchKey):
            store_on(wire).put("lake", "k", b"")

    def test_a_repeated_conditional_delete(self) -> None:
        """A conditional delete whose answer was lost finds its object gone, and that is what it wanted."""
        lost, refused = ReadTimeoutError(endpoint_url=URL), Answer(412, error_body("PreconditionFailed"))
        wire = Wire(Answer(200, b"", FOUND), lost, refused, Answer(404))
        store_on(wire).delete("lake", "k", if_match="e")
        assert [request.method for request in wire.requests] == ["HEAD", "DELETE", "DELETE", "HEAD"]

    @pytest.mark.parametrize("change", ["put", "delete"])
    @pytest.mark.parametrize("answer", [Answer(400), Answer(403), Answer(503)])
    def test_a_condition_that_cannot_be_looked_into(self, change: str, answer: Answer) -> None:
        """If nothing shows why a condition was refused, a change is unknown, and none is made without it."""
        refused = Answer(412, error_body("PreconditionFailed"))
        wire = Wire(*[Answer(200, b"", FOUND)] * (change == "delete"), refused, answer)
        store = store_on(wire)
        with pytest.raises(OutcomeUnknown):
            store.put("lake", "k", b"", if_match="e") if change == "put" else store.delete(
                "lake", "k", if_match="e"
            )
        changes = [request for request in wire.requests if request.method in ("PUT", "DELETE")]
        assert all("if-match" in request.headers for request in changes)
        assert store.profiles["lake"].conditional_delete is None

    def test_a_head_that_names_no_reason(self) -> None:
        """The 400 of a HEAD has no body: a GET finds out that the credentials have expired."""
        wire = Wire(Answer(400), Answer(400, error_body("ExpiredToken")))
        with pytest.raises(AccessDenied, match="the credentials have expired"):
            store_on(wire).head("lake", "k")
        assert wire.requests[-1].method == "GET"

    def test_a_head_that_is_refused_for_no_reason(self) -> None:
        """A refused HEAD stays refused if a GET finds nothing wrong, however large the object is."""
        wire = Wire(Answer(400), Answer(200, b"12345", FOUND))
        with pytest.raises(StoreRejected, match="HeadObject"):
            store_on(wire).head("lake", "k")

    def test_many_calls_use_no_more_than_the_connections(self) -> None:
        """Calls are made from no more threads than the client keeps connections open."""
        config = S3Config("https://s3.example.test", "eu-west-1", "a", "s", max_connections=3)
        wire = Wire(Answer(200, b"1", FOUND), config=config)
        store = S3Store(wire.client, retry=RetryPolicy(deadline=0.0), transport="boto3")
        left = iter(range(20))
        outcomes = store.perform((number, Get("lake", "k")) for number in left)
        next(outcomes)
        assert next(left) == 2 * 3
        assert len(list(outcomes)) == 18

    def test_an_error_of_one_call_is_its_outcome(self) -> None:
        """One call's refusal is returned with its tag and does not stop the others."""
        wire = Wire(Answer(403))
        outcomes = dict(store_on(wire).perform((key, Head("lake", key)) for key in ("a", "b")))
        assert {key: type(outcome) for key, outcome in outcomes.items()} == dict.fromkeys("ab", AccessDenied)


class TestStaleUploads:
    """What is known of lifecycle rules."""

    @pytest.mark.parametrize(
        "answer",
        [
            Answer(404, error_body("NoSuchLifecycleConfiguration")),
            Answer(403, error_body("AccessDenied")),
            Answer(501, error_body("NotImplemented")),
            Answer(405, error_body("MethodNotAllowed")),
        ],
        ids=["none", "denied", "not implemented", "not allowed"],
    )
    def test_a_refusal_is_no_rule(self, answer: Answer) -> None:
        """A store that has no rules, or keeps them to itself, is one that removes nothing we know of."""
        assert store_on(Wire(answer)).stale_upload_days("lake", "p/") is None

    def test_a_rule_is_read(self) -> None:
        """The days of a rule that holds for the prefix are returned."""
        body = (
            b"<LifecycleConfiguration><Rule><ID>a</ID><Filter><Prefix>p/</Prefix></Filter>"
            b"<Status>Enabled</Status><AbortIncompleteMultipartUpload><DaysAfterInitiation>7"
            b"</DaysAfterInitiation></AbortIncompleteMultipartUpload></Rule></LifecycleConfiguration>"
        )
        store = store_on(Wire(Answer(200, body)))
        assert store.stale_upload_days("lake", "p/q/") == 7
        assert store.stale_upload_days("lake", "other/") is None


class TestSecrets:
    """Credentials are never shown."""

    @pytest.mark.parametrize(
        "fault", [Answer(403, error_body("InvalidAccessKeyId")), ReadTimeoutError(endpoint_url=URL)]
    )
    def test_not_in_errors_or_logs(self, fault: Answer | Exception, caplog: pytest.LogCaptureFixture) -> None:
        """Neither the store, nor its errors, nor our log hold the keys."""
        store = store_on(Wire(fault), deadline=0.0)
        with (
            caplog.at_level(logging.DEBUG, logger="airflow_s3commit"),
            pytest.raises(S3CommitError) as caught,
        ):
            complete(store)
        shown = f"{store!r} {caught.value!s} {caught.value.__cause__!s} {caplog.text}"
        assert "the-access-key" not in shown
        assert "the-secret-key" not in shown


def rule(days: int | None = 7, status: str = "Enabled", **fields: Any) -> dict[str, Any]:
    """Return a rule as botocore parses it."""
    action = {} if days is None else {"AbortIncompleteMultipartUpload": {"DaysAfterInitiation": days}}
    return {"Status": status, **action, **fields}


@each(
    ("rules", "days"),
    [
        ([], None),
        ([rule()], 7),
        ([rule(Filter={})], 7),
        ([rule(Prefix="")], 7),
        ([rule(Prefix="flights/")], 7),
        ([rule(Filter={"Prefix": "flights/"})], 7),
        ([rule(Filter={"Prefix": "flights/dt=2013-01-01/"})], None),
        ([rule(Filter={"Prefix": "weather/"})], None),
        ([rule(Filter={"And": {"Prefix": "fl", "Tags": [{"Key": "a", "Value": "b"}]}})], None),
        ([rule(Filter={"Tag": {"Key": "a", "Value": "b"}})], None),
        ([rule(Filter={"ObjectSizeGreaterThan": 1})], None),
        ([rule(status="Disabled")], None),
        ([rule(days=None, Expiration={"Days": 1})], None),
        ([rule(7), rule(3, Filter={"Prefix": "flights/"}), rule(1, Filter={"Prefix": "weather/"})], 3),
    ],
)
def test_days(rules: list[dict[str, Any]], days: int | None) -> None:
    """The shortest enabled rule whose prefix holds all of ours is the one that counts."""
    assert abort_days(rules, "flights/") == days

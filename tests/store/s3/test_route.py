"""Requests are signed as botocore would sign them, to the byte."""

from __future__ import annotations

import datetime as dt
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from airflow_s3commit.store.base import Abort, Call, Complete, Get, Head
from airflow_s3commit.store.execute import RetryPolicy
from airflow_s3commit.store.s3.store import S3Store
from tests.store.s3.fault_server import FaultServer, Say, Seen
from tests.store.s3.wire import error_body

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("pycurl")

from airflow_s3commit.store.s3.config import S3Config, new_client
from airflow_s3commit.store.s3.route import learn_route

pytestmark = pytest.mark.loopback

KEY_CHARACTERS = "abXY01-_.~/!*'();:@&=+$,?#[]%<> \"{}|\\^`äß日é"
ID_CHARACTERS = "abXY01-_.~=+/&% "

#: Headers that a signer adds.
SIGNERS_OWN = {"host", "x-amz-content-sha256", "x-amz-date", "x-amz-security-token"}

#: What each call that changes something takes for an outcome.
GONE = Say(404, error_body("NoSuchUpload"))


def signed_by_botocore(seen: Seen, endpoint: str, *keys: str) -> str:
    """Return the header by which botocore would have authorised a request, at the same second."""
    given = seen.headers
    names = given["authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
    headers = {name: given[name] for name in names if name not in SIGNERS_OWN}
    request = AWSRequest(seen.method, endpoint + seen.path, headers, seen.body)
    signer: Any = S3SigV4Auth(Credentials(*keys), "s3", "us-east-1")
    second = dt.datetime.strptime(given["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=dt.UTC)
    with patch("botocore.auth.get_current_datetime", return_value=second):
        signer.add_auth(request)
    return str(request.headers["Authorization"])


def some_calls(count: int) -> Iterator[Call]:
    """Yield calls whose keys and uploads have every character that URLs quote."""
    draw = random.Random(20261121)
    for _ in range(count):
        key = "".join(draw.choices(KEY_CHARACTERS, k=draw.randint(1, 30))) + "k"
        upload = "".join(draw.choices(ID_CHARACTERS, k=draw.randint(1, 20)))
        yield Complete("lake", key, upload, ["e"] * draw.randint(1, 5))
        yield Abort("lake", key, upload)
        yield Head("lake", key)
        yield Get("lake", key)


def test_signatures_are_botocores() -> None:
    """For keys and upload ids with all that URLs quote, the signature is the one that botocore makes."""
    with FaultServer(GONE) as server:
        store = S3Store.connect(server.config, transport="curl")
        assert len(list(store.perform(enumerate(some_calls(60))))) == 240
        # boto3 asks again for objects that are not there.
        assert len(server.seen) == 240 + 120
        for seen in server.seen:
            expected = signed_by_botocore(seen, server.endpoint_url, "the-access-key", "the-secret-key")
            assert seen.headers["authorization"] == expected


@pytest.mark.parametrize("secret", ["Välue-ß日", "a b:c", "%2F+/=", "x" * 5000])
def test_secrets_of_any_text_sign_alike(secret: str) -> None:
    """A secret key beyond ASCII, or with what URLs quote, signs as botocore's does; so does a long token."""
    token = "T/+=" * 1000
    with FaultServer(GONE) as server:
        config = replace(server.config, secret_key=secret, session_token=token)
        store = S3Store.connect(config, transport="curl", retry=RetryPolicy(deadline=0.0))
        list(store.perform(enumerate(some_calls(2))))
        assert len(server.seen) == 8 + 4
        for seen in server.seen:
            expected = signed_by_botocore(seen, server.endpoint_url, "the-access-key", secret, token)
            assert seen.headers["authorization"] == expected


@pytest.mark.parametrize("bucket", ["lake", "lake.of.dots"])
@pytest.mark.parametrize("endpoint", [None, "https://127.0.0.1:9000/gateway/s3"])
def test_addresses_of_all_styles_sign_alike(bucket: str, endpoint: str | None) -> None:
    """Wherever the bucket is in a URL, botocore signs the same, and no body that TLS protects."""
    client = new_client(
        S3Config(endpoint, "us-east-1", "the-access-key", "the-secret-key", session_token="t/+=")
    )
    route = learn_route(client, bucket, "UploadPart")
    assert route is not None
    lines = route.header_lines("dt%3D1/a.csv?uploadId=u%2F1&partNumber=1", b"rows", {"content-md5": "abc="})
    given = {name.lower(): text for name, _, text in (line.partition(": ") for line in lines)}
    seen = Seen(str(route.method), "dt%3D1/a.csv?uploadId=u%2F1&partNumber=1", given, b"rows")
    with patch.object(S3SigV4Auth, "payload", return_value="UNSIGNED-PAYLOAD"):
        expected = signed_by_botocore(seen, route.url, "the-access-key", "the-secret-key", "t/+=")
    assert given["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
    assert given["authorization"] == expected

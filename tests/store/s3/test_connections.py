"""libcurl signs what botocore would sign, to the byte."""

from __future__ import annotations

import datetime as dt
import os
import random
import select
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
from tests.store.s3.fault_server import FaultServer, Say
from tests.store.s3.wire import error_body

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.store.s3.fault_server import Seen

pytest.importorskip("pycurl")

import pycurl

from airflow_s3commit.store.s3.connections import _poll

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
    """For keys and upload ids with all that URLs quote, libcurl's signature is the one botocore makes."""
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


def test_a_descriptor_with_the_number_of_a_closed_one_is_polled() -> None:
    """A descriptor is polled for what libcurl asks, though one of its number was closed unannounced."""
    with select.epoll() as poller:
        first, _ = os.pipe()
        _poll(poller, pycurl.POLL_IN, first)
        os.close(first)
        again, end = os.pipe()
        if again != first:
            os.dup2(again, first)
        _poll(poller, pycurl.POLL_IN, first)
        os.write(end, b"x")
        assert poller.poll(1.0) == [(first, select.EPOLLIN)]
        _poll(poller, pycurl.POLL_OUT, first)
        assert poller.poll(0) == []
        os.close(first)
        _poll(poller, pycurl.POLL_REMOVE, first)

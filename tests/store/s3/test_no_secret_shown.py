"""Whichever door a secret comes in by, and whatever fails then, nothing shows it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from airflow_s3commit.exceptions import AccessDenied, S3CommitError, StoreUnsuitable
from airflow_s3commit.store.base import Complete
from airflow_s3commit.store.execute import RetryPolicy
from airflow_s3commit.store.s3.config import S3Config
from airflow_s3commit.store.s3.store import S3Store
from tests.secret_shapes import MARK, SHAPES, URLS, chain, leaks, shown
from tests.store.s3.fault_server import Cut, FaultServer, Say, Seen

pytestmark = pytest.mark.loopback

pytest.importorskip("pycurl")

#: Fields of a configuration, with the names that the environment and the profile have for them.
FIELDS = {
    "access_key": "aws_access_key_id",
    "secret_key": "aws_secret_access_key",
    "session_token": "aws_session_token",
}

#: What can be signed with, in which field.
USABLE = [
    (field, shape)
    for field in FIELDS
    for shape in ("plain", "percent", "long", "non-ASCII")
    if shape != "non-ASCII" or field == "secret_key"
]
UNUSABLE = [(field, shape) for field in FIELDS for shape in SHAPES if (field, shape) not in USABLE]

Door = Callable[[str, dict[str, str], pytest.MonkeyPatch, Path], S3Store]
_Opened = Callable[[str, dict[str, str]], S3Store]


def _connect(config: S3Config) -> S3Store:
    return S3Store.connect(config, retry=RetryPolicy(deadline=0.0), transport="curl")


def _by_config(endpoint: str, keys: dict[str, str], _: pytest.MonkeyPatch, _path: Path) -> S3Store:
    return _connect(S3Config(endpoint, "eu-west-1", **keys))


def _by_environment(endpoint: str, keys: dict[str, str], patch: pytest.MonkeyPatch, _: Path) -> S3Store:
    patch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    for field, value in keys.items():
        patch.setenv(FIELDS[field].upper(), value)
    return _connect(S3Config(region="eu-west-1"))


def _by_process(endpoint: str, keys: dict[str, str], patch: pytest.MonkeyPatch, path: Path) -> S3Store:
    """Keys and the endpoint of a profile, the keys from a process: so they may have any character."""
    names = {"access_key": "AccessKeyId", "secret_key": "SecretAccessKey", "session_token": "SessionToken"}
    printed = {"Version": 1} | {names[field]: value for field, value in keys.items()}
    (path / "keys.json").write_text(json.dumps(printed))
    profile = f"[profile lan]\nendpoint_url = {endpoint}\ncredential_process = cat {path / 'keys.json'}\n"
    (path / "config").write_text(profile)
    patch.setenv("AWS_PROFILE", "lan")
    return _connect(S3Config(region="eu-west-1"))


def _by_client(endpoint: str, keys: dict[str, str], _: pytest.MonkeyPatch, _path: Path) -> S3Store:
    named: dict[str, Any] = {FIELDS[field]: value for field, value in keys.items()}
    client = boto3.Session(region_name="eu-west-1").client("s3", endpoint_url=endpoint, **named)
    return S3Store(client, retry=RetryPolicy(deadline=0.0), transport="curl")


DOORS: list[Door] = [_by_config, _by_environment, _by_process, _by_client]


@pytest.fixture(autouse=True)
def _nothing_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "AWS_CA_BUNDLE", *FIELDS.values()):
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def _rejected(seen: Seen) -> Say:
    """Refuse a request as AWS does, which repeats the token that it was sent."""
    token = seen.headers.get("x-amz-security-token", "")
    head = "<Error><Code>InvalidToken</Code><Message>The provided token is malformed</Message>"
    return Say(400, f"{head}<Token-0>{token}</Token-0></Error>".encode())


@pytest.fixture(scope="module")
def places() -> Iterator[dict[str, str]]:
    """Return endpoints by what is wrong with them."""
    with FaultServer(decide=_rejected) as rejecting, FaultServer(Cut()) as silent:
        yield {
            "rejected": rejecting.endpoint_url,
            "cut off": silent.endpoint_url,
            "no TLS": silent.endpoint_url.replace("http:", "https:"),
            "refused": "http://127.0.0.1:1",
        }


def _failures(open_store: Callable[[], S3Store]) -> Iterator[object]:
    """Yield what a failing store shows: its errors by both transports, or the one of opening it."""
    try:
        store = open_store()
    except S3CommitError as error:
        yield error
        return
    yield store
    with pytest.raises(S3CommitError) as caught:
        store.put("lake", "k", b"content")
    yield caught.value
    ((_, outcome),) = store.perform([("tag", Complete("lake", "k", "u", ["e"]))])
    assert isinstance(outcome, S3CommitError)
    yield outcome


@pytest.fixture
def door(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> _Opened:
    """Return what opens a store by a door."""
    return lambda endpoint, keys: request.param(endpoint, keys, monkeypatch, tmp_path)


by_every_door = pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__, indirect=True)


@by_every_door
@pytest.mark.parametrize("place", ["rejected", "cut off", "no TLS", "refused"])
def test_usable_secrets(
    door: _Opened, place: str, places: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """Keys that requests are signed with are in no error of any failing call, nor in its chain or the log."""
    caplog.set_level(logging.INFO)
    caplog.set_level(logging.DEBUG, logger="airflow_s3commit")
    for shape in ("plain", "percent", "long", "non-ASCII"):
        plain = SHAPES["plain" if shape == "non-ASCII" else shape]
        keys = {"access_key": plain, "secret_key": SHAPES[shape], "session_token": plain}
        seen = list(_failures(lambda keys=keys: door(places[place], keys)))
        assert len(seen) == 3
        assert all(isinstance(error, S3CommitError) for thing in seen[1:] for error in chain(thing))
        for secret in keys.values():
            assert leaks(shown(*seen, caplog.text), secret) == []


@by_every_door
def test_unusable_secrets(door: _Opened) -> None:
    """A key or token that no request can be signed with is named, not shown, and nothing is sent."""
    with FaultServer(Say(500)) as server:
        for field, shape in UNUSABLE:
            keys = dict.fromkeys(FIELDS, "a-good-one") | {field: SHAPES[shape]}
            seen = list(_failures(lambda keys=keys: door(server.endpoint_url, keys)))
            errors = [thing for thing in seen if isinstance(thing, BaseException)]
            for error in errors:
                assert isinstance(error, AccessDenied), (field, shape, error)
                assert field.replace("_", " ") in str(error)
            assert errors
            assert leaks(shown(*seen), SHAPES[shape]) == [], (field, shape)
        assert server.seen == []


@pytest.mark.parametrize("door", DOORS[:3], ids=lambda door: door.__name__, indirect=True)
@pytest.mark.parametrize("url", URLS)
def test_passwords_in_endpoints(door: _Opened, url: str) -> None:
    """An endpoint with a user name or password in it opens no store, by no door, and is not repeated."""
    with pytest.raises(S3CommitError) as caught:
        door(url, dict.fromkeys(FIELDS, "a-good-one"))
    assert leaks(shown(caught.value)) == []


def test_a_password_of_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy may have a password, which no error of a request through it shows."""
    monkeypatch.setenv("HTTP_PROXY", f"http://me:{MARK}@127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    store = _connect(S3Config("http://store.example.test", "eu-west-1", "a", "s"))
    seen = list(_failures(lambda: store))
    assert len(seen) == 3
    assert leaks(shown(*seen)) == []


def test_keys_that_a_client_renews(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keys that turn unusable while a store lives are refused by both transports, unseen."""
    with FaultServer(Say(403)) as server:
        store = _by_client(server.endpoint_url, dict.fromkeys(FIELDS, "good"), monkeypatch, tmp_path)
        list(_failures(lambda: store))
        before = len(server.seen)
        client: Any = store._client
        client._request_signer._credentials.token = SHAPES["line end within"]
        assert store._curl is not None
        store._curl._learned.cache_clear()
        seen = list(_failures(lambda: store))
        assert [type(thing) for thing in seen[1:]] == [AccessDenied, AccessDenied]
        assert leaks(shown(*seen)) == []
        assert len(server.seen) == before


def test_a_client_of_ones_own_with_a_password_in_its_endpoint() -> None:
    """A store is not made of a client whose endpoint holds a password: logs would name it."""
    client = boto3.Session(region_name="eu-west-1").client("s3", endpoint_url=URLS[0])
    with pytest.raises(StoreUnsuitable, match="user name or password") as caught:
        S3Store(client)
    assert leaks(shown(caught.value)) == []

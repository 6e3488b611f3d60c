"""A client talks to the right place in the right way, and its configuration keeps its secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from airflow_s3commit.exceptions import AccessDenied, StoreUnsuitable
from airflow_s3commit.store.s3.config import S3Config, client_config, new_client
from airflow_s3commit.store.s3.store import S3Store
from tests.store.s3.wire import Answer, Wire

if TYPE_CHECKING:
    from pathlib import Path

SECRETS = ("AKIAEXAMPLE", "hunter2", "token-9")


@pytest.fixture(autouse=True)
def _no_configuration_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "AWS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def s3_options(config: Any) -> dict[str, Any]:
    """Return the options of a client configuration that are S3's own."""
    options: dict[str, Any] = config.s3
    return options


def url_of(config: S3Config) -> str:
    """Return where a client sends the HEAD of an object to."""
    wire = Wire(Answer(404), config=config)
    with pytest.raises(wire.client.exceptions.ClientError):
        wire.client.head_object(Bucket="lake", Key="a/b")
    return str(wire.requests[0].url)


def test_repr_shows_no_secret() -> None:
    """Neither keys nor token are in what a configuration looks like in a log."""
    shown = repr(S3Config("https://s3.example.test", None, *SECRETS))
    assert "https://s3.example.test" in shown
    assert not any(secret in shown for secret in SECRETS)


def test_an_endpoint_holds_no_password() -> None:
    """A user name and password in the endpoint's URL, which would be logged, are refused unseen."""
    with pytest.raises(StoreUnsuitable, match="password") as caught:
        S3Config(endpoint_url="https://me:hunter2@s3.example.test")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("endpoint", "path_style", "url"),
    [
        (None, None, "https://lake.s3.eu-west-1.amazonaws.com/a/b"),
        ("https://s3.eu-west-1.amazonaws.com", None, "https://lake.s3.eu-west-1.amazonaws.com/a/b"),
        (None, True, "https://s3.eu-west-1.amazonaws.com/lake/a/b"),
        ("http://127.0.0.1:9000", None, "http://127.0.0.1:9000/lake/a/b"),
        ("https://store.example.test", None, "https://store.example.test/lake/a/b"),
        ("https://store.example.test", False, "https://lake.store.example.test/a/b"),
        ("https://store.example.test/", False, "https://lake.store.example.test/a/b"),
        ("https://store.example.test/s3//", None, "https://store.example.test/s3/lake/a/b"),
        (
            "https://store.example.test/storage/v1/s3",
            False,
            "https://lake.store.example.test/storage/v1/s3/a/b",
        ),
        ("https://s3.eu-west-1.amazonaws.com/", None, "https://lake.s3.eu-west-1.amazonaws.com/a/b"),
        ("https://amazonaws.com.example.test", None, "https://amazonaws.com.example.test/lake/a/b"),
    ],
)
def test_where_the_bucket_goes(endpoint: str | None, path_style: bool | None, url: str) -> None:
    """The bucket is in the host name on AWS and in the path elsewhere, unless one says otherwise."""
    config = S3Config(endpoint, "eu-west-1", "a", "s", path_style=path_style)
    assert url_of(config) == url


@pytest.mark.parametrize(
    "path", ["/a b", "/a%20b", "/a+b", "//s3", "/s3//x", "/s3/../x", "/.", "?s3", "/#s3", "/ü"]
)
def test_a_path_that_clients_sign_differently_is_refused(path: str) -> None:
    """An endpoint's path has plain names only, and neither a query nor a fragment follows."""
    with pytest.raises(StoreUnsuitable, match=r"^the endpoint that was given is not the URL of a store"):
        S3Config(f"https://store.example.test{path}")


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_an_endpoint_of_the_environment(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """An endpoint that the environment names is treated like one that was given."""
    monkeypatch.setenv(variable, "http://127.0.0.1:9000/")
    config = S3Config(region="eu-west-1", access_key="a", secret_key="s")
    assert S3Store.connect(config).endpoint == "http://127.0.0.1:9000"
    assert url_of(config) == "http://127.0.0.1:9000/lake/a/b"
    assert s3_options(new_client(config).meta.config)["payload_signing_enabled"] is True


@pytest.mark.parametrize(
    ("endpoint", "signed"),
    [("https://store.example.test", False), (None, False), ("http://127.0.0.1:9000", True)],
)
def test_bodies_are_signed_without_tls(endpoint: str | None, signed: bool) -> None:
    """A part's hash is in its signature exactly when the connection does not protect it."""
    wire = Wire(Answer(200, headers={"etag": '"e"'}), config=S3Config(endpoint, "eu-west-1", "a", "s"))
    S3Store(wire.client).upload_part("lake", "k", "u", 1, b"content")
    sent = wire.requests[-1].headers
    assert (sent["x-amz-content-sha256"] != b"UNSIGNED-PAYLOAD") is signed
    assert not [name for name in sent if "checksum" in name.lower()]


def test_the_client_does_not_retry() -> None:
    """The client makes one attempt, names itself, signs with version 4 and keeps its connections."""
    config: Any = client_config("https://store.example.test", max_connections=7)
    assert config.retries == {"total_max_attempts": 1, "mode": "standard"}
    assert config.user_agent.startswith("airflow-s3commit/")
    assert config.signature_version == "s3v4"
    assert config.max_pool_connections == 7
    assert config.tcp_keepalive


@pytest.mark.parametrize(
    "config",
    [S3Config(profile="nobody"), S3Config(region="eu-west-1", access_key="AKIAEXAMPLE")],
    ids=["profile", "half a pair"],
)
def test_unusable_credentials_are_named_at_once(config: S3Config) -> None:
    """A profile that is not there, or one key without the other, is refused before anything is sent."""
    with pytest.raises(AccessDenied) as caught:
        S3Store.connect(config)
    assert "AKIAEXAMPLE" not in str(caught.value)

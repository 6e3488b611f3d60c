"""From a connection to a store and to what Spark needs."""

from __future__ import annotations

import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from threading import Event
from time import monotonic

import pytest

from airflow_s3commit import S3Store
from airflow_s3commit.exceptions import (
    AccessDenied,
    S3CommitError,
    StoreRejected,
    StoreUnsuitable,
    Unavailable,
)
from airflow_s3commit.hooks import S3CommitHook
from tests.secret_shapes import MARK, SHAPES, URLS, leaks, shown

SECRET = "not-for-anyones-eyes"


@pytest.fixture
def connect(monkeypatch):
    """Define the ``aws`` connection ``lake`` as an environment variable, as Airflow reads it."""
    for name in (
        *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
        *("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE"),
    ):
        monkeypatch.delenv(name, raising=False)

    def define(*, login: str | None = "key-id", **extra: object) -> S3CommitHook:
        described = {"conn_type": "aws", "extra": {"region_name": "eu-west-1", **extra}}
        if login:
            described |= {"login": login, "password": SECRET}
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(described))
        return S3CommitHook("lake")

    return define


def test_the_connection_makes_the_store(connect) -> None:
    """Endpoint and region come from the connection; the client is made once, asks once, and by path."""
    hook = connect(endpoint_url="http://127.0.0.1:8333")
    assert isinstance(hook.store, S3Store)
    assert (hook.store, hook.aws) == (hook.store, hook.aws)
    client = hook.aws.conn
    assert client.meta.endpoint_url == "http://127.0.0.1:8333"
    assert client.meta.region_name == "eu-west-1"
    assert client.meta.config.retries["total_max_attempts"] == 1
    assert client.meta.config.s3["addressing_style"] == "path"


@pytest.mark.parametrize(
    "extra",
    [
        {"config_kwargs": '{"s3": {"addressing_style": "path"}}'},
        {"config_kwargs": {"s3": "path"}},
        {"config_kwargs": {"adressing": "path"}},
        {"service_config": "s3"},
        {"config_kwargs": {"s3": {"addressing_style": MARK}}},
        {"role_arn": "arn:x", "assume_role_method": MARK},
    ],
)
def test_an_extra_of_another_form_is_named(connect, extra) -> None:
    """An object that became text, as in a connection's URI, is refused by the connection's name."""
    for use in ("address", "store"):
        with pytest.raises(StoreRejected, match=r"the connection 'lake' \(config_kwargs") as caught:
            getattr(connect(**extra), use)
        assert leaks(shown(caught.value)) == []


@pytest.mark.parametrize(
    "extra",
    [
        {"endpoint_url": 123},
        {"region_name": 5},
        {"config_kwargs": {"max_pool_connections": "5"}},
        {"role_arn": "arn:x", "assume_role_kwargs": "text"},
    ],
)
def test_a_value_of_another_type_is_an_error_of_the_store(connect, extra) -> None:
    """A sweep of many destinations goes on after such an error, and not after Python's own."""
    with pytest.raises(S3CommitError, match="the connection 'lake'"):
        _ = connect(**extra).store


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
@pytest.mark.parametrize(
    ("endpoint", "signed"), [("http://minio:9000", True), ("https://s3.example.test", False)]
)
def test_an_endpoint_of_the_environment(connect, monkeypatch, variable, endpoint, signed) -> None:
    """An endpoint that only the environment names is addressed by path, and bodies are signed without TLS."""
    hook = connect()
    monkeypatch.setenv(variable, endpoint)
    client = hook.aws.conn
    assert client.meta.endpoint_url == endpoint
    assert client.meta.config.s3 == {"addressing_style": "path", "payload_signing_enabled": signed}
    assert client.generate_presigned_url("get_object", {"Bucket": "lake", "Key": "a"}).startswith(
        f"{endpoint}/lake/a?"
    )
    assert (hook.address.endpoint_url, hook.address.path_style) == (endpoint, None)


def test_an_endpoint_of_a_profile(connect, monkeypatch, tmp_path) -> None:
    """An endpoint of the profile that the connection names is addressed the same way."""
    profile = "[profile lan]\nservices = lan\n[services lan]\ns3 =\n  endpoint_url = http://minio:9000\n"
    (tmp_path / "config").write_text(profile)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    hook = connect(profile_name="lan")
    assert hook.aws.conn.meta.config.s3 == {"addressing_style": "path", "payload_signing_enabled": True}
    assert hook.address.endpoint_url == "http://minio:9000"


@pytest.mark.parametrize("of_service", [False, True])
def test_the_connection_s_endpoint_wins(connect, monkeypatch, of_service) -> None:
    """An endpoint of the connection, or of S3 in it, overrides that of the environment."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://minio:9000")
    endpoint = {"endpoint_url": "https://s3.example.test"}
    hook = connect(**({"service_config": {"s3": endpoint}} if of_service else endpoint))
    assert hook.aws.conn.meta.endpoint_url == hook.address.endpoint_url == "https://s3.example.test"


@pytest.mark.parametrize("endpoint", [None, "https://s3.eu-west-1.amazonaws.com"])
def test_aws_is_addressed_by_host(connect, monkeypatch, endpoint) -> None:
    """On AWS the bucket is in the host's name, and TLS protects the bodies; Spark needs no address of it."""
    hook = connect()
    if endpoint is not None:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    assert hook.aws.conn.meta.config.s3 == {"addressing_style": "virtual", "payload_signing_enabled": False}
    assert hook.address.endpoint_url is None


def test_an_endpoint_with_a_password_is_refused(connect) -> None:
    """A password in the endpoint's URL would end up in logs and Spark's conf, so no store is made of it."""
    hook = connect(endpoint_url="http://me:hush@127.0.0.1:8333")
    for use in (lambda: hook.address, lambda: hook.store):
        with pytest.raises(StoreUnsuitable, match=r"'lake'.*its login and password") as refused:
            use()
        assert "hush" not in str(refused.value)


@pytest.mark.parametrize("host", ["http://minio:9000", "minio", "minio:9000", "http://me:hush@minio:9000"])
@pytest.mark.parametrize("in_extra", [False, True])
def test_an_endpoint_that_nobody_reads_is_refused(connect, monkeypatch, host, in_extra) -> None:
    """The host of an ``aws`` connection is ignored, and the requests would go to AWS with its keys."""
    described = {"conn_type": "aws", "extra": {"host": host} if in_extra else {}}
    connect()
    monkeypatch.setenv(
        "AIRFLOW_CONN_LAKE", json.dumps(described if in_extra else {**described, "host": host})
    )
    for use in (lambda: S3CommitHook("lake").address, lambda: S3CommitHook("lake").store):
        with pytest.raises(
            StoreUnsuitable, match=r"'lake' has '.*minio.*' as its host.*endpoint_url"
        ) as refused:
            use()
        assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    "extra", [{"endpoint_url": "http://s3.lan:9000", "host": "elsewhere"}, {"host": "s3.amazonaws.com"}]
)
def test_a_host_that_changes_nothing_is_left_alone(connect, extra) -> None:
    """The connection names its endpoint too, or the host is AWS, where the requests go anyway."""
    assert connect(**extra).address.endpoint_url == extra.get("endpoint_url")


def test_a_connection_that_does_not_exist_is_named(connect, monkeypatch) -> None:
    """A typing error does not turn into the identity of the machine; only Airflow's default does."""
    connect()
    for use in (lambda: S3CommitHook("laek").address, lambda: S3CommitHook("laek").store):
        with pytest.raises(AccessDenied, match="the connection 'laek' does not exist in Airflow"):
            use()
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert S3CommitHook("aws_default").address.endpoint_url is None


def test_a_store_that_does_not_answer_is_named_before_the_retries_end(connect, caplog) -> None:
    """Its URL and the connection are in the log after the first attempt, and in the error after the last."""
    hook = connect(endpoint_url="http://127.0.0.1:9")
    hook.retry_deadline, seen, began = 0.2, [], monotonic()
    hook.on_retry = seen.append
    named = r"the store is http://127\.0\.0\.1:9, the connection 'lake'"
    with pytest.raises(Unavailable, match=named):
        hook.store.head("lake", "key")
    (first,) = [line for line in caplog.messages if line.startswith("Trying again")]
    assert re.search(named, first)
    assert {type(error) for error in seen} == {Unavailable}
    assert monotonic() - began < 30
    assert hook.aws.conn.meta.config.connect_timeout <= 15


def test_the_address_has_no_credentials(connect) -> None:
    """A Spark configuration gets endpoint, region and addressing, and no more."""
    address = connect(endpoint_url="http://127.0.0.1:8333").address
    assert (address.endpoint_url, address.region, address.path_style) == (
        "http://127.0.0.1:8333",
        "eu-west-1",
        None,
    )
    assert SECRET not in repr(address)


def test_the_connections_addressing_wins(connect) -> None:
    """An addressing style in the connection's ``config_kwargs`` is kept."""
    hook = connect(config_kwargs={"s3": {"addressing_style": "virtual"}}, endpoint_url="http://s3.lan:9000")
    assert hook.address.path_style is False
    assert hook.aws.conn.meta.config.s3["addressing_style"] == "virtual"


def test_a_connection_may_leave_the_addressing_open(connect) -> None:
    """Botocore's own ``auto`` is no style, so the endpoint decides, for Spark too."""
    assert connect(config_kwargs={"s3": {"addressing_style": "auto"}}).address.path_style is None


def test_the_client_is_configured_by_the_connection(connect) -> None:
    """Proxies and the like of ``config_kwargs`` are used; retries and addressing stay those of the store."""
    given = {
        "proxies": {"https": "http://proxy.lan:3128"},
        "read_timeout": 7,
        "max_pool_connections": 3,
        "retries": {"max_attempts": 9},
        "s3": {"use_accelerate_endpoint": False},
    }
    used = connect(config_kwargs=given, endpoint_url="http://s3.lan:9000").aws.conn.meta.config
    assert (used.proxies, used.read_timeout, used.max_pool_connections) == (given["proxies"], 7, 3)
    assert used.retries["total_max_attempts"] == 1
    assert used.s3["addressing_style"] == "path"
    assert used.s3["use_accelerate_endpoint"] is False
    assert used.user_agent.startswith("airflow-s3commit")


def test_a_limit_of_the_caller_is_kept(connect, monkeypatch) -> None:
    """The page's timeout is shorter than any that the connection names."""
    hook = connect(config_kwargs={"read_timeout": 600}, endpoint_url="http://s3.lan:9000")
    hook.timeout = 2.0
    assert hook.aws.conn.meta.config.read_timeout == 2.0


@pytest.mark.parametrize("extra", [{}, {"aws_session_token": "a-token"}])
def test_keys_of_the_connection_reach_programs_it_starts(connect, monkeypatch, extra) -> None:
    """Within the block they alone are in the environment, and no token of the worker itself."""
    monkeypatch.setenv("AWS_SESSION_TOKEN", "the worker's own")
    before, hook = dict(os.environ), connect(**extra)
    with hook.credentials_in_environment():
        assert os.environ["AWS_ACCESS_KEY_ID"] == "key-id"
        assert os.environ["AWS_SECRET_ACCESS_KEY"] == SECRET
        assert os.environ.get("AWS_SESSION_TOKEN") == extra.get("aws_session_token")
    assert {**os.environ, "AIRFLOW_CONN_LAKE": None} == {**before, "AIRFLOW_CONN_LAKE": None}


@pytest.mark.parametrize("extra", [{"login": None}, {"role_arn": "arn:aws:iam::123456789012:role/lake"}])
def test_a_connection_without_keys_of_its_own_changes_nothing(connect, monkeypatch, extra) -> None:
    """Roles and identities are left to the machines that have them, and so are the worker's own keys."""
    hook = connect(**extra)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "the worker's own")
    before = dict(os.environ)
    with hook.credentials_in_environment():
        assert dict(os.environ) == before


@pytest.fixture
def aws(monkeypatch):
    """Return an AWS that is simulated in this process."""
    moto = pytest.importorskip("moto")
    with moto.mock_aws():
        yield


def test_a_role_is_assumed(connect, aws) -> None:
    """With a role in the connection, requests go out with the role's credentials and not the user's keys."""
    hook = connect(role_arn="arn:aws:iam::123456789012:role/lake", region_name="eu-west-1")
    credentials = hook.aws.conn._request_signer._credentials.get_frozen_credentials()
    assert credentials.token
    assert credentials.access_key != "key-id"
    hook.aws.conn.create_bucket(Bucket="lake", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    hook.store.put("lake", "key", b"body")
    assert hook.store.get("lake", "key").body == b"body"


def test_the_region_is_the_connections(connect) -> None:
    """It is in the client and in Spark's configuration."""
    connect(region_name="ap-south-1")
    hook = S3CommitHook("lake")
    assert hook.aws.conn.meta.region_name == "ap-south-1"
    assert hook.address.region == "ap-south-1"


@pytest.mark.parametrize(("extra", "checked"), [({}, True), ({"verify": False}, False)])
def test_the_check_of_certificates(connect, extra, checked) -> None:
    """The connection says whether certificates are checked."""
    connect(**extra)
    client = S3CommitHook("lake").aws.conn
    assert bool(client._endpoint.http_session._verify) is checked


def test_a_bundle_of_authorities(connect, tmp_path) -> None:
    """A path is the bundle of authorities that certificates are checked against."""
    bundle = tmp_path / "ca.pem"
    bundle.write_text("")
    connect(verify=str(bundle))
    assert S3CommitHook("lake").aws.conn._endpoint.http_session._verify == str(bundle)


def test_a_profile_or_nothing_is_the_chain(monkeypatch) -> None:
    """Without a connection, boto3's own chain provides the identity."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "from-the-environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-north-1")
    client = S3CommitHook(None).aws.conn
    assert client._request_signer._credentials.access_key == "from-the-environment"
    assert client.meta.region_name == "eu-north-1"


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
@pytest.mark.parametrize("url", URLS)
def test_no_password_of_an_endpoint_reaches_spark(connect, monkeypatch, variable, url) -> None:
    """A password in an endpoint, the connection's or the environment's, makes no store and no Spark conf."""
    in_connection = connect(endpoint_url=url)
    uses = [lambda: in_connection.address, lambda: in_connection.store]
    for use in uses:
        with pytest.raises(StoreUnsuitable) as caught:
            use()
        assert leaks(shown(caught.value)) == []
    in_environment = connect()
    monkeypatch.setenv(variable, url)
    for use in (lambda: in_environment.address, lambda: in_environment.store):
        with pytest.raises(S3CommitError) as caught:
            use()
        assert leaks(shown(caught.value)) == []


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({"login": "key-id"}, True),
        ({"password": "a-good-one"}, True),
        ({"extra": {"aws_access_key_id": "key-id"}}, True),
        ({"login": "alice", "extra": {"aws_access_key_id": "a", "aws_secret_access_key": "b"}}, False),
    ],
)
def test_half_of_a_pair_of_keys_is_refused(connect, monkeypatch, given, refused) -> None:
    """Requests would be signed by the machine's own identity, which nobody asked for."""
    connect()
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "aws", **given}))
    half = pytest.raises(AccessDenied, match="'lake' has only one of login and password")
    with half if refused else nullcontext():
        _ = S3CommitHook("lake").store


@pytest.mark.parametrize("field", ["login", "password", "aws_session_token"])
@pytest.mark.parametrize("shape", ["line end", "line end within", "tab", "non-ASCII"])
def test_unusable_keys_of_a_connection(connect, monkeypatch, field, shape) -> None:
    """Keys that nothing can be signed with are named with their connection, and reach no program."""
    described = {"conn_type": "aws", "login": "key-id", "password": "a-good-one", "extra": {}}
    place = described["extra"] if field == "aws_session_token" else described
    place[field] = SHAPES[shape]
    connect()
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(described))
    hook = S3CommitHook("lake")
    if (field, shape) == ("password", "non-ASCII"):
        with hook.credentials_in_environment():
            assert os.environ["AWS_SECRET_ACCESS_KEY"] == SHAPES[shape]
        return
    for use in (lambda: hook.store, lambda: hook.credentials_in_environment().__enter__()):
        with pytest.raises(AccessDenied, match="of the connection 'lake'") as caught:
            use()
        assert leaks(shown(caught.value), SHAPES[shape]) == []
    assert MARK not in str(dict(os.environ) | {"AIRFLOW_CONN_LAKE": ""})


def test_a_connection_that_hangs_holds_up_no_other(monkeypatch) -> None:
    """Threads of the page and the triggerer open several connections at once, each in its own time."""
    begun, release = Event(), Event()

    def checked(hook: S3CommitHook) -> None:
        if hook.aws_conn_id == "hangs":
            begun.set()
            release.wait(60)
        raise AccessDenied(f"the keys of {hook.aws_conn_id}")

    monkeypatch.setattr(S3CommitHook, "_checked_keys", checked)
    with ThreadPoolExecutor(2) as threads:
        threads.submit(lambda: S3CommitHook("hangs").store)
        try:
            assert begun.wait(60)
            with pytest.raises(AccessDenied, match="the keys of other"):
                threads.submit(lambda: S3CommitHook("other").store).result(30)
        finally:
            release.set()

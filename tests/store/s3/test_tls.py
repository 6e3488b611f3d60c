"""Over TLS libcurl trusts the same authorities as botocore, and no others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from airflow_s3commit.exceptions import StoreRejected
from airflow_s3commit.store.base import Complete, Outcome
from airflow_s3commit.store.execute import RetryPolicy
from airflow_s3commit.store.s3.config import S3Config
from airflow_s3commit.store.s3.store import S3Store, TransportName
from tests.store.s3.fault_server import COMPLETED, FaultServer
from tests.tls_door import Authority, TlsDoor

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.loopback

pycurl = pytest.importorskip("pycurl")

TRANSPORTS: tuple[TransportName, ...] = ("boto3", "curl")
COMPLETE = Complete("lake", "k", "u", ["e"])


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Return an authority of this test's own."""
    return Authority(tmp_path)


@pytest.fixture
def server() -> Iterator[FaultServer]:
    """Run a server that completes everything."""
    with FaultServer(COMPLETED) as server:
        yield server


def door_to(server: FaultServer, certificate: Path) -> TlsDoor:
    """Return TLS in front of a server."""
    port = urlsplit(server.endpoint_url).port
    assert port is not None
    return TlsDoor(port, certificate)


def completed(config: S3Config, transport: TransportName) -> Outcome:
    """Return what becomes of one completion."""
    store = S3Store.connect(config, retry=RetryPolicy(deadline=0.0), transport=transport)
    assert store.transport == transport
    ((_, outcome),) = store.perform([("tag", COMPLETE)])
    return outcome


@pytest.mark.parametrize("transport", TRANSPORTS)
class TestTrust:
    """Whose certificates are taken."""

    def test_an_authority_that_is_named(
        self, authority: Authority, server: FaultServer, transport: TransportName
    ) -> None:
        """A private authority named as ``verify`` is trusted; the body is then not hashed once more."""
        with door_to(server, authority.certificate()) as door:
            config = replace(server.config, endpoint_url=door.endpoint_url, verify=str(authority.file))
            assert completed(config, transport) == "e-1"
        assert server.seen[0].headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"

    def test_an_authority_of_the_environment(
        self,
        authority: Authority,
        server: FaultServer,
        transport: TransportName,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The authorities in AWS_CA_BUNDLE are trusted."""
        monkeypatch.setenv("AWS_CA_BUNDLE", str(authority.file))
        with door_to(server, authority.certificate()) as door:
            config = replace(server.config, endpoint_url=door.endpoint_url)
            assert completed(config, transport) == "e-1"

    def test_an_unknown_authority(
        self, authority: Authority, server: FaultServer, transport: TransportName
    ) -> None:
        """An unknown authority's certificate ends the call with a remedy, and nothing is sent."""
        with door_to(server, authority.certificate()) as door:
            config = replace(server.config, endpoint_url=door.endpoint_url)
            outcome = completed(config, transport)
        assert isinstance(outcome, StoreRejected)
        assert "AWS_CA_BUNDLE" in str(outcome)
        assert server.seen == []

    def test_a_certificate_of_another_host(
        self, authority: Authority, server: FaultServer, transport: TransportName
    ) -> None:
        """A certificate that a trusted authority gave to another address is refused."""
        with door_to(server, authority.certificate("127.0.0.2")) as door:
            config = replace(server.config, endpoint_url=door.endpoint_url, verify=str(authority.file))
            assert isinstance(completed(config, transport), StoreRejected)
        assert server.seen == []

    def test_no_check_if_that_is_asked_for(
        self, authority: Authority, server: FaultServer, transport: TransportName
    ) -> None:
        """With ``verify=False`` any certificate will do."""
        with door_to(server, authority.certificate("127.0.0.2")) as door:
            config = replace(server.config, endpoint_url=door.endpoint_url, verify=False)
            assert completed(config, transport) == "e-1"

    def test_public_authorities_are_found(
        self, transport: TransportName, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """By default the authorities of botocore are used, wherever libcurl looks."""
        for name in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
            monkeypatch.delenv(name, raising=False)
        store = S3Store.connect(S3Config("https://127.0.0.1:1", "us-east-1", "a", "s"), transport=transport)
        client: Any = store._client
        assert client._endpoint.http_session._verify is True
        if store._curl is not None:
            authorities = store._curl._options[Complete][pycurl.CAINFO]
            assert authorities is not None
            assert "BEGIN CERTIFICATE" in Path(authorities).read_text()


def test_connections_are_kept(authority: Authority, server: FaultServer) -> None:
    """Hundreds of calls share a few connections: a handshake costs more than a call."""
    with door_to(server, authority.certificate()) as door:
        config = replace(server.config, endpoint_url=door.endpoint_url, verify=str(authority.file))
        store = S3Store.connect(config, transport="curl", connections=8)
        outcomes = dict(store.perform((number, COMPLETE) for number in range(400)))
        assert set(outcomes.values()) == {"e-1"}
        assert door.opened <= 8

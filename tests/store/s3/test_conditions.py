"""Whole jobs on real servers, under the conditions of real networks: their data is compared."""

from __future__ import annotations

import logging
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from moto.server import ThreadedMotoServer

from airflow_s3commit import JobOptions, RetryPolicy, S3Config, S3Store, write_job
from airflow_s3commit.store.s3.config import new_client
from tests.conftest import BUCKET
from tests.store.s3.fault_server import Cut, Say, Seen
from tests.store.s3.relay import relay
from tests.store.s3.wire import error_body
from tests.tls_door import Authority, TlsDoor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from airflow_s3commit.testing import S3Server

#: Files of a job, and seconds that requests are retried for.
FILES, SECONDS = 12, 60.0

REGION = "eu-west-3"


def run_jobs(store: S3Store, prefix: str, bucket: str = BUCKET) -> None:
    """Commit two generations of a partition, the second over the first, and compare what is there."""
    for generation in ("old", "new"):
        options = JobOptions(committer="magic", conflict_mode="replace")
        with write_job(f"s3://{bucket}/{prefix}", store=store, job_options=options) as writer:
            for number in range(FILES):
                file = writer.open(f"dt=1/part-{number}.bin")
                file.write(f"{generation} {number}".encode())
                file.close()
        keys = [info.key for info in store.list_objects(bucket, f"{prefix}dt=1/")]
        found = sorted(store.get(bucket, key).body.decode() for key in keys)
        assert found == sorted(f"{generation} {number}" for number in range(FILES))
    assert list(store.list_uploads(bucket, prefix)) == []


def connect(config: S3Config, **settings: Any) -> S3Store:
    """Return a store that retries for a while."""
    return S3Store.connect(config, retry=RetryPolicy(deadline=SECONDS), **settings)


def through(seaweed: S3Server, decide: Callable[[Seen], Say | Cut | None], prefix: str) -> list[Seen]:
    """Run jobs on SeaweedFS behind a relay, and return the requests that it got."""
    with relay(seaweed.endpoint_url, decide) as server:
        run_jobs(connect(replace(seaweed.config, endpoint_url=server.endpoint_url)), prefix)
        return server.seen


@pytest.mark.seaweedfs
def test_a_store_that_throttles(seaweed: S3Server, prefix: str) -> None:
    """Where 30 % of all requests get 503 SlowDown, jobs take longer, and lose and repeat nothing."""
    chance = random.Random(18)
    slowed: list[Seen] = []

    def decide(seen: Seen) -> Say | None:
        if chance.random() >= 0.3:
            return None
        slowed.append(seen)
        return Say(503, error_body("SlowDown"))

    seen = through(seaweed, decide, prefix)
    assert 0.2 < len(slowed) / len(seen) < 0.4


@pytest.mark.all
@pytest.mark.seaweedfs
@pytest.mark.parametrize("at", [40, 80, 120])
def test_an_outage_of_three_seconds(at: int, seaweed: S3Server, prefix: str) -> None:
    """A store that resets all connections for three seconds, before or in a commit, fails no job."""
    count = 0

    def decide(_: Seen) -> Cut | None:
        nonlocal count
        count += 1
        return Cut(down=3.0) if count == at else None

    assert len(through(seaweed, decide, prefix)) > at


@pytest.mark.all
@pytest.mark.seaweedfs
@pytest.mark.parametrize("status", [301, 307, 400])
def test_a_bucket_in_another_region(status: int, seaweed: S3Server, prefix: str) -> None:
    """A client with the wrong region is told the right one, signs for it, and its jobs commit."""
    code = {301: "PermanentRedirect", 307: "TemporaryRedirect", 400: "AuthorizationHeaderMalformed"}[status]
    body = error_body(code).replace(b"</Error>", f"<Region>{REGION}</Region></Error>".encode())
    told: list[Seen] = []

    def decide(seen: Seen) -> Say | None:
        if f"/{REGION}/" in seen.headers.get("authorization", ""):
            return None
        told.append(seen)
        return Say(status, body, {"x-amz-bucket-region": REGION})

    seen = through(seaweed, decide, prefix)
    assert 0 < len(told) < len(seen) / 2


@pytest.mark.all
@pytest.mark.seaweedfs
@pytest.mark.parametrize("transport", ["boto3", "curl"])
def test_tls_in_front(transport: str, seaweed: S3Server, prefix: str, tmp_path: Path) -> None:
    """Behind TLS, with an authority of one's own, jobs commit by either transport."""
    authority = Authority(tmp_path)
    port = urlsplit(seaweed.endpoint_url).port
    assert port is not None
    with TlsDoor(port, authority.certificate()) as door:
        config = replace(seaweed.config, endpoint_url=door.endpoint_url, verify=str(authority.file))
        run_jobs(connect(config, transport=transport), prefix)
        assert door.opened


@pytest.mark.all
@pytest.mark.seaweedfs
def test_a_proxy(seaweed: S3Server, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through an HTTP proxy of the environment every request of a job arrives, and names the store."""
    with relay(seaweed.endpoint_url) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.endpoint_url)
        monkeypatch.setenv("NO_PROXY", "")
        run_jobs(connect(seaweed.config), prefix)
        assert all(seen.path.startswith(seaweed.endpoint_url) for seen in proxy.seen)
        assert len(proxy.seen) > FILES


@pytest.fixture
def moto() -> Iterator[str]:
    """Run moto's server, which knows buckets by the names of AWS's hosts, and yield its address."""
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


@pytest.mark.all
@pytest.mark.loopback
def test_virtual_hosts(moto: str, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Addressed as bucket.endpoint, jobs commit; a proxy stands in for the names' DNS."""
    with relay(moto) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.endpoint_url)
        monkeypatch.setenv("NO_PROXY", "")
        config = S3Config("http://s3.us-east-1.amazonaws.com", "us-east-1", "any", "any", path_style=False)
        new_client(config).create_bucket(Bucket=BUCKET)
        run_jobs(connect(config), prefix)
        assert {seen.headers["host"] for seen in proxy.seen} == {f"{BUCKET}.s3.us-east-1.amazonaws.com"}

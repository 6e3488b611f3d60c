"""The stores that the contract is checked on."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from moto.server import ThreadedMotoServer

from airflow_s3commit import MemoryStore, RetryPolicy, S3Config, S3Store
from airflow_s3commit.store.s3.config import new_client
from airflow_s3commit.store.s3.store import TransportName
from airflow_s3commit.testing import FaultyStore
from dev import stores as others
from tests.conftest import BUCKET
from tests.contract.deviations import DEVIATIONS, FAILS, RACES, Behaviour
from tests.tls_door import Authority, TlsDoor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_s3commit import ObjectStore
    from airflow_s3commit.testing import S3Server

#: Every listing is asked for pages of two, so that a handful of entries crosses several.
PAGE_LIMITS = {"ListObjectsV2": "MaxKeys", "ListMultipartUploads": "MaxUploads", "ListParts": "MaxParts"}

STORES = [
    "memory",
    "faulty",
    pytest.param("moto", marks=pytest.mark.loopback),
    *(pytest.param(name, marks=pytest.mark.seaweedfs) for name in ("seaweedfs", "seaweedfs-tls")),
    *(
        pytest.param(
            name, marks=[pytest.mark.all, pytest.mark.slow, pytest.mark.xdist_group(f"store-{name}")]
        )
        for name in others.STORES
    ),
]

#: For tests of `perform`, the only verb that has a second way to the store.
STORES_AND_TRANSPORTS = [
    *STORES,
    *(pytest.param(f"seaweedfs-{way}", marks=pytest.mark.seaweedfs) for way in ("curl", "curl-tls")),
]


@dataclass(frozen=True, slots=True)
class Subject:
    """A store under test, with a place in it that no other test uses."""

    name: str
    store: ObjectStore
    bucket: str
    prefix: str

    def deviates(self, behaviour: Behaviour) -> bool:
        """Say whether this store is known not to keep a part of the contract."""
        return (self.name, behaviour) in DEVIATIONS

    def key(self, name: str) -> str:
        """Return a key in this test's place."""
        return self.prefix + name

    def upload(self, name: str, *bodies: bytes) -> tuple[str, list[str]]:
        """Begin an upload and send its parts; return its id and their ETags."""
        key = self.key(name)
        upload_id = self.store.create_upload(
            self.bucket, key, metadata={"s3commit-job": "j-1"}, content_type="application/octet-stream"
        )
        return upload_id, [
            self.store.upload_part(self.bucket, key, upload_id, number, body)
            for number, body in enumerate(bodies, start=1)
        ]

    def put(self, name: str, body: bytes = b"x") -> str:
        """Write an object and return its ETag."""
        return self.store.put(self.bucket, self.key(name), body).etag

    def names(self, *, recursive: bool = True) -> list[str]:
        """Return the names, sorted, of the objects in this test's place."""
        listed = self.store.list_objects(self.bucket, self.prefix, recursive=recursive)
        return sorted(info.key.removeprefix(self.prefix) for info in listed)


@pytest.fixture(scope="session")
def moto_store() -> Iterator[S3Store]:
    """Run moto's server in this process, and return a store on it."""
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        config = S3Config(f"http://{host}:{port}", "us-east-1", access_key="any", secret_key="any")
        new_client(config).create_bucket(Bucket=BUCKET)
        # Its failures are permanent, so waiting would only take time.
        yield _short_pages(config, RetryPolicy(deadline=0.0))
    finally:
        server.stop()


@pytest.fixture(scope="session")
def short_paged_seaweed_store(seaweed: S3Server) -> S3Store:
    """Return a store on the session's SeaweedFS."""
    return _short_pages(seaweed.config, RetryPolicy(deadline=20.0))


@pytest.fixture(scope="session")
def seaweed_store_over_curl(seaweed: S3Server) -> S3Store:
    """Return a store on the session's SeaweedFS that makes many calls with libcurl."""
    return _short_pages(seaweed.config, RetryPolicy(deadline=20.0), "curl")


@pytest.fixture(scope="session")
def seaweed_over_tls(
    seaweed: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, S3Store]]:
    """Return stores on the session's SeaweedFS behind TLS, whose authority only they know, by transport."""
    authority = Authority(tmp_path_factory.mktemp("authority"))
    port = urlsplit(seaweed.endpoint_url).port
    assert port is not None
    with TlsDoor(port, authority.certificate()) as door:
        config = replace(seaweed.config, endpoint_url=door.endpoint_url, verify=str(authority.file))
        yield {name: _short_pages(config, RetryPolicy(deadline=20.0), name) for name in ("boto3", "curl")}


@pytest.fixture(scope="session")
def short_paged(other_server: Callable[[str], S3Config]) -> Callable[[str], S3Store]:
    """Return what makes a store, the same each time, on a server of `dev.stores`."""
    # Ceph's first answer to a completion has no ETag, the second one has.
    return cache(lambda name: _short_pages(other_server(name), RetryPolicy(deadline=2.0)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Expect the failures of `FAILS`."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        name = callspec.params.get("subject") if callspec is not None else None
        if name not in others.STORES:
            continue
        plain = item.name.replace(f"[{name}-", "[").replace(f"-{name}]", "]").replace(f"[{name}]", "")
        for (store, test), reason in FAILS.items():
            if store == name and plain.startswith(test):
                is_strict = (store, test) not in RACES
                item.add_marker(pytest.mark.xfail(reason=reason, strict=is_strict))


@pytest.fixture(params=STORES)
def subject(request: pytest.FixtureRequest, bucket: str, prefix: str) -> Subject:
    """Return each store in turn."""
    name: str = request.param
    if name == "memory":
        return Subject(name, MemoryStore((bucket,)), bucket, prefix)
    if name == "faulty":
        return Subject(name, FaultyStore(MemoryStore((bucket,))), bucket, prefix)
    if name in others.STORES:
        return Subject(name, request.getfixturevalue("short_paged")(name), bucket, prefix)
    server, _, way = name.partition("-")
    transport = "curl" if "curl" in way else "boto3"
    store: S3Store
    if "tls" in way:
        store = request.getfixturevalue("seaweed_over_tls")[transport]
    else:
        fixture = {"moto": "moto_store", "seaweedfs": "short_paged_seaweed_store"}[server]
        store = request.getfixturevalue("seaweed_store_over_curl" if transport == "curl" else fixture)
    assert store.transport == transport
    return Subject(server, store, bucket, prefix)


def _short_pages(config: S3Config, retry: RetryPolicy, transport: TransportName = "boto3") -> S3Store:
    client = new_client(config)
    events: Any = client.meta.events  # its types forbid handlers to answer, which this event is for
    for operation, limit in PAGE_LIMITS.items():
        events.register(f"provide-client-params.s3.{operation}", partial(_limit, limit))
    return S3Store(client, retry=retry, transport=transport)


def _limit(limit: str, params: dict[str, Any], **_: object) -> dict[str, Any]:
    return {**params, limit: 2}

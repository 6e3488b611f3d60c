"""The embedded database keeps its door shut, and leaves nothing after its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from airflow_s3commit.demo.postgres import PostgresServer
from airflow_s3commit.demo.programs import ProgramFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.xdist_group("demo-postgres"),
    pytest.mark.skipif(not PostgresServer.available(), reason="PostgreSQL is not on this machine"),
]

#: Starts a server, says where its data are and who runs it, and is killed with it running.
OWNER = """
import sys, time
from pathlib import Path
from airflow_s3commit.demo.postgres import PostgresServer
with PostgresServer(Path(sys.argv[1])) as server:
    print(server._directory, flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """One running server for the tests that leave it as it is."""
    log = tmp_path_factory.mktemp("postgres") / "postgres.log"
    with PostgresServer(log, ("airflow", "second")) as running:
        yield running


def ask(url: str, query: str) -> object:
    """Return the single value that a query answers with."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        return connection.execute(sa.text(query)).scalar_one()


@pytest.mark.parametrize("database", ["airflow", "second"])
def test_every_database_answers(server: PostgresServer, database: str) -> None:
    """Every database asked for answers as soon as the server counts as started."""
    assert ask(server.url(database), "select current_database()") == database


def test_wrong_password_is_refused(server: PostgresServer) -> None:
    """Whoever is on this machine but has not the password is turned away."""
    wrong = server.url().replace(server._password, "wrong")
    with pytest.raises(sa.exc.OperationalError, match="password authentication failed"):
        ask(wrong, "select 1")


def test_it_listens_on_loopback_alone(server: PostgresServer) -> None:
    """It has no other address and no socket in the file system."""
    assert ask(server.url(), "show listen_addresses") == "127.0.0.1"
    assert ask(server.url(), "show unix_socket_directories") == ""


def test_the_password_is_nowhere_to_be_seen(server: PostgresServer) -> None:
    """It is neither in the command, nor in the log, nor in a file once the server runs."""
    assert server._program is not None
    assert server._directory is not None
    seen = " ".join(server._program.command) + server.log.read_text()
    assert server._password not in seen
    assert not (server._directory / "password").exists()


def test_second_start_is_refused(server: PostgresServer) -> None:
    """A server that runs is not started over."""
    with pytest.raises(ProgramFailed, match="running already"):
        server.start()


def test_stop_leaves_nothing(tmp_path: Path) -> None:
    """Stopping removes the data, also with a client connected."""
    server = PostgresServer(tmp_path / "log")
    with server:
        directory = server._directory
        assert directory is not None
        connection = sa.create_engine(server.url()).connect()
        assert connection.scalar(sa.text("select 1")) == 1
    assert not directory.exists()
    server.stop()


def test_it_ends_with_its_owner(tmp_path: Path) -> None:
    """A killed owner takes the server and its data along."""
    command = [sys.executable, "-c", OWNER, str(tmp_path / "log")]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    directory = Path(owner.stdout.readline().strip())
    postmaster = int((directory / "data" / "postmaster.pid").read_text().split()[0])
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    deadline = time.monotonic() + 30
    while (directory.exists() or Path(f"/proc/{postmaster}").exists()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not directory.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(postmaster, 0)


def test_failed_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that ends at once is reported with its own words, and leaves nothing behind."""
    monkeypatch.setattr("airflow_s3commit.demo.postgres.OPTIONS", {"max_connections": "none"})
    server = PostgresServer(tmp_path / "log")
    with pytest.raises(ProgramFailed, match="max_connections"):
        server.start()
    assert server._directory is None

"""The private database keeps its door shut, and leaves nothing after its end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from airflow_s3commit.testing import ProgramFailed
from dev.stack.postgres import available, postgres

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.xdist_group("dev-postgres"),
    pytest.mark.skipif(not available(), reason="PostgreSQL is not on this machine"),
]

#: Starts a server, says where it is, and is killed with it running.
OWNER = """
import sys, time
from pathlib import Path
from dev.stack.postgres import postgres
with postgres(Path(sys.argv[1])) as url:
    print(url, flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the running server's log."""
    return tmp_path_factory.mktemp("postgres")


@pytest.fixture(scope="module")
def url(logs: Path) -> Iterator[str]:
    """Run a server for the tests that leave it as it is; return its URL."""
    with postgres(logs) as url:
        yield url


def ask(url: str, query: str) -> str:
    """Return the single value that a query answers with."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        return str(connection.execute(sa.text(query)).scalar_one())


def password_of(url: str) -> str:
    """Return the password in a URL."""
    password = sa.make_url(url).password
    assert password
    return password


def test_it_answers_with_its_password_alone(url: str) -> None:
    """The database is there, and a client without the password is turned away."""
    assert ask(url, "select current_database()") == "airflow"
    with pytest.raises(sa.exc.OperationalError, match="password authentication failed"):
        ask(url.replace(password_of(url), "wrong"), "select 1")


def test_it_listens_on_loopback_alone(url: str) -> None:
    """It has no other address and no socket in the file system."""
    assert ask(url, "show listen_addresses") == "127.0.0.1"
    assert ask(url, "show unix_socket_directories") == ""


def test_the_password_is_nowhere_to_be_seen(url: str, logs: Path) -> None:
    """It is neither in a command, nor in the log, nor in a file once the server runs."""
    directory = Path(ask(url, "show data_directory")).parent
    seen = [path.read_bytes() for path in logs.iterdir()]
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            seen.append(process.read_bytes())
        except OSError:
            continue
    assert not [text for text in seen if password_of(url).encode() in text]
    assert [path.name for path in directory.iterdir()] == ["data"]


def test_its_end_leaves_nothing(tmp_path: Path) -> None:
    """Stopping removes the data, also with a client connected."""
    with postgres(tmp_path) as url:
        directory = Path(ask(url, "show data_directory")).parent
        connection = sa.create_engine(url).connect()
        assert connection.scalar(sa.text("select 1")) == 1
        assert directory.exists()
    assert not directory.exists()


def test_it_ends_with_its_owner(tmp_path: Path) -> None:
    """A killed owner takes the server and its data along."""
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    data = Path(ask(owner.stdout.readline().strip(), "show data_directory"))
    postmaster = int((data / "postmaster.pid").read_text().split()[0])
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    deadline = time.monotonic() + 30
    while (data.parent.exists() or Path(f"/proc/{postmaster}").exists()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not data.parent.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(postmaster, 0)


def test_failed_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that ends at once is reported with its own words, and leaves nothing behind."""
    before = set(Path("/tmp").glob("s3commit-postgres-*"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr("dev.stack.postgres.free_ports", lambda _: [taken.getsockname()[1]])
        with pytest.raises(ProgramFailed, match="Address already in use"), postgres(tmp_path):
            pass
    assert set(Path("/tmp").glob("s3commit-postgres-*")) <= before

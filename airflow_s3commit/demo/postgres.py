"""PostgreSQL from the machine's own binaries: a private server on loopback, while it is wanted."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from airflow_s3commit.demo.programs import Program, ProgramFailed, free_ports

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

__all__ = ["PostgresServer"]

HOST = "127.0.0.1"
USER = "demo"

#: Where Linux distributions and Homebrew keep the server's programs, which are seldom on PATH.
PLACES = (
    ("/usr/lib/postgresql", "*/bin"),
    ("/usr", "pgsql-*/bin"),
    ("/opt/homebrew/opt", "postgresql*/bin"),
    ("/usr/local/opt", "postgresql*/bin"),
)

PROGRAMS = ("initdb", "postgres", "createdb")

#: Its data are thrown away with it, so nothing has to survive a loss of power.
OPTIONS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "max_connections": "200",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
}

#: Seconds until it answers; making the cluster and starting takes three on an idle machine.
START_SECONDS = 120.0

#: Starts with other ports, when another program was quicker to take one.
START_ATTEMPTS = 3

_PROCESS = Path(__file__).with_name("postgres_process.py")


class PostgresServer:
    """A PostgreSQL server on 127.0.0.1 with one user, whose password is made anew at each start.

    As a context manager it is started on entry and stopped on exit, and its data removed. That also happens
    when this process ends, however that happens. If this process is root's, the server is run by the user
    ``postgres``.

    Args:
        log: The file that takes what the server has to say.
        databases: The databases that are to be there.

    Attributes:
        log: As given.
        databases: As given.

    """

    def __init__(self, log: Path, databases: Sequence[str] = ("airflow",)) -> None:
        self.log = log.absolute()
        self.databases = tuple(databases)
        self._port = 0
        self._password = ""
        self._directory: Path | None = None
        self._program: Program | None = None

    @staticmethod
    def available() -> bool:
        """Whether this machine has the programs, and a user who may run them."""
        return _binaries() is not None and (os.getuid() != 0 or _account() is not None)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def url(self, database: str = "airflow", *, driver: str = "psycopg2") -> str:
        """Return where a database is, for SQLAlchemy. It holds the password.

        Args:
            database: One of its databases.
            driver: What SQLAlchemy is to reach it with.

        Raises:
            ProgramFailed: It was never started.

        """
        if not self._port:
            raise ProgramFailed("PostgreSQL was not started yet, so it has no address")
        return f"postgresql+{driver}://{USER}:{self._password}@{HOST}:{self._port}/{database}"

    def start(self) -> None:
        """Make a cluster, start the server, and return when every database is there.

        Raises:
            ProgramFailed: It is not installed, is running already, ended at once, or was not ready within
                two minutes. The message ends with the end of its log.

        """
        if self._program is not None and self._program.running:
            raise ProgramFailed("PostgreSQL is running already")
        for attempt in range(1, START_ATTEMPTS + 1):
            self._launch()
            try:
                self._make_databases()
                return
            except ProgramFailed:
                self.stop()
                if attempt == START_ATTEMPTS or "Address already in use" not in self.log.read_text():
                    raise
            except BaseException:
                self.stop()
                raise

    def stop(self) -> None:
        """Stop it and remove its data; return when both are gone. Repeatable."""
        if self._program is not None:
            self._program.stop()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def _launch(self) -> None:
        binaries, account = _binaries(), _account()
        if binaries is None or (os.getuid() == 0 and account is None):
            raise ProgramFailed(
                "PostgreSQL's initdb and postgres are neither on PATH nor where distributions put them, or "
                "there is no user postgres to run them for root: install the package postgresql"
            )
        (self._port,) = free_ports(1)
        self._password = secrets.token_urlsafe(24)
        self._directory = self._new_directory(account)
        settings = {
            "directory": str(self._directory),
            "binaries": str(binaries),
            "port": self._port,
            "user": USER,
            "uid": account[0] if account else None,
            "gid": account[1] if account else None,
            "options": OPTIONS,
        }
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.write_bytes(b"")
        command = [sys.executable, "-I", "-S", str(_PROCESS), json.dumps(settings)]
        self._program = Program("PostgreSQL", command, log=self.log, grace=10.0)
        self._program.start()

    def _new_directory(self, account: tuple[int, int] | None) -> Path:
        # Not below the caller's directory: the user who runs the server may not get that far.
        directory = Path(tempfile.mkdtemp(prefix="s3commit-postgres-"))
        password = directory / "password"
        descriptor = os.open(password, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(self._password)
        if account is not None:
            os.chown(password, *account)
            os.chown(directory, *account)
        return directory

    def _make_databases(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        binaries, waiting, why = _binaries(), list(self.databases), ""
        environment = {**os.environ, "PGPASSWORD": self._password, "PGCONNECT_TIMEOUT": "5"}
        while waiting:
            if self._program is None or not self._program.running:
                raise ProgramFailed(f"PostgreSQL ended while it started{self._last_words()}")
            if time.monotonic() > deadline:
                raise ProgramFailed(
                    f"PostgreSQL was not ready after {START_SECONDS:.0f} s ({why}){self._last_words()}"
                )
            command = [
                f"{binaries}/createdb",
                "-h",
                HOST,
                "-p",
                str(self._port),
                "-U",
                USER,
                "-w",
                waiting[0],
            ]
            made = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if made.returncode == 0:
                waiting.pop(0)
            else:
                why = made.stderr.strip()
                time.sleep(0.1)

    def _last_words(self) -> str:
        return "" if self._program is None else self._program.last_words()


def _binaries() -> Path | None:
    """Return the directory with the server's programs, of the newest version; None if there is none."""
    found = [path for root, pattern in PLACES for path in Path(root).glob(pattern)]
    on_path = shutil.which("initdb")
    if on_path is not None:
        found.append(Path(on_path).resolve().parent)
    whole = [path for path in found if all((path / name).exists() for name in PROGRAMS)]
    return max(whole, key=_version, default=None)


def _version(binaries: Path) -> tuple[int, ...]:
    digits = "".join(letter if letter.isdigit() else " " for letter in str(binaries)).split()
    return tuple(map(int, digits))


def _account() -> tuple[int, int] | None:
    """Return user and group who run the server for root; None if this process may run it, or nobody may."""
    if os.getuid() != 0:
        return None
    import pwd  # noqa: PLC0415 - not on every system

    try:
        entry = pwd.getpwnam("postgres")
    except KeyError:
        return None
    return entry.pw_uid, entry.pw_gid

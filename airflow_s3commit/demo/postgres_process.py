"""Run PostgreSQL on a database cluster of its own, and remove the cluster when it ends.

Started as a script of its own, under a leash (see `leash`)::

    python -I -S postgres_process.py SETTINGS

``SETTINGS`` is JSON: ``directory`` (holds ``password`` and nothing else), ``binaries``, ``port``, ``user``
(the database's administrator), ``uid`` and ``gid`` (who runs it, as PostgreSQL refuses root; null for whoever
runs this), ``options`` (of the server). SIGTERM ends the server, whatever its clients do; then the
directory goes.

It imports the standard library alone, so that it starts in a few milliseconds.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["main"]


def main(argv: list[str]) -> int:
    """Make the cluster, serve it until asked to end, and remove it."""
    settings: dict[str, Any] = json.loads(argv[0])
    directory = Path(settings["directory"])
    signal.signal(signal.SIGTERM, _leave)
    try:
        return _make(settings, directory) or _serve(settings, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _make(settings: dict[str, Any], directory: Path) -> int:
    password = directory / "password"
    command = [
        str(Path(settings["binaries"], "initdb")),
        f"--pgdata={directory / 'data'}",
        f"--username={settings['user']}",
        f"--pwfile={password}",
        "--auth=scram-sha-256",
        "--encoding=UTF8",
        "--locale=C",
        "--no-sync",
    ]
    with _started(settings, command, directory) as initdb:
        code = initdb.wait()
    password.unlink()
    return code


def _serve(settings: dict[str, Any], directory: Path) -> int:
    options = {"port": settings["port"], **settings["options"]}
    command = [str(Path(settings["binaries"], "postgres")), "-D", str(directory / "data")]
    command += [argument for name, value in options.items() for argument in ("-c", f"{name}={value}")]
    with _started(settings, command, directory) as server:
        try:
            return server.wait()
        finally:
            # SIGTERM would wait for the clients to leave; SIGINT sends them away.
            if server.poll() is None:
                server.send_signal(signal.SIGINT)


def _started(settings: dict[str, Any], command: list[str], directory: Path) -> subprocess.Popen[bytes]:
    uid, gid = settings["uid"], settings["gid"]
    # A group of its own: the leash's SIGTERM is for this process, which knows the better signal.
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        cwd=directory,
        user=uid,
        group=gid,
        extra_groups=None if uid is None else [],
        process_group=0,
        env={name: value for name, value in os.environ.items() if not name.startswith("PG")},
    )


def _leave(number: int, _frame: FrameType | None) -> None:
    """Turn a signal into an orderly end, which stops the server."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

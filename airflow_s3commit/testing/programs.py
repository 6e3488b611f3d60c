"""Background programs for demos and tests: each has a log, and none outlives its owner."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import FrameType

_LEASH = Path(__file__).with_name("leash.py")


class ProgramFailed(RuntimeError):
    """A program did not start, or ended unexpectedly. The message ends with the end of its log."""


@dataclass(eq=False, repr=False)
class Program:
    """A program in the background, which ends when this object is stopped or the process that owns it dies.

    Process lists show its command, so that must not contain secrets. Its output is appended to the log. Its
    environment variables and working directory are those given, or else this process's. Between SIGTERM and
    SIGKILL it has ``grace`` seconds.
    """

    name: str
    command: Sequence[str]
    _: KW_ONLY
    log: Path
    environment: Mapping[str, str] | None = None
    directory: Path | None = None
    grace: float = 5.0
    _leash: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the program.

        Raises `ProgramFailed` if the program is running already.
        """
        if self.running:
            raise ProgramFailed(f"{self.name} is running already")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._leash = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_LEASH), str(self.grace), *self.command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=None if self.environment is None else dict(self.environment),
                cwd=self.directory,
                start_new_session=True,  # a Ctrl-C in the terminal goes to the owner, who stops its programs
            )

    @property
    def running(self) -> bool:
        """Whether the program was started and has not ended."""
        return self._leash is not None and self._leash.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The exit code, or 128 plus the number of the signal that ended the program; None while it runs."""
        return None if self._leash is None else self._leash.poll()

    def ask_to_stop(self) -> None:
        """Begin to stop the program, without waiting for its end. Repeatable."""
        if self._leash is not None and self._leash.stdin is not None:
            self._leash.stdin.close()

    def stop(self) -> None:
        """Stop the program and its descendants, and return when they have ended. Repeatable."""
        if self._leash is None:
            return
        self.ask_to_stop()
        try:
            self._leash.wait(self.grace + 10)
        except subprocess.TimeoutExpired:
            self._leash.kill()
            self._leash.wait()

    def last_words(self, lines: int = 15) -> str:
        """Return the end of the log, as text to append to a message."""
        try:
            text = self.log.read_text(errors="replace")
        except OSError:
            return ""
        tail = "\n  ".join(text.splitlines()[-lines:])
        return f"; the end of {self.log}:\n  {tail}" if tail else f"; {self.log} is empty"


def free_ports(count: int) -> list[int]:
    """Return ``count`` different TCP ports of 127.0.0.1 that are free at this moment.

    They are below the ranges of outgoing ports, so no other program's connection takes one before it is used.
    Another program that listens on a port of this range may.

    Raises `ProgramFailed` if there are not enough free ports.
    """
    ports: list[int] = []
    with ExitStack() as stack:
        for port in random.SystemRandom().sample(range(20_000, 32_000), 12_000):
            if len(ports) == count:
                break
            probe = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            ports.append(port)
    if len(ports) < count:
        raise ProgramFailed(f"no {count} free ports between 20000 and 32000 on 127.0.0.1")
    return ports


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, because it has a secret; replace an existing file."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


def end_in_order_on_signals() -> None:
    """Turn SIGINT into KeyboardInterrupt, SIGTERM and SIGHUP into SystemExit, so that ``with`` blocks end."""
    # A shell ignores SIGINT for programs in the background; kill -INT must stop this one all the same.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _exit)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
        signal.signal(signal.SIGHUP, _exit)


def _exit(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)

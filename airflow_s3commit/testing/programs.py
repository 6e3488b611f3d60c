"""The programs that a demo or a test starts: each with its log, none outliving its owner."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import FrameType, TracebackType

_LEASH = Path(__file__).with_name("leash.py")


class ProgramFailed(RuntimeError):
    """A program did not start, or ended when it should not have. The message ends with its last words."""


class Program:
    """A program in the background, which ends when this object is stopped or its process dies.

    Args:
        name: What to call it in messages.
        command: The program and its arguments. They show in process lists: no secrets here.
        log: The file that takes its output; appended to.
        environment: All of its environment variables; None hands on this process's own.
        directory: Its working directory; None hands on this process's own.
        grace: Seconds between asking it to end (SIGTERM) and making it end (SIGKILL).

    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
        grace: float = 5.0,
    ) -> None:
        self.name = name
        self.log = log
        self.command = list(command)
        self.environment = environment
        self.directory = directory
        self.grace = grace
        self._leash: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the program.

        Raises:
            ProgramFailed: It is running already.

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
                start_new_session=True,  # a Ctrl-C in the terminal is for the owner, who stops its programs
            )

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._leash is not None and self._leash.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Its exit code, 128 plus the number of the signal that ended it, or None while it runs."""
        return None if self._leash is None else self._leash.poll()

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it ends by itself and return its exit code.

        Raises:
            ProgramFailed: It was not started, or still runs after ``timeout`` seconds.

        """
        if self._leash is None:
            raise ProgramFailed(f"{self.name} was not started")
        try:
            # Popen.wait, not communicate: the latter would close the pipe that keeps the program alive.
            return self._leash.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise ProgramFailed(f"{self.name} still runs after {timeout} s{self.last_words()}") from error
        finally:
            if not self.running:
                self.stop()

    def ask_to_stop(self) -> None:
        """Begin to stop it, without waiting for the end."""
        if self._leash is not None and self._leash.stdin is not None:
            self._leash.stdin.close()

    def stop(self) -> None:
        """Stop it and all that it started; return when they are gone. Repeatable."""
        if self._leash is None:
            return
        self.ask_to_stop()
        try:
            self._leash.wait(self.grace + 10)
        except subprocess.TimeoutExpired:
            self._leash.kill()
            self._leash.wait()

    def last_words(self, lines: int = 15) -> str:
        """Return the end of its log, ready to be put behind a message."""
        try:
            text = self.log.read_text(errors="replace")
        except OSError:
            return ""
        tail = "\n  ".join(text.splitlines()[-lines:])
        return f"; the end of {self.log}:\n  {tail}" if tail else f"; {self.log} is empty"


def stop_all(programs: Iterable[Program]) -> None:
    """Stop several programs at once: they take as long as the slowest, not as long as all together."""
    with ExitStack() as stack:
        for program in programs:
            stack.callback(program.stop)
            program.ask_to_stop()


def free_ports(count: int) -> list[int]:
    """Return ``count`` different TCP ports that nobody listens on at 127.0.0.1 just now.

    They lie below the ranges that systems take outgoing ports from, so that no connection of another program
    takes one before it is used. Another program that picks ports the same way still may.
    """
    ports: list[int] = []
    with ExitStack() as stack:
        for port in random.SystemRandom().sample(range(20_000, 32_000), 12_000):
            if len(ports) == count:
                break
            probe = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            if os.name == "posix":
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            ports.append(port)
    if len(ports) < count:
        raise ProgramFailed(f"no {count} free ports between 20000 and 32000 on 127.0.0.1")
    return ports


def end_in_order_on_signals() -> None:
    """Turn SIGINT into KeyboardInterrupt, SIGTERM and SIGHUP into SystemExit: what was started is stopped."""
    # A shell that starts it in the background has SIGINT ignored, and kill -INT is still to stop it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _leave)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup leaves it
        signal.signal(signal.SIGHUP, _leave)


def _leave(number: int, _frame: FrameType | None) -> None:
    """Turn a signal into an orderly end, which stops what was started."""
    raise SystemExit(128 + number)

"""Runs a program that cannot outlive its owner.

The owner starts this file as a script, with the reading end of a pipe as standard input::

    python -I -S leash.py GRACE_SECONDS PROGRAM [ARGUMENT ...]

Only the owner holds the pipe's writing end, so it closes when the owner closes it, exits or is killed. Then
the program gets SIGTERM, and after the grace period the program and all its descendants get SIGKILL. On
Linux no descendant escapes into another session or process group, because this process adopts orphans. On
other systems only the program's own process group is reached. The exit code is the program's own, or 128
plus the number of the signal that ended it. To start in milliseconds, only the standard library is imported.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

#: From Linux's <sys/prctl.h>.
PR_SET_CHILD_SUBREAPER = 36

STDIN = 0


def main(argv: list[str]) -> int:
    """Run a program until it ends or standard input closes, then kill its descendants. Return the code."""
    grace, command = float(argv[0]), argv[1:]
    wakeup = _wake_on_signals()
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # _reap collects the exit status, together with those of orphans, so Popen's own wait is not used. Keep
    # the Popen referenced: an unreferenced one collects the status of an ended program, and loses it.
    popen = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)
    program = popen.pid
    status = _wait(program, wakeup, deadline=None)
    if status is None:
        _signal(program, signal.SIGTERM)
        status = _wait(program, wakeup, deadline=time.monotonic() + grace)
    status = _kill_descendants(program, wakeup, status)
    if status is None:
        return 128 + signal.SIGKILL
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _wake_on_signals() -> int:
    """Turn signals into bytes on a pipe, so that one `select` waits for them and for standard input."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    return reading


def _wait(program: int, wakeup: int, deadline: float | None) -> int | None:
    """Return the program's wait status; None if it still runs at a request to stop, or at the deadline.

    Without a deadline, a signal to this process or the end of standard input is a request to stop. With a
    deadline, only the deadline counts.
    """
    status: int | None = None
    while True:
        status = _reap(program, status)
        if status is not None:
            return status
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            return None
        watched = [wakeup] if deadline is not None else [wakeup, STDIN]
        ready, _, _ = select.select(watched, [], [], left)
        if STDIN in ready and not os.read(STDIN, 4096):
            return None
        if wakeup in ready and set(os.read(wakeup, 4096)) - {signal.SIGCHLD} and deadline is None:
            return None


def _reap(program: int, status: int | None) -> int | None:
    """Collect every child that has ended; return the program's status if it has ended, else ``status``."""
    while True:
        try:
            pid, ended = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if pid == 0:
            return status
        if pid == program:
            status = ended


def _kill_descendants(program: int, wakeup: int, status: int | None) -> int | None:
    """Kill all descendants, and return the program's status; None if it is unknown."""
    if status is None:
        _signal(program, signal.SIGKILL)
    while left := _descendants(os.getpid()):
        for pid in left:
            _kill(pid, signal.SIGKILL)
        select.select([wakeup], [], [], 0.05)
        status = _reap(program, status)
    return _reap(program, status)


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _kill(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _descendants(ancestor: int) -> list[int]:
    """Return the living descendants of a process, by Linux's /proc; empty on other systems."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            # pid (name) state ppid ...: the name may have spaces and parentheses, so cut after the last one.
            state, parent = entry.read_text(errors="replace").rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if state not in ("Z", "X"):
            parents[int(entry.parent.name)] = int(parent)
    found: list[int] = []
    wave = {ancestor}
    while wave := {pid for pid, parent in parents.items() if parent in wave}:
        found.extend(wave)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

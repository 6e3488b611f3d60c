"""Run a program that cannot outlive whoever asked for it.

Started as a script of its own, with the reading end of a pipe as standard input::

    python -I -S leash.py GRACE_SECONDS PROGRAM [ARGUMENT ...]

The pipe's writing end is held by the one who asked and by nobody else, so it closes when they close it, exit
or are killed. Then the program and everything that descends from it is asked to end (SIGTERM), and after
the grace period made to (SIGKILL). On Linux no descendant escapes, whatever sessions and process groups it
made for itself: this process adopts the orphans. Elsewhere only the program's own process group is reached.

The exit code is the program's own, or 128 plus the number of the signal that ended it.

It imports the standard library alone, so that it starts in a few milliseconds.
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
    """Run ``argv[1:]`` until it ends or standard input closes, and leave nothing of it behind."""
    grace, command = float(argv[0]), argv[1:]
    wakeup = _wake_on_signals()
    _adopt_orphans()
    # The exit status is collected in _reap, together with the orphans', hence no use of Popen's own wait. But
    # a Popen that nothing refers to collects it too, from a program that is over by then, and it is lost.
    popen = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)
    program = popen.pid
    status = _wait(program, wakeup, deadline=None)
    if status is None:
        _signal(program, signal.SIGTERM)
        status = _wait(program, wakeup, deadline=time.monotonic() + grace)
    status = _end_the_rest(program, wakeup, status)
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


def _adopt_orphans() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _wait(program: int, wakeup: int, deadline: float | None) -> int | None:
    """Return the program's wait status; None if it runs on when asked to stop, or at the deadline.

    Without a deadline, a signal to this process or the end of standard input asks to stop. With one, that
    has happened already and only the deadline counts.
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
    """Collect every child that has ended, and return the program's status once it was among them."""
    while True:
        try:
            pid, ended = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if pid == 0:
            return status
        if pid == program:
            status = ended


def _end_the_rest(program: int, wakeup: int, status: int | None) -> int | None:
    """Kill what is left, and return the program's status if it was among that."""
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
    """Return the living descendants of a process, as far as the system shows them (Linux's /proc)."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            # pid (name) state ppid ...: the name may hold spaces and parentheses, so cut after the last one.
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

"""Several background programs at once, as the demo and the stack have them."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from airflow_s3commit.testing.programs import ProgramFailed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_s3commit.testing.programs import Program


def stop_all(programs: Iterable[Program]) -> None:
    """Stop several programs at the same time, and return when all have ended."""
    with ExitStack() as stack:
        for program in programs:
            stack.callback(program.stop)
            program.ask_to_stop()


def check_running(programs: Iterable[Program]) -> None:
    """Return if all programs are running.

    Raises:
        ProgramFailed: One has ended.
    """
    for program in programs:
        if not program.running:
            raise ProgramFailed(f"{program.name} ended with {program.exit_code}{program.last_words()}")


def wait_for(program: Program, timeout: float) -> int | None:
    """Wait up to ``timeout`` seconds for a program to end by itself, and return its exit code.

    Raises:
        ProgramFailed: It still runs after the timeout.
    """
    deadline = time.monotonic() + timeout
    while program.running:
        if time.monotonic() > deadline:
            raise ProgramFailed(f"{program.name} still runs after {timeout} s{program.last_words()}")
        time.sleep(0.02)
    program.stop()
    return program.exit_code

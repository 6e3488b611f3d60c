"""Programs end with their owner, together with all that they started."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from airflow_s3commit.testing import ProgramFailed
from airflow_s3commit.testing.programs import Program, free_ports
from dev.programs import stop_all, wait_for

if TYPE_CHECKING:
    from pathlib import Path

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="only Linux hands on orphans")

#: Holds the writing end of the pipe given as first argument, and so do the processes it leaves behind: a
#: child in a session of its own and an orphan that ignores SIGTERM. The pipe's end tells that all are gone.
BREEDER = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        os.write(int(sys.argv[1]), b"ready")
    time.sleep(600)
time.sleep(600)
"""


#: The leash, with a start that comes back only when the program that it started is over.
LATE_LEASH = """
import os, subprocess, sys
from airflow_s3commit.testing import leash

class Late(subprocess.Popen):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

subprocess.Popen = Late
sys.exit(leash.main(sys.argv[1:]))
"""


def program(log: Path, code: str, *arguments: str, grace: float = 5.0) -> Program:
    """Return a Python program that is not started yet."""
    return Program("the probe", [sys.executable, "-c", code, *arguments], log=log, grace=grace)


def test_exit_code_is_the_programs(tmp_path: Path) -> None:
    """A program's exit code reaches its owner through the leash."""
    probe = program(tmp_path / "log", "raise SystemExit(7)")
    probe.start()
    assert wait_for(probe, 30) == 7


def test_signal_shows_in_the_exit_code(tmp_path: Path) -> None:
    """A program that a signal ended has 128 plus the signal as its exit code."""
    probe = program(tmp_path / "log", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    probe.start()
    assert wait_for(probe, 30) == 128 + signal.SIGKILL


@linux_only
def test_exit_code_of_a_short_program() -> None:
    """A program that is over before the leash looks at it again still hands its exit code on."""
    with subprocess.Popen(
        [sys.executable, "-c", LATE_LEASH, "5", "sh", "-c", "exit 7"], stdin=subprocess.PIPE
    ) as probe:
        assert probe.wait(30) == 7


def test_sigterm_comes_first(tmp_path: Path) -> None:
    """A program that is stopped gets SIGTERM and time to end on its own."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    code = """
        import signal, sys
        def end(*_):
            print("goodbye", flush=True)
            raise SystemExit(0)
        signal.signal(signal.SIGTERM, end)
        open(sys.argv[1], "w").close()
        while True:
            signal.pause()
    """
    with program(tmp_path / "log", textwrap.dedent(code), str(fifo)) as probe:
        fifo.read_text()
    assert (probe.exit_code, "goodbye" in (tmp_path / "log").read_text()) == (0, True)


def test_deaf_program_is_killed(tmp_path: Path) -> None:
    """A program that ignores SIGTERM is killed after its grace period."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    code = """
        import signal, sys
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open(sys.argv[1], "w").close()
        while True:
            signal.pause()
    """
    with program(tmp_path / "log", textwrap.dedent(code), str(fifo), grace=0.2) as probe:
        fifo.read_text()
    assert probe.exit_code == 128 + signal.SIGKILL


@linux_only
@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_nothing_survives(tmp_path: Path, end: str) -> None:
    """Orphans and other sessions end too, whether the owner stops the program or is killed."""
    owner = f"""
        import os, signal, sys
        from pathlib import Path
        from airflow_s3commit.testing.programs import Program
        reading, writing = map(int, sys.argv[1:])
        fifo = f"/proc/{{os.getpid()}}/fd/{{writing}}"
        # Descriptors are not inherited through the leash: the breeder opens the pipe itself.
        code = "import os, sys; sys.argv[1] = os.open(sys.argv[1], os.O_WRONLY)\\n" + {BREEDER!r}
        program = Program(
            "breeder", [sys.executable, "-c", code, fifo], log=Path({str(tmp_path / "log")!r}), grace=0.2
        )
        program.start()
        assert os.read(reading, 5) == b"ready"
        if {end!r} == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        program.stop()
    """
    reading, writing = os.pipe()
    try:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(owner), str(reading), str(writing)],
            pass_fds=(reading, writing),
            timeout=60,
            check=False,
        )
        assert done.returncode == (-signal.SIGKILL if end == "killed" else 0)
        os.close(writing)
        writing = -1
        readable, _, _ = select.select([reading], [], [], 30)
        assert readable
        assert os.read(reading, 1) == b""
    finally:
        os.close(reading)
        if writing >= 0:
            os.close(writing)


def test_stopping_several_is_repeatable(tmp_path: Path) -> None:
    """Programs are stopped together, and stopping again, or before the start, does nothing."""
    probes = [program(tmp_path / f"{n}.log", "import time; time.sleep(600)") for n in range(2)]
    for probe in probes:
        probe.stop()
        probe.start()
    stop_all(probes)
    stop_all(probes)
    assert [probe.running for probe in probes] == [False, False]


def test_error_ends_with_the_log(tmp_path: Path) -> None:
    """A program that outlasts a wait is named in the error, with its log's last lines."""
    with program(tmp_path / "log", "import time; print('stuck here', flush=True); time.sleep(600)") as probe:
        while "stuck here" not in (tmp_path / "log").read_text():
            os.sched_yield()
        with pytest.raises(ProgramFailed, match=re.compile("the probe still runs.*stuck here", re.DOTALL)):
            wait_for(probe, 0.01)


def test_free_ports_differ() -> None:
    """Free ports are as many as asked for, each once."""
    assert len(set(free_ports(20))) == 20

"""The tutorial, followed to the letter: its files written, its commands run, their outputs compared."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from tests.docs.blocks import DOCS, ROOT, Block, blocks_of

pytestmark = [
    pytest.mark.all,
    pytest.mark.airflow,
    pytest.mark.seaweedfs,
    pytest.mark.spark,
    pytest.mark.timeout(900),
    # Large groups are begun first; alone, this would be among the last tests to end.
    pytest.mark.xdist_group("docker-seaweedfs"),
]

#: Seconds for all of it; alone on two cores it takes one minute.
PATIENCE = 840

#: Comes before each step's output, and says how the step before ended.
_STEP = "=== step "


def _steps() -> Iterator[tuple[Block, Block | None]]:
    """Return the blocks to write or to run, in order, each with the output that the page shows for it."""
    blocks = list(blocks_of(DOCS / "tutorial.md"))
    for block, following in pairwise([*blocks, None]):
        assert block is not None
        if block.title or block.mark == "run":
            output = following if following is not None and following.mark == "output" else None
            yield block, output


def _script(steps: list[tuple[Block, Block | None]]) -> str:
    lines: list[str] = []
    for number, (block, _) in enumerate(steps):
        lines.append(f"echo '{_STEP}{number}'")
        if block.title:
            lines += [
                f"mkdir -p $(dirname {block.title})",
                f"cat > {block.title} <<'PAGE'",
                block.text,
                "PAGE",
            ]
        else:
            lines.append(block.text)
    return "\n".join(lines)


def _told(printed: str) -> dict[int, str]:
    found = re.split(rf"^{_STEP}(\d+)$", printed, flags=re.MULTILINE)
    return {int(number): text for number, text in zip(found[1::2], found[2::2], strict=True)}


def _missing(expected: str, told: str) -> list[str]:
    """Return the lines that the page shows and the program did not print, in this order; … is anything."""
    lines = [line.rstrip() for line in told.splitlines()]
    missing = []
    for line in expected.splitlines():
        if line.strip() in ("", "…"):
            continue
        pattern = re.compile(r"\s+".join(map(_pattern, line.split())))
        rest = [number for number, printed in enumerate(lines) if pattern.search(printed)]
        if rest:
            lines = lines[rest[0] + 1 :]
        else:
            missing.append(line)
    return missing


def _pattern(word: str) -> str:
    return ".*" if word == "…" else re.escape(word).replace("…", ".*")


def test_every_command_works_and_says_what_the_page_shows(tmp_path: Path) -> None:
    """A newcomer who types what the page says sees what the page says."""
    if shutil.which("bash") is None:
        pytest.skip("bash is not on this machine, and the tutorial is for it")
    steps = list(_steps())
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AWS_", "AIRFLOW_", "SPARK_", "PYSPARK_", "S3COMMIT"))
    }
    programs = sysconfig.get_path("scripts")
    script = tmp_path / "tutorial.sh"
    script.write_text(_script(steps))
    shell = subprocess.Popen(
        ["bash", str(script)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        start_new_session=True,
        env=environment
        | {
            "PATH": f"{programs}{os.pathsep}{environment['PATH']}",
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "110",
        },
    )
    try:
        printed, _ = shell.communicate(timeout=PATIENCE)
    finally:
        # The S3 server, should the shell not have come to the end.
        with suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
    told = _told(printed)
    log = tmp_path / "first" / "run.log"
    wrong = {
        str(block): (missing, told.get(number, "not reached"))
        for number, (block, output) in enumerate(steps)
        if output is not None and (missing := _missing(output.text, told.get(number, "")))
    }
    assert not wrong, (wrong, log.read_text()[-6000:] if log.exists() else "no run.log")
    assert len(told) == len(steps)
    assert shell.returncode == 0, told[len(steps) - 1]
    assert not (tmp_path / "first" / "s3.env").exists()

"""A task that runs short of memory takes none that allocators keep unused."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from airflow_s3commit.tables import write

#: Rows as Spark's serializer has them: bytes of a hundred KiB, one in a hundred of which stays.
WORKER = """
from pathlib import Path
from airflow_s3commit.tables.write import give_memory_back

def resident():
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) >> 10

before = resident()
lots = [bytes([1]) * 100_000 for _ in range(2000)]
full = resident()
kept, lots = lots[::100], None
idle = resident()
give_memory_back()
print(full - before, idle - before, resident() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has malloc_trim")
def test_what_is_left_between_objects_is_given_back() -> None:
    """Memory between objects in use, which glibc would keep, goes back to the system."""
    told = subprocess.run([sys.executable, "-c", WORKER], capture_output=True, text=True, check=True).stdout
    full, idle, after = map(int, told.split())
    assert full > 150, told
    assert idle > 150, told
    assert after < 30, told


def test_another_c_library_has_nothing_to_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the C library cannot be asked, Arrow's allocator still is, and nothing fails."""
    asked = []

    class Pool:
        def release_unused(self) -> None:
            asked.append("arrow")

    monkeypatch.setattr("pyarrow.default_memory_pool", Pool)
    monkeypatch.setattr(write, "_malloc_trim", lambda: None)
    write.give_memory_back()
    assert asked == ["arrow"]

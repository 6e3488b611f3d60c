"""The tests of `make check`, and a guard on what they need: no server, no program, no Airflow and no PySpark.

A plugin of pytest, `pytest -p tests.inner_loop`. It takes the tests in `FOLDERS` and in the modules beside
them, without the marks in `LONGER`. A test among them that listens on a socket, starts a program other than
Python, or imports one of `FOREIGN` fails, and says what it did. The guard does not see into a Python process
that a test starts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent

#: Folders of tests that import neither Airflow nor PySpark.
FOLDERS = frozenset({"cli", "contract", "protocol", "reader", "store", "tables"})

#: Modules beside the folders that import Airflow all the same.
OUTSIDE = frozenset({"test_face.py", "test_names.py"})

#: Marks of tests for the longer loops.
LONGER = frozenset({"airflow", "all", "loopback", "seaweedfs", "slow", "spark"})

#: What takes seconds to import, or starts Java.
FOREIGN = frozenset({"airflow", "pyspark"})

_broken: list[str] = []


class NeedsALongerLoop(AssertionError):
    """A test of `make check` did what only tests of `make test` may do."""


def broken_rule(event: str, args: tuple[Any, ...]) -> str | None:
    """Return what an audit event of Python says that the inner loop forbids, or None."""
    if event == "import" and args[0].partition(".")[0] in FOREIGN:
        return f"imports {args[0]}"
    if event == "socket.bind":
        return f"starts a server on {args[1]}"
    if event == "subprocess.Popen":
        program = args[0] or args[1][0]
        return None if str(program) == sys.executable else f"starts {program}"
    return None


def _guard(event: str, args: tuple[Any, ...]) -> None:
    broken = broken_rule(event, args)
    if broken is not None:
        _broken.append(broken)
        raise NeedsALongerLoop(f"a test of `make check` {broken}: mark it for a longer loop")


def pytest_collection() -> None:
    """Watch this process from here on: an audit hook stays until it ends. xdist's own start is over."""
    sys.addaudithook(_guard)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out the folders of the longer loops unread: reading them imports Airflow."""
    parts = collection_path.relative_to(ROOT).parts if collection_path.is_relative_to(ROOT) else ()
    if not parts:
        return None
    taken = parts[0] not in OUTSIDE if collection_path.is_file() and len(parts) == 1 else parts[0] in FOLDERS
    return None if taken else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that are marked for the longer loops."""
    longer = [item for item in items if LONGER & {mark.name for mark in item.iter_markers()}]
    left_out = set(longer)
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=longer)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Fail a test that broke a rule and swallowed the error."""
    _broken.clear()
    yield
    if _broken:
        pytest.fail(f"a test of `make check` {_broken[0]}: mark it for a longer loop")

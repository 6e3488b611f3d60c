"""The rules of the house, read off the source with nothing but the standard library."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "airflow_s3commit"
ROOT = Path(__file__).parents[1] / PACKAGE

#: Floors from the bottom up; a module imports from its own floor and those below it.
FLOORS: tuple[frozenset[str], ...] = (
    frozenset({"", "causes", "clock", "exceptions"}),
    frozenset({"store"}),
    frozenset({"protocol", "tables"}),
    frozenset({"reader", "spark"}),
    frozenset({"hooks", "settings"}),
    frozenset({"assets", "lineage", "links", "metrics", "params", "provider_info", "retry_policy", "xcom"}),
    frozenset({"notifications", "operators", "sensors", "task_group", "triggers"}),
    frozenset({"airflow_commands", "cli"}),
    frozenset({"plugin"}),
    frozenset({"demo"}),
)  # fmt: skip

#: Who may import what from outside, by the folder below the package.
ONLY_IN = {
    "boto3": {"store"},
    "botocore": {"store"},
    "pycurl": {"store"},
    "airflow": {"assets", "hooks", "links", "notifications", "operators", "params", "task_group"}
    | {"lineage", "metrics", "plugin"}
    | {"airflow_commands", "cli", "retry_policy", "sensors", "settings", "triggers"},
    "pyspark": {"spark"},
    "pyarrow": {"tables", "spark", "reader", "demo"},
    "click": {"cli"},
    "rich": {"cli", "demo"},
}  # fmt: skip


def _modules() -> list[Path]:
    return sorted(path for path in ROOT.rglob("*.py") if "__pycache__" not in path.parts)


def _room(path: Path) -> str:
    """Return the first name below the package: the folder, or the module beside the folders."""
    relative = path.relative_to(ROOT).with_suffix("")
    return "" if relative.name == "__init__" and len(relative.parts) == 1 else relative.parts[0]


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            assert node.level == 0, f"{path} imports relatively"
            yield node.module


def _floor(room: str) -> int:
    for number, rooms in enumerate(FLOORS):
        if room in rooms:
            return number
    raise AssertionError(f"{room} has no floor in the house: give it one")


#: Where JSON becomes structs. Elsewhere what is wrong with it would be msgspec's error, not a record's.
DECODERS = {"protocol/records/codec.py"}


@pytest.mark.parametrize("path", _modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_records_are_read_with_a_limit(path: Path) -> None:
    """Whoever reads an object says how long it may be, and whoever decodes one lets the codec do it."""
    where = str(path.relative_to(ROOT))
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        assert where in DECODERS or not called.startswith(("msgspec.json.decode", "msgspec.json.Decoder")), (
            f"{where}:{node.lineno} decodes by itself"
        )
        reads = called == "Get" or (called.endswith("store.get") and len(node.args) > 1)
        limited = len(node.args) > 2 or any(keyword.arg == "limit" for keyword in node.keywords)
        assert limited or not reads, f"{where}:{node.lineno} reads without a limit"


#: What destroys: verbs of an `ObjectStore`, and calls as values.
VERBS = {"delete", "delete_many", "abort_upload"}
CALLS = {"Abort", "DeleteMany"}

#: Where something is destroyed beside `protocol/removal.py`: uploads that no job claims, looked at once more,
#: and probes, which remove what they made a moment ago.
DESTROYERS = {"removal.py", "sweep.py", "probes.py", "sandbox.py", "preflight.py", "store_time.py"}


def test_everything_of_a_job_is_destroyed_through_one_gate() -> None:
    """No other module of the protocol deletes or aborts, and none above it has a store do so."""
    found = set()
    for path in _modules():
        if _room(path) in ("store", "demo"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and len(node.args) > 1:
                called = ast.unparse(node.func)
                place, _, verb = called.rpartition(".")
                if called in CALLS or (verb in VERBS and "store" in place):
                    found.add((_room(path), path.name))
    assert {name for _, name in found} <= DESTROYERS
    assert {room for room, _ in found} == {"protocol"}


@pytest.mark.parametrize("path", _modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    """A module imports only from its own floor and from the floors below it."""
    room = _room(path)
    for name in _imports(path):
        package, _, rest = name.partition(".")
        if package == PACKAGE:
            imported = rest.partition(".")[0]
            assert _floor(imported) <= _floor(room), f"{path} imports {name}, which is above it"


@pytest.mark.parametrize("path", _modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_foreign_libraries_stay_where_they_belong(path: Path) -> None:
    """boto3 is used in store alone, Airflow by its own folders, PySpark by the Spark door."""
    for name in _imports(path):
        allowed = ONLY_IN.get(name.partition(".")[0])
        assert allowed is None or _room(path) in allowed, f"{path} imports {name}"


def test_there_are_no_grab_bags() -> None:
    """No module is called utils, helpers, manager or common: a module is one concept."""
    names = {path.stem for path in _modules()}
    assert not names & {"utils", "util", "helpers", "helper", "manager", "common", "misc"}


def test_protocol_and_store_work_where_airflow_and_spark_are_missing() -> None:
    """The engine imports with Airflow, PySpark and pyarrow blocked, and brings none of them in."""
    program = (
        "import sys\n"
        "for name in ('airflow', 'pyspark', 'pyarrow'): sys.modules[name] = None\n"
        f"import {PACKAGE}.protocol.job, {PACKAGE}.store.s3, {PACKAGE}.store.memory\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_package_itself_is_light() -> None:
    """Importing the package brings in nothing but itself: executors and every Airflow process do it."""
    program = (
        f"import sys; before = set(sys.modules); import {PACKAGE}\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        f"assert new <= {{'{PACKAGE}', '__future__'}}, new"
    )
    subprocess.run([sys.executable, "-c", program], check=True)

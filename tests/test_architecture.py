"""The rules of the house, read off the source with nothing but the standard library."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.cases import each

# On one worker, all rules share what is parsed.
pytestmark = pytest.mark.xdist_group("architecture")

PACKAGE = "airflow_s3commit"
ROOT = Path(__file__).parents[1] / PACKAGE

#: Floors from the bottom up. A package imports from floors strictly below its own, and from itself: no two
#: packages on one floor know each other. `protocol` alone is its facade, the modules beside its packages.
FLOORS: tuple[frozenset[str], ...] = (
    frozenset({"", "_causes", "_clock", "_format", "_names", "airflow_version", "exceptions"}),
    frozenset({"params", "settings"}),
    frozenset({"links", "store"}),
    frozenset({"protocol.model", "store.s3"}),
    frozenset({"protocol.metadata", "tables", "testing"}),
    frozenset({"protocol.steps"}),
    frozenset({"protocol.hadoop"}),
    frozenset({"protocol.inspect"}),
    frozenset({"protocol"}),
    frozenset({"protocol.doctor"}),
    frozenset({"assets", "compaction", "hooks", "iceberg", "present", "reader"}),
    frozenset({"spark"}),
    frozenset({"metrics", "templates"}),
    frozenset({"operators", "triggers"}),
    frozenset({"cli", "notifications", "plugin", "sensors"}),
    frozenset({"airflow_commands", "task_group"}),
)  # fmt: skip

#: Packages whose packages have floors of their own.
DIVIDED = {"protocol", "store"}

#: Who may import what from outside, by the folder below the package.
ONLY_IN = {
    "boto3": {"store"},
    "botocore": {"store"},
    "pycurl": {"store"},
    "airflow": {"assets", "hooks", "links", "notifications", "operators", "params", "task_group"}
    | {"metrics", "plugin"}
    | {"airflow_commands", "airflow_version", "sensors", "settings", "templates", "triggers"},
    "pendulum": {"params"},
    "pyspark": {"spark"},
    "pyarrow": {"compaction", "iceberg", "tables", "spark", "reader"},
    "pyiceberg": {"iceberg"},
    "click": {"cli"},
    "fastapi": {"plugin"},
    "rich": {"cli"},
    "deltalake": {"protocol"},
    "pytest": {"testing"},
}  # fmt: skip


def _modules() -> list[Path]:
    return sorted(path for path in ROOT.rglob("*.py") if "__pycache__" not in path.parts)


def _room(path: Path) -> str:
    """Return the first name below the package: the folder, or the module beside the folders."""
    relative = path.relative_to(ROOT).with_suffix("")
    return "" if relative.name == "__init__" and len(relative.parts) == 1 else relative.parts[0]


def _package(name: str) -> str:
    """Return which package of the house a module belongs to, by its dotted name below the package."""
    first, *rest = name.split(".")
    if first in DIVIDED and rest and (ROOT / first / rest[0]).is_dir():
        return f"{first}.{rest[0]}"
    return first


def _dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix("__init__").rstrip(".")


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def _nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(_tree(path)))


def _imports(path: Path) -> Iterator[str]:
    nodes = _nodes(path)
    if _room(path) == "":
        # The face shows its names to type checkers and imports none of them; see tests/test_face.py.
        shown = (node for node in _tree(path).body if ast.unparse(node).startswith("if TYPE_CHECKING:\n"))
        hidden = {node for one in shown for node in ast.walk(one)}
        nodes = [node for node in nodes if node not in hidden]
    for node in nodes:
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
DECODERS = {"protocol/model/codec.py"}


@each("path", _modules())
def test_records_are_read_with_a_limit(path: Path) -> None:
    """Every read of an object has a limit, and every record is decoded by the codec."""
    where = str(path.relative_to(ROOT))
    for node in _nodes(path):
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

#: Where something is destroyed beside `protocol/metadata/removal.py`: uploads that no job claims, looked at
#: once more, and probes, which remove what they made a moment ago.
DESTROYERS = {
    "protocol/doctor/probes.py",
    "protocol/metadata/removal.py",
    "protocol/metadata/store_check.py",
    "protocol/sweep.py",
}


def test_everything_of_a_job_is_destroyed_through_one_gate() -> None:
    """No other module of the protocol deletes or aborts, and none above it has a store do so."""
    found = set()
    for path in _modules():
        if _room(path) in ("store", "testing"):
            continue
        for node in _nodes(path):
            if isinstance(node, ast.Call) and len(node.args) > 1:
                called = ast.unparse(node.func)
                place, _, verb = called.rpartition(".")
                if called in CALLS or (verb in VERBS and "store" in place):
                    found.add(path.relative_to(ROOT).as_posix())
    assert found == DESTROYERS


@each("path", _modules())
def test_imports_point_down(path: Path) -> None:
    """A module imports from its own package and from packages on lower floors."""
    package = _package(_dotted(path))
    for name in _imports(path):
        if name.partition(".")[0] == PACKAGE:
            imported = _package(name.removeprefix(PACKAGE).lstrip("."))
            assert imported == package or _floor(imported) < _floor(package) or package == "", (
                f"{path} imports {name}"
            )


def test_no_module_is_part_of_a_circle() -> None:
    """Modules can be read from the bottom up: no chain of imports, for types or at run time, closes."""
    modules = {_dotted(path): path for path in _modules()}
    imports = {name: set[str]() for name in modules}
    for name, path in modules.items():
        if name == "":
            continue
        for node in _nodes(path):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{PACKAGE}."):
                base = str(node.module).removeprefix(f"{PACKAGE}.")
                found = {f"{base}.{alias.name}" for alias in node.names} & modules.keys()
                imports[name] |= (found or {base}) - {name}
    TopologicalSorter(imports).prepare()


def test_a_module_is_short_enough_to_read() -> None:
    """A module is one concept: about 300 lines, and never more than 500."""
    long = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in _modules()}
    assert not {name: lines for name, lines in long.items() if lines > 500}


@each("path", _modules())
def test_foreign_libraries_stay_where_they_belong(path: Path) -> None:
    """boto3 is used in store alone, Airflow by its own folders, PySpark by the Spark door."""
    for name in _imports(path):
        allowed = ONLY_IN.get(name.partition(".")[0])
        assert allowed is None or _room(path) in allowed, f"{path} imports {name}"


#: Values of the protocol and the store that are kept once they are worked out. None of them makes a request.
KEPT = {
    "protocol/metadata/context.py": {"job_id", "bucket", "staging_bucket", "name"},
    "protocol/steps/commit.py": {"options"},
}


def test_no_lock_of_all_instances_is_held_during_a_request() -> None:
    """A ``cached_property`` of Python 3.11 has one lock, on which two jobs could wait for each other."""
    found: dict[str, set[str]] = {}
    for path in _modules():
        where = path.relative_to(ROOT).as_posix()
        for node in _nodes(path) if where.startswith(("protocol/", "store/")) else ():
            marks = node.decorator_list if isinstance(node, ast.FunctionDef) else []
            if "cached_property" in map(ast.unparse, marks):
                found.setdefault(where, set()).add(node.name)
    assert found == KEPT


def test_the_package_works_without_the_checkout() -> None:
    """Nothing in the package imports what the wheel does not hold: the demo, the stack and the tests."""
    outside = {"dev", "tests", "benchmarks"}
    assert not [path for path in _modules() for name in _imports(path) if name.partition(".")[0] in outside]


def test_there_are_no_grab_bags() -> None:
    """No module is called utils, helpers, manager or common: a module is one concept."""
    names = {path.stem for path in _modules()}
    assert not names & {"utils", "util", "helpers", "helper", "manager", "common", "misc"}


def test_protocol_and_store_work_where_airflow_and_spark_are_missing() -> None:
    """The engine imports with Airflow, PySpark and pyarrow blocked, and brings none of them in."""
    program = (
        "import sys\n"
        "for name in ('airflow', 'pyspark', 'pyarrow'): sys.modules[name] = None\n"
        f"import {PACKAGE}.protocol.job, {PACKAGE}.store.s3.store, {PACKAGE}.store.memory\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_package_itself_is_light() -> None:
    """Importing the package imports nothing else: executors and every Airflow process do it."""
    program = (
        f"import sys; before = set(sys.modules); import {PACKAGE}\n"
        "new = set(sys.modules) - before - {'__future__'}\n"
        f"assert new == {{'{PACKAGE}', '{PACKAGE}._names'}}, new"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def _documented(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and docstring of each public class and function of a module."""
    for node in _nodes(path):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name[0] != "_":
            yield node.name, ast.get_docstring(node) or ""


@each("path", _modules())
def test_a_docstring_says_what_it_documents(path: Path) -> None:
    """No public docstring only refers to another, but for a method that overrides the one it names."""
    for name, text in _documented(path):
        overrides = re.match(rf"See `[\w.]*[A-Z]\w*\.{name}`", text)
        assert overrides or not text.startswith("See "), f"{path}: {name}: {text.partition(chr(10))[0]}"


def test_the_package_does_not_import_through_its_face() -> None:
    """A module imports a name from where it is defined: the face would hide on which floor."""
    for path in _modules():
        for node in _nodes(path):
            if isinstance(node, ast.ImportFrom) and node.module == PACKAGE:
                through = {alias.name for alias in node.names} - {"__version__"}
                modules = {
                    name for name in through if (ROOT / name).is_dir() or (ROOT / f"{name}.py").is_file()
                }
                assert through == modules, f"{path} imports {through - modules} through the face"

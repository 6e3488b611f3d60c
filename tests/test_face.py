"""The public face: what users import, and that it stays importable, documented and cheap."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import airflow_s3commit
import tests.airflow.conftest  # noqa: F401 - gives Airflow a home before a face imports it
from tests.cases import ERRORS

pytestmark = pytest.mark.airflow

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "airflow_s3commit"

#: The names of each face beside the exceptions, which `airflow_s3commit` exports all.
FACES = {
    "airflow_s3commit": """
        AbortReport AuditReport AuditRules CommittedTask Compaction Counts Destination FileDifferences
        FileEntry GlueTable Job JobOptions JobReference JobState JobWriter Manifest
        MemoryStore ObjectOptions ObjectStore OutputFile PendingReport Preview Progress
        RegistrationReport RepairReport RetryPolicy RollbackReport S3Config S3Store SealReference
        SweepReport TableReport TaskAttempt VerifyReport __version__ audit
        compact dataset history latest_manifest manifest_files read_manifest
        register_destination register_partitions repair rollback sweep verify
        verify_job write_job write_table
    """,
    "airflow_s3commit.hooks": "S3CommitHook StoreAddress",
    "airflow_s3commit.notifications": "AbortUploadsNotifier",
    "airflow_s3commit.operators": """
        S3CommitAbortOperator S3CommitAuditOperator S3CommitCompactOperator S3CommitJobOperator
        S3CommitPartOperator S3CommitPublishIcebergOperator S3CommitRegisterPartitionsOperator
        S3CommitRegisterTableOperator S3CommitResolveConflictsOperator S3CommitSetupOperator
        S3CommitSparkSubmitOperator S3CommitStagesOperator S3CommitSweepOperator
    """,
    "airflow_s3commit.reader": "UnreadableFiles UnreadablePartitions dataset",
    "airflow_s3commit.sensors": "S3SuccessManifestSensor",
    "airflow_s3commit.spark": """
        MissingJar MissingLibrary PendingWrite S3CommitDataSource batch_conf commit_job committer_conf
        foreach_batch pending_conf pending_jar py_files read_table register register_partitions
        write_pending
    """,
    "airflow_s3commit.tables": """
        TABLE_OPTIONS UnsupportedColumn UnsupportedPartition WrittenTable
    """,
    "airflow_s3commit.testing": "Crash Effect Fault FaultyStore MemoryStore ProgramFailed S3Server StoreCall",
    "airflow_s3commit.triggers": "S3SuccessManifestEventTrigger S3SuccessManifestTrigger",
}

#: The faces that are packages, whose names are imported when they are used.
LAZY = [face for face in FACES if PACKAGE.joinpath(*face.split(".")[1:], "__init__.py").exists()]

#: Values and the version: they have no docstring of their own.
VALUES = {"Effect", "TABLE_OPTIONS", "__version__"}


@pytest.mark.parametrize("face", FACES)
def test_a_face_exports_these_names_and_no_others(face: str) -> None:
    """What users may import is a decision: this list changes with it, and is sorted."""
    names = FACES[face].split()
    if face == "airflow_s3commit":
        names = sorted([*names, *ERRORS])
    module = importlib.import_module(face)
    assert module.__all__ == names
    assert set(names) <= set(dir(module))
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = module.Nothing


@pytest.mark.parametrize("face", FACES)
def test_every_name_is_there_and_says_what_it_is(face: str) -> None:
    """Each name can be imported, has a docstring of its own, and none of them only refers to another."""
    module = importlib.import_module(face)
    for name in set(module.__all__) - VALUES:
        value = getattr(module, name)
        text = (vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__) or ""
        assert text, f"{face}.{name} has no docstring"
        assert not text.startswith("See "), f"{face}.{name} only refers to another docstring"
        if inspect.isfunction(value):
            _check_arguments(value, text)


def _check_arguments(function: object, text: str) -> None:
    """A function of a face explains each of its arguments."""
    assert callable(function)
    for parameter in inspect.signature(function).parameters:
        explained = re.search(rf"^ *(:param )?{parameter}:", text, re.MULTILINE)
        assert explained, f"{function} does not explain {parameter}"


@pytest.mark.parametrize("face", FACES)
def test_every_field_is_explained(face: str) -> None:
    """A record, report or setting explains each of its fields, itself or where it inherits them."""
    module = importlib.import_module(face)
    for name in set(module.__all__) - VALUES:
        kind = getattr(module, name)
        fields = getattr(kind, "__struct_fields__", ())
        if "__dataclass_fields__" in vars(kind) and kind.__module__.startswith("airflow_s3commit."):
            fields = [field.name for field in dataclasses.fields(kind) if field.name[0] != "_"]
        text = "\n".join(base.__doc__ or "" for base in getattr(kind, "__mro__", (kind,)))
        for field in fields:
            explained = re.search(rf"^ *(:param )?{field}:", text, re.MULTILINE)
            assert explained, f"{face}.{name} does not explain {field}"


@pytest.mark.parametrize("face", LAZY)
def test_type_checkers_see_what_runs(face: str) -> None:
    """The names that type checkers are shown come from the modules that the names are imported from."""
    path = PACKAGE.joinpath(*face.split(".")[1:], "__init__.py")
    shown = {
        alias.name: node.module
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for alias in node.names
    }
    module = importlib.import_module(face)
    for name in set(module.__all__) - {"__version__"}:
        home = importlib.import_module(shown[name] or "")
        assert getattr(module, name) is getattr(home, name)


def test_faces_bring_in_no_engine() -> None:
    """Importing a package of them imports neither Airflow nor PySpark nor pyarrow nor boto3: the names do."""
    program = (
        f"import sys, {', '.join(LAZY)}\n"
        "heavy = {'airflow', 'pyspark', 'pyarrow', 'boto3', 'msgspec'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def _documented() -> set[str]:
    """Return the names on the reference pages: those asked for, and those of the generated parts."""
    text = "\n".join(path.read_text() for path in (ROOT / "docs/reference").glob("*.md"))
    names = {line.rpartition(".")[2] for line in re.findall(r"^::: (\S+)", text, re.MULTILINE)}
    for node in ast.parse((ROOT / "docs/site_build/records_page.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "OURS":
            names |= set(ast.literal_eval(node.value))
    return names | set(ERRORS)


@pytest.mark.parametrize("face", FACES)
def test_every_name_is_on_a_reference_page(face: str) -> None:
    """What can be imported can be looked up."""
    assert set(importlib.import_module(face).__all__) - VALUES - _documented() == set()


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield each module of this package that is imported from, with each name; an empty one for all of it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "airflow_s3commit":
            yield from ((node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.startswith("airflow_s3commit"))


def test_dags_import_from_the_faces() -> None:
    """The DAGs that people copy import nothing that lies deeper than a face."""
    for path in (ROOT / "dags").rglob("*.py"):
        for module, name in _imports(ast.parse(path.read_text())):
            _check_public(module, name)


def test_pages_import_from_the_faces() -> None:
    """What README and documentation tell people to import are public names, and no page asks for another."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = page.read_text()
        for line in re.findall(
            r"^ *(from airflow_s3commit\S* import .+|import airflow_s3commit.*)$", text, re.M
        ):
            for module, name in _imports(ast.parse(line.strip())):
                _check_public(module, name)
        for asked in re.findall(r"^::: (airflow_s3commit\S+)$", text, re.MULTILINE):
            _check_public(*asked.rpartition(".")[::2])


def _check_public(module: str, name: str) -> None:
    assert module.count(".") < 2, f"{module} lies deeper than a face"
    imported = importlib.import_module(module)
    public = not name or name in imported.__all__ or (PACKAGE / f"{name}.py").is_file()
    assert public, f"{name} is no public name of {module}"


def test_benchmarks_import_public_names_from_the_face() -> None:
    """A benchmark goes deeper only for what it measures and no face exports."""
    public = set(airflow_s3commit.__all__)
    for path in (ROOT / "benchmarks").glob("*.py"):
        for module, name in _imports(ast.parse(path.read_text())):
            assert name not in public or module == "airflow_s3commit", f"{path.name}: {module}.{name}"

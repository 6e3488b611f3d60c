"""Import paths of earlier documentation: they work, and where a module is gone they warn."""

from __future__ import annotations

import importlib
import io
import pickle
import sys
import warnings
from collections.abc import Iterator

import pytest

import tests.airflow.conftest  # noqa: F401 - gives Airflow a home before it is imported
from airflow_s3commit import Job, TaskAttempt, _names
from airflow_s3commit._names import MOVED, MovedModules, forwarding
from airflow_s3commit.spark import S3CommitDataSource

pytestmark = pytest.mark.airflow

#: A module that never was, of a package that is there.
GONE = "airflow_s3commit.protocol.long_gone"

TABLE = {"protocol.long_gone": {"Job": "airflow_s3commit", "Task": "airflow_s3commit:TaskAttempt"}}


@pytest.fixture
def served() -> Iterator[None]:
    """Serve the made-up table, as the package's own is served."""
    finder = MovedModules(TABLE)
    sys.meta_path.append(finder)  # type: ignore[arg-type]
    yield
    sys.meta_path.remove(finder)  # type: ignore[arg-type]
    sys.modules.pop(GONE, None)


@pytest.mark.usefixtures("served")
def test_a_module_that_is_gone_forwards_its_names_and_warns() -> None:
    """The name is the same object, the warning says what to write instead, and points at the import."""
    with pytest.warns(DeprecationWarning, match="use: from airflow_s3commit import Job") as caught:
        exec(f"from {GONE} import Job as moved", found := {})
    assert found["moved"] is Job
    assert caught[0].filename == "<string>"
    with pytest.raises(ImportError, match="Nothing"):
        exec(f"from {GONE} import Nothing")
    with pytest.warns(DeprecationWarning, match=GONE):
        exec(f"from {GONE} import *", found := {})
    assert found["Job"] is Job


@pytest.mark.usefixtures("served")
def test_a_name_that_changed_is_found_by_its_old_one() -> None:
    """The warning says the new name, and the object is the one that has it."""
    with pytest.warns(DeprecationWarning, match="use: from airflow_s3commit import TaskAttempt"):
        exec(f"from {GONE} import Task", found := {})
    assert found["Task"] is TaskAttempt


@pytest.mark.usefixtures("served")
def test_a_class_by_its_old_path_can_be_unpickled() -> None:
    """What a database or a pickle holds by an old path is found."""
    stored = b"c" + GONE.encode() + b"\nJob\n."
    with pytest.warns(DeprecationWarning, match=GONE):
        assert pickle.loads(stored) is Job


def test_a_module_that_exists_is_never_forwarded() -> None:
    """The finder comes after all others, once, and serves nothing beside its table."""
    finders = [finder for finder in sys.meta_path if isinstance(finder, MovedModules)]
    _names.install()
    assert [finder for finder in sys.meta_path if isinstance(finder, MovedModules)] == finders
    assert len(finders) == 1
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("airflow_s3commit.protocol.never_was")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("airflow_s3commit_other.protocol.job")


def test_a_package_in_the_place_of_a_module_forwards_by_the_same_table() -> None:
    """``forwarding`` is the ``__getattr__`` of a package that took the name of an old module."""
    with pytest.warns(DeprecationWarning, match="from airflow_s3commit import S3Store"):
        assert forwarding("store.s3")("S3Store").__name__ == "S3Store"
    with pytest.raises(AttributeError, match="Nothing"):
        forwarding("store.s3")("Nothing")


@pytest.mark.parametrize("module", MOVED)
def test_every_documented_path_still_works(module: str) -> None:
    """Each old module can be imported, and has the names that are public today, the same objects."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        old = importlib.import_module(f"airflow_s3commit.{module}")
        for name, home in MOVED[module].items():
            module_name, _, renamed = home.partition(":")
            assert getattr(old, name) is getattr(importlib.import_module(module_name), renamed or name)


def test_paths_in_airflows_database_are_found() -> None:
    """Airflow finds a trigger by the class path that an earlier release wrote down."""
    import_string = importlib.import_module("airflow._shared.module_loading").import_string
    for name in ("S3SuccessManifestTrigger", "S3SuccessManifestEventTrigger"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            found = import_string(f"airflow_s3commit.triggers.success_manifest.{name}")
        assert found is getattr(importlib.import_module("airflow_s3commit.triggers"), name)


def test_the_module_that_spark_looks_up_warns_everyone_else() -> None:
    """A program that imports the data source from ``pyspark_s3commit`` gets the path to use instead."""
    with pytest.warns(DeprecationWarning, match=r"use: from airflow_s3commit\.spark import") as caught:
        exec("from pyspark_s3commit import DefaultSource as found", found := {})
    assert found["found"] is S3CommitDataSource
    assert caught[-1].filename == "<string>"
    with pytest.raises(ImportError, match="Nothing"):
        exec("from pyspark_s3commit import Nothing")


def test_sparks_own_lookup_finds_the_data_source_and_does_not_warn() -> None:
    """A session that has the package registers the data source without help or a warning."""
    lookup = importlib.import_module("pyspark.sql.worker.lookup_data_sources")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lookup._main(io.BytesIO(), sources := io.BytesIO())
    assert b"s3commit" in sources.getvalue()
    assert b"S3CommitDataSource" in sources.getvalue()


def test_a_data_source_that_cannot_be_imported_is_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If a library is missing, Spark continues without this data source, and the log has the reason."""
    monkeypatch.setitem(sys.modules, "airflow_s3commit.spark.datasource", None)
    lookup = importlib.import_module("pyspark.sql.worker.lookup_data_sources")
    lookup._main(io.BytesIO(), sources := io.BytesIO())
    assert b"s3commit" not in sources.getvalue()
    assert "the data source s3commit is not available" in caplog.text

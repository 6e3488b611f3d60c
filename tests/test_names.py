"""The module by whose name Spark finds the data source."""

from __future__ import annotations

import importlib
import io
import sys
import warnings

import pytest

import tests.airflow.conftest  # noqa: F401 - gives Airflow a home before it is imported
from airflow_s3commit.spark import S3CommitDataSource

pytestmark = pytest.mark.airflow


def test_the_module_has_the_data_source_and_nothing_else() -> None:
    """Spark's `DefaultSource` is the one that `airflow_s3commit.spark` has, and there is no other name."""
    module = importlib.import_module("pyspark_s3commit")
    assert module.DefaultSource is S3CommitDataSource
    with pytest.raises(AttributeError, match="Nothing"):
        _ = module.Nothing


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

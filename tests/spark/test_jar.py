"""The jar for Spark's own writers: compiled once, refused by name without a compiler."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest

from airflow_s3commit.spark import MissingJar, pending_jar
from airflow_s3commit.spark.jar import PROTOCOL_CLASS

pytestmark = pytest.mark.spark


@pytest.mark.skipif(shutil.which("javac") is None, reason="javac is not installed")
def test_a_checkout_compiles_the_jar_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call compiles Java 8's class files into the user's cache, and the second finds them there."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = Path(pending_jar())
    assert made.parent == tmp_path / "airflow-s3commit"
    with zipfile.ZipFile(made) as jar:
        version = jar.read(PROTOCOL_CLASS.replace(".", "/") + ".class")[7]
    assert version == 52
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert pending_jar() == str(made)


def test_without_a_compiler_the_error_names_the_ways_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkout without javac says that a wheel has the jar, and what to install."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(MissingJar, match=r"no javac in JAVA_HOME or PATH .* install a wheel"):
        pending_jar()

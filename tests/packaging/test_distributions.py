"""The published files have the expected content, and nothing of the build machine."""

from __future__ import annotations

import email
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import airflow_s3commit
from tests.packaging.conftest import build, try_to_build

if TYPE_CHECKING:
    from email.message import Message

    from tests.packaging.conftest import Distributions

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.xdist_group("packaging")


def content(wheel: Path) -> dict[str, bytes]:
    """Return a wheel's files by name."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def metadata(wheel: Path) -> Message:
    """Return what a wheel says of itself."""
    (name,) = (name for name in content(wheel) if name.endswith(".dist-info/METADATA"))
    return email.message_from_bytes(content(wheel)[name])


def source_names(sdist: Path) -> set[str]:
    """Return the files of a source distribution, without its own top directory."""
    with tarfile.open(sdist) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


def test_twine_has_no_complaint(distributions: Distributions) -> None:
    """The metadata and the README are what a package index takes."""
    command = [sys.executable, "-m", "twine", "check", "--strict", distributions.sdist, distributions.wheel]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("PASSED") == 2


def test_the_source_builds_the_same_wheel(distributions: Distributions) -> None:
    """The wheel that the source distribution builds is the one that the checkout builds, byte for byte."""
    assert content(distributions.wheel) == content(distributions.direct)


def test_the_wheel_holds_the_packages_whole(distributions: Distributions) -> None:
    """Every module, the marker for type checkers, and the protocol's text; nothing beside these two."""
    names = set(content(distributions.wheel))
    packages = ("airflow_s3commit", "pyspark_s3commit")
    wanted = {
        path.relative_to(ROOT).as_posix()
        for package in packages
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert names >= wanted
    assert {"airflow_s3commit/py.typed", "airflow_s3commit/protocol/PROTOCOL.md"} <= names
    assert {name.partition("/")[0] for name in names} == {
        *packages,
        f"airflow_s3commit-{version()}.dist-info",
    }


def version() -> str:
    """Return the package's version."""
    return airflow_s3commit.__version__


def test_the_source_holds_all_that_a_builder_needs(distributions: Distributions) -> None:
    """Tests, DAGs, documentation, images and the versions they were tried with are in the source."""
    names = source_names(distributions.sdist)
    assert {
        *(
            "pyproject.toml",
            "constraints.txt",
            "Makefile",
            "LICENSE",
            "README.md",
            "CHANGELOG.md",
            "CONTRIBUTING.md",
        ),
        *("dags/nightly_flights_refresh.py", "dags/jobs/flights.py", "docker/compose.yaml", ".dockerignore"),
        *("docs/guarantees.md", "tests/conftest.py", "tests/packaging/conftest.py", ".ci/run"),
    } <= names
    # What the tests in it read beside the packages, `make` and the site included.
    assert {"mkdocs.yml", "pyproject.toml", ".gitignore"} <= names
    for directory in (".ci", "benchmarks", "dags", "dev", "docker", "docs", "tests"):
        files = (path for path in (ROOT / directory).rglob("*") if path.is_file())
        kept = {
            path.relative_to(ROOT).as_posix()
            for path in files
            if "__pycache__" not in path.parts and path.name != ".env"
        }
        assert kept
        assert kept <= names


def test_nothing_private_is_published(distributions: Distributions) -> None:
    """Secrets, environments and caches that lie in a checkout stay there."""
    with tarfile.open(distributions.sdist) as archive:
        files = [archive.extractfile(member) for member in archive.getmembers() if member.isfile()]
        assert not any(distributions.treasure in file.read() for file in files if file is not None)
    packed = content(distributions.wheel).values()
    assert not any(distributions.treasure in file for file in packed)
    names = source_names(distributions.sdist) | set(content(distributions.wheel))
    assert not [name for name in names if re.search(r"\.env$|\.pyc$|__pycache__|\.venv|\.stack|\.demo", name)]


def test_the_metadata_is_complete(distributions: Distributions) -> None:
    """Name, version, license, Python, description and classifiers are what pyproject.toml says."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    told = metadata(distributions.wheel)
    assert (told["Name"], told["Version"]) == ("airflow-s3commit", version())
    assert (told["License-Expression"], told["Requires-Python"]) == ("Apache-2.0", ">=3.11")
    assert told["Description-Content-Type"] == "text/markdown"
    assert told.get_all("Classifier") == project["classifiers"]
    assert {"Typing :: Typed", "Framework :: Apache Airflow :: Provider"} <= set(project["classifiers"])
    assert told.get_all("Provides-Extra") is not None
    assert set(told.get_all("Provides-Extra") or ()) == set(project["optional-dependencies"])


def test_it_asks_for_little(distributions: Distributions) -> None:
    """Without an extra, neither Airflow nor Spark nor anything that is not needed everywhere."""
    asked = metadata(distributions.wheel).get_all("Requires-Dist") or []
    plain = {re.match(r"[\w-]+", line)[0] for line in asked if "extra ==" not in line}  # type: ignore[index]
    assert plain == {"boto3", "click", "msgspec", "rich"}


def test_the_entry_points_are_there(distributions: Distributions) -> None:
    """The command, and what Airflow looks for, are registered and lead to something that can be called."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (name,) = (name for name in content(distributions.wheel) if name.endswith("entry_points.txt"))
    told = content(distributions.wheel)[name].decode()
    assert "[apache_airflow_provider]\nprovider_info = airflow_s3commit.provider_info:" in told
    assert "s3commit = airflow_s3commit.cli:main" in told
    for group, entries in project["entry-points"].items():
        for entry, target in entries.items():
            assert re.search(rf"\[{re.escape(group)}\][^\[]*^{entry} = {target}$", told, re.MULTILINE)


def test_nothing_is_built_without_the_jar(tmp_path: Path) -> None:
    """A wheel of a checkout whose jar was not compiled is refused, with the command that compiles it."""
    copy = tmp_path / "checkout"
    for name in ("airflow_s3commit", "pyspark_s3commit"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.jar"))
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    done = try_to_build(copy, tmp_path / "dist", "--wheel", S3COMMIT_WITHOUT_JAR="")
    assert done.returncode != 0
    assert "has no jar, which Spark's own writers need: run `make dist`" in done.stdout + done.stderr
    (copy / "airflow_s3commit" / "spark" / "jvm" / "any.jar").touch()
    build(copy, tmp_path / "dist", "--wheel")
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert "airflow_s3commit/spark/jvm/any.jar" in content(wheel)

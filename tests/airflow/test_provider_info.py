"""The provider entry point."""

from __future__ import annotations

import ast
import json
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

import airflow
import jsonschema
import pytest

from airflow_s3commit import provider_info

INFO = provider_info.get_provider_info()


def test_it_is_what_airflow_expects() -> None:
    """The dictionary satisfies the schema that Airflow checks it against."""
    schema = Path(airflow.__file__).parent / "provider_info.schema.json"
    jsonschema.validate(INFO, json.loads(schema.read_text()))


def test_it_imports_nothing() -> None:
    """The module imports nothing, because Airflow loads it while it is being imported."""
    tree = ast.parse(Path(provider_info.__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert [getattr(node, "module", None) for node in imports] == ["__future__"]


def test_it_is_registered() -> None:
    """The installed package names it as its provider entry point."""
    found = [point for point in entry_points(group="apache_airflow_provider") if "s3commit" in point.value]
    assert [point.load()() for point in found] == [INFO]


@pytest.mark.parametrize("kind", ["operators", "sensors", "hooks", "triggers"])
def test_it_lists_the_modules_of_every_public_class(kind: str) -> None:
    """It names each module that defines a class of the face, once, and no other."""
    face = import_module(f"airflow_s3commit.{kind}")
    public = [getattr(face, name) for name in face.__all__]
    homes = {one.__module__ for one in public if one.__module__.startswith(f"airflow_s3commit.{kind}")}
    listed = [module for entry in INFO[kind] for module in entry["python-modules"]]
    assert sorted(listed) == sorted(homes)


@pytest.mark.parametrize("path", [*INFO["notifications"], *INFO["extra-links"]])
def test_its_classes_are_there(path: str) -> None:
    """Every class it names can be imported."""
    module, _, name = path.rpartition(".")
    assert isinstance(getattr(import_module(module), name), type)

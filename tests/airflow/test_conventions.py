"""What every operator, sensor, trigger, notifier and link has in common, read off the classes."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from importlib import import_module
from typing import TYPE_CHECKING

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from airflow_s3commit import Destination, Job, JobReference, MemoryStore
from airflow_s3commit.exceptions import InvalidOption
from airflow_s3commit.operators import (
    S3CommitCompactOperator,
    S3CommitPublishIcebergOperator,
    S3CommitRegisterPartitionsOperator,
    S3CommitRegisterTableOperator,
    S3CommitSetupOperator,
    S3CommitSparkSubmitOperator,
    S3CommitSweepOperator,
)
from airflow_s3commit.provider_info import get_provider_info
from airflow_s3commit.sensors import S3SuccessManifestSensor
from airflow_s3commit.task_group import s3_commit_task_group
from airflow_s3commit.triggers import S3SuccessManifestEventTrigger, S3SuccessManifestTrigger
from tests.airflow.runs import rendered
from tests.cases import each

if TYPE_CHECKING:
    from collections.abc import Callable

INFO = get_provider_info()

REFERENCE = Job.at(
    MemoryStore(),
    JobReference(
        job_id=(ID := "00000000-0000-4000-8000-000000000001"),
        destination="s3://lake/x/",
        staging=f"s3://lake/x/__magic_job-{ID}/",
    ),
).reference.to_dict()


def listed() -> list[type]:
    """Return every class that the provider lists."""
    modules = [f"airflow_s3commit.{kind}" for kind in ("operators", "sensors", "triggers", "hooks")]
    found = [
        getattr(import_module(module), name) for module in modules for name in import_module(module).__all__
    ]
    for path in (*INFO["notifications"], *INFO["extra-links"]):
        module, _, name = path.rpartition(".")
        found.append(getattr(import_module(module), name))
    return [
        one
        for one in found
        if isinstance(one, type)
        and not issubclass(one, tuple)
        and not one.__module__.startswith("airflow_s3commit.store.")  # documented as the engine is
    ]


CLASSES = listed()


def named(function: Callable[..., object]) -> list[str]:
    """Return the names of a function's own parameters, without those that Airflow alone sees."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if code else ()
    return [name for name in names if name != "self"]


def documented(cls: type) -> str:
    """Return the docstrings of a class and of its bases in this package."""
    ours = [base for base in cls.__mro__ if base.__module__.startswith("airflow_s3commit")]
    return "\n".join(inspect.getdoc(base) or "" for base in ours if base.__doc__)


@each("cls", CLASSES)
def test_every_parameter_is_documented(cls: type) -> None:
    """The class's docstring, or that of a base of ours, says what each parameter is."""
    assert inspect.getdoc(cls)
    ours = [base for base in cls.__mro__ if base.__module__.startswith("airflow_s3commit")]
    wanted = {name for base in ours if "__init__" in vars(base) for name in named(base.__init__)}
    known = set(re.findall(r":param (\w+):", documented(cls)))
    assert wanted - known == set()


@each("cls", CLASSES)
def test_every_templated_field_says_so(cls: type) -> None:
    """A template field of ours is called templated where its parameter is explained, and no other is."""
    entries = re.split(r"^:param (\w+):", documented(cls), flags=re.MULTILINE)[1:]
    told = dict(zip(entries[::2], entries[1::2], strict=True))
    fields = [name for name in getattr(cls, "template_fields", ()) if name in told]
    assert [name for name in fields if "(templated)" not in " ".join(told[name].split())] == []
    others = told.keys() - set(getattr(cls, "template_fields", ()))
    assert [name for name in others if "(templated)" in told[name]] == []


@each("cls", CLASSES)
def test_every_parameter_has_a_type(cls: type) -> None:
    """Constructors and public methods of ours are annotated."""
    for name, function in inspect.getmembers(cls, inspect.isfunction):
        if function.__module__.startswith("airflow_s3commit") and (name == "__init__" or name[0] != "_"):
            missing = set(named(function)) - set(function.__annotations__)
            assert not missing, f"{cls.__name__}.{name}: {missing}"


#: How each class that takes a destination is made, in a DAG file, with nothing else that is optional.
WITH_DESTINATION = {
    S3CommitPublishIcebergOperator: {"task_id": "publish", "table": "lake.flights"},
    S3CommitRegisterTableOperator: {"task_id": "register", "database": "lake", "table": "flights"},
    S3CommitSetupOperator: {"task_id": "setup"},
    S3CommitSweepOperator: {"task_id": "sweep", "staging": None},
    S3CommitCompactOperator: {"task_id": "compact"},
    S3SuccessManifestSensor: {"task_id": "wait", "run_id": "r"},
    S3SuccessManifestTrigger: {"wanted": {}},
    S3SuccessManifestEventTrigger: {},
}


def places(cls: type) -> set[str]:
    """Return the parameters of a class that are destinations."""
    return {"destination", "staging"} & {name for base in cls.__mro__ for name in named(base.__init__)}


def test_a_destination_is_a_uri_or_a_value() -> None:
    """Wherever a destination or a staging prefix is a parameter, a `Destination` means its URI."""
    assert {cls for cls in CLASSES if places(cls)} == WITH_DESTINATION.keys()
    lake, template = Destination.parse("s3://lake/flights/"), "{{ params.where }}"
    for cls, given in WITH_DESTINATION.items():
        for said, kept in ((lake, lake.uri), (lake.uri, lake.uri), (template, template)):
            if cls is S3SuccessManifestEventTrigger and said == template:
                # Airflow renders no argument of a watcher's trigger.
                with pytest.raises(InvalidOption, match="' is not an S3 URI"):
                    cls(destination=template)
                continue
            made = cls(**given | dict.fromkeys(places(cls), said))
            assert {getattr(made, name) for name in places(cls)} == {kept}
    with DAG("lake", schedule=None), s3_commit_task_group(destination=lake, staging=lake) as commit:
        commit.stage(EmptyOperator(task_id="stage"))
    assert (commit.setup.destination, commit.setup.options["staging"]) == (lake.uri, lake.uri)


#: What the file of a DAG must not bring in: clients, tables, Spark, and the parts of this package with them.
HEAVY = ("boto3", "botocore", "msgspec", "pandas", "pyarrow", "pycurl", "pyspark", "requests", "openlineage")
OF_OURS = (
    "airflow_s3commit.store.s3",
    "airflow_s3commit.spark",
    "airflow_s3commit.tables",
    "airflow_s3commit.cli",
)

#: Where the names that DAG files use are.
FOR_DAGS = {cls.__module__ for cls in CLASSES} | {"airflow_s3commit.task_group", "airflow_s3commit.assets"}
SPARK_SUBMIT = "airflow_s3commit.operators.spark_submit"
ITS_PARENT = "airflow.providers.apache.spark.operators.spark_submit"


#: On one worker, the two tests of what is imported start one process.
IN_ONE_PROCESS = pytest.mark.xdist_group("airflow-imports")


@pytest.fixture(scope="module")
def brought_in() -> dict[str, list[str]]:
    """Return what a fresh process imports for each module, beyond Airflow's SDK and earlier modules."""
    modules = [*sorted(FOR_DAGS - {SPARK_SUBMIT}), ITS_PARENT, SPARK_SUBMIT]
    program = (
        "import sys, importlib, json, airflow.sdk\n"
        "for name in airflow.sdk.__all__: getattr(airflow.sdk, name, None)\n"
        "found = {}\n"
        f"for module in {modules!r}:\n"
        "    before = set(sys.modules)\n"
        "    importlib.import_module(module)\n"
        "    found[module] = sorted(sys.modules.keys() - before)\n"
        "print('found', json.dumps(found))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env=dict(os.environ),
        timeout=120,
    )
    return json.loads(done.stdout.rpartition("found ")[2])


def is_heavy(module: str) -> bool:
    """Whether a module is one that DAG files must not bring in, or is inside of one."""
    return module.partition(".")[0] in HEAVY or module.startswith(OF_OURS)


@IN_ONE_PROCESS
def test_importing_any_of_it_is_light(brought_in: dict[str, list[str]]) -> None:
    """No client of a store, no Spark, no table and no provider is imported with what DAG files import."""
    for module in FOR_DAGS - {SPARK_SUBMIT}:
        found = brought_in[module]
        assert [name for name in found if is_heavy(name) or name.startswith("airflow.providers.")] == []


@IN_ONE_PROCESS
def test_the_spark_operator_only_brings_in_its_provider(brought_in: dict[str, list[str]]) -> None:
    """Beside the parent class's own module, which any DAG with it imports, it brings nothing."""
    assert brought_in[SPARK_SUBMIT] == [SPARK_SUBMIT]
    assert [name for name in brought_in[ITS_PARENT] if name.startswith("pyspark")] == []


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (S3CommitSetupOperator, {"destination": 20130105}),
        (S3CommitSetupOperator, {"destination": "s3://lake/x/", "aws_conn_id": 5}),
        (S3CommitSweepOperator, {"destination": "s3://lake/x/", "staging": 5}),
        (S3CommitRegisterPartitionsOperator, {"database": "lake", "table": 2013}),
        (S3CommitRegisterPartitionsOperator, {"database": "lake", "table": "t", "catalog_id": 123456789012}),
        (S3SuccessManifestSensor, {"destination": 5, "run_id": "r"}),
        (S3CommitSparkSubmitOperator, {"job": REFERENCE, "stage": 20130105}),
        (S3CommitSparkSubmitOperator, {"job": REFERENCE, "name": 5}),
    ],
)
def test_a_number_is_no_text(kind, arguments, store, context) -> None:
    """A number that native rendering made of a text option fails the task at once, by the option's name."""
    with pytest.raises(AirflowFailException, match=r"has \d+ where text is meant"):
        rendered(kind, "task", **arguments).execute(context)

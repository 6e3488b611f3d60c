"""The parts that the pages are made of, without Airflow's web server."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from airflow_s3commit.exceptions import InvalidDestination
from airflow_s3commit.plugin.service import read_places
from airflow_s3commit.store.forwarding import total_requests

pytestmark = pytest.mark.airflow


@pytest.mark.parametrize(
    "text",
    [
        "s3://lake/a/ s3://lake/b/",
        "s3://lake/a,s3://lake/b",
        "s3://lake/a/,\n  s3a://lake/b/, s3://lake/a",
        '["s3://lake/a", {"destination": "s3://lake/b/"}]',
    ],
)
def test_destinations_are_read_from_plain_text_and_json(text: str) -> None:
    """Each comes once, in order, with the default connection."""
    assert [(home.destination, home.aws_conn_id) for home in read_places(text)] == [
        ("s3://lake/a/", "aws_default"),
        ("s3://lake/b/", "aws_default"),
    ]


def test_a_destination_may_have_its_own_connection_and_staging() -> None:
    """Without any connection boto3's own chain is used."""
    text = json.dumps(
        [
            {"destination": "s3://lake/a/", "aws_conn_id": None},
            {"destination": "s3://lake/b/", "aws_conn_id": "x", "staging": "s3://lake/b/"},
            {"destination": "s3://lake/c/", "staging": "s3://records/"},
        ]
    )
    assert [(home.aws_conn_id, home.staging) for home in read_places(text)] == [
        (None, None),
        ("x", None),
        ("aws_default", "s3://records/"),
    ]


@pytest.mark.parametrize(
    "text", ["lake/a", "[", "{}", '[{"aws_conn_id": "x"}]', "[1]", '[{"destination": "s3://a/b", "conn": 1}]']
)
def test_other_configurations_are_refused(text: str) -> None:
    """They end in a message, not a traceback."""
    with pytest.raises(InvalidDestination):
        read_places(text)


def test_an_empty_configuration_names_no_destinations() -> None:
    """White space names none either."""
    assert read_places("") == read_places(" \n") == []


def test_airflow_finds_the_plugin_by_its_entry_point() -> None:
    """Providers' own plugins are not loaded by default; an entry point is."""
    (found,) = entry_points(group="airflow.plugins", name="s3commit")
    plugin = found.load()
    assert plugin.name == "s3commit"
    assert {view["destination"] for view in plugin.external_views} == {"nav", "dag_run"}


def test_the_plugin_is_light() -> None:
    """Every task's process loads it; what serves pages and asks stores is loaded by the first request."""
    program = (
        "import sys, airflow.sdk.plugins_manager; before = set(sys.modules)\n"
        "import airflow_s3commit.plugin.entry\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "assert new <= {'airflow', 'airflow_s3commit'}, new\n"
        "assert 'airflow.api_fastapi' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_requests_are_counted_and_nothing_else() -> None:
    """A commit's metrics also hold times and bytes, which are none."""
    metrics = {"complete_ms": 9, "complete_bytes": 10**9, "multipart_upload_completed": 3}
    metrics["object_put_requests"] = 2
    assert total_requests(metrics) == 5
    assert total_requests({"complete_ms": 9}) is None

"""What the command says of publication."""

from __future__ import annotations

import json

from tests.cli.conftest import Lake, RunProgram

DESTINATION = "s3://lake/flights/"


def test_statements_are_shown_and_nothing_is_changed(lake: Lake, run: RunProgram) -> None:
    """A table that is not published has no version afterwards either."""
    shown = run("publish", DESTINATION, "--ddl", "athena", "--table", "lake.flights")
    assert shown.exit_code == 0
    assert f"CREATE EXTERNAL TABLE lake.flights\nLOCATION '{DESTINATION}'" in shown.stdout
    as_json = json.loads(run("publish", DESTINATION, "--ddl", "duckdb", "--json").stdout)
    assert as_json["engine"] == "duckdb"
    assert f"delta_scan('{DESTINATION}')" in as_json["statements"]
    assert not [info.key for info in lake.store.list_objects("lake", "") if "_delta_log" in info.key]


def test_a_name_that_is_none_is_refused(lake: Lake, run: RunProgram) -> None:
    """It would be more than a name in the statement."""
    refused = run("publish", DESTINATION, "--ddl", "trino", "--table", "a;b")
    assert refused.exit_code == 3
    assert "cannot be in a statement" in refused.stderr

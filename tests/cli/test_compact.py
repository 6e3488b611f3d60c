"""Compaction from a terminal."""

from __future__ import annotations

import pyarrow as pa

from airflow_s3commit import write_table
from tests.cli.conftest import RunProgram, plain_json
from tests.protocol.building import Lake


def filled(lake: Lake) -> None:
    """Commit three files of a partition."""
    for number in range(3):
        rows = pa.table({"id": [number], "dt": ["1"]})
        write_table(rows, lake.destination, store=lake.store, conflict_mode="append", partition_by=["dt"])


def test_a_dry_run_names_partitions(lake: Lake, run: RunProgram) -> None:
    """It shows files before and after, and changes nothing."""
    filled(lake)
    before = lake.everything()
    result = run("compact", lake.destination, "--dry-run")
    assert result.exit_code == 0, result.output
    for words in ("dry run: nothing was changed", "dt=1", "1 partition to compact, 0 without a gain"):
        assert words in result.stdout
    assert lake.everything() == before


def test_it_says_what_it_wrote(lake: Lake, run: RunProgram) -> None:
    """The text has files, rows and generation; the JSON has all of the report."""
    filled(lake)
    told = plain_json(run("compact", lake.destination, "--partition", "dt=1", "--json"))
    assert (told["files"], told["rows"], told["generation"]) == (1, 3, 5)
    assert "0 partitions to compact, 1 without a gain" in run("compact", lake.destination).stdout
    filled(lake)
    assert "1 file with 6 rows are generation 9 now" in run("compact", lake.destination).stdout


def test_an_unknown_partition_is_refused(lake: Lake, run: RunProgram) -> None:
    """The error names it, and how a partition is written; so does that of a size."""
    filled(lake)
    result = run("compact", lake.destination, "--partition", "dt=5")
    assert result.exit_code != 0
    assert "'dt=5'" in result.stderr
    assert "not a size" in run("compact", lake.destination, "--target-size", "big").stderr

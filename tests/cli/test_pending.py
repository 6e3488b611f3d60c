"""Pending: whose uploads they are, how old, how big, and what they cost."""

from __future__ import annotations

from tests.cli.conftest import FILES, RunProgram, plain_json
from tests.protocol.building import OURS, Lake

GIB = 1024**3


def test_uploads_are_listed_by_job_and_one_by_one(lake: Lake, run: RunProgram) -> None:
    """Totals first, then each upload; what no job claims is set apart, with the way to sweep it."""
    lake.run_task(lake.set_up(), FILES)
    lake.stray("dt=1/stray.parquet")
    lake.store_clock.advance(2 * 86_400)
    result = run("pending", lake.destination)
    assert result.exit_code == 0
    assert "claimed by no job" in result.stdout
    assert "total" in result.stdout
    assert "dt=1/stray.parquet" in result.stdout
    assert "2 d" in result.stdout
    assert f"s3commit sweep {lake.destination} --older-than 7d" in result.stdout


def test_json_has_exact_ages_bytes_and_costs(lake: Lake, run: RunProgram) -> None:
    """Seconds, bytes, and dollars a month at the list price."""
    lake.run_task(lake.set_up(), FILES)
    lake.stray("dt=1/stray.parquet", b"x" * 1024**2)
    lake.store_clock.advance(100)
    told = plain_json(run("pending", lake.destination, "--json"))
    assert (told["count"], told["bytes"], told["oldest"]) == (3, 1024**2 + 10, 100.0)
    assert told["monthly_cost_usd"] == (1024**2 + 10) / GIB * 0.023
    assert {job["job_id"]: job["count"] for job in told["jobs"]} == {OURS: 2, None: 1}
    assert {upload["job_id"] for upload in told["uploads"]} == {OURS, None}
    assert all(upload["age"] == 100.0 for upload in told["uploads"])


def test_sizes_can_be_left_out(lake: Lake, run: RunProgram) -> None:
    """Without them no upload is asked for its parts, and nothing is invented."""
    lake.stray("dt=1/stray.parquet")
    told = plain_json(run("pending", lake.destination, "--no-bytes", "--json"))
    assert (told["bytes"], told["monthly_cost_usd"], told["uploads"][0]["bytes"]) == (None, None, None)


def test_a_long_list_is_cut_and_says_so(lake: Lake, run: RunProgram) -> None:
    """Only the oldest are shown, unless all are asked for; scripts get all."""
    for number in range(45):
        lake.stray(f"dt=1/stray-{number:02d}.parquet")
        lake.store_clock.advance(1)
    short = run("pending", lake.destination)
    assert "stray-00" in short.stdout
    assert "stray-44" not in short.stdout
    assert "5 newer uploads" in short.stdout
    assert "stray-44" in run("pending", lake.destination, "--all").stdout
    assert len(plain_json(run("pending", lake.destination, "--json"))["uploads"]) == 45


def test_nothing_pending_is_said(lake: Lake, run: RunProgram) -> None:
    """An empty list is an answer too."""
    result = run("pending", lake.destination)
    assert (result.exit_code, result.stdout.startswith("no upload is pending")) == (0, True)
    assert plain_json(run("pending", lake.destination, "--json"))["uploads"] == []

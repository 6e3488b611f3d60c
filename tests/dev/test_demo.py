"""The demo with an unchanged Spark job."""

from __future__ import annotations

from pathlib import Path

from dev.demo.unchanged.prepare import unchanged_dags

DAGS = Path(__file__).parents[2] / "dags"


def test_the_unchanged_job_does_not_know_the_package(tmp_path: Path) -> None:
    """The DAGs are the checkout's, but for the nightly one, whose job names no part of this package."""
    copy = unchanged_dags(tmp_path, DAGS)
    assert {path.name for path in copy.iterdir()} >= {path.name for path in DAGS.glob("*.py")}
    assert 'writer="spark"' in (copy / "nightly_flights_refresh.py").read_text()
    assert "s3commit" not in (copy / "jobs" / "flights.py").read_text()

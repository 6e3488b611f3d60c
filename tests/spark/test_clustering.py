"""Which partitions are spread, without a JVM."""

from __future__ import annotations

from airflow_s3commit.spark.clustering import Arrangement, spread_of


def test_only_partitions_far_beyond_a_fair_share_are_spread() -> None:
    """A partition of many tasks' worth is spread over as many tasks; an even table is left alone."""
    counts = {("big",): 9_000_000, ("b",): 500_000, (None,): 500_000}
    assert spread_of(counts, 8) == {("big",): 8}
    assert spread_of(counts, 4) == {("big",): 4}
    assert spread_of({(str(n),): 10_000_000 for n in range(30)}, 8) == {}
    assert spread_of({("a",): 10}, 8) == {}
    assert spread_of({}, 8) == {}


def test_an_arrangement_describes_itself() -> None:
    """Its text has the clustering, the count, and each partition that was spread."""
    assert str(Arrangement()) == "rows were not clustered"
    clustered = Arrangement(("dt", "r"), clustered=True)
    assert str(clustered) == "rows were clustered by dt, r; skew was not checked"
    counted = Arrangement(("dt",), clustered=True, counted=True)
    assert str(counted) == "rows were clustered by dt; no partition is skewed"
    spread = Arrangement(("dt",), clustered=True, counted=True, spread={"dt=1": 3})
    assert str(spread).endswith("skewed partitions were spread: dt=1 over 3 tasks")

"""Facts read the same on the command line and on the page."""

from __future__ import annotations

from airflow_s3commit import Counts
from airflow_s3commit.present.facts import amount, cost_per_day, cost_per_month


def test_amounts_say_what_is_known() -> None:
    """Rows only where they were counted, one file in the singular."""
    assert amount(Counts(files=1, bytes=2048, rows=1000)) == "1 file, 2.0 KiB, 1,000 rows"
    assert amount(Counts(files=2, bytes=1, rows=None)) == "2 files, 1 B"


def test_costs_are_rounded_to_cents() -> None:
    """A month has the price of the sweep's reports, a day a thirtieth of it; unknown bytes have none."""
    words = {0: "$0.00", 1024**2: "<$0.01", 1024**4: "$23.55", None: "?"}
    assert {stored: cost_per_month(stored) for stored in words} == words
    assert cost_per_day(1024**4) == "$0.79"

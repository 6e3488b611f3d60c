"""Of a bucket's lifecycle rules those count that abort pending uploads below the prefix."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_s3commit.store.lifecycle import abort_days


def rule(days: int | None = 7, status: str = "Enabled", **fields: Any) -> dict[str, Any]:
    """Return a rule as botocore parses it."""
    action = {} if days is None else {"AbortIncompleteMultipartUpload": {"DaysAfterInitiation": days}}
    return {"Status": status, **action, **fields}


@pytest.mark.parametrize(
    ("rules", "days"),
    [
        ([], None),
        ([rule()], 7),
        ([rule(Filter={})], 7),
        ([rule(Prefix="")], 7),
        ([rule(Prefix="flights/")], 7),
        ([rule(Filter={"Prefix": "flights/"})], 7),
        ([rule(Filter={"Prefix": "flights/dt=2013-01-01/"})], None),
        ([rule(Filter={"Prefix": "weather/"})], None),
        ([rule(Filter={"And": {"Prefix": "fl", "Tags": [{"Key": "a", "Value": "b"}]}})], None),
        ([rule(Filter={"Tag": {"Key": "a", "Value": "b"}})], None),
        ([rule(Filter={"ObjectSizeGreaterThan": 1})], None),
        ([rule(status="Disabled")], None),
        ([rule(days=None, Expiration={"Days": 1})], None),
        ([rule(7), rule(3, Filter={"Prefix": "flights/"}), rule(1, Filter={"Prefix": "weather/"})], 3),
    ],
)
def test_days(rules: list[dict[str, Any]], days: int | None) -> None:
    """The shortest enabled rule whose prefix holds all of ours is the one that counts."""
    assert abort_days(rules, "flights/") == days

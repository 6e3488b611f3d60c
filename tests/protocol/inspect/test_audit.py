from __future__ import annotations

import json
from datetime import UTC, date, datetime
from typing import Any

import pytest

from airflow_s3commit.exceptions import AuditFailed, InvalidRecord
from airflow_s3commit.protocol.inspect.audit import AuditRules, audit, commit_before
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.layout import entry_key
from airflow_s3commit.protocol.model.manifest import Manifest
from airflow_s3commit.protocol.model.sealed_job import ColumnStatistics, Counts, SealReference
from tests.cases import each
from tests.protocol.building import OURS, THEIRS, Crash, Lake, an_id

COLUMNS = {
    "carrier": ColumnStatistics(values=90, nulls=10, least="AA", greatest="WN"),
    "day": ColumnStatistics(values=100, nulls=0, least="2013-01-01", greatest="2013-01-02"),
    "delay": ColumnStatistics(values=100, nulls=0, least=-5, greatest=90.5),
    "fare": ColumnStatistics(values=100, nulls=0, least="9.50", greatest="100.00", decimal=True),
    "late": ColumnStatistics(values=100, nulls=0, least=False, greatest=True),
    "left": ColumnStatistics(
        values=100, nulls=0, least="2013-01-01T03:00:00.000000", greatest="2013-01-02T00:00:00.000000"
    ),
    "landed": ColumnStatistics(
        values=9,
        nulls=0,
        least="2013-01-01T03:00:00.000000+00:00",
        greatest="2013-01-02T00:00:00.000000+00:00",
    ),
    "blank": ColumnStatistics(values=0, nulls=100),
    "blob": ColumnStatistics(),
    "half": ColumnStatistics(values=100, nulls=0, least=1),
}


def seal(
    rows: int | None = 100, columns: dict[str, ColumnStatistics] | None = COLUMNS, files: int = 2
) -> SealReference:
    """Return the seal of two partitions, and of one that it empties."""
    counts = Counts(files=files, bytes=2_000, rows=rows, columns=columns)
    parts = {"dt=0": Counts(), "dt=1": Counts(files=1), "dt=2": Counts(files=1)}
    return SealReference(location="s3://lake/seal", sha256="0", tasks=1, counts=counts, partitions=parts)


def before(rows: int | None) -> Manifest:
    """Return the manifest of the commit before."""
    return Manifest(
        job_id="earlier", destination="s3://lake/flights/", conflict_mode="fail", committed=1,
        counts=Counts(files=1, rows=rows), partitions={}, replaced=Counts(), files_sha256="0", within=None,
        schemas=[], context={}, metrics={}, generation=2, tasks=1, rolled_back_to=0,
    )  # fmt: skip


def passes(rules: dict[str, Any], sealed: SealReference | None = None, **known: Any) -> bool:
    """Audit the seal by one rule."""
    report = audit("job", sealed or seal(), AuditRules.from_dict(rules), **known)
    assert len(report.checks) == len(report.failures) + sum(check.passed for check in report.checks)
    json.dumps(report.to_dict())
    return report.passed


@each(
    ("rules", "passed"),
    [
        ({"min_rows": 100}, True),
        ({"min_rows": 101}, False),
        ({"min_rows": "100"}, True),
        ({"max_rows": 100}, True),
        ({"max_rows": 99}, False),
        ({"max_rows": 0}, False),
        ({"min_files": 2}, True),
        ({"min_files": 3}, False),
        ({"max_files": 1}, False),
        ({"min_bytes": 2_001}, False),
        ({"max_bytes": 1_999}, False),
        ({"max_bytes": 2_000}, True),
        ({"partitions": ["dt=1", "dt=2/"]}, True),
        ({"partitions": ["dt=1", "dt=3"]}, False),
        ({"partitions": ["dt=0"]}, False),
        ({"partitions": ["dt=1"], "only_partitions": True}, False),
        ({"partitions": ["dt=1", "dt=2"], "only_partitions": True}, True),
        ({"max_null_ratio": {"carrier": 0.1}}, True),
        ({"max_null_ratio": {"carrier": 0.09}}, False),
        ({"max_null_ratio": {"blank": 1}}, True),
        ({"max_null_ratio": {"blob": 1}}, False),
        ({"max_null_ratio": {"nobody": 1}}, False),
        ({"ranges": {"delay": [-5, 90.5]}}, True),
        ({"ranges": {"delay": ["-5", "100"]}}, True),
        ({"ranges": {"delay": [-4, None]}}, False),
        ({"ranges": {"delay": [None, 90]}}, False),
        ({"ranges": {"day": ["2013-01-01", "2013-01-31"]}}, True),
        ({"ranges": {"day": [date(2013, 1, 1), date(2013, 1, 1)]}}, False),
        ({"ranges": {"day": ["2013-01-01 00:00:00+00:00", datetime(2013, 1, 2, tzinfo=UTC)]}}, True),
        ({"ranges": {"day": ["2013-01-01T00:00:01", None]}}, False),
        ({"ranges": {"late": [False, True]}}, True),
        ({"ranges": {"late": [True, True]}}, False),
        ({"ranges": {"late": [False, False]}}, False),
        ({"ranges": {"fare": [9, "100"]}}, True),
        ({"ranges": {"fare": [10, None]}}, False),
        ({"ranges": {"carrier": [1, 2]}}, False),
        ({"ranges": {"blank": [1, 2]}}, True),
        ({"ranges": {"blob": [None, 2]}}, False),
        ({"ranges": {"half": [None, 2]}}, False),
        ({"min_rows": 1, "max_rows": 50}, False),
    ],
)
def test_every_rule_is_checked_against_the_seal(rules: dict[str, Any], passed: bool) -> None:
    """A value that meets a rule passes, bounds included; one that breaks it, or is not known, fails."""
    assert passes(rules) == passed


@each("column", ["left", "landed"])
@each(
    ("bound", "at_least", "at_most"),
    [
        ("2013-01-01T03:00:00", True, False),
        ("2013-01-01 03:00:00+00:00", True, False),
        ("2013-01-01 06:00:00+00:00", False, False),
        ("2013-01-01T06:00:00-05:00", False, False),
        ("2012-12-31T22:00:00-05:00", True, False),
        ("2012-12-31T21:59:00-05:00", True, False),
        (datetime(2013, 1, 1, 3, tzinfo=UTC), True, False),
        (datetime(2013, 1, 1, 3, 0, 1), False, False),
        ("2013-01-01", True, False),
        ("2013-01-02", False, True),
        ("2013-01-02 00:00:00+00:00", False, True),
        ("2013-01-02T00:00:00", False, True),
        ("2013-01-02T01:00:00+01:00", False, True),
        ("2013-01-02T00:59:59+01:00", False, False),
        (datetime(2013, 1, 2, tzinfo=UTC), False, True),
    ],
)
def test_times_are_compared_as_times(column: str, bound: Any, *, at_least: bool, at_most: bool) -> None:
    """Whatever form a bound has, as Jinja renders it or with an offset; and bounds are inclusive."""
    assert passes({"ranges": {column: [bound, None]}}) == at_least
    assert passes({"ranges": {column: [None, bound]}}) == at_most


@pytest.mark.parametrize("rule", [{"min_rows": 1}, {"max_rows": 1_000}, {"max_drift": 9}])
def test_uncounted_rows_fail(rule: dict[str, Any]) -> None:
    """A gate that cannot see does not open."""
    assert not passes(rule, seal(rows=None), before=before(100))


@pytest.mark.parametrize("rule", [{"max_null_ratio": {"day": 1}}, {"ranges": {"day": [None, "9"]}}])
def test_columns_without_statistics_fail(rule: dict[str, Any]) -> None:
    """The same holds for columns, unless there are no files and so no values."""
    assert not passes(rule, seal(columns=None))
    assert passes(rule, seal(columns=None, rows=0, files=0))


@pytest.mark.parametrize(
    ("earlier", "passed"), [(100, True), (80, True), (134, True), (79, False), (135, False), (0, False)]
)
def test_drift_is_measured_by_the_commit_before(earlier: int, passed: bool) -> None:
    """A change of up to a quarter since the last commit passes, and no more."""
    assert passes({"max_drift": 0.25 if earlier <= 100 else 0.254}, before=before(earlier)) == passed


def test_a_commit_under_way_does_not_hide_the_one_before() -> None:
    """Drift is measured against the last commit while another, dead or alive, has published some files."""
    lake = Lake()
    first = lake.sealed({"dt=1/a.parquet": b"1"}).commit()
    second = lake.sealed({"dt=1/a.parquet": b"2", "dt=1/b.parquet": b"2"}, job_id=THEIRS)
    lake.store.die("complete_upload", nth=2)
    with pytest.raises(Crash):
        second.commit()
    lake.store.rest()
    assert commit_before(lake.store, Destination.parse(lake.destination)) == first


def test_data_older_than_the_log_is_nothing_to_drift_from() -> None:
    """Nobody has counted its rows, so the first job passes, and later ones are compared with jobs."""
    lake = Lake()
    lake.put({"dt=1/older.parquet": b"older"})
    lake.set_up(THEIRS).abort()
    place = Destination.parse(lake.destination)
    assert commit_before(lake.store, place, ["dt=1"]) is None
    first = lake.sealed({"dt=2/a.parquet": b"1"}).commit()
    assert commit_before(lake.store, place, ["dt=1"]) == first


def test_drift_is_measured_by_the_same_partitions() -> None:
    """A refreshed day is compared with its own newest commit, in the partitions that both write."""
    lake = Lake()
    days = {"dt=1/a.parquet": b"1" * 10, "dt=2/a.parquet": b"2" * 90}
    lake.sealed({"dt=1/a.parquet": b"1" * 500}, job_id=an_id("older")).commit()
    backfill = lake.sealed(days).commit()
    nightly = lake.sealed({"dt=3/a.parquet": b"3" * 80}, job_id=THEIRS).commit()
    lake.sealed({"dt=1/a.parquet": b"1"}, job_id=an_id("under way"))
    place = Destination.parse(lake.destination)
    assert commit_before(lake.store, place, ["dt=1"]) == backfill
    assert commit_before(lake.store, place, ["dt=1", "dt=3"]) == nightly
    assert commit_before(lake.store, place, ["dt=4"]) == nightly
    sealed = lake.set_up(an_id("again"))
    lake.run_stage(sealed, {"dt=1/a.parquet": b"1" * 11, "dt=9/a.parquet": b"9" * 1_000})
    reference = sealed.seal()
    report = audit("again", reference, AuditRules.from_dict({"max_drift": 0.1}), before=backfill)
    assert (report.passed, report.compared_with) == (True, OURS)
    assert report.checks[0].found == "0.1: 11 rows, previously 10 in dt=1"
    assert not passes({"max_drift": 0.09}, reference, before=backfill)
    assert not passes({"max_drift": 9}, reference, before=nightly)
    alone = lake.set_up(an_id("alone"))
    lake.run_stage(alone, {"dt=1/a.parquet": b"1" * 10})
    assert passes({"max_drift": 0}, alone.seal(), before=backfill)


@pytest.mark.parametrize("number", [1, 2])
def test_a_commit_that_cannot_be_read_is_an_error(number: int) -> None:
    """Drift is unknown if the log cannot be read, and what is unknown does not pass."""
    lake = Lake()
    lake.sealed({"dt=1/a.parquet": b"1"}).commit()
    place = Destination.parse(lake.destination)
    lake.tamper(entry_key(place, number), cut=1)
    with pytest.raises(InvalidRecord):
        commit_before(lake.store, place)


def test_a_place_without_commits_has_nothing_to_compare_with() -> None:
    """Neither an empty place nor the classic committer's marker is a commit whose rows are known."""
    lake = Lake()
    lake.put({"_SUCCESS": b""})
    assert commit_before(lake.store, Destination.parse(lake.destination)) is None


def test_the_first_commit_has_nothing_to_drift_from() -> None:
    """Without a commit before, drift passes and says why."""
    report = audit("job", seal(), AuditRules.from_dict({"max_drift": 0}))
    assert report.passed
    assert report.checks[0].found == "no previous commit"


@pytest.mark.parametrize(
    "rules", [{}, {"min_row": 1}, {"min_rows": -1}, {"min_rows": "many"}, {"ranges": {"delay": [1]}}], ids=str
)
def test_rules_that_make_no_sense_are_refused(rules: dict[str, Any]) -> None:
    """A typo is an error, not a gate that is always open."""
    with pytest.raises(ValueError, match="audit"):
        AuditRules.from_dict(rules)


def test_a_failed_audit_names_what_failed() -> None:
    """The error names the job, each failed check, what was expected and what was found."""
    report = audit("j-1", seal(), AuditRules.from_dict({"min_rows": 500, "min_files": 1}))
    with pytest.raises(
        AuditFailed, match="j-1 failed 1 of 2 checks: min_rows: expected at least 500, found 100"
    ):
        report.require()

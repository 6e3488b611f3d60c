"""Audits a job before its commit: compares the counts and statistics in its seal with rules."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from airflow_s3commit._format import Column, shortened, time_of
from airflow_s3commit.exceptions import AuditFailed
from airflow_s3commit.protocol.model.codec import Count, Plain
from airflow_s3commit.protocol.model.destination import Destination, check_partition_names, partition_form
from airflow_s3commit.protocol.model.manifest import Manifest
from airflow_s3commit.protocol.model.sealed_job import ColumnStatistics, Counts, SealReference
from airflow_s3commit.protocol.steps.fold import read_table
from airflow_s3commit.protocol.steps.log import read_entry
from airflow_s3commit.store.base import ObjectStore

_Ratio = Annotated[float, Meta(ge=0)]

_ROOT = "the root"


class AuditRules(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rules for a job's output. A rule fails if the number that it needs is unknown.

    Attributes:
        min_rows: Minimum number of rows.
        max_rows: Maximum number of rows.
        min_files: Minimum number of files.
        max_files: Maximum number of files.
        min_bytes: Minimum number of bytes.
        max_bytes: Maximum number of bytes.
        partitions: Partitions that must have data, such as ``dt=2013-01-01``.
        only_partitions: Whether no other partition may have data.
        max_null_ratio: Maximum share of null values by column, from 0 to 1.
        ranges: Minimum and maximum of the values by column, inclusive; None for no bound. Dates and times in
            ISO 8601 are compared as times: a date is its beginning, and a time without a zone is in UTC.
        max_drift: Maximum relative difference between the number of rows and that of `commit_before`, in the
            partitions that both write, or else in all: 0.5 allows half up to one and a half times as many.
    """

    min_rows: Count | None = None
    max_rows: Count | None = None
    min_files: Count | None = None
    max_files: Count | None = None
    min_bytes: Count | None = None
    max_bytes: Count | None = None
    partitions: list[str] = []
    only_partitions: bool = False
    max_null_ratio: dict[str, _Ratio] = {}
    ranges: dict[str, tuple[Any, Any]] = {}
    max_drift: _Ratio | None = None

    @classmethod
    def from_dict(cls, rules: Mapping[str, Any]) -> AuditRules:
        """Return the rules from JSON values by name; numbers may be text.

        Raises:
            ValueError: A rule is unknown or has an invalid value, or there is none.
        """
        try:
            read = msgspec.convert(dict(rules), type=cls, strict=False)
        except msgspec.ValidationError as error:
            raise ValueError(f"audit rules {dict(rules)!r} are not valid: {error}") from error
        read = msgspec.structs.replace(
            read, partitions=check_partition_names(read.partitions, "the audit rule partitions")
        )
        if read == cls():
            raise ValueError("the audit has no rules, so it would pass any output; add at least one")
        return read


class AuditCheck(Struct, frozen=True, kw_only=True):
    """The result of one rule. ``check`` is its name, with its column if it has one."""

    columns = (
        Column("verdict", "passed", lambda passed: "passed" if passed else "FAILED"),
        Column("check", "check"),
        Column("expected", "expected"),
        Column("found", "found"),
    )

    check: str
    passed: bool
    expected: str
    found: str


class AuditReport(Plain, Struct, frozen=True, kw_only=True):
    """The result of an audit.

    Attributes:
        job_id: Id of the audited job.
        checks: The result of each rule.
        compared_with: The job that ``max_drift`` was measured against; None without one.
    """

    derived = ("passed",)

    job_id: str
    checks: list[AuditCheck]
    compared_with: str | None = None

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return not self.failures

    @property
    def failures(self) -> list[AuditCheck]:
        """The checks that failed."""
        return [check for check in self.checks if not check.passed]

    def require(self) -> None:
        """Raise `AuditFailed`, which lists all failed checks, unless every check passed."""
        if self.failures:
            failures = "; ".join(
                f"{check.check}: expected {check.expected}, found {check.found}" for check in self.failures
            )
            raise AuditFailed(
                f"job {self.job_id} failed {len(self.failures)} of {len(self.checks)} checks: {failures}."
                " None of its output is visible; abort the job, or fix the data or the rules and run it again"
            )


def commit_before(
    store: ObjectStore, destination: Destination, partitions: Collection[str] = ()
) -> Manifest | None:
    """Return the commit that a job's output is compared with, for `audit`. Reads only.

    It is the newest commit with files of the table in one of the job's partitions, or else in any partition;
    None if there is none. Data that is older than the log does not count: its rows are not known.

    Raises `InvalidRecord` if an entry of the log is damaged.
    """
    table = read_table(store, destination)
    commits = {one: names for one, names in table.commits().items() if table.sources[one].job_id}
    touching = [one for one, names in commits.items() if not {*partitions}.isdisjoint(names)]
    number = max(touching or commits, default=0)
    return Manifest.of(read_entry(store, destination, number).entry) if number else None


def audit(
    job_id: str, sealed: SealReference, rules: AuditRules, *, before: Manifest | None = None
) -> AuditReport:
    """Compare a job's sealed output with rules. Sends no requests.

    Args:
        job_id: Id of the job, for the report.
        sealed: The job's seal, with counts, partitions and column statistics.
        rules: The rules.
        before: The result of `commit_before`; only ``max_drift`` needs it.

    Returns:
        The report; call its `AuditReport.require` to raise an error for failed checks.
    """
    checks = [
        *_sizes(sealed.counts, rules),
        *_partitions(sealed.partitions, rules),
        *_nulls(sealed.counts, rules),
        *_ranges(sealed.counts, rules),
        *_drift(sealed, rules, before),
    ]
    compared = before.job_id if before is not None and rules.max_drift is not None else None
    return AuditReport(job_id=job_id, checks=checks, compared_with=compared)


def _sizes(counts: Counts, rules: AuditRules) -> Iterator[AuditCheck]:
    for name in ("rows", "files", "bytes"):
        found = getattr(counts, name)
        if (least := getattr(rules, f"min_{name}")) is not None:
            yield _check(f"min_{name}", found is not None and found >= least, f"at least {least}", found)
        if (most := getattr(rules, f"max_{name}")) is not None:
            yield _check(f"max_{name}", found is not None and found <= most, f"at most {most}", found)


def _partitions(partitions: Mapping[str, Counts], rules: AuditRules) -> Iterator[AuditCheck]:
    present = {partition_form(name): name or _ROOT for name, counts in partitions.items() if counts.files}
    expected = {partition_form(name): name or _ROOT for name in rules.partitions}
    if expected:
        missing = sorted(expected[form] for form in expected.keys() - present)
        found = f"no data for {shortened(missing)}" if missing else "data for all of them"
        yield _check("partitions", not missing, shortened(sorted(expected.values())), found)
    if rules.only_partitions:
        others = sorted(present[form] for form in present.keys() - expected)
        found = f"data for {shortened(others)}" if others else "no other partitions"
        yield _check("only_partitions", not others, "no other partitions", found)


def _nulls(counts: Counts, rules: AuditRules) -> Iterator[AuditCheck]:
    for column, most in rules.max_null_ratio.items():
        ratio = _null_ratio(counts, column)
        found = None if ratio is None else f"{ratio:.4g}"
        yield _check(
            f"max_null_ratio[{column}]", ratio is not None and ratio <= most, f"at most {most:g}", found
        )


def _null_ratio(counts: Counts, column: str) -> float | None:
    """Return the share of null values in a column; None if unknown."""
    if not counts.files:
        return 0.0
    known = (counts.columns or {}).get(column)
    if known is None or known.nulls is None:
        return None
    # If the writer did not count the values, the column is flat: each row has one value or null.
    total = counts.rows if known.values is None else known.values + known.nulls
    if total is None:
        return None
    return known.nulls / total if total else 0.0


def _ranges(counts: Counts, rules: AuditRules) -> Iterator[AuditCheck]:
    for column, (least, greatest) in rules.ranges.items():
        expected = f"{'…' if least is None else least} to {'…' if greatest is None else greatest}"
        known = (counts.columns or {}).get(column)
        if not counts.files or (known is not None and known.values == 0):
            yield _check(f"ranges[{column}]", True, expected, "no values")
        elif known is None or known.least is None or known.greatest is None:
            yield _check(f"ranges[{column}]", False, expected, None)
        else:
            inside = _at_most(least, known.least, known) and _at_most(known.greatest, greatest, known)
            yield _check(f"ranges[{column}]", inside, expected, f"{known.least} to {known.greatest}")


def _at_most(lower: Any, upper: Any, column: ColumnStatistics) -> bool:
    """Compare a bound with a column's value; return False if they cannot be compared."""
    if lower is None or upper is None:
        return True
    one, other = (value.isoformat() if hasattr(value, "isoformat") else value for value in (lower, upper))
    if isinstance(one, bool) and isinstance(other, bool):
        return one <= other
    if isinstance(one, str) and isinstance(other, str) and not column.decimal:
        try:
            return time_of(one) <= time_of(other)
        except ValueError:
            return one <= other
    try:
        return Decimal(str(one)) <= Decimal(str(other))
    except InvalidOperation:
        return False


def _drift(sealed: SealReference, rules: AuditRules, before: Manifest | None) -> Iterator[AuditCheck]:
    if rules.max_drift is None:
        return
    expected = f"at most {rules.max_drift:g}"
    if before is None:
        yield _check("max_drift", True, expected, "no previous commit")
        return
    rows, earlier, where = _comparable_rows(sealed, before)
    if rows is None or earlier is None:
        yield _check("max_drift", False, expected, None)
    else:
        drift = abs(rows - earlier) / earlier if earlier else float(rows > 0)
        found = f"{drift:.4g}: {rows} rows, previously {earlier}{where}"
        yield _check("max_drift", drift <= rules.max_drift, expected, found)


def _comparable_rows(sealed: SealReference, before: Manifest) -> tuple[int | None, int | None, str]:
    """Return the rows of job and commit in the partitions that both write, or all, and these as text."""
    shared = sealed.partitions.keys() & before.partitions.keys()
    if not shared or shared == sealed.partitions.keys() == before.partitions.keys():
        return sealed.counts.rows, before.counts.rows, ""
    rows, earlier = (
        Counts.total(partitions[name].without_columns() for name in shared).rows
        for partitions in (sealed.partitions, before.partitions)
    )
    return rows, earlier, f" in {shortened(sorted(name or _ROOT for name in shared))}"


def _check(name: str, passed: bool, expected: str, found: object) -> AuditCheck:
    return AuditCheck(
        check=name, passed=passed, expected=expected, found="unknown" if found is None else str(found)
    )

"""Audit: is what a job is about to make visible what was expected? Judged by its seal alone, as a value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, Struct

from airflow_s3commit.exceptions import AuditFailed, ForeignRecord, InvalidRecord, NoSuchKey, S3CommitError
from airflow_s3commit.protocol.metadata.manifests import latest_job, read_manifest
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.limits import Count
from airflow_s3commit.protocol.model.manifest import ManifestRecord
from airflow_s3commit.protocol.model.seal import Counts, SealReference
from airflow_s3commit.protocol.model.statistics import ColumnStatistics
from airflow_s3commit.store.base import ObjectStore

_Ratio = Annotated[float, Meta(ge=0)]

#: The last commit to a destination: its manifest; the error where it cannot be read; None if there is none.
CommitBefore: TypeAlias = ManifestRecord | S3CommitError | None


class AuditRules(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is expected of a job's output. What is not known of it counts as failed.

    Attributes:
        min_rows: At least so many rows.
        max_rows: At most so many.
        min_files: At least so many files.
        max_files: At most so many.
        min_bytes: At least so many bytes.
        max_bytes: At most so many.
        partitions: Each of these partitions has data, such as ``dt=2013-01-01``.
        only_partitions: No other partition has.
        max_null_ratio: Of each of these columns, at most this part of the values is null, from 0 to 1.
        ranges: All values of each of these columns lie between two bounds, inclusive; None leaves one open.
            Dates and times are compared as ISO 8601 text, in the column's own form.
        max_drift: Against the commit before, the rows differ at most by this part: 0.5 is half as many up to
            half as many again.

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
        """Read them from plain values; numbers may be written as text.

        Raises:
            ValueError: One is not known, or makes no sense.

        """
        try:
            read = msgspec.convert(dict(rules), type=cls, strict=False)
        except msgspec.ValidationError as error:
            raise ValueError(f"{dict(rules)!r} are no audit rules: {error}") from error
        if read == cls():
            raise ValueError("the audit has no rule: it would pass anything")
        return read


class AuditCheck(Struct, frozen=True, kw_only=True):
    """One expectation and what was found."""

    check: str
    passed: bool
    expected: str
    found: str


class AuditReport(Struct, frozen=True, kw_only=True):
    """What an audit found. ``compared_with`` is the job of the commit that drift was measured against."""

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

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain | {"passed": self.passed}

    def require(self) -> None:
        """Do nothing if every check passed.

        Raises:
            AuditFailed: One did not.

        """
        if self.failures:
            said = "; ".join(
                f"{one.check}: expected {one.expected}, found {one.found}" for one in self.failures
            )
            raise AuditFailed(
                f"job {self.job_id} failed {len(self.failures)} of {len(self.checks)} checks: {said}. Nothing"
                " of it is visible; abort it, or mend the data or the rules and run it again"
            )


def commit_before(store: ObjectStore, destination: Destination) -> CommitBefore:
    """Return what a job's output is compared with: the last commit to its destination.

    A destination that only other committers wrote to has none. A commit that was made and cannot be read is
    returned as the error, so that `audit` fails what depends on it. Repeatable; changes nothing.

    Raises:
        S3CommitError: The store could not be asked.

    """
    try:
        job_id = latest_job(store, destination)
    except (NoSuchKey, ForeignRecord):
        return None
    except InvalidRecord as error:
        return error
    try:
        return read_manifest(store, destination, job_id)
    except ForeignRecord:
        return None
    except (NoSuchKey, InvalidRecord) as error:
        return error


def audit(
    job_id: str, sealed: SealReference, rules: AuditRules, *, before: CommitBefore = None
) -> AuditReport:
    """Hold a job's sealed output against what is expected of it. Asks nothing of the store.

    Args:
        job_id: The job, for the report.
        sealed: Its seal: counts, partitions, and the columns' statistics.
        rules: What is expected.
        before: What `commit_before` returned; only ``max_drift`` asks for it.

    """
    checks = [
        *_sizes(sealed.counts, rules),
        *_partitions(sealed.partitions, rules),
        *_nulls(sealed.counts, rules),
        *_ranges(sealed.counts, rules),
        *_drift(sealed.counts, rules, before),
    ]
    compared = before.job_id if isinstance(before, ManifestRecord) and rules.max_drift is not None else None
    return AuditReport(job_id=job_id, checks=checks, compared_with=compared)


def _sizes(counts: Counts, rules: AuditRules) -> Iterator[AuditCheck]:
    limits = (
        ("rows", counts.rows, rules.min_rows, rules.max_rows),
        ("files", counts.files, rules.min_files, rules.max_files),
        ("bytes", counts.bytes, rules.min_bytes, rules.max_bytes),
    )
    for name, found, least, most in limits:
        if least is not None:
            yield _check(f"min_{name}", found is not None and found >= least, f"at least {least}", found)
        if most is not None:
            yield _check(f"max_{name}", found is not None and found <= most, f"at most {most}", found)


def _partitions(partitions: Mapping[str, Counts], rules: AuditRules) -> Iterator[AuditCheck]:
    present = {name for name, counts in partitions.items() if counts.files}
    expected = {name.strip("/") for name in rules.partitions}
    if expected:
        missing = sorted(expected - present)
        found = f"no data for {_few(missing)}" if missing else "data for all of them"
        yield _check("partitions", not missing, _few(sorted(expected)), found)
    if rules.only_partitions:
        others = sorted(present - expected)
        found = f"data for {_few(others)}" if others else "no others"
        yield _check("only_partitions", not others, "no others", found)


def _nulls(counts: Counts, rules: AuditRules) -> Iterator[AuditCheck]:
    for column, most in rules.max_null_ratio.items():
        ratio = _null_ratio(counts, column)
        found = None if ratio is None else f"{ratio:.4g}"
        yield _check(
            f"max_null_ratio[{column}]", ratio is not None and ratio <= most, f"at most {most:g}", found
        )


def _null_ratio(counts: Counts, column: str) -> float | None:
    """Return which part of a column is null; None if that is not known."""
    if not counts.files:
        return 0.0
    known = (counts.columns or {}).get(column)
    if known is None or known.nulls is None:
        return None
    # Where a writer did not count the values, every row has one, or null.
    total = counts.rows if known.values is None else known.values + known.nulls
    if total is None:
        return None
    return known.nulls / total if total else 0.0


def _ranges(counts: Counts, rules: AuditRules) -> Iterator[AuditCheck]:
    for column, (least, greatest) in rules.ranges.items():
        expected = f"{'…' if least is None else least} to {'…' if greatest is None else greatest}"
        known = (counts.columns or {}).get(column)
        empty = not counts.files or (known is not None and known.values == 0)
        if empty:
            yield _check(f"ranges[{column}]", True, expected, "no values")
        elif known is None or known.least is None or known.greatest is None:
            yield _check(f"ranges[{column}]", False, expected, None)
        else:
            inside = _at_most(least, known.least, known) and _at_most(known.greatest, greatest, known)
            yield _check(f"ranges[{column}]", inside, expected, f"{known.least} to {known.greatest}")


def _at_most(lower: Any, upper: Any, column: ColumnStatistics) -> bool:
    """Compare a bound with a column's value; bounds that cannot be compared do not hold."""
    if lower is None or upper is None:
        return True
    one, other = (value.isoformat() if hasattr(value, "isoformat") else value for value in (lower, upper))
    if isinstance(one, str) and isinstance(other, str) and not column.decimal:
        return one <= other
    try:
        return Decimal(str(one)) <= Decimal(str(other))
    except InvalidOperation:
        return False


def _drift(counts: Counts, rules: AuditRules, before: CommitBefore) -> Iterator[AuditCheck]:
    if rules.max_drift is None:
        return
    expected = f"at most {rules.max_drift:g}"
    if before is None:
        yield _check("max_drift", True, expected, "no commit before")
    elif isinstance(before, S3CommitError):
        yield _check("max_drift", False, expected, f"a commit before that cannot be read: {before}")
    elif counts.rows is None or before.counts.rows is None:
        yield _check("max_drift", False, expected, None)
    else:
        earlier = before.counts.rows
        drift = abs(counts.rows - earlier) / earlier if earlier else float(counts.rows > 0)
        found = f"{drift:.4g}: {counts.rows} rows after {earlier}"
        yield _check("max_drift", drift <= rules.max_drift, expected, found)


def _check(name: str, passed: bool, expected: str, found: object) -> AuditCheck:
    said = "nothing that is known" if found is None else str(found)
    return AuditCheck(check=name, passed=passed, expected=expected, found=said)


def _few(names: list[str]) -> str:
    shown = ", ".join(name or "the root" for name in names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown  # noqa: PLR2004

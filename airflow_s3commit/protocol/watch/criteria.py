"""The criteria that a manifest must meet, and the outcomes of a search for one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from airflow_s3commit._format import moment
from airflow_s3commit.exceptions import AccessDenied, NoSuchBucket, Refused, Unavailable

if TYPE_CHECKING:
    from airflow_s3commit.protocol.model.manifest import ManifestRecord

#: Outcome of a search. ``absent``: there is no manifest. ``stale``: there are manifests, but none matches.
#: ``empty``: ``_SUCCESS`` has 0 bytes, as written by Hadoop's classic committers. ``half-written``: truncated
#: JSON. ``foreign``: a marker of another program. The others are errors: ``missing-bucket``,
#: ``no-permission``, ``refused`` (an invalid request), ``unavailable`` (temporary), ``error``.
Outcome: TypeAlias = Literal[
    "found",
    "absent",
    "stale",
    "empty",
    "half-written",
    "foreign",
    "missing-bucket",
    "no-permission",
    "refused",
    "unavailable",
    "error",
]

#: Outcomes that a later search does not change.
FINAL: Final[frozenset[Outcome]] = frozenset({"missing-bucket", "no-permission", "refused"})


class SearchResult(NamedTuple):
    """Result of one search.

    Attributes:
        manifest: The matching manifest; None if there is none yet.
        seen: Description of what the search found, for logs.
        outcome: The same as one of a fixed set of words.

    """

    manifest: ManifestRecord | None
    seen: str
    outcome: Outcome


def outcome_of(error: Exception) -> Outcome:
    """Return the outcome of a search that ended in an error."""
    if isinstance(error, NoSuchBucket):
        return "missing-bucket"
    if isinstance(error, AccessDenied):
        return "no-permission"
    if isinstance(error, Refused):
        return "refused"
    return "unavailable" if isinstance(error, Unavailable) else "error"


@dataclass(frozen=True, slots=True)
class Criteria:
    """Conditions that a manifest must all meet.

    Attributes:
        job_id: Id of the job that committed; None for any.
        context: Entries that the job's context has (``dag_id``, ``run_id``, ``partition_key``, …).
        newer_than: Earliest commit time, exclusive: seconds since the epoch by the committer's clock.
        min_files: Minimum number of files.
        partitions: Partitions that the job wrote, such as ``dt=2013-01-01``.

    """

    job_id: str | None = None
    context: Mapping[str, str] = field(default_factory=dict)
    newer_than: float | None = None
    min_files: int = 0
    partitions: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        *,
        job: Any = None,
        run_id: str | None = None,
        context: Mapping[str, Any] | None = None,
        newer_than: datetime | str | None = None,
        partitions: Iterable[str] | str | None = None,
        min_files: int | str | None = None,
    ) -> Criteria:
        """Build criteria from user input, in which rendered templates may be text in place of other types.

        Args:
            job: A job reference or a job id.
            run_id: The Airflow run that committed.
            context: Further entries of the job's context.
            newer_than: A datetime or ISO 8601 text; UTC without a time zone.
            partitions: One partition or several.
            min_files: Minimum number of files.

        Raises:
            ValueError: A condition is given but empty, as a template without a value renders: without it any
                manifest could match. Or ``newer_than`` is not a time, or ``min_files`` is not a number.

        """
        job_id = job.get("job_id") if isinstance(job, Mapping) else job
        names = [partitions] if isinstance(partitions, str) else partitions
        conditions = {
            "job": None if job is None else [job_id],
            "run_id": None if run_id is None else [run_id],
            "context": None if context is None else list(context.values()),
            "newer_than": None if newer_than is None else [newer_than],
            "partitions": None if names is None else list(names),
            "min_files": None if min_files is None else [min_files],
        }
        for name, values in conditions.items():
            if values is not None and (not values or any(map(_is_empty, values))):
                raise ValueError(
                    f"the condition {name} is empty; any manifest could match without it. Look at the"
                    " rendered template, and at the task whose XCom it reads"
                )
        facts = {name: str(value) for name, value in (context or {}).items()}
        if run_id is not None:
            facts["run_id"] = run_id
        return cls(
            job_id=job_id,
            context=facts,
            newer_than=_seconds(newer_than),
            min_files=int(min_files or 0),
            partitions=frozenset(name.strip("/") for name in names or ()),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the criteria as JSON values, from which `from_dict` restores them in another process."""
        return {**asdict(self), "partitions": sorted(self.partitions)}

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> Criteria:
        """Build criteria from the result of `to_dict`."""
        return cls(**{**mapping, "partitions": frozenset(mapping.get("partitions", ()))})

    def mismatch(self, manifest: ManifestRecord) -> str | None:
        """Return the first criterion that a manifest does not meet, as text; None if it meets all."""
        if self.job_id is not None and manifest.job_id != self.job_id:
            return f"is from job {manifest.job_id}, not {self.job_id}"
        for name, value in self.context.items():
            found = manifest.context.get(name)
            if found != value:
                return f"has {name} {found!r}, not {value!r}"
        if self.newer_than is not None and manifest.committed <= self.newer_than * 1000:
            newer_than = moment(round(self.newer_than * 1000))
            return f"was committed at {moment(manifest.committed)}, not after {newer_than}"
        if missing := self.partitions - manifest.partitions.keys():
            return f"has no data for {', '.join(sorted(missing)[:3])}"
        if manifest.counts.files < self.min_files:
            return f"lists {manifest.counts.files} files, fewer than {self.min_files}"
        return None


def _is_empty(value: Any) -> bool:
    """Return whether a value is None, or text that a template without a value renders to."""
    return value is None or (isinstance(value, str) and value.strip() in {"", "None"})


def _seconds(moment: datetime | str | None) -> float | None:
    if moment is None:
        return None
    try:
        known = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    except ValueError as error:
        raise ValueError(f"the condition newer_than is {moment!r}; give a time in ISO 8601") from error
    return (known if known.tzinfo else known.replace(tzinfo=UTC)).timestamp()

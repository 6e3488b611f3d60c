"""Which manifest is *the* manifest: what a waiter asks for, and what looking for it may come to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from airflow_s3commit.exceptions import AccessDenied, NoSuchBucket, Refused, Unavailable

if TYPE_CHECKING:
    from airflow_s3commit.protocol.records import ManifestRecord

__all__ = ["FINAL", "Look", "Outcome", "Wanted", "outcome_of"]

#: What a look came to. ``absent``: nothing is there. ``stale``: manifests are, but not the wanted one.
#: ``empty``: a marker of 0 bytes, a classic committer's. ``half-written``: JSON that is cut short.
#: ``foreign``: another program's marker. The others are errors: ``missing-bucket``, ``no-permission``,
#: ``refused`` (the request itself is wrong), ``unavailable`` (look again later), ``error``.
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

#: Outcomes that waiting does not mend.
FINAL: Final[frozenset[Outcome]] = frozenset({"missing-bucket", "no-permission", "refused"})


class Look(NamedTuple):
    """What one look found.

    Attributes:
        manifest: The wanted manifest, if it is there.
        seen: What was seen, in words.
        outcome: The same in one word.

    """

    manifest: ManifestRecord | None
    seen: str
    outcome: Outcome


def outcome_of(error: Exception) -> Outcome:
    """Return what an error makes of a look."""
    if isinstance(error, NoSuchBucket):
        return "missing-bucket"
    if isinstance(error, AccessDenied):
        return "no-permission"
    if isinstance(error, Refused):
        return "refused"
    return "unavailable" if isinstance(error, Unavailable) else "error"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a manifest must be.

    Attributes:
        job_id: It is of this job.
        context: Its run has all of these facts (``dag_id``, ``run_id``, ``partition_key``, …).
        newer_than: It was committed after this time, in seconds since the epoch by the committer's clock.
        min_files: It lists at least this many files.
        partitions: It brought data to all of these partitions, such as ``dt=2013-01-01``.

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
    ) -> Wanted:
        """Read it from what users give, after templates are rendered: text counts as the value it writes.

        Args:
            job: A job reference or a job id.
            run_id: The run that committed.
            context: Further facts of that run.
            newer_than: A datetime or ISO 8601 text; without a time zone it is UTC.
            partitions: One partition or several.
            min_files: The least number of files.

        """
        facts = {name: str(value) for name, value in (context or {}).items()}
        if run_id:
            facts["run_id"] = run_id
        job_id = job["job_id"] if isinstance(job, Mapping) else job
        names = [partitions] if isinstance(partitions, str) else list(partitions or [])
        return cls(
            job_id=job_id or None,
            context=facts,
            newer_than=_seconds(newer_than),
            min_files=int(min_files or 0),
            partitions=frozenset(name.strip("/") for name in names),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON values, for another process."""
        return {
            "job_id": self.job_id,
            "context": dict(self.context),
            "newer_than": self.newer_than,
            "min_files": self.min_files,
            "partitions": sorted(self.partitions),
        }

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> Wanted:
        """Read it from what `to_dict` returned."""
        return cls(**{**mapping, "partitions": frozenset(mapping.get("partitions", ()))})

    def shortcoming(self, manifest: ManifestRecord) -> str | None:
        """Say what keeps a manifest from being the one that is wanted; None if nothing does."""
        if self.job_id is not None and manifest.job_id != self.job_id:
            return f"is of job {manifest.job_id}, not {self.job_id}"
        for name, value in self.context.items():
            found = manifest.context.get(name)
            if found != value:
                return f"has {name} {found!r}, not {value!r}"
        if self.newer_than is not None and manifest.committed <= self.newer_than * 1000:
            return f"was committed at {manifest.committed} ms, not after {self.newer_than * 1000:.0f} ms"
        if missing := self.partitions - manifest.partitions.keys():
            return f"has no data for {', '.join(sorted(missing)[:3])}"
        if manifest.counts.files < self.min_files:
            return f"lists {manifest.counts.files} files, fewer than {self.min_files}"
        return None


def _seconds(moment: datetime | str | None) -> float | None:
    if not moment:
        return None
    known = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    return (known if known.tzinfo else known.replace(tzinfo=UTC)).timestamp()

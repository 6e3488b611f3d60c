"""When a job came where, by the store's clock: told by when its records were written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

from msgspec import Struct

from airflow_s3commit.exceptions import NoSuchKey, S3CommitError
from airflow_s3commit.protocol.context import JobContext
from airflow_s3commit.protocol.stage import stage_attempts
from airflow_s3commit.protocol.survey import JobSummary
from airflow_s3commit.store.base import Head, ObjectInfo

__all__ = ["Milestone", "MilestoneName", "milestones"]

MilestoneName: TypeAlias = Literal[
    "open", "stage sealed", "sealed", "planned", "committing", "committed", "aborting", "aborted"
]

_ORDER: tuple[MilestoneName, ...] = (
    "open",
    "stage sealed",
    "sealed",
    "planned",
    "committing",
    "committed",
    "aborting",
    "aborted",
)

#: Stages whose seals are looked at.
_STAGES = 100


class Milestone(Struct, frozen=True, kw_only=True):
    """A moment in the life of a job.

    Attributes:
        name: What it came to.
        at: When, in seconds since the epoch; by the store's clock, except where ``estimated``.
        what: The stage attempt, of ``stage sealed``.
        estimated: It is told by the clock of the machine that committed the job.

    """

    name: MilestoneName
    at: float
    what: str | None = None
    estimated: bool = False


def milestones(context: JobContext, summary: JobSummary) -> list[Milestone]:
    """Find out when a job came where, as far as its records still tell, earliest first.

    A job that is committed and cleaned up has only its manifest left: when it was committed, and from the
    time that completing took when it began to.

    Args:
        context: The job.
        summary: What a survey says of it.

    Raises:
        S3CommitError: The store could not be asked.

    """
    if summary.staging is None:
        return list(_from_manifest(summary))
    # Stores tell times in whole seconds: what happened within one is put in the order that it must have.
    return sorted(
        _from_records(context, summary),
        key=lambda milestone: (int(milestone.at), _ORDER.index(milestone.name)),
    )


def _from_records(context: JobContext, summary: JobSummary) -> Iterator[Milestone]:
    layout = context.layout
    asked: list[tuple[tuple[MilestoneName, str | None], str]] = [
        (("open", None), layout.job),
        (("sealed", None), layout.seal),
        (("planned", None), layout.plan),
    ]
    if summary.state in ("committing", "committed", "aborting", "aborted"):
        asked.append(((summary.state, None), layout.state))
    for stage, attempt, sealed in list(stage_attempts(context))[:_STAGES]:
        if sealed:
            asked.append((("stage sealed", f"{stage}-{attempt}"), layout.stage_seal(stage, attempt)))
    calls = [(tag, Head(context.staging_bucket, key)) for tag, key in asked]
    for (name, what), outcome in context.store.perform(calls):
        if isinstance(outcome, S3CommitError) and not isinstance(outcome, NoSuchKey):
            raise outcome
        if isinstance(outcome, ObjectInfo):
            yield Milestone(name=name, at=outcome.modified, what=what)


def _from_manifest(summary: JobSummary) -> Iterator[Milestone]:
    if summary.since is None or summary.state not in ("committed", "aborted"):
        return
    ended = summary.since / 1000
    took = summary.manifest.metrics.get("complete_ms") if summary.manifest is not None else None
    if took is not None:
        yield Milestone(name="committing", at=ended - took / 1000, estimated=True)
    yield Milestone(name=summary.state, at=ended, estimated=True)

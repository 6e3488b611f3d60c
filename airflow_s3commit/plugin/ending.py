"""Ending a job from the page: what a person may ask for in each state, and doing it."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from airflow_s3commit.cli.wording import amount, several
from airflow_s3commit.plugin.places import Place
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.records import JobReference, ManifestRecord
from airflow_s3commit.protocol.signing import Signer
from airflow_s3commit.protocol.survey import JobSummary
from airflow_s3commit.store.base import ObjectStore

__all__ = ["STEPS", "Offer", "Step", "end_job", "offers"]

Step: TypeAlias = Literal["abort", "recover", "rollback"]

STEPS: tuple[Step, ...] = ("abort", "recover", "rollback")

#: Seconds to wait for another job's commit lock. A person waits, and may ask again.
_LOCK_WAIT = 5.0


class Offer(NamedTuple):
    """Something that may be done about a job.

    Attributes:
        step: What.
        label: The words on the button.
        effect: What it does, for whoever is asked whether they are sure.
        destroys: Whether it throws work away.

    """

    step: Step
    label: str
    effect: str
    destroys: bool


_ABORT = Offer(
    "abort",
    "Abort the job",
    "All of its pending uploads are discarded, and none of its output becomes visible. Tasks that still"
    " write for it will fail. This cannot be undone.",
    True,
)
_GO_ON = Offer(
    "recover",
    "Go on with the commit",
    "What is left of its uploads is completed, and its output becomes visible. If its own process is alive"
    " after all, both work together: nothing is committed twice.",
    False,
)
_UNDO = Offer(
    "rollback",
    "Undo the commit",
    "What it has published is taken back, and its pending uploads are discarded. It is refused if old data"
    " was overwritten or deleted already.",
    True,
)
_FINISH = Offer("recover", "Finish what is left", "What its last process left undone is done.", False)


def offers(summary: JobSummary) -> list[Offer]:
    """Return what may be done about a job in the state that it is in."""
    if summary.staging is None:
        return []
    match summary.state:
        case "committing":
            return [_GO_ON, _UNDO]
        case "committed" | "aborting" | "aborted":
            return [_FINISH]
        case _:
            return [_ABORT]


def end_job(
    store: ObjectStore,
    place: Place,
    summary: JobSummary,
    step: Step,
    reason: str,
    *,
    signer: Signer | None = None,
) -> str:
    """End a job, and return in words what was done. Run again: the same, or nothing.

    Args:
        store: Where everything is.
        place: The job's destination.
        summary: The job; something of it is left.
        step: What to do.
        reason: Why, for the record.
        signer: Who signs the records of jobs; None if nobody does.

    Raises:
        S3CommitError: As `airflow_s3commit.protocol.job.Job.abort` and ``recover``.

    """
    assert summary.staging is not None
    reference = JobReference(job_id=summary.job_id, destination=place.uri, staging=summary.staging)
    job = Job.at(store, reference, lock_wait=_LOCK_WAIT, signer=signer)
    ended = (
        job.abort(reason=reason)
        if step == "abort"
        else job.recover(rollback=step == "rollback", reason=reason)
    )
    if isinstance(ended, ManifestRecord):
        return f"It is committed: {amount(ended.counts)} in {several(len(ended.partitions), 'partition')}."
    words = f"It is aborted: {several(ended.uploads, 'upload')} discarded"
    return f"{words}, {several(ended.objects, 'object')} taken back." if ended.objects else f"{words}."

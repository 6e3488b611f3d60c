"""What to do next: after an error, and about a job in a given state."""

from __future__ import annotations

from collections.abc import Callable

from airflow_s3commit.cli.session import Session
from airflow_s3commit.cli.wording import age
from airflow_s3commit.exceptions import (
    AccessDenied,
    AlreadyCommitted,
    DestinationChanged,
    DestinationNotEmpty,
    DuplicateOutput,
    InvalidRecord,
    JobClosed,
    JobFailed,
    LockHeld,
    NoSuchBucket,
    NoSuchJob,
    NotReversible,
    OutcomeUnknown,
    S3CommitError,
    StoreUnsuitable,
    Unavailable,
)
from airflow_s3commit.protocol.survey import JobSummary

__all__ = ["next_for_job", "next_step"]


def next_step(error: S3CommitError, session: Session) -> str | None:
    """Return what to do after an error, with the command to paste where there is one."""
    for kind, advise in _AFTER:
        if isinstance(error, kind):
            return advise(session)
    return None


def next_for_job(summary: JobSummary, session: Session) -> str:
    """Return what to do about a job in the state that it is in."""
    job_id = summary.job_id

    def run(name: str, *more: str) -> str:
        return session.command(name, *more, job_id=job_id)

    match summary.state:
        case _ if summary.problem is not None:
            advice = f"a record is damaged; if the job is dead, give it up: {run('abort')}"
        case "open":
            advice = (
                f"its writers gave a sign of life {age(summary.silent)} ago. When they are done:"
                f" {run('commit', '--seal')} - if they died: {run('abort')}"
            )
        case "sealed":
            advice = f"commit it: {run('commit')} - or give it up: {run('abort')}"
        case "committing":
            advice = f"if its committer ({summary.owner}) is dead: {run('recover')}"
        case "committed" if summary.staging is None:
            advice = f"nothing; to compare it with what is there: {run('verify')}"
        case "committed" | "aborting" | "aborted":
            advice = f"finish what is left: {run('recover')}"
        case _:
            advice = f"it was never set up to the end, or only remains are left: {run('abort')}"
    return advice


def _doctor(session: Session) -> str:
    return f"see what is wrong: {session.about_all('doctor')}"


def _look(session: Session) -> str:
    if session.job_id is None:
        return f"see what is there: {session.about_all('jobs')}"
    return f"look at the job: {session.command('show')}"


def _manifest(session: Session) -> str:
    return f"see what it committed: {session.command('manifest')}"


def _known_jobs(session: Session) -> str:
    return (
        f"see which jobs there are: {session.about_all('jobs', '--committed')}; one whose records are"
        " elsewhere needs --staging"
    )


def _recover(session: Session) -> str:
    if session.job_id is None:
        return "nothing was undone; run the same command again"
    return f"nothing was undone; go on with: {session.command('recover')}"


def _again(_session: Session) -> str:
    return "see that the store can be reached (--endpoint-url), and run the same command again"


def _replan(session: Session) -> str:
    return f"look at what changed, then plan anew: {session.command('commit', '--replan')}"


def _force(session: Session) -> str:
    give_up = session.command("abort", "--force")
    return f"go on with: {session.command('recover')} - or give old data up: {give_up}"


def _chosen_stages(session: Session) -> str:
    return f"say which attempts count: {session.command('commit', '--stage', 'STAGE:ATTEMPT')}"


#: The first that fits, so kinds of kinds come first.
_AFTER: tuple[tuple[type[S3CommitError], Callable[[Session], str]], ...] = (
    (OutcomeUnknown, _recover),
    (AccessDenied, _doctor),
    (NoSuchBucket, _doctor),
    (StoreUnsuitable, _doctor),
    (Unavailable, _again),
    (AlreadyCommitted, _manifest),
    (DestinationChanged, _replan),
    (DuplicateOutput, _chosen_stages),
    (NotReversible, _force),
    (NoSuchJob, _known_jobs),
    (
        JobFailed,
        lambda s: f"its output was taken back; look for why, then set up a new job ({s.about_all('jobs')})",
    ),
    (DestinationNotEmpty, _look),
    (LockHeld, lambda s: f"see who holds it: {s.about_all('jobs')}"),
    (JobClosed, _look),
    (InvalidRecord, _look),
)

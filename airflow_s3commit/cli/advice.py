"""What to do next: after an error, and about a job in a given state."""

from __future__ import annotations

from collections.abc import Callable

from airflow_s3commit.cli.output import NextStep
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
from airflow_s3commit.protocol.hadoop_status import Status
from airflow_s3commit.protocol.survey import JobSummary

__all__ = ["after_error", "for_job"]


def after_error(error: S3CommitError, session: Session) -> list[NextStep]:
    """Return what to do after an error, with the command to paste where there is one."""
    for kind, advise in _AFTER:
        if isinstance(error, kind):
            return advise(session)
    return []


def for_job(summary: JobSummary, session: Session) -> list[NextStep]:
    """Return what to do about a job in the state that it is in."""

    def run(words: str, name: str, *more: str) -> NextStep:
        return NextStep(words, session.command(name, *more, job_id=summary.job_id))

    if summary.hadoop is not None:
        return _for_hadoop(summary.hadoop, run)
    match summary.state:
        case _ if summary.problem is not None:
            steps = [run("a record is damaged; if the job is dead, give it up", "abort")]
        case "open":
            steps = [
                run("if its writers are done", "commit", "--seal"),
                run(f"if they died (their last sign of life is {age(summary.silent)} old)", "abort"),
            ]
        case "sealed":
            steps = [run("commit it", "commit"), run("or give it up", "abort")]
        case "committing":
            steps = [
                run(f"if its committer ({summary.owner}) is dead, go on with it", "recover"),
                run("or undo it", "recover", "--rollback"),
            ]
        case "committed" if summary.staging is None:
            steps = [run("nothing; to compare it with what is there", "verify")]
        case "committed" | "aborting" | "aborted":
            steps = [run("finish what is left", "recover")]
        case _:
            steps = [run("it was never set up to the end, or only remains are left", "abort")]
    return steps


def _for_hadoop(status: Status, run: Callable[..., NextStep]) -> list[NextStep]:
    """Return what to do about a job that Hadoop left."""
    if status == "successful":
        return [run("it is done; remove what it left", "adopt", "--clean-up")]
    if status == "perhaps alive":
        return [run("it may be alive; look again later", "show")]
    more = ("--accept-partial",) if status == "partial" else ()
    return [
        run("if it is dead, see what finishing it would do", "adopt", "--commit", *more),
        run("or what taking it back would", "adopt", "--abort"),
    ]


def _doctor(session: Session) -> list[NextStep]:
    return [NextStep("see what is wrong", session.about_all("doctor"))]


def _look(session: Session) -> list[NextStep]:
    if session.job_id is None:
        return [NextStep("see what is there", session.about_all("jobs"))]
    return [NextStep("look at the job", session.command("show"))]


def _manifest(session: Session) -> list[NextStep]:
    return [NextStep("see what it committed", session.command("manifest"))]


def _known_jobs(session: Session) -> list[NextStep]:
    words = "see which jobs there are; one whose records are elsewhere needs --staging"
    return [NextStep(words, session.about_all("jobs", "--committed"))]


def _recover(session: Session) -> list[NextStep]:
    if session.job_id is None:
        return [NextStep("run the same command again")]
    return [
        NextStep("see how far it came", session.command("show")),
        NextStep("go on with a commit or abort that has begun", session.command("recover")),
    ]


def _again(_session: Session) -> list[NextStep]:
    return [NextStep("see that the store can be reached (--endpoint-url), and run the same command again")]


def _replan(session: Session) -> list[NextStep]:
    words = "look at what changed; to replace what is there now"
    return [NextStep(words, session.command("commit", "--replan"))]


def _force(session: Session) -> list[NextStep]:
    return [
        NextStep("go on with it", session.command("recover")),
        NextStep("or give the old data up", session.command("abort", "--force")),
    ]


def _chosen_stages(session: Session) -> list[NextStep]:
    words = "say which attempt of a stage counts"
    return [NextStep(words, session.command("commit", "--stage", "STAGE:ATTEMPT")), *_look(session)]


def _failed(session: Session) -> list[NextStep]:
    words = "its output was taken back: look for the reason, then set up a new job"
    return [NextStep(words, session.about_all("jobs"))]


def _lock_holder(session: Session) -> list[NextStep]:
    return [NextStep("see who holds it, and try again later", session.about_all("jobs"))]


#: The first that fits, so kinds of kinds come first.
_AFTER: tuple[tuple[type[S3CommitError], Callable[[Session], list[NextStep]]], ...] = (
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
    (JobFailed, _failed),
    (DestinationNotEmpty, _look),
    (LockHeld, _lock_holder),
    (JobClosed, _look),
    (InvalidRecord, _look),
)

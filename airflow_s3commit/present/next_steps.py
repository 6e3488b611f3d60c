"""What to do next: after an error, and about a job in a given state; with the command lines to paste."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from airflow_s3commit._format import age
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
from airflow_s3commit.protocol.hadoop.status import Status
from airflow_s3commit.protocol.inspect.jobs import JobSummary
from airflow_s3commit.protocol.model.destination import Destination

#: Commands that are about a destination as a whole.
_ABOUT_DESTINATIONS = {"doctor", "jobs", "pending", "sweep"}

_LOOK = ("look at the job", "show")
_LOOK_AROUND = ("see what is there", "jobs")

#: What to do after errors: the first entry that fits counts. A step is its words, a command and its options.
_AFTER: tuple[tuple[tuple[type[S3CommitError], ...], tuple[tuple[str, ...], ...]], ...] = (
    (
        (OutcomeUnknown,),
        (("see how far it came", "show"), ("continue a commit or abort that has begun", "recover")),
    ),
    ((AccessDenied, NoSuchBucket, StoreUnsuitable), (("see what is wrong", "doctor"),)),
    (
        (Unavailable,),
        (("check that the store can be reached (--endpoint-url), and run the same command again",),),
    ),
    ((AlreadyCommitted,), (("see what it committed", "manifest"),)),
    (
        (DestinationChanged,),
        (("look at what changed; to replace what is there now", "commit", "--replan"),),
    ),
    (
        (DuplicateOutput,),
        (("choose which attempt of a stage counts", "commit", "--stage", "STAGE:ATTEMPT"), _LOOK),
    ),
    (
        (NotReversible,),
        (("continue the commit", "recover"), ("or abort, and lose the old data", "abort", "--force")),
    ),
    (
        (NoSuchJob,),
        (("list the known jobs; one whose records are elsewhere needs --staging", "jobs", "--committed"),),
    ),
    ((JobFailed,), (("its output was rolled back: look for the reason, then set up a new job", "jobs"),)),
    ((LockHeld,), (("see which job holds it, and try again later", "jobs"),)),
    ((DestinationNotEmpty, JobClosed, InvalidRecord), (_LOOK,)),
)


class NextStep(NamedTuple):
    """Something to do next, and the command line that does it if there is one."""

    words: str
    command: str | None = None


@dataclass(frozen=True, slots=True)
class CommandLines:
    """Composes command lines about one destination, quoted for a shell.

    Attributes:
        destination: The destination.
        job_id: The job that they are about, if it is one.
        staging_root: Where jobs keep their records, if not below the destination.
        program: The words that start the program.
        store_options: The options that lead to the same store.

    """

    destination: Destination
    job_id: str | None = None
    staging_root: Destination | None = None
    program: tuple[str, ...] = ("s3commit",)
    store_options: tuple[str, ...] = ()

    def line(self, command: str, *options: str) -> str:
        """Return the command line of a command, about the job if the command takes one."""
        job = () if self.job_id is None or command in _ABOUT_DESTINATIONS else (self.job_id,)
        staging = ("--staging", self.staging_root.uri) if self.staging_root is not None else ()
        words = (*self.program, command, self.destination.uri, *job, *options, *staging)
        return shlex.join((*words, *self.store_options))


def after_error(error: S3CommitError, commands: CommandLines) -> list[NextStep]:
    """Return what to do after an error; empty if its message says it all."""
    if isinstance(error, OutcomeUnknown) and commands.job_id is None:
        return [NextStep("run the same command again")]
    steps = next((steps for kinds, steps in _AFTER if isinstance(error, kinds)), ())
    if commands.job_id is None:
        steps = tuple(_LOOK_AROUND if step == _LOOK else step for step in steps)
    return [NextStep(words, commands.line(*command) if command else None) for words, *command in steps]


def for_job(summary: JobSummary, commands: CommandLines) -> list[NextStep]:
    """Return what to do about a job in its state; the commands are about this job."""

    def run(words: str, name: str, *more: str) -> NextStep:
        return NextStep(words, commands.line(name, *more))

    if summary.hadoop is not None:
        return _for_hadoop(summary.hadoop, run)
    match summary.state:
        case _ if summary.problem is not None:
            steps = [run("a record is damaged; if the job is dead, abort it", "abort")]
        case "open":
            steps = [
                run("if its writers are finished", "commit", "--seal"),
                run(f"if they died (their last sign of life is {age(summary.silent)} old)", "abort"),
            ]
        case "sealed":
            steps = [run("commit it", "commit"), run("or abort it", "abort")]
        case "committing":
            steps = [
                run(f"if its committer ({summary.owner}) is dead, go on with it", "recover"),
                run("or undo it", "recover", "--rollback"),
            ]
        case "committed" if summary.staging is None:
            steps = [run("nothing to do; to compare it with what is there", "verify")]
        case "committed" | "aborting" | "aborted":
            steps = [run("finish what is left", "recover")]
        case _:
            steps = [run("its setup did not finish, or only leftovers remain", "abort")]
    return steps


def _for_hadoop(status: Status, run: Callable[..., NextStep]) -> list[NextStep]:
    """Return what to do about a job of Hadoop's committers."""
    if status == "successful":
        return [run("it is complete; remove what it left", "adopt", "--clean-up")]
    if status == "perhaps alive":
        return [run("it may be alive; look again later", "show")]
    more = ("--accept-partial",) if status == "partial" else ()
    return [
        run("if it is dead, see what finishing it would do", "adopt", "--commit", *more),
        run("or what discarding it would do", "adopt", "--abort"),
    ]

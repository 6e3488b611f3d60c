"""Facts about a job, and next steps, as text that the command line and the page in Airflow share."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from airflow_s3commit._format import age, dollars, moment, number, or_unknown, several, size
from airflow_s3commit.exceptions import (
    AccessDenied,
    AlreadyCommitted,
    DestinationChanged,
    DestinationNotEmpty,
    DuplicateOutput,
    ForeignRecord,
    InvalidRecord,
    JobClosed,
    JobFailed,
    NoSuchBucket,
    NoSuchJob,
    NotReversible,
    OutcomeUnknown,
    S3CommitError,
    StoreUnsuitable,
    Unavailable,
)
from airflow_s3commit.protocol.hadoop.status import Status
from airflow_s3commit.protocol.inspect.details import JobDetails
from airflow_s3commit.protocol.inspect.jobs import JobSummary
from airflow_s3commit.protocol.inspect.verify_pending import PendingReport
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import JobOptions
from airflow_s3commit.protocol.model.sealed_job import Counts
from airflow_s3commit.protocol.steps.preview import Preview
from airflow_s3commit.protocol.sweep.plan import monthly_cost

_DAYS_A_MONTH = 30.0

#: Commands that take a destination and perhaps a staging, and no job: a job's record names its staging.
_ABOUT_DESTINATIONS = {"doctor", "jobs", "pending", "sweep"}

_AGAIN = ("run the same command again: it finds out what has happened, and continues",)
_SHOW = ("show the job's state", "show")
_LIST = ("list the jobs at the destination", "jobs")

#: Next steps after errors; the first matching entry counts. A step is a text, a command and its options.
_AFTER: tuple[tuple[tuple[type[S3CommitError], ...], tuple[tuple[str, ...], ...]], ...] = (
    ((OutcomeUnknown,), (_AGAIN, _SHOW)),
    ((AccessDenied, NoSuchBucket, StoreUnsuitable), (("check the bucket and the permissions", "doctor"),)),
    (
        (Unavailable,),
        (("check that the store can be reached (--endpoint-url), and run the same command again",),),
    ),
    ((AlreadyCommitted,), (("show what the job committed", "manifest"),)),
    (
        (DestinationChanged,),
        (("see what its commit would replace now; if it is aborted, write its data again", "show"),),
    ),
    (
        (DuplicateOutput,),
        (("choose the stage attempt to commit", "commit", "--stage", "STAGE:ATTEMPT"), _SHOW),
    ),
    (
        (NoSuchJob,),
        (("list all jobs", "jobs", "--committed"),),
    ),
    (
        (JobFailed,),
        (("the job is aborted: find the reason, then write the data again as a new job", "jobs"),),
    ),
    ((DestinationNotEmpty, JobClosed, InvalidRecord), (_SHOW,)),
)

#: Next steps after errors of commands about a table, which name no job; these are tried first.
_AFTER_ABOUT_TABLE: tuple[tuple[tuple[type[S3CommitError], ...], tuple[tuple[str, ...], ...]], ...] = (
    ((NotReversible, DestinationChanged), (("look at the commits to the table", "log"),)),
    # The message has the next action: of a copy nothing can be rebuilt.
    ((ForeignRecord,), ()),
    ((InvalidRecord,), (("see which records are damaged, and what can be rebuilt", "repair"),)),
)


class Fact(NamedTuple):
    """A labelled value of a job.

    Attributes:
        name: Label.
        text: Value.
        tone: Colour of the value: a job state or ``bad``; empty for none.

    """

    name: str
    text: str
    tone: str = ""


def amount(counts: Counts) -> str:
    """Return counts as ``3 files, 1.5 GiB, 1,000 rows``, without the rows if they are unknown."""
    rows = f", {number(counts.rows)} rows" if counts.rows is not None and counts.files else ""
    return f"{several(counts.files, 'file')}, {size(counts.bytes)}{rows}"


@or_unknown
def cost_per_month(stored: int | None) -> str:
    """Return the cost of storing bytes for a month, in US dollars; ``?`` if the bytes are unknown."""
    return "?" if stored is None else dollars(monthly_cost(stored))


@or_unknown
def cost_per_day(stored: int) -> str:
    """Return the cost of storing bytes for a day, in US dollars."""
    return dollars(monthly_cost(stored) / _DAYS_A_MONTH)


def replacement(preview: Preview) -> str:
    """Return how many files a commit replaces, and of what size."""
    if not preview.objects:
        return "nothing"
    partitions = several(len(preview.partitions), "partition")
    return f"{several(preview.objects, 'file')}, {size(preview.bytes)} in {partitions}"


def published(details: JobDetails) -> int:
    """Return how many files of a job that has not ended are objects already: its commit has begun."""
    uploads = details.uploads
    return uploads.completed if uploads is not None and details.summary.state == "sealed" else 0


def state(summary: JobSummary, published: int = 0) -> Fact:
    """Return how far a job is, or its status if it is a Hadoop job.

    Args:
        summary: The job.
        published: How many of its files are objects, if it is sealed.

    """
    if summary.hadoop is not None:
        return Fact("state", f"Hadoop job, {summary.hadoop}")
    if published:
        files = f"{number(published)} of {several(summary.output.files, 'file')}"
        return Fact("state", f"sealed, publishing ({files})", "publishing")
    rest = ", not finished" if summary.has_ended and summary.staging is not None else ""
    return Fact("state", f"{summary.state or 'no state'}{rest}", summary.state or "bad")


def job_facts(details: JobDetails) -> list[Fact]:
    """Return the facts about a job, in reading order, without empty ones."""
    return [fact for fact in _job_facts(details) if fact.text]


def _job_facts(details: JobDetails) -> Iterator[Fact]:
    summary, options = details.summary, details.summary.options
    yield Fact("job", summary.job_id)
    yield Fact("destination", summary.destination or "")
    yield Fact("staging", summary.staging or "")
    yield state(summary, published(details))
    if summary.since is not None:
        ago = f", {age(summary.age)} ago" if summary.age is not None else ""
        yield Fact("since", f"{moment(summary.since)}{ago}")
    yield Fact("reason", summary.reason or "")
    if summary.silent is not None:
        yield Fact("last activity", f"{age(summary.silent)} ago")
    if options is not None:
        yield Fact("committer", f"{options.committer}, conflict mode {options.conflict_mode}")
        yield Fact("options", ", ".join(_unusual(options)))
    for name, value in summary.context.items():
        yield Fact(name, value)
    yield Fact("committed" if summary.state == "committed" else "output", amount(summary.output))
    if details.uploads is not None:
        yield _uploads(details.uploads)
    if details.preview is not None:
        as_of = f", as of generation {details.preview.generation}"
        yield Fact("commit replaces", f"{replacement(details.preview)}{as_of}")
    if details.conflict is not None:
        yield Fact("commit refused", details.conflict, "bad")


def _unusual(options: JobOptions) -> Iterator[str]:
    """Yield the options that differ from the defaults."""
    if options.track_pending != "task":
        yield f"uploads tracked on {options.track_pending}"
    if options.pendingset_format != "hadoop-3.4.2":
        yield f"pendingsets for {options.pendingset_format}"
    if options.retain_seconds:
        yield f"replaced files retained for {age(options.retain_seconds)}"


def _uploads(report: PendingReport) -> Fact:
    words = [f"{number(report.pending)} pending ({size(report.bytes)} in the records)"]
    if report.completed:
        words.append(f"{number(report.completed)} complete")
    if report.unrecorded:
        words.append(
            f"{number(report.unrecorded)} unrecorded (from attempts that are running, dead or not sealed)"
        )
    if report.missing_count:
        words.append(f"{number(report.missing_count)} MISSING: the commit will fail")
    return Fact("uploads", ", ".join(words), "" if report.sound else "bad")


class NextStep(NamedTuple):
    """A next step.

    Attributes:
        words: What to do.
        command: The command line that does it; None if there is none.

    """

    words: str
    command: str | None = None


@dataclass(frozen=True, slots=True)
class CommandLines:
    """Composes command lines about one destination, quoted for a shell.

    Attributes:
        destination: The destination.
        job_id: The job; None for command lines about the destination only.
        staging_root: The root of the jobs' staging, if not the destination.
        program: The words that start the program.
        store_options: The options of the connection to the store.

    """

    destination: Destination
    job_id: str | None = None
    staging_root: Destination | None = None
    program: tuple[str, ...] = ("s3commit",)
    store_options: tuple[str, ...] = ()

    def line(self, command: str, *options: str) -> str:
        """Return the command line of a command, with the job id if the command takes one."""
        is_about_job = command not in _ABOUT_DESTINATIONS
        job = (self.job_id,) if self.job_id is not None and is_about_job else ()
        root = self.staging_root
        staging = () if root is None or is_about_job else ("--staging", root.uri)
        words = (*self.program, command, self.destination.uri, *job, *options, *staging)
        return shlex.join((*words, *self.store_options))


def after_error(error: S3CommitError, commands: CommandLines) -> list[NextStep]:
    """Return the next steps after an error; empty if its message is enough."""
    table = _AFTER if commands.job_id is not None else (*_AFTER_ABOUT_TABLE, *_AFTER)
    steps = next((steps for kinds, steps in table if isinstance(error, kinds)), ())
    if commands.job_id is None:
        steps = tuple(_LIST if step == _SHOW else step for step in steps)
    return [NextStep(words, commands.line(*command) if command else None) for words, *command in steps]


def for_job(details: JobDetails, commands: CommandLines) -> list[NextStep]:
    """Return the next steps for a job in its state."""
    summary = details.summary

    def run(words: str, name: str, *more: str) -> NextStep:
        return NextStep(words, commands.line(name, *more))

    if summary.hadoop is not None:
        return _for_hadoop(summary.hadoop, run)
    match summary.state:
        case _ if summary.problem is not None:
            steps = [run("a record is damaged: abort the job if it is dead", "abort")]
        case "open":
            steps = [
                run("if its writers are finished, seal and commit it", "commit", "--seal"),
                run(f"if its writers died (last activity {age(summary.silent)} ago), abort it", "abort"),
            ]
        case "sealed" if published(details):
            steps = [
                run("if its committer is dead, continue the commit", "recover"),
                run("or abort it, and take back what is published", "abort"),
            ]
        case "sealed":
            steps = [run("commit it", "commit"), run("or abort it", "abort")]
        case "committed" if summary.staging is None:
            steps = [run("nothing to do; to compare its files with the manifest", "verify")]
        case "aborted" if summary.staging is None:
            steps = [NextStep("nothing to do: nothing of it is left")]
        case "committed" | "aborted":
            steps = [run("finish the remaining steps", "recover")]
        case _:
            steps = [run("its setup did not finish, or only leftovers exist: abort it", "abort")]
    return steps


def _for_hadoop(status: Status, run: Callable[..., NextStep]) -> list[NextStep]:
    """Return the next steps for a job of Hadoop's committers."""
    if status == "successful":
        return [run("it is complete: remove its leftovers", "adopt", "--clean-up")]
    if status == "perhaps alive":
        return [run("it may be alive: check again later", "show")]
    more = ("--accept-partial",) if status == "partial" else ()
    return [
        run("if it is dead, preview its commit", "adopt", "--commit", *more),
        run("or preview its abort", "adopt", "--abort"),
    ]

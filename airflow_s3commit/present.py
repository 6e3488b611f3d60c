"""Facts about a job, and next steps, as text that the command line and the page in Airflow share."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from types import UnionType
from typing import Any, NamedTuple, TypeAlias

from airflow_s3commit._format import Column, age, dollars, length, moment, number, or_unknown, several, size
from airflow_s3commit.exceptions import (
    AccessDenied,
    AlreadyCommitted,
    DestinationChanged,
    DestinationNotEmpty,
    DuplicateOutput,
    ForeignRecord,
    InvalidPath,
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
from airflow_s3commit.protocol.inspect.jobs import JobDetails, JobSummary
from airflow_s3commit.protocol.inspect.verify_job import PendingReport
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.sealed_job import Counts
from airflow_s3commit.protocol.steps.commit import Preview
from airflow_s3commit.protocol.sweep_plan import monthly_cost

_DAYS_A_MONTH = 30.0

#: Commands that take a destination and a staging, and no job: a job's record names its staging.
_WITH_STAGING = {"doctor", "jobs", "pending", "sweep"}

#: Commands that take no job.
_ABOUT_DESTINATIONS = {*_WITH_STAGING, "log", "repair"}

#: A next step: words, a command and its options.
_Step: TypeAlias = tuple[str, ...]

_AGAIN = ("run the same command again: it finds out what has happened, and continues",)
_SHOW = ("show the job's state", "show")
_LIST = ("list the jobs at the destination", "jobs")
_REACH = ("check that the store can be reached (--endpoint-url), and run the same command again",)
_NOW = ("see what its commit would replace now; if it is aborted, write its data again", "show")

#: Next steps after errors; the first matching entry counts.
_AFTER: tuple[tuple[type[S3CommitError] | UnionType, tuple[_Step, ...]], ...] = (
    (OutcomeUnknown, (_AGAIN, _SHOW)),
    (AccessDenied | NoSuchBucket | StoreUnsuitable, (("check the bucket and the permissions", "doctor"),)),
    (Unavailable, (_REACH,)),
    (AlreadyCommitted, (("show what the job committed", "manifest"),)),
    (DestinationChanged, (_NOW,)),
    (DuplicateOutput, (("choose the stage attempt to commit", "commit", "--stage", "STAGE:ATTEMPT"), _SHOW)),
    (NoSuchJob, (("list the jobs in progress", "jobs"), ("list the commits", "log"))),
    (JobFailed, (("the job is aborted: find the reason, then write the data again as a new job", "jobs"),)),
    (InvalidPath, ()),
    (DestinationNotEmpty | JobClosed | InvalidRecord, (_SHOW,)),
)

#: Next steps after errors of commands about a table, which name no job; these are tried first.
_AFTER_ABOUT_TABLE: tuple[tuple[type[S3CommitError] | UnionType, tuple[_Step, ...]], ...] = (
    (NotReversible | DestinationChanged, (("look at the commits to the table", "log"),)),
    # The message says what to do next: nothing can be rebuilt from a record that was copied here.
    (ForeignRecord, ()),
    (InvalidRecord, (("see which records are damaged, and what can be rebuilt", "repair"),)),
)


def amount(counts: Counts) -> str:
    """Return counts as ``3 files, 1.5 GiB, 1,000 rows``, without the rows if they are unknown."""
    rows = f", {number(counts.rows)} rows" if counts.rows is not None and counts.files else ""
    return f"{several(counts.files, 'file')}, {size(counts.bytes)}{rows}"


#: Columns of the list of a table's commits, and of the details of one commit.
LOG_COLUMNS = (
    Column("generation", "generation", number),
    Column("version", "delta_version", room=140),
    Column("committed", "committed", moment),
    Column("mode", "mode"),
    Column("files", "counts.files", number),
    Column("size", "counts.bytes", size),
    Column("rows", "counts.rows", number),
    Column("partitions", "partitions", length, room=100),
    Column("replaced", "replaced", lambda counts: amount(counts) if counts.files else "", room=110),
    Column("job", "job_id", room=150),
    Column("context", "context", room=190, folds=True),
)
MANIFEST_COLUMNS = (
    Column("job", "job_id"),
    Column("destination", "destination"),
    Column("generation", "generation"),
    Column("version of Delta", "delta_version"),
    Column("committed", "committed", moment),
    Column("mode", "mode"),
    Column("output", "counts", amount),
    Column("partitions", "partitions", length),
    Column("replaced", "replaced", amount),
    Column("context", "context"),
    Column("receipt", "uri"),
)

#: Columns of partitions, which are pairs of a name and its counts.
PARTITION_COLUMNS = (
    Column("partition", "", lambda item: item[0] or "(root)", folds=True),
    Column("files", "", lambda item: number(item[1].files), to_right=True),
    Column("size", "", lambda item: size(item[1].bytes), to_right=True),
    Column("rows", "", lambda item: number(item[1].rows), to_right=True),
    Column("columns", "", lambda item: length(item[1].columns), room=90, to_right=True),
)


@or_unknown
def cost_per_month(stored: int) -> str:
    """Return the cost of storing bytes for a month, in US dollars; ``?`` if the bytes are unknown."""
    return dollars(monthly_cost(stored))


@or_unknown
def cost_per_day(stored: int) -> str:
    """Return the cost of storing bytes for a day, in US dollars."""
    return dollars(monthly_cost(stored) / _DAYS_A_MONTH)


def replacement(preview: Preview) -> str:
    """Return how many files a commit replaces, and of what size, as of a generation."""
    where = several(len(preview.partitions), "partition")
    files = f"{several(preview.objects, 'file')}, {size(preview.bytes)} in {where}"
    return f"{files if preview.objects else 'nothing'}, as of generation {preview.generation}"


def published(details: JobDetails) -> int:
    """Return how many files of a sealed job are objects already: its commit has begun."""
    uploads = details.uploads
    return uploads.completed if uploads is not None and details.summary.state == "sealed" else 0


def state(summary: JobSummary, published: int = 0) -> str:
    """Return how far a job is, given how many of its files are objects; or a Hadoop job's status."""
    if published:
        return f"sealed, publishing ({number(published)} of {several(summary.output.files, 'file')})"
    return summary.shown_state


def _uploads(report: PendingReport | None) -> str:
    if report is None:
        return ""
    counted = {
        f"{number(report.pending)} pending ({size(report.bytes)} in the records)": 1,
        f"{number(report.completed)} complete": report.completed,
        f"{number(report.unrecorded)} unrecorded (of attempts running, dead or unsealed)": report.unrecorded,
        f"{number(report.missing_count)} MISSING: the commit will fail": report.missing_count,
    }
    return ", ".join(words for words, count in counted.items() if count)


def _if_known(show: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: "" if value is None else show(value)


#: Columns of the details of a job, by the fields of its `JobDetails`.
JOB_COLUMNS = (
    Column("job", "summary.job_id"),
    Column("destination", "summary.destination"),
    Column("staging", "summary.staging"),
    Column("state", "", lambda details: state(details.summary, published(details))),
    Column("since", "summary.since", _if_known(moment)),
    Column("age", "summary.age", _if_known(age)),
    Column("reason", "summary.reason"),
    Column("last activity", "summary.silent", _if_known(lambda silent: f"{age(silent)} ago")),
    Column("committer", "summary.options.committer"),
    Column("conflict mode", "summary.options.conflict_mode"),
    Column("track pending", "summary.options.track_pending"),
    Column("pendingset format", "summary.options.pendingset_format"),
    Column("retain", "summary.options.retain"),
    Column("context", "summary.context"),
    Column("output", "summary.output", amount),
    Column("uploads", "uploads", _uploads),
    Column("commit replaces", "preview", _if_known(replacement)),
    Column("commit refused", "conflict"),
)


class NextStep(NamedTuple):
    """What to do next, and the command line that does it, if there is one."""

    words: str
    command: str | None = None


class CommandLines(NamedTuple):
    """Composes command lines about one destination, quoted for a shell.

    Attributes:
        job_id: The job; None for command lines about the destination only.
        staging_root: The root of the jobs' staging; None if it is the destination.
        store_options: The options of the connection to the store.
    """

    destination: Destination
    job_id: str | None = None
    staging_root: Destination | None = None
    program: tuple[str, ...] = ("s3commit",)
    store_options: tuple[str, ...] = ()

    def line(self, command: str, *options: str) -> str:
        """Return the command line of a command, with the job id if the command takes one."""
        job = (self.job_id,) if self.job_id and command not in _ABOUT_DESTINATIONS else ()
        root = self.staging_root if command in _WITH_STAGING else None
        staging = () if root is None else ("--staging", root.uri)
        words = (*self.program, command, self.destination.uri, *job, *options, *staging)
        return shlex.join((*words, *self.store_options))


def after_error(error: S3CommitError, commands: CommandLines) -> list[NextStep]:
    """Return the next steps after an error; empty if its message is enough."""
    table = _AFTER if commands.job_id is not None else (*_AFTER_ABOUT_TABLE, *_AFTER)
    steps = next((steps for kinds, steps in table if isinstance(error, kinds)), ())
    if commands.job_id is None:
        steps = tuple(_LIST if step == _SHOW else step for step in steps)
    return _steps(steps, commands)


#: Next steps for jobs, by how far they are.
_FOR_JOBS: dict[str, tuple[_Step, ...]] = {
    "damaged": (("a record is damaged: abort the job if it is dead", "abort"),),
    "open": (
        ("if its writers are finished, seal and commit it", "commit", "--seal"),
        ("if its writers died (last activity {} ago), abort it", "abort"),
    ),
    "sealed": (("commit it", "commit"), ("or abort it", "abort")),
    "publishing": (
        ("if its committer is dead, continue the commit", "recover"),
        ("or abort it, and take back what is published", "abort"),
    ),
    "unfinished": (("finish the remaining steps", "recover"),),
    "committed": (("nothing to do; to compare its files with the manifest", "verify"),),
    "aborted": (("nothing to do: nothing of it is left",),),
    "none": (("its setup did not finish, or only leftovers exist: abort it", "abort"),),
    "successful": (("it is complete, and a sweep removes its leftovers",),),
    "perhaps alive": (("it may be alive: check again later", "show"),),
    "partial": (
        ("if it is dead, preview its commit", "adopt", "--commit", "--accept-partial"),
        ("or preview its abort", "adopt", "--abort"),
    ),
    "dead": (
        ("if it is dead, preview its commit", "adopt", "--commit"),
        ("or preview its abort", "adopt", "--abort"),
    ),
}


def for_job(details: JobDetails, commands: CommandLines) -> list[NextStep]:
    """Return the next steps for a job in its state."""
    summary = details.summary
    situation: str = summary.state or "none"
    if summary.hadoop is not None:
        situation = summary.hadoop if summary.hadoop in _FOR_JOBS else "dead"
    elif summary.problem is not None:
        situation = "damaged"
    elif summary.has_ended and summary.staging is not None:
        situation = "unfinished"
    elif published(details):
        situation = "publishing"
    steps = ((words.format(age(summary.silent)), *command) for words, *command in _FOR_JOBS[situation])
    return _steps(steps, commands)


def _steps(steps: Iterable[_Step], commands: CommandLines) -> list[NextStep]:
    return [NextStep(words, commands.line(*command) if command else None) for words, *command in steps]

"""Facts about a job as text, for the command line and the page. Scripts get exact values instead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from airflow_s3commit._format import age, dollars, moment, number, or_unknown, several, size
from airflow_s3commit.protocol.inspect.details import JobDetails
from airflow_s3commit.protocol.inspect.jobs import JobSummary
from airflow_s3commit.protocol.inspect.preview import CommitPreview
from airflow_s3commit.protocol.inspect.verify_pending import PendingReport
from airflow_s3commit.protocol.model.job import JobOptions
from airflow_s3commit.protocol.model.seal import Counts
from airflow_s3commit.protocol.sweep.plan import monthly_cost

_DAYS_A_MONTH = 30.0


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


def replacement(preview: CommitPreview) -> str:
    """Return how many objects a commit replaces, and of what size."""
    if preview.conflict is not None:
        return f"nothing: conflict mode fail refuses the commit, because {preview.conflict} exists"
    if not preview.replaced:
        return "nothing"
    words = f"{several(preview.replaced, 'object')}, {size(preview.replaced_bytes)}"
    if preview.overwritten:
        words += f"; {number(preview.overwritten)} overwritten in place, which cannot be rolled back"
    return f"{words} ({'as planned' if preview.planned else 'as of now'})"


def state(summary: JobSummary) -> Fact:
    """Return a job's state, or its status if it is a Hadoop job."""
    if summary.hadoop is not None:
        return Fact("state", f"Hadoop job, {summary.hadoop}")
    return Fact("state", summary.state or "none", summary.state or "bad")


def job_facts(details: JobDetails) -> list[Fact]:
    """Return the facts about a job, in reading order, without empty ones."""
    return [fact for fact in _job_facts(details) if fact.text]


def _job_facts(details: JobDetails) -> Iterator[Fact]:
    summary, options = details.summary, details.summary.options
    yield Fact("job", summary.job_id)
    yield Fact("destination", summary.destination or "")
    yield Fact("staging", summary.staging or "")
    yield state(summary)
    if summary.since is not None:
        ago = f", {age(summary.age)} ago" if summary.age is not None else ""
        yield Fact("since", f"{moment(summary.since)}{ago}")
    yield Fact("owner", summary.owner or "")
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
        yield Fact("commit replaces", replacement(details.preview))
    if details.begun is not None:
        yield Fact("begun", f"as entry {details.begun} of the log: it can only be driven to its end")


def _unusual(options: JobOptions) -> Iterator[str]:
    """Yield the options that differ from the defaults."""
    if options.conflict_mode == "replace" and options.replace_order != "publish-then-delete":
        yield options.replace_order
    if not options.unique_filenames:
        yield "fixed file names"
    if options.track_pending != "task":
        yield f"uploads tracked on {options.track_pending}"
    if options.pendingset_format != "hadoop-3.4.2":
        yield f"pendingsets for {options.pendingset_format}"
    if options.retain_seconds:
        yield f"replaced files retained for {age(options.retain_seconds)}"
    if options.fencing != "required":
        yield f"fencing {options.fencing}"


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

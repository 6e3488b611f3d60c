"""Jobs, show and pending: the jobs in progress at a destination, and their uploads."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from rich.console import RenderableType

from airflow_s3commit._columns import Column
from airflow_s3commit._format import age, number, several, size
from airflow_s3commit.cli.command import Session, flag, registry_option, store_command
from airflow_s3commit.cli.output import BLANK, ExitCode, Rows, labelled, line, pairs
from airflow_s3commit.exceptions import S3CommitError
from airflow_s3commit.present import NextStep, cost_per_month, for_job, job_facts
from airflow_s3commit.protocol.inspect.jobs import (
    JobSummary,
    StageDetails,
    UploadSummary,
    describe_job,
    list_jobs,
    pending_uploads,
)
from airflow_s3commit.protocol.model.codec import Plain
from airflow_s3commit.protocol.sweep.plan import monthly_cost

#: Maximum number of uploads to show without --all.
_SHOWN = 40


@store_command(
    """
    s3commit jobs s3://lake/flights/
    s3commit jobs 's3://lake/team-*' --registry s3://lake-ops/s3commit/
    s3commit jobs s3://lake/flights/ --json | jq -r '.jobs[] | select(.state == "sealed").job_id'
    """,
    registry=True,
    staging=True,
)
@registry_option("List the jobs of all destinations that the registry at this prefix names.")
def jobs(session: Session) -> ExitCode:
    """List the jobs in progress at a destination.

    These are the jobs that have not ended, and those that have and are not cleaned up. The age is the time
    since the job entered its state, by the store's clock. Files and size are those in the seal or, before the
    job is sealed, those of all committed task attempts.
    """
    if session.registry is not None:
        return _jobs_of_registry(session)
    listed = list_jobs(session.store, session.destination, session.staging_root)
    found = session.output.reading("reading records", listed)
    value = {"destination": session.destination.uri, "jobs": [summary.to_dict() for summary in found]}
    if not found:
        return session.output.result(value, line(f"no job is in progress at {session.destination.uri}"))
    return session.output.result(value, *_job_views(found))


def _job_views(found: list[JobSummary]) -> Iterator[RenderableType]:
    yield Rows(JobSummary.columns, found)
    yield from (line(f"{job.job_id}: {job.problem}", "red") for job in found if job.problem is not None)


def _jobs_of_registry(session: Session) -> ExitCode:
    found: dict[str, list[JobSummary]] = {}
    failures: dict[str, str] = {}
    with session.output.working("reading destinations") as step:
        for done, entry in enumerate(session.registered(), start=1):
            place, root = entry.record.place, entry.record.staging_root
            try:
                found[place.uri] = list(list_jobs(session.store, place, root))
            except S3CommitError as error:
                failures[place.uri] = str(error)
            step(done)
    pending = [job for listed in found.values() for job in listed if job.staging is not None]
    stored = sum(job.output.bytes for job in pending)
    oldest = max((job.silent for job in pending if job.silent is not None), default=None)
    value = {
        "registry": session.destination.uri,
        "destinations": [
            {"destination": uri, "jobs": [job.to_dict() for job in listed]} for uri, listed in found.items()
        ],
        "failures": [{"destination": uri, "message": message} for uri, message in failures.items()],
        "pending": {"destinations": len(found), "jobs": len(pending), "bytes": stored, "idle": oldest},
    }
    places = ((line(uri, "bold"), *_job_views(listed), BLANK) for uri, listed in found.items() if listed)
    total = (
        f"{several(len(pending), 'job')} in progress at {several(len(found), 'destination')},"
        f" {size(stored)} pending"
    )
    unread = labelled("NOT READ", (f"{uri}: {message}" for uri, message in failures.items()))
    views = (view for place in places for view in place)
    return session.output.result(value, *views, line(total), *unread, ok=not failures)


@store_command(
    """
    s3commit show s3://lake/flights/ 0c9a3b0e-6f0e-4c35-8b0f-3f1f6f6f8a11
    s3commit show s3://lake/flights/ JOB --json | jq .preview
    """,
    job="required",
)
def show(session: Session) -> ExitCode:
    """Show one job in detail, with next steps.

    Shows how far it is, its options and context, its stages and their output, its pending uploads and, while
    its commit runs, how many of its files are visible; and what its commit replaces.
    """
    assert session.job_id is not None
    with session.output.working("reading records"):
        details = describe_job(session.store, session.destination, session.job_id)
    steps = for_job(details, session.commands)
    stages = (BLANK, Rows(StageDetails.columns, details.stages)) if details.stages else ()
    gone = details.summary.manifest is not None and details.summary.staging is None
    last = line("committed and cleaned up: only its entry in the log is left" if gone else "", "dim")
    problems = (line(problem, "red") for problem in details.problems)
    value = {**details.to_dict(), "next": [step._asdict() for step in steps]}
    code = session.output.result(value, pairs(job_facts(details)), *stages, *problems, last)
    session.output.advise(steps)
    return code


class _Totals(Plain, Struct, kw_only=True):
    """Totals of some pending uploads."""

    columns = (
        Column("job", "name"),
        Column("uploads", "count", number),
        Column("size", "bytes", size),
        Column("oldest", "oldest", age),
        Column("per month", "bytes", cost_per_month),
    )

    name: str
    count: int
    bytes: int | None
    oldest: float | None
    monthly_cost_usd: float | None

    @classmethod
    def of(cls, name: str, uploads: list[UploadSummary]) -> _Totals:
        sizes = [upload.bytes for upload in uploads if upload.bytes is not None]
        stored = sum(sizes) if len(sizes) == len(uploads) else None
        return cls(
            name=name,
            count=len(uploads),
            bytes=stored,
            oldest=max((upload.age for upload in uploads if upload.age is not None), default=None),
            monthly_cost_usd=monthly_cost(stored) if stored is not None else None,
        )

    def value(self) -> dict[str, object]:
        return {name: value for name, value in self.to_dict().items() if name != "name"}


@store_command(
    """
    s3commit pending s3://lake/flights/
    s3commit pending s3://lake/flights/ --all
    s3commit pending s3://lake/flights/ --json | jq '.uploads[] | select(.job_id == null)'
    """,
    staging=True,
)
@flag("--all", f"Show every upload, not the {_SHOWN} oldest.", "everything")
@flag("--no-bytes", "Don't measure uploads, which takes one request per upload.")
def pending(session: Session, *, everything: bool, no_bytes: bool) -> ExitCode:
    """List pending uploads with their jobs, ages and costs.

    A pending upload is not visible, but its bytes are stored and billed. An upload without a job remains from
    a crash, or belongs to another program. The cost is that of S3 Standard in us-east-1.
    """
    place = session.destination
    uploads = pending_uploads(session.store, place, session.staging_root, measure=not no_bytes)
    found = session.output.reading("listing uploads and their parts", uploads)
    found.sort(key=lambda upload: upload.initiated)
    by_job: dict[str | None, list[UploadSummary]] = {}
    for upload in found:
        by_job.setdefault(upload.job_id, []).append(upload)
    total = _Totals.of("total", found)
    parts = {job_id: _Totals.of(job_id or "claimed by no job", some) for job_id, some in by_job.items()}
    value = {
        "destination": place.uri,
        **total.value(),
        "jobs": [{"job_id": job_id, **part.value()} for job_id, part in parts.items()],
        "uploads": [upload.to_dict() for upload in found],
    }
    if not found:
        return session.output.result(value, line(f"no upload is pending below {place.uri}"))
    totals = Rows(_Totals.columns, [*parts.values(), *([total] if len(parts) > 1 else [])])
    shown = Rows(UploadSummary.columns, found, most=None if everything else _SHOWN)
    code = session.output.result(value, totals, BLANK, shown, BLANK)
    if None in by_job:
        words = "sweep old uploads that no job claims"
        session.output.advise([NextStep(words, session.commands.line("sweep", "--older-than", "7d"))])
    return code

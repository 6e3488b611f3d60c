"""Verify: compares a table, or a job's records, with the objects and uploads on the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import click

from airflow_s3commit._format import number, several, size
from airflow_s3commit.cli.command import Session, as_job_id, store_command
from airflow_s3commit.cli.log import latest_or_none
from airflow_s3commit.cli.output import ExitCode
from airflow_s3commit.cli.report import Facts, Line, View, labelled
from airflow_s3commit.present import CommandLines, NextStep
from airflow_s3commit.protocol.inspect.verify_dataset import FileDifferences, VerifyReport, verify_manifest
from airflow_s3commit.protocol.inspect.verify_log import LogCheck
from airflow_s3commit.protocol.inspect.verify_pending import PendingReport, verify_pending
from airflow_s3commit.protocol.inspect.verify_table import Beside, TableReport, has_log, verify_table
from airflow_s3commit.protocol.metadata.manifests import find_manifest
from airflow_s3commit.protocol.model.manifest import ManifestRecord
from airflow_s3commit.store.base import ObjectInfo, ObjectStore
from airflow_s3commit.store.forwarding import ForwardingStore

#: Maximum number of findings of each kind to show; --json has up to 1,000.
_SHOWN = 20

#: Unfinished jobs to give a command line for.
_JOBS = 3


@store_command(
    "verify",
    summary="Compare a table, or a job's records, with the store.",
    examples="""
    s3commit verify s3://lake/flights/                       the whole table, and its log
    s3commit verify s3://lake/flights/ --generation 42       as it was after a commit
    s3commit verify s3://lake/flights/ --job JOB             one job, committed or pending
    s3commit verify s3://lake/flights/ --job JOB --deep      every part of every pending upload
    s3commit verify s3://lake/flights/ --json | jq .sound
    """,
    job="optional",
)
@click.option(
    "--job", "only_job", type=as_job_id, metavar="ID", help="Check this job, not the table; same as JOB."
)
@click.option(
    "--generation",
    type=click.IntRange(min=1),
    metavar="N",
    help="Check the table as it was after this commit.",
)
@click.option(
    "--deep",
    is_flag=True,
    help="For a pending job: compare the parts of each upload, with one request per upload.",
)
def verify(session: Session, *, only_job: str | None, generation: int | None, deep: bool) -> ExitCode:
    """Compare a table, or one job's records, with the objects and uploads on the store. Reads only.

    Table: every file of the generation must exist unchanged, the destination must hold no foreign objects and
    no leftovers of ended jobs, and the log and what is derived from it must agree. Objects of unfinished jobs
    are counted. Committed job: every file of its manifest must exist unchanged, and after a replace (or mode
    fail) the partitions must hold no other objects. Pending job: every upload in its records must exist.
    Otherwise the exit code is 1. Without a log, the last commit is checked in place of the table.
    """
    if session.job_id not in (None, only_job or session.job_id) or (
        (only_job or session.job_id) and generation
    ):
        raise click.UsageError("verify one job, or the table at a generation")
    session.job_id = session.job_id or only_job
    if session.job_id is None:
        if generation is not None or has_log(session.store, session.destination):
            return _verify_table(session, generation)
        manifest = latest_or_none(session)
        if manifest is None:
            return ExitCode.FINDINGS
    else:
        manifest = find_manifest(session.context)
    if manifest is None:
        with session.output.working("comparing uploads"):
            report = verify_pending(session.context, deep=deep)
        value = {"kind": "pending", **report.to_dict()}
        return session.output.result(value, *_pending_views(report), ok=report.sound)
    return _verify_committed(session, manifest)


def _verify_table(session: Session, generation: int | None) -> ExitCode:
    with session.output.working("reading the log") as step:
        log = LogCheck(session.store, session.destination, generation, step=step).read()
    with session.output.working("comparing files") as step:
        report = verify_table(log, step)
    code = session.output.result(
        {"kind": "table", **report.to_dict()}, *_table_views(report), ok=report.sound
    )
    session.output.advise(_next_steps(report, session.commands))
    return code


def _verify_committed(session: Session, manifest: ManifestRecord) -> ExitCode:
    with session.output.working("comparing files", manifest.counts.files) as step:
        report = verify_manifest(_ListingProgress(session.store, step), manifest)
    sound = report.complete and report.exclusive
    value = {"kind": "committed", "sound": sound, **report.to_dict()}
    return session.output.result(value, *_views(report, sound), ok=sound)


class _ListingProgress(ForwardingStore):
    """A store that reports the number of objects that its listings have yielded."""

    def __init__(self, inner: ObjectStore, step: Callable[[int], None]) -> None:
        super().__init__(inner)
        self._step = step
        self._listed = 0

    def list_objects(
        self,
        bucket: str,
        prefix: str,
        *,
        recursive: bool = True,
        start_after: str | None = None,
        page: int | None = None,
    ) -> Iterator[ObjectInfo]:
        """Yield the listed objects, and report their number."""
        for info in super().list_objects(
            bucket, prefix, recursive=recursive, start_after=start_after, page=page
        ):
            self._listed += 1
            self._step(self._listed)
            yield info


def _table_views(report: TableReport) -> Iterator[View]:
    yield Line(
        "the table is as it was committed" if report.sound else "the table is NOT as it was committed",
        "green" if report.sound else "bold red",
    )
    counted = (
        ("older than the log", report.older),
        ("retained", report.retained),
        ("of later commits", report.later),
        ("replaced since", report.removed),
        ("of unfinished jobs", report.unfinished_count),
        ("missing", report.missing_count),
        ("changed", report.changed_count),
        ("LEFT OVER", report.leftover_count),
        ("FOREIGN", report.foreign_count),
    )
    yield Facts(
        [
            ("destination", report.destination),
            (
                "generation",
                "not known: the log is damaged" if report.generation is None else report.generation,
            ),
            ("files", number(report.files)),
            ("intact", number(report.intact)),
            (
                "right size",
                f"{number(report.by_size)}; cannot be compared further" if report.by_size else None,
            ),
            *((name, number(count) if count else None) for name, count in counted),
            ("log", f"newest entry {report.entries}, {several(len(report.log), 'finding')}"),
        ]
    )
    yield from _named("missing", report.missing, report.missing_count)
    yield from _named("changed", _changes(report), report.changed_count)
    yield from _named("left over", list(map(_beside, report.leftovers)), report.leftover_count)
    yield from _named("foreign", list(map(_beside, report.foreign)), report.foreign_count)
    yield from _named("unfinished", list(map(_beside, report.unfinished)), report.unfinished_count, "yellow")
    for finding in report.log[:_SHOWN]:
        label, style = ("derived: ", "yellow") if finding.harmless else ("log: ", "red")
        yield Line(f"{finding.where}: {finding.problem}; {finding.remedy}", style, label)
    if len(report.log) > _SHOWN:
        yield Line(f"… and {len(report.log) - _SHOWN:,} more findings in the log; --json has them all", "dim")


def _next_steps(report: TableReport, commands: CommandLines) -> Iterator[NextStep]:
    if not report.complete:
        words = "restore the files from versions of the objects or a backup, or replace their partitions"
        yield NextStep(f"{words}; which jobs wrote them", commands.line("log"))
    if report.foreign:
        yield NextStep("find out which program wrote the foreign objects before you delete them")
    if any("s3commit repair" in finding.remedy for finding in report.log):
        yield NextStep("see which records can be rebuilt", commands.line("repair"))
    unfinished = dict.fromkeys(one.job_id for one in report.unfinished)
    for job_id in list(unfinished)[:_JOBS]:
        yield NextStep("see what the unfinished job does", replace(commands, job_id=job_id).line("show"))
    if report.leftovers:
        yield NextStep("finish the jobs that ended", commands.line("sweep"))


def _beside(found: Beside) -> str:
    return f"{found.key}: {size(found.size)}" + (f", of job {found.job_id}" if found.job_id else "")


def _changes(report: FileDifferences) -> list[str]:
    return [
        f"{c.key}: {size(c.size)}, ETag {c.etag}; was {size(c.expected_size)}, {c.expected_etag}"
        for c in report.changed
    ]


def _views(report: VerifyReport, sound: bool) -> Iterator[View]:
    yield Line(
        "matches the manifest" if sound else "does NOT match the manifest", "green" if sound else "bold red"
    )
    unlisted = "not in manifest" if report.conflict_mode == "append" else "FOREIGN"
    yield Facts(
        [
            ("job", report.job_id),
            ("destination", report.destination),
            ("files", number(report.files)),
            ("intact", number(report.intact)),
            (
                "right size",
                f"{number(report.by_size)}; cannot be compared further" if report.by_size else None,
            ),
            ("missing", number(report.missing_count) if report.missing_count else None),
            ("changed", number(report.changed_count) if report.changed_count else None),
            (unlisted, number(report.unlisted_count) if report.unlisted_count else None),
        ]
    )
    if report.superseded:
        yield Line(
            f"job {report.latest_job} has committed since: files that it replaced are expected to differ",
            "yellow",
        )
    yield from _named("missing", report.missing, report.missing_count)
    yield from _named("changed", _changes(report), report.changed_count)
    if not report.exclusive:
        yield from _named("foreign", report.unlisted, report.unlisted_count)


def _pending_views(report: PendingReport) -> Iterator[View]:
    yield Line(
        "ready: all uploads in its records exist" if report.sound else "NOT ready: the commit would fail",
        "green" if report.sound else "bold red",
    )
    yield Facts(
        [
            ("job", report.job_id),
            ("destination", report.destination),
            ("state", report.state),
            ("recorded", f"{number(report.files)} uploads, {size(report.bytes)}"),
            ("pending", number(report.pending)),
            ("complete", number(report.completed) if report.completed else None),
            ("missing", number(report.missing_count) if report.missing_count else None),
            ("other parts", number(report.mismatched_count) if report.mismatched_count else None),
            (
                "unrecorded",
                f"{number(report.unrecorded)}; the commit will discard them" if report.unrecorded else None,
            ),
        ]
    )
    yield from _named("missing", [f"{f.key}: {f.problem}" for f in report.missing], report.missing_count)
    yield from _named(
        "other parts", [f"{f.key}: {f.problem}" for f in report.mismatched], report.mismatched_count
    )
    yield from _named("damaged", report.damaged, len(report.damaged))


def _named(kind: str, names: list[str], count: int, style: str = "red") -> Iterator[Line]:
    yield from labelled(kind, names[:_SHOWN], style)
    rest = count - min(len(names), _SHOWN)
    if rest:
        yield Line(f"… and {rest:,} more {kind}; --json has up to {len(names):,}", "dim")

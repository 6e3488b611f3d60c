"""Doctor and verify: check that a bucket supports jobs, and that a table or a job matches its records."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import click

from airflow_s3commit._format import number, several, size
from airflow_s3commit.cli.command import Session, store_command
from airflow_s3commit.cli.log import report_missing
from airflow_s3commit.cli.output import ExitCode
from airflow_s3commit.cli.report import BLANK, Facts, Line, View, labelled
from airflow_s3commit.exceptions import NoSuchKey
from airflow_s3commit.present import CommandLines, NextStep
from airflow_s3commit.protocol.doctor.examine import Check, Diagnosis, examine
from airflow_s3commit.protocol.doctor.policy import DEFAULT_DAYS, iam_policies, lifecycle_rule
from airflow_s3commit.protocol.inspect.verify_dataset import FileDifferences, VerifyReport, verify_manifest
from airflow_s3commit.protocol.inspect.verify_log import LogCheck
from airflow_s3commit.protocol.inspect.verify_pending import PendingReport, verify_pending
from airflow_s3commit.protocol.inspect.verify_table import Beside, TableReport, verify_table
from airflow_s3commit.protocol.model.manifest import Manifest
from airflow_s3commit.protocol.steps.manifests import find_manifest

_MARKS = {
    "ok": ("ok      ", "green"),
    "warning": ("warning ", "yellow"),
    "failed": ("FAILED  ", "bold red"),
    "skipped": ("skipped ", "dim"),
}


@store_command(
    "doctor",
    summary="Check that a bucket supports jobs; print policies.",
    examples="""
    s3commit doctor s3://lake/flights/
    s3commit doctor s3://lake/flights/ --policy | jq .executors > executors.json
    s3commit doctor s3://lake/flights/ --object-option sse=aws:kms --object-option tags.team=flights
    s3commit doctor s3://lake/flights/ --lifecycle --days 14
    s3commit doctor s3://lake/flights/ --json | jq '.checks[] | select(.verdict == "failed")'
    """,
    staging=True,
)
@click.option(
    "--policy", is_flag=True, help="Print the IAM policies of executors and of the committer; run no checks."
)
@click.option(
    "--lifecycle", is_flag=True, help="Print a lifecycle rule for incomplete uploads; run no checks."
)
@click.option(
    "--days",
    type=click.IntRange(min=1),
    default=DEFAULT_DAYS,
    show_default=True,
    help="With --lifecycle: the age in days at which to abort an upload; longer than any job takes.",
)
@click.option("--kms-key", metavar="ARN", help="With --policy: the key that encrypts the bucket.")
def doctor(session: Session, *, policy: bool, lifecycle: bool, days: int, kms_key: str | None) -> ExitCode:
    """Check that a destination supports jobs, and report problems with their remedies.

    Creates small hidden objects and uploads below DEST/_s3commit/ (and --staging), runs whole jobs there, and
    removes all of it. Takes less than a minute.
    Tests each --object-option with an upload and checks the resulting object. Exit code 1 if a check failed,
    but not for warnings.
    """
    if policy or lifecycle:
        return _print_documents(session, policy=policy, lifecycle=lifecycle, days=days, kms_key=kms_key)
    if kms_key is not None:
        raise click.UsageError("--kms-key needs --policy")
    with session.output.working("checking the bucket"):
        diagnosis = examine(
            session.store,
            session.destination,
            session.staging_root,
            object_options=session.connection.object_options,
        )
    return session.output.result(diagnosis.to_dict(), *_diagnosis_views(diagnosis), ok=diagnosis.healthy)


def _print_documents(
    session: Session, *, policy: bool, lifecycle: bool, days: int, kms_key: str | None
) -> ExitCode:
    documents = {}
    if policy:
        documents["policy"] = iam_policies(
            session.destination,
            session.staging_root,
            kms_key=kms_key,
            partition=_partition(session),
            object_options=session.connection.object_options,
        )
    if lifecycle:
        documents["lifecycle"] = lifecycle_rule(session.destination, days)
        session.output.note(
            "aws s3api put-bucket-lifecycle-configuration replaces all rules of a bucket: include those",
            "yellow",
        )
    if session.output.as_json:
        return session.output.result(documents)
    for document in documents.values():
        session.output.raw(json.dumps(document, indent=2))
    return ExitCode.OK


def _partition(session: Session) -> str:
    region = session.connection.config.region or ""
    if region.startswith("cn-"):
        return "aws-cn"
    return "aws-us-gov" if region.startswith("us-gov-") else "aws"


def _diagnosis_views(diagnosis: Diagnosis) -> Iterator[View]:
    places = dict.fromkeys(check.place for check in diagnosis.checks)
    for place in places:
        if len(places) > 1:
            yield Line(place, "bold")
        yield Facts([(check.name, _finding(check)) for check in diagnosis.checks if check.place == place])
    warnings = several(diagnosis.count("warning"), "warning")
    yield BLANK
    if diagnosis.healthy:
        yield Line(f"fit for jobs, with {warnings}", "green")
    else:
        failures = several(diagnosis.count("failed"), "check")
        yield Line(f"NOT fit for jobs: {failures} failed, {warnings}", "bold red")


def _finding(check: Check) -> list[Line]:
    label, style = _MARKS[check.verdict]
    remedy = [] if check.remedy is None else [Line(f"remedy: {check.remedy}", "italic")]
    return [Line(check.says, style, label), *remedy]


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
    s3commit verify s3://lake/flights/ JOB                   one job, committed or pending
    s3commit verify s3://lake/flights/ JOB --deep            every part of every pending upload
    s3commit verify s3://lake/flights/ --json | jq .sound
    """,
    job="optional",
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
def verify(session: Session, *, generation: int | None, deep: bool) -> ExitCode:
    """Compare a table, or one job's records, with the objects and uploads on the store. Reads only.

    Table: every file of the generation must exist unchanged, the destination must hold no foreign objects and
    no leftovers of ended jobs, and the log and what is derived from it must agree. Objects of unfinished jobs
    are counted. Committed job: every file of its manifest must exist unchanged, unless a later commit has
    replaced it. Pending job: every upload in its records must exist. Otherwise the exit code is 1.
    """
    if session.job_id is not None and generation is not None:
        raise click.UsageError("verify one job, or the table at a generation")
    if session.job_id is None:
        return _verify_table(session, generation)
    manifest = find_manifest(session.context)
    if manifest is not None:
        return _verify_committed(session, manifest)
    with session.output.working("comparing uploads"):
        report = verify_pending(session.context, deep=deep)
    value = {"kind": "pending", **report.to_dict()}
    return session.output.result(value, *_pending_views(report), ok=report.sound)


def _verify_table(session: Session, generation: int | None) -> ExitCode:
    try:
        with session.output.working("reading the log") as step:
            log = LogCheck(session.store, session.destination, step).read()
    except NoSuchKey as error:
        if generation is not None:
            raise
        return report_missing(session, str(error))
    with session.output.working("comparing files") as step:
        report = verify_table(log, generation, step)
    code = session.output.result(
        {"kind": "table", **report.to_dict()}, *_table_views(report), ok=report.sound
    )
    session.output.advise(_next_steps(report, session.commands))
    return code


def _verify_committed(session: Session, manifest: Manifest) -> ExitCode:
    with session.output.working("comparing files"):
        report = verify_manifest(session.store, manifest)
    value = {"kind": "committed", "sound": report.complete, **report.to_dict()}
    return session.output.result(value, *_committed_views(report), ok=report.complete)


def _table_views(report: TableReport) -> Iterator[View]:
    yield Line(
        "the table is as it was committed" if report.sound else "the table is NOT as it was committed",
        "green" if report.sound else "bold red",
    )
    counted = (
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
            _by_size(report),
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
    if any(finding.is_derived for finding in report.log):
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


def _committed_views(report: VerifyReport) -> Iterator[View]:
    yield Line(
        "matches the manifest" if report.complete else "does NOT match the manifest",
        "green" if report.complete else "bold red",
    )
    counted = (
        ("replaced since", report.removed),
        ("missing", report.missing_count),
        ("changed", report.changed_count),
    )
    yield Facts(
        [
            ("job", report.job_id),
            ("destination", report.destination),
            ("generation", report.generation),
            ("files", number(report.files)),
            ("intact", number(report.intact)),
            _by_size(report),
            *((name, number(count) if count else None) for name, count in counted),
        ]
    )
    yield from _named("missing", report.missing, report.missing_count)
    yield from _named("changed", _changes(report), report.changed_count)


def _by_size(report: FileDifferences) -> tuple[str, str | None]:
    words = f"{number(report.by_size)}; cannot be compared further"
    return "right size", words if report.by_size else None


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

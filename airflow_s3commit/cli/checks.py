"""Doctor and verify: check that a bucket supports jobs, and that a table or a job matches its records."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from rich.text import Text

from airflow_s3commit._format import several
from airflow_s3commit.cli.command import Session, flag, store_command
from airflow_s3commit.cli.log import report_missing
from airflow_s3commit.cli.output import BLANK, ExitCode, described, labelled, line
from airflow_s3commit.exceptions import NoSuchKey
from airflow_s3commit.present import CommandLines, NextStep
from airflow_s3commit.protocol.doctor.examine import Diagnosis, examine
from airflow_s3commit.protocol.doctor.policy import iam_policies
from airflow_s3commit.protocol.inspect.verify_job import PendingReport, VerifyReport, verify_job
from airflow_s3commit.protocol.inspect.verify_table import TableReport
from airflow_s3commit.protocol.inspect.verify_table import verify as verify_table

_STYLES = {"ok": "green", "warning": "yellow", "failed": "bold red", "skipped": "dim"}

#: Unfinished jobs to give a command line for.
_JOBS = 3


@store_command(
    """
    s3commit doctor s3://lake/flights/
    s3commit doctor s3://lake/flights/ --policy | jq .executors > executors.json
    s3commit doctor s3://lake/flights/ --object-option sse=aws:kms --object-option tags.team=flights
    s3commit doctor s3://lake/flights/ --json | jq '.checks[] | select(.verdict == "failed")'
    """,
    staging=True,
)
@flag("--policy", "Print the IAM policies of executors and of the committer; run no checks.")
def doctor(session: Session, *, policy: bool) -> ExitCode:
    """Check that a bucket supports jobs; print policies.

    Problems are reported with their remedies. Creates small hidden objects and uploads below DEST/_s3commit/
    (and --staging), runs whole jobs there, and removes all of it. Takes less than a minute.
    Tests --object-option by an upload with all of them. Exit code 1 if a check failed, but not for warnings.
    """
    place, root, options = session.destination, session.staging_root, session.connection.object_options
    if policy:
        partition = _partition(session.connection.config.region or "")
        policies = iam_policies(place, root, partition=partition, object_options=options)
        # A terminal must not fold what is pasted.
        printed = {"policy": policies} if session.output.as_json else policies
        session.output.raw(json.dumps(printed, indent=2))
        return ExitCode.OK
    with session.output.working("checking the bucket"):
        diagnosis = examine(session.store, place, root, object_options=options)
    return session.output.result(diagnosis.to_dict(), *_diagnosis_views(diagnosis), ok=diagnosis.healthy)


def _partition(region: str) -> str:
    if region.startswith("cn-"):
        return "aws-cn"
    return "aws-us-gov" if region.startswith("us-gov-") else "aws"


def _diagnosis_views(diagnosis: Diagnosis) -> Iterator[Text]:
    place = ""
    for check in diagnosis.checks:
        if diagnosis.staging_root is not None and check.place != place:
            yield line(check.place, "bold")
        place = check.place
        yield line(f"{check.name}: {check.says}", _STYLES[check.verdict], f"{check.verdict:>7}")
        if check.remedy is not None:
            yield line(check.remedy, "italic", "         remedy")
    warnings, failures = diagnosis.count("warning"), diagnosis.count("failed")
    yield BLANK
    if diagnosis.healthy:
        yield line(f"fit for jobs, with {several(warnings, 'warning')}", "green")
    else:
        words = f"{several(failures, 'check')} failed, {several(warnings, 'warning')}"
        yield line(f"NOT fit for jobs: {words}", "bold red")


@store_command(
    """
    s3commit verify s3://lake/flights/                       the whole table, and its log
    s3commit verify s3://lake/flights/ JOB                   one job, committed or pending
    s3commit verify s3://lake/flights/ --json | jq .sound
    """,
    job="optional",
)
def verify(session: Session) -> ExitCode:
    """Compare a table, or a job's records, with the store.

    Reads only. Table: every file must exist unchanged, the destination must hold no foreign
    objects and no leftovers of ended jobs, and the log and what is derived from it must agree. Objects of
    unfinished jobs are counted. Committed job: every file of its manifest must exist unchanged, unless a
    later commit has replaced it. Pending job: every upload in its records must exist. Otherwise the exit code
    is 1.
    """
    store, place, job_id = session.store, session.destination, session.job_id
    report: TableReport | VerifyReport | PendingReport
    try:
        with session.output.working("comparing files and uploads") as step:
            if job_id is None:
                report = verify_table(store, place, step=step)
            else:
                report = verify_job(store, place, job_id)
    except NoSuchKey as error:
        return report_missing(session, str(error))
    verdict = line(_VERDICTS[report.kind, report.sound], "green" if report.sound else "bold red")
    named = (
        labelled(
            one.title,
            getattr(report, one.field),
            "yellow" if one.harmless else "red",
            total=getattr(report, one.total) if one.total else 0,
        )
        for one in report.lists
    )
    value, facts = {"kind": report.kind, **report.to_dict()}, described(report.columns, report)
    code = session.output.result(value, verdict, facts, *chain.from_iterable(named), ok=report.sound)
    if isinstance(report, TableReport):
        session.output.advise(_next_steps(report, session.commands))
    return code


_VERDICTS = {
    ("table", True): "the table is as it was committed",
    ("table", False): "the table is NOT as it was committed",
    ("committed", True): "matches the manifest",
    ("committed", False): "does NOT match the manifest",
    ("pending", True): "ready: all uploads in its records exist",
    ("pending", False): "NOT ready: the commit would fail",
}


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

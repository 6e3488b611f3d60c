"""Doctor: checks that a bucket, with these credentials, supports jobs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count

import click

from airflow_s3commit._format import several
from airflow_s3commit.cli.command import Session, store_command
from airflow_s3commit.cli.output import ExitCode
from airflow_s3commit.cli.report import BLANK, Facts, Line, View
from airflow_s3commit.protocol.doctor.examine import Check, Diagnosis, examine, object_probes
from airflow_s3commit.protocol.doctor.policy import DEFAULT_DAYS, iam_policy, lifecycle_rule
from airflow_s3commit.protocol.doctor.probes import DATA_PROBES, RECORD_PROBES
from airflow_s3commit.protocol.doctor.rehearsal import REHEARSALS

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
    s3commit doctor s3://lake/flights/ --policy > policy.json
    s3commit doctor s3://lake/flights/ --object-option sse=aws:kms --object-option tags.team=flights
    s3commit doctor s3://lake/flights/ --lifecycle --days 14
    s3commit doctor s3://lake/flights/ --json | jq '.checks[] | select(.verdict == "failed")'
    """,
)
@click.option(
    "--policy", is_flag=True, help="Print the IAM policy that a pipeline's role needs; run no checks."
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
    asked = session.connection.object_options
    total = (
        len(RECORD_PROBES) * (1 if session.staging_root is None else 2) + len(DATA_PROBES) + len(REHEARSALS)
    )
    total += len(list(object_probes(asked)))
    begun = count()
    with session.output.working("checking the bucket", total) as step:
        diagnosis = examine(
            session.store,
            session.destination,
            session.staging_root,
            object_options=asked,
            signer=session.signer,
            progress=lambda _: step(next(begun)),
        )
    return session.output.result(diagnosis.to_dict(), *_views(diagnosis), ok=diagnosis.healthy)


def _print_documents(
    session: Session, *, policy: bool, lifecycle: bool, days: int, kms_key: str | None
) -> ExitCode:
    documents = {}
    if policy:
        documents["policy"] = iam_policy(
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


def _views(diagnosis: Diagnosis) -> Iterator[View]:
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

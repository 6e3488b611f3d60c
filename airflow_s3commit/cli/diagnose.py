"""Doctor: does this bucket, with these credentials, do what jobs need?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count

import click
from rich.console import RenderableType
from rich.text import Text

from airflow_s3commit.cli.command import store_command
from airflow_s3commit.cli.exit_codes import ExitCode
from airflow_s3commit.cli.output import facts
from airflow_s3commit.cli.session import Session
from airflow_s3commit.cli.wording import plain, several
from airflow_s3commit.protocol.bucket_settings import DEFAULT_DAYS, iam_policy, lifecycle_rule
from airflow_s3commit.protocol.doctor import Check, Diagnosis, examine
from airflow_s3commit.protocol.object_probes import object_probes
from airflow_s3commit.protocol.probes import DATA_PROBES, RECORD_PROBES

__all__ = ["doctor"]

_MARKS = {
    "ok": ("ok      ", "green"),
    "warning": ("warning ", "yellow"),
    "failed": ("FAILED  ", "bold red"),
    "skipped": ("skipped ", "dim"),
}


@store_command(
    "doctor",
    summary="Does this bucket do what jobs need? Policies to paste.",
    examples="""
    s3commit doctor s3://lake/flights/
    s3commit doctor s3://lake/flights/ --policy > policy.json
    s3commit doctor s3://lake/flights/ --object-option sse=aws:kms --object-option tags.team=flights
    s3commit doctor s3://lake/flights/ --lifecycle --days 14
    s3commit doctor s3://lake/flights/ --json | jq '.checks[] | select(.verdict == "failed")'
    """,
)
@click.option(
    "--policy", is_flag=True, help="Print the IAM policy that a pipeline's role needs, and check nothing."
)
@click.option(
    "--lifecycle", is_flag=True, help="Print a lifecycle rule for incomplete uploads, and check nothing."
)
@click.option(
    "--days",
    type=click.IntRange(min=1),
    default=DEFAULT_DAYS,
    show_default=True,
    help="With --lifecycle: after how many days; longer than any job takes.",
)
@click.option("--kms-key", metavar="ARN", help="With --policy: the key that encrypts the bucket.")
def doctor(session: Session, *, policy: bool, lifecycle: bool, days: int, kms_key: str | None) -> ExitCode:
    """Try out at a destination what jobs will do there, and say what is wrong and how to put it right.

    Small hidden objects and uploads are made below DEST/_s3commit/ (and in --staging), and all of them are
    removed again. Each --object-option is tried with an upload, whose object is looked at. Exit code 1 if a
    check failed; warnings don't count.
    """
    if policy or lifecycle:
        return _to_paste(session, policy=policy, lifecycle=lifecycle, days=days, kms_key=kms_key)
    if kms_key is not None:
        raise click.UsageError("--kms-key goes with --policy")
    asked = session.connection.object_options
    total = len(RECORD_PROBES) * (1 if session.staging_root is None else 2) + len(DATA_PROBES)
    total += len(list(object_probes(asked)))
    begun = count()
    with session.output.working("trying it out", total) as step:
        diagnosis = examine(
            session.store, session.destination, session.staging_root, object_options=asked,
            progress=lambda _: step(next(begun)),
        )  # fmt: skip
    session.output.result(diagnosis.to_dict(), *_views(diagnosis))
    return ExitCode.OK if diagnosis.healthy else ExitCode.FINDINGS


def _to_paste(session: Session, *, policy: bool, lifecycle: bool, days: int, kms_key: str | None) -> ExitCode:
    documents = {}
    if policy:
        documents["policy"] = iam_policy(
            session.destination, session.staging_root, kms_key=kms_key, partition=_partition(session),
            object_options=session.connection.object_options,
        )  # fmt: skip
    if lifecycle:
        documents["lifecycle"] = lifecycle_rule(session.destination, days)
        session.output.note(
            "aws s3api put-bucket-lifecycle-configuration replaces all rules of a bucket: add this to them",
            "yellow",
        )
    if session.output.as_json:
        session.output.result(documents)
        return ExitCode.OK
    for document in documents.values():
        session.output.raw(json.dumps(document, indent=2))
    return ExitCode.OK


def _partition(session: Session) -> str:
    region = session.connection.config.region or ""
    if region.startswith("cn-"):
        return "aws-cn"
    return "aws-us-gov" if region.startswith("us-gov-") else "aws"


def _views(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    places = dict.fromkeys(check.place for check in diagnosis.checks)
    for place in places:
        if len(places) > 1:
            yield Text(plain(place), style="bold")
        yield facts((check.name, _finding(check)) for check in diagnosis.checks if check.place == place)
    warnings = several(diagnosis.count("warning"), "warning")
    if diagnosis.healthy:
        yield Text(f"\nfit for jobs, with {warnings}", style="green")
    else:
        failures = several(diagnosis.count("failed"), "check")
        yield Text(f"\nNOT fit for jobs: {failures} failed, {warnings}", style="bold red")


def _finding(check: Check) -> Text:
    line = Text.assemble(_MARKS[check.verdict], plain(check.says))
    if check.remedy is not None:
        line.append(f"\nremedy: {plain(check.remedy)}", style="italic")
    return line

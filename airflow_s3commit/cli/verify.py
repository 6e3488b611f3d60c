"""Verify: is what was committed still there, and is what is pending still whole?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.text import Text

from airflow_s3commit.cli.command import store_command
from airflow_s3commit.cli.exit_codes import ExitCode
from airflow_s3commit.cli.manifest import latest_or_none
from airflow_s3commit.cli.output import facts
from airflow_s3commit.cli.session import Session
from airflow_s3commit.cli.wording import number, plain, size
from airflow_s3commit.protocol.records import ManifestRecord
from airflow_s3commit.protocol.state import find_manifest
from airflow_s3commit.protocol.verify import VerifyReport, verify_manifest
from airflow_s3commit.protocol.verify_pending import PendingReport, verify_pending
from airflow_s3commit.store.base import ObjectInfo, ObjectStore

__all__ = ["verify"]

#: Of each kind of finding so many are shown; --json has up to a thousand.
_SHOWN = 20


@store_command(
    "verify",
    summary="Compare what was committed with what is there.",
    examples="""
    s3commit verify s3://lake/flights/                       the last commit
    s3commit verify s3://lake/flights/ JOB                   one job, committed or pending
    s3commit verify s3://lake/flights/ JOB --deep            every part of every pending upload
    s3commit verify s3://lake/flights/ --json | jq .complete
    """,
    job="optional",
)
@click.option(
    "--deep", is_flag=True, help="Of a pending job: compare each upload's parts, one request an upload."
)
def verify(session: Session, *, deep: bool) -> ExitCode:
    """Compare what a job committed, or is about to, with what is on the store. Nothing is changed.

    Of a committed job: every file of the manifest must be there and unchanged, and after a replace (or mode
    fail) its partitions must hold nothing else. Of a pending one: every upload that its records name must be
    there. Exit code 1 if not.
    """
    if session.job_id is None:
        manifest = latest_or_none(session)
        if manifest is None:
            return ExitCode.FINDINGS
    else:
        manifest = find_manifest(session.context)
    if manifest is None:
        with session.output.working("looking at its uploads"):
            report = verify_pending(session.context, deep=deep)
        session.output.result(_pending_value(report), *_pending_views(report))
        return ExitCode.OK if report.sound else ExitCode.FINDINGS
    return _verify_committed(session, manifest)


def _verify_committed(session: Session, manifest: ManifestRecord) -> ExitCode:
    with session.output.working("comparing files", manifest.counts.files) as step:
        store: Any = _Watched(session.store, step)
        report = verify_manifest(store, manifest)
    sound = report.complete and report.exclusive
    session.output.result({"kind": "committed", "sound": sound, **report.to_dict()}, *_views(report, sound))
    return ExitCode.OK if sound else ExitCode.FINDINGS


class _Watched:
    """A store that passes everything on, and tells how many objects it has listed."""

    def __init__(self, inner: ObjectStore, step: Callable[[int], None]) -> None:
        self._inner = inner
        self._step = step
        self._seen = 0

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._inner, verb)

    def list_objects(self, *args: Any, **kwargs: Any) -> Iterator[ObjectInfo]:
        """See `ObjectStore.list_objects`."""
        for info in self._inner.list_objects(*args, **kwargs):
            self._seen += 1
            self._step(self._seen)
            yield info


def _views(report: VerifyReport, sound: bool) -> Iterator[RenderableType]:
    yield Text("as committed" if sound else "NOT as committed", style="green" if sound else "bold red")
    unlisted = "not by this job (it appended)" if report.conflict_mode == "append" else "FOREIGN"
    yield facts(
        [
            ("job", report.job_id),
            ("destination", report.destination),
            ("files", number(report.files)),
            ("intact", number(report.intact)),
            (
                "right size",
                f"{number(report.by_size)}; more cannot be told of them" if report.by_size else None,
            ),
            ("missing", number(report.missing_count) if report.missing_count else None),
            ("changed", number(report.changed_count) if report.changed_count else None),
            (unlisted, number(report.unlisted_count) if report.unlisted_count else None),
        ]
    )
    if report.superseded:
        yield Text(
            f"job {report.latest_job} has committed since: what it replaced is expected to differ",
            style="yellow",
        )
    yield _named("missing", report.missing, report.missing_count)
    changes = [
        f"{c.key}: {size(c.size)}, ETag {c.etag}; was {size(c.expected_size)}, {c.expected_etag}"
        for c in report.changed
    ]
    yield _named("changed", changes, report.changed_count)
    if not report.exclusive:
        yield _named("foreign", report.unlisted, report.unlisted_count)


def _pending_value(report: PendingReport) -> dict[str, Any]:
    return {"kind": "pending", **report.to_dict()}


def _pending_views(report: PendingReport) -> Iterator[RenderableType]:
    yield Text(
        "ready: everything its records name is there" if report.sound else "NOT whole: a commit would fail",
        style="green" if report.sound else "bold red",
    )
    yield facts(
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
                f"{number(report.unrecorded)}; they will be discarded" if report.unrecorded else None,
            ),
        ]
    )
    yield _named("missing", [f"{f.key}: {f.problem}" for f in report.missing], report.missing_count)
    yield _named("other parts", [f"{f.key}: {f.problem}" for f in report.mismatched], report.mismatched_count)
    yield _named("damaged", report.damaged, len(report.damaged))


def _named(kind: str, names: list[str], count: int) -> RenderableType:
    lines = [Text.assemble((f"{kind}: ", "red"), plain(name), overflow="fold") for name in names[:_SHOWN]]
    if count > len(lines):
        lines.append(
            Text(f"… and {count - len(lines):,} more {kind}; --json names up to {len(names):,}", style="dim")
        )
    return Group(*lines)

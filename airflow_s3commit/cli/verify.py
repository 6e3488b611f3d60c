"""Verify: compares a job's records with the objects and uploads on the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import click

from airflow_s3commit._format import number, size
from airflow_s3commit.cli.command import Session, store_command
from airflow_s3commit.cli.exit_codes import ExitCode
from airflow_s3commit.cli.manifest import latest_or_none
from airflow_s3commit.cli.report import Facts, Line, View, labelled
from airflow_s3commit.protocol.inspect.verify_dataset import VerifyReport, verify_manifest
from airflow_s3commit.protocol.inspect.verify_pending import PendingReport, verify_pending
from airflow_s3commit.protocol.metadata.manifests import find_manifest
from airflow_s3commit.protocol.model.manifest import ManifestRecord
from airflow_s3commit.store.base import ObjectInfo, ObjectStore
from airflow_s3commit.store.forwarding import ForwardingStore

#: Maximum number of findings of each kind to show; --json has up to 1,000.
_SHOWN = 20


@store_command(
    "verify",
    summary="Compare a job's records with the store.",
    examples="""
    s3commit verify s3://lake/flights/                       the last commit
    s3commit verify s3://lake/flights/ JOB                   one job, committed or pending
    s3commit verify s3://lake/flights/ JOB --deep            every part of every pending upload
    s3commit verify s3://lake/flights/ --json | jq .complete
    """,
    job="optional",
)
@click.option(
    "--deep",
    is_flag=True,
    help="For a pending job: compare the parts of each upload, with one request per upload.",
)
def verify(session: Session, *, deep: bool) -> ExitCode:
    """Compare a job's records with the objects and uploads on the store. Reads only.

    Committed job: every file of the manifest must exist unchanged, and after a replace (or mode fail) the
    partitions must hold no other objects. Pending job: every upload in its records must exist. Otherwise the
    exit code is 1.
    """
    if session.job_id is None:
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
        self, bucket: str, prefix: str, *, recursive: bool = True, start_after: str | None = None
    ) -> Iterator[ObjectInfo]:
        """Yield the listed objects, and report their number."""
        for info in super().list_objects(bucket, prefix, recursive=recursive, start_after=start_after):
            self._listed += 1
            self._step(self._listed)
            yield info


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
    changes = [
        f"{c.key}: {size(c.size)}, ETag {c.etag}; was {size(c.expected_size)}, {c.expected_etag}"
        for c in report.changed
    ]
    yield from _named("changed", changes, report.changed_count)
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


def _named(kind: str, names: list[str], count: int) -> Iterator[Line]:
    yield from labelled(kind, names[:_SHOWN], "red")
    rest = count - min(len(names), _SHOWN)
    if rest:
        yield Line(f"… and {rest:,} more {kind}; --json has up to {len(names):,}", "dim")

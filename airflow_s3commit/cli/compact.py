"""Compact: writes the small files of a table's partitions anew as fewer, larger ones."""

from __future__ import annotations

from airflow_s3commit._format import number, several, size
from airflow_s3commit.cli.command import Session, as_size, flag, option, store_command
from airflow_s3commit.cli.output import ExitCode
from airflow_s3commit.cli.report import DRY_RUN, Rows, line
from airflow_s3commit.protocol.model.job import JobOptions


@store_command(
    """
    s3commit compact s3://lake/flights/ --dry-run                    which partitions would gain, and how much
    s3commit compact s3://lake/flights/ --partition dt=2013-01-01    compact one of them
    s3commit compact s3://lake/flights/ --retain 7d                  compact all; keep what leaves the table
    """
)
@option(
    "--partition",
    "partitions",
    multiple=True,
    help="A directory below the destination, such as dt=2013-01-01; repeatable. By default all.",
)
@option(
    "--target-size",
    type=as_size,
    default="128m",
    metavar="SIZE",
    help="Size after which a file ends: 64m, 1g.",
)
@option(
    "--retain",
    default="0s",
    metavar="DURATION",
    help="How long the old files stay in place: 7d, 36h. Without it they are deleted at once.",
)
@flag("--dry-run", "Report what would be compacted; change nothing.")
def compact(
    session: Session, *, partitions: tuple[str, ...], target_size: int, retain: str, dry_run: bool
) -> ExitCode:
    """Write a table's small files anew as fewer, larger ones. No row changes.

    A partition is compacted if that at least halves its files. All are replaced by one commit, which another
    one can be rolled back to with --retain. Refused where another job has uploads, where another program put
    objects, and if another job changes a partition meanwhile. For Parquet files of this package's own
    writers; it needs pyarrow.
    """
    from airflow_s3commit.compaction import compact as written_anew  # noqa: PLC0415 - pyarrow is slow

    with session.output.working("compacting"):
        report = written_anew(
            session.store,
            session.destination,
            partitions=partitions,
            target_bytes=target_size,
            job_options=JobOptions(retain=retain),
            dry_run=dry_run,
        )
    views = [Rows(report.partitions[0].columns, report.partitions)] if report.partitions else []
    if report.generation is not None:
        words = (
            f"{several(report.files, 'file')} with {number(report.rows)} rows are generation"
            f" {report.generation} now"
        )
        return session.output.result(report.to_dict(), *views, line(words, "green"))
    found = f"{several(len(report.partitions), 'partition')} to compact, {report.left} without a gain"
    shown = [DRY_RUN] if dry_run else []
    total = sum(one.bytes for one in report.partitions)
    return session.output.result(report.to_dict(), *shown, *views, line(f"{found}, {size(total)} to write"))

"""What the demo shows: each run as it was seen from outside, its manifest, and the day-by-day verdict."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from airflow_s3commit.xcom import manifest_uri
from dev.demo.flights import Flights, partition, read_day, same_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import date

    from rich.console import RenderableType

    from airflow_s3commit.protocol.model.destination import Destination
    from airflow_s3commit.protocol.model.manifest import FileEntry, ManifestRecord
    from airflow_s3commit.store.s3.config import S3Config
    from dev.demo.story import Chapter, Check
    from dev.demo.watch import Sight


@dataclass(frozen=True, slots=True)
class DayVerdict:
    """One day as it ended.

    Attributes:
        day: The day.
        expected: Rows it should have.
        rows: Rows that pyarrow read over S3.
        files: Files a reader sees.
        bytes: Their bytes by the last manifest.
        job_id: The job whose manifest describes the day; empty if no job was committed.
        right: Whether the rows are the right ones, one by one, and the files exactly the manifest's.

    """

    day: date
    expected: int
    rows: int
    files: int
    bytes: int
    job_id: str
    right: bool


def judge_days(
    config: S3Config, destination: Destination, flights: Flights, chapters: Iterable[Chapter]
) -> list[DayVerdict]:
    """Read every day back with pyarrow and compare it, row for row, with what it should hold.

    A day on which nothing was committed should hold nothing.

    Args:
        config: Address and keys of the store.
        destination: The dataset.
        flights: What its days should hold.
        chapters: The runs, oldest first; the last one that committed a day counts.

    """
    last: dict[date, Chapter] = {}
    visible: frozenset[str] = frozenset()
    for chapter in chapters:
        visible = chapter.after.visible
        if chapter.manifest is not None or chapter.day not in last:
            last[chapter.day] = chapter
    verdicts = []
    for day, chapter in sorted(last.items()):
        keys = {key for key in visible if key.startswith(destination.key(f"{partition(day)}/"))}
        found = read_day(config, destination, day)
        expected = flights.of(day) if chapter.manifest is not None else flights.of(day).slice(0, 0)
        same = same_rows(expected, found) if chapter.manifest is not None else found.num_rows == 0
        verdicts.append(
            DayVerdict(
                day,
                expected.num_rows,
                found.num_rows,
                len(keys),
                sum(file.size for file in chapter.files),
                chapter.job_id if chapter.manifest is not None else "",
                right=same and keys == {file.key for file in chapter.files},
            )
        )
    return verdicts


def chapter_view(chapter: Chapter) -> RenderableType:
    """Return what a refresh showed: before, uploaded and after, the manifest, the checks."""
    seen = Table(box=box.SIMPLE_HEAD, title="seen from outside", title_justify="left", pad_edge=False)
    seen.add_column("")
    seen.add_column("uploads pending", justify="right")
    seen.add_column("files visible", justify="right")
    _add_sight(seen, "before the run", chapter.before)
    _add_sight(seen, "uploaded, not committed", chapter.uploaded)
    _add_sight(seen, "after the run", chapter.after)
    if chapter.manifest is not None:
        account: RenderableType = _manifest_view(chapter.manifest, chapter.files)
    else:
        account = Text(f"no manifest: job {chapter.job_id} was aborted", style="yellow")
    return Group(seen, account, _checks_view(chapter.checks))


def counts_view(chapter: Chapter, counts: Mapping[str, int]) -> RenderableType:
    """Return what the report counted: flights by carrier."""
    line = "  ".join(f"{carrier} {flights}" for carrier, flights in counts.items())
    return Group(
        Panel(
            line or "nothing", title=f"flights by carrier, {chapter.day}", title_align="left", expand=False
        ),
        _checks_view(chapter.checks),
    )


def final_table(destination: Destination, verdicts: Iterable[DayVerdict]) -> Table:
    """Return the table that the demo ends with."""
    table = Table(title=f"{destination.uri}, read back with pyarrow", box=box.ROUNDED, title_justify="left")
    table.add_column("day")
    for name in ("rows expected", "rows in S3", "files", "bytes"):
        table.add_column(name, justify="right")
    table.add_column("job", overflow="fold")
    table.add_column("verdict")
    for verdict in verdicts:
        table.add_row(
            verdict.day.isoformat(),
            f"{verdict.expected:,}",
            f"{verdict.rows:,}",
            f"{verdict.files:,}",
            f"{verdict.bytes:,}",
            verdict.job_id or "none committed",
            _in_words(verdict),
        )
    return table


def _in_words(verdict: DayVerdict) -> str:
    if not verdict.right:
        return "[bold red]wrong[/]"
    return "[green]right, row for row[/]" if verdict.job_id else "[green]right: nothing[/]"


def _add_sight(table: Table, when: str, sight: Sight) -> None:
    table.add_row(when, f"{len(sight.pending):,}", f"{len(sight.visible):,}")


def _size(size: int, rows: int | None) -> str:
    """Return bytes and rows; Spark's own writers count rows by task, not by file."""
    return f"{size:,} bytes" if rows is None else f"{size:,} bytes, {rows:,} rows"


def _manifest_view(manifest: ManifestRecord, files: Iterable[FileEntry]) -> Panel:
    facts = Table.grid(padding=(0, 2))
    committed = datetime.fromtimestamp(manifest.committed / 1000, UTC)
    counts = manifest.counts
    for name, value in (
        ("job", manifest.job_id),
        ("committed", f"{committed:%Y-%m-%d %H:%M:%S} UTC"),
        ("conflict mode", manifest.conflict_mode),
        ("brought", f"{counts.files:,} files, {_size(counts.bytes, counts.rows)}"),
        ("replaced", f"{manifest.replaced.files:,} files, {manifest.replaced.bytes:,} bytes"),
        ("partitions", ", ".join(manifest.partitions)),
        ("run", manifest.context.get("run_id", "")),
        *(("file", f"{file.key}\n{_size(file.size, file.rows)}") for file in files),
    ):
        facts.add_row(Text(name, style="dim"), Text(value, overflow="fold"))
    where = manifest_uri(manifest.destination, manifest.job_id)
    return Panel(facts, title=f"manifest {where}", title_align="left", expand=False)


def _checks_view(checks: Iterable[Check]) -> Table:
    grid = Table.grid(padding=(0, 1))
    for check in checks:
        grid.add_row("[green]✓[/]" if check.holds else "[bold red]✗[/]", check.says)
    return grid

"""What the demo shows: each run as seen from outside, its manifest, and the day-by-day verdict."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from airflow_s3commit.store.s3.store import S3Store
from dev.demo.flights import Flights, partition, read_day, same_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import date

    from rich.console import Console, RenderableType

    from airflow_s3commit.protocol.model.destination import Destination
    from airflow_s3commit.protocol.model.manifest import FileEntry, Manifest
    from airflow_s3commit.store.s3.config import S3Config
    from dev.demo.story import Chapter, Check
    from dev.demo.watch import Sight


def tell(console: Console, seconds: float, what: str) -> None:
    """Show a step and its time or duration in seconds."""
    console.print(f"[dim]{seconds:6.1f} s[/]  {what}")


def judge(
    console: Console, config: S3Config, destination: Destination, flights: Flights, chapters: list[Chapter]
) -> bool:
    """Show the content of every day and what is pending; return whether that and the runs are right.

    Every day is read back with pyarrow and compared, row for row, with what it should hold, and the files
    there with those of the manifest. A day on which nothing was committed should hold nothing.

    Args:
        console: Where the tables are shown.
        config: Address and keys of the store.
        destination: The dataset.
        flights: What its days should hold.
        chapters: The runs, oldest first; the last one that committed a day counts.
    """
    last: dict[date, Chapter] = {}
    for chapter in chapters:
        if chapter.manifest is not None or chapter.day not in last:
            last[chapter.day] = chapter
    table = Table(title=f"{destination.uri}, read back with pyarrow", box=box.ROUNDED, title_justify="left")
    table.add_column("day")
    for name in ("rows expected", "rows in S3", "files", "bytes"):
        table.add_column(name, justify="right")
    table.add_column("job", overflow="fold")
    table.add_column("verdict")
    right = all(chapter.holds for chapter in chapters)
    for day, chapter in sorted(last.items()):
        below = destination.key(f"{partition(day)}/")
        keys = {key for key in chapters[-1].after.visible if key.startswith(below)}
        committed = chapter.manifest is not None
        found = read_day(config, destination, day)
        expected = flights.of(day) if committed else flights.of(day).slice(0, 0)
        same = same_rows(expected, found) if committed else found.num_rows == 0
        same = same and keys == {file.key for file in chapter.files}
        right = right and same
        verdict = f"[green]right{', row for row' if committed else ': nothing'}[/]"
        size = sum(file.size for file in chapter.files)
        table.add_row(
            day.isoformat(),
            *(f"{number:,}" for number in (expected.num_rows, found.num_rows, len(keys), size)),
            chapter.job_id if committed else "none committed",
            verdict if same else "[bold red]wrong[/]",
        )
    console.print(table)
    pending = sum(1 for _ in S3Store.connect(config).list_uploads(destination.bucket, ""))
    colour = "red" if pending else "green"
    console.print(f"[{colour}]{pending} uploads pending in all of s3://{destination.bucket}/[/]")
    return right and pending == 0


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
    """Return the report's counts: flights by carrier."""
    line = "  ".join(f"{carrier} {flights}" for carrier, flights in counts.items())
    return Group(
        Panel(
            line or "nothing", title=f"flights by carrier, {chapter.day}", title_align="left", expand=False
        ),
        _checks_view(chapter.checks),
    )


def _add_sight(table: Table, when: str, sight: Sight) -> None:
    table.add_row(when, f"{len(sight.pending):,}", f"{len(sight.visible):,}")


def _size(size: int, rows: int | None) -> str:
    """Return bytes and rows; Spark's own writers count rows by task, not by file."""
    return f"{size:,} bytes" if rows is None else f"{size:,} bytes, {rows:,} rows"


def _manifest_view(manifest: Manifest, files: Iterable[FileEntry]) -> Panel:
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
    where = manifest.uri
    return Panel(facts, title=f"manifest {where}", title_align="left", expand=False)


def _checks_view(checks: Iterable[Check]) -> Table:
    grid = Table.grid(padding=(0, 1))
    for check in checks:
        grid.add_row("[green]✓[/]" if check.holds else "[bold red]✗[/]", check.says)
    return grid

"""What a command prints for people: lines, facts, and tables of reports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from airflow_s3commit._columns import Column, facts
from airflow_s3commit._format import plain

#: Colours of states and judgements.
_STYLES = {
    "open": "cyan",
    "sealed": "cyan",
    "publishing": "yellow",
    "committed": "green",
    "aborted": "dim",
    "no state": "red",
    "bad": "red",
}

#: Lines with one label to show.
_SHOWN = 20


def line(text: object, style: str = "", label: str = "") -> Text:
    """Return a line without control characters; with a label, the style is the label's."""
    if label:
        return Text.assemble((f"{label}: ", style), plain(text), overflow="fold")
    return Text(plain(text), style=style, overflow="fold")


BLANK = line("")
DRY_RUN = line("dry run: nothing was changed", "yellow")
NOT_APPLIED = line("dry run: nothing was changed; add --apply to do it", "yellow")


def labelled(label: str, texts: Iterable[object], style: str = "red", total: int = 0) -> Iterator[Text]:
    """Yield a line for each of the first texts, with one label, and how many more of a total there are."""
    named = list(texts)
    yield from (line(text, style, label) for text in named[:_SHOWN])
    if (more := max(total, len(named)) - _SHOWN) > 0:
        yield line(f"… and {more:,} more {label}; --json has up to {len(named):,}", "dim")


def described(columns: Sequence[Column], report: object) -> Table:
    """Return what a report says, one labelled value a line."""
    return pairs(facts(columns, report))


def pairs(values: Iterable[tuple[str, str] | tuple[str, str, str]]) -> Table:
    """Return labels and values, one pair a line; a third text is the tone of the value."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for name, text, *tone in values:
        if text:
            grid.add_row(line(name), line(text, _STYLES.get("".join(tone), "")))
    return grid


class Rows:
    """A table of reports, without the columns for which a terminal is too narrow.

    Args:
        reports: The reports.
        most: Maximum number of rows; the others are counted.
    """

    def __init__(self, columns: Iterable[Column], reports: Sequence[object], most: int | None = None) -> None:
        self._columns, self._reports, self._most = columns, reports, most

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield the table, and a line if rows are left out."""
        grid = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        columns = [column for column in self._columns if options.max_width >= column.room]
        for one in columns:
            side = "right" if one.is_number else "left"
            grid.add_column(one.title, justify=side, no_wrap=not one.folds, overflow="fold")  # type: ignore[arg-type]
        for report in self._reports[: self._most]:
            grid.add_row(*(_cell(column, report) for column in columns))
        yield grid
        if self._most is not None and (more := len(self._reports) - self._most) > 0:
            yield line(f"… and {more:,} more; --json has them all", "dim")


def _cell(column: Column, report: object) -> Text:
    text = column.text(report)
    style = _STYLES.get(text.partition(",")[0], "") if column.title == "state" else ""
    return Text(text, style=style, overflow="fold")

"""Lines, tables and facts that a command prints, and their layout on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from rich import box
from rich.console import RenderableType
from rich.table import Table as Grid
from rich.text import Text

from airflow_s3commit._format import plain
from airflow_s3commit.present import Fact

#: Colours of states and judgements.
_STYLES = {
    "open": "cyan",
    "sealed": "cyan",
    "publishing": "yellow",
    "committed": "green",
    "aborted": "dim",
    "bad": "red",
}


class Line(NamedTuple):
    """A line of text; control characters are escaped.

    Attributes:
        text: The text.
        style: Style of the text, or of the label if there is one.
        label: Text before it.

    """

    text: object
    style: str = ""
    label: str = ""

    def drawn(self, _width: int) -> Text:
        """Return the line for a terminal."""
        if self.label:
            return Text.assemble((self.label, self.style), plain(self.text), overflow="fold")
        return Text(plain(self.text), style=self.style, overflow="fold")


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        title: Heading.
        right: Whether the cells are aligned to the right, as numbers.
        room: Minimum width of the terminal, in characters, to show the column.
        whole: Whether the cells are never folded.

    """

    title: str
    right: bool = False
    room: int = 0
    whole: bool = True


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        columns: The columns.
        rows: The rows: text, numbers or `Line` values, or lists of them, one for each column.
        title: Heading of the table.

    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[object]]
    title: str | None = None

    def drawn(self, width: int) -> RenderableType:
        """Return the table for a terminal, without the columns that it is too narrow for."""
        grid = Grid(
            box=box.SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
            title=self.title,
            title_justify="left",
            title_style="bold",
        )
        shown = [n for n, column in enumerate(self.columns) if width >= column.room]
        for column in (self.columns[n] for n in shown):
            grid.add_column(
                column.title,
                justify="right" if column.right else "left",
                no_wrap=column.whole,
                overflow="fold",
            )
        for row in self.rows:
            grid.add_row(*(_cell(row[n], width) for n in shown))
        return grid


@dataclass(frozen=True)
class Facts:
    """Labels and values, one pair per line; pairs without a value are left out."""

    pairs: Sequence[tuple[str, object] | Fact]

    def drawn(self, width: int) -> RenderableType:
        """Return the facts for a terminal."""
        grid = Grid.grid(padding=(0, 2))
        grid.add_column(no_wrap=True, style="dim")
        grid.add_column(overflow="fold")
        for pair in self.pairs:
            name, value = (pair.name, toned(pair)) if isinstance(pair, Fact) else pair
            if value is not None and value != "":
                grid.add_row(name, _cell(value, width))
        return grid


View: TypeAlias = Line | Table | Facts

BLANK = Line("")
DRY_RUN = Line("dry run: nothing was changed", "yellow")
NOT_APPLIED = Line("dry run: nothing was changed; add --apply to do it", "yellow")


def toned(fact: Fact) -> Line:
    """Return a fact's text in the colour of its tone."""
    return Line(fact.text, _STYLES.get(fact.tone, ""))


def state_cell(state: str | None) -> Line:
    """Return a job's state in its colour."""
    return Line(state or "none", _STYLES.get(state or "", "red"))


def labelled(label: str, texts: Iterable[str], style: str) -> Iterator[Line]:
    """Yield a line for each text, with the same label."""
    return (Line(text, style, f"{label}: ") for text in texts)


def _cell(value: object, width: int) -> Text:
    if isinstance(value, list):
        return Text("\n", overflow="fold").join(line.drawn(width) for line in value)
    return (value if isinstance(value, Line) else Line("" if value is None else value)).drawn(width)

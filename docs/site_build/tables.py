"""Markdown tables, and what Markdown would take for its own in a cell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown; cells are Markdown already."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def cell(text: str) -> str:
    """Return docstring text as one cell: a line, with reST's double backticks as Markdown's single ones."""
    return " ".join(text.split()).replace("``", "`").replace("|", "\\|").replace("<", "&lt;")


def code(text: str) -> str:
    """Return something as code in a cell."""
    return f"`{text}`".replace("|", "\\|")

"""The code in the documentation: every fenced block, with its page, its line and what it is marked as."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["DOCS", "ROOT", "Block", "all_blocks", "blocks_of", "pages"]

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_FENCE = re.compile(r"^(?P<indent>\s*)(?P<fence>`{3,})\s*(?P<info>.*)$")
_TITLE = re.compile(r'title="([^"]+)"')
_MARK = re.compile(r"^<!-- test: (.+) -->$")


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Attributes:
        page: The page, relative to docs/.
        line: Line of its first line of code, from 1 on.
        language: The word behind the fence; empty if there is none.
        title: Its title, if it has one: the name of the file it is.
        mark: What ``<!-- test: … -->`` above it says of it.
        text: The code.
    """

    page: str
    line: int
    language: str
    title: str
    mark: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Return every page, the README too: it has snippets as well."""
    return [*sorted(DOCS.rglob("*.md")), ROOT / "README.md"]


def all_blocks(*languages: str) -> list[Block]:
    """Return the blocks of all pages in some languages."""
    return [block for page in pages() for block in blocks_of(page) if block.language in languages]


def blocks_of(page: Path) -> Iterator[Block]:
    """Return the blocks of one page, in order."""
    name = str(page.relative_to(DOCS if page.is_relative_to(DOCS) else ROOT))
    opened: re.Match[str] | None = None
    mark, above, begun = "", "", 0
    lines: list[str] = []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if opened is None:
            fence = _FENCE.match(line)
            if fence is not None:
                opened, begun, lines = fence, number + 1, []
                marked = _MARK.match(above)
                mark = marked[1] if marked else ""
            above = line.strip() or above
        elif line.strip() == opened["fence"]:
            words = opened["info"].split()
            title = _TITLE.search(opened["info"])
            yield Block(
                name,
                begun,
                words[0] if words else "",
                title[1] if title else "",
                mark,
                textwrap.dedent("\n".join(lines)) + "\n",
            )
            opened, above = None, ""
        else:
            lines.append(line)
    assert opened is None, f"{name}: the block at line {begun} is not closed"

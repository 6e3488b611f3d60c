"""Which listings tell cheapest what lies in some directories: one of each, or one of all that is around them.

A listing of a directory costs a request though there be three objects in it; a listing of its parent brings a
thousand objects a request, of directories that nobody asked about too. How many those are is not known
before. So a parent is listed up to the point where it has cost as much time as listing the directories side
by side would: if it ends sooner it was the better way, if not little was lost.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

__all__ = ["WideListing", "choose_listing"]

#: Objects that a request lists.
_PAGE = 1_000

#: Pages of a parent that are held in memory at most.
_MOST_PAGES = 50

#: Directories from which on it is worth a try.
_ENOUGH = 64


@dataclass(frozen=True, slots=True)
class WideListing:
    """One listing in place of many.

    Attributes:
        directory: The directory to list with all below it; ``""`` for the root.
        objects: How many objects may be listed before it is given up.

    """

    directory: str
    objects: int


def choose_listing(directories: Collection[str], threads: int) -> WideListing | None:
    """Return the listing to try in place of one of each directory; None if there are too few of them.

    Args:
        directories: The directories, relative to one root; ``""`` for the root itself.
        threads: How many are listed side by side; 0 and 1 are one after the other.

    """
    if len(directories) < _ENOUGH:
        return None
    pages = min(len(directories) // max(threads, 1), _MOST_PAGES)
    return WideListing(_around(directories), pages * _PAGE) if pages else None


def _around(directories: Collection[str]) -> str:
    """Return the deepest directory that all of them are, or lie in."""
    least, greatest = min(directories).split("/"), max(directories).split("/")
    common = []
    for one, other in zip(least, greatest, strict=False):
        if one != other:
            break
        common.append(one)
    return "/".join(common)

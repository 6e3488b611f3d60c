"""List the data objects of many directories: each of them, or their common parent, whichever is cheaper.

Listing a directory costs at least one request, however few objects it has; listing the parent yields a
thousand objects a request, but of other directories too, and how many is unknown. So the parent is listed
until it has cost as much time as listing the directories concurrently would; if it has not ended by then,
they are listed.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from airflow_s3commit.exceptions import InvalidDestination
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.model.destination import Destination, is_data
from airflow_s3commit.protocol.model.layout import (
    HOME,
    partition_of,
)
from airflow_s3commit.store.base import ObjectInfo
from airflow_s3commit.store.execute import in_threads

logger = logging.getLogger(__name__)

#: Objects in one page of a listing.
_PAGE = 1_000

#: Maximum number of a parent's pages to hold in memory.
_MOST_PAGES = 50

#: Minimum number of directories for which the parent is tried.
_ENOUGH = 64


@dataclass(frozen=True, slots=True)
class WideListing:
    """One recursive listing in place of many.

    Attributes:
        directory: The directory to list; ``""`` for the root.
        objects: Number of objects after which to give up.
    """

    directory: str
    objects: int


def choose_listing(directories: Collection[str], threads: int) -> WideListing | None:
    """Return the listing to try in place of one for each directory; None if there are too few of them.

    Args:
        directories: The directories, relative to one root; ``""`` for the root itself.
        threads: How many are listed concurrently; 0 and 1 list sequentially.
    """
    if len(directories) < _ENOUGH:
        return None
    pages = min(len(directories) // max(threads, 1), _MOST_PAGES)
    return WideListing(_around(directories), pages * _PAGE) if pages else None


def _around(directories: Collection[str]) -> str:
    """Return the deepest common directory."""
    least, greatest = min(directories).split("/"), max(directories).split("/")
    common = []
    for one, other in zip(least, greatest, strict=False):
        if one != other:
            break
        common.append(one)
    return "/".join(common)


def data_objects(
    context: JobContext, directories: Iterable[str] | None, *, nested: set[str] | None = None
) -> Iterator[ObjectInfo]:
    """Yield the data objects of some directories (without those below them), or of the whole destination.

    Skips hidden objects, directory markers and staging prefixes. Lists the common parent of many directories
    where that is cheaper; otherwise prefetches the first page of each, several at once.

    Args:
        context: Any job of the destination.
        directories: Directories of the destination; None for all of it.
        nested: Gets the directories below that are destinations themselves, where all of it is listed.
    """
    destination, store = context.layout.destination, context.store
    if directories is None:
        found: Iterable[ObjectInfo] = store.list_objects(destination.bucket, destination.prefix)
    else:
        touched = list(directories)
        wide = _list_around(context, touched)
        found = wide if wide is not None else _list_directories(context, touched)
    for info in found:
        relative = destination.relative(info.key)
        if relative is not None and is_data(relative):
            yield info
        elif nested is not None and directories is None and relative and f"/{HOME}/" in relative:
            nested.add(f"{relative.partition(f'/{HOME}/')[0]}/")


def refuse_nested(destination: Destination, nested: Collection[str]) -> None:
    """Return if there is no destination below this one, whose files would be taken for its own.

    Args:
        destination: The destination, listed as a whole.
        nested: What `data_objects` found.

    Raises:
        InvalidDestination: There is one.
    """
    if nested:
        raise InvalidDestination(
            f"{destination.uri}: below it are datasets of their own, such as {destination.uri}{min(nested)},"
            " whose files it would take for its own; nothing was changed: name the one that is meant"
        )


def _list_around(context: JobContext, directories: list[str]) -> list[ObjectInfo] | None:
    """List the common parent of the directories; None if it has too many objects, or is not worth it."""
    choice = choose_listing(directories, context.threads)
    if choice is None:
        return None
    destination, touched = context.layout.destination, set(directories)
    prefix = destination.key(f"{choice.directory}/" if choice.directory else "")
    found = []
    for seen, info in enumerate(context.store.list_objects(destination.bucket, prefix)):
        if seen == choice.objects:
            return None
        if partition_of(destination.relative(info.key) or "") in touched:
            found.append(info)
    return found


def _list_directories(context: JobContext, directories: Iterable[str]) -> Iterator[ObjectInfo]:
    destination = context.layout.destination

    def first_page(directory: str) -> tuple[list[ObjectInfo], Iterator[ObjectInfo]]:
        prefix = destination.key(f"{directory}/" if directory else "")
        pages = context.store.list_objects(destination.bucket, prefix, recursive=False)
        return list(islice(pages, _FIRST_PAGE)), pages

    for page, rest in in_threads(first_page, directories, context.threads):
        yield from page
        yield from rest


_FIRST_PAGE = 1_000

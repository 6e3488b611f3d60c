"""List the data objects of a destination, or of some of its directories, several at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import islice

from airflow_s3commit.exceptions import InvalidDestination
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.model.destination import Destination, is_data
from airflow_s3commit.protocol.model.layout import HOME
from airflow_s3commit.store.base import ObjectInfo
from airflow_s3commit.store.execute import in_threads

#: Objects of a directory to list ahead.
_FIRST_PAGE = 1_000


def data_objects(
    context: JobContext, directories: Iterable[str] | None, *, nested: set[str] | None = None
) -> Iterator[ObjectInfo]:
    """Yield the data objects of some directories (without those below them), or of the whole destination.

    Skips hidden objects, directory markers and staging prefixes.

    Args:
        context: Any job of the destination.
        directories: Directories of the destination; None for all of it.
        nested: Gets the directories below that are destinations themselves, where all of it is listed.
    """
    destination, store = context.layout.destination, context.store
    if directories is None:
        found: Iterable[ObjectInfo] = store.list_objects(destination.bucket, destination.prefix)
    else:
        found = _list_directories(context, directories)
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


def _list_directories(context: JobContext, directories: Iterable[str]) -> Iterator[ObjectInfo]:
    destination = context.layout.destination

    def first_page(directory: str) -> tuple[list[ObjectInfo], Iterator[ObjectInfo]]:
        prefix = destination.key(f"{directory}/" if directory else "")
        pages = context.store.list_objects(destination.bucket, prefix, recursive=False)
        return list(islice(pages, _FIRST_PAGE)), pages

    for page, rest in in_threads(first_page, directories, context.threads):
        yield from page
        yield from rest

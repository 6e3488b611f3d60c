"""List the data objects of many directories: each of them, or their common parent, whichever is cheaper.

Listing a directory costs at least one request, however few objects it has; listing the parent yields a
thousand objects a request, but of other directories too, and how many is unknown. So the parent is listed
until it has cost as much time as listing the directories concurrently would; if it has not ended by then,
they are listed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from airflow_s3commit.exceptions import InvalidDestination, InvalidRecord, NoSuchKey
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.model.codec import decode, largest
from airflow_s3commit.protocol.model.destination import Destination, is_data, join_uri
from airflow_s3commit.protocol.model.job import JobRecord
from airflow_s3commit.protocol.model.layout import (
    HOME,
    Layout,
    aborted_prefix,
    manifests_prefix,
    owner_of,
    partition_of,
)
from airflow_s3commit.protocol.model.ownership import is_written_here
from airflow_s3commit.store.base import Fetched, Get, Head, ObjectInfo, Outcome
from airflow_s3commit.store.execute import in_batches, in_threads, outcomes

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


def settled_objects(
    context: JobContext,
    directories: Iterable[str] | None,
    has_ended: Callable[[str], bool] = lambda _job_id: False,
    *,
    nested: set[str] | None = None,
) -> Iterator[ObjectInfo]:
    """Yield the data objects that `data_objects` yields, without those of this job and of unfinished jobs.

    An unfinished job is neither committed nor aborted: its objects are not part of the dataset yet. Which
    jobs are finished is read after each page of the listing.

    Before: the log is read, and its newest entry is recorded (`Log.record_newest`).

    Args:
        context: The job.
        directories: Directories of the destination; None for all of it.
        has_ended: Returns whether a job is known to have ended (`Log.has_ended`).
        nested: As for `data_objects`.

    """
    unfinished = {context.job_id: True}
    for page in in_batches(data_objects(context, directories, nested=nested), _PAGE):
        owners = {info.key: owner_of(info.key) for info in page}
        new = {
            owner: key
            for key, owner in owners.items()
            if owner is not None and owner not in unfinished and not has_ended(owner)
        }
        unfinished |= _are_unfinished(context, new)
        for info in page:
            if not unfinished.get(owners[info.key] or "", False):
                yield info


def has_older_data(context: JobContext) -> bool:
    """Return whether a destination without a history has data.

    Objects of this job and of unfinished jobs do not count. Takes one request for an empty destination.
    """
    home, store = context.layout.destination, context.store
    unfinished = {context.job_id: True}
    for info in store.list_objects(home.bucket, home.prefix):
        relative = home.relative(info.key)
        if relative is None or not is_data(relative):
            continue
        owner = owner_of(info.key)
        if owner is not None and owner not in unfinished:
            unfinished |= _are_unfinished(context, {owner: info.key})
        if owner is None or not unfinished[owner]:
            return True
    return False


def _are_unfinished(context: JobContext, owners: Mapping[str, str]) -> dict[str, bool]:
    """Return for each job whether it is unfinished, and log those that are."""
    found = are_unfinished(context, owners)
    for job_id in (job_id for job_id, is_unfinished in found.items() if is_unfinished):
        logger.warning(
            "%s: leaving the files of job %s, which has neither committed nor ended: see s3commit show %s %s",
            context.name,
            job_id,
            context.layout.destination.uri,
            job_id,
        )
    return found


def are_unfinished(context: JobContext, owners: Mapping[str, str]) -> dict[str, bool]:
    """Return for each job whether it has begun here and not ended.

    It has ended if there is a manifest or abort record of it, even one that was copied here. It has begun
    here if its object carries this destination, or if its record in the default staging was not copied.

    Args:
        context: The job that asks.
        owners: The key of an object of each job.

    """
    home = context.layout.destination
    unknown = dict(owners)
    for prefix in (manifests_prefix(home), aborted_prefix(home)):
        calls = [(job_id, Head(home.bucket, f"{prefix}{job_id}.json")) for job_id in unknown]
        for job_id, outcome in outcomes(context.store, calls, NoSuchKey):
            if isinstance(outcome, ObjectInfo):
                del unknown[job_id]
    begun = {
        job_id
        for job_id, outcome in outcomes(
            context.store, ((job_id, Head(home.bucket, key)) for job_id, key in unknown.items()), NoSuchKey
        )
        if isinstance(outcome, ObjectInfo) and is_written_here(outcome, home)
    }
    limit = largest(JobRecord)
    reads = [
        (job_id, Get(home.bucket, Layout.of(home, job_id).job, limit))
        for job_id in unknown
        if job_id not in begun
    ]
    for job_id, read in outcomes(context.store, reads, NoSuchKey, InvalidRecord):
        if not isinstance(read, NoSuchKey) and not _is_copied(read, home):
            begun.add(job_id)
    return {job_id: job_id in begun for job_id in owners}


def _is_copied(read: Outcome, home: Destination) -> bool:
    """Return whether a job's record names another destination; a damaged one does not."""
    if not isinstance(read, Fetched):
        return False
    where = join_uri(home.bucket, read.info.key)
    with suppress(InvalidRecord):
        return decode(JobRecord, read.body, where).destination != home.uri
    return False


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

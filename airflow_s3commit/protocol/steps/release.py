"""Retention: release what commits took and kept in place for a while, then delete it.

The release is an entry of the log: after it no rollback brings the files back, whoever deletes them and when.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from airflow_s3commit.exceptions import Unavailable
from airflow_s3commit.protocol.metadata.context import JobContext, after_effect, naming
from airflow_s3commit.protocol.metadata.listing import data_objects
from airflow_s3commit.protocol.metadata.removal import delete_objects
from airflow_s3commit.protocol.metadata.store_check import STORE_CLOCK_SECONDS
from airflow_s3commit.protocol.model.job import Position
from airflow_s3commit.protocol.model.layout import entry_key, owner_of, partition_of
from airflow_s3commit.protocol.model.table import Entry, Retained, Table
from airflow_s3commit.protocol.steps.append import TRIES, append
from airflow_s3commit.protocol.steps.files import OlderFiles
from airflow_s3commit.protocol.steps.fold import read_table, write_checkpoint
from airflow_s3commit.protocol.steps.log import Log
from airflow_s3commit.protocol.steps.publish import publish, publish_if_missing
from airflow_s3commit.store.base import Head, ObjectInfo, ObjectToDelete
from airflow_s3commit.store.execute import outcomes

logger = logging.getLogger(__name__)

_BATCH = 1_000


def release(context: JobContext, now: float) -> int:
    """Release what has been retained for long enough, and delete all that was ever released.

    Repeatable by any process, beside jobs and rollbacks.

    Args:
        context: A job of the destination with an id that nobody uses.
        now: The store's time, in seconds since the epoch.

    Returns:
        How many objects were deleted.

    Raises:
        Unavailable: Entries of jobs came first a hundred times: run it again.
        OutcomeUnknown: A response was lost, or a request failed after the entry: run it again.
    """
    store, home, log, deleted = context.store, context.layout.destination, Log(context), 0
    with naming(context, "release of retained files"):
        for _ in range(TRIES):
            log.read()
            if not log.head.number:
                return 0
            if (newest := log.read_newest()) is not None and newest.published:
                publish_if_missing(context, newest)
            # What may go is worked out anew at each try: a rollback may have brought some of it back.
            table = read_table(store, home, log.head.number)
            # A release makes the table forget what the one before freed; so that is deleted first.
            deleted += _delete_freed(context, table)
            if not (frees := due(context, table, now)):
                return deleted

            def freeing(head: Position, frees: list[int] = frees) -> Entry:
                return Entry(
                    destination=home.uri,
                    number=head.number + 1,
                    kind="release",
                    prev=head.sha256,
                    since=context.now_ms(),
                    frees=frees,
                    nonce=context.new_id(),
                )

            if (entry := append(context, log, freeing)) is not None:
                logger.info("%s: released what generations %s took", home.uri, frees)
                if entry.published:
                    publish(context, entry)
                write_checkpoint(store, home, entry)
                done = (
                    f"entry {entry.number} of the log of {home.uri} releases files, and not all are deleted"
                )
                with after_effect(done, "run it again"):
                    return deleted + _delete_freed(context, read_table(store, home, entry.number))
        raise Unavailable(
            f"{home.uri}: entries of jobs came first {TRIES} times; nothing is released, run it again"
        )


def due(context: JobContext, table: Table, now: float) -> list[int]:
    """Return the generations whose retention has passed, by the store's clock.

    Args:
        context: Any job of the destination.
        now: The store's time, in seconds since the epoch.
    """
    ages = retained_since(context, table, now)
    return sorted(one for one, age in ages.items() if is_over(table.retained[one], age))


def retained_since(context: JobContext, table: Table, now: float) -> dict[int, float]:
    """Return for how many seconds each generation retains what it took. Arguments as for `due`."""
    home = context.layout.destination
    calls = [(generation, Head(home.bucket, entry_key(home, generation))) for generation in table.retained]
    entered = outcomes(context.store, calls)
    return {generation: now - info.modified for generation, info in entered if isinstance(info, ObjectInfo)}


def is_over(retained: Retained, age: float) -> bool:
    """Return whether files were retained for long enough."""
    return age > retained.seconds + STORE_CLOCK_SECONDS


def _delete_freed(context: JobContext, table: Table) -> int:
    if not table.freed:
        return 0
    doomed = (ObjectToDelete(info.key, info.etag) for info in freed_objects(context, table))
    return delete_objects(context, doomed, "release")


def freed_objects(context: JobContext, table: Table) -> Iterator[ObjectInfo]:
    """Yield the objects that are still there of what the newest release freed.

    What is freed never comes back, so it does not matter how old the table is.

    Args:
        context: Any job of the destination.
    """
    pieces: dict[str, list[int]] = {}
    unowned: dict[str, str] = {}
    for one in table.freed.values():
        unowned |= one.unowned
        for name, numbers in one.pieces.items():
            pieces.setdefault(name, []).extend(numbers)
    jobs = {
        (name, owner)
        for name, numbers in pieces.items()
        for number in numbers
        for owner in table.sources[number].owners
    }
    touched = {*pieces, *(partition_of(context.layout.destination.relative(key) or "") for key in unowned)}
    older: OlderFiles | None = None
    for info in data_objects(context, touched):
        owner = owner_of(info.key)
        if owner is not None and (_partition(context, info), owner) in jobs:
            yield info
        elif owner is None or older is not None or (_partition(context, info), None) in jobs:
            older = older or OlderFiles(context.store, context.layout.destination, table, pieces)
            if (info.key, info.etag) in older or unowned.get(info.key) == info.etag:
                yield info


def strays(context: JobContext) -> dict[str, list[ObjectInfo]]:
    """Return the data objects with a job's id in their names that the table does not know, by job.

    An object and the job may have any relation: the job may be open, its commit may be the newest entry
    without a receipt, or the object may be a copy.
    """
    store, home = context.store, context.layout.destination
    before = read_table(store, home)
    suspects = [
        info
        for info in data_objects(context, None)
        if (owner := owner_of(info.key)) and owner not in before.jobs_in(_partition(context, info))
    ]
    after = read_table(store, home) if suspects else before
    pieces = {name: after.numbers_in(name) for name in {_partition(context, info) for info in suspects}}
    # Other programs' names may have ids too, and those of files that are older than the log.
    older = OlderFiles(store, home, after, pieces)
    found: dict[str, list[ObjectInfo]] = {}
    for info in suspects:
        owner = owner_of(info.key)
        is_known = owner in after.jobs_in(_partition(context, info)) or (info.key, info.etag) in older
        if owner is not None and not is_known:
            found.setdefault(owner, []).append(info)
    return found


def _partition(context: JobContext, info: ObjectInfo) -> str:
    return partition_of(context.layout.destination.relative(info.key) or "")

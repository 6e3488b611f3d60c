"""What commits have added since a generation, for readers that read each file once."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_s3commit.exceptions import HistoryRewound, NoSuchKey
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.manifest import FileEntry
from airflow_s3commit.protocol.steps.files import files_in
from airflow_s3commit.protocol.steps.fold import entries_after, read_table
from airflow_s3commit.protocol.steps.log import read_entry
from airflow_s3commit.store.base import ObjectStore


def refuse_rewound(store: ObjectStore, home: Destination, since: int, last: int) -> None:
    """Raise if a reader at a generation cannot go on to a later one by the files that were added since.

    After a rollback no rule tells by the generation alone which files a reader has seen: of two readers at
    one generation, one may have read a file that came back, and the other not.

    Args:
        store: The store of the destination.
        home: The destination.
        since: The newest generation that the reader has read; 0 for none.
        last: Number of the entry to go on to; 0 for an empty log.

    Raises:
        HistoryRewound: A rollback came in between, or the log has no such entry. Read the whole table, and go
            on from its generation.
        InvalidRecord: An entry is damaged.

    """
    if not since:
        return
    try:
        begin = read_entry(store, home, since).position
    except NoSuchKey as error:
        raise HistoryRewound(
            f"{home.uri} has no generation {since}: its log was begun anew since. Read the whole table, and"
            " go on from its generation"
        ) from error
    for read in entries_after(store, home, begin, last):
        commit = read.entry.commit
        if commit is not None and commit.rolled_back_to:
            raise HistoryRewound(
                f"{home.uri} was rolled back to {commit.rolled_back_to} by generation {read.entry.number},"
                f" after generation {since}. Read the whole table, and go on from its generation"
            )


def files_since(store: ObjectStore, home: Destination, generation: int) -> tuple[int, Iterator[FileEntry]]:
    """Return the newest generation, and the files of the table that later commits than a generation added.

    Args:
        store: The store of the destination.
        home: The destination.
        generation: The newest generation that the reader has read; 0 for none.

    Raises:
        HistoryRewound: As for `refuse_rewound`.
        InvalidRecord: An entry or a list of files is damaged.

    """
    table = read_table(store, home)
    refuse_rewound(store, home, generation, table.head.number)
    added = {name: [n for n in numbers if n > generation] for name, numbers in table.live.items()}
    return table.generation, files_in(store, home, table.sources, added)

"""What commits have added since a generation, for readers that read each file once."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_s3commit.exceptions import HistoryRewound, NoSuchKey
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import Position
from airflow_s3commit.protocol.model.manifest import FileEntry
from airflow_s3commit.protocol.steps.files import files_in
from airflow_s3commit.protocol.steps.fold import entries_after, read_table
from airflow_s3commit.protocol.steps.log import read_entry
from airflow_s3commit.store.base import ObjectStore


def files_since(store: ObjectStore, home: Destination, generation: int) -> tuple[int, Iterator[FileEntry]]:
    """Return the newest generation, and the files of the table that later commits than a generation added.

    After a rollback no rule tells by the generation alone which files a reader has seen: of two readers at
    one generation, one may have read a file that came back, and the other not.

    Args:
        store: The store of the destination.
        home: The destination.
        generation: The newest generation that the reader has read; 0 for none.

    Raises:
        HistoryRewound: A rollback came after the generation, or the log has no entry of this number. Read the
            whole table, and go on from its generation.
        InvalidRecord: An entry or a list of files is damaged.

    """
    try:
        begin = read_entry(store, home, generation).position if generation else Position()
    except NoSuchKey as error:
        raise HistoryRewound(
            f"{home.uri} has no generation {generation}: its log was begun anew since. Read the whole table,"
            " and go on from its generation"
        ) from error
    head = begin
    for read in entries_after(store, home, begin):
        head = read.position
        if read.entry.commit is not None and read.entry.commit.rolled_back_to:
            raise HistoryRewound(
                f"{home.uri} was rolled back to {read.entry.commit.rolled_back_to} by generation"
                f" {head.number}, after generation {generation}. Read the whole table, and go on from its"
                " generation"
            )
    table = read_table(store, home, head.number)
    added = {name: [n for n in numbers if n > generation] for name, numbers in table.live.items()}
    return table.generation, files_in(store, home, table.sources, added)

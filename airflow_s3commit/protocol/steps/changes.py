"""What each commit changes in a table: the difference of the table before and after it, by partition.

That one rule serves an append, a replace, a rollback and a compaction, and needs no list of files but those
that differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from airflow_s3commit.exceptions import InvalidRecord, NoSuchKey
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import Position
from airflow_s3commit.protocol.model.manifest import FileEntry
from airflow_s3commit.protocol.model.table import Entry, Pieces, Source, Table
from airflow_s3commit.protocol.steps.files import files_in
from airflow_s3commit.protocol.steps.fold import entries_after, read_table
from airflow_s3commit.store.base import ObjectStore


@dataclass(frozen=True)
class Contents:
    """What a table consists of at a moment: its commits by partition, and the commits by number."""

    live: Mapping[str, frozenset[int]]
    sources: Mapping[int, Source]

    @classmethod
    def of(cls, table: Table) -> Contents:
        """Return what a table consists of now; later entries do not change it."""
        return cls({name: frozenset(numbers) for name, numbers in table.live.items()}, {**table.sources})

    def without(self, other: Contents) -> Pieces:
        """Return the commits by partition that the other does not have there."""
        differing = {name: numbers - other.live.get(name, frozenset()) for name, numbers in self.live.items()}
        return {name: numbers for name, numbers in differing.items() if numbers}


@dataclass(frozen=True)
class TableChange:
    """What a commit changes.

    Attributes:
        entry: Its entry.
        table: The table after it, at whose head it is. Use it before the next change is drawn.
        removed: The files that leave the table, in any order.
        added: The files that enter it, in any order.
    """

    entry: Entry
    table: Table
    removed: Iterator[FileEntry]
    added: Iterator[FileEntry]


def changes(store: ObjectStore, home: Destination, since: Position) -> Iterator[TableChange]:
    """Yield what each commit after an entry changes, oldest first.

    Args:
        since: The entry. After none, number 0, the first change has the whole table as it is now: files that
            older commits removed may be gone.

    Raises:
        InvalidRecord: The log does not have this entry; or one is damaged, or does not follow the one before.
    """
    if since.number:
        try:
            table = read_table(store, home, since.number)
        except NoSuchKey:
            table = Table()
        if table.head != since:
            raise InvalidRecord(
                f"the log of {home.uri} does not have the entry {since.number} that it had: it was begun anew"
            )
        was = Contents.of(table)
    else:
        newest = read_table(store, home).generation
        table = read_table(store, home, max(newest - 1, 0))
        was = Contents({}, {})
    for read in entries_after(store, home, table.head):
        table.apply(read.entry, read.sha256)
        if read.entry.commit is None:
            continue
        now = Contents.of(table)
        yield TableChange(
            read.entry,
            table,
            files_in(store, home, was.sources, was.without(now)),
            files_in(store, home, now.sources, now.without(was)),
        )
        was = now

"""The generations of a table, for a page: newest first, a page at a time, with the table's size after each.

A page takes a bounded number of requests, however long the log is: its entries, a checkpoint before them, and
one entry for each other commit that had files then, to know whose they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from airflow_s3commit import _format
from airflow_s3commit.plugin.stores import Place
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.entry import Entry
from airflow_s3commit.protocol.model.layout import OLDER_DATA
from airflow_s3commit.protocol.model.manifest import Manifest
from airflow_s3commit.protocol.model.sealed_job import Counts
from airflow_s3commit.protocol.model.table import Table
from airflow_s3commit.protocol.steps.fold import entries_after, fetch_entries, read_table
from airflow_s3commit.protocol.steps.log import Read, find_head
from airflow_s3commit.store.base import ObjectStore

#: Entries on one page.
PER_PAGE = 25

#: Maximum number of commits to read beside those of the page, to know whose files the sizes count.
MOST_LIVE = 200


@dataclass(frozen=True, slots=True)
class Step:
    """An entry of the log, for a row of the page.

    Attributes:
        entry: The entry.
        after: Files and bytes of the table after it; None if unknown.

    """

    entry: Entry
    after: Counts | None = None

    @property
    def manifest(self) -> Manifest | None:
        """What a commit added and replaced; None for other entries."""
        return Manifest.of(self.entry) if self.entry.commit is not None else None

    @property
    def partitions(self) -> list[str]:
        """The partitions that a commit changed."""
        commit = self.entry.commit
        return sorted(commit.partitions or commit.restores) if commit is not None else []

    @property
    def note(self) -> str:
        """More about the entry, as text."""
        if self.entry.commit is not None and self.entry.commit.mode == OLDER_DATA:
            return "what was there before the first job"
        if self.entry.frees:
            return f"retained files of {_format.several(len(self.entry.frees), 'commit')} may be deleted"
        return self.entry.why


@dataclass(frozen=True, slots=True)
class HistoryView:
    """A page of a table's history.

    Attributes:
        place: The destination.
        steps: The entries, newest first.
        older: The number to continue before; None if these are the oldest entries of the history.
        hidden: Number of entries on the page that the user may not see.
        sized: Contexts of the commits whose files the sizes count.

    """

    place: Place
    steps: Sequence[Step] = ()
    older: int | None = None
    hidden: int = 0
    sized: Sequence[Mapping[str, str]] = field(default=())

    def visible_to(self, may_read: Callable[[Mapping[str, str]], bool]) -> HistoryView:
        """Return the view without the jobs that a user may not see, and without sizes that would reveal them.

        Args:
            may_read: Returns whether the user may see a job with a given context.

        """
        kept = [step for step in self.steps if step.entry.job_id is None or may_read(step.entry.context)]
        hidden = len(self.steps) - len(kept)
        if hidden or not all(map(may_read, self.sized)):
            kept = [replace(step, after=None) for step in kept]
        return replace(self, steps=kept, hidden=hidden)


def read_history(store: ObjectStore, place: Place, before: int | None) -> HistoryView:
    """Read a page of a table's history.

    Args:
        store: The store of the destination.
        place: The destination.
        before: Leave out the entries from this number on; None for the newest page.

    Raises:
        InvalidRecord: An entry of the log is damaged or missing.
        S3CommitError: A request failed.

    """
    home = place.destination
    last = find_head(store, home)
    if before is not None:
        last = min(last, before - 1)
    first = max(last - PER_PAGE + 1, 1)
    table = read_table(store, home, first - 1)
    sized = _contexts(store, home, list(table.commits()))
    steps: list[Step] = []
    for read in entries_after(store, home, table.head, last):
        table.apply(read.entry, read.sha256)
        steps.insert(0, Step(read.entry, None if sized is None else _size(table)))
    return HistoryView(
        place,
        steps,
        first if first > 1 else None,
        sized=[
            *(sized or ()),
            *(step.entry.context for step in steps if step.entry.job_id and step.entry.commit),
        ],
    )


def _size(table: Table) -> Counts:
    """Return the files and bytes of a table."""
    files = stored = 0
    for name, numbers in table.live.items():
        for number in numbers:
            counts = table.sources[number].partitions[name]
            files, stored = files + counts.files, stored + counts.bytes
    return Counts(files=files, bytes=stored)


def _contexts(
    store: ObjectStore, home: Destination, numbers: Sequence[int]
) -> Sequence[Mapping[str, str]] | None:
    """Return the contexts of the jobs of some commits; None if they are too many."""
    if len(numbers) > MOST_LIVE:
        return None
    found = []
    for _, outcome in fetch_entries(store, home, numbers):
        if not isinstance(outcome, Read):
            raise outcome
        if outcome.entry.job_id is not None:
            found.append(outcome.entry.context)
    return found

"""Compare committed files with the objects at their keys.

Reads only. Differences are findings in a report, not errors.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from typing import ClassVar, NamedTuple

from msgspec import Struct

from airflow_s3commit._columns import Column, Named, some
from airflow_s3commit._format import number, size
from airflow_s3commit.exceptions import NoSuchKey
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.removal import UPLOAD_METADATA
from airflow_s3commit.protocol.model.codec import Plain
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.layout import partition_of
from airflow_s3commit.protocol.model.table import Table
from airflow_s3commit.store.base import Head, ObjectInfo
from airflow_s3commit.store.execute import in_batches, outcomes

#: Maximum number of findings of each kind that a report names; it counts all of them.
MAX_NAMED = 1_000

#: KiB of the expected files in memory.
_CACHE_KIB = 65_536

#: Objects to compare at once.
BATCH = 1_000


class Changed(Struct, frozen=True, kw_only=True):
    """A committed file at whose key there is another object.

    Attributes:
        key: Object key.
        expected_size: Bytes of the committed file.
        size: Bytes of the object.
        expected_etag: ETag of the committed file; empty if it is not known.
        etag: ETag of the object.
    """

    key: str
    expected_size: int
    size: int
    expected_etag: str
    etag: str

    def __str__(self) -> str:
        """Return it in words."""
        before = f"{size(self.expected_size)}, {self.expected_etag}"
        return f"{self.key}: {size(self.size)}, ETag {self.etag}; was {before}"


class Difference(NamedTuple):
    """A committed file that is not as it was committed.

    Attributes:
        key: Object key.
        number: The commit.
        change: The object at the key; None if there is none.
    """

    key: str
    number: int
    change: Changed | None


class FileDifferences(Plain, Struct, kw_only=True):
    """Committed files, and which of them are not as they were committed.

    Attributes:
        files: Number of committed files.
        intact: Number of files that exist unchanged, by their ETag or by the upload id in their metadata.
        by_size: Number of files that exist with the right size, and cannot be compared further: the list of
            files has neither an ETag nor an upload id for them.
        removed: Number of files that are gone or changed because a later commit replaced them.
        missing_count: Number of other files that do not exist.
        missing: Keys of the first `MAX_NAMED` missing files.
        changed_count: Number of other keys with another object: somebody overwrote the file.
        changed: The first `MAX_NAMED` changed files.
    """

    columns: ClassVar[tuple[Column, ...]] = (
        Column("files", "files", number),
        Column("intact", "intact", number),
        Column("right size, and no more to compare", "by_size", some),
        Column("replaced since", "removed", some),
        Column("missing", "missing_count", some),
        Column("changed", "changed_count", some),
    )
    lists: ClassVar[tuple[Named, ...]] = (
        Named("missing", "missing", "missing_count"),
        Named("changed", "changed", "changed_count"),
    )

    files: int = 0
    intact: int = 0
    by_size: int = 0
    removed: int = 0
    missing_count: int = 0
    missing: list[str] = []
    changed_count: int = 0
    changed: list[Changed] = []

    @property
    def complete(self) -> bool:
        """Whether every file exists unchanged that no later commit replaced."""
        return not self.missing_count and not self.changed_count

    def add(self, home: Destination, differences: Iterable[Difference], table: Table) -> None:
        """Count what differs, by a table that was read after the files: it tells which are still needed."""
        for key, commit, change in differences:
            if not table.can_restore(partition_of(home.relative(key) or ""), commit):
                self.removed += 1
            elif change is None:
                self.missing_count += 1
                self.missing += [key] if len(self.missing) < MAX_NAMED else []
            else:
                self.changed_count += 1
                self.changed += [change] if len(self.changed) < MAX_NAMED else []


class ExpectedFile(NamedTuple):
    """A file that may be there: its bytes, its ETag and upload id, empty if unknown, and its commit.

    The number of the commit is 0 or less for a file that need not be there.
    """

    size: int
    etag: str
    upload: str
    number: int


class ExpectedFiles:
    """Files by key, in a temporary database on disk: memory does not grow with their number.

    Args:
        context: Any job of the destination.
        report: Counts and names what differs.
        newest: Returns the table as it is now, which tells which files are still needed.
    """

    def __init__(self, context: JobContext, report: FileDifferences, newest: Callable[[], Table]) -> None:
        self._context, self._report, self._newest = context, report, newest
        self._rows = sqlite3.connect("", isolation_level=None)
        self._rows.execute("PRAGMA journal_mode = OFF")
        self._rows.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        self._rows.execute(
            "CREATE TABLE file (key BLOB PRIMARY KEY, size INT, etag TEXT, upload TEXT, number INT)"
            " WITHOUT ROWID"
        )
        self._rows.execute("BEGIN")

    def close(self) -> None:
        """Delete the database."""
        self._rows.close()

    def add(self, key: str, file: ExpectedFile) -> None:
        """Add a file; of two with one key the one with the greater number counts."""
        self._rows.execute(
            "INSERT INTO file VALUES (?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET size = excluded.size,"
            " etag = excluded.etag, upload = excluded.upload, number = excluded.number"
            " WHERE excluded.number > number",
            (_bytes_of(key), *file),
        )

    def count(self) -> int:
        """Return the number of files that must be there, and were not looked at."""
        return int(self._rows.execute("SELECT count(*) FROM file WHERE number > 0").fetchone()[0])

    def compare(self, batch: list[ObjectInfo]) -> list[tuple[ObjectInfo, ExpectedFile | None]]:
        """Compare listed objects with the files that must be there; return the others, and what is known."""
        found = [(info, self._pop(info.key)) for info in batch]
        pairs = [(info, file) for info, file in found if file is not None and file.number > 0]
        self._add(_compare(self._context, pairs, self._report))
        return [(info, file) for info, file in found if file is None or file.number <= 0]

    def add_missing(self) -> None:
        """Add the files to the report that must be there, and were in none of the listings."""
        rows = self._rows.execute("SELECT key, number FROM file WHERE number > 0 ORDER BY key")
        for batch in in_batches(rows, BATCH):
            self._add([Difference(key.decode("utf-8", "surrogatepass"), one, None) for key, one in batch])

    def _add(self, differences: list[Difference]) -> None:
        if differences:
            self._report.add(self._context.layout.destination, differences, self._newest())

    def _pop(self, key: str) -> ExpectedFile | None:
        row = self._rows.execute(
            "SELECT size, etag, upload, number FROM file WHERE key = ?", (_bytes_of(key),)
        ).fetchone()
        if row is not None:
            self._rows.execute("DELETE FROM file WHERE key = ?", (_bytes_of(key),))
        return ExpectedFile(*row) if row is not None else None


def _bytes_of(key: str) -> bytes:
    # Keys of other programs may contain what text in the database cannot.
    return key.encode("utf-8", "surrogatepass")


def _compare(
    context: JobContext, pairs: Iterable[tuple[ObjectInfo, ExpectedFile]], report: FileDifferences
) -> list[Difference]:
    """Compare listed objects with the files that are expected at their keys; return those that differ.

    The others are counted. Sends a HEAD request only for a file whose ETag in the listing is not the expected
    one: the upload id in its metadata decides.
    """
    doubtful: list[tuple[tuple[ObjectInfo, ExpectedFile], Head]] = []
    differing: list[Difference] = []
    for info, file in pairs:
        is_same = info.size == file.size
        if is_same and file.etag and info.etag == file.etag:
            report.intact += 1
        elif is_same and file.upload:
            doubtful.append(((info, file), Head(context.bucket, info.key)))
        elif is_same and not file.etag:
            report.by_size += 1
        else:
            differing.append(_change(info, file))
    for (info, file), outcome in outcomes(context.store, doubtful, NoSuchKey):
        if isinstance(outcome, NoSuchKey):
            differing.append(Difference(info.key, file.number, None))
        elif isinstance(outcome, ObjectInfo) and (outcome.size, outcome.metadata.get(UPLOAD_METADATA)) == (
            file.size,
            file.upload,
        ):
            report.intact += 1
        else:
            differing.append(_change(info, file))
    return differing


def _change(info: ObjectInfo, file: ExpectedFile) -> Difference:
    change = Changed(
        key=info.key, expected_size=file.size, size=info.size, expected_etag=file.etag, etag=info.etag
    )
    return Difference(info.key, file.number, change)

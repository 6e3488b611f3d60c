"""Which files of several commits are read."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.table import Source, Table
from airflow_s3commit.protocol.steps.files import FileSummary
from airflow_s3commit.reader import listing
from airflow_s3commit.reader.listing import TableFile
from airflow_s3commit.store.memory import MemoryStore
from tests.protocol.building import OURS


def test_of_two_files_with_one_path_the_later_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fixed names do not contain the job's id; whatever else the jobs have stays."""
    lists = {1: {"t/a.parquet": 1, "t/b.parquet": 2}, 2: {"t/a.parquet": 3}}
    table = Table()
    table.sources = {number: Source(number, f"j{number}", "", False, {}) for number in lists}

    def each_list(_kind: object, _store: object, _home: object, sources: Any) -> Any:
        for source in reversed([*sources]):
            yield source, [FileSummary(key=key, size=size) for key, size in lists[source.number].items()]

    monkeypatch.setattr(listing, "each_list", each_list)
    files, firsts = listing._files_of(
        MemoryStore(), Destination.parse("s3://lake/t/"), table, {1: [""], 2: [""]}
    )
    found = {path: (file.size, file.job_id) for path, file in files.items()}
    assert found == {"lake/t/a.parquet": (3, "j2"), "lake/t/b.parquet": (2, "j1")}
    assert {number: file.path for number, (file,) in firsts.items()} == {
        1: "lake/t/b.parquet",
        2: "lake/t/a.parquet",
    }


@pytest.mark.parametrize("key", ["s/a", "t/p=1/.a", "t/p=1/_a", "t/p=1/a\x01", "t/p=1/" + "a" * 1_100])
def test_each_key_of_a_list_is_checked(key: str) -> None:
    """A directory that was checked before vouches for no other name in it."""
    entries = [FileSummary(key="t/p=1/a.parquet", size=1, rows=3), FileSummary(key=key, size=1)]
    files = listing._table_files(Destination.parse("s3://lake/t/"), OURS, entries, {})
    assert next(files) == TableFile("lake/t/p=1/a.parquet", 1, "p=1", OURS, 3)
    with pytest.raises(InvalidRecord):
        next(files)

"""Files in columns are the same files."""

from __future__ import annotations

import pickle

import pytest

from airflow_s3commit.protocol.model.columns import ColumnStatistics
from airflow_s3commit.reader.listing import FilesByPath, JobFiles, PackedFiles, TableFile

ONE = [
    TableFile("lake/t/dt=1/a-j1.parquet", 10, "dt=1", "j1", 3),
    TableFile("lake/t/dt=é/b-j1.parquet", 2**40, "dt=é", "j1", 0, {"n": ColumnStatistics(nulls=1)}),
    TableFile("lake/t/c-j1.parquet", 0, "", "j1"),
]
OTHER = [TableFile("lake/t/dt=1/a-j2.parquet", 11, "dt=1", "j2", None)]


def test_what_is_packed_comes_out_as_it_was() -> None:
    """Every field of every file, by number, in slices and in order."""
    files = PackedFiles([JobFiles(ONE), JobFiles([]), JobFiles(OTHER)])
    assert list(files) == [*ONE, *OTHER]
    assert (len(files), files[0], files[3], files[-1]) == (4, ONE[0], OTHER[0], OTHER[0])
    assert files[1:9] == [*ONE[1:], *OTHER]
    with pytest.raises(IndexError):
        _ = files[4]
    assert (len(PackedFiles([])), list(PackedFiles([JobFiles([])]))) == (0, [])


def test_of_two_files_with_one_path_the_later_counts() -> None:
    """Fixed names do not contain the job's id; whatever else the jobs have stays."""
    old = [TableFile("lake/t/a.parquet", 1, "", "j1"), TableFile("lake/t/b.parquet", 2, "", "j1")]
    new = [TableFile("lake/t/a.parquet", 3, "", "j2")]
    assert list(PackedFiles([JobFiles(old), JobFiles(new)])) == [old[1], *new]


def test_a_file_is_found_by_its_path() -> None:
    """Before and after pickling; files that are equal make equal file systems."""
    found = FilesByPath(PackedFiles([JobFiles(ONE), JobFiles(OTHER)]))
    for files in (found, pickle.loads(pickle.dumps(found))):
        assert [files[file.path] for file in (*OTHER, *ONE)] == [*OTHER, *ONE]
        with pytest.raises(KeyError):
            files["lake/t/none"]
    assert found == FilesByPath([*ONE, *OTHER])
    assert found != FilesByPath(ONE)
    assert found != FilesByPath([*ONE, *ONE[:1]])
    assert FilesByPath([]) == FilesByPath(PackedFiles([]))
    with pytest.raises(KeyError):
        FilesByPath([])["x"]

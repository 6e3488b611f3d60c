"""Files are grouped into tasks, and large ones split, as Spark does it."""

from __future__ import annotations

import pytest

from airflow_s3commit.reader.packed import TableFile
from airflow_s3commit.reader.parts import FilePart
from airflow_s3commit.spark.splits import SplitSizes, split_files
from tests.cases import each


def files_of(*sizes: int) -> list[TableFile]:
    """Return files of these sizes."""
    return [TableFile(f"lake/{number}", size, "", "") for number, size in enumerate(sizes)]


def sizes_of(groups: list[list[TableFile]]) -> list[list[int]]:
    """Return the bytes of each task's files."""
    return [[file.length if isinstance(file, FilePart) else file.size for file in group] for group in groups]


def test_small_files_share_a_task_at_the_cost_of_opening_them() -> None:
    """A task takes files, largest first, until their bytes and the cost of opening them exceed its size."""
    sizes = SplitSizes(partition_bytes=100, open_cost=20)
    assert sizes_of(split_files(files_of(10, 30, 10, 30, 10), sizes, splittable=True)) == [
        [30, 30],
        [10, 10, 10],
    ]
    free = SplitSizes(partition_bytes=100, open_cost=0)
    assert sizes_of(split_files(files_of(10, 30, 10, 30, 10), free, splittable=True)) == [
        [30, 30, 10, 10, 10]
    ]
    assert split_files([], sizes, splittable=True) == []


def test_a_large_file_is_read_in_parts() -> None:
    """The ranges follow each other up to the file's end; a file that cannot be split is a task of its own."""
    sizes = SplitSizes(partition_bytes=100, open_cost=20)
    groups = split_files(files_of(250, 30), sizes, splittable=True)
    assert sizes_of(groups) == [[100], [100], [50, 30]]
    parts = [file for group in groups for file in group if isinstance(file, FilePart)]
    assert [(part.start, part.length, part.size) for part in parts] == [
        (0, 100, 250), (100, 100, 250), (200, 50, 250)
    ]  # fmt: skip
    assert sizes_of(split_files(files_of(250, 30), sizes, splittable=False)) == [[250], [30]]


def test_every_core_gets_a_task() -> None:
    """Tasks are smaller than their maximum where there would be too few of them."""
    sizes = SplitSizes(partition_bytes=1_000, open_cost=10, tasks=4)
    assert len(split_files(files_of(*[90] * 8), sizes, splittable=True)) == 4


@each(
    ("conf", "wanted"),
    [
        ({}, SplitSizes(128 << 20, 4 << 20, 3)),
        (
            {"spark.sql.files.maxPartitionBytes": "32MB", "spark.sql.files.openCostInBytes": "0"},
            SplitSizes(32 << 20, 0, 3),
        ),
        (
            {"spark.sql.files.maxPartitionBytes": "134217728b", "spark.sql.files.minPartitionNum": "7"},
            SplitSizes(128 << 20, 4 << 20, 7),
        ),
        ({"spark.sql.leafNodeDefaultParallelism": "5"}, SplitSizes(tasks=5)),
    ],
)
def test_the_sessions_sizes_are_used(conf: dict[str, str], wanted: SplitSizes) -> None:
    """They are those of Spark's own readers, in Spark's notation, with its defaults."""
    assert SplitSizes.of_conf(conf.get, 3) == wanted


def test_a_size_that_is_none_is_refused() -> None:
    """A text without a number is not taken for the default."""
    with pytest.raises(ValueError, match="not a size"):
        SplitSizes.of_conf({"spark.sql.files.maxPartitionBytes": "many"}.get)

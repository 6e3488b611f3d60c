"""Which files, or parts of large files, each task of a read gets: Spark's own way of grouping files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import structs

from airflow_s3commit.reader.parts import FilePart
from airflow_s3commit.tables.option_values import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from airflow_s3commit.reader.packed import TableFile
    from airflow_s3commit.spark.session import ConfGet

_MIB = 1024 * 1024

_PARTITION_BYTES = "spark.sql.files.maxPartitionBytes"
_OPEN_COST = "spark.sql.files.openCostInBytes"
_MIN_PARTITIONS = "spark.sql.files.minPartitionNum"
_LEAF_PARALLELISM = "spark.sql.leafNodeDefaultParallelism"


@dataclass(frozen=True, slots=True)
class SplitSizes:
    """How Spark sizes the tasks of a read; the defaults are Spark's.

    Attributes:
        partition_bytes: Maximum bytes of a task, as ``spark.sql.files.maxPartitionBytes``.
        open_cost: Bytes that opening a file is worth, as ``spark.sql.files.openCostInBytes``.
        tasks: Number of tasks to have at least, if there are enough bytes; 0 if it is not known.

    """

    partition_bytes: int = 128 * _MIB
    open_cost: int = 4 * _MIB
    tasks: int = 0

    @classmethod
    def of_conf(cls, get: ConfGet, parallelism: int = 0) -> SplitSizes:
        """Return the sizes of a session.

        Args:
            get: The session's conf.
            parallelism: Tasks that run at once; 0 if it is not known.

        Raises:
            ValueError: A setting is no size or number.

        """
        sizes = cls()
        least = get(_MIN_PARTITIONS) or get(_LEAF_PARALLELISM)
        return cls(
            _size(get(_PARTITION_BYTES), sizes.partition_bytes),
            _size(get(_OPEN_COST), sizes.open_cost),
            int(least) if least else parallelism,
        )

    def largest(self, files: Iterable[TableFile]) -> int:
        """Return the maximum bytes of a task that reads some of these files."""
        if not self.tasks:
            return self.partition_bytes
        total = sum(file.size + self.open_cost for file in files)
        return max(1, min(self.partition_bytes, max(self.open_cost, total // self.tasks)))


def _size(text: str | None, default: int) -> int:
    plain = (text or "").strip().lower().removesuffix("b")
    if not plain:
        return default
    return 0 if plain == "0" else parse_bytes(plain)


def split_files(files: Sequence[TableFile], sizes: SplitSizes, *, splittable: bool) -> list[list[TableFile]]:
    """Return the files of each task: large ones in parts, the largest first, tasks filled as Spark does.

    Args:
        files: The files.
        sizes: The sizes of tasks.
        splittable: Whether a file can be read in parts.

    """
    largest = sizes.largest(files)
    parts = [part for file in files for part in (_parts(file, largest) if splittable else (file,))]
    groups: list[list[TableFile]] = []
    filled = largest + 1
    for part in sorted(parts, key=_bytes, reverse=True):
        if filled + _bytes(part) > largest:
            groups.append([])
            filled = 0
        groups[-1].append(part)
        filled += _bytes(part) + sizes.open_cost
    return groups


def _bytes(file: TableFile) -> int:
    return file.length if isinstance(file, FilePart) else file.size


def _parts(file: TableFile, largest: int) -> Iterator[TableFile]:
    if file.size <= largest:
        yield file
        return
    for start in range(0, file.size, largest):
        yield FilePart(**structs.asdict(file), start=start, length=min(largest, file.size - start))

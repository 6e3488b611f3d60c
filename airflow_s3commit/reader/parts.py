"""Parts of large files: the row groups of Parquet, and the stripes of ORC, in a range of a file's bytes.

A plan knows only the sizes of files. So a part is a range of bytes, and the task that reads it finds the row
groups in it by the footer. Of all parts of a file, each row group or stripe is in exactly one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import orc

from airflow_s3commit.reader.packed import TableFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow.parquet as pq
    from pyarrow.fs import FileSystem

    from airflow_s3commit.reader.partitions import PartitionColumns


class FilePart(TableFile, frozen=True, gc=False):
    """A part of a file: the row groups, or stripes, whose middle is in a range of its bytes.

    Attributes:
        start: First byte of the range.
        length: Its bytes.

    """

    start: int = 0
    length: int = 0


def row_groups_of(fragment: ds.ParquetFileFragment, part: FilePart) -> list[int]:
    """Return the numbers of the row groups of a Parquet file that are in a part. Reads the footer."""
    footer = fragment.metadata
    found = []
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        chunks = [group.column(column) for column in range(group.num_columns)]
        first = min((_first_byte(chunk) for chunk in chunks), default=0)
        middle = first + sum(chunk.total_compressed_size for chunk in chunks) // 2
        if part.start <= min(middle, part.size - 1) < part.start + part.length:
            found.append(number)
    return found


def _first_byte(chunk: pq.ColumnChunkMetaData) -> int:
    dictionary = chunk.dictionary_page_offset
    return int(dictionary if dictionary else chunk.data_page_offset)


def stripes_of(
    part: FilePart, filesystem: FileSystem, columns: PartitionColumns, names: list[str]
) -> Iterator[pa.Table]:
    """Yield the stripes of an ORC file that are in a part, with the partition columns.

    pyarrow does not tell where a stripe begins: all count as equally long.

    Args:
        part: The part.
        filesystem: The file system with the file.
        columns: The partition columns.
        names: The columns to read; those that the file lacks are left out.

    """
    expression = columns.expression(part.directory)
    values = {} if expression is None else ds.get_partition_keys(expression)
    constants = {name: columns.schema.field(name).type for name in columns.schema.names if name in names}
    with filesystem.open_input_file(part.path) as source:
        file = orc.ORCFile(source)
        count, stored = file.nstripes, set(file.schema.names)
        kept = [name for name in names if name in stored and name not in constants]
        # A name with a dot would be taken for a field inside of a column.
        selected = None if any("." in name for name in kept) else kept
        for number in range(count):
            if not part.start <= (2 * number + 1) * part.size // (2 * count) < part.start + part.length:
                continue
            found = pa.Table.from_batches([file.read_stripe(number, selected)]).select(kept)
            for name, kind in constants.items():
                found = found.append_column(name, pa.repeat(pa.scalar(values.get(name), kind), len(found)))
            yield found

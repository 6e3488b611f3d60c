"""Plans a read: the files that Spark's pushed filters leave, and how they are assigned to tasks.

Arrow decides by what is known about each file: its partition values, and the bounds of its columns in the
list of files. An expression keeps every row that the filter keeps, and may keep more, because Spark applies
all filters itself. Files and parts of large files are grouped as Spark groups them.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from operator import and_, eq, ge, gt, le, lt, ne, or_
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.types as pt
from msgspec import structs
from pyarrow.fs import LocalFileSystem

from airflow_s3commit.reader.table_files import FilePart
from airflow_s3commit.tables.options import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql.datasource import Filter

    from airflow_s3commit.reader.table_files import TableFile
    from airflow_s3commit.spark.session import ConfGet

K = TypeVar("K", bound=Hashable)

#: Maximum number of values of an ``in`` that are compared one by one with a file's bounds.
_FEW = 64

_MIB = 1024 * 1024

_PARTITION_BYTES = "spark.sql.files.maxPartitionBytes"
_OPEN_COST = "spark.sql.files.openCostInBytes"
_MIN_PARTITIONS = "spark.sql.files.minPartitionNum"
_LEAF_PARALLELISM = "spark.sql.leafNodeDefaultParallelism"


def columns_of(filters: Iterable[Filter]) -> set[str]:
    """Return the columns that filters name, without fields inside of columns."""
    return {name for each in filters if (name := _column(_asked(each))) is not None}


def as_arrow(filters: Iterable[Filter], schema: pa.Schema) -> ds.Expression | None:
    """Return an expression that is true for every row that all filters keep; None if it would keep all.

    Args:
        filters: The filters that Spark pushes. Those that Arrow cannot evaluate as Spark does are left out:
            of nested fields, floats, bytes, or with values of another type.
        schema: The types of the columns.

    """
    parts = [part for each in filters if (part := _of_filter(each, schema)) is not None]
    return reduce(and_, parts) if parts else None


def keep(
    known: Mapping[K, ds.Expression | None], schema: pa.Schema, wanted: ds.Expression | None
) -> Sequence[K]:
    """Return the files, or directories, that may have rows for which an expression is true.

    Args:
        known: An expression that is true for all rows of each; None if nothing is known.
        schema: The types of the columns.
        wanted: The expression; None keeps all.

    """
    if wanted is None:
        return list(known)
    keys = list(known)
    form, nowhere = ds.ParquetFileFormat(), LocalFileSystem()
    # Nothing is opened: Arrow compares the expressions.
    fragments = [form.make_fragment(str(number), nowhere, known[key]) for number, key in enumerate(keys)]
    found = ds.FileSystemDataset(fragments, schema, form, nowhere).get_fragments(filter=wanted)
    return [keys[int(fragment.path)] for fragment in found]


def _asked(each: Filter) -> Any:
    """Return a filter without its negation. Filters are of types that older PySpark does not have."""
    return getattr(each, "child", each)


def _column(asked: Any) -> str | None:
    path: tuple[str, ...] = getattr(asked, "attribute", ())
    return path[0] if len(path) == 1 else None


def _of_filter(each: Filter, schema: pa.Schema) -> ds.Expression | None:
    """Return the expression of one filter; None if no expression is certain to keep its rows."""
    asked, is_negated = _asked(each), hasattr(each, "child")
    column, kind_of_filter = _column(asked), type(asked).__name__
    if column not in schema.names:
        return None
    field = ds.field(column)
    if kind_of_filter in ("IsNull", "IsNotNull"):
        return field.is_null() if (kind_of_filter == "IsNull") != is_negated else field.is_valid()
    compare = _COMPARED.get(kind_of_filter)
    return compare(field, asked.value, schema.field(column).type, is_negated) if compare else None


def _compared(
    operator: Callable[[Any, Any], Any], field: Any, value: Any, kind: pa.DataType, is_negated: bool
) -> ds.Expression | None:
    scalar = _scalar(value, kind)
    if scalar is None:
        return None
    found: ds.Expression = operator(field, scalar)
    return ~found if is_negated else found


def _null_safe(field: ds.Expression, value: Any, kind: pa.DataType, is_negated: bool) -> ds.Expression | None:
    if value is None:
        return field.is_valid() if is_negated else field.is_null()
    found = _compared(ne if is_negated else eq, field, value, kind, is_negated=False)
    return found | field.is_null() if is_negated and found is not None else found


def _listed(
    field: ds.Expression, values: Iterable[Any], kind: pa.DataType, is_negated: bool
) -> ds.Expression | None:
    scalars = [_scalar(value, kind) for value in values if value is not None]
    if not scalars or None in scalars:
        return None
    found = field.isin(pa.array(scalars, kind))
    if is_negated:
        return ~found
    if len(scalars) <= _FEW:
        return reduce(or_, (field == scalar for scalar in scalars))
    # Arrow does not compare a list with bounds.
    bounds = pc.min_max(pa.array(scalars, kind))
    return found & (field >= bounds["min"]) & (field <= bounds["max"])


def _text(
    search: Callable[[Any, str], Any], field: ds.Expression, value: Any, kind: pa.DataType, is_negated: bool
) -> ds.Expression | None:
    if not pt.is_string(kind) or not isinstance(value, str):
        return None
    found: ds.Expression = search(field, value)
    return ~found if is_negated else found


#: How to compare a column with a value, by the filter's type.
_COMPARED: Mapping[str, Callable[[ds.Expression, Any, pa.DataType, bool], ds.Expression | None]] = {
    "EqualTo": partial(_compared, eq),
    "GreaterThan": partial(_compared, gt),
    "GreaterThanOrEqual": partial(_compared, ge),
    "LessThan": partial(_compared, lt),
    "LessThanOrEqual": partial(_compared, le),
    "EqualNullSafe": _null_safe,
    "In": _listed,
    "StringStartsWith": partial(_text, pc.starts_with),
    "StringEndsWith": partial(_text, pc.ends_with),
    "StringContains": partial(_text, pc.match_substring),
}


def _scalar(value: Any, kind: pa.DataType) -> pa.Scalar | None:
    """Return a value in the type of its column; None if it does not fit, or Arrow compares it otherwise."""
    if not _fits(value, kind):
        return None
    try:
        return pa.scalar(value, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError):
        return None


def _fits(value: Any, kind: pa.DataType) -> bool:
    if pt.is_boolean(kind) or isinstance(value, bool):
        return pt.is_boolean(kind) and isinstance(value, bool)
    if pt.is_timestamp(kind):
        return isinstance(value, dt.datetime) and (value.tzinfo is None) == (kind.tz is None)
    if pt.is_date32(kind):
        return isinstance(value, dt.date) and not isinstance(value, dt.datetime)
    if pt.is_string(kind):
        return isinstance(value, str)
    return (pt.is_integer(kind) and isinstance(value, int)) or pt.is_decimal(kind)


@dataclass(frozen=True, slots=True)
class SplitSizes:
    """How Spark sizes the tasks of a read; the defaults are Spark's.

    Attributes:
        partition_bytes: Maximum bytes of a task, as ``spark.sql.files.maxPartitionBytes``.
        open_cost: Cost of opening a file, in bytes, as ``spark.sql.files.openCostInBytes``.
        tasks: Minimum number of tasks, if there are enough bytes; 0 if unknown.

    """

    partition_bytes: int = 128 * _MIB
    open_cost: int = 4 * _MIB
    tasks: int = 0

    @classmethod
    def of_conf(cls, get: ConfGet, parallelism: int = 0) -> SplitSizes:
        """Return the sizes that a session's conf sets.

        Args:
            get: The session's conf.
            parallelism: Tasks that run at once; 0 if unknown.

        Raises:
            ValueError: A setting is not a size or number.

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

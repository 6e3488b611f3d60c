"""Parquet files with the footer entries of Spark's own writer.

Spark reads its schema from two footer entries; without them it reads intervals as integers and variants as
structs. Arrow's own schema is not stored, as in Spark's files.

Variants need an annotation that Arrow's writer cannot write (pyarrow 26). A footer is one Thrift struct in
the compact protocol. Its second field is the list of schema elements, in depth-first order; the elements of
variants get a logical type, and all other bytes stay.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from airflow_s3commit.tables.columns import ColumnCounts
from airflow_s3commit.tables.formats import (
    FORMATS,
    DetachableSink,
    SparkFooter,
    UnsupportedColumn,
    first_within,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from airflow_s3commit.protocol.model.statistics import ColumnStatistics
    from airflow_s3commit.tables.formats import Sink

#: Number of rows in the sample that decides whether a column has a dictionary.
_SAMPLE_ROWS = 10_000

#: The smallest number of rows in a useful sample.
_LEAST_SAMPLE = 1_000

#: Number of files of a task per sample: to sample costs more than to encode a small file.
_FILES_PER_SAMPLE = 16

#: The keys of a field's id in Spark's and in Arrow's metadata.
_SPARK_FIELD_ID = "parquet.field.id"
_ARROW_FIELD_ID = "PARQUET:field_id"


class DictionaryChoice:
    """The choice of columns with a dictionary, by a sample of every sixteenth file that is large enough."""

    def __init__(self) -> None:
        self._schema: pa.Schema | None = None
        self._columns: list[str] = []
        self._files_left = 0

    def columns(self, first: pa.Table) -> list[str]:
        """Return the leaf columns, by their paths in the file, that get a dictionary.

        Args:
            first: The first rows of the file.

        """
        if first.num_rows < _LEAST_SAMPLE:
            return dictionary_columns(first)
        if self._files_left == 0 or first.schema != self._schema:
            self._schema, self._columns = first.schema, dictionary_columns(first)
            self._files_left = _FILES_PER_SAMPLE
        self._files_left -= 1
        return self._columns


@dataclass(frozen=True, slots=True)
class ParquetForm:
    """The encoding of one write's Parquet files.

    Attributes:
        name: The format's name.
        compression: A key of the format's codecs.
        spark: Spark's footer metadata; None without Spark.
        int96: Whether times with a zone are stored as INT96, as Spark does by default, and not in 64 bits.
        dictionaries: The choice of columns with a dictionary, shared by the files of a task.

    """

    name: ClassVar[str] = "parquet"

    compression: str = "snappy"
    spark: SparkFooter | None = None
    int96: bool = False
    dictionaries: DictionaryChoice = field(default_factory=DictionaryChoice, repr=False, compare=False)

    def check(self, schema: pa.Schema) -> None:
        """Refuse columns that INT96 cannot hold.

        Raises:
            UnsupportedColumn: With ``int96``, a column has times without a zone.

        """
        for column in schema:
            if self.int96 and first_within(column.type, _is_local_time) is not None:
                raise UnsupportedColumn(
                    f"column {column.name!r} has times without a zone, which INT96 cannot hold: leave"
                    " outputTimestampType at TIMESTAMP_MICROS"
                )

    def encoder(self, sink: Sink, schema: pa.Schema) -> ParquetEncoder:
        """Return the encoder of a new file with this schema."""
        return ParquetEncoder(sink, schema, self)


class ParquetEncoder:
    """Writes one Parquet file, a row group for each call of `write`.

    Args:
        sink: Receives the bytes; the caller closes it.
        schema: Schema of the rows.
        form: The encoding.

    Attributes:
        rows: Rows written so far.
        statistics: Column statistics, by column; None until the encoder is closed.

    """

    def __init__(self, sink: Sink, schema: pa.Schema, form: ParquetForm) -> None:
        self._sink = DetachableSink(sink)
        self._schema = with_field_ids(schema, form.spark)
        self._form = form
        self._writer: pq.ParquetWriter | None = None
        self._counts = ColumnCounts(schema)
        self._footers: list[pq.FileMetaData] = []
        self.rows = 0
        self.statistics: dict[str, ColumnStatistics] | None = None

    @property
    def bytes(self) -> int:
        """Bytes written so far."""
        return self._sink.bytes

    def write(self, table: pa.Table) -> None:
        """Write rows as one row group; does nothing without rows."""
        if table.num_rows == 0:
            return
        writer = self._writer or self._start(table)
        writer.write_table(without_hidden_nulls(table), row_group_size=table.num_rows)
        self._counts.add(table)
        self.rows += table.num_rows

    def close(self) -> None:
        """Write the footer; a file without rows has its schema too."""
        writer = self._writer or self._start(self._schema.empty_table())
        if self._form.spark is not None:
            writer.add_key_value_metadata(self._form.spark.parquet)
        variants = variant_elements(self._schema)
        if variants:
            self._sink.hold()
        writer.close()
        if variants:
            self._sink.release(lambda end: annotate_variants(end, variants))
        self.statistics = self._counts.statistics(self._footers[0])

    def abandon(self) -> None:
        """Release the encoder's memory, and write no further byte to the sink."""
        self._sink.detached = True
        if self._writer is not None:
            # After a failed write, pyarrow cannot end the file, and its error would hide the cause.
            with suppress(pa.lib.ArrowException, RuntimeError, OSError):
                self._writer.close()

    def _start(self, first: pa.Table) -> pq.ParquetWriter:
        codec = FORMATS[self._form.name].codecs[self._form.compression]
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self._sink, mode="w"),
            self._schema,
            version="2.6",
            compression=codec.engine,
            compression_level=codec.level,
            use_dictionary=self._form.dictionaries.columns(first),
            store_decimal_as_integer=True,
            store_schema=False,
            write_page_index=True,
            write_page_checksum=True,
            use_deprecated_int96_timestamps=self._form.int96,
            metadata_collector=self._footers,
        )
        return self._writer


def with_field_ids(schema: pa.Schema, spark: SparkFooter | None) -> pa.Schema:
    """Return a schema with the field ids that Spark's schema has in its fields' metadata, at any depth."""
    if spark is None or _SPARK_FIELD_ID not in spark.row_metadata:
        return schema
    known = {field["name"]: field for field in json.loads(spark.row_metadata)["fields"]}
    return pa.schema([_with_id(field, known[field.name]) for field in schema], schema.metadata)


def _with_id(field: pa.Field, spark: dict[str, Any]) -> pa.Field:
    field = field.with_type(_with_ids(field.type, spark["type"]))
    number = spark["metadata"].get(_SPARK_FIELD_ID)
    if number is None:
        return field
    return field.with_metadata({**(field.metadata or {}), _ARROW_FIELD_ID: str(number)})


def _with_ids(kind: pa.DataType, spark: Any) -> pa.DataType:
    if not isinstance(spark, dict):
        return kind
    if spark["type"] == "struct":
        fields = [kind.field(number) for number in range(kind.num_fields)]
        return pa.struct([_with_id(*pair) for pair in zip(fields, spark["fields"], strict=True)])
    if spark["type"] == "map":
        key = kind.key_field.with_type(_with_ids(kind.key_type, spark["keyType"]))
        item = kind.item_field.with_type(_with_ids(kind.item_type, spark["valueType"]))
        return pa.map_(key, item)
    if spark["type"] == "array":
        return pa.list_(kind.value_field.with_type(_with_ids(kind.value_type, spark["elementType"])))
    return kind


def dictionary_columns(table: pa.Table) -> list[str]:
    """Return the leaf columns, by their paths in the file, with enough repeated values for a dictionary."""
    chosen: list[str] = []
    for column in table.schema:
        if pt.is_nested(column.type):
            chosen.extend(_leaves(column, column.name))
        elif _repeats(table.column(column.name)):
            chosen.append(column.name)
    return chosen


def _repeats(column: pa.ChunkedArray) -> bool:
    if pt.is_boolean(column.type) or pt.is_null(column.type):
        return False
    sample = column.slice(0, _SAMPLE_ROWS)
    return len(sample) < _LEAST_SAMPLE or pc.count_distinct(sample).as_py() * 2 <= len(sample)


def _leaves(field: pa.Field, path: str) -> Iterator[str]:
    kind = field.type
    if pt.is_struct(kind):
        for number in range(kind.num_fields):
            child = kind.field(number)
            yield from _leaves(child, f"{path}.{child.name}")
    elif pt.is_map(kind):
        yield from _leaves(kind.key_field, f"{path}.key_value.key")
        yield from _leaves(kind.item_field, f"{path}.key_value.value")
    elif pt.is_list(kind) or pt.is_large_list(kind):
        yield from _leaves(kind.value_field, f"{path}.list.element")
    else:
        yield path


def _is_local_time(kind: pa.DataType) -> bool:
    return pt.is_timestamp(kind) and kind.tz is None


def has_required_fields(kind: pa.DataType) -> bool:
    """Return whether a type has a struct, at any depth, with a field that is never null."""
    fields = [kind.field(number) for number in range(kind.num_fields)]
    required = pt.is_struct(kind) and not all(field.nullable for field in fields)
    return required or any(has_required_fields(field.type) for field in fields)


def without_hidden_nulls(table: pa.Table) -> pa.Table:
    """Return a table whose required fields are null nowhere; a null that no null struct hides is left.

    Spark marks such a field null wherever its struct is, and Arrow's Parquet writer refuses nulls of a
    required field, whatever hides them.
    """
    for number, column in enumerate(table.schema):
        if has_required_fields(column.type):
            chunks = [_visible(_copied(chunk)) for chunk in table.column(number).chunks]
            table = table.set_column(number, column, pa.chunked_array(chunks, column.type))
    return table


def _copied(values: pa.Array) -> pa.Array:
    """Return a copy that is no slice: its children have its own offsets."""
    return values.take(pa.array(np.arange(len(values), dtype=np.int64)))


def _visible(values: pa.Array) -> pa.Array:
    kind = values.type
    if not has_required_fields(kind):
        return values
    if pt.is_struct(kind):
        children = []
        for number in range(kind.num_fields):
            child = _visible(values.field(number))
            if not kind.field(number).nullable and child.null_count and _hides(values, child):
                child = _with_validity(child, None)
            children.append(child)
    elif pt.is_map(kind):
        entries = pa.StructArray.from_arrays(
            [_visible(values.keys), _visible(values.items)], fields=[kind.key_field, kind.item_field]
        )
        children = [entries]
    else:
        children = [_visible(values.values)]
    return _with_validity(values, values.buffers()[0], children)


def _hides(parent: pa.Array, child: pa.Array) -> bool:
    return not pc.any(pc.and_(pc.is_null(child), pc.is_valid(parent))).as_py()


def _with_validity(
    values: pa.Array, validity: pa.Buffer | None, children: list[pa.Array] | None = None
) -> pa.Array:
    """Return an array with another validity bitmap, and other children if given."""
    kind = values.type
    if children is None:
        children = _children(values)
    own = [validity, *values.buffers()[1 : kind.num_buffers]]
    return pa.Array.from_buffers(kind, len(values), own, offset=values.offset, children=children)


def _children(values: pa.Array) -> list[pa.Array]:
    kind = values.type
    if pt.is_struct(kind):
        return [values.field(number) for number in range(kind.num_fields)]
    if pt.is_map(kind):
        fields = [kind.key_field, kind.item_field]
        return [pa.StructArray.from_arrays([values.keys, values.items], fields=fields)]
    return [values.values] if pt.is_nested(kind) else []


_MAGIC = b"PAR1"

#: The footer's length and the magic number follow it.
_TAIL = 4 + len(_MAGIC)

#: Types of the compact protocol.
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12

#: Number of the field ``schema`` of the footer.
_SCHEMA = 2

#: Number of the field ``logicalType`` of a schema element.
_LOGICAL_TYPE = 10

#: ``LogicalType.VARIANT`` (field 16) with ``specification_version`` (field 1) 1.
_VARIANT = bytes([_STRUCT, 16 << 1, 1 << 4 | _BYTE, 1, 0, 0])

#: A list's header has its size, up to this, or the size follows.
_LONG_LIST = 15


def is_variant(kind: pa.DataType) -> bool:
    """Return whether Spark passes a variant as this type: a struct whose field ``metadata`` is marked."""
    if not pt.is_struct(kind):
        return False
    fields = [kind.field(number) for number in range(kind.num_fields)]
    return any(field.name == "metadata" and b"variant" in (field.metadata or {}) for field in fields)


def variant_elements(schema: pa.Schema) -> set[int]:
    """Return the numbers of the schema elements of variants, in the footer of a file with this schema."""
    flags: list[bool] = [False]
    for column in schema:
        flags.extend(_elements(column.type))
    return {number for number, found in enumerate(flags) if found}


def _elements(kind: pa.DataType) -> Iterator[bool]:
    """Yield for each schema element of a type, in order, whether it is a variant."""
    yield is_variant(kind)
    if pt.is_struct(kind):
        inner = [kind.field(number).type for number in range(kind.num_fields)]
    elif pt.is_map(kind):
        inner = [kind.key_type, kind.item_type]
    else:
        inner = [kind.value_type] if pt.is_list(kind) or pt.is_large_list(kind) else []
    if inner and not pt.is_struct(kind):
        # The repeated group of a list or map.
        yield False
    for each in inner:
        yield from _elements(each)


def annotate_variants(end: bytes, elements: Collection[int]) -> bytes:
    """Return the end of a Parquet file, with the logical type of variants in its footer.

    Args:
        end: The last bytes of the file, the whole footer among them.
        elements: Numbers of the schema elements that are variants.

    """
    length = int.from_bytes(end[-_TAIL : -len(_MAGIC)], "little")
    before, footer = end[: -_TAIL - length], end[-_TAIL - length : -_TAIL]
    reader = _Reader(footer)
    pieces, copied = [], 0
    for name, kind in reader.fields():
        if name == _SCHEMA:
            for number in range(reader.list_header()[0]):
                last = 0
                for entry, inner in reader.fields():
                    reader.skip(inner)
                    last = entry
                if number in elements:
                    # The stop byte is the last one read.
                    stop = reader.position - 1
                    header = bytes([(_LOGICAL_TYPE - last) << 4 | _STRUCT])
                    pieces += [footer[copied:stop], header, _VARIANT]
                    copied = stop
            break
        reader.skip(kind)
    changed = b"".join([*pieces, footer[copied:]])
    return b"".join([before, changed, len(changed).to_bytes(4, "little"), _MAGIC])


class _Reader:
    """Reads the compact protocol as far as it takes to find where values end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0

    def fields(self) -> Iterator[tuple[int, int]]:
        """Yield number and type of each field of a struct; the caller reads the value before the next."""
        number = 0
        while header := self._byte():
            delta = header >> 4
            number = number + delta if delta else self._varint() >> 1
            yield number, header & 15

    def list_header(self) -> tuple[int, int]:
        """Return the size of a list and the type of its elements."""
        header = self._byte()
        size = header >> 4
        return (self._varint() if size == _LONG_LIST else size), header & 15

    def skip(self, kind: int) -> None:
        """Skip a field's value."""
        if kind in (_TRUE, _FALSE):
            return
        if kind == _BYTE:
            self.position += 1
        elif kind == _DOUBLE:
            self.position += 8
        elif kind == _BINARY:
            length = self._varint()
            self.position += length
        elif kind in (_LIST, _SET):
            size, inner = self.list_header()
            for _ in range(size):
                # In lists a boolean takes a byte.
                self.skip(_BYTE if inner in (_TRUE, _FALSE) else inner)
        elif kind == _STRUCT:
            for _, inner in self.fields():
                self.skip(inner)
        elif kind == _MAP:
            raise NotImplementedError("Parquet footers have no maps")
        else:
            self._varint()

    def _byte(self) -> int:
        self.position += 1
        return self._data[self.position - 1]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if not byte & 128:
                return value
            shift += 7

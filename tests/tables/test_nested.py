"""Rows of generated nested types, with nulls anywhere, as they are read back from Parquet."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_s3commit.tables.encoder import Encoder
from airflow_s3commit.tables.options import TableOptions


def _nest(kinds: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    fields = st.lists(st.tuples(kinds, st.booleans()), min_size=1, max_size=3)
    return st.one_of(
        fields.map(lambda found: pa.struct([pa.field(f"f{n}", k, o) for n, (k, o) in enumerate(found)])),
        st.tuples(kinds, st.booleans()).map(lambda found: pa.list_(pa.field("element", *found))),
        st.tuples(kinds, st.booleans()).map(lambda found: pa.map_(pa.string(), pa.field("value", *found))),
    )


KINDS = st.recursive(
    st.sampled_from([pa.int64(), pa.string(), pa.bool_(), pa.float64()]), _nest, max_leaves=6
)


def values(kind: pa.DataType, *, nullable: bool = True) -> st.SearchStrategy[Any]:
    """Return values of a type, null only where it may be."""
    if pa.types.is_struct(kind):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        made: st.SearchStrategy[Any] = st.fixed_dictionaries(
            {field.name: values(field.type, nullable=field.nullable) for field in fields}
        )
    elif pa.types.is_map(kind):
        item = values(kind.item_type, nullable=kind.item_field.nullable)
        made = st.dictionaries(st.text("ab", max_size=2), item, max_size=2).map(
            lambda found: [*found.items()]
        )
    elif pa.types.is_list(kind):
        made = st.lists(values(kind.value_type, nullable=kind.value_field.nullable), max_size=3)
    else:
        made = {
            pa.int64(): st.integers(-5, 5),
            pa.string(): st.text("xyz", max_size=3),
            pa.bool_(): st.booleans(),
            pa.float64(): st.sampled_from([0.0, 1.5, -2.0]),
        }[kind]
    return st.none() | made if nullable else made


def as_spark(rows: list[Any], kind: pa.DataType) -> pa.Array:
    """Return an array whose fields, required or not, are null wherever their struct is, as from Spark."""
    array = pa.array(rows, _all_nullable(kind))
    return _marked(array, kind)


def _all_nullable(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        return pa.struct([(field.name, _all_nullable(field.type)) for field in fields])
    if pa.types.is_map(kind):
        return pa.map_(pa.string(), _all_nullable(kind.item_type))
    return pa.list_(_all_nullable(kind.value_type)) if pa.types.is_list(kind) else kind


def _marked(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the same buffers as an array of the type that has required fields."""
    if pa.types.is_struct(kind):
        parts = [_marked(array.field(number), kind.field(number).type) for number in range(kind.num_fields)]
    elif pa.types.is_map(kind):
        fields = [kind.key_field, kind.item_field]
        parts = [
            pa.StructArray.from_arrays([array.keys, _marked(array.items, kind.item_type)], fields=fields)
        ]
    else:
        parts = [_marked(array.values, kind.value_type)] if pa.types.is_list(kind) else []
    buffers = array.buffers()[: kind.num_buffers]
    return pa.Array.from_buffers(kind, len(array), buffers, offset=array.offset, children=parts)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_rows_of_any_nesting_are_read_back(data: st.DataObject) -> None:
    """Null structs with required fields, in lists, maps, structs and slices, keep their values."""
    kind = data.draw(KINDS)
    rows = data.draw(st.lists(values(kind), min_size=1, max_size=8))
    start = data.draw(st.integers(0, len(rows) - 1))
    schema = pa.schema([pa.field("c", kind)])
    table = pa.table([as_spark(rows, kind)], schema=schema).slice(start)
    sink = io.BytesIO()
    encoder = Encoder(sink, schema, TableOptions())
    encoder.write(table)
    encoder.close()
    found = pq.read_table(sink)
    assert found["c"].to_pylist() == rows[start:]
    assert found.schema.field("c").type.equals(_all_nullable(kind))

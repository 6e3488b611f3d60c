"""Rows of generated nested types, with nulls anywhere, as they are read back from Parquet and ORC."""

from __future__ import annotations

import io
from datetime import date
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import orc

from airflow_s3commit.tables.formats import UnsupportedColumn
from airflow_s3commit.tables.orc import OrcForm
from airflow_s3commit.tables.parquet import ParquetForm, has_required_fields, without_hidden_nulls

if TYPE_CHECKING:
    from airflow_s3commit.tables.formats import FileForm


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


def _has_null_within(value: Any, kind: pa.DataType) -> bool:
    """Return whether a struct has a null struct as a field, at any depth."""
    if value is None:
        return False
    if pa.types.is_struct(kind):
        fields = [(value[kind.field(n).name], kind.field(n).type) for n in range(kind.num_fields)]
        is_null = any(inner is None and pa.types.is_struct(of) for inner, of in fields)
        return is_null or any(_has_null_within(inner, of) for inner, of in fields)
    if pa.types.is_map(kind):
        return any(_has_null_within(inner, kind.item_type) for _, inner in value)
    if pa.types.is_list(kind):
        return any(_has_null_within(inner, kind.value_type) for inner in value)
    return False


def test_arrow_still_misplaces_what_follows_a_null_struct_in_a_struct() -> None:
    """The fault of Arrow's ORC writer that such rows are refused for; when this fails, write them."""
    kind = pa.struct([("s", pa.struct([("x", pa.int64())]))])
    rows = [{"s": None}, {"s": {"x": 1}}]
    sink = io.BytesIO()
    orc.write_table(pa.table({"c": pa.array(rows, kind)}), sink)
    assert orc.read_table(sink)["c"].to_pylist() == [{"s": None}, {"s": {"x": 0}}]


@pytest.mark.parametrize(
    ("kind", "refused", "good"),
    [
        (pa.struct([("s", pa.struct([("x", pa.int64())]))]), {"s": None}, {"s": {"x": 1}}),
        (pa.date32(), date(1500, 1, 1), date(2013, 1, 1)),
    ],
    ids=str,
)
def test_orc_is_refused_for_the_rows_of_a_slice_alone(kind: pa.DataType, refused: Any, good: Any) -> None:
    """A row of a map that ORC cannot hold prevents no slice of the table that is without it."""
    rows = [[("k", refused)], [("k", good)], None]
    table = pa.table({"c": pa.array(rows, pa.map_(pa.string(), kind))})
    with pytest.raises(UnsupportedColumn):
        OrcForm().encoder(io.BytesIO(), table.schema).write(table)
    sink = io.BytesIO()
    encoder = OrcForm().encoder(sink, table.schema)
    encoder.write(table.slice(1))
    encoder.close()
    assert orc.read_table(sink)["c"].to_pylist() == rows[1:]


@pytest.mark.parametrize("form", [ParquetForm(), OrcForm()], ids=lambda form: form.name)
@given(st.data())
@settings(max_examples=60, deadline=None)
def test_rows_of_any_nesting_are_read_back(form: FileForm, data: st.DataObject) -> None:
    """Null structs with required fields, in lists, maps, structs and slices, keep their values."""
    kind = data.draw(KINDS)
    rows = data.draw(st.lists(values(kind), min_size=1, max_size=8))
    start = data.draw(st.integers(0, len(rows) - 1))
    schema = pa.schema([pa.field("c", kind)])
    table = pa.table([as_spark(rows, kind)], schema=schema).slice(start)
    sink = io.BytesIO()
    encoder = form.encoder(sink, schema)
    if form.name == "orc" and any(_has_null_within(value, kind) for value in rows[start:]):
        with pytest.raises(UnsupportedColumn, match="null structs within structs"):
            encoder.write(table)
        encoder.abandon()
        return
    encoder.write(table)
    encoder.close()
    found = pq.read_table(sink) if form.name == "parquet" else orc.read_table(sink)
    assert found["c"].to_pylist() == rows[start:]
    if form.name == "parquet":
        assert _shape(pq.read_schema(sink).field("c").type) == _shape(kind)


def _shape(kind: pa.DataType) -> Any:
    """Return which parts of a type are required."""
    if kind.num_fields == 0:
        return str(kind)
    fields = [kind.field(number) for number in range(kind.num_fields)]
    return [(field.nullable, _shape(field.type)) for field in fields]


def test_a_null_that_nothing_hides_is_an_error_that_names_its_cause() -> None:
    """A null of a required field in a struct that is not null fails with Arrow's own error, in both steps."""
    kind = pa.struct([pa.field("x", pa.int64(), nullable=False)])
    rows = pa.StructArray.from_arrays([pa.array([1, None])], fields=list(kind))
    schema = pa.schema([pa.field("c", kind)])
    table = pa.table([rows], schema=schema)
    assert has_required_fields(kind)
    assert without_hidden_nulls(table).equals(table)
    encoder = ParquetForm().encoder(io.BytesIO(), schema)
    with pytest.raises(pa.ArrowInvalid, match="'x' is declared non-nullable but contains nulls"):
        encoder.write(table)
    encoder.abandon()

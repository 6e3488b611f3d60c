"""Structs whose fields are never null, in columns that have null structs.

Spark marks such a field null wherever its struct is, and Arrow's Parquet writer refuses nulls of a required
field, whatever hides them.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt


def has_required_fields(kind: pa.DataType) -> bool:
    """Return whether a type has a struct, at any depth, with a field that is never null."""
    fields = [kind.field(number) for number in range(kind.num_fields)]
    required = pt.is_struct(kind) and not all(field.nullable for field in fields)
    return required or any(has_required_fields(field.type) for field in fields)


def without_hidden_nulls(table: pa.Table) -> pa.Table:
    """Return a table whose required fields are null nowhere; a null that no null struct hides is left."""
    for number, field in enumerate(table.schema):
        if has_required_fields(field.type):
            chunks = [_visible(_copied(chunk)) for chunk in table.column(number).chunks]
            table = table.set_column(number, field, pa.chunked_array(chunks, field.type))
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

"""A kind of type is found at any depth."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pt
import pytest

from airflow_s3commit.tables.formats import first_within


@pytest.mark.parametrize(
    "kind",
    [
        pa.date32(),
        pa.list_(pa.date32()),
        pa.struct([("a", pa.string()), ("b", pa.list_(pa.date32()))]),
        pa.map_(pa.string(), pa.date32()),
        pa.map_(pa.date32(), pa.string()),
        pa.list_(pa.struct([("a", pa.map_(pa.string(), pa.list_(pa.date32())))])),
    ],
    ids=str,
)
def test_nested_types_are_found(kind: pa.DataType) -> None:
    """The type is found on its own, in lists, in structs, and in keys and values of maps."""
    assert first_within(kind, pt.is_timestamp, pt.is_date) == pa.date32()
    assert first_within(kind, pt.is_timestamp) is None


def test_the_outermost_comes_first() -> None:
    """Of several types wanted, the one that holds the others is returned."""
    kind = pa.list_(pa.struct([("a", pa.struct([("b", pa.int8())]))]))
    assert first_within(kind, pt.is_struct) == kind.value_type

"""The annotation of variants in a Parquet footer, which Arrow's writer cannot write (pyarrow 26).

A footer is one Thrift struct in the compact protocol. Its second field is the list of schema elements, in
depth-first order; the elements of variants get a logical type, and all other bytes stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as pt

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

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
    for field in schema:
        flags.extend(_elements(field.type))
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
                for field, inner in reader.fields():
                    reader.skip(inner)
                    last = field
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

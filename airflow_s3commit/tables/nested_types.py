"""What is somewhere in a type of Arrow, however deep."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["first_within"]


def first_within(kind: pa.DataType, *wanted: Callable[[pa.DataType], bool]) -> pa.DataType | None:
    """Return the type itself, or the first one nested in it, that is of one of the wanted kinds."""
    if any(is_kind(kind) for is_kind in wanted):
        return kind
    inner = (first_within(kind.field(number).type, *wanted) for number in range(kind.num_fields))
    return next((found for found in inner if found is not None), None)

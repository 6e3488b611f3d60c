"""Values as text, exactly as Spark and Java write them.

The only difference: Java before 19 writes some doubles with more digits than they need (JDK-4511638). Here
they have the fewest digits; both texts read back as the same number.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from airflow_s3commit.tables.formats import UnsupportedColumn
from airflow_s3commit.tables.option_values import DatetimePattern
from airflow_s3commit.tables.options import TextOptions

#: Java writes numbers between these without an exponent.
_LEAST_PLAIN = 1e-3
_MOST_PLAIN = 1e7

#: The positions of a pattern's fields in Arrow's own text of a time.
_SLICES = {
    "yyyy": (0, 4), "MM": (5, 7), "dd": (8, 10), "HH": (11, 13), "mm": (14, 16), "ss": (17, 19),
    "SSS": (20, 23), "SSSSSS": (20, 26),
}  # fmt: skip
_MINUTE = 60


def java_double(value: float) -> str:
    """Return the text of Java's ``Double.toString``."""
    return _java_number(value, repr, float)


def java_float(value: float) -> str:
    """Return the text of Java's ``Float.toString``."""
    return _java_number(value, lambda number: str(np.float32(number)), lambda text: float(np.float32(text)))


def decimal_text(value: Decimal) -> str:
    """Return a decimal without an exponent, as Spark casts it to string with ANSI rules."""
    return format(value, "f")


def moment_text(value: dt.datetime) -> str:
    """Return a time as Spark casts it to string: without trailing zeros of the second's fraction."""
    text = value.replace(tzinfo=None).isoformat(sep=" ")
    return text.rstrip("0") if value.microsecond else text


def value_text(array: pa.Array, options: TextOptions) -> pa.Array:
    """Return values that are neither nested nor bytes as text; dates and times by the options' patterns.

    Raises:
        UnsupportedColumn: A date or time lacks a field of its pattern, or its year is not in 1 to 9999.

    """
    kind = array.type
    if pt.is_floating(kind):
        return float_text(array)
    if pt.is_date32(kind):
        return date_text(array, options.date_format)
    if pt.is_timestamp(kind):
        pattern = options.timestamp_ntz_format if kind.tz is None else options.timestamp_format
        return timestamp_text(array, pattern, options.time_zone)
    return numbers_text(array)


def float_text(array: pa.Array) -> pa.Array:
    """Return floats as Java writes them."""
    texts = pc.cast(array, pa.string())
    size = pc.abs(array)
    plain = pc.or_(
        pc.and_(pc.greater_equal(size, _LEAST_PLAIN), pc.less(size, _MOST_PLAIN)), pc.equal(size, 0.0)
    )
    whole = pc.and_(plain, pc.invert(pc.match_substring(texts, ".")))
    texts = pc.if_else(pc.fill_null(whole, False), pc.binary_join_element_wise(texts, ".0", ""), texts)
    special = pc.fill_null(pc.invert(plain), False)
    if not pc.any(special).as_py():
        return texts
    render = java_float if pt.is_float32(array.type) else java_double
    replaced = pa.array([render(value) for value in array.filter(special).to_pylist()], pa.string())
    return pc.replace_with_mask(texts, special, replaced)


def numbers_text(array: pa.Array) -> pa.Array:
    """Return integers, booleans and decimals as text; decimals with an exponent where Java has one."""
    return pc.cast(array, pa.string())


def date_text(array: pa.Array, pattern: DatetimePattern) -> pa.Array:
    """Return dates as text.

    Raises:
        UnsupportedColumn: The pattern has a field that dates lack, or a year is not in 1 to 9999.

    """
    return _by_pattern(array.cast(pa.timestamp("us")), None, pattern, "a date")


def timestamp_text(array: pa.Array, pattern: DatetimePattern, zone: str | None = None) -> pa.Array:
    """Return times as text.

    Args:
        array: Times, with or without a zone.
        pattern: The pattern.
        zone: The zone of the text, for times with a zone; by default their own.

    Raises:
        UnsupportedColumn: The pattern has an offset, which times without a zone lack, or a year is not in
            1 to 9999.

    """
    if array.type.tz is None:
        return _by_pattern(array, None, pattern, "a time without zone")
    local = pc.local_timestamp(array.cast(pa.timestamp("us", zone or array.type.tz)))
    offsets = None
    if "XXX" in pattern:
        ahead = pc.subtract(local.cast(pa.int64()), array.cast(pa.timestamp("us", "UTC")).cast(pa.int64()))
        offsets = pc.divide(ahead, 1_000_000)
    return _by_pattern(local, offsets, pattern, "a time")


def _by_pattern(local: pa.Array, offsets: pa.Array | None, pattern: DatetimePattern, what: str) -> pa.Array:
    year = pc.year(local)
    if not pc.all(pc.and_(pc.greater_equal(year, 1), pc.less_equal(year, 9999)), min_count=0).as_py():
        raise UnsupportedColumn(f"{what} is not between the years 1 and 9999: text files cannot hold it")
    text = pc.cast(local, pa.string())
    pieces: list[Any] = []
    for piece, is_field in pattern.pieces:
        if not is_field:
            pieces.append(pa.scalar(piece))
        elif piece in _SLICES and not (what == "a date" and _SLICES[piece][0] > _SLICES["dd"][0]):
            pieces.append(pc.utf8_slice_codeunits(text, *_SLICES[piece]))
        elif piece == "XXX" and offsets is not None:
            pieces.append(_offset_text(offsets, pattern))
        else:
            raise UnsupportedColumn(f"the pattern {pattern.text!r} has {piece}, which {what} lacks")
    return pc.binary_join_element_wise(text.slice(0, 0) if not pieces else pieces[0], *pieces[1:], "")


def _offset_text(offsets: pa.Array, pattern: DatetimePattern) -> pa.Array:
    encoded = offsets.dictionary_encode()
    texts = [_offset(seconds, pattern) for seconds in encoded.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(encoded.indices)


def _offset(seconds: int, pattern: DatetimePattern) -> str:
    if seconds == 0:
        return "Z"
    minutes, left = divmod(abs(seconds), _MINUTE)
    text = f"{'-' if seconds < 0 else '+'}{minutes // _MINUTE:02d}:{minutes % _MINUTE:02d}"
    # Early offsets have seconds. Spark's default pattern writes them, XXX in other patterns does not.
    return f"{text}:{left:02d}" if left and "[XXX]" in pattern.text else text


def _java_number(value: float, shortest: Callable[[float], str], read: Callable[[str], float]) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "-0.0" if math.copysign(1.0, value) < 0 else "0.0"
    if _LEAST_PLAIN <= abs(value) < _MOST_PLAIN:
        plain = format(Decimal(shortest(value)), "f")
        return plain if "." in plain else f"{plain}.0"
    # Java writes at least two digits, the nearest ones.
    two = f"{value:.1e}"
    exact = Decimal(two if read(two) == value else shortest(value))
    sign, digits, _ = exact.as_tuple()
    text = "".join(map(str, digits)).rstrip("0")
    return f"{'-' if sign else ''}{text[0]}.{text[1:] or '0'}E{exact.adjusted()}"

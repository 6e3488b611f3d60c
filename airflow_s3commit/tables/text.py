"""Values of partitions as text, exactly as Spark and Java write them.

The only difference: Java before 19 writes some doubles with more digits than they need (JDK-4511638). Here
they have the fewest digits; both texts read back as the same number.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from decimal import Decimal

import numpy as np

#: Java writes numbers between these without an exponent.
_LEAST_PLAIN = 1e-3
_MOST_PLAIN = 1e7


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

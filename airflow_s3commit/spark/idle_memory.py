"""What allocators keep for later, given back to the system: a worker outlives its tasks, and idles between."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["give_memory_back"]


def give_memory_back() -> None:
    """Give the system the memory that Arrow's allocator and the C library keep unused.

    After a task this is more than a task needs: rows come from Spark as Python's bytes, which the C library
    allocates, and what is left of them between other objects it never gives back by itself.
    """
    pa.default_memory_pool().release_unused()
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    """Return glibc's ``malloc_trim``; None where the C library is another one."""
    # Not by system_memory_pool().release_unused(): in pyarrow's wheels (26.0) that does nothing.
    if sys.platform != "linux":
        return None
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    return trim

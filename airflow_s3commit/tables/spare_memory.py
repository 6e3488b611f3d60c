"""What allocators keep for later, given back to the system when a task needs memory for something else.

Rows come from Spark as Python's bytes, which the C library allocates; when they are split by partition, the
copies come from Arrow's own allocator. Neither gives back by itself what it does not use any more, so without
this a worker has room for the rows twice, and for those of tasks that have ended.
"""

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

    It costs the pages' being mapped again, some ten milliseconds of processor time for 50 MiB.
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

"""Ending in order when the system, or someone at the keyboard, asks for the end."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["end_in_order_on_signals"]


def end_in_order_on_signals() -> None:
    """Turn SIGINT into KeyboardInterrupt, SIGTERM and SIGHUP into SystemExit: what was started is stopped."""
    # A shell that starts it in the background has SIGINT ignored, and kill -INT is still to stop it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _leave)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup leaves it
        signal.signal(signal.SIGHUP, _leave)


def _leave(number: int, _frame: FrameType | None) -> None:
    """Turn a signal into an orderly end, which stops what was started."""
    raise SystemExit(128 + number)

"""PySpark's daemon of Python workers, which waits for those that end.

PySpark's own ignores the ends of its workers, and then Linux forgets the processor time that they used.
This one collects it, so that a `Meter` finds it with the daemon's. It has a folder of its own because
Spark's workers get that on their path, where `requests.py` would be taken for the library of that name.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from pyspark import daemon


def wait_for_ended(*_: Any) -> None:
    """Wait for the children that have ended; a signal handler."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


if __name__ == "__main__":
    # The daemon ignores these signals: of a worker's end, or to end its group without itself.
    daemon.SIG_IGN = wait_for_ended  # type: ignore[assignment]
    daemon.manager()

"""PySpark's daemon of Python workers, changed to wait for workers that end.

PySpark's own daemon ignores the end of a worker, and then Linux forgets the processor time that it used. This
one collects the time, so that a `Meter` counts it with the daemon's. It has a folder of its own because that
folder is on the path of Spark's workers, where `requests.py` would be taken for the library of that name.
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
    # The daemon ignores a worker's end (SIGCHLD), and the SIGHUP with which it ends its group but itself.
    daemon.SIG_IGN = wait_for_ended  # type: ignore[assignment]
    daemon.manager()

"""What a Spark session's processes use, read from Linux's ``/proc``."""

from __future__ import annotations

import os
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


class Meter:
    """Reads what the driver, the JVM and its Python workers use from Linux's ``/proc``.

    Args:
        spark: The session whose JVM, and the processes below it, are measured.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._jvm = int(spark.sparkContext._gateway.proc.pid)  # type: ignore[union-attr]  # noqa: SLF001
        spark.range(0, 64, 1, 8).mapInArrow(lambda batches: batches, "id long").count()
        self._idle = max(self._workers("VmRSS").values())

    def cpu(self) -> float:
        """Return processor seconds so far, including ended workers, without the store's server."""
        own = os.times()
        below = sum(sum(map(int, stat[11:15])) for _, stat in self._below()) / os.sysconf("SC_CLK_TCK")
        return own.user + own.system + below

    def reset_peaks(self) -> None:
        """Reset every worker's peak to its current memory."""
        for pid in self._workers("VmRSS"):
            with suppress(OSError):
                Path(f"/proc/{pid}/clear_refs").write_text("5")

    def peak(self) -> float:
        """Return the highest peak of a worker since the reset, in MiB above one that only passed rows on."""
        peaks = self._workers("VmHWM").values()
        return max(0, max(peaks, default=0) - self._idle) / 1024

    def _below(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the JVM and all processes below it, with the fields of their ``stat`` from the state on."""
        fields, children = {}, defaultdict(list)
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                stat = path.read_text().rpartition(")")[2].split()
                fields[int(path.parent.name)] = stat
                children[int(stat[1])].append(int(path.parent.name))
        waiting = [self._jvm]
        while waiting:
            pid = waiting.pop()
            waiting.extend(children[pid])
            if pid in fields:
                yield pid, fields[pid]

    def _workers(self, field_name: str) -> dict[int, int]:
        """Return one figure of each Python worker's ``/proc/PID/status``, in KiB."""
        found = {}
        for pid, _ in self._below():
            with suppress(OSError):
                program, _, rest = Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")
                # A JVM, of an executor too, has PySpark's jars on its class path.
                if b"pyspark" in rest and not program.endswith(b"java"):
                    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                        if line.startswith(field_name + ":"):
                            found[pid] = int(line.split()[1])
        return found

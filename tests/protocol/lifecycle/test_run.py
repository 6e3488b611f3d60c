"""Progress is logged at intervals, and kept in the manifest."""

from __future__ import annotations

import logging

import pytest

from airflow_s3commit.protocol.lifecycle.run import Progress, ProgressLog
from tests.fakes import ManualClock
from tests.protocol.building import Lake


def test_a_line_every_few_seconds() -> None:
    """However often the progress changes, the log gets a line every five seconds, and one at the end."""
    clock, lines = ManualClock(), []
    log = logging.Logger("progress")
    log.addFilter(lambda record: lines.append(record.getMessage()) or False)
    tell = ProgressLog(log, every=5.0, clock=clock)
    for done in range(1, 101):
        clock.advance(0.125)
        tell(Progress(done, 100, done * 1024, done / 10, 64, 3))
    assert [line.split()[1] for line in lines] == ["40", "80", "100"]


def test_the_words() -> None:
    """A line has the files, bytes, files a second, concurrent requests and resent requests."""
    words = str(Progress(12_000, 40_000, 3 << 30, 4.0, 512, 17))
    assert words == "12,000 of 40,000 files, 3.0 GiB, 3,000 files/s, 512 requests at once, 17 sent again"


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 B"), (1023, "1,023 B"), (1536, "1.5 KiB"), (1 << 40, "1.0 TiB"), (1 << 52, "4,096.0 TiB")],
)
def test_sizes(count: int, words: str) -> None:
    """Bytes are shown in the unit that fits them."""
    assert str(Progress(1, 1, count, 1.0)).split(", ")[1] == words


def test_before_any_time_has_passed() -> None:
    """Without any elapsed time there is no speed yet, and no error."""
    assert Progress(1, 2, 3, 0.0).files_per_second == 0.0


def test_the_manifest_keeps_the_metrics() -> None:
    """The last figures of the progress are in the manifest's metrics."""
    told: list[Progress] = []
    manifest = Lake().sealed({"a": b"1", "b": b"22", "c": b"333"}).commit(progress=told.append)
    assert [progress.files_done for progress in told] == [1, 2, 3]
    assert {progress.files_total for progress in told} == {3}
    assert told[-1].bytes_done == 6
    assert manifest.metrics["complete_files"] == 3
    assert manifest.metrics["complete_bytes"] == 6
    assert manifest.metrics["complete_concurrency"] == 1
    assert manifest.metrics["complete_retries"] == 0
    assert {"complete_ms", "complete_files_per_second"} <= set(manifest.metrics)

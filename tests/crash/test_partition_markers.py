"""Tables with a `_SUCCESS` in each partition: commits beside one another, in many orders of their calls.

At rest each partition has the marker of the newest commit that added files to it, unless a later one emptied
it: worked out from the entries of the log alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache

import pytest

from airflow_s3commit.protocol.inspect.verify_log import LogCheck
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import ConflictMode
from tests.crash.faulty import count_calls
from tests.crash.interleave import schedules
from tests.crash.jobs import FIRST, JOBS, WRITTEN, Jobs
from tests.crash.world import BUCKET, ROOT, Case, World

Record = Callable[[str, object], None]

#: The modes of two jobs, and which of them is over the whole destination.
BESIDE: dict[str, tuple[tuple[ConflictMode, ConflictMode], dict[int, dict[str, object]]]] = {
    "append beside replace": (("append", "replace"), {}),
    "append beside a directory's replace": (("append", "replace"), {1: {"committer": "directory"}}),
}


class Marked(Jobs):
    """A table whose first commit requested markers; two sealed jobs add to it.

    Args:
        beside: A name in `BESIDE`.

    """

    def __init__(self, beside: str) -> None:
        self.modes, self._special = BESIDE[beside]
        World.__init__(self, Case(mode="fail"))
        self.reach(f"marked {beside}", self._fill)

    def _fill(self) -> None:
        files = {f"dt={number}/first.parquet": b"the first" for number in (1, 2, 3)}
        self._write(FIRST, "append", files, partition_success=True)
        self.job(self.store, FIRST).commit()
        for number, mode in enumerate(self.modes):
            self._write(JOBS[number], mode, WRITTEN[number], **self._special.get(number, {}))

    def markers(self) -> dict[str, int]:
        """Return the generation that each partition's marker names."""
        keys = [info.key for info in self.store.list_objects(BUCKET, f"{ROOT}dt=")]
        keys = [key for key in keys if key.endswith("/_SUCCESS")]
        bodies = {key: json.loads(self.store.get(BUCKET, key).body) for key in keys}
        return {
            key.removeprefix(ROOT).removesuffix("/_SUCCESS"): int(body["diagnostics"]["s3commit.generation"])
            for key, body in bodies.items()
        }

    def by_the_log(self) -> dict[str, int]:
        """Return the same as computed from the log."""
        found: dict[str, int] = {}
        for info in self.store.list_objects(BUCKET, f"{ROOT}_s3commit/log/"):
            entry = json.loads(self.store.get(BUCKET, info.key).body)
            if entry["kind"] == "commit":
                if entry["removes"] == "everything":
                    found.clear()
                counts = entry["manifest"]["partitions"]
                found |= {name: entry["number"] for name, its in counts.items() if its["files"]}
        return found


@cache
def _calls(beside: str, number: int) -> int:
    world = Marked(beside)
    return count_calls(world.store, world.actor("commit", number))


@pytest.mark.parametrize(
    "every", [pytest.param(29, id="some"), pytest.param(1, id="all", marks=pytest.mark.all)]
)
@pytest.mark.parametrize("beside", BESIDE)
def test_a_partition_has_the_marker_of_the_last_commit_to_it(
    beside: str, every: int, record_property: Record
) -> None:
    """However two commits interleave, the markers at rest follow from the log, and `verify` agrees."""
    calls, played = [_calls(beside, number) for number in range(2)], 0
    for number, schedule in enumerate(schedules(*calls, 2)):
        if number % every == 0:
            world = Marked(beside)
            outcomes = world.play([world.actor("commit", 0), world.actor("commit", 1)], schedule)
            assert outcomes == [None, None]
            assert world.markers() == world.by_the_log(), schedule
            assert LogCheck(world.store, Destination(BUCKET, ROOT)).read().findings == [], schedule
            played += 1
    record_property("schedules", played)

"""A lost stage attempt that sealed, beside the one that counts, is stopped anywhere and then resumed."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from airflow_s3commit.xcom import counting_attempts
from tests.crash.faulty import FAULTS, count_calls
from tests.crash.world import TASKS, Case, World, run_with_fault

CASES = [Case("partitioned", "replace"), Case("magic", "append", repeat_complete="gone", track="s3")]


class Retried(World):
    """A job whose stage ran twice: the first try sealed, and Airflow took it for failed."""

    def run_tasks(self, store: Any) -> None:
        """Run the lost try, to the same keys as the one that counts."""
        super().run_tasks(store)
        job = self.job(store)
        lost = []
        for task, files in TASKS.items():
            with job.task_attempt(
                "spark", "0", task, f"{self.rounds}", threads=0, min_part_bytes=1
            ) as writer:
                for path in files:
                    with writer.open(path) as file:
                        file.write(b"of the lost try")
                lost.append(writer.commit())
        if job.stage_seal("spark", "0") is None:
            job.seal_stage("spark", "0", lost)

    def seal(self, store: Any) -> None:
        """Seal as the operators do."""
        job = self.job(store)
        job.seal_stage("spark", "1", self.tasks)
        job.seal(counting_attempts(job.sealed_stages(), []))


def before(case: Case, step: str) -> World:
    """Return a world in which every step before this one was taken."""
    world = Retried(case)
    world.reach(f"{step} after a lost try", lambda: world.take_until(step))
    return world


def stopped(case: Case, step: str, at: int, fault: Any) -> World:
    """Return a world whose step was stopped at a call."""
    world = before(case, step)
    run_with_fault(world, getattr(world, step), at, fault)
    return world


@pytest.mark.parametrize(("step", "case"), [*product(("seal", "commit"), CASES)], ids=str)
def test_only_the_last_try_is_ever_published(case: Case, step: str) -> None:
    """Wherever a step stops, going on publishes only the last try, and an abort leaves nothing of either."""
    whole = before(case, step)
    calls = count_calls(whole.store, getattr(whole, step))
    for at, fault in product(range(1, calls + 1), FAULTS):
        world = stopped(case, step, at, fault)
        world.finish_from(step)
        world.check_committed()
        world = stopped(case, step, at, fault)
        world.abort_or_commit()

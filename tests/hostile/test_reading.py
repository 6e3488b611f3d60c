"""A writer to the prefix cannot break its readers: every record, every field, every value.

By default each field and each value goes through each door at least once, in rotation; with
``S3COMMIT_HOSTILE=all`` in the environment each field goes through each with each value.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from itertools import cycle

import pytest

from tests.hostile.doors import COMMANDS, READING, only_ours, run_command
from tests.hostile.rotation import ALL, in_turn
from tests.hostile.scene import GuardedLake, TooMuch


def go_through(number: int, doors: Callable[[GuardedLake], None]) -> None:
    """Send every mutation of this turn through a door, and name those that broke it."""
    broken = []
    for mutation, lake in in_turn(number):
        before = lake.everything()
        try:
            only_ours(doors, lake)
            assert lake.everything() == before, "something was changed"
        except (Exception, TooMuch) as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            broken.append(f"{mutation}\n    {type(error).__name__}: {str(error)[:200]} ({where.name})")
    assert not broken, f"{len(broken)} broke it:\n" + "\n".join(broken[:20])


@pytest.mark.parametrize("name", READING)
def test_reading_hostile_records(name: str) -> None:
    """Reading raises only our own errors, changes nothing, and asks the store a few times."""
    go_through(list(READING).index(name), READING[name])


@pytest.mark.airflow
@pytest.mark.parametrize(("name", "turn"), [("destination", 6), ("job", 7)])
def test_the_page_with_hostile_records(name: str, turn: int) -> None:
    """The page in Airflow's UI reads records as safely as everything else."""
    from airflow_s3commit.plugin import app, service, views  # noqa: PLC0415 - they need Airflow

    def look(lake: GuardedLake) -> None:
        (home,) = service.read_places(lake.destination)
        if name == "destination":
            view = views.read_destination(lake.store, home)
            app.render("destination", view=view, fleet=views.search_fleet([view]))
        else:
            app.job_values(views.read_job(lake.store, home, lake.job_id))

    go_through(turn, look)


@pytest.mark.parametrize("turn", range(len(COMMANDS) if ALL else 3))
def test_commands_with_hostile_records(turn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands end with a meaningful exit code, and with one JSON object on request.

    They take turns: each field goes through several of them.
    """
    opened: list[GuardedLake] = []
    monkeypatch.setattr("airflow_s3commit.cli.command.open_store", lambda _: opened[-1].store)
    commands = cycle([*COMMANDS][turn:] + [*COMMANDS][:turn])

    def command(lake: GuardedLake) -> None:
        opened[:] = [lake]
        run_command(lake, next(commands))

    go_through(7 * turn, command)

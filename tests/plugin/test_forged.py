"""Records that no job writes: a page shows them as bad rows, and everything else as usual."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_s3commit import MemoryStore
from airflow_s3commit.exceptions import S3CommitError
from airflow_s3commit.plugin.app import job_values, render
from airflow_s3commit.plugin.service import DestinationService, read_places
from airflow_s3commit.plugin.views import read_job, search_fleet
from airflow_s3commit.protocol.inspect.jobs import pending_uploads
from airflow_s3commit.protocol.model.destination import RegisteredDestination
from tests.plugin.scene import FLIGHTS, ORDERS, set_scene

pytestmark = pytest.mark.airflow

DEEP = json.loads("[" * 500 + "]" * 500)
STRANGE = [
    10**30,
    10**400,
    -1,
    1e308,
    0.5,
    None,
    True,
    "",
    "\x00\x1b[31m",
    "<script>alert(1)</script>",
    "../..",
    "x" * 100_000,
    [],
    {},
    {"": 10**30},
    DEEP,
]


def forgeries(body: bytes) -> Iterator[bytes]:
    """Yield a record's text with one value in it replaced, each value by each strange one in turn."""
    record = json.loads(body)
    for path in paths(record):
        for strange in STRANGE:
            forged = json.loads(body)
            inner = forged
            for step in path[:-1]:
                inner = inner[step]
            inner[path[-1]] = strange
            yield json.dumps(forged).encode()


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of each value of a record."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, below in inner:
        yield (*path, step)
        yield from paths(below, (*path, step))


async def pages(service: DestinationService, home: RegisteredDestination, job_id: str) -> list[str]:
    """Return what is shown of all destinations, and of one of them and of one of its jobs."""
    homes, problem = await service.places()
    views = await service.views(homes)
    query = {"find": "", "state": "", "idle": 0}
    about = {"known": len(homes), "problem": problem, "fresh": 0, "query": query, "every": 0}
    shown = [render("fleet", fleet=search_fleet(views), **about)]
    own = next(view for view in views if view.home == home)
    shown.append(render("destination", view=own, fleet=search_fleet([own])))
    try:
        uploads = await service.read(
            home, lambda store: list(pending_uploads(store, home.place, measure=True))
        )
        shown.append(render("uploads", home=home, uploads=uploads, cut=False))
        view = await service.read(home, lambda store: read_job(store, home, job_id))
        shown.append(render("job", refused=None, **job_values(view)))
    except S3CommitError as error:
        shown.append(str(error))
    return shown


def records(lake: MemoryStore) -> Iterator[tuple[str, bytes]]:
    """Yield the JSON records of the flights' jobs."""
    for info in list(lake.list_objects("lake", "flights/")):
        if info.key.endswith((".json", ".pendingset")):
            yield info.key, lake.get("lake", info.key).body


def test_a_forged_record_hides_no_other_job() -> None:
    """It does not make a page fail or carry a script into it either; every 499th forgery is tried.

    The jobs that have ended are only in the log, whose entries vouch for one another.
    """
    lake = MemoryStore(buckets=("lake",))
    scene = set_scene(lake)
    places = read_places(f"{FLIGHTS} {ORDERS}")
    service = DestinationService(lambda: places, lambda *_: lake, wait=60.0)
    count = 0
    for key, body in records(lake):
        ended = {scene.committed, scene.aborted} if "/log/" in key else set()
        shown_by_others = [one for one in vars(scene).values() if one not in key and one not in ended]
        own = next((job_id for job_id in vars(scene).values() if job_id in key), scene.sealed)
        for forged in forgeries(body):
            count += 1
            if count % 499:
                continue
            lake.put("lake", key, forged)
            overview, *others = asyncio.run(pages(service, places[0], own))
            what = f"{key}: {forged[:2000]!r}"
            assert [job_id for job_id in shown_by_others if job_id not in overview] == [], what
            assert "could not be read" not in overview, what
            assert not any("<script>alert" in page or "\x1b" in page for page in (overview, *others)), what
        lake.put("lake", key, body)
    assert count > 499 * 20


DAMAGE = {
    "empty": b"",
    "null": b"null",
    "a list": b"[]",
    "cut off": b"{",
    "no text": b"\xff\xfe",
    "another version": b'{"version": 99}',
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("body", DAMAGE.values(), ids=DAMAGE)
def test_a_destination_full_of_damage_hides_no_other_one(body: bytes) -> None:
    """Each of its jobs is a bad row, or all of it is one; the other destination is whole."""
    lake = MemoryStore(buckets=("lake",))
    scene = set_scene(lake)
    places = read_places(f"{FLIGHTS} {ORDERS}")
    service = DestinationService(lambda: places, lambda *_: lake, wait=60.0)
    for key, _ in records(lake):
        lake.put("lake", key, body)
    overview, *_ = asyncio.run(pages(service, places[0], scene.sealed))
    assert scene.secret in overview
    assert scene.homeless in overview
    assert overview.count("damaged") >= 3 or overview.count("could not be read") == 1

"""Records that no job writes: a page shows them as bad rows, and everything else as usual."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_s3commit import MemoryStore
from airflow_s3commit.exceptions import S3CommitError
from airflow_s3commit.plugin.render import Pages
from airflow_s3commit.plugin.service import FRESH, DestinationService
from airflow_s3commit.plugin.stores import Place, read_places
from airflow_s3commit.plugin.views import IDLE, STATES, Wanted, search_fleet
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


async def pages(renderer: Pages, service: DestinationService, place: Place, job_id: str) -> list[str]:
    """Return what is shown of a destination and of one of its jobs."""
    places, wanted = (await service.places()).places, Wanted()
    fleet = search_fleet(await service.destination_views(places, whole=True), wanted)
    common = {"wanted": wanted, "states": STATES, "idles": IDLE, "every": 0, "registry_problem": None}
    numbers = {"known": len(places), "fresh": FRESH, "page": 1, "places": 1, "ended": 1, "per_page": 50}
    shown = [renderer.render("fleet", "", fleet=fleet, **numbers, **common)]
    try:
        uploads = await service.uploads(place)
        shown.append(
            renderer.render("uploads", "", place=place, uploads=uploads, cut=False, unclaimed=len(uploads))
        )
        values = renderer.job_values(await service.job_view(place, job_id), None)
        shown.append(renderer.render("job", "", offers=[], refused=None, **values))
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
    service = DestinationService(lambda: places, lambda _: lake, lambda _: None, wait=60.0)
    renderer, count = Pages(), 0
    for key, body in records(lake):
        ended = {scene.committed, scene.aborted} if "/log/" in key else set()
        shown_by_others = [one for one in vars(scene).values() if one not in key and one not in ended]
        own = next((job_id for job_id in vars(scene).values() if job_id in key), scene.sealed)
        for forged in forgeries(body):
            count += 1
            if count % 499:
                continue
            lake.put("lake", key, forged)
            overview, *others = asyncio.run(pages(renderer, service, places[0], own))
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
    service = DestinationService(lambda: places, lambda _: lake, lambda _: None, wait=60.0)
    for key, _ in records(lake):
        lake.put("lake", key, body)
    overview, *_ = asyncio.run(pages(Pages(), service, places[0], scene.sealed))
    assert scene.secret in overview
    assert scene.homeless in overview
    assert overview.count("damaged") >= 3 or overview.count("could not be read") == 1

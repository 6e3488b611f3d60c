"""All data of the asked directories is listed, and nothing else."""

from __future__ import annotations

import pytest

from airflow_s3commit.exceptions import InvalidDestination
from airflow_s3commit.protocol.steps.files import (
    data_objects,
    refuse_nested,
)
from tests.protocol.building import ROOT, Lake


@pytest.mark.parametrize("threads", [0, 4])
def test_data_objects_are_found_in_any_number_of_directories(threads: int) -> None:
    """Directories are listed without those below them, with or without threads."""
    lake = Lake()
    lake.put({f"dt={n}/{name}": b"x" for n in range(40) for name in ("a", "b", "sub/c", "_h")})
    found = data_objects(lake.context(threads=threads), [f"dt={n}" for n in range(0, 40, 2)])
    expected = {f"{ROOT}dt={n}/{name}" for n in range(0, 40, 2) for name in ("a", "b")}
    assert {info.key for info in found} == expected
    assert len(list(data_objects(lake.context(), None))) == 120
    assert list(data_objects(lake.context(), [])) == []


def test_a_directory_of_many_pages_is_fully_listed() -> None:
    """What follows the prefetched page is listed too, in its place."""
    lake = Lake()
    lake.put({f"dt=1/{n:06d}": b"" for n in range(5_000)})
    found = data_objects(lake.context(), ["dt=1"])
    assert next(found).key == f"{ROOT}dt=1/000000"
    assert sum(1 for _ in found) == 4_999


def test_destinations_below_are_noticed() -> None:
    """A directory below that has records of its own is named, if all of the destination is listed.

    One that is hidden has no files that anybody would take.
    """
    lake = Lake()
    log = "_s3commit/log/00000000000000000001.json"
    lake.put(dict.fromkeys(("dt=1/a", f"archive/{log}", "_s3commit/x", f"_s3commit/doctor/{log}"), b""))
    nested: set[str] = set()
    assert [info.key for info in data_objects(lake.context(), None, nested=nested)] == [f"{ROOT}dt=1/a"]
    with pytest.raises(InvalidDestination, match="such as s3://lake/flights/archive/"):
        refuse_nested(lake.context().layout.destination, nested)
    refuse_nested(lake.context().layout.destination, set())

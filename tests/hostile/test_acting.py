"""A job never destroys what does not belong to it, whatever its records contain."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

from tests.hostile.doors import ACTING, only_ours
from tests.hostile.rotation import in_turn
from tests.hostile.scene import BEFORE, INNOCENT, KEPT, GuardedLake, TooMuch
from tests.protocol.building import BUCKET, HOME, ROOT, THEIRS

_RECORD = f"{HOME}open/{THEIRS}/job.json"

_OF_OTHERS = (
    INNOCENT,
    "private/",
    f"{ROOT}__magic_job-{THEIRS}/",
    f"{HOME}jobs/{BEFORE}",
    f"{HOME}open/{THEIRS}/",
    f"{HOME}log/",
    f"{ROOT}dt=5/",
    KEPT,
)


def of_others(lake: GuardedLake) -> dict[str, Any]:
    """Return everything that does not belong to the job: objects with their ETags, and pending uploads."""
    objects = lake.store.inner._buckets[BUCKET].objects
    guarded = {key: stored.info.etag for key, stored in objects.items() if key.startswith(_OF_OTHERS)}
    uploads = {
        upload_id: pending.key
        for upload_id, pending in lake.store.inner._buckets[BUCKET].uploads.items()
        if upload_id in lake.others
    }
    return {"objects": guarded, "uploads": uploads, "elsewhere": dict(lake.everything()["other"][0])}


@pytest.mark.parametrize("name", ACTING)
def test_acting_on_hostile_records(name: str) -> None:
    """Whatever a record says, only our own errors are raised, and what belongs to others stays."""
    broken = []
    for mutation, lake in in_turn(list(ACTING).index(name)):
        before = of_others(lake)
        try:
            only_ours(ACTING[name], lake)
        except (Exception, TooMuch) as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            broken.append(f"{mutation}\n    {type(error).__name__}: {str(error)[:200]} ({where.name})")
        lake.store.rest()
        if _RECORD not in lake.keys(ROOT):
            broken.append(f"{mutation}\n    the record of another job is gone")
            continue
        now = of_others(lake)
        lost = [
            f"{kind} {one}"
            for kind, things in before.items()
            for one, what in things.items()
            if now[kind].get(one) != what
        ]
        if lost:
            broken.append(f"{mutation}\n    is gone, or changed: {', '.join(lost[:5])}")
    assert not broken, f"{len(broken)} broke it:\n" + "\n".join(broken[:20])

"""No pending upload of a job is forgotten, whatever died, and no other job's is touched."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from airflow_s3commit.exceptions import Unavailable
from airflow_s3commit.protocol.metadata.pending_index import tracked_uploads, untracked_uploads
from tests.cases import each
from tests.protocol.building import BUCKET, OURS, ROOT, THEIRS, Crash, Lake, named, once

MODES = [(True, "task"), (True, "s3"), (False, "task"), (False, "s3")]


def tracked(lake: Lake, **skip: Any) -> list[str | None]:
    """Return the keys of all tracked uploads, None for what cannot be read."""
    return [
        upload.destinationKey if upload is not None else None
        for upload in tracked_uploads(lake.context(), **skip)
    ]


def untracked(lake: Lake) -> list[str]:
    """Return the keys of all other uploads of the job that can be found."""
    return sorted({upload.key for upload in untracked_uploads(lake.context())})


def upload(lake: Lake, key: str) -> str:
    """Start an upload as a program does that knows nothing of this package."""
    return lake.store.create_upload(BUCKET, key, metadata={}, content_type="x")


@each("committer", ["magic", "partitioned"])
@each("mode", MODES)
@each(
    ("verb", "ending", "moment"),
    [
        ("create_upload", "", "before"), ("create_upload", "", "after"), ("upload_part", "", "before"),
        ("upload_part", "", "after"), ("put", ".pendingset", "before"), ("put", ".pendingset", "after"),
        ("put", ".pending", "before"), ("put", ".pending", "after"), ("put", ".intent", "after"),
    ],
)  # fmt: skip
def test_a_process_that_dies_forgets_no_upload(
    mode: tuple[bool, str], verb: str, ending: str, moment: str, committer: str
) -> None:
    """Wherever a task attempt dies, an abort of its job by another process leaves nothing pending."""
    lake = Lake()
    others = upload(lake, f"{ROOT}a.parquet"), upload(lake, f"{ROOT}{named('b.parquet', THEIRS)}")
    lake.store_clock.advance(10)
    job = lake.set_up(unique_filenames=mode[0], track_pending=mode[1], committer=committer)
    lake.store.die(verb, ending, after=moment == "after")
    with suppress(Crash):
        lake.run_task(job, {"a.parquet": b"1", "b.parquet": b"2"})
    lake.store.rest()
    lake.job().abort()
    left = [pending.upload_id for pending in lake.store.list_uploads(BUCKET, "")]
    assert left == list(others)
    assert lake.staging() == []


def test_uploads_are_found_by_their_key() -> None:
    """With unique names a listing finds the job's uploads, and only this job's."""
    lake = Lake()
    job, theirs = lake.set_up(), lake.set_up(THEIRS)
    lake.run_task(job, {"a": b"1"})
    lake.run_task(theirs, {"a": b"1"})
    upload(lake, f"{ROOT}stranger")
    upload(lake, f"flights10/{named('neighbour')}")
    assert untracked(lake) == [ROOT + named("a")]


def test_uploads_are_found_in_pendingsets_and_records() -> None:
    """What pendingsets and records of single uploads name is tracked; some can be skipped."""
    lake = Lake()
    job = lake.set_up(track_pending="s3")
    lake.run_task(job, {"a": b"1"}, task="0")
    lake.run_task(job, {"b": b"1"}, task="1")
    a, b = ROOT + named("a"), ROOT + named("b")
    assert set(tracked(lake)) == {a, b}
    assert set(tracked(lake, skip={lake.pendingset_key("0")})) == {b}


@pytest.mark.parametrize("damage", ["cut", "empty", "elsewhere", "other bucket", "other job"])
def test_a_record_that_cannot_be_read_is_told(damage: str) -> None:
    """A damaged record, or one that names a key elsewhere or another job, yields None and nothing from it."""
    lake = Lake()
    key = f"{ROOT}{named('a')}"
    if damage == "elsewhere":
        lake.forge_task({key: BUCKET, f"flights10/{named('b')}": BUCKET})
    elif damage == "other bucket":
        lake.forge_task({key: "other"})
    elif damage == "other job":
        lake.run_task(lake.set_up(THEIRS), {"a": b"1"})
        lake.store.put(BUCKET, lake.pendingset_key(), lake.get(lake.pendingset_key(job_id=THEIRS)))
    else:
        lake.run_task(lake.set_up(), {"a": b"1"})
        lake.tamper(lake.pendingset_key(), cut=1 if damage == "cut" else 100_000)
    assert tracked(lake) == [None]


def test_a_record_removed_meanwhile_is_nothing() -> None:
    """A pendingset that disappears between the listing and the reading is no error."""
    lake = Lake()
    lake.run_task(lake.set_up(), {"a": b"1"})
    gone = lake.pendingset_key()
    lake.store.before = once("get", ".pendingset", lambda: lake.store.delete(BUCKET, gone))
    assert tracked(lake) == []


@pytest.mark.parametrize("state", ["open", "committing"])
def test_another_job_s_pendingset_is_no_reason_to_touch_its_uploads(state: str) -> None:
    """A pendingset copied from another job's staging is not believed: that job's output is unharmed."""
    lake = Lake()
    theirs = lake.set_up(THEIRS, conflict_mode="append")
    task = lake.run_task(theirs, {"a": b"theirs"})
    job = lake.sealed({"b": b"ours"}) if state == "committing" else lake.set_up()
    copied = lake.get(lake.pendingset_key(job_id=THEIRS))
    lake.store.put(BUCKET, lake.pendingset_key("00009"), copied)
    if state == "committing":
        theirs.seal_stage("spark", "1", [task])
        theirs.seal()
        theirs.commit()
        lake.store.die("complete_upload", named("b"), after=True)
        with pytest.raises(Crash):
            job.commit()
        lake.store.rest()
    lake.job().abort()
    if state == "open":
        assert lake.pending() == [ROOT + named("a", THEIRS)]
    else:
        assert lake.data() == {named("a", THEIRS): b"theirs"}


def test_an_intent_leads_to_its_own_key_only() -> None:
    """An upload whose id was never recorded is found by the key of its intent."""
    lake = Lake()
    job = lake.set_up(unique_filenames=False)
    earlier = upload(lake, f"{ROOT}a")
    lake.store_clock.advance(5)
    lake.store.die("create_upload", after=True)
    with pytest.raises(Crash):
        lake.run_task(job, {"a": b"1"})
    lake.store.rest()
    upload(lake, f"{ROOT}ab")
    upload(lake, f"{ROOT}a/b")
    found = list(untracked_uploads(lake.context()))
    assert [pending.key for pending in found] == [f"{ROOT}a"]
    assert earlier not in [pending.upload_id for pending in found]


def test_an_intent_with_its_record_leads_nowhere() -> None:
    """Once the upload's id is noted, nothing else on that key is taken for this job's."""
    lake = Lake()
    lake.run_task(lake.set_up(unique_filenames=False), {"a": b"1"})
    upload(lake, f"{ROOT}a")
    assert untracked(lake) == []


def test_an_intent_that_another_job_shares_is_left_alone() -> None:
    """If two jobs intend one key, an upload on it is not known to be this one's."""
    lake = Lake()
    for job_id in (OURS, THEIRS):
        lake.set_up(job_id, unique_filenames=False)
        lake.store.die("create_upload", after=True)
        with pytest.raises(Crash):
            lake.run_task(lake.job(job_id), {"a": b"1"})
        lake.store.rest()
    assert untracked(lake) == []


@pytest.mark.parametrize("body", [b"elsewhere/a", b"flights10/a", b"flights/_hidden/a", b"", b"\xff"])
def test_a_tampered_intent_reaches_no_other_key(body: bytes) -> None:
    """An intent whose content is not the key it was written for leads to no upload, and stops no abort."""
    lake = Lake()
    job = lake.set_up(unique_filenames=False)
    lake.store.die("create_upload", after=True)
    with pytest.raises(Crash):
        lake.run_task(job, {"a": b"1"})
    lake.store.rest()
    (intent,) = [key for key in lake.keys("") if key.endswith(".intent")]
    lake.store.put(BUCKET, intent, body)
    others = {upload(lake, key) for key in ("elsewhere/a", "flights10/a", f"{ROOT}_hidden/a")}
    lake.job().abort()
    assert others <= {pending.upload_id for pending in lake.store.list_uploads(BUCKET, "")}


@pytest.mark.parametrize(("unique", "track"), MODES)
def test_what_cannot_be_noted_is_not_left_pending(unique: bool, track: str) -> None:
    """If the record of a started upload cannot be written, the attempt leaves nothing pending."""
    lake = Lake()
    job = lake.set_up(unique_filenames=unique, track_pending=track)
    lake.store.before = once("put", ".pending", Unavailable("slow down"))
    if unique and track == "task":
        lake.run_task(job, {"a": b"1"})
        return
    with pytest.raises(Unavailable):
        lake.run_task(job, {"a": b"1"})
    assert lake.pending() == []


@pytest.mark.parametrize(("unique", "track"), MODES)
def test_records_are_kept_where_they_are_needed(unique: bool, track: str) -> None:
    """Uploads have records of their own with fixed names, or where the job asks for them."""
    lake = Lake()
    lake.run_task(lake.set_up(unique_filenames=unique, track_pending=track), {"a": b"1", "b": b"2"})
    endings = [key.rpartition(".")[2] for key in lake.staging() if "/tasks/" in key]
    assert endings.count("pendingset") == 1
    assert endings.count("pending") == (0 if unique and track == "task" else 2)
    assert endings.count("intent") == (0 if unique else 2)

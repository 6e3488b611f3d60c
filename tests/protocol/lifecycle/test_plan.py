"""A commit decides what it replaces before anything changes, exactly as its mode promises."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import msgspec
import pytest

from airflow_s3commit.exceptions import (
    DestinationChanged,
    DestinationNotEmpty,
    InvalidDestination,
    InvalidRecord,
    JobClosed,
    NoSuchJob,
)
from airflow_s3commit.protocol.inspect.details import preview_commit
from airflow_s3commit.protocol.lifecycle.plan import verify_plan
from airflow_s3commit.protocol.metadata.listing import data_objects
from airflow_s3commit.protocol.metadata.sealed_job import find_plan, load_seal, planned_objects
from airflow_s3commit.protocol.model.sealed_job import PlanRecord
from tests.cases import each
from tests.protocol.building import BUCKET, OURS, ROOT, THEIRS, Lake, named, once
from tests.protocol.lifecycle.test_seal import refused

#: A dataset with data at its root, in partitions, below a partition, and things that are not data.
OLD = {
    "root.parquet": b"r",
    "dt=1/old.parquet": b"1",
    "dt=1/same.parquet": b"1 same",
    "dt=1/deeper/old.parquet": b"1 deeper",
    "dt=2/old.parquet": b"2",
    "dt=10/old.parquet": b"10",
}
NO_DATA = {
    "dt=1/_hidden": b"h",
    "dt=1/.crc": b"h",
    "dt=1/": b"",
    "dt=1/_temporary/0/x.parquet": b"h",
    ".spark/x.parquet": b"h",
    "__magic_job-33333333/x.parquet": b"h",
    "_SUCCESS": b"marker",
}
#: What the job writes: into partition dt=1, into a new one, and in one case at the root.
NEW = {"dt=1/same.parquet": b"new 1", "dt=9/new.parquet": b"new 9"}
NEW_AT_ROOT = {"new.parquet": b"new root"}

#: Which old objects each committer's ``replace`` removes, written down by hand.
REPLACED = {
    ("directory", False): set(OLD),
    ("directory", True): set(OLD),
    ("partitioned", False): {"dt=1/old.parquet", "dt=1/same.parquet"},
    ("partitioned", True): {"root.parquet"},
    ("magic", False): {"dt=1/old.parquet", "dt=1/same.parquet"},
    ("magic", True): {"root.parquet"},
}
COMMITTERS = ("directory", "partitioned", "magic")


def lake_with(old: dict[str, bytes]) -> Lake:
    """Return a lake with old data, things that are not data, and neighbours."""
    lake = Lake()
    lake.put({**old, **NO_DATA})
    for key in ("flights10/dt=1/x", "flights", "fligh/x"):
        lake.store.put(BUCKET, key, b"a neighbour")
    return lake


def others(lake: Lake) -> dict[str, bytes]:
    """Return what no commit may change."""
    return {
        key: body
        for key, body in lake.visible().items()
        if not key.startswith(ROOT) or (key.removeprefix(ROOT) in NO_DATA and "_SUCCESS" not in key)
    }


def destination_without_object(lake: Lake) -> None:
    """Remove the object whose name is the destination without its slash."""
    lake.store.delete(BUCKET, "flights")


def new_names(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return the files under their final paths."""
    return {named(path): body for path, body in files.items()}


@each("committer", COMMITTERS)
@each("at_root", [False, True])
@each("planned", [True, False])
def test_replace(committer: str, at_root: bool, planned: bool) -> None:
    """``replace`` removes what the table says and nothing else, whether the job was planned or not."""
    lake = lake_with(OLD)
    destination_without_object(lake)
    unchanged, new = others(lake), NEW_AT_ROOT if at_root else NEW
    job = lake.sealed(new, committer=committer)
    if planned:
        plan = job.plan()
        assert plan.objects == len(REPLACED[committer, at_root])
        assert plan.bytes == sum(len(OLD[path]) for path in REPLACED[committer, at_root])
    manifest = job.commit()
    kept = {path: body for path, body in OLD.items() if path not in REPLACED[committer, at_root]}
    data = {path: body for path, body in lake.data().items() if path not in NO_DATA}
    assert data == {**kept, **new_names(new)}
    assert others(lake) == unchanged
    assert manifest.replaced.files == len(REPLACED[committer, at_root])
    assert lake.pending() == []


@pytest.mark.parametrize("committer", COMMITTERS)
@pytest.mark.parametrize("at_root", [False, True], ids=["partitions", "root"])
def test_append(committer: str, at_root: bool) -> None:
    """``append`` removes nothing, and plans nothing."""
    lake = lake_with(OLD)
    destination_without_object(lake)
    unchanged, new = others(lake), NEW_AT_ROOT if at_root else NEW
    job = lake.sealed(new, committer=committer, conflict_mode="append")
    plan = job.plan()
    assert plan.objects == 0
    job.commit()
    data = {path: body for path, body in lake.data().items() if path not in NO_DATA}
    assert data == {**OLD, **new_names(new)}
    assert others(lake) == unchanged


#: Whether ``fail`` refuses, by committer and by where the old data is.
FAILS = {
    ("directory", "dt=1/old.parquet"): "setup",
    ("directory", "dt=2/old.parquet"): "setup",
    ("directory", "dt=1/deeper/old.parquet"): "setup",
    ("directory", "root.parquet"): "setup",
    ("partitioned", "dt=1/old.parquet"): "commit",
    ("partitioned", "dt=2/old.parquet"): None,
    ("partitioned", "dt=10/old.parquet"): None,
    ("partitioned", "dt=1/deeper/old.parquet"): None,
    ("partitioned", "root.parquet"): None,
    ("magic", "dt=1/old.parquet"): "commit",
    ("magic", "dt=2/old.parquet"): None,
    ("magic", "root.parquet"): None,
}


@each(("committer", "path"), FAILS)
def test_fail(committer: str, path: str) -> None:
    """``fail`` refuses where there is data in its scope, as early as it can, and changes nothing."""
    lake = lake_with({path: b"old"})
    destination_without_object(lake)
    options: dict[str, Any] = {
        "committer": committer, "conflict_mode": "fail",
    }  # fmt: skip
    before, fails = lake.visible(), FAILS[committer, path]
    if fails == "setup":
        with pytest.raises(DestinationNotEmpty, match=path):
            lake.set_up(**options)
        assert lake.visible() == before
        assert lake.staging() == []
        return
    job = lake.sealed(NEW, **options)
    if fails == "commit":
        for step in (job.plan, job.commit, job.plan):
            with pytest.raises(DestinationNotEmpty, match=path):
                step()
            assert lake.visible() == before
        job.abort()
        assert lake.visible() == before
        assert lake.pending() == []
    else:
        job.plan()
        job.commit()
        data = {key: body for key, body in lake.data().items() if key not in NO_DATA}
        assert data == {path: b"old", **new_names(NEW)}


@pytest.mark.parametrize("committer", COMMITTERS)
def test_fail_into_nothing(committer: str) -> None:
    """Hidden objects and neighbours are not data, so ``fail`` takes the destination for empty."""
    lake = lake_with({})
    destination_without_object(lake)
    lake.sealed(NEW, committer=committer, conflict_mode="fail").commit()
    assert {path for path in lake.data() if path not in NO_DATA} == set(new_names(NEW))


@pytest.mark.parametrize("committer", COMMITTERS)
def test_fail_notices_data_that_came_later(committer: str) -> None:
    """Data that another writer adds after the plan makes ``fail`` refuse at the commit."""
    lake = Lake()
    job = lake.sealed(NEW, committer=committer, conflict_mode="fail")
    job.plan()
    lake.put({"dt=1/other": b"other"})
    before = lake.visible()
    with pytest.raises(DestinationNotEmpty):
        job.commit()
    assert lake.visible() == before


@each("committer", COMMITTERS)
@each("mode", ["fail", "append", "replace"])
@each("tasks", [[], [{}], [{}, {}]])
def test_a_job_without_output(committer: str, mode: str, tasks: list[dict[str, bytes]]) -> None:
    """An empty job commits, and only ``replace`` of a whole directory then removes data, namely all of it."""
    lake = lake_with({} if mode == "fail" else OLD)
    destination_without_object(lake)
    unchanged = others(lake)
    job = lake.sealed(*tasks, committer=committer, conflict_mode=mode)
    job.plan()
    manifest = job.commit()
    left = {path for path in lake.data() if path not in NO_DATA}
    assert left == (set() if mode == "fail" or (mode, committer) == ("replace", "directory") else set(OLD))
    assert manifest.counts.files == 0
    assert others(lake) == unchanged
    assert OURS.encode() in lake.get(f"{ROOT}_SUCCESS")
    assert lake.staging() == []


def test_a_neighbour_is_never_planned() -> None:
    """A partition's replacement does not reach one whose name begins with its name."""
    lake = Lake()
    lake.put({"dt=1/a": b"1", "dt=10/a": b"10", "dt=1": b"an object"})
    lake.store.put(BUCKET, "flights10/dt=1/a", b"neighbour")
    lake.sealed({"dt=1/b": b"new"}).commit()
    assert lake.data() == {"dt=10/a": b"10", "dt=1": b"an object", named("dt=1/b"): b"new"}
    assert lake.get("flights10/dt=1/a") == b"neighbour"


@each("committer", COMMITTERS)
def test_another_dataset_below_is_never_replaced(committer: str) -> None:
    """Plan and preview refuse to replace everything above another dataset, but not partitions."""
    lake = Lake()
    lake.put({"dt=1/old": b"old"})
    lake.prefix = f"{ROOT}archive/"
    lake.sealed({"dt=1/a": b"archived"}, job_id=THEIRS).commit()
    lake.prefix = ROOT
    job = lake.sealed(NEW, committer=committer)
    before = lake.visible()
    if committer == "directory":
        with pytest.raises(InvalidDestination, match="such as s3://lake/flights/archive/"):
            preview_commit(lake.context())
        with pytest.raises(InvalidDestination, match="nothing was changed"):
            job.commit()
        assert lake.visible() == before
        job.abort()
    else:
        assert preview_commit(lake.context()).replaced == 1
        job.commit()
    archived = [body for path, body in lake.data().items() if path.startswith("archive/dt=1/a")]
    assert archived == [b"archived"]


def test_the_root_of_a_bucket_is_a_destination() -> None:
    """At a bucket's root all modes work, and staging, manifests and markers are not data."""
    for committer, left in (("directory", set()), ("partitioned", {"x/y", "x.y/z"})):
        lake = Lake(prefix="")
        lake.put({"a": b"1", "x/y": b"2", "x.y/z": b"3", "_hidden/a": b"4"})
        lake.sealed({"new": b"n"}, committer=committer).commit()
        assert set(lake.data()) - {"_SUCCESS", "_hidden/a"} == {named("new")} | left
        assert "_SUCCESS" in lake.keys("")
        assert f"_s3commit/manifests/{OURS}.json" in lake.keys("")
        assert not any(key.startswith("__magic") for key in lake.keys(""))


@pytest.mark.parametrize("change", ["added", "removed", "rewritten"])
@pytest.mark.parametrize("committer", COMMITTERS)
def test_a_partition_that_changed_is_planned_again(change: str, committer: str) -> None:
    """If a partition of a named plan changed, nothing is committed; without a name the commit plans again."""
    lake = Lake()
    lake.put({"dt=1/a": b"a", "dt=1/b": b"b"})
    job = lake.sealed(NEW, committer=committer)
    plan = job.plan()
    if change == "added":
        lake.put({"dt=1/c": b"c"})
    elif change == "removed":
        lake.store.delete(BUCKET, f"{ROOT}dt=1/b")
    else:
        lake.put({"dt=1/b": b"B"})
    before = lake.visible()
    with pytest.raises(DestinationChanged, match="plan again"):
        job.commit(plan_etag=plan.etag)
    assert lake.visible() == before
    job.commit()
    assert lake.data() == new_names(NEW)


def test_a_change_elsewhere_does_not_matter() -> None:
    """Changes in other partitions, and of hidden objects, do not make a plan stale."""
    lake = Lake()
    lake.put({"dt=1/a": b"a", "dt=2/a": b"a"})
    job = lake.sealed(NEW)
    job.plan()
    lake.put({"dt=2/b": b"b", "dt=1/_hidden": b"h", "dt=1/deeper/x": b"d"})
    job.commit()
    assert set(lake.data()) == {"dt=2/a", "dt=2/b", "dt=1/_hidden", "dt=1/deeper/x", *new_names(NEW)}


def test_an_object_rewritten_after_the_last_look_is_kept() -> None:
    """What another writer changes during the commit is not deleted, because a plan pins ETags."""
    lake = Lake()
    lake.put({"dt=1/a": b"a"})
    job = lake.sealed({"dt=1/n": b"n"})
    lake.store.before = once("complete_upload", "", lambda: lake.put({"dt=1/a": b"changed"}))
    job.commit()
    assert lake.data() == {"dt=1/a": b"changed", named("dt=1/n"): b"n"}


@pytest.mark.parametrize("mode", ["fail", "append", "replace"])
def test_a_plan_needs_a_sealed_job(mode: str) -> None:
    """A job that is open, or over, cannot be planned."""
    lake = Lake()
    job = lake.set_up(conflict_mode=mode)
    refused(lake, JobClosed, job.plan, "needs it sealed")
    lake.run_stage(job, NEW)
    job.seal()
    job.commit()
    refused(lake, NoSuchJob, lake.job().plan)


def planned(lake: Lake) -> PlanRecord:
    """Return the plan that the job's state names."""
    state = lake.job().state()
    assert state is not None
    stored = find_plan(lake.context(), state)
    assert stored is not None
    return stored.record


def test_a_plan_lists_what_it_will_replace() -> None:
    """The plan names each object with its size and ETag."""
    lake = Lake()
    lake.put({"dt=1/same.parquet": b"old", "dt=1/z": b"zz"})
    lake.sealed(NEW).plan()
    plan = planned(lake)
    found = {item.key: item for item in planned_objects(lake.context(), plan)}
    assert {key: item.size for key, item in found.items()} == {
        f"{ROOT}dt=1/same.parquet": 3,
        f"{ROOT}dt=1/z": 2,
    }
    assert found[f"{ROOT}dt=1/z"].etag == lake.store.head(BUCKET, f"{ROOT}dt=1/z").etag
    assert (plan.objects, plan.bytes) == (2, 5)


def test_a_job_can_be_planned_again() -> None:
    """The last plan counts, and its digest depends only on the objects, not on their order."""
    lake = Lake()
    lake.put({"dt=1/a": b"a"})
    job = lake.sealed(NEW)
    first = job.plan()
    digest = planned(lake).digest
    assert job.plan().objects == first.objects
    assert planned(lake).digest == digest
    lake.put({"dt=1/b": b"b"})
    assert job.plan().objects == 2
    assert planned(lake).digest != digest
    job.commit()
    assert lake.data() == new_names(NEW)


def test_a_plan_with_many_objects_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long plan is written in parts, and every part is read back."""
    monkeypatch.setattr("airflow_s3commit.protocol.lifecycle.plan._PART_OBJECTS", 3)
    monkeypatch.setattr("airflow_s3commit.protocol.lifecycle.plan._WITHIN_OBJECTS", 2)
    lake = Lake()
    lake.put({f"dt=1/{n:03d}": b"x" for n in range(10)})
    job = lake.sealed(NEW)
    assert job.plan().objects == 10
    plan = planned(lake)
    assert [part.objects for part in plan.parts] == [3, 3, 3, 1]
    assert len(list(planned_objects(lake.context(), plan))) == 10
    seal = load_seal(lake.context(), None).record
    verify_plan(lake.context(), job.record(), seal, plan)
    job.commit()
    assert lake.data() == new_names(NEW)


def test_a_short_plan_is_one_object(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short list lies within the plan's record; one object more, and it is an object of its own."""
    monkeypatch.setattr("airflow_s3commit.protocol.lifecycle.plan._WITHIN_OBJECTS", 2)
    for count, parts in ((2, 0), (3, 1)):
        lake = Lake()
        lake.put({f"dt=1/{n}": b"x" for n in range(count)})
        job = lake.sealed(NEW)
        job.plan()
        assert len([key for key in lake.keys("") if key.endswith(".jsonl")]) == parts
        assert len(list(planned_objects(lake.context(), planned(lake)))) == count
        job.commit()
        assert lake.data() == new_names(NEW)


def test_a_version_that_knows_no_short_plans_refuses_one() -> None:
    """Without the field such a plan names an object that does not exist, so nothing is left undeleted."""
    lake = Lake()
    lake.put({"dt=1/a": b"a"})
    lake.sealed(NEW).plan()
    plan = planned(lake)
    older = [msgspec.structs.replace(part, within=None) for part in plan.parts]
    with pytest.raises(InvalidRecord, match="plan again"):
        list(planned_objects(lake.context(), msgspec.structs.replace(plan, parts=older)))


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write even short plans in parts."""
    monkeypatch.setattr("airflow_s3commit.protocol.lifecycle.plan._WITHIN_OBJECTS", 0)


def plan_keys(lake: Lake) -> tuple[str, str]:
    """Return the keys of a plan's summary and of its only part."""
    (summary,) = [key for key in lake.keys("") if key.endswith("/summary.json")]
    (part,) = [key for key in lake.keys("") if key.endswith(".jsonl")]
    return summary, part


@pytest.mark.parametrize(
    ("part", "old", "new", "cut"),
    [
        (False, b'"objects":2', b'"objects":1', 0),
        (False, b"", b"", 1),
        (False, b"", b"", 1 << 20),
        (False, f'"job_id":"{OURS}"'.encode(), f'"job_id":"{THEIRS}"'.encode(), 0),
        (True, b'"size":1', b'"size":2', 0),
        (True, b"dt=1/a", b"dt=2/a", 0),
        (True, b"dt=1/a", b"../../x", 0),
        (True, b"", b"", 1),
        (True, b"", b"", 40),
        (True, b"", b"", 1 << 20),
    ],
    ids=["count", "cut", "empty", "foreign", "size", "key", "elsewhere", "line end", "line", "no lines"],
)
@pytest.mark.usefixtures("in_parts")
def test_a_plan_that_changed_is_refused(part: bool, old: bytes, new: bytes, cut: int) -> None:
    """A plan that is not the expected one, or has other parts, stops the commit, and nothing is lost."""
    lake = Lake()
    lake.put({"dt=1/a": b"a", "dt=1/b": b"b", "dt=2/a": b"c"})
    job = lake.sealed(NEW)
    plan = job.plan()
    lake.tamper(plan_keys(lake)[part], old=old, new=new, cut=cut)
    before = lake.visible()
    with pytest.raises(InvalidRecord):
        job.commit(plan_etag=plan.etag)
    assert lake.visible() == before
    plan = job.plan()
    job.commit(plan_etag=plan.etag)
    assert lake.data() == {"dt=2/a": b"c", **new_names(NEW)}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"size":1', b'"size":2'),
        (b"dt=1/a", b"dt=2/a"),
        (b"dt=1/a", b"../../x"),
        (b'"within":[', b'"within":null,"x":['),
    ],
    ids=["size", "key", "elsewhere", "no list"],
)
def test_a_short_plan_that_changed_is_refused(old: bytes, new: bytes) -> None:
    """A changed list within a plan stops the commit, even where the state names the changed record."""
    lake = Lake()
    lake.put({"dt=1/a": b"a", "dt=1/b": b"b", "dt=2/a": b"c"})
    job = lake.sealed(NEW)
    plan = job.plan()
    (summary,) = [key for key in lake.keys("") if key.endswith("/summary.json")]
    lake.tamper(summary, old=old, new=new)
    before = lake.visible()
    with pytest.raises(InvalidRecord):
        job.commit(plan_etag=plan.etag)
    forged = lake.store.head(BUCKET, summary).etag
    lake.tamper(lake.context().layout.state, old=plan.etag.encode(), new=forged.encode())
    with pytest.raises(InvalidRecord):
        lake.job().commit(plan_etag=forged)
    assert lake.visible() == before


@pytest.mark.usefixtures("in_parts")
def test_a_forged_plan_deletes_nothing() -> None:
    """A plan and a part that were changed to match each other are not the plan that the state names."""
    lake = Lake()
    lake.put({"dt=1/a": b"a", "dt=7/innocent": b"i"})
    job = lake.sealed(NEW)
    job.plan()
    summary, part = plan_keys(lake)
    innocent = lake.store.head(BUCKET, f"{ROOT}dt=7/innocent")
    line = {"key": innocent.key, "size": innocent.size, "etag": innocent.etag}
    forged = lake.store.put(BUCKET, part, lake.get(part) + json.dumps(line).encode() + b"\n")
    record = json.loads(lake.get(summary))
    record["parts"][0] |= {"etag": forged.etag, "sha256": sha256(lake.get(part)).hexdigest()}
    lake.store.put(BUCKET, summary, json.dumps(record).encode())
    job.commit()
    assert lake.data() == {"dt=7/innocent": b"i", **new_names(NEW)}


@pytest.mark.parametrize("part", [False, True], ids=["summary", "part"])
@pytest.mark.usefixtures("in_parts")
def test_a_plan_that_is_gone_is_refused(part: bool) -> None:
    """A missing plan that the caller expects stops the commit, and nothing is lost."""
    lake = Lake()
    lake.put({"dt=1/a": b"a"})
    job = lake.sealed(NEW)
    plan = job.plan()
    lake.store.delete(BUCKET, plan_keys(lake)[part])
    before = lake.visible()
    with pytest.raises(InvalidRecord, match="plan again"):
        job.commit(plan_etag=plan.etag)
    assert lake.visible() == before


@pytest.mark.usefixtures("in_parts")
def test_a_refused_plan_does_not_keep_the_lock() -> None:
    """A job whose plan is refused does not prevent others from committing."""
    lake = Lake()
    lake.put({"dt=1/a": b"a"})
    job = lake.sealed(NEW)
    job.plan()
    lake.store.delete(BUCKET, plan_keys(lake)[1])
    with pytest.raises(InvalidRecord):
        job.commit()
    lake.sealed({"dt=1/theirs": b"t"}, job_id=THEIRS)
    lake.job(THEIRS).commit()
    assert lake.data() == {named("dt=1/theirs", THEIRS): b"t"}


@pytest.mark.usefixtures("in_parts")
def test_a_plan_for_another_seal_is_made_anew() -> None:
    """A plan that was made for another seal is not used."""
    lake = Lake()
    lake.put({"dt=1/a": b"a"})
    job = lake.sealed(NEW)
    job.plan()
    seal = lake.store.head(BUCKET, lake.context().layout.seal).etag
    lake.tamper(plan_keys(lake)[0], old=seal.encode(), new=b"0" * 32)
    job.commit()
    assert lake.data() == new_names(NEW)


@pytest.mark.parametrize("threads", [0, 4])
def test_data_objects_are_found_in_any_number_of_directories(threads: int) -> None:
    """Directories are listed without those below them, with or without threads."""
    lake = Lake()
    lake.put({f"dt={n}/{name}": b"x" for n in range(40) for name in ("a", "b", "sub/c", "_h")})
    context = lake.context(threads=threads)
    found = data_objects(context, [f"dt={n}" for n in range(0, 40, 2)])
    expected = {f"{ROOT}dt={n}/{name}" for n in range(0, 40, 2) for name in ("a", "b")}
    assert {info.key for info in found} == expected
    assert len(list(data_objects(context, None))) == 120
    assert list(data_objects(context, [])) == []


def test_a_directory_of_many_pages_is_fully_listed() -> None:
    """What follows the prefetched page is listed too, in its place."""
    lake = Lake()
    lake.put({f"dt=1/{n:06d}": b"" for n in range(5_000)})
    found = data_objects(lake.context(), ["dt=1"])
    assert next(found).key == f"{ROOT}dt=1/000000"
    assert sum(1 for _ in found) == 4_999

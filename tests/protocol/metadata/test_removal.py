"""A job that ended leaves nothing of its own, and as long as something is left it can be found."""

from __future__ import annotations

import pytest

from airflow_s3commit.exceptions import InvalidRecord, OutcomeUnknown, StoreRejected, Unavailable
from airflow_s3commit.protocol.metadata.removal import abort_upload, delete_record, delete_records
from airflow_s3commit.protocol.model.manifest import Manifest
from airflow_s3commit.store.base import DeleteFailure
from airflow_s3commit.testing import StoreCall
from tests.cases import each
from tests.protocol.building import BUCKET, OURS, ROOT, THEIRS, Crash, Lake, named

NEW = {"dt=1/a": b"1", "dt=2/b": b"22"}


@pytest.mark.parametrize("end", ["commit", "abort"])
@pytest.mark.parametrize("track", ["task", "s3"])
@pytest.mark.parametrize("staging", [None, "s3://lake/elsewhere/", "s3://other/private/"])
def test_nothing_is_left_of_the_staging(end: str, track: str, staging: str | None) -> None:
    """After a job has ended, all of its staging is gone, and other jobs' stagings stay."""
    lake = Lake()
    lake.run_task(lake.set_up(THEIRS), NEW)
    theirs = lake.staging(THEIRS), lake.keys(lake.open_key("", THEIRS))
    root = staging or lake.destination
    lake.reference = lambda job_id=OURS: type(place)(  # type: ignore[method-assign]
        job_id=job_id, destination=place.destination, staging=f"{root}__magic_job-{job_id}/"
    )
    place = Lake().reference()
    bucket, _, prefix = root.removeprefix("s3://").partition("/")
    lake.sealed(NEW, track_pending=track, staging=staging)
    for rubbish in ("stages/spark-1/tasks/rubbish", ""):  # the second as Hadoop's mkdirs leaves it
        lake.store.put(bucket, f"{prefix}__magic_job-{OURS}/{rubbish}", b"")
    getattr(lake.job(), end)()
    assert list(lake.store.list_objects(bucket, f"{prefix}__magic_job-{OURS}/")) == []
    assert lake.keys(lake.open_key("")) == []
    assert (lake.staging(THEIRS), lake.keys(lake.open_key("", THEIRS))) == theirs


@each("end", ["commit", "abort"])
def test_the_job_s_record_goes_last(end: str) -> None:
    """While anything is left of a job, its record says so, and the receipt says how it ended."""
    lake = Lake()
    lake.sealed(NEW)
    left: list[list[str]] = []

    def look(call: StoreCall) -> None:
        if call.verb == "delete" and ("__magic_job-" in call.key or "/open/" in call.key):
            assert lake.receipt_key() in lake.keys("")
            left.append([key for key in lake.left() if OURS in key and key not in lake.visible()])

    lake.store.after = look
    getattr(lake.job(), end)()
    assert len(left) == 4
    assert all(lake.open_key() in keys for keys in left[:-1])
    assert left[-1] == []


@pytest.mark.parametrize("nth", range(1, 5))
@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_cleanup_that_stopped_is_resumed(end: str, nth: int) -> None:
    """Wherever a cleanup dies, the next one finishes it, and says how the job ended."""
    lake = Lake()
    lake.put({"dt=1/old": b"old"})
    lake.sealed(NEW)

    def count_down(call: StoreCall) -> None:
        if call.verb == "delete" and ("__magic_job-" in call.key or "/open/" in call.key):
            left.append(call.key)
            if len(left) == nth:
                lake.store.crash()

    left: list[str] = []
    lake.store.before = count_down
    with pytest.raises(Crash):
        getattr(lake.job(), end)()
    lake.store.rest()
    ended = getattr(lake.job(), end)()
    assert lake.staging() == lake.pending() == lake.keys(lake.open_key("")) == []
    new = {named(path): body for path, body in NEW.items()}
    assert lake.data() == (new if end == "commit" else {"dt=1/old": b"old"})
    assert ended.job_id == OURS if isinstance(ended, Manifest) else ended.objects == 0


@each("end", ["commit", "abort"])
def test_an_object_that_cannot_be_deleted_is_reported(end: str) -> None:
    """If the store keeps an object, the error names it and the record of the job stays."""
    lake = Lake()
    lake.sealed(NEW)
    kept = lake.open_key("sealed.json")
    delete = lake.store.delete_many
    lake.store.delete_many = lambda *_: [DeleteFailure(kept, "AccessDenied", "no")]  # type: ignore[method-assign]
    with pytest.raises((StoreRejected, OutcomeUnknown), match=r"sealed\.json: AccessDenied no"):
        getattr(lake.job(), end)()
    assert lake.open_key() in lake.keys("")
    lake.store.delete_many = delete  # type: ignore[method-assign]
    getattr(lake.job(), end)()
    assert lake.keys(lake.open_key("")) == lake.staging() == []


@each("code", ["SlowDown", "InternalError"])
def test_a_store_that_stays_too_busy_to_delete_is_reported_honestly(code: str) -> None:
    """What was refused is still there; after an internal error nobody knows."""
    lake = Lake()
    lake.run_task(lake.set_up(track_pending="s3"), {"dt=1/a": b"1"})
    busy = lambda _, objects: [DeleteFailure(one.key, code, "busy") for one in objects]  # noqa: E731
    lake.store.delete_many = busy  # type: ignore[method-assign]
    kind = OutcomeUnknown if code == "InternalError" else Unavailable
    with pytest.raises(kind, match="too busy to delete 1 objects"):
        lake.job().abort_attempt("spark", "1", "00000", "1")


def test_an_upload_with_a_record_of_its_own_is_counted_once() -> None:
    """A pendingset names it too, and an abort says how many uploads there were."""
    lake = Lake()
    lake.run_task(lake.set_up(track_pending="s3"), NEW)
    assert lake.job().abort().uploads == len(NEW)


def test_what_is_not_the_job_s_is_not_removed_as_its_record() -> None:
    """The gate refuses other jobs' records, the log, receipts and data, and nothing changes."""
    lake = Lake()
    lake.put({"dt=1/old": b"old"})
    lake.sealed(NEW).commit()
    lake.run_task(lake.set_up(THEIRS), NEW)
    before = lake.everything()
    for key in lake.keys(ROOT):
        for remove in (
            lambda key=key: delete_record(lake.context(), BUCKET, key),
            lambda key=key: delete_records(lake.context(), [key]),
        ):
            with pytest.raises(InvalidRecord, match="refuses to destroy what is not its own"):
                remove()
    assert lake.everything() == before


def test_an_upload_elsewhere_is_not_aborted() -> None:
    """Not even for the writer that claims to have started it."""
    lake = Lake()
    upload = lake.store.create_upload(BUCKET, "elsewhere/a", metadata={}, content_type="x")
    with pytest.raises(InvalidRecord, match="lies outside"):
        abort_upload(lake.context(), "elsewhere/a", upload)
    assert lake.pending() == ["elsewhere/a"]

"""No pending upload of a job is forgotten, whatever dies; uploads are completed and recognised in bulk."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from msgspec import structs

from airflow_s3commit.exceptions import (
    AccessDenied,
    JobFailed,
    OutcomeUnknown,
    S3CommitError,
    StoreRejected,
    Unavailable,
)
from airflow_s3commit.protocol.metadata.pending_uploads import (
    complete_uploads,
    tracked_uploads,
    untracked_uploads,
)
from airflow_s3commit.protocol.metadata.removal import (
    PendingId,
    abort_uploads,
    delete_objects,
    delete_ours,
    is_ours,
)
from airflow_s3commit.protocol.model.codec import decode
from airflow_s3commit.protocol.model.pendingset import PendingSet, PendingUpload
from airflow_s3commit.protocol.write_job import write_job
from airflow_s3commit.store.base import DeleteFailure, ObjectToDelete
from airflow_s3commit.store.memory import MemoryStore
from airflow_s3commit.testing import StoreCall
from airflow_s3commit.testing.faulty_store import Effect, Fault, FaultyStore
from tests.cases import each
from tests.fakes import ManualClock
from tests.protocol.building import BUCKET, ROOT, THEIRS, Crash, Lake, named, once


def tracked(lake: Lake, **skip: Any) -> list[str | None]:
    """Return the keys of all tracked uploads, None for what is unreadable."""
    return [
        upload.destinationKey if upload is not None else None
        for upload in tracked_uploads(lake.context(), **skip)
    ]


def untracked(lake: Lake) -> list[str]:
    """Return the keys of all other uploads of the job that are found."""
    return sorted({upload.key for upload in untracked_uploads(lake.context())})


def upload(lake: Lake, key: str) -> str:
    """Start an upload as a program that knows nothing of this package does."""
    return lake.store.create_upload(BUCKET, key, metadata={}, content_type="x")


@each("committer", ["magic", "partitioned"])
@each("track", ["task", "s3"])
@each(
    ("verb", "ending", "moment"),
    [
        ("create_upload", "", "before"), ("create_upload", "", "after"), ("upload_part", "", "before"),
        ("upload_part", "", "after"), ("put", ".pendingset", "before"), ("put", ".pendingset", "after"),
        ("put", ".pending", "before"), ("put", ".pending", "after"),
    ],
)  # fmt: skip
def test_a_process_that_dies_forgets_no_upload(
    track: str, verb: str, ending: str, moment: str, committer: str
) -> None:
    """Wherever a task attempt dies, an abort of its job by another process leaves nothing pending."""
    lake = Lake()
    others = upload(lake, f"{ROOT}a.parquet"), upload(lake, f"{ROOT}{named('b.parquet', THEIRS)}")
    lake.store_clock.advance(10)
    job = lake.set_up(track_pending=track, committer=committer)
    lake.store.die(verb, ending, after=moment == "after")
    with suppress(Crash):
        lake.run_task(job, {"a.parquet": b"1", "b.parquet": b"2"})
    lake.store.rest()
    lake.job().abort()
    left = [pending.upload_id for pending in lake.store.list_uploads(BUCKET, "")]
    assert left == list(others)
    assert lake.staging() == []


def test_uploads_are_found_by_their_key() -> None:
    """A listing finds the job's uploads, and only this job's."""
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
def test_an_unreadable_record_is_reported(damage: str) -> None:
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
def test_another_job_s_pendingset_does_not_endanger_its_uploads(state: str) -> None:
    """A pendingset that was copied from another job's staging is ignored, and that job is unharmed."""
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


@pytest.mark.parametrize("track", ["task", "s3"])
def test_an_upload_that_cannot_be_recorded_is_not_left_pending(track: str) -> None:
    """If the record of a started upload cannot be written, the attempt leaves nothing pending."""
    lake = Lake()
    job = lake.set_up(track_pending=track)
    lake.store.before = once("put", ".pending", Unavailable("slow down"))
    if track == "task":
        lake.run_task(job, {"a": b"1"})
        return
    with pytest.raises(Unavailable):
        lake.run_task(job, {"a": b"1"})
    assert lake.pending() == []


@pytest.mark.parametrize("track", ["task", "s3"])
def test_records_are_kept_where_they_are_needed(track: str) -> None:
    """Uploads have records of their own where the job asks for them."""
    lake = Lake()
    lake.run_task(lake.set_up(track_pending=track), {"a": b"1", "b": b"2"})
    endings = [key.rpartition(".")[2] for key in lake.staging() if "/tasks/" in key]
    assert endings.count("pendingset") == 1
    assert endings.count("pending") == (0 if track == "task" else 2)


FILES = {f"dt=1/{name}": name.encode() * 2 for name in "abcd"}


def pending_lake(repeat_complete: Any = "ok", **options: Any) -> tuple[Lake, list[PendingUpload]]:
    """Return a lake with four pending uploads, and their records."""
    lake = Lake(repeat_complete=repeat_complete)
    lake.run_task(lake.set_up(**options), FILES)
    return lake, decode(PendingSet, lake.get(lake.pendingset_key()), "x").commits


def complete(lake: Lake, uploads: list[PendingUpload]) -> int:
    """Complete uploads and count them."""
    return len(list(complete_uploads(lake.context(), uploads)))


def like_hadoop(upload: PendingUpload) -> PendingUpload:
    """Return the record of an upload as Hadoop would have written it."""
    return msgspec.structs.replace(upload, s3commit=None)


@pytest.mark.parametrize("repeat_complete", ["ok", "gone"])
def test_every_upload_is_completed_once_or_again(repeat_complete: str) -> None:
    """All objects exist byte for byte, and a second completion changes nothing, whatever the store says."""
    lake, uploads = pending_lake(repeat_complete)
    assert complete(lake, uploads) == 4
    assert lake.data() == {named(path): body for path, body in FILES.items()}
    before = lake.everything()
    assert complete(lake, uploads) == 4
    assert lake.everything() == before


@pytest.mark.parametrize("repeat_complete", ["ok", "gone"])
def test_a_half_done_job_is_completed(repeat_complete: str) -> None:
    """Uploads that are already complete are recognised among the others."""
    lake, uploads = pending_lake(repeat_complete)
    complete(lake, uploads[1:3])
    assert complete(lake, uploads) == 4
    assert len(lake.data()) == 4


def test_an_upload_that_is_gone_fails_the_job() -> None:
    """If the upload is gone and no object is there, it can never be completed."""
    lake, uploads = pending_lake()
    lake.store.abort_upload(BUCKET, uploads[2].destinationKey, uploads[2].uploadId)
    with pytest.raises(JobFailed, match="is gone and no object is there"):
        complete(lake, uploads)


def test_another_s_object_fails_the_job() -> None:
    """If the upload is gone and another object has its key, the job fails and the object is not touched."""
    lake, uploads = pending_lake()
    key = uploads[2].destinationKey
    lake.store.abort_upload(BUCKET, key, uploads[2].uploadId)
    lake.store.put(BUCKET, key, b"someone else's")
    with pytest.raises(JobFailed, match="object of someone else"):
        complete(lake, uploads)
    assert lake.get(key) == b"someone else's"


@pytest.mark.parametrize("etags", [["0" * 32], [], ["x"]])
def test_rejected_parts_fail_the_job(etags: list[str]) -> None:
    """If the parts are not the recorded ones, the upload can never be completed."""
    lake, uploads = pending_lake()
    wrong = msgspec.structs.replace(uploads[0], etags=etags)
    with pytest.raises(JobFailed, match="rejects the parts"):
        complete(lake, [wrong])
    assert lake.data() == {}


def test_a_commit_that_the_store_refuses_for_now_can_be_repeated() -> None:
    """What is not about the parts, as a KMS key that is disabled, costs no job its uploads."""
    lake = Lake()
    job = lake.sealed({"dt=1/a": b"1", "dt=1/b": b"2"})
    refusal = StoreRejected("the key is disabled", code="KMS.DisabledException")
    lake.store.before = once("complete_upload", "", refusal, nth=2)
    with pytest.raises(StoreRejected, match="the key is disabled") as refused:
        job.commit()
    assert "up to 2 files of it may be visible: commit it again, or abort it" in refused.value.__notes__
    assert lake.job().commit().counts.files == 2


def test_parts_that_another_request_has_taken_cost_no_job_its_uploads() -> None:
    """MinIO finds no parts if another request completes an upload meanwhile: its object says how it ended."""
    lake = Lake()
    job = lake.sealed({"dt=1/a": b"1", "dt=1/b": b"2"})
    taken = StoreRejected("parts could not be found", code="InvalidPart")
    lake.store.after = once("complete_upload", "", taken, nth=2)
    assert job.commit().counts.files == 2


@pytest.mark.parametrize(
    ("answer", "pending"),
    [(OutcomeUnknown("answer lost"), False), (StoreRejected("no such parts", code="InvalidPart"), True)],
    ids=["lost", "rejected"],
)
def test_an_object_that_cannot_be_asked_for_hides_no_answer(answer: S3CommitError, pending: bool) -> None:
    """A HEAD that fails after a completion in doubt ends no commit by itself, and only adds to the answer."""
    lake = Lake()
    job = lake.sealed({"dt=1/a": b"1", "dt=1/b": b"2"})
    lake.store.after = once("complete_upload", "", answer, nth=2)
    lake.store.before = once("head", "", Unavailable("busy"))
    if pending:
        with pytest.raises(JobFailed, match=r"no such parts; looking for .* failed too .*busy"):
            job.commit()
    else:
        assert job.commit().counts.files == 2


@pytest.mark.parametrize(
    "error", [OutcomeUnknown("lost"), Unavailable("slow"), AccessDenied("expired")], ids=str
)
@pytest.mark.parametrize("moment", ["before", "after"])
def test_other_errors_decide_nothing(error: S3CommitError, moment: str) -> None:
    """An error that says nothing about the upload is raised unchanged, and a second try succeeds."""
    lake, uploads = pending_lake("gone")
    setattr(lake.store, moment, once("complete_upload", named("b"), error))
    if isinstance(error, OutcomeUnknown) and moment == "after":
        assert complete(lake, uploads) == 4  # the object shows that it is the job's
        return
    with pytest.raises(type(error)):
        complete(lake, uploads)
    lake.store.rest()
    assert complete(lake, uploads) == 4


@pytest.mark.parametrize("is_gone", [True, False])
def test_an_endless_server_error_is_resolved_by_the_parts(is_gone: bool) -> None:
    """If a completion always gets 500, the upload's parts say whether it is gone; then the job fails."""
    lake, uploads = pending_lake()
    if is_gone:
        lake.store.abort_upload(BUCKET, uploads[0].destinationKey, uploads[0].uploadId)
    lake.store.before = once("complete_upload", uploads[0].destinationKey, OutcomeUnknown("500"))
    with pytest.raises(JobFailed if is_gone else OutcomeUnknown):
        complete(lake, uploads)


def test_parts_that_cannot_be_listed_decide_nothing() -> None:
    """Without the right to list parts, the error of the completion is raised."""
    lake, uploads = pending_lake()

    def deny(call: StoreCall) -> None:
        if call.verb in ("complete_upload", "list_parts"):
            raise OutcomeUnknown("500") if call.verb == "complete_upload" else AccessDenied("no")

    lake.store.before = deny
    with pytest.raises(OutcomeUnknown):
        complete(lake, uploads)


def test_a_look_that_fails_decides_nothing() -> None:
    """If the HEAD of the object fails, the job does not."""
    lake, uploads = pending_lake("gone")
    complete(lake, uploads)
    lake.store.before = once("head", named("c"), Unavailable("slow"))
    with pytest.raises(Unavailable):
        complete(lake, uploads)


def test_doubtful_uploads_are_checked_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uploads whose completion is unknown do not pile up."""
    monkeypatch.setattr("airflow_s3commit.protocol.metadata.pending_uploads._BATCH", 2)
    lake, uploads = pending_lake("gone")
    complete(lake, uploads)
    done = complete_uploads(lake.context(), iter(uploads))
    lake.store.calls.clear()
    next(done)
    assert [call.verb for call in lake.store.calls] == ["complete_upload", "complete_upload", "head"]
    assert len(list(done)) == 3


def test_ours_is_known_by_its_metadata() -> None:
    """An object is ours if it carries the upload's id, and not if it only looks the same."""
    lake, uploads = pending_lake()
    complete(lake, uploads)
    standing = lake.store.head(BUCKET, uploads[0].destinationKey)
    assert is_ours(uploads[0], standing)
    assert not is_ours(uploads[1], standing)
    twin = lake.store.create_upload(BUCKET, "twin", metadata={}, content_type="x")
    etag = lake.store.upload_part(BUCKET, "twin", twin, 1, FILES["dt=1/a"][:1])
    second = lake.store.upload_part(BUCKET, "twin", twin, 2, FILES["dt=1/a"][1:])
    lake.store.complete_upload(BUCKET, "twin", twin, [etag, second])
    same_bytes = lake.store.head(BUCKET, "twin")
    assert same_bytes.etag == standing.etag
    assert not is_ours(uploads[0], same_bytes)


def test_under_kms_sparks_own_upload_is_known_by_its_name() -> None:
    """If encryption hides what ETags follow from, name, size and number of parts identify the object."""
    lake, uploads = pending_lake()
    complete(lake, uploads)
    upload = like_hadoop(uploads[0])
    standing = lake.store.head(BUCKET, upload.destinationKey)
    plain = structs.replace(standing, etag=f"{'0' * 32}-{len(upload.etags)}")
    encrypted = structs.replace(plain, headers={"x-amz-server-side-encryption": "aws:kms"})
    assert not is_ours(upload, plain)
    assert is_ours(upload, encrypted)
    assert not is_ours(upload, structs.replace(encrypted, etag="0" * 32))
    assert not is_ours(upload, structs.replace(encrypted, size=upload.length + 1))
    assert not is_ours(upload, structs.replace(encrypted, metadata={"s3commit-job": "another"}))
    assert not is_ours(msgspec.structs.replace(upload, destinationKey="t/dt=1/part-0"), encrypted)


def test_hadoop_s_is_known_by_its_etag() -> None:
    """Without an id of ours an object is the upload's if its ETag and size follow from the parts."""
    lake, uploads = pending_lake()
    complete(lake, uploads)
    standing = lake.store.head(BUCKET, uploads[0].destinationKey)
    hadoop = like_hadoop(uploads[0])
    assert is_ours(hadoop, standing)
    assert not is_ours(like_hadoop(uploads[1]), standing)
    assert not is_ours(msgspec.structs.replace(hadoop, length=99), standing)
    assert not is_ours(msgspec.structs.replace(hadoop, etags=["opaque", "opaque"]), standing)


@pytest.mark.parametrize("completed", [[], [0], [1, 2], [0, 1, 2, 3]], ids=str)
def test_taking_back_leaves_nothing(completed: list[int]) -> None:
    """Every upload is aborted and every object of one deleted, complete or not."""
    lake, uploads = pending_lake()
    complete(lake, [uploads[number] for number in completed])
    assert delete_ours(lake.context(), uploads)[1] == len(completed)
    assert (lake.data(), lake.pending()) == ({}, [])
    assert delete_ours(lake.context(), uploads)[1] == 0


def test_taking_back_spares_what_is_not_ours() -> None:
    """An object that another writer put over ours stays."""
    lake, uploads = pending_lake()
    complete(lake, uploads)
    lake.put({named("dt=1/b"): b"someone else's"})
    assert delete_ours(lake.context(), uploads)[1] == 3
    assert lake.data() == {named("dt=1/b"): b"someone else's"}


def test_uploads_are_aborted_before_their_objects_are_deleted() -> None:
    """Nothing can be completed again after its object was deleted."""
    lake, uploads = pending_lake()
    complete(lake, uploads)
    lake.store.calls.clear()
    delete_ours(lake.context(), uploads)
    verbs = [call.verb for call in lake.store.calls if call.key != lake.context().layout.probe]
    # The first looks are for uploads that are pending beside an object with their content.
    looks = ["head", "list_parts"] * 4
    assert verbs == [*looks, *["abort_upload"] * 4, *["head"] * 4, *["delete"] * 4]


def test_an_object_changed_between_look_and_delete_stays() -> None:
    """Only the object that was checked is deleted."""
    lake, uploads = pending_lake()
    complete(lake, uploads)
    lake.store.before = once("delete", named("dt=1/a"), lambda: lake.put({named("dt=1/b"): b"changed"}))
    assert delete_ours(lake.context(), uploads)[1] == 3
    assert lake.data() == {named("dt=1/b"): b"changed"}


def test_a_look_that_fails_takes_nothing_back() -> None:
    """If the HEAD of an object fails, none of its batch is deleted."""
    lake, uploads = pending_lake()
    complete(lake, uploads)
    lake.store.before = once("head", named("d"), Unavailable("slow"))
    with pytest.raises(Unavailable):
        delete_ours(lake.context(), uploads)
    assert len(lake.data()) == 4


def test_all_aborts_are_tried() -> None:
    """An upload that cannot be aborted does not keep the others from it; a second abort finishes."""
    lake, uploads = pending_lake()
    ids = [PendingId.of(upload) for upload in uploads]
    lake.store.before = once("abort_upload", named("b"), Unavailable("slow"))
    with pytest.raises(Unavailable):
        abort_uploads(lake.context(), ids)
    assert lake.pending() == [ROOT + named("dt=1/b")]
    lake.store.rest()
    assert abort_uploads(lake.context(), ids) == 4
    assert abort_uploads(lake.context(), ids) == 4
    assert lake.pending() == []


@pytest.mark.parametrize("effect", ["refuse", "lose-answer"])
def test_in_an_outage_no_more_aborts_are_tried(effect: Effect) -> None:
    """While the store fails few aborts wait for it, and the error says what is done; the next does all."""
    lake = Lake()
    ids = [
        PendingId(BUCKET, name, lake.store.create_upload(BUCKET, name, metadata={}, content_type="a/b"))
        for name in (f"{ROOT}{named(str(number))}" for number in range(40))
    ]
    store = FaultyStore(lake.store, Fault(effect, "abort_upload", nth=11, times=None))
    with pytest.raises((Unavailable, OutcomeUnknown)) as caught:
        abort_uploads(replace(lake.context(), store=store), ids)
    assert caught.value.__notes__ == ["at least 10 uploads were aborted; the others may stay pending"]
    assert len(store.struck) < 10
    assert abort_uploads(lake.context(), ids) == 40
    assert lake.pending() == []


def test_objects_that_changed_are_left_and_counted() -> None:
    """A bulk delete says how many it deleted; one that changed stays, without an error."""
    lake = Lake()
    lake.put({"a": b"1", "b": b"2"})
    etag = lake.store.head(BUCKET, f"{ROOT}a").etag
    doomed = [ObjectToDelete(f"{ROOT}a", etag), ObjectToDelete(f"{ROOT}b", "0" * 32)]
    assert delete_objects(lake.context(), doomed, "entry") == 1
    assert set(lake.data()) == {"b"}
    assert delete_objects(lake.context(), [], "entry") == 0


def test_a_delete_that_the_store_refuses_is_an_error() -> None:
    """An object that the store will not delete for another reason is reported with its key and the reason."""

    class Stubborn(Lake):
        def __init__(self) -> None:
            super().__init__()
            failure = DeleteFailure(f"{ROOT}a", "AccessDenied", "no")
            self.store.delete_many = lambda *_: [failure]  # type: ignore[method-assign]

    with pytest.raises(StoreRejected, match=f"{ROOT}a: AccessDenied no"):
        delete_objects(Stubborn().context(), [ObjectToDelete(f"{ROOT}a")], "entry")


class Busy(MemoryStore):
    """A store that is too busy for some objects of its first bulk deletes."""

    def __init__(self, times: int, code: str = "SlowDown") -> None:
        super().__init__()
        self.times = times
        self.code = code
        self.sizes: list[int] = []

    def delete_many(self, bucket: str, objects: Sequence[ObjectToDelete]) -> list[DeleteFailure]:
        """Delete only every second one while the store is busy; but the probe of a look."""
        if any("/probe-" in target.key for target in objects):
            return super().delete_many(bucket, objects)
        self.sizes.append(len(objects))
        if len(self.sizes) > self.times:
            return super().delete_many(bucket, objects)
        super().delete_many(bucket, objects[::2])
        return [DeleteFailure(target.key, self.code, "reduce your rate") for target in objects[1::2]]


def busy_lake(times: int, objects: int, code: str = "SlowDown") -> tuple[Lake, Busy, list[ObjectToDelete]]:
    """Return a lake on a busy store with a number of objects to delete."""
    lake, store = Lake(), Busy(times, code)
    doomed = [
        ObjectToDelete(f"{ROOT}k{n:05d}", store.put(BUCKET, f"{ROOT}k{n:05d}", b"x").etag)
        for n in range(objects)
    ]
    return lake, store, doomed


def test_objects_that_a_busy_store_left_are_deleted_again() -> None:
    """Objects that a bulk delete left because the store was busy are deleted after a pause."""
    lake, store, doomed = busy_lake(2, 8)
    context = replace(lake.context(), store=store)
    assert delete_objects(context, iter(doomed), "entry") == 8
    assert store.sizes == [8, 4, 2]
    assert list(store.list_objects(BUCKET, "")) == []


def test_a_commit_on_a_busy_store_leaves_no_record() -> None:
    """What is staged is deleted as patiently as what is replaced, by the one process that commits."""
    store, clock = Busy(1), ManualClock()
    with (
        write_job(f"s3://{BUCKET}/{ROOT}", store=store, clock=clock) as writer,
        writer.open("a") as file,
    ):
        file.write(b"1")
    assert (store.sizes, len(clock.slept)) == ([3, 1], 1)
    assert [info.key for info in store.list_objects(BUCKET, f"{ROOT}__magic")] == []


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("SlowDown", Unavailable),
        ("ServiceUnavailable", Unavailable),
        ("OperationAborted", Unavailable),
        ("ConditionalRequestConflict", Unavailable),
        ("InternalError", OutcomeUnknown),
    ],
)
def test_a_store_that_stays_busy_is_an_error(code: str, kind: type[Exception]) -> None:
    """A store that is always too busy ends the deletion with an error that names the next action."""
    lake, store, doomed = busy_lake(100, 4096, code)
    with pytest.raises(kind, match="run the step again"):
        delete_objects(replace(lake.context(), store=store), doomed, "entry")


def test_the_last_pause_is_followed_by_a_last_try() -> None:
    """However busy the store is, there is one pause between two tries, and none after the last."""
    lake, store, doomed = busy_lake(100, 1_000)
    with pytest.raises(Unavailable):
        delete_objects(replace(lake.context(), store=store), doomed, "entry")
    assert len(store.sizes) == len(lake.clock.slept) + 1


def test_any_number_is_deleted_a_thousand_at_a_time() -> None:
    """Bulk deletes name a thousand objects, however many there are."""
    lake, store, doomed = busy_lake(0, 5_500)
    assert delete_objects(replace(lake.context(), store=store), iter(doomed), "entry") == 5_500
    assert store.sizes == [1000] * 5 + [500]

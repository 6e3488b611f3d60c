"""An aborted job's output never appears, nothing of it stays pending, and other jobs are unharmed."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from fnmatch import fnmatch
from typing import Any

import pytest

from airflow_s3commit import Job
from airflow_s3commit.exceptions import (
    AlreadyCommitted,
    JobClosed,
    NoSuchJob,
    OutcomeUnknown,
    S3CommitError,
    Unavailable,
)
from airflow_s3commit.protocol.lifecycle.abort import abort_job
from airflow_s3commit.protocol.model.codec import decode
from airflow_s3commit.protocol.model.job import AbortedRecord, AbortReport
from airflow_s3commit.protocol.model.manifest import SuccessData
from tests.cases import each
from tests.protocol.building import BUCKET, HOME, OURS, ROOT, THEIRS, Crash, Lake, apart, named, once

OLD = {"dt=1/old": b"old", "dt=2/old": b"old 2"}
NEW = {"dt=1/a": b"1", "dt=1/b": b"22", "dt=1/c": b"333"}
SUCCESS = f"{ROOT}_SUCCESS"
SAID = {"dag_id": "nightly_flights_refresh", "run_id": "scheduled__2013-01-01"}


def lake_at(state: str, **options: Any) -> Lake:
    """Return a lake with old data, another job's pending output, and a job in a state."""
    lake = Lake()
    lake.put({**OLD, "_SUCCESS": b"marker"})
    lake.run_task(lake.set_up(THEIRS), {"dt=1/a": b"theirs"})
    job = lake.set_up(**options)
    if state != "empty":
        lake.run_stage(job, {"dt=1/a": b"1"}, {"dt=1/b": b"22", "dt=1/c": b"333"})
        lake.run_task(job, {"dt=1/twin": b"t"}, attempt="2")
    if state in ("sealed", "committing"):
        job.seal()
    if state == "committing":
        lake.store.die("complete_upload", named("c"))
        with pytest.raises(Crash):
            job.commit()
        lake.store.rest()
    return lake


def check_untouched(lake: Lake) -> None:
    """Check that the job left no trace, and that the other job is unharmed."""
    assert lake.data() == OLD
    assert lake.get(SUCCESS) == b"marker"
    assert [key for key in lake.pending() if THEIRS not in key] == []
    assert lake.pending() == [ROOT + named("dt=1/a", THEIRS)]
    assert lake.staging() == []
    assert len(lake.staging(THEIRS)) == 3
    assert f"{HOME}manifests/{OURS}.json" not in lake.keys("")


STATES = ["empty", "open", "sealed", "committing"]


@each("committer", ["magic", "partitioned", "directory"])
@each("state", STATES)
def test_an_abort_leaves_no_trace(state: str, committer: str) -> None:
    """Whatever state a job is aborted in, the destination is unchanged and nothing of the job is pending."""
    lake = lake_at(state, committer=committer)
    report = lake.job().abort()
    assert report.state == "aborted"
    assert report.objects == (2 if state == "committing" else 0)
    check_untouched(lake)


@pytest.mark.parametrize("state", STATES)
def test_a_second_abort_finds_nothing(state: str) -> None:
    """A second abort, by another process, is not an error and changes nothing."""
    lake = lake_at(state)
    lake.job().abort()
    for _ in range(2):
        report = lake.job(owner="another").abort()
        assert (report.uploads, report.objects) == (0, 0)
        check_untouched(lake)


def test_an_abort_of_an_unknown_job_is_not_an_error() -> None:
    """An unknown job, or one whose setup died, is aborted without an error."""
    lake = Lake()
    report = lake.job().abort()
    assert report == AbortReport(uploads=0, objects=0, state=report.state)
    lake.store.die("put", "state.json")
    with pytest.raises(Crash):
        lake.set_up(THEIRS)
    lake.store.rest()
    assert lake.staging(THEIRS) != []
    lake.job(THEIRS).abort()
    assert lake.staging(THEIRS) == []


def aborted_record(lake: Lake) -> AbortedRecord:
    """Return the record of the abort."""
    return decode(AbortedRecord, lake.get(f"{HOME}aborted/{OURS}.json"), "the record of the abort")


def test_an_abort_remembers_the_context_of_its_job() -> None:
    """The context from the orchestrator outlives the job's abort, and a second abort keeps it."""
    lake = lake_at("sealed", said=SAID)
    lake.job(OURS).abort(reason="first")
    assert (aborted_record(lake).context, aborted_record(lake).reason) == (SAID, "first")
    lake.job(OURS).abort(reason="second")
    assert aborted_record(lake).context == SAID


def test_the_context_is_known_without_a_state() -> None:
    """A job whose setup died before it had a state is aborted under its DAG's name."""
    lake = lake_at("empty", said=SAID)
    lake.store.delete(BUCKET, f"{ROOT}__magic_job-{OURS}/state.json")
    assert lake.job(OURS).abort().state == "absent"
    assert aborted_record(lake).context == SAID


@pytest.mark.parametrize("body", [None, b"{"], ids=["gone", "damaged"])
def test_the_context_may_be_unknown(body: bytes | None) -> None:
    """A job whose record is unreadable is still aborted; its abort record has no context."""
    lake = lake_at("open", said=SAID)
    key = f"{ROOT}__magic_job-{OURS}/job.json"
    lake.store.delete(BUCKET, key) if body is None else lake.store.put(BUCKET, key, body)
    abort_job(lake.context())
    assert aborted_record(lake).context == {}
    check_untouched(lake)


def test_an_aborted_job_is_over() -> None:
    """After an abort the job accepts no task, seal or commit, and its id cannot be used again."""
    lake = lake_at("open")
    lake.job().abort()
    before = lake.visible()
    for step in (
        lambda: lake.run_task(lake.job(), NEW, attempt="3"),
        lambda: lake.job().seal(),
        lambda: lake.job().plan(),
        lambda: lake.job().commit(),
        lake.set_up,
    ):
        with pytest.raises((NoSuchJob, JobClosed)):
            step()
    assert lake.visible() == before
    check_untouched(lake)


def test_a_late_write_names_the_abort_and_its_reason() -> None:
    """The error of a late write names abort, reason and next action; that of an unknown job does not."""
    lake = lake_at("open")
    lake.job().abort(reason="the run was cancelled")
    for step in (lake.job().record, lake.job().seal):
        with pytest.raises(
            NoSuchJob, match=r"was aborted \(the run was cancelled\).*Set up a new job; in Airflow"
        ):
            step()
    with pytest.raises(NoSuchJob, match="is not known: it was never set up"):
        Lake().job().record()


@pytest.mark.parametrize("cleaned", [True, False])
def test_a_committed_job_is_not_aborted(cleaned: bool) -> None:
    """After the point of no return an abort is refused and takes nothing back, cleaned up or not."""
    lake = lake_at("sealed")
    if not cleaned:
        lake.store.die("put", f"{OURS}.json")
        with pytest.raises(Crash):
            lake.job().commit()
        lake.store.rest()
    else:
        lake.job().commit()
    before = lake.everything()
    for force in (False, True):
        with pytest.raises(AlreadyCommitted, match=OURS):
            lake.job().abort(force=force)
    assert lake.everything() == before
    lake.job().commit()
    assert lake.data() == {"dt=2/old": b"old 2", **{named(path): body for path, body in NEW.items()}}


@each("damage", ["cut", "empty", "gone"])
@each("state", ["open", "sealed", "committing"])
def test_an_abort_needs_no_readable_pendingset(state: str, damage: str) -> None:
    """With damaged or missing pendingsets, the job's uploads and objects are still found and taken back."""
    lake = lake_at(state)
    for task in ("00000", "00001"):
        key = lake.pendingset_key(task)
        if damage == "gone":
            lake.store.delete(BUCKET, key)
        else:
            lake.tamper(key, cut=10 if damage == "cut" else 1 << 20)
    lake.job().abort()
    check_untouched(lake)


@pytest.mark.parametrize(
    "record", ["sealed.json", "stages/spark-1/sealed.json", "plan/*/summary.json", "job.json"]
)
def test_an_abort_needs_few_records(record: str) -> None:
    """An abort needs the state and what names uploads; any other record may be damaged or missing."""
    for cut in (10, None):
        lake = lake_at("committing")
        (found,) = (name for name in lake.staging() if fnmatch(name, record))
        key = f"{ROOT}__magic_job-{OURS}/{found}"
        if cut is None:
            lake.store.delete(BUCKET, key)
        elif record != "job.json":
            lake.tamper(key, cut=cut)
        lake.job().abort()
        check_untouched(lake)


def test_a_forged_pendingset_reaches_no_other_key() -> None:
    """An abort touches no upload or object that a pendingset names elsewhere."""
    lake = lake_at("committing")
    for key in ("flights10/x", f"{ROOT}../x"):
        lake.store.put(BUCKET, key, b"not ours")
    elsewhere = lake.store.create_upload(BUCKET, "flights10/y", metadata={}, content_type="x")
    other = lake.store.create_upload("other", f"{ROOT}z", metadata={}, content_type="x")
    lake.forge_task({"flights10/x": BUCKET, f"{ROOT}../x": BUCKET, f"{ROOT}z": "other"}, task="forged")
    lake.job().abort()
    assert {lake.get("flights10/x"), lake.get(f"{ROOT}../x")} == {b"not ours"}
    left = {
        upload.upload_id for bucket in (BUCKET, "other") for upload in lake.store.list_uploads(bucket, "")
    }
    assert {elsewhere, other} <= left


@each("moment", ["before", "after"])
@each(
    ("verb", "ending"),
    [("put", "state.json"), ("abort_upload", named("c")), ("delete", named("a")), ("put", "_SUCCESS"),
     ("complete_upload", "_SUCCESS"), ("delete", "job.json"),
     ("delete", "state.json")],
)  # fmt: skip
def test_an_abort_that_stopped_is_resumed(verb: str, ending: str, moment: str) -> None:
    """An abort that died, or whose answer was lost, at any of these calls is finished by the next one."""
    for kind in (Crash, OutcomeUnknown, Unavailable):
        lake = lake_at("committing")
        if kind is Crash:
            lake.store.die(verb, ending, after=moment == "after")
        else:
            setattr(lake.store, moment, once(verb, ending, kind("no verdict")))
        with suppress(Crash, S3CommitError):
            lake.job().abort()
        lake.store.rest()
        lake.job().abort()
        check_untouched(lake)


def test_an_abort_that_cannot_abort_all_uploads_is_not_finished() -> None:
    """A job whose upload cannot be aborted stays aborting, with its records, until it can."""
    lake = lake_at("open")
    lake.store.before = once("abort_upload", named("b"), Unavailable("slow"))
    with pytest.raises(Unavailable):
        lake.job().abort()
    standing = lake.job().state()
    assert standing is not None
    assert standing.state == "aborting"
    lake.store.rest()
    lake.job().abort()
    check_untouched(lake)


def test_the_reason_is_kept_during_the_abort() -> None:
    """The reason of an abort is in the job's state."""
    lake = lake_at("open")
    lake.store.die("abort_upload")
    with pytest.raises(Crash):
        lake.job().abort(reason="checks failed")
    lake.store.rest()
    standing = lake.job().state()
    assert standing is not None
    assert standing.reason == "checks failed"


def test_an_abort_at_the_root_of_a_bucket_spares_others() -> None:
    """At a bucket's root an abort affects only its own uploads."""
    lake = Lake(prefix="")
    lake.run_task(lake.set_up(THEIRS), {"a": b"theirs"})
    stranger = lake.store.create_upload(BUCKET, "stranger", metadata={}, content_type="x")
    lake.run_task(lake.set_up(), {"a": b"ours"})
    lake.job().abort()
    assert lake.pending() == [named("a", THEIRS), "stranger"]
    assert stranger in [upload.upload_id for upload in lake.store.list_uploads(BUCKET, "")]


def test_a_neighbour_s_uploads_are_spared() -> None:
    """An abort on ``flights/`` does not reach ``flights10/``, even for the same job id."""
    lake, neighbour = Lake(), Lake(prefix="flights10/")
    neighbour.store = lake.store
    for either in (lake, neighbour):
        either.run_task(either.set_up(), NEW)
    lake.job().abort()
    assert lake.pending() == [f"flights10/{named(path)}" for path in NEW]
    assert len(neighbour.staging()) == 3


def test_one_stage_attempt_can_be_aborted() -> None:
    """Aborting a stage attempt discards its uploads, and the job continues with another attempt."""
    lake = Lake()
    job = lake.set_up()
    lake.run_task(job, {"dt=1/a": b"first", "dt=1/b": b"first"}, stage_attempt="1")
    assert job.abort_stage("spark", "1") == 2
    assert job.abort_stage("spark", "7") == 0
    assert lake.pending() == []
    lake.run_stage(job, {"dt=1/a": b"second"}, stage_attempt="2")
    job.seal()
    job.commit()
    assert lake.data() == {named("dt=1/a"): b"second"}


def test_late_uploads_can_be_aborted_after_the_commit() -> None:
    """After the commit, uploads of attempts that still run go, with their records; the job's files stay."""
    lake = lake_at("open", committer="magic")
    job = lake.job()
    late = job.task_attempt("spark", "1", "00009", "9", threads=0)
    with late.open("dt=1/early") as file:
        file.write(b"discarded by the commit")
    job.seal()
    job.commit()
    before = lake.data()
    with late.open("dt=1/late") as file:
        file.write(b"late")
    assert len(lake.pending()) == 2
    job.abort_late()
    assert [key for key in lake.pending() if THEIRS not in key] == []
    assert lake.staging() == []
    assert lake.data() == before
    assert job.abort_late() == 0


@pytest.mark.parametrize("state", STATES)
def test_nothing_of_a_job_that_is_not_committed_is_late(state: str) -> None:
    """A job under way, whose uploads may count, refuses; nothing is aborted."""
    lake = lake_at(state)
    before = lake.pending()
    with pytest.raises(JobClosed, match="not committed"):
        lake.job().abort_late()
    assert lake.pending() == before


def test_an_abort_restores_the_marker_of_a_commit_before_its_clean_up() -> None:
    """A job that removed the newest commit's marker writes it again, though that job still has its record."""
    lake = Lake()
    lake.sealed({"dt=1/theirs": b"1"}, job_id=THEIRS, conflict_mode="append")
    lake.store.die("delete", f"__magic_job-{THEIRS}/job.json")
    with pytest.raises(Crash):
        lake.job(THEIRS).commit()
    lake.store.rest()
    lake.sealed({"dt=1/a": b"2"}, conflict_mode="append")
    lake.store.die("complete_upload", named("a"))
    with pytest.raises(Crash):
        lake.job().commit()
    lake.store.rest()
    assert SUCCESS not in lake.keys("")
    lake.job().abort()
    assert decode(SuccessData, lake.get(SUCCESS), SUCCESS).jobId == THEIRS
    assert lake.staging(THEIRS) != []
    lake.job(THEIRS).recover()
    assert decode(SuccessData, lake.get(SUCCESS), SUCCESS).jobId == THEIRS
    assert lake.staging(THEIRS) == []


def test_an_abort_that_slept_undoes_what_was_published_meanwhile() -> None:
    """A job is undone that was set up, written and half committed after an abort found no state of it."""
    lake = Lake()

    def meanwhile() -> None:
        job = lake.sealed(NEW)
        lake.store.die("put", "/00000000000000000001.json")
        with pytest.raises(Crash):
            job.commit()
        lake.store.rest()
        assert len(lake.data()) == 3

    lake.store.before = once("list_objects", "_s3commit/log/", meanwhile)
    report = lake.job().abort()
    assert (report.objects, report.state) == (3, "aborted")
    assert (lake.data(), lake.pending(), lake.staging()) == ({}, [], [])


@pytest.mark.parametrize("end", ["committed", "aborted"])
def test_a_job_whose_id_is_set_up_again_ends_once(end: str) -> None:
    """An abort between the records of a setup of a spent id and its look adds no second end to the log."""
    lake = Lake()
    options = lake.sealed(NEW).record().options
    ended = lake.job().commit if end == "committed" else lake.job().abort
    ended()

    def abort() -> None:
        if end == "aborted":
            lake.job().abort()
            return
        with pytest.raises(AlreadyCommitted):
            lake.job().abort()

    data = lake.data()
    lake.store.before = once("get", f"manifests/{OURS}.json", abort)
    with suppress(JobClosed):
        Job.setup(lake.store, lake.destination, options=options, job_id=OURS, clock=lake.clock, assume="new")
    assert [key for key in lake.keys(f"{HOME}log/") if key.endswith(".json")] == [
        f"{HOME}log/00000000000000000001.json"
    ]
    assert (lake.data(), lake.staging()) == (data, [])


@pytest.mark.parametrize("is_object", [True, False])
def test_a_committed_job_without_its_manifest_is_not_aborted(*, is_object: bool) -> None:
    """Its entry in the log refuses the abort, and its list of files, which cannot be rebuilt, stays."""
    lake = Lake()
    with apart() if is_object else nullcontext():
        lake.sealed(NEW).commit()
    lake.sealed({"dt=3/b": b"2"}, job_id=THEIRS).commit()
    lake.store.delete(BUCKET, f"{HOME}manifests/{OURS}.json")
    with pytest.raises(AlreadyCommitted, match=r"entry 1 of the log.*s3commit repair"):
        lake.job().abort(force=True)
    assert (f"{HOME}manifests/{OURS}.jsonl" in lake.keys(HOME)) is is_object
    assert len(lake.keys(f"{HOME}log/")) == 2

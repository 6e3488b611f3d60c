"""A job begins once: the same id is the same job, and a job that cannot end well does not begin."""

from __future__ import annotations

from collections import Counter
from typing import Any, get_args

import msgspec
import pytest

from airflow_s3commit.exceptions import (
    AccessDenied,
    DestinationNotEmpty,
    ForeignRecord,
    InvalidDestination,
    InvalidRecord,
    JobClosed,
    JobMismatch,
    NoSuchBucket,
    NoSuchJob,
    OutcomeUnknown,
    StoreUnsuitable,
)
from airflow_s3commit.protocol.job import Assumption, Job
from airflow_s3commit.protocol.metadata.state import find_job, load_job, read_state
from airflow_s3commit.protocol.model.codec import encode
from airflow_s3commit.protocol.model.job import Committer, JobOptions
from airflow_s3commit.store.forwarding import CountingStore
from airflow_s3commit.testing import FaultyStore, MemoryStore, StoreCall
from tests.protocol.building import BUCKET, OURS, ROOT, THEIRS, Crash, Lake, named, once
from tests.protocol.lifecycle.test_enter import crash

#: What a first set-up of a table may send.
MOST_REQUESTS = 12


def refused(lake: Lake, error: type[Exception], match: str, **options: Any) -> None:
    """Check that setup is refused and leaves nothing of the job."""
    before = lake.everything()
    with pytest.raises(error, match=match):
        lake.set_up(**options)
    assert lake.everything() == before


def test_a_job_is_recorded() -> None:
    """The store has the job's record and its state ``open``, and nothing else but its profile."""
    lake = Lake()
    job = lake.set_up(said={"dag_id": "nightly"}, committer="directory", conflict_mode="append")
    record = job.record()
    assert (record.job_id, record.destination) == (OURS, lake.destination)
    assert record.staging == f"{lake.destination}__magic_job-{OURS}/"
    assert record.options == JobOptions(committer="directory", conflict_mode="append")
    assert record.context == {"dag_id": "nightly"}
    assert lake.staging() == ["job.json", "state.json"]
    assert len(lake.left()) == 2
    assert lake.pending() == []


def test_a_repeated_setup_returns_the_same_job() -> None:
    """Set up again with the same id and options, the job is found unchanged, in whatever state."""
    lake = Lake()
    first = lake.set_up().record()
    assert lake.set_up(said={"other": "context"}).record() == first
    lake.run_stage(lake.job(), {"a": b"1"})
    lake.job().seal()
    before = lake.everything()
    lake.set_up()
    assert lake.everything() == before


def test_a_committed_job_set_up_again_is_still_committed() -> None:
    """A repeated setup does not begin a job again that was committed and cleaned up."""
    lake = Lake()
    manifest = lake.sealed({"a": b"1"}).commit()
    before = lake.everything()
    job = lake.set_up()
    assert lake.everything() == before
    assert job.commit() == manifest


@pytest.mark.parametrize(
    "options",
    [
        {"conflict_mode": "append"}, {"committer": "directory"},
        {"track_pending": "s3"},
    ],
)  # fmt: skip
def test_the_same_id_with_other_options_is_refused(options: dict[str, Any]) -> None:
    """A job id belongs to one job with one set of options."""
    lake = Lake()
    lake.set_up()
    refused(lake, JobMismatch, "choose another job id", **options)


def test_the_same_id_elsewhere_is_another_job() -> None:
    """Jobs on two destinations may share an id and are independent of each other."""
    lake, other = Lake(), Lake(prefix="flights10/")
    other.store = lake.store
    lake.set_up()
    other.sealed({"a": b"1"}).commit()
    assert lake.staging() == ["job.json", "state.json"]
    assert lake.data() == {}


def test_staging_may_be_in_another_bucket() -> None:
    """A job with its own staging keeps its records there, and commits as usual."""
    lake = Lake()
    lake.put({"dt=1/old": b"old"})
    options = JobOptions(committer="magic", conflict_mode="replace", staging="s3://other/private")
    job = Job.setup(lake.store, lake.destination, options=options, job_id=OURS, clock=lake.clock)
    assert job.reference.staging == f"s3://other/private/__magic_job-{OURS}/"
    assert lake.staging() == []
    again = Job.at(lake.store, job.reference, clock=lake.clock)
    with again.task_attempt("s", "1", "t", "1", part_bytes=1, threads=0, min_part_bytes=1) as attempt:
        attempt.open("dt=1/a").close()
        again.seal_stage("s", "1", [attempt.commit()])
    again.seal()
    again.plan()
    again.commit()
    assert lake.data() == {named("dt=1/a"): b""}
    assert [info.key for info in lake.store.list_objects("other", "")] == []


def test_a_destination_that_is_an_object_is_refused() -> None:
    """Data goes into a directory: if an object has the destination's name, nothing begins."""
    for prefix, key in ((ROOT, "flights"), ("a/b/", "a/b")):
        lake = Lake(prefix=prefix)
        lake.store.put(BUCKET, key, b"an object")
        refused(lake, InvalidDestination, "is an object")


def test_credentials_for_the_destination_alone_are_enough() -> None:
    """Without access to the name beside the directory, a job can be set up and committed."""
    lake = Lake()
    lake.store.before = once("head", ROOT.rstrip("/"), AccessDenied("not below the prefix"))
    lake.sealed({"a": b"1"}).commit()
    assert StoreCall("head", BUCKET, ROOT.rstrip("/")) in lake.store.calls
    assert lake.data() == {named("a"): b"1"}


def test_a_directory_marker_is_not_an_object() -> None:
    """The empty object that consoles make for a directory is not data and does no harm."""
    lake = Lake()
    lake.store.put(BUCKET, ROOT, b"")
    lake.sealed({"a": b"1"}, conflict_mode="fail", committer="directory").commit()
    assert lake.data() == {"": b"", named("a"): b"1"}


@pytest.mark.parametrize("committer", ["directory", "partitioned", "magic"])
@pytest.mark.parametrize("mode", ["fail", "append", "replace"])
def test_only_a_failing_directory_refuses_data_at_setup(committer: str, mode: str) -> None:
    """Only ``fail`` over the whole destination can tell at once that there is data."""
    lake = Lake()
    lake.put({"dt=9/deep/old": b"old", "_hidden": b"h"})
    if (committer, mode) == ("directory", "fail"):
        refused(lake, DestinationNotEmpty, "dt=9/deep/old", committer=committer, conflict_mode=mode)
    else:
        lake.set_up(committer=committer, conflict_mode=mode)


def test_a_missing_bucket_is_reported() -> None:
    """If the bucket of the data or of the staging is missing, nothing begins."""
    lake = Lake()
    with pytest.raises(NoSuchBucket):
        Job.setup(lake.store, "s3://nowhere/x", job_id=OURS)
    with pytest.raises(NoSuchBucket):
        Job.setup(lake.store, lake.destination, job_id=OURS, options=JobOptions(staging="s3://nowhere/x"))
    assert lake.keys("") == []


@pytest.mark.parametrize("uri", ["flights", "s3://lake/a/../b", "s3://lake/a\x00", "http://lake/x"])
def test_a_destination_that_is_not_a_uri_is_refused(uri: str) -> None:
    """A URI that is not a directory on S3 is refused before the store is asked."""
    lake = Lake()
    with pytest.raises(InvalidDestination):
        Job.setup(lake.store, uri, job_id=OURS)
    assert lake.store.calls == []


@pytest.mark.parametrize("job_id", ["a/b", "..", "a b", "x" * 129, "a\n"])
def test_a_job_id_that_is_not_a_uuid_is_refused(job_id: str) -> None:
    """An id that cannot be part of a key is refused before the store is asked."""
    lake = Lake()
    with pytest.raises(InvalidRecord):
        Job.setup(lake.store, lake.destination, job_id=job_id)
    assert lake.store.calls == []


def test_a_store_without_conditions_is_refused() -> None:
    """Setup names the bucket and the condition that is not honoured, and leaves nothing."""
    refused(Lake(conditions=False), StoreUnsuitable, f"in bucket {BUCKET} a write with If-None-Match")


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("verb", "ending"),
    [("put", "job.json"), ("put", "state.json"), ("create_upload", ""), ("abort_upload", "")],
)  # fmt: skip
def test_a_setup_that_stopped_is_resumed(verb: str, ending: str, after: bool) -> None:
    """Wherever a setup dies, a second one makes the job."""
    lake = Lake()
    lake.store.die(verb, ending, after=after)
    with pytest.raises(Crash):
        lake.set_up()
    lake.store.rest()
    lake.set_up()
    lake.run_stage(lake.job(), {"a": b"1"})
    lake.job().seal()
    lake.job().commit()
    assert lake.data() == {named("a"): b"1"}


@pytest.mark.parametrize("ending", ["job.json", "state.json"])
def test_lost_answers_are_resolved(ending: str) -> None:
    """A record whose answer was lost is found in the store."""
    lake = Lake()
    lake.store.after = once("put", ending, OutcomeUnknown("lost"))
    lake.set_up()
    assert lake.staging() == ["job.json", "state.json"]


def test_two_concurrent_setups_make_one_job() -> None:
    """Two processes that set one job up at once both have the same job."""
    lake = Lake()
    records: list[Any] = []

    def meanwhile() -> None:
        lake.store.rest()
        records.append(lake.set_up().record())

    lake.store.before = once("put", "job.json", meanwhile)
    records.append(lake.set_up().record())
    assert records[0] == records[1]


def test_one_of_two_setups_with_other_options_is_refused() -> None:
    """Of two processes that set one id up with different options at once, the slower one is refused."""
    lake = Lake()

    def meanwhile() -> None:
        lake.store.rest()
        lake.set_up(conflict_mode="append")

    lake.store.before = once("put", "job.json", meanwhile)
    with pytest.raises(JobMismatch):
        lake.set_up()
    assert lake.job().record().options.conflict_mode == "append"


def test_a_job_is_found_by_its_record() -> None:
    """A missing job is None to `find_job` and an error to `load_job`."""
    lake = Lake()
    assert find_job(lake.context()) is None
    with pytest.raises(NoSuchJob, match="Set up"):
        load_job(lake.context())
    lake.set_up()
    assert load_job(lake.context()) == find_job(lake.context())


@pytest.mark.parametrize("assume", ["nothing", "new", "own"])
def test_a_used_id_is_found_whatever_the_caller_assumes(assume: Any) -> None:
    """A caller that is wrong about its id gets the earlier job, or is refused, and leaves nothing behind."""
    lake = Lake()

    def again() -> Job:
        options = JobOptions(committer="magic", conflict_mode="replace")
        return Job.setup(lake.store, lake.destination, options=options, job_id=OURS, assume=assume)

    job = lake.sealed({"dt=1/a": b"1"})
    assert again().record() == job.record()
    manifest = lake.job().commit()
    before = lake.everything()
    assert again().manifest() == manifest
    assert lake.everything() == before
    lake = Lake()
    lake.set_up().abort()
    before = lake.everything()
    with pytest.raises(JobClosed, match="its id is spent"):
        again()
    assert lake.everything() == before


def test_what_a_caller_assumes_of_a_new_id_saves_requests() -> None:
    """A setup that looks for an earlier job only after it has written sends fewer requests."""
    sent = {}
    for assume in get_args(Assumption):
        memory = MemoryStore((BUCKET,))
        Job.setup(memory, f"s3://{BUCKET}/t/", job_id=THEIRS).abort()
        store = CountingStore(memory)
        Job.setup(store, f"s3://{BUCKET}/t/", job_id=OURS, assume=assume)
        sent[assume] = sum(store.counters.values())
    assert sent["new"] == sent["own"] == sent["next"] < sent["nothing"]


@pytest.mark.parametrize("assume", get_args(Assumption))
@pytest.mark.parametrize("mode", ["fail", "append", "replace"])
@pytest.mark.parametrize("committer", get_args(Committer))
def test_the_first_setup_of_a_table_sends_few_requests(committer: Any, mode: Any, assume: Any) -> None:
    """A process that never saw the store sets up the first job of a table with twelve requests at most."""
    store = CountingStore(MemoryStore((BUCKET,)))
    options = JobOptions(committer=committer, conflict_mode=mode)
    Job.setup(store, f"s3://{BUCKET}/t/", options=options, job_id=OURS, assume=assume)
    assert sum(store.counters.values()) <= MOST_REQUESTS


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_next_job_is_looked_up_if_the_log_has_moved(end: str) -> None:
    """A process whose entry is no longer the newest finds a job with its id that has ended since."""
    lake = Lake()
    ours = CountingStore(lake.store)
    Job.setup(ours, lake.destination, job_id=THEIRS).commit(stages=[])
    job = lake.sealed({"dt=1/a": b"1"})
    getattr(job, end)()
    before = lake.everything()
    options = JobOptions(committer="magic", conflict_mode="replace")

    def again() -> Job:
        return Job.setup(ours, lake.destination, options=options, job_id=OURS, assume="next")

    if end == "commit":
        assert again().manifest() == job.manifest()
    else:
        with pytest.raises(JobClosed, match="its id is spent"):
            again()
    assert lake.everything() == before


def test_a_next_job_asks_only_for_the_next_entry() -> None:
    """A process whose entry is the newest looks for no earlier job, only for an entry after its own."""
    lake = Lake()
    counting = CountingStore(lake.store)
    Job.setup(counting, lake.destination, job_id=THEIRS).commit(stages=[])
    before = Counter(counting.counters)
    Job.setup(counting, lake.destination, job_id=OURS, assume="next")
    assert Counter(counting.counters) - before == {
        "object_list_request": 1,
        "object_put_requests": 2,
        "action_http_head_request": 1,
    }


@pytest.mark.parametrize("cut", [1, 100, 1 << 20])
def test_a_damaged_job_record_stops_every_step(cut: int) -> None:
    """An unreadable record is not taken for an absent one, not even by a setup."""
    lake = Lake()
    lake.put({"dt=1/old": b"old"})
    lake.sealed({"dt=1/a": b"1"})
    lake.tamper(lake.context().layout.job, cut=cut)
    forget_job_in_state(lake)
    before = lake.everything()
    for step in (lake.set_up, lambda: lake.job().plan(), lambda: lake.job().commit()):
        with pytest.raises(InvalidRecord):
            step()
    assert lake.everything() == before


def forget_job_in_state(lake: Lake) -> None:
    """Leave the state of a job as that of a large one is: without the job's record."""
    stored = read_state(lake.context())
    assert stored is not None
    older = msgspec.structs.replace(stored.record, job=None)
    lake.store.put(BUCKET, lake.context().layout.state, encode(older))


def test_a_running_job_is_known_by_its_state() -> None:
    """Steps use the job's record in its state, even if the separate one is damaged; a setup reads that."""
    lake = Lake()
    lake.put({"dt=1/old": b"old"})
    lake.sealed({"dt=1/a": b"1"})
    lake.tamper(lake.context().layout.job, cut=1)
    with pytest.raises(InvalidRecord):
        lake.set_up()
    lake.job().plan()
    lake.job().commit()
    assert lake.data() == {named("dt=1/a"): b"1"}
    assert (lake.pending(), lake.staging()) == ([], [])


def test_a_state_may_leave_the_record_to_its_own_object() -> None:
    """Every step works on a state that does not hold the job's record."""
    lake = Lake()
    lake.put({"dt=1/old": b"old"})
    lake.set_up()
    forget_job_in_state(lake)
    lake.run_stage(lake.job(), {"dt=1/a": b"1"})
    lake.job().seal()
    lake.job().plan()
    lake.job().commit()
    assert lake.data() == {named("dt=1/a"): b"1"}


def test_a_state_only_holds_a_short_record() -> None:
    """A record that would make each change of the state large is read from its own object."""
    held = {}
    kinds: dict[str, dict[str, Any]] = {
        "short": {},
        "large": {"context": {"note": "x" * 20_000}},
    }
    for name, arguments in kinds.items():
        job = Job.setup(MemoryStore((BUCKET,)), f"s3://{BUCKET}/t/", **arguments)
        state = job.state()
        assert state is not None
        held[name] = state.job == job.record()
    assert held == {"short": True, "large": False}


def test_a_record_of_another_job_in_a_state_is_refused() -> None:
    """A state that combines two jobs' records proves neither."""
    lake, other = Lake(), Lake(prefix="flights10/")
    other.set_up()
    lake.sealed({"dt=1/a": b"1"})
    stored = read_state(lake.context())
    assert stored is not None
    forged = msgspec.structs.replace(stored.record, job=other.job().record())
    lake.store.put(BUCKET, lake.context().layout.state, encode(forged))
    before = lake.everything()
    for step in (lambda: lake.job().plan(), lambda: lake.job().commit(), lambda: lake.job().abort()):
        with pytest.raises(ForeignRecord):
            step()
    assert lake.everything() == before


def test_another_s_job_record_is_refused() -> None:
    """A record of another job or another destination in this job's place is refused."""
    lake, other = Lake(), Lake(prefix="flights10/")
    other.store = lake.store
    other.set_up()
    lake.set_up(THEIRS)
    for source in (other.context().layout.job, lake.context(THEIRS).layout.job):
        lake.store.put(BUCKET, lake.context().layout.job, lake.get(source))
        with pytest.raises(InvalidRecord):
            load_job(lake.context())
        with pytest.raises((InvalidRecord, JobMismatch)):
            lake.set_up()


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("assume", ["nothing", "new", "own"])
def test_a_setup_withdraws_the_records_that_a_dead_setup_wrote_after_the_job_had_ended(
    assume: Any, goes_on: bool
) -> None:
    """A job that has ended cannot be committed again by the records that a later set-up of its id left."""
    lake = Lake()
    manifest = lake.sealed({"dt=1/a": b"1"}).commit()
    lake.sealed({"dt=2/a": b"2"}, job_id=THEIRS).commit()

    def again(assume: Any) -> Job:
        options = JobOptions(committer="magic", conflict_mode="replace")
        return Job.setup(lake.store, lake.destination, options=options, job_id=OURS, assume=assume)

    crash(lake, lambda: again("new"), "put", "state.json", after=True)
    assert "job.json" in lake.staging()
    late = lake.job()
    if goes_on:
        late.seal([])
    assert again(assume).manifest() == manifest
    assert not {"job.json", "state.json"} & set(lake.staging())
    assert late.commit() == manifest


def test_a_setup_leaves_a_commit_that_has_not_finished_to_its_caller() -> None:
    """A job that died between its manifest and its end is returned, and can be committed again."""
    lake = Lake()
    job = lake.sealed({"dt=1/a": b"1"})
    crash(lake, job.commit, "put", "/_SUCCESS")
    before = lake.staging()
    options = JobOptions(committer="magic", conflict_mode="replace")
    for assume in get_args(Assumption):
        job = Job.setup(lake.store, lake.destination, options=options, job_id=OURS, assume=assume)
        assert lake.staging() == before
    assert job.commit().job_id == OURS
    assert not lake.staging()
    assert f"{ROOT}_SUCCESS" in lake.visible()


def test_an_abort_of_an_id_whose_setup_checks_the_store_is_found_out() -> None:
    """A job whose id was spent while its setup checked the store leaves nothing visible."""
    lake = Lake()
    lake.sealed({"dt=1/a": b"1"}, job_id=THEIRS).commit()
    # Another process's: it has not checked the bucket yet.
    store = FaultyStore(lake.store.inner, after=once("create_upload", OURS, lake.job().abort))
    options = JobOptions(committer="magic", conflict_mode="append")
    job = Job.setup(store, lake.destination, options=options, clock=lake.clock, new_id=lambda: OURS)
    lake.run_stage(job, {"dt=1/b": b"2"})
    with pytest.raises(JobClosed):
        job.commit(stages=[("spark", "1")])
    assert lake.data() == {named("dt=1/a", THEIRS): b"1"}


@pytest.mark.parametrize("assume", ["new", "own"])
def test_a_setup_leaves_no_record_beside_the_state_of_an_ended_job(assume: Any) -> None:
    """A set-up that finds the state of a job whose removal stopped half-way withdraws its own record."""
    lake = Lake()
    crash(lake, lake.sealed({"dt=1/a": b"1"}).commit, "delete", "/sealed.json")
    assert "job.json" not in lake.staging()
    options = JobOptions(committer="magic", conflict_mode="replace")
    again = Job.setup(lake.store, lake.destination, options=options, job_id=OURS, assume=assume)
    assert "job.json" not in lake.staging()
    assert again.commit().job_id == OURS
    assert not lake.staging()

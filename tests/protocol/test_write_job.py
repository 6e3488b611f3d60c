"""Writing and committing in one call: the job is committed, aborted, or left for recovery."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from airflow_s3commit import JobOptions, MemoryStore
from airflow_s3commit._causes import whole_text
from airflow_s3commit.exceptions import (
    DestinationChanged,
    DestinationNotEmpty,
    InvalidOption,
    InvalidRecord,
    JobClosed,
    JobFailed,
    OutcomeUnknown,
    S3CommitError,
    Unavailable,
)
from airflow_s3commit.protocol.inspect.verify_table import verify
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.metadata.pending_uploads import Progress
from airflow_s3commit.protocol.model.codec import decode
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.manifest import Manifest, SuccessData
from airflow_s3commit.protocol.steps import append
from airflow_s3commit.protocol.steps.fold import latest_manifest, read_manifest
from airflow_s3commit.protocol.sweep import sweep
from airflow_s3commit.protocol.write_job import write_job, write_table
from airflow_s3commit.store.base import ObjectStore
from airflow_s3commit.store.forwarding import CountingStore
from airflow_s3commit.store.s3.config import S3Config
from airflow_s3commit.store.s3.store import S3Store
from airflow_s3commit.testing.faulty_store import Effect, Fault, FaultyStore, StoreCall
from tests.cases import each
from tests.fakes import ManualClock
from tests.protocol.building import BUCKET, ROOT, Lake, once

FILES = {"dt=1/a.csv": b"one", "dt=2/b.csv": b"two"}


def _write(store: ObjectStore, destination: str | Destination, jobs: list[Job]) -> Manifest:
    """Write the files; the job is in the list as soon as it is known."""
    with write_job(destination, store=store, conflict_mode="append", clock=ManualClock()) as writer:
        jobs.append(writer.job)
        for path, body in FILES.items():
            with writer.open(path) as file:
                file.write(body)
    assert writer.manifest is not None
    return writer.manifest


def test_the_job_is_committed_at_the_end_of_the_block() -> None:
    """Nothing is visible inside the block, and everything after it; nothing stays pending."""
    lake = Lake()
    with write_job(lake.destination, store=lake.store, conflict_mode="append", name="flights") as writer:
        with writer.open("dt=1/a.csv") as file:
            file.write(b"one")
        assert writer.manifest is None
        assert lake.visible() == {}
    assert writer.manifest == latest_manifest(lake.store, lake.destination)
    assert writer.manifest.context["name"] == "flights"
    assert list(lake.data().values()) == [b"one"]
    assert lake.pending() == []


def test_an_exception_in_the_block_aborts_the_job() -> None:
    """The exception comes through as it is; nothing of the job is visible or pending, and its id is spent."""
    lake, jobs = Lake(), []

    def interrupted() -> None:
        with write_job(lake.destination, store=lake.store, conflict_mode="append") as writer:
            jobs.append(writer.job)
            with writer.open("dt=1/a.csv") as file:
                file.write(b"one")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    state = jobs[0].state()
    assert (lake.visible(), lake.pending(), lake.left()) == ({}, [], [])
    assert (state.state, state.reason, state.finished) == ("aborted", "the write failed", True)


def test_a_refused_commit_aborts_the_job() -> None:
    """Where conflict mode fail meets data, the data stays and the job is gone."""
    lake = Lake()
    lake.put({"dt=1/old.csv": b"old"})
    with (
        pytest.raises(DestinationNotEmpty),
        write_job(lake.destination, store=lake.store) as writer,
        writer.open("dt=1/a.csv") as file,
    ):
        file.write(b"one")
    assert list(lake.data().values()) == [b"old"]
    assert lake.pending() == []


@each(
    ("verb", "ending", "left"),
    [
        ("put", "sealed.json", "aborting job .* uploads of it may stay pending"),
        ("complete_upload", "", "was not aborted, because its commit may have begun; finish it with"),
    ],
)
def test_an_interrupted_write_says_what_is_left(verb: str, ending: str, left: str) -> None:
    """If the store is gone too, the interrupt has a note; nothing is visible, and the job can be ended."""
    lake = Lake()

    def interrupt(call: StoreCall) -> None:
        if gone or (call.verb == verb and call.key.endswith(ending) and "__magic" not in call.key):
            gone.append(call)
            raise KeyboardInterrupt if len(gone) == 1 else Unavailable("the store is gone")

    gone: list[StoreCall] = []
    with (
        pytest.raises(KeyboardInterrupt) as caught,
        write_job(lake.destination, store=FaultyStore(lake.store, before=interrupt)) as writer,
        writer.open("dt=1/a.csv") as file,
    ):
        file.write(b"one")
    assert re.search(left, " ".join(caught.value.__notes__))
    assert lake.data() == {}
    Job.at(lake.store, writer.job.reference).abort()
    assert lake.pending() == []


def test_a_write_that_is_interrupted_before_its_commit_is_aborted() -> None:
    """Whatever stops the seal, the job is gone, and nothing of it stays pending."""
    lake = Lake()
    # The first one is the stage's.
    lake.store.before = once("put", "sealed.json", KeyboardInterrupt(), nth=2)
    with pytest.raises(KeyboardInterrupt):
        _write(lake.store, lake.destination, jobs := [])
    state = jobs[0].state()
    assert state is not None
    assert (state.state, state.reason, state.finished) == ("aborted", "the commit did not begin", True)
    assert (lake.pending(), lake.data()) == ([], {})


def test_a_refusal_is_not_hidden_by_an_abort_that_fails() -> None:
    """The refusal is raised with a note, and the job stays for an abort."""
    lake = Lake()
    lake.sealed({"dt=1/old.csv": b"old"}, conflict_mode="append").commit()
    store = FaultyStore(lake.store, Fault("refuse", "put", "*_s3commit/log/*", times=None))
    with (
        pytest.raises(DestinationChanged) as caught,
        write_job(lake.destination, store=store, conflict_mode="append", generation=1) as writer,
        writer.open("dt=1/a.csv") as file,
    ):
        file.write(b"one")
    assert any("uploads of it may stay pending" in note for note in caught.value.__notes__)
    job = Job.at(lake.store, writer.job.reference)
    job.abort()
    assert list(lake.data().values()) == [b"old"]


def test_an_upload_that_is_gone_fails_the_write() -> None:
    """The error says that nothing was changed, nothing of the job is left, and its end has the reason."""
    lake = Lake()

    def lose(call: StoreCall) -> None:
        if call.verb == "complete_upload":
            lake.store.rest()
            for upload in list(lake.store.list_uploads(BUCKET, ROOT)):
                lake.store.abort_upload(BUCKET, upload.key, upload.upload_id)

    lake.store.before = lose
    with pytest.raises(JobFailed) as caught:
        _write(lake.store, lake.destination, jobs := [])
    state = jobs[0].state()
    assert state is not None
    assert (state.state, state.finished, state.reason) == ("aborted", True, str(caught.value))
    assert lake.data() == {}


def test_a_failure_of_the_callers_own_code_comes_through_as_it_is() -> None:
    """What is called after each upload may raise; the commit has begun then, and can be finished."""
    lake = Lake()

    def fail(progress: Progress) -> None:
        raise RuntimeError(f"{progress.files_done} of {progress.files_total}")

    with (
        pytest.raises(RuntimeError, match="1 of 1") as caught,
        write_job(lake.destination, store=lake.store, progress=fail) as writer,
        writer.open("dt=1/a.csv") as file,
    ):
        file.write(b"one")
    assert "finish it with: s3commit commit" in caught.value.__notes__[0]
    assert Job.at(lake.store, writer.job.reference).commit().counts.files == 1


@each("given", [None, S3Config(region="eu-west-1")])
def test_a_store_is_reached_by_its_config(given: S3Config | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default that of boto3's own chain."""
    memory, asked = MemoryStore(), []
    monkeypatch.setattr(S3Store, "connect", lambda config: asked.append(config) or memory)
    with write_job("s3://lake/t/", store=given) as writer:
        pass
    assert asked == [given or S3Config()]
    assert writer.manifest == latest_manifest(memory, "s3://lake/t/")


@each("mode", ["append", "replace"])
def test_a_write_of_its_own_sends_an_exact_number_of_requests(mode: Any) -> None:
    """A write of one file in one process sends exactly this many requests after earlier ones."""
    store = CountingStore(MemoryStore(min_part_bytes=1))
    options = JobOptions(committer="magic", conflict_mode=mode)
    totals = [0]
    for _ in range(3):
        with (
            write_job("s3://lake/t/", store=store, job_options=options) as writer,
            writer.open("dt=1/a.csv") as file,
        ):
            file.write(b"one")
        totals.append(sum(store.counters.values()))
    assert totals[3] - totals[2] == {"append": 14, "replace": 17}[mode]


@each("mode", ["append", "replace"])
@each("verb", ["create_upload", "complete_upload"])
def test_a_write_that_another_process_aborts_leaves_nothing(verb: str, mode: Any) -> None:
    """Whenever another process aborts the job, the write fails, and nothing of it is visible or left."""
    lake = Lake()
    lake.sealed({"dt=1/old.csv": b"old"}, conflict_mode="append").commit()
    before = lake.left()
    jobs: list[Job] = []

    def abort(call: StoreCall) -> None:
        if call.verb == verb and jobs and jobs[0].state() is not None:
            Job.at(lake.store.inner, jobs.pop().reference).abort()

    store = FaultyStore(lake.store.inner, before=abort)
    options = JobOptions(committer="magic", conflict_mode=mode)
    with (  # noqa: PT012 - the block is what is refused
        pytest.raises(JobClosed, match="aborted"),
        write_job(lake.destination, store=store, job_options=options) as writer,
    ):
        jobs.append(writer.job)
        with writer.open("dt=1/a.csv") as file:
            file.write(b"one")
    assert list(lake.data().values()) == [b"old"]
    assert (lake.pending(), lake.left()) == ([], before)


@each("track_pending", ["task", "s3"])
def test_a_write_leaves_nothing_but_its_files(track_pending: Any) -> None:
    """What a write has staged is gone once it is committed, records of its uploads included."""
    lake = Lake()
    options = JobOptions(conflict_mode="append", track_pending=track_pending)
    with write_job(lake.destination, store=lake.store, job_options=options) as writer:
        for name in ("dt=1/a.csv", "dt=2/b.csv"):
            with writer.open(name) as file:
                file.write(b"one")
    assert lake.pending() == []
    assert not [key for key in lake.left() if "__magic_job-" in key or "/open/" in key]


def _one(store: ObjectStore, body: bytes, mode: Any, meanwhile: Callable[[], object] | None = None) -> None:
    """Write one file to a partition, and do something else before the commit."""
    options = JobOptions(committer="magic", conflict_mode=mode)
    with write_job("s3://lake/t/", store=store, job_options=options) as writer:
        with writer.open("dt=1/a.csv") as file:
            file.write(body)
        if meanwhile is not None:
            meanwhile()


def _data(store: MemoryStore) -> list[bytes]:
    listed = store.list_objects("lake", "t/dt=1/")
    return sorted(store.get("lake", info.key).body for info in listed)


def _log(store: MemoryStore) -> list[str]:
    return [info.key[-8:] for info in store.list_objects("lake", "t/_s3commit/log/")]


@each("mode", ["append", "replace", "fail"])
def test_a_write_notices_commits_since_its_set_up(mode: Any) -> None:
    """Entries between set-up and commit, of this or the other process, count as conflicts."""
    memory = MemoryStore(min_part_bytes=1)
    ours, others = CountingStore(memory), CountingStore(memory)
    _one(ours, b"0", "append")
    if mode == "fail":
        with pytest.raises(DestinationNotEmpty):
            _one(ours, b"1", mode, lambda: _one(others, b"2", "append"))
        assert _data(memory) == [b"0", b"2"]
        assert list(memory.list_uploads("lake", "t/")) == []
        return
    _one(ours, b"1", mode, lambda: [_one(others, body, "append") for body in (b"2", b"3")])
    assert _data(memory) == ([b"0", b"1", b"2", b"3"] if mode == "append" else [b"1"])
    _one(others, b"4", "append")
    _one(ours, b"5", "append")
    assert _log(memory) == [f"{number:03}.json" for number in range(1, 8)]


@each("mode", ["append", "replace"])
@each("seen", [0, 2, 3])
def test_a_write_knows_what_came_after_the_generation_that_it_was_made_from(mode: Any, seen: int) -> None:
    """It is refused for commits to its partition after that, also for those before its set-up."""
    store = MemoryStore(min_part_bytes=1)
    for body in (b"0", b"1"):
        _one(store, body, "append")
    options, facts = JobOptions(conflict_mode=mode), {"who": "me"}
    refused = (
        nullcontext() if seen == 3 else pytest.raises(DestinationChanged, match="changed its partitions")
    )
    with (
        refused,
        write_job("s3://lake/t/", store=store, job_options=options, context=facts, generation=seen) as writer,
        writer.open("dt=1/a.csv") as file,
    ):
        file.write(b"2")
    assert facts == {"who": "me"}
    state = writer.job.state()
    assert state is not None
    assert ("changed its partitions" in (state.reason or "")) == (seen != 3)
    made = {"append": [b"0", b"1", b"2"], "replace": [b"2"]}[mode]
    assert _data(store) == (made if seen == 3 else [b"0", b"1"])
    assert list(store.list_uploads("lake", "t/")) == []


@each("mode", ["append", "replace"])
def test_a_write_from_a_generation_that_is_not_there_is_refused(mode: Any) -> None:
    """Of a log that was begun anew nothing tells what came after it."""
    store = MemoryStore(min_part_bytes=1)
    _one(store, b"0", "append")
    with (
        pytest.raises(DestinationChanged, match="no generation 3: it ends with entry 2"),
        write_job("s3://lake/t/", store=store, conflict_mode=mode, generation=3) as writer,
        writer.open("dt=1/a.csv") as file,
    ):
        file.write(b"1")
    assert _data(store) == [b"0"]
    assert list(store.list_uploads("lake", "t/")) == []


@each("end", ["commit", "recover"])
def test_whoever_finishes_a_write_knows_what_it_was_made_from(end: str) -> None:
    """A commit that was interrupted is refused to every process once another one has added rows."""
    store, jobs = MemoryStore(min_part_bytes=1), []
    _one(store, b"0", "append")
    dying = FaultyStore(store, Fault("refuse", "put", "*_s3commit/log/*", times=None))

    def interrupted() -> None:
        with (
            write_job("s3://lake/t/", store=dying, conflict_mode="replace", generation=2) as writer,
            writer.open("dt=1/a.csv") as file,
        ):
            jobs.append(writer.job)
            file.write(b"01")

    with pytest.raises(OutcomeUnknown):
        interrupted()
    _one(store, b"2", "append")
    job = Job.at(store, jobs[0].reference)
    with pytest.raises(DestinationChanged, match="generation 2, which it was made from; abort it"):
        getattr(job, end)()
    # A preview shows what the commit would take, and not that its output lacks some of it.
    with pytest.raises(DestinationChanged, match="generation 2, which it was made from; abort it"):
        job.commit(generation=job.preview().generation)
    job.abort()
    assert _data(store) == [b"0", b"2"]


def test_a_refused_write_ends_once_whatever_comes_after_its_end() -> None:
    """A commit that is overtaken ends its job; the abort that follows finds this end below other entries."""
    memory = MemoryStore(min_part_bytes=1)
    _one(memory, b"0", "append")

    def overtake(call: StoreCall) -> None:
        if call.verb == "complete_upload" or (call.verb == "delete" and call.key.endswith("job.json")):
            _one(memory, b"1", "append")

    store = FaultyStore(memory, before=overtake)
    with (
        pytest.raises(DestinationChanged),
        write_job("s3://lake/t/", store=store, conflict_mode="replace", generation=2) as writer,
        writer.open("dt=1/a.csv") as file,
    ):
        file.write(b"2")
    bodies = [memory.get("lake", info.key).body for info in memory.list_objects("lake", "t/_s3commit/log/")]
    assert sum(writer.job.reference.job_id.encode() in body for body in bodies) == 1
    assert verify(memory, "s3://lake/t/").sound


def test_a_write_is_over_for_its_own_process_too() -> None:
    """Its job is committed, also once another one's entry is the newest of the log."""
    store = MemoryStore(min_part_bytes=1)
    with write_job("s3://lake/t/", store=store) as writer, writer.open("dt=1/a.csv") as file:
        file.write(b"1")
    _one(store, b"2", "append")
    state = writer.job.state()
    assert state is not None
    assert (state.state, state.generation, state.finished) == ("committed", 2, True)
    assert writer.job.manifest() == writer.manifest
    # What it has deleted it remembers no more.
    assert (writer.job.stage_seal("write", "1"), writer.job.sealed_stages()) == (None, [])


@each("marker", ["another job's", "another program's", "none"])
def test_a_write_goes_by_the_existing_marker(marker: str) -> None:
    """Whatever marker is there when a write commits, afterwards it is that of the newest commit."""
    memory = MemoryStore(min_part_bytes=1)
    ours, others = CountingStore(memory), CountingStore(memory)
    _one(ours, b"0", "append")

    def meanwhile() -> None:
        if marker == "none":
            memory.delete("lake", "t/_SUCCESS")
        elif marker == "another program's":
            memory.put("lake", "t/_SUCCESS", b"")
        else:
            _one(others, b"1", "append")

    _one(ours, b"2", "append", meanwhile)
    latest = latest_manifest(memory, "s3://lake/t/")
    marked = decode(SuccessData, memory.get("lake", "t/_SUCCESS").body, "the marker")
    assert (marked.generation, marked.jobId) == (latest.generation, latest.job_id)


def test_a_write_is_committed_however_many_came_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """It meets the first of them when it tries to create its entry, and reads on to the end of the log."""
    monkeypatch.setattr(append, "TRIES", 2)
    store = MemoryStore()
    with write_job("s3://lake/flights/", store=store, conflict_mode="append") as writer:
        for _ in range(4):
            with write_job("s3://lake/flights/", store=store, conflict_mode="append"):
                pass
    assert writer.manifest is not None
    assert writer.manifest.generation == 6


@each("others", [[], [b"2"], [b"2", b"3"]])
def test_a_write_after_the_log_was_removed_begins_a_new_one(others: list[bytes]) -> None:
    """A process that remembers a log that was removed, or begun anew, goes by neither its end nor marker."""
    memory = MemoryStore(min_part_bytes=1)
    ours = CountingStore(memory)
    for body in (b"0", b"1"):
        _one(ours, body, "append")
    for info in list(memory.list_objects("lake", "t/")):
        memory.delete("lake", info.key)
    for body in others:
        _one(CountingStore(memory), body, "append")
    _one(ours, b"4", "append")
    assert _data(memory) == [*others, b"4"]
    assert _log(memory) == [f"{number:03}.json" for number in range(1, len(others) + 3)]
    assert verify(memory, "s3://lake/t/").sound


@each("mode", ["append", "replace"])
@each("others", [0, 1, 2])
def test_a_write_whose_log_is_removed_meanwhile_is_refused(others: int, mode: Any) -> None:
    """It creates no entry after one that it remembers and that is gone, or of a log that was begun anew."""
    memory = MemoryStore(min_part_bytes=1)
    ours = CountingStore(memory)
    _one(ours, b"0", "append")

    def meanwhile() -> None:
        for info in list(memory.list_objects("lake", "t/")):
            memory.delete("lake", info.key)
        for number in range(others):
            _one(CountingStore(memory), str(number).encode(), "append")

    with pytest.raises(InvalidRecord):
        _one(ours, b"9", mode, meanwhile)
    assert _data(memory) == [str(number).encode() for number in range(others)]
    assert verify(memory, "s3://lake/t/").sound


@pytest.mark.parametrize("effect", ["reject", "refuse", "lose-answer"])
def test_wherever_a_call_fails_the_job_is_gone_or_can_be_finished(effect: Effect) -> None:
    """If any call fails, the job is gone without a trace, or of unknown outcome and can be finished."""
    reads = FaultyStore(Lake().store)
    _write(reads, "s3://lake/out/", [])
    kept = 0
    for nth in range(1, len(reads.calls) + 1):
        lake, jobs = Lake(), []
        failed: S3CommitError | None = None
        try:
            _write(FaultyStore(lake.store, Fault(effect, nth=nth)), lake.destination, jobs)
        except S3CommitError as error:
            failed = error
        done = failed is None
        state = jobs[0].state() if jobs else None
        if failed and state is not None and state.state != "aborted":
            kept += 1
            assert isinstance(failed, OutcomeUnknown), (nth, state.state)
            assert "finish it with: s3commit commit" in whole_text(failed)
            done = Job.at(lake.store, jobs[0].reference, clock=ManualClock()).commit() is not None
        assert sorted(lake.data().values()) == (sorted(FILES.values()) if done else []), nth
        assert lake.pending() == [], nth
        assert lake.keys(f"{ROOT}_s3commit/open/") == [], nth
    assert kept or effect != "lose-answer"


def test_a_table_is_committed_in_one_call() -> None:
    """The rows are in the partitions, the job is as it was asked for, and a wrong option leaves nothing."""
    pa = pytest.importorskip("pyarrow")
    lake, seen, facts = Lake(), [], {"who": "me"}
    table = pa.table({"dt": ["1", "2"], "rows": [1, 2]})
    for _ in range(2):
        manifest = write_table(
            table,
            Destination.parse(lake.destination),
            store=lake.store,
            partition_by=["dt"],
            conflict_mode="replace",
            job_options=JobOptions(retain="7d"),
            name="flights",
            context=facts,
            progress=seen.append,
        )
    assert (manifest.conflict_mode, manifest.replaced.files, len(lake.data())) == ("replace", 2, 4)
    assert {**facts, "name": "flights"}.items() <= manifest.context.items()
    assert [one.files_done for one in seen] == [1, 2] * 2
    assert manifest.counts.rows == 2
    assert set(manifest.partitions) == {"dt=1", "dt=2"}
    with pytest.raises(InvalidOption):
        write_table(table, lake.destination, store=lake.store, conflict_mode="append", options={"no": "such"})
    assert lake.pending() == []


@pytest.mark.parametrize("form", ["s3://lake/out", "s3a://lake/out/", Destination("lake", "out/")])
def test_a_destination_is_a_uri_or_a_destination(form: str | Destination) -> None:
    """Every public function accepts either, and means the same place."""
    lake = Lake()
    assert Destination.of(form) == Destination("lake", "out/")
    manifest = _write(lake.store, form, [])
    assert manifest.destination == "s3://lake/out/"
    assert latest_manifest(lake.store, form) == manifest
    assert read_manifest(lake.store, form, manifest.job_id) == manifest
    assert verify(lake.store, form).complete
    assert sweep(lake.store, form, older_than=3600.0).plan.destination == "s3://lake/out/"

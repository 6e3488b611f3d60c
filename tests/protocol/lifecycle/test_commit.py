"""A commit happens completely or not at all, resumes where it stopped, and undoes only its own work."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from airflow_s3commit import Job, JobOptions, MemoryStore
from airflow_s3commit.exceptions import (
    AccessDenied,
    AlreadyCommitted,
    InvalidRecord,
    JobClosed,
    JobFailed,
    NoSuchJob,
    OutcomeUnknown,
    S3CommitError,
    Unavailable,
)
from airflow_s3commit.protocol.lifecycle.run import Progress
from airflow_s3commit.store.forwarding import CountingStore
from tests.cases import each
from tests.protocol.building import BUCKET, OURS, ROOT, THEIRS, Crash, Lake, apart, named, once
from tests.protocol.lifecycle.test_seal import refused

OLD = {"dt=1/old": b"old", "dt=2/old": b"old 2"}
NEW = {"dt=1/a": b"1", "dt=1/b": b"22", "dt=1/c": b"333"}
SUCCESS = f"{ROOT}_SUCCESS"
COMMITTED = {"dt=2/old": b"old 2", **{named(path): body for path, body in NEW.items()}}


def sealed_lake(*, marker: bytes | None = b"marker", **options: Any) -> Lake:
    """Return a lake with old data, a marker, and a sealed job that replaces a partition."""
    lake = Lake()
    lake.put(OLD)
    if marker is not None:
        lake.store.put(BUCKET, SUCCESS, marker)
    lake.sealed({"dt=1/a": b"1"}, {"dt=1/b": b"22", "dt=1/c": b"333"}, **options)
    return lake


def state(lake: Lake) -> str | None:
    """Return the job's state."""
    standing = lake.job().state()
    return standing.state if standing is not None else None


def lose_upload(lake: Lake, path: str) -> None:
    """Remove a pending upload, as a lifecycle rule would."""
    for upload in list(lake.store.list_uploads(BUCKET, ROOT + path)):
        lake.store.abort_upload(BUCKET, upload.key, upload.upload_id)


def stopped(lake: Lake, verb: str, ending: str, **how: Any) -> Lake:
    """Let the commit die at a call."""
    lake.store.die(verb, ending, **how)
    with pytest.raises(Crash):
        lake.job().commit()
    lake.store.rest()
    return lake


def check_as_before(lake: Lake) -> None:
    """Check that the job left no trace, marker included."""
    assert lake.data() == OLD
    assert lake.get(SUCCESS) == b"marker"
    assert (lake.pending(), lake.staging()) == ([], [])
    assert lake.job().manifest() is None


def check_committed(lake: Lake) -> None:
    """Check that exactly the job's output is there."""
    assert lake.data() == COMMITTED
    assert OURS.encode() in lake.get(SUCCESS)
    assert (lake.pending(), lake.staging()) == ([], [])


def test_a_commit_makes_the_output_visible() -> None:
    """Before the commit only the old data is visible, after it only the new, with marker and manifest."""
    lake = sealed_lake()
    assert lake.data() == OLD
    manifest = lake.job().commit()
    check_committed(lake)
    assert lake.job().manifest() == manifest


def test_a_second_commit_returns_the_manifest() -> None:
    """A job that is committed again, by any process, returns the same manifest and changes nothing."""
    lake = sealed_lake()
    manifest = lake.job().commit()
    before = lake.everything()
    assert lake.job(owner="another").commit() == manifest
    assert lake.everything() == before


def test_a_later_job_is_not_disturbed_by_an_earlier_one() -> None:
    """An old job that is committed again, after another one, changes nothing of the newer data."""
    lake = sealed_lake()
    manifest = lake.job().commit()
    lake.sealed({"dt=1/x": b"x"}, job_id=THEIRS).commit()
    before = lake.everything()
    assert lake.job().commit() == manifest
    assert lake.everything() == before


def test_progress_is_reported() -> None:
    """The progress callback gets every completed file, up to all of them."""
    told: list[Progress] = []
    sealed_lake().job().commit(progress=told.append)
    assert [(step.files_done, step.files_total) for step in told] == [(1, 3), (2, 3), (3, 3)]
    assert told[-1].bytes_done == 6


@pytest.mark.parametrize("setup", ["none", "open", "aborted"])
def test_only_a_sealed_job_is_committed(setup: str) -> None:
    """A job that is unknown, not sealed or aborted is refused."""
    lake = Lake()
    if setup != "none":
        lake.set_up()
    if setup == "aborted":
        lake.job().abort()
    refused(lake, JobClosed if setup == "open" else S3CommitError, lake.job().commit)
    with pytest.raises((JobClosed, NoSuchJob)):
        lake.job().commit()


def test_seal_and_plan_that_were_handed_over_are_required() -> None:
    """The caller's expected ETags, quoted or not, must match the stored records."""
    lake = sealed_lake()
    plan = lake.job().plan()
    seal_etag = lake.store.head(BUCKET, lake.context().layout.seal).etag
    for etags in ({"seal_etag": "0" * 32}, {"plan_etag": "0" * 32}, {"seal_etag": plan.etag}):
        refused(lake, InvalidRecord, lambda etags=etags: lake.job().commit(**etags))
    lake.job().commit(seal_etag=f'"{seal_etag}"', plan_etag=f'"{plan.etag}"')
    check_committed(lake)


def test_a_commit_that_has_begun_keeps_its_plan() -> None:
    """A second process that expects another plan than the one being committed is refused."""
    lake = stopped(sealed_lake(), "complete_upload", named("b"))
    before = lake.visible()
    with pytest.raises(JobClosed, match="another plan"):
        lake.job().commit(plan_etag="0" * 32)
    assert lake.visible() == before
    lake.job().commit()
    check_committed(lake)


# The marker.


def test_a_stale_marker_is_gone_while_the_commit_runs() -> None:
    """The old marker is gone while new files appear."""
    lake = sealed_lake()
    seen: list[bool] = []
    lake.store.after = lambda call: (
        seen.append(SUCCESS in lake.visible()) if call.verb == "complete_upload" else None
    )
    lake.job().commit()
    assert seen == [False, False, False]
    check_committed(lake)


@pytest.mark.parametrize("parts", [0, 1, 2], ids=["put", "one part", "two parts"])
def test_a_rollback_restores_the_marker_under_another_etag(parts: int) -> None:
    """The old marker is back byte for byte, and a delayed delete of the old one does not match it."""
    lake = sealed_lake(marker=None)
    if parts:
        upload = lake.store.create_upload(BUCKET, SUCCESS, metadata={}, content_type="x")
        bodies = [b"marker"] if parts == 1 else [b"mar", b"ker"]
        etags = [lake.store.upload_part(BUCKET, SUCCESS, upload, n, body) for n, body in enumerate(bodies, 1)]
        lake.store.complete_upload(BUCKET, SUCCESS, upload, etags)
    else:
        lake.store.put(BUCKET, SUCCESS, b"marker")
    etag = lake.store.head(BUCKET, SUCCESS).etag
    lose_upload(lake, named("dt=1/b"))
    with pytest.raises(JobFailed):
        lake.job().commit()
    check_as_before(lake)
    assert lake.store.head(BUCKET, SUCCESS).etag != etag


def test_a_marker_that_another_job_wrote_is_left() -> None:
    """A rollback does not put the old marker over one that another job wrote meanwhile."""
    lake = stopped(sealed_lake(), "complete_upload", named("b"))
    lake.store.put(BUCKET, SUCCESS, b"newer")
    lake.job().abort()
    assert lake.get(SUCCESS) == b"newer"
    assert lake.data() == OLD


def test_without_a_marker_none_is_restored() -> None:
    """Without a marker before the commit, there is no marker after a rollback."""
    lake = stopped(sealed_lake(marker=None), "complete_upload", named("b"))
    lake.job().abort()
    assert SUCCESS not in lake.keys("")


def test_a_delayed_delete_of_the_marker_does_no_harm() -> None:
    """A committer that sleeps before it removes the marker does not remove the one a rollback restored."""
    lake = sealed_lake()

    def sleep() -> None:
        lake.store.rest()
        lake.job(owner="another").abort()

    lake.store.before = once("delete", "_SUCCESS", sleep)
    with pytest.raises((JobClosed, NoSuchJob)):
        lake.job().commit()
    check_as_before(lake)


# Failing before the point of no return.


@pytest.mark.parametrize("lost", ["a", "b", "c"])
def test_a_lost_upload_rolls_everything_back(lost: str) -> None:
    """If an upload is gone the job fails, and the destination is unchanged."""
    lake = sealed_lake()
    lose_upload(lake, named(f"dt=1/{lost}"))
    with pytest.raises(JobFailed, match="lifecycle rule"):
        lake.job().commit()
    check_as_before(lake)
    with pytest.raises((JobClosed, NoSuchJob)):
        lake.job().commit()


@pytest.mark.parametrize("change", ["cut", "fewer", "gone"])
@pytest.mark.parametrize("task", ["00000", "00001"])
def test_a_pendingset_that_changes_during_the_commit_rolls_everything_back(change: str, task: str) -> None:
    """Output of a pendingset that was changed or removed afterwards is taken back too."""
    lake = stopped(sealed_lake(), "complete_upload", named("c"))
    key = lake.pendingset_key(task)
    if change == "gone":
        lake.store.delete(BUCKET, key)
    elif change == "cut":
        lake.tamper(key, cut=10)
    else:
        body = lake.get(key)
        start, end = body.index(b'"commits":[') + 11, body.index(b'],"iostatistics":null,"s3commit":{"stage')
        lake.store.put(BUCKET, key, body[:start] + body[end:])
    with pytest.raises(InvalidRecord):
        lake.job().commit()
    check_as_before(lake)


@pytest.mark.parametrize("what", ["seal", "stage seal"])
def test_a_record_that_changes_during_the_commit_rolls_everything_back(what: str) -> None:
    """A commit that finds its seal changed takes back what it published."""
    lake = stopped(sealed_lake(), "complete_upload", named("c"))
    layout = lake.context().layout
    key = {"seal": layout.seal, "stage seal": layout.stage_seal("spark", "1")}[what]
    lake.tamper(key, old=b'"version":1', new=b'"version": 1')
    with pytest.raises(InvalidRecord):
        lake.job().commit()
    check_as_before(lake)


def test_an_upload_lost_while_files_are_published_rolls_everything_back() -> None:
    """If an upload goes after another file has been published, that file goes too, and old data stays."""
    lake = Lake()
    lake.put({"dt=1/a": b"old", "dt=2/old": b"old 2"})
    job = lake.sealed({"dt=1/a": b"1", "dt=1/b": b"22"})

    def lose() -> None:
        lake.store.rest()
        lose_upload(lake, named("dt=1/b"))

    lake.store.before = once("complete_upload", "", lose)
    with pytest.raises(JobFailed, match="lifecycle rule"):
        job.commit()
    assert lake.data() == {"dt=1/a": b"old", "dt=2/old": b"old 2"}
    assert (lake.pending(), lake.staging()) == ([], [])


# Unknown outcomes.


@each("moment", ["before", "after"])
@each(
    ("verb", "ending"),
    [("complete_upload", named("a")), ("complete_upload", named("c")), ("delete", "_SUCCESS"),
     ("delete", "dt=1/old"), ("put", "_SUCCESS"), ("put", f"{OURS}.jsonl"), ("put", f"{OURS}.json")],
)  # fmt: skip
@each("kind", [OutcomeUnknown, Unavailable, AccessDenied])
def test_an_unknown_outcome_rolls_nothing_back(verb: str, ending: str, moment: str, kind: Any) -> None:
    """An error that does not condemn the job takes nothing back; a second commit finishes."""
    lake = sealed_lake()
    setattr(lake.store, moment, once(verb, ending, kind("no verdict")))
    lake.store.calls.clear()
    with suppress(kind), apart(ending.endswith(".jsonl")):
        lake.job().commit()
    assert state(lake) in ("committing", "committed", None)
    if state(lake) is not None:
        assert "abort_upload" not in [call.verb for call in lake.store.calls]
    assert OLD.items() <= lake.data().items() or COMMITTED.items() <= lake.data().items()
    lake.store.rest()
    lake.job().commit()
    check_committed(lake)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_lost_answer_to_a_state_is_resolved(moment: str) -> None:
    """The commit, or the next one, finds out whether a state was written whose answer was lost."""
    lake = sealed_lake()
    setattr(lake.store, moment, once("put", f"{OURS}/state.json", OutcomeUnknown("lost")))
    if moment == "before":
        with pytest.raises(OutcomeUnknown):
            lake.job().commit()
    lake.job().commit()
    check_committed(lake)


# Another process at the same time.


POINTS = [
    ("get", f"{OURS}/state.json"), ("list_objects", "tasks/"),
    ("put", "/summary.json"), ("put", f"{OURS}/state.json"),
    ("delete", "_SUCCESS"), ("complete_upload", named("a")), ("complete_upload", named("c")),
    ("put", f"{OURS}.jsonl"), ("put", f"manifests/{OURS}.json"), ("delete", "dt=1/old"), ("put", "_SUCCESS"),
    ("put", "log/00000000000000000001.json"), ("put", "log/00000000000000000002.json"),
    ("delete", "job.json"), ("delete", "state.json"),
]  # fmt: skip


def meanwhile(lake: Lake, act: Callable[[], object]) -> Callable[[], None]:
    """Return what makes another process act once."""

    def run() -> None:
        lake.store.rest()
        act()

    return run


@each(("verb", "ending"), POINTS)
def test_two_processes_that_commit_one_job_agree(verb: str, ending: str) -> None:
    """Whenever a second process commits the same job, both return the same manifest."""
    lake = sealed_lake()
    manifests: list[Any] = []
    job = lake.job(owner="first")
    other = meanwhile(lake, lambda: manifests.append(lake.job(owner="second").commit()))
    lake.store.before = once(verb, ending, other)
    with apart(ending.endswith(".jsonl")):
        manifests.append(job.commit())
    assert len(manifests) == 2
    assert manifests[0] == manifests[1]
    assert lake.data() == COMMITTED
    assert (lake.pending(), lake.staging()) == ([], [])


@each(("verb", "ending"), POINTS)
def test_an_abort_during_the_commit_wins_or_is_refused(verb: str, ending: str) -> None:
    """Whenever another process aborts the job, it is either committed completely or leaves no trace."""
    lake = sealed_lake()
    outcome: list[str] = []

    def abort() -> None:
        try:
            outcome.append(lake.job(owner="second").abort().state)
        except AlreadyCommitted:
            outcome.append("refused")

    job = lake.job(owner="first")
    lake.store.before = once(verb, ending, meanwhile(lake, abort))
    try:
        with apart(ending.endswith(".jsonl")):
            job.commit()
    except (JobClosed, NoSuchJob):
        assert outcome == ["aborted"]
        check_as_before(lake)
    else:
        assert outcome == ["refused"]
        check_committed(lake)


@each("mode", ["append", "replace"])
def test_a_whole_job_sends_an_exact_number_of_requests(mode: Any) -> None:
    """A job of one task and one file, each step in another process, sends exactly this number."""
    memory = MemoryStore(min_part_bytes=1)
    for store in (memory, counting := CountingStore(memory)):
        job = Job.setup(store, "s3://lake/t/", options=JobOptions(committer="magic", conflict_mode=mode))
        mine = Job.at(store, job.reference)
        with mine.task_attempt("spark", "1", "0", "0", threads=0, min_part_bytes=1) as attempt:
            with attempt.open("dt=0/file") as file:
                file.write(b"new")
            task = attempt.commit()
        Job.at(store, job.reference).seal_stage("spark", "1", [task])
        Job.at(store, job.reference).seal()
        Job.at(store, job.reference).plan()
        before_commit = sum(counting.counters.values())
        Job.at(store, job.reference).commit()
    total = sum(counting.counters.values())
    assert (before_commit, total - before_commit) == {"append": (22, 16), "replace": (27, 23)}[mode]


def test_shards_together_are_the_job() -> None:
    """Completed shard by shard, in any order and by any worker, the job is committed as a whole."""
    lake = Lake()
    lake.put(OLD)
    lake.sealed(*({f"dt=1/{n}": b"x"} for n in range(7)))
    shards = lake.job(owner="begin").begin(3)
    assert shards == [0, 1, 2]
    assert lake.job(owner="begin again").begin(5) == shards
    for shard in (2, 0, 2, 1):
        lake.job(owner=f"worker {shard}").complete(shard)
    manifest = lake.job(owner="finish").finish()
    assert manifest.counts.files == 7
    assert lake.data() == {"dt=2/old": b"old 2", **{named(f"dt=1/{n}"): b"x" for n in range(7)}}
    assert lake.job().finish() == manifest
    assert lake.job().begin(3) == []
    lake.job().complete(1)
    assert (lake.pending(), lake.staging()) == ([], [])


def test_a_job_is_not_finished_without_all_shards() -> None:
    """While a shard is missing the job is not finished, and the message names it; a plain commit does all."""
    lake = sealed_lake()
    lake.job().begin(2)
    lake.job().complete(1)
    with pytest.raises(JobClosed, match=r"shards \[0\] are not complete"):
        lake.job().finish()
    assert state(lake) == "committing"
    lake.job().commit()
    check_committed(lake)


@each("field", ["seal_etag", "job_id"])
def test_the_record_of_a_shard_counts_only_for_its_seal(field: str) -> None:
    """A worker's record for another seal, or another job, completes no shard of this one."""
    lake = sealed_lake()
    for shard in lake.job().begin(2):
        lake.job().complete(shard)
    key = lake.context().layout.shard(0)
    lake.tamper(key, old=str(json.loads(lake.get(key))[field]).encode(), new=b"another")
    with pytest.raises(JobClosed, match=r"shards \[0\] are not complete"):
        lake.job().finish()
    lake.job().complete(0)
    lake.job().finish()
    check_committed(lake)


@pytest.mark.parametrize("shard", [-1, 2, 99])
def test_a_shard_that_does_not_exist_is_refused(shard: int) -> None:
    """Only the shards that the commit was divided into can be completed."""
    lake = sealed_lake()
    lake.job().begin(2)
    with pytest.raises(JobClosed, match="has no shard"):
        lake.job().complete(shard)


def test_there_may_be_more_shards_than_tasks() -> None:
    """Shards without a task are complete at once."""
    lake = sealed_lake()
    for shard in lake.job().begin(10):
        lake.job().complete(shard)
    lake.job().finish()
    check_committed(lake)


def test_a_shard_before_the_begin_is_refused() -> None:
    """A shard of a job whose commit has not begun is refused and publishes nothing."""
    lake = sealed_lake()
    refused(lake, JobClosed, lambda: lake.job().complete(0))


def test_a_failing_shard_rolls_the_whole_job_back() -> None:
    """If one shard cannot be completed, the others' files are taken back too."""
    lake = sealed_lake()
    lake.job().begin(2)
    lake.job().complete(1)
    assert len(lake.data()) == 4
    lose_upload(lake, named("dt=1/a"))
    with pytest.raises(JobFailed):
        lake.job().complete(0)
    check_as_before(lake)
    for step in (lambda: lake.job().complete(1), lake.job().finish):
        with pytest.raises((JobClosed, NoSuchJob)):
            step()


@each("deleted", ["/job.json", "/sealed.json"])
def test_a_slow_worker_leaves_no_record_of_its_shard(deleted: str) -> None:
    """A worker that records its shard while another process removes the staging leaves nothing there."""
    lake = sealed_lake()
    lake.job().begin(2)

    def meanwhile() -> None:
        lake.store.rest()
        lake.job().complete(1)

    lake.store.before = once("delete", deleted, meanwhile)
    lake.job().commit()
    assert (lake.pending(), lake.staging()) == ([], [])


@each("end", ["commit", "abort"])
def test_a_worker_whose_job_has_ended_removes_the_record_of_its_shard(end: str) -> None:
    """A worker that slept until the job was committed or aborted leaves nothing in the staging."""
    lake = sealed_lake()
    lake.job().begin(2)
    lake.store.before = once("put", "shards/1.json", meanwhile(lake, getattr(lake.job(), end)))
    lake.job().complete(1)
    assert (lake.pending(), lake.staging()) == ([], [])


@each("ending", ["/job.json", "/sealed.json"])
def test_a_sharded_commit_that_dies_in_its_clean_up_leaves_nothing_pending(ending: str) -> None:
    """The uploads of attempts that do not count go before their records, which alone name them."""
    lake = Lake()
    job = lake.set_up()
    lake.run_task(lake.job(), {"dt=1/z": b"late"}, attempt="2")
    lake.run_stage(job, {"dt=1/a": b"1"}, {"dt=1/b": b"22"})
    job.seal()
    lake.job().begin(2)
    for shard in (0, 1):
        lake.job().complete(shard)
    lake.store.die("delete", ending, after=True)
    with pytest.raises(Crash):
        lake.job().finish()
    lake.store.rest()
    lake.job().complete(1)
    lake.job().commit()
    assert (lake.pending(), lake.staging()) == ([], [])

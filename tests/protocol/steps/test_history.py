"""Retention, release, rollback and sweep on the log alone, beside jobs and each other."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import islice, product

import pytest

from airflow_s3commit.exceptions import (
    HistoryRewound,
    InvalidOption,
    InvalidRecord,
    NotReversible,
    S3CommitError,
)
from airflow_s3commit.protocol.metadata.store_check import STORE_CLOCK_SECONDS
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import JobOptions
from airflow_s3commit.protocol.model.layout import checkpoint_key
from airflow_s3commit.protocol.steps import checkpoint, fold
from airflow_s3commit.protocol.steps.fold import read_table, refuse_rewound
from airflow_s3commit.protocol.steps.setup import set_up
from airflow_s3commit.testing import Crash, Fault, FaultyStore
from tests.protocol.steps.lake import BUCKET, ROOT, URI, A, Actor, B, C, Lake, Watched, calls_of, play
from tests.protocol.steps.test_schedules import end_all

HOME = Destination.parse(URI)
DAY = 86_400.0

#: Jobs of rollbacks.
R, S = "eeeeeeee-0000-4000-8000-000000000005", "ffffffff-0000-4000-8000-000000000006"


def generations(*, due: bool = False) -> tuple[Lake, Watched]:
    """Return a lake with older data, and two generations that replaced some of it and retain that.

    With ``due`` their retention has passed.
    """
    lake = Lake()
    watched = Watched(lake)
    for job_id in (A, B):
        lake.prepare(job_id, "replace", retain="1d")
        lake.commit(job_id)(watched)
    if due:
        lake.clock.advance(DAY + STORE_CLOCK_SECONDS + 1)
    return lake, watched


def settle(lake: Lake, watched: Watched, *jobs: str) -> None:
    """End all jobs, sweep, release what is due, and check what holds at rest."""
    end_all(lake, watched, *jobs, at_rest=False)
    lake.sweep()(watched)
    lake.release()(watched)
    watched.check_at_rest()


def test_retained_files_stay_until_their_release() -> None:
    """What a replace takes stays until its retention has passed, and goes with a release."""
    lake, watched = generations()
    before = watched.data()
    assert before > watched.table()
    lake.release()(watched)
    assert watched.data() == before
    # A store's clock counts seconds: to the last of them nothing may go.
    entered = lake.store.head(BUCKET, f"{ROOT}_s3commit/log/{2:020}.json").modified
    lake.clock.advance(entered + DAY + STORE_CLOCK_SECONDS - lake.clock.time())
    lake.release()(watched)
    assert watched.data() == before
    lake.clock.advance(DAY)
    lake.release()(watched)
    assert watched.data() == watched.table()
    assert watched.entries()[-1]["frees"] == [2, 3]
    lake.release()(watched)
    assert len(watched.entries()) == 4
    watched.check_at_rest()


def test_a_release_first_deletes_what_an_earlier_one_freed() -> None:
    """Objects that a dead release left are deleted before another release forgets them."""
    lake, watched = generations(due=True)
    lake.store.put(BUCKET, f"{ROOT}dt=2/foreign.parquet", b"another program's")
    lake.prepare(C, "replace", retain="1d")
    lake.commit(C)(watched)
    with pytest.raises(Crash):
        lake.release()(FaultyStore(watched, Fault("crash-before", "delete_many")))
    lake.clock.advance(DAY + STORE_CLOCK_SECONDS + 1)
    lake.release()(watched)
    assert [entry["frees"] for entry in watched.entries()[4:]] == [[2, 3], [4]]
    assert watched.data() == watched.table()


def test_markers_do_not_begin_beside_what_a_dead_release_left() -> None:
    """A reader that waits for a partition's marker lists it, and would see the freed files."""
    lake, watched = generations(due=True)
    with pytest.raises(Crash):
        lake.release()(FaultyStore(watched, Fault("crash-before", "delete_many")))
    marking = JobOptions(conflict_mode="append", partition_success=True)
    with pytest.raises(InvalidOption, match="retains files that generation 3 replaced"):
        set_up(lake.context(C), marking, {})
    lake.release()(watched)
    set_up(lake.context(C), marking, {})
    lake.write(C)(lake.store)
    lake.commit(C)(watched)
    watched.check_at_rest()


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.all)])
def test_a_release_that_slept_loses_no_object(every: int) -> None:
    """Of two releases neither makes the table forget objects that the other one is still to delete."""

    def world() -> tuple[Lake, list[Actor]]:
        lake, watched = generations(due=True)
        lake.prepare(C, "replace", retain="1d")
        lake.commit(C)(watched)
        return lake, [lake.release(), lake.release(after=DAY + STORE_CLOCK_SECONDS + 1)]

    lake, actors = world()
    calls = [calls_of(world()[0], actor) for actor in actors]
    for begun, entered in islice(product(range(calls[1] + 1), range(calls[0] + 1)), 0, None, every):
        lake, actors = world()
        watched, _ = play(lake, actors, [(1, begun), (0, entered), (1, 1_000_000)])
        assert watched.data() == watched.table()


@pytest.mark.parametrize("retain", ["0s", "1d"])
def test_a_rollback_makes_the_table_what_it_was(retain: str) -> None:
    """A rollback brings back the files of its generation, and takes those of later ones."""
    lake, watched = generations()
    then = {file for file in watched.data() if file.endswith("older.parquet")}
    lake.roll_back(R, 1, retain)(watched)
    assert watched.table() == then
    watched.check_at_rest()
    assert watched.marked() == 4
    if retain == "1d":
        lake.roll_back(S, 3)(watched)
        assert {key for key in watched.table() if B in key}
        watched.check_at_rest()
    else:
        with pytest.raises(NotReversible, match="generation 3"):
            lake.roll_back(S, 3)(watched)


def test_a_rollback_is_refused_after_a_release() -> None:
    """The log decides that a file is released, even while its object is still there."""
    lake, watched = generations(due=True)
    with suppress(Crash):
        lake.release()(FaultyStore(watched, Fault("crash-before", "delete_many")))
    assert watched.data() > watched.table()
    with pytest.raises(NotReversible, match="released"):
        lake.roll_back(R, 1)(watched)
    settle(lake, watched)


def test_a_rollback_to_what_is_there_changes_nothing() -> None:
    """A rollback to the newest generation makes no entry."""
    lake, watched = generations()
    assert lake.roll_back(R, 3)(watched) is None
    assert len(watched.entries()) == 3


@pytest.mark.parametrize("fault", ["crash-before", "crash-after", "lose-answer"])
@pytest.mark.parametrize("what", ["rollback", "release", "sweep"])
def test_what_stops_anywhere_is_ended_by_a_sweep(what: str, fault: str) -> None:
    """After a fault at any call, a sweep and a release leave what the log says and nothing else."""

    def world() -> tuple[Lake, Watched, Actor]:
        lake, watched = generations(due=what == "release")
        if what == "sweep":
            lake.prepare(C, "append")
            with suppress(Crash):
                lake.commit(C)(FaultyStore(watched, Fault("crash-before", "put", "*_s3commit/log/*")))
        acts = {"rollback": lake.roll_back(R, 1), "release": lake.release(), "sweep": lake.sweep()}
        return lake, watched, acts[what]

    lake, _, act = world()
    for nth in range(1, calls_of(lake, act) + 1):
        lake, watched, act = world()
        with suppress(Crash, S3CommitError):
            act(FaultyStore(watched, Fault(fault, nth=nth)))  # type: ignore[arg-type]
        settle(lake, watched)


#: Pairs of processes on two retained generations, by name; and whether their retention has passed.
PAIRS: dict[str, tuple[Callable[[Lake], list[Actor]], bool]] = {
    "rollback and a commit": (lambda lake: [lake.roll_back(R, 1), lake.commit(C)], False),
    "rollback and an abort": (lambda lake: [lake.roll_back(R, 1), lake.abort(C)], False),
    "rollback and its abort": (lambda lake: [lake.roll_back(R, 1), lake.abort(R)], False),
    "rollback and a sweep": (lambda lake: [lake.roll_back(R, 1), lake.sweep(DAY)], False),
    "two rollbacks": (lambda lake: [lake.roll_back(R, 1), lake.roll_back(S, 2)], False),
    "rollback and a release": (lambda lake: [lake.roll_back(R, 1), lake.release()], True),
    "release and a commit": (lambda lake: [lake.release(), lake.commit(C)], True),
    "two releases": (lambda lake: [lake.release(), lake.release()], True),
    "sweep and a commit": (lambda lake: [lake.sweep(DAY), lake.commit(C)], False),
    "sweep of the dead and a commit": (lambda lake: [lake.sweep(), lake.commit(C)], False),
    "two sweeps of the dead": (lambda lake: [lake.sweep(), lake.sweep()], False),
}


def play_pair(pair: str) -> None:
    """Play a pair with a switch at every call of each process, and end all jobs after that."""

    def world() -> tuple[Lake, list[Actor]]:
        make, due = PAIRS[pair]
        lake, _ = generations(due=due)
        lake.prepare(C, "replace", retain="1d")
        return lake, make(lake)

    for first in (0, 1):
        lake, actors = world()
        for own in range(calls_of(lake, actors[first]) + 1):
            lake, actors = world()
            watched, outcomes = play(lake, actors, [(first, own), (1 - first, 1_000_000)])
            if pair == "sweep and a commit":
                assert outcomes == [None, None], "a sweep ended a living job"
            settle(lake, watched, C)


@pytest.mark.parametrize(
    "pair",
    [pair if "commit" in pair else pytest.param(pair, marks=pytest.mark.slow) for pair in PAIRS],
)
def test_two_processes_in_any_order_keep_the_rules(pair: str) -> None:
    """With a switch at any call of each of two processes every rule holds, at every call and at rest."""
    play_pair(pair)


def test_a_sweep_beside_a_setup_ends_no_living_job() -> None:
    """A sweep whose listings and reads lie anywhere in a job's life leaves the job alone."""

    def world() -> tuple[Lake, list[Actor]]:
        lake, _ = generations()
        return lake, [lake.sweep(DAY), lake.until_sealed(C)]

    for first in (0, 1):
        lake, actors = world()
        for own in range(calls_of(lake, actors[first]) + 1):
            lake, actors = world()
            watched, outcomes = play(lake, actors, [(first, own), (1 - first, 1_000_000)])
            assert outcomes == [None, None]
            lake.commit(C)(watched)
            settle(lake, watched)


def test_a_sweep_leaves_files_that_were_copied_here() -> None:
    """Files with a job's id in their names that no job of this destination wrote stay where they are."""
    lake, watched = generations()
    copy = f"{ROOT}dt=9/part-{C}.parquet"
    lake.store.put(BUCKET, copy, b"copied")
    lake.sweep()(watched)
    assert copy in watched.data()
    assert len(watched.entries()) == 3


def test_a_dataset_without_a_log_is_not_swept() -> None:
    """Without a log no job was set up, so nothing there is a job's."""
    lake = Lake()
    watched = Watched(lake)
    lake.store.put(BUCKET, f"{ROOT}dt=9/part-{C}.parquet", b"another dataset's")
    lake.store.create_upload(BUCKET, f"{ROOT}dt=9/part-{B}.parquet", metadata={}, content_type="x")
    lake.sweep()(watched)
    assert watched.entries() == []
    assert len(watched.data()) == 3


def _many(lake: Lake, watched: Watched, count: int) -> None:
    """Abort jobs until the log has a number of entries."""
    for number in range(count):
        lake.abort(f"{number:08d}-0000-4000-8000-000000000000")(watched)


def test_a_release_writes_a_checkpoint_too() -> None:
    """A log whose thirteenth entry is a release has a checkpoint of it."""
    lake, watched = generations(due=True)
    _many(lake, watched, 9)
    lake.release()(watched)
    assert watched.entries()[12]["kind"] == "release"
    assert list(lake.store.list_objects(BUCKET, checkpoint_key(HOME, 13)))


def test_a_checkpoint_says_what_the_log_says() -> None:
    """The table is the same with and without checkpoints, and with one it takes fewer requests."""
    lake, watched = generations()
    _many(lake, watched, 11)
    key = checkpoint_key(HOME, 13)
    body = lake.store.get(BUCKET, key).body
    counted = FaultyStore(lake.store)
    with_it = read_table(counted, HOME)
    few = len(counted.calls)
    assert checkpoint.to_bytes(read_table(lake.store, HOME, 13), URI) == body
    lake.store.delete(BUCKET, key)
    counted = FaultyStore(lake.store)
    without = read_table(counted, HOME)
    assert len(counted.calls) > few
    for one in (with_it, without):
        assert checkpoint.to_bytes(one, URI) == checkpoint.to_bytes(without, URI)
        assert one.head.number == 14


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", checkpoint.gzip.compress(b"\n" * 67_108_864), checkpoint.gzip.compress(b"x" * 67_108_864)],
    ids=["empty", "no gzip", "64 MiB of line ends", "one line of 64 MiB"],
)
def test_a_checkpoint_that_cannot_be_read_is_passed_over(body: bytes) -> None:
    """A damaged or hostile checkpoint costs a reader a request, and neither its answer nor its memory."""
    lake, watched = generations()
    _many(lake, watched, 10)
    wanted = checkpoint.to_bytes(read_table(lake.store, HOME), URI)
    lake.store.put(BUCKET, checkpoint_key(HOME, 13), body)
    assert checkpoint.to_bytes(read_table(lake.store, HOME), URI) == wanted


def test_a_checkpoint_of_another_log_is_passed_over() -> None:
    """A checkpoint whose entry has other bytes in this log says nothing of it."""
    lake, watched = generations()
    _many(lake, watched, 10)
    other = Lake(older=False)
    _many(other, Watched(other), 12)
    body = other.store.get(BUCKET, checkpoint_key(HOME, 13)).body
    wanted = checkpoint.to_bytes(read_table(lake.store, HOME), URI)
    lake.store.put(BUCKET, checkpoint_key(HOME, 13), body)
    assert checkpoint.to_bytes(read_table(lake.store, HOME), URI) == wanted


def test_an_entry_that_does_not_follow_ends_a_reader() -> None:
    """A reader notices an entry that was written over, by the digest in the next one."""
    lake, watched = generations()
    key = f"{ROOT}_s3commit/log/{2:020d}.json"
    lake.store.put(BUCKET, key, lake.store.get(BUCKET, key).body.replace(b'"replace"', b'"append!"'))
    with pytest.raises(InvalidRecord, match="does not follow"):
        read_table(watched, HOME)


def test_readers_get_each_file_once_and_learn_of_a_rollback() -> None:
    """Since a generation come the files of later commits, and an error where a rollback lies between."""
    lake, watched = generations()
    refuse_rewound(watched, HOME, 2, 3)
    assert read_table(watched, HOME).commits(since=2) == {3: ["dt=1"]}
    lake.roll_back(R, 1, "1d")(watched)
    for seen in (1, 2, 3):
        with pytest.raises(HistoryRewound, match="rolled back to 1"):
            refuse_rewound(watched, HOME, seen, 4)
    # What a reader stops before does not concern it.
    refuse_rewound(watched, HOME, 2, 3)
    refuse_rewound(watched, HOME, 4, 4)
    with pytest.raises(HistoryRewound, match="begun anew"):
        refuse_rewound(watched, HOME, 40, 4)


def test_parts_of_a_commit_run_anywhere_and_die_anywhere() -> None:
    """Parts of a commit may run beside it and beside an abort, or not at all, and leave no record."""
    for first, rival in product((0, 1), ("commit", "abort")):
        for own in range(12):
            lake, _ = generations()
            lake.prepare(C, "append")
            ends = {"commit": lake.commit(C), "abort": lake.abort(C)}
            watched, _ = play(
                lake, [lake.part(C), ends[rival]], [(first, own), (1 - first, 1_000_000)], dies=first
            )
            settle(lake, watched, C)


def test_a_table_at_rest_has_the_same_checkpoint_in_every_process() -> None:
    """Two processes that write one checkpoint write the same bytes."""
    lake, watched = generations()
    _many(lake, watched, 10)
    key = checkpoint_key(HOME, 13)
    first = lake.store.get(BUCKET, key).body
    fold.write_checkpoint(lake.store, HOME, fold.read_entry(lake.store, HOME, 13).entry)
    assert lake.store.get(BUCKET, key).body == first

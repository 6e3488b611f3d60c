"""Crashes and interleavings of the steps on the log alone, each held to the rules of `lake.Watched`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from errno import ENOSPC
from io import BytesIO
from itertools import chain, product, repeat
from os import strerror

import pytest

from airflow_s3commit.exceptions import (
    AlreadyCommitted,
    DestinationNotEmpty,
    JobClosed,
    OutcomeUnknown,
    S3CommitError,
    Unavailable,
)
from airflow_s3commit.testing import Crash, Effect, Fault, FaultyStore
from tests.crash.late import Delay, LateStore
from tests.protocol.steps.lake import BUCKET, ROOT, A, Actor, B, C, Lake, Watched, calls_of, play

FAULTS: tuple[Effect, ...] = ("crash-before", "crash-after", "lose-answer", "refuse")
MODES = ("append", "replace")

#: What ends a job again, whatever was begun.
_ENDS = (AlreadyCommitted, JobClosed, DestinationNotEmpty)


def end_all(lake: Lake, watched: Watched, *jobs: str, at_rest: bool = True) -> None:
    """Commit each job again, or abort it, as another process would; then all is at rest."""
    for job_id in jobs:
        try:
            lake.commit(job_id)(watched)
        except S3CommitError:
            with suppress(*_ENDS):
                lake.abort(job_id)(watched)
    # Whoever ended a job and died left its clean-up to a process that takes the step again.
    for job_id in jobs:
        for step in (lake.commit, lake.abort):
            with suppress(*_ENDS):
                step(job_id)(watched)
    if at_rest:
        watched.check_at_rest()


@pytest.mark.parametrize("mode", ["append", "replace", "fail"])
def test_a_job_is_committed_and_leaves_nothing(mode: str) -> None:
    """A commit leaves the table's files, the marker and a receipt, and nothing else of the job."""
    lake = Lake(older=mode != "fail")
    lake.prepare(A, mode)
    watched = Watched(lake)
    lake.commit(A)(watched)
    watched.check_at_rest()
    assert watched.marked() == 2


@pytest.mark.parametrize(("mode", "fault"), [*product(MODES, FAULTS)])
def test_a_commit_that_stops_anywhere_is_committed_again(mode: str, fault: Effect) -> None:
    """After a fault at any call of a commit, another commit finishes the job."""
    calls = _count(lambda lake: lake.commit(A), mode)
    for nth in range(1, calls + 1):
        lake = _sealed(mode)
        watched = Watched(lake)
        with suppress(Crash, S3CommitError):
            lake.commit(A)(FaultyStore(watched, Fault(fault, nth=nth)))
        lake.commit(A)(watched)
        watched.check_at_rest()
        assert [entry["kind"] for entry in watched.entries()] == ["commit", "commit"]


@pytest.mark.parametrize(("mode", "fault"), [*product(MODES, FAULTS)])
def test_an_abort_that_stops_anywhere_is_aborted_again(mode: str, fault: Effect) -> None:
    """After a fault at any call of an abort of a half-published job, another abort undoes all of it."""
    calls = _count(lambda lake: lake.abort(A), mode, published=True)
    for nth in range(1, calls + 1):
        lake = _sealed(mode, published=True)
        watched = Watched(lake)
        with suppress(Crash, S3CommitError):
            lake.abort(A)(FaultyStore(watched, Fault(fault, nth=nth)))
        lake.abort(A)(watched)
        watched.check_at_rest()
        assert [entry["kind"] for entry in watched.entries()] == ["commit", "abandon"]


@pytest.mark.parametrize("mode", MODES)
def test_an_abort_wins_or_loses_against_a_commit_that_died_anywhere(mode: str) -> None:
    """After a commit that died at any call, an abort either undoes the job or finds it committed."""
    for nth in range(1, _count(lambda lake: lake.commit(A), mode) + 1):
        lake = _sealed(mode)
        watched = Watched(lake)
        with suppress(Crash):
            lake.commit(A)(FaultyStore(watched, Fault("crash-after", nth=nth)))
        try:
            lake.abort(A)(watched)
        except AlreadyCommitted:
            lake.commit(A)(watched)
        watched.check_at_rest()


@pytest.mark.parametrize("step", ["set_up", "write"])
def test_a_step_before_the_commit_that_stops_anywhere_leaves_a_job_that_can_be_aborted(step: str) -> None:
    """After a crash at any call of setup, task or seal, an abort leaves nothing of the job."""

    def begun() -> tuple[Lake, Actor]:
        lake = Lake()
        if step == "write":
            lake.set_up(A, "append")(lake.store)
            return lake, lake.write(A)
        return lake, lake.set_up(A, "append")

    for nth, fault in product(range(1, calls_of(*begun()) + 1), ("crash-before", "crash-after")):
        lake, act = begun()
        watched = Watched(lake)
        with suppress(Crash):
            act(FaultyStore(watched, Fault(fault, nth=nth)))
        lake.abort(A)(watched)
        watched.check_at_rest()


#: Pairs of processes, by name: what each does, and the jobs that are to be ended after it.
PAIRS: dict[str, tuple[Callable[[Lake], list[Actor]], str]] = {
    "two committers": (lambda lake: [lake.commit(A), lake.commit(A)], "AB"),
    "commit and abort": (lambda lake: [lake.commit(A), lake.abort(A)], "AB"),
    "two aborts": (lambda lake: [lake.abort(A), lake.abort(A)], "AB"),
    "commit and a rival's commit": (lambda lake: [lake.commit(A), lake.commit(B)], "AB"),
    "abort and a rival's commit": (lambda lake: [lake.abort(A), lake.commit(B)], "AB"),
    "commit and a late attempt": (lambda lake: [lake.commit(A), lake.attempt(A, "2")], "AB"),
    "abort and a late attempt": (lambda lake: [lake.abort(A), lake.attempt(A, "2")], "AB"),
    "abort and a whole job": (lambda lake: [lake.abort(C), lake.until_sealed(C)], "ABC"),
    "abort and a setup": (lambda lake: [lake.abort(C), lake.set_up(C, "append")], "ABC"),
}
JOBS = {"A": A, "B": B, "C": C}


def _world(pair: str, modes: tuple[str, str]) -> tuple[Lake, list[Actor]]:
    lake = Lake()
    lake.prepare(A, modes[0])
    lake.prepare(B, modes[1])
    return lake, PAIRS[pair][0](lake)


def _length(pair: str, modes: tuple[str, str], number: int) -> int:
    lake, actors = _world(pair, modes)
    return calls_of(lake, actors[number])


def play_pair(pair: str, modes: tuple[str, str]) -> None:
    """Play a pair with a switch at every call of each process, and end all jobs after that."""
    for first in (0, 1):
        for own in range(_length(pair, modes, first) + 1):
            lake, actors = _world(pair, modes)
            watched, _ = play(lake, actors, [(first, own), (1 - first, 1_000_000)])
            watched.check_left()
            end_all(lake, watched, *(JOBS[name] for name in PAIRS[pair][1]))


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize(
    "modes",
    [
        pytest.param(("append", "append"), marks=pytest.mark.slow),
        pytest.param(("replace", "append"), marks=pytest.mark.slow),
        ("replace", "replace"),
    ],
)
def test_two_processes_in_any_order_keep_the_rules(pair: str, modes: tuple[str, str]) -> None:
    """With a switch at any call of each of two processes every rule holds, at every call and at rest."""
    play_pair(pair, modes)


@pytest.mark.parametrize(
    "modes", [("replace", "replace"), pytest.param(("append", "replace"), marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("pair", ["two committers", "commit and abort", "commit and a rival's commit"])
def test_a_process_that_dies_beside_another_leaves_what_a_third_can_end(
    pair: str, modes: tuple[str, str]
) -> None:
    """With one process dead at any call, beside another at any call, a third one ends all jobs."""
    own = range(0, _length(pair, modes, 0) + 1, 2)
    others = range(0, _length(pair, modes, 1) + 1, 3)
    for calls, other in product(own, others):
        lake, actors = _world(pair, modes)
        watched, _ = play(lake, actors, [(1, other), (0, calls)], dies=0)
        end_all(lake, watched, A, B)


def play_late(modes: tuple[str, str], delay: Delay) -> None:
    """Commit with one write that takes effect late, at any write, and a whole abort or commit before that."""
    for step, nth in product(("abort", "commit"), range(1, 12)):
        lake = Lake()
        lake.prepare(A, modes[0])
        lake.prepare(B, modes[1])
        watched = Watched(lake)
        late = LateStore(watched, nth, delay)
        with suppress(Crash, S3CommitError):
            lake.commit(A)(late)
        with suppress(*_ENDS):
            getattr(lake, step)(A)(watched)
        lake.commit(B)(watched)
        late.land()
        end_all(lake, watched, A, B)


@pytest.mark.parametrize("modes", [("append", "replace"), ("replace", "replace")])
@pytest.mark.parametrize("delay", ["late", "twice"])
def test_a_write_that_takes_effect_late_keeps_the_rules(modes: tuple[str, str], delay: Delay) -> None:
    """With any write of a commit landing after other processes have ended both jobs every rule holds."""
    play_late(modes, delay)


def play_spent_id() -> None:
    """Abort a job and die at any call, let another job commit, then use the first one's id again."""
    for nth in range(1, 30):
        lake = Lake()
        lake.prepare(B, "append")
        watched = Watched(lake)
        with suppress(Crash):
            lake.abort(C)(FaultyStore(watched, Fault("crash-after", nth=nth)))
        lake.commit(B)(watched)
        with suppress(*_ENDS):
            lake.until_sealed(C)(watched)
            lake.commit(C)(watched)
        ends = [entry["job_id"] for entry in watched.entries() if "job_id" in entry]
        assert len(ends) == len(set(ends)), "an id was used twice"


def test_an_id_is_spent_from_its_end_on() -> None:
    """Wherever the process that ended a job died, its id never enters the log again."""
    play_spent_id()


def _sealed(mode: str, *, published: bool = False) -> Lake:
    """Return a lake with a sealed job; with ``published`` its commit died before its entry."""
    lake = Lake()
    lake.prepare(A, mode)
    if published:
        fault = Fault("crash-before", "put", "*_s3commit/log/*")
        with pytest.raises(Crash):
            lake.commit(A)(FaultyStore(lake.store, fault))
    return lake


def _count(actor_of: Callable[[Lake], Actor], mode: str, *, published: bool = False) -> int:
    lake = _sealed(mode, published=published)
    return calls_of(lake, actor_of(lake))


def play_late_sealer() -> None:
    """Suspend a sealer after its write, commit up to any call, abort up to any call, then go on."""

    def world() -> tuple[Lake, list[Actor]]:
        lake = Lake()
        lake.set_up(A, "append")(lake.store)
        lake.attempt(A)(lake.store)
        return lake, [lake.seal(A), lake.commit(A), lake.abort(A)]

    lake, actors = world()
    written = calls_of(lake, actors[0]) - 1
    for committed, aborted in product(range(4, 9), range(30)):
        lake, actors = world()
        watched, _ = play(lake, actors, [(0, written), (1, committed), (2, aborted)])
        watched.check_left()
        end_all(lake, watched, A)


def _calls_before(lake: Lake, actor: Actor, verb: str, ending: str = "") -> int:
    """Return how many calls a process makes before its first one of a verb on a key with this ending."""
    store = FaultyStore(lake.store)
    actor(store)
    called = (call.verb == verb and call.key.endswith(ending) for call in store.calls)
    return list(called).index(True)


def play_late_completion() -> None:
    """Let a commit complete an upload and die, at any call of an abort of its job."""

    def world() -> tuple[Lake, list[Actor]]:
        lake = _sealed("append")
        return lake, [lake.commit(A), lake.abort(A)]

    begun, undone = _calls_before(*_first(world), "complete_upload"), calls_of(*_first(world, 1))
    for calls in range(undone + 1):
        lake, actors = world()
        watched, _ = play(lake, actors, [(0, begun), (1, calls), (0, 1)], dies=0)
        watched.check_left()
        end_all(lake, watched, A)


def test_a_completion_while_a_job_is_undone_leaves_no_object() -> None:
    """Objects go after uploads: so an upload that is completed meanwhile is either aborted or taken back."""
    play_late_completion()


def play_slow_abort() -> None:
    """Abort a job slowly; meanwhile another process aborts it and dies, and a rival commits."""

    def world() -> tuple[Lake, list[Actor]]:
        lake = Lake()
        lake.prepare(B, "append")
        dies = Fault("crash-after", "put", "*_s3commit/log/*")
        return lake, [lake.abort(C), lambda store: lake.abort(C)(FaultyStore(store, dies)), lake.commit(B)]

    for own in range(calls_of(*_first(world)) + 1):
        lake, actors = world()
        watched, _ = play(lake, actors, [(0, own), (1, 1_000_000), (2, 1_000_000)])
        end_all(lake, watched, B, C)


def test_a_slow_abort_ends_no_job_twice() -> None:
    """The newest entry is read before the receipt, which later entries write: one of them has the end."""
    play_slow_abort()


def play_slow_setup() -> None:
    """Create the record of a job again after its end, at any call of a late task attempt."""

    def world() -> tuple[Lake, list[Actor]]:
        lake = Lake()
        lake.prepare(A, "append")
        return lake, [lake.set_up(A, "append"), lake.attempt(A, "2"), lake.abort(A)]

    begun = _calls_before(*_first(world), "put", "job.json")
    for written in range(calls_of(*_first(world, 1)) + 1):
        lake, actors = world()
        schedule = [(0, begun), (1, written), (2, 1_000_000), (0, 1), (1, 1_000_000)]
        watched, _ = play(lake, actors, schedule)
        watched.check_left()
        end_all(lake, watched, A)


def test_a_record_that_comes_back_deceives_no_task() -> None:
    """A task attempt goes by the receipt, which never goes, and not by the record of its job."""
    play_slow_setup()


def play_copied_names() -> None:
    """Abort a half-published job whose id a file older than the log has in its name."""
    lake = Lake()
    copied = f"{ROOT}dt=2/copied-{C}.parquet"
    lake.store.put(BUCKET, copied, b"older")
    lake.prepare(C, "append")
    watched = Watched(lake)
    with suppress(Crash):
        lake.commit(C)(FaultyStore(watched, Fault("crash-before", "put", "*_s3commit/log/*")))
    lake.abort(C)(watched)
    assert copied in watched.table()
    watched.check_at_rest()


def test_an_abort_leaves_an_older_file_with_the_job_s_id_in_its_name() -> None:
    """The log says which files are the job's, and not their names alone."""
    play_copied_names()


def play_empty_dataset() -> None:
    """Abort a half-published job, the first one of an empty dataset."""
    lake = Lake(older=False)
    lake.prepare(A, "append")
    watched = Watched(lake)
    with suppress(Crash):
        lake.commit(A)(FaultyStore(watched, Fault("crash-before", "put", "*_s3commit/log/*")))
    lake.abort(A)(watched)
    assert watched.table() == set(), "a file of an aborted job is in the table"
    watched.check_at_rest()


def test_the_first_job_of_an_empty_dataset_leaves_nothing() -> None:
    """The log begins before a job completes a file: so that is never taken for one older than the log."""
    play_empty_dataset()


def _first(world: Callable[[], tuple[Lake, list[Actor]]], number: int = 0) -> tuple[Lake, Actor]:
    lake, actors = world()
    return lake, actors[number]


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_record_never_begins_after_the_end_of_its_job(end: str) -> None:
    """A setup that stops anywhere after its job's end leaves no record from which that end is not found."""
    calls = 20
    for nth, fault in product(range(1, calls), FAULTS):
        lake = Lake()
        lake.prepare(A, "append")
        (lake.commit if end == "commit" else lake.abort)(A)(lake.store)
        lake.prepare(B, "append")
        lake.commit(B)(lake.store)
        with suppress(S3CommitError, Crash):
            lake.set_up(A, "append")(FaultyStore(lake.store, Fault(fault, nth=nth)))
        assert not list(lake.store.list_objects(BUCKET, f"{ROOT}_s3commit/open/"))


def test_a_sealer_that_slept_hides_no_object() -> None:
    """A sealer that finds its job ended leaves its seal to whoever undoes a commit that went by it."""
    play_late_sealer()


@pytest.mark.parametrize("fails", ["write", "seek"])
def test_a_full_disk_ends_a_commit_before_its_entry(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the list of files cannot be kept, the error says that nothing happened, and what to do."""
    lake = _sealed("append")
    watched = Watched(lake)
    with monkeypatch.context() as patch:
        patch.setattr(_FullDisk, fails, _full)
        patch.setattr("airflow_s3commit.protocol.steps.files.SpooledTemporaryFile", _FullDisk)
        with pytest.raises(Unavailable, match=r"No space left on device.*TMPDIR"):
            lake.commit(A)(watched)
    assert len(watched.entries()) == 1
    lake.commit(A)(watched)
    watched.check_at_rest()


@pytest.mark.parametrize("fails", ["write", "seek"])
def test_a_full_disk_after_the_entry_is_no_failed_commit(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the list of what a commit takes cannot be read, the error says that the job is committed."""
    lake = Lake(older=False)
    lake.prepare(B, "append")
    watched = Watched(lake)
    lake.commit(B)(watched)
    lake.prepare(A, "replace")
    with monkeypatch.context() as patch:
        patch.setattr(_FullDisk, fails, _full)
        # The commit's own list comes first.
        files = chain([BytesIO], repeat(lambda: _FullDisk(0)))
        patch.setattr(
            "airflow_s3commit.protocol.steps.files.SpooledTemporaryFile", lambda max_size: next(files)()
        )
        with pytest.raises(OutcomeUnknown, match=r"is committed, as entry 3.*No space left on device"):
            lake.commit(A)(watched)
    lake.commit(A)(watched)
    watched.check_at_rest()


class _FullDisk(BytesIO):
    """A temporary file, some method of which a test makes fail."""

    def __init__(self, max_size: int) -> None:
        super().__init__()


def _full(*_: object) -> None:
    raise OSError(ENOSPC, strerror(ENOSPC))

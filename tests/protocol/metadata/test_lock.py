"""Of two jobs that must not publish at once one goes first, and a dead one is settled, not waited for.

Jobs with fixed names must not: they overwrite each other's files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from airflow_s3commit.exceptions import InvalidRecord, JobClosed, LockHeld, NoSuchJob, OutcomeUnknown
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.metadata import records
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.lock import CommitLock, release_lock, take_lock
from airflow_s3commit.protocol.model.job import LockRecord
from airflow_s3commit.protocol.model.progress import Progress
from tests.protocol.building import BUCKET, HOME, OURS, ROOT, THEIRS, Crash, Lake, named, once

KEY = f"{HOME}commit-lock.json"
LEASE = 60.0


def never(context: JobContext) -> None:
    """Settle nothing: nobody may be settled here."""
    raise AssertionError(f"{context.name} was settled")


def holder(lake: Lake) -> LockRecord | None:
    """Return who holds the lock."""
    stored = records.find(lake.store, BUCKET, KEY, LockRecord)
    return stored.record if stored is not None else None


def held_by(lake: Lake) -> str | None:
    """Return which job holds the lock."""
    lock = holder(lake)
    return lock.job_id if lock is not None else None


def take(
    lake: Lake, job_id: str = OURS, settle: Callable[[JobContext], None] = never, **changes: Any
) -> CommitLock:
    """Take the lock for a job."""
    return take_lock(lake.context(job_id, **changes), settle)


def test_a_free_lock_is_taken() -> None:
    """The lock says whose it is and where that job's state is, and is given back."""
    lake = Lake()
    take(lake)
    lock = holder(lake)
    assert lock is not None
    assert (lock.job_id, lock.lease) == (OURS, LEASE)
    assert lock.staging == f"s3://{BUCKET}/{ROOT}__magic_job-{OURS}/"
    release_lock(lake.context())
    assert holder(lake) is None
    release_lock(lake.context())


def test_only_the_holder_gives_it_back() -> None:
    """Releasing a lock that another job holds does nothing."""
    lake = Lake()
    take(lake)
    release_lock(lake.context(THEIRS))
    assert held_by(lake) == OURS


@pytest.mark.parametrize("seconds", [0.0, 1.0, 7.0, 600.0])
def test_a_living_job_is_waited_for(seconds: float) -> None:
    """Another job waits as long as it was told, by its own clock, and then says who is in its way."""
    lake = Lake()
    take(lake)
    before = lake.everything()
    with pytest.raises(LockHeld, match=f"job {OURS} .owner of {OURS}. holds the commit lock"):
        take(lake, THEIRS, lock_wait=seconds)
    assert sum(lake.clock.slept) == seconds
    assert lake.everything() == before


def test_a_lock_that_is_given_back_is_taken_by_who_waits() -> None:
    """Whoever waits takes the lock as soon as it looks again."""
    lake = Lake()
    take(lake)
    waiting = lake.clock.sleep

    def sleep(seconds: float) -> None:
        waiting(seconds)
        release_lock(lake.context())

    lake.clock.sleep = sleep  # type: ignore[method-assign]
    take(lake, THEIRS)
    assert held_by(lake) == THEIRS
    assert len(lake.clock.slept) == 1


def test_a_lock_lapses_by_the_store_s_clock() -> None:
    """However long this machine believes it waited, only the store's clock lets a lock lapse."""
    lake = Lake()
    take(lake)
    lake.clock.advance(1e9)
    with pytest.raises(LockHeld):
        take(lake, THEIRS, lock_wait=300.0)
    lake.store_clock.advance(LEASE + 1)
    with pytest.raises(LockHeld):
        take(lake, THEIRS, lock_wait=300.0)
    lake.store_clock.advance(1)
    settled: list[str] = []
    lake.clock.slept.clear()
    take(lake, THEIRS, lambda context: settled.append(context.job_id))
    assert settled == [OURS]
    assert held_by(lake) == THEIRS
    assert lake.clock.slept == []


def test_the_holder_s_lease_counts() -> None:
    """A lock lapses after the lease of who took it, not of who wants it."""
    lake = Lake()
    take(lake, lease=1000.0)
    lake.store_clock.advance(900)
    with pytest.raises(LockHeld):
        take(lake, THEIRS, lock_wait=0.0, lease=1.0)


def test_the_settled_job_is_the_holder() -> None:
    """A dead holder is settled as the job that its own record describes, where its lock says."""
    lake = Lake()
    elsewhere = f"s3://other/private/__magic_job-{OURS}/"
    lake.set_up(staging="s3://other/private/")
    record = LockRecord(job_id=OURS, staging=elsewhere, owner="o", lease=1.0, nonce="n")
    records.create(lake.store, BUCKET, KEY, record)
    lake.store_clock.advance(3)
    settled: list[JobContext] = []
    take(lake, THEIRS, settled.append)
    (context,) = settled
    assert (context.job_id, context.layout.staging.uri) == (OURS, elsewhere)
    assert context.layout.destination.uri == lake.destination


def test_a_holder_that_cannot_be_settled_keeps_its_lock() -> None:
    """If a dead job cannot be brought to an end, its lock is not taken."""
    lake = Lake()
    take(lake)
    lake.store_clock.advance(LEASE + 2)

    def fail(_: JobContext) -> None:
        raise OutcomeUnknown("lost")

    with pytest.raises(OutcomeUnknown):
        take(lake, THEIRS, fail)
    assert held_by(lake) == OURS


def test_of_two_that_find_it_lapsed_one_takes_it() -> None:
    """If a third job takes a lapsed lock while its holder is settled, the slower one waits."""
    lake = Lake()
    take(lake)
    lake.store_clock.advance(LEASE + 2)

    def overtaken(_: JobContext) -> None:
        take(lake, "third", lambda _: None)

    with pytest.raises(LockHeld, match="job third"):
        take(lake, THEIRS, overtaken, lock_wait=1.0)
    assert held_by(lake) == "third"


def test_a_lease_is_renewed_after_a_third_of_it() -> None:
    """The holder renews when a third of its lease has passed by its own clock, and not before."""
    lake = Lake()
    lock = take(lake)
    first = holder(lake)
    lake.clock.advance(LEASE / 3 - 1)
    assert lock.renew_if_due()
    assert holder(lake) == first
    lake.clock.advance(1)
    lake.store_clock.advance(50)
    assert lock.renew_if_due()
    assert holder(lake) != first
    lake.store_clock.advance(50)
    with pytest.raises(LockHeld):
        take(lake, THEIRS, lock_wait=0.0)


def test_a_lock_that_was_taken_over_is_not_renewed() -> None:
    """A holder that slept through its lease finds out when it renews, and the new holder keeps the lock."""
    lake = Lake()
    lock = take(lake)
    for clock in (lake.clock, lake.store_clock):
        clock.advance(LEASE + 2)
    take(lake, THEIRS, lambda _: None)
    assert not lock.renew_if_due()
    assert held_by(lake) == THEIRS


def test_a_lapsed_lock_that_nobody_took_is_renewed() -> None:
    """A holder that slept through its lease keeps the lock if nobody wanted it."""
    lake = Lake()
    lock = take(lake)
    for clock in (lake.clock, lake.store_clock):
        clock.advance(10 * LEASE)
    assert lock.renew_if_due()
    assert held_by(lake) == OURS


def test_a_lock_that_is_gone_is_not_renewed() -> None:
    """If someone removed the lock, its holder is told that it has none."""
    lake = Lake()
    lock = take(lake)
    lake.store.delete(BUCKET, KEY)
    lake.clock.advance(LEASE)
    assert not lock.renew_if_due()


def test_two_processes_of_a_job_share_its_lock() -> None:
    """A second process of the same job takes the lock without waiting, and the first one still has it."""
    lake = Lake()
    first = take(lake, owner="first")
    second = take(lake, owner="second")
    assert lake.clock.slept == []
    for _ in range(3):
        lake.clock.advance(LEASE / 2)
        assert first.renew_if_due()
        assert second.renew_if_due()
    assert held_by(lake) == OURS


@pytest.mark.parametrize("owner", ["first", "second"])
def test_taking_it_again_begins_a_new_lease(owner: str) -> None:
    """Whichever process of a job takes its lock again, the lease counts from then."""
    lake = Lake()
    take(lake, owner="first")
    lake.store_clock.advance(LEASE - 10)
    take(lake, owner=owner)
    lake.store_clock.advance(LEASE - 10)
    with pytest.raises(LockHeld):
        take(lake, THEIRS, lock_wait=0.0)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_lost_answer_while_taking_is_settled(moment: str) -> None:
    """A lost answer leaves either the lock in hand, or an honest error and a lock that may be taken again."""
    lake = Lake()
    setattr(lake.store, moment, once("put", KEY, OutcomeUnknown("lost")))
    if moment == "after":
        take(lake)
    else:
        with pytest.raises(OutcomeUnknown):
            take(lake)
        take(lake)
    assert held_by(lake) == OURS


def test_a_lock_that_cannot_be_read_is_not_taken() -> None:
    """Something unreadable in the lock's place stops every job, and is not overwritten."""
    lake = Lake()
    lake.store.put(BUCKET, KEY, b"{")
    with pytest.raises(InvalidRecord, match=r"lock\.json"):
        take(lake)
    assert lake.get(KEY) == b"{"


@pytest.mark.parametrize("mode", ["append", "fail", "replace"])
def test_jobs_with_unique_names_take_no_lock(mode: str) -> None:
    """The log orders jobs with unique names: they commit although another job holds the lock."""
    lake = Lake()
    take(lake)
    lake.sealed({"a": b"1"}, job_id=THEIRS, conflict_mode=mode).commit()
    assert lake.data() == {named("a", THEIRS): b"1"}
    assert held_by(lake) == OURS


@pytest.mark.parametrize(
    "options", [{"unique_filenames": False}, {"replace_order": "delete-then-publish"}], ids=str
)
def test_what_destroys_old_data_first_waits_for_the_lock(options: dict[str, Any]) -> None:
    """A job that overwrites, or that deletes before it publishes, does not begin beside another such job."""
    lake = Lake()
    lake.put({"old": b"old"})
    take(lake)
    lake.sealed({"a": b"1"}, job_id=THEIRS, **options)
    with pytest.raises(LockHeld):
        lake.job(THEIRS, lock_wait=0.0).commit()
    assert lake.data() == {"old": b"old"}


# Helping the dead: what becomes of a job that died with the lock, by the state that it died in.

OLD = {"dt=1/old": b"old"}
NEW = {"dt=1/a": b"1", "dt=1/b": b"2"}
THEIR_NEW = {"dt=1/theirs": b"t"}


def sealed(lake: Lake, files: Mapping[str, bytes], job_id: str = OURS, **options: Any) -> Job:
    """Return a sealed job that takes the lock: its files have fixed names."""
    return lake.sealed(files, job_id=job_id, unique_filenames=False, **options)


def dead(state: str) -> Lake:
    """Return a lake where this job died in a state, holding the lock, and its lease is over."""
    lake = Lake()
    lake.put({**OLD, "_SUCCESS": b"marker"})
    job = lake.set_up(unique_filenames=False)
    lake.run_stage(job, NEW)
    if state != "open":
        job.seal()
    if state in ("open", "sealed"):
        take(lake)
    else:
        verb, ending = {
            "committing": ("complete_upload", "dt=1/b"),
            "aborting": ("complete_upload", "dt=1/b"),
            "committed": ("put", f"{OURS}.json"),
        }[state]
        lake.store.die(verb, ending)
        with pytest.raises(Crash):
            job.commit()
        lake.store.rest()
    if state == "aborting":
        lake.store.die("delete", "dt=1/a")
        with pytest.raises(Crash):
            lake.job().abort()
        lake.store.rest()
    standing = lake.job().state()
    assert standing is not None
    assert standing.state == state
    assert held_by(lake) == OURS
    lake.store_clock.advance(LEASE + 2)
    return lake


def their_commit(lake: Lake) -> Job:
    """Commit the other job, which finds the lock lapsed."""
    job = sealed(lake, THEIR_NEW, THEIRS)
    job.commit()
    assert holder(lake) is None
    assert THEIRS.encode() in lake.get(f"{ROOT}_SUCCESS")
    return job


@pytest.mark.parametrize("state", ["open", "sealed"])
def test_a_holder_that_had_not_begun_is_fenced_off(state: str) -> None:
    """A dead job that published nothing stays as it is, but has to ask for the lock again."""
    lake = dead(state)
    before = lake.job().state()
    assert before is not None
    their_commit(lake)
    after = lake.job().state()
    assert after is not None
    assert (after.state, after.nonce == before.nonce) == (state, False)
    assert lake.data() == THEIR_NEW
    if state == "open":
        lake.job().seal()
    lake.job().commit()
    assert lake.data() == NEW
    assert lake.pending() == []


def test_a_holder_that_was_committing_is_finished() -> None:
    """A job that died while it published is finished first; the other one then replaces what it published."""
    lake = dead("committing")
    their_commit(lake)
    manifest = lake.job().manifest()
    assert manifest is not None
    assert manifest.counts.files == 2
    assert lake.data() == THEIR_NEW
    assert (lake.pending(), lake.staging()) == ([], [])
    assert lake.job().commit() == manifest


def test_a_holder_that_had_entered_the_log_is_finished() -> None:
    """A job that died after its entry in the log, and before its state followed, is committed."""
    lake = Lake()
    lake.put(OLD)
    job = sealed(lake, NEW)
    lake.store.die("put", "log/00000000000000000002.json", after=True)
    with pytest.raises(Crash):
        job.commit()
    lake.store.rest()
    lake.store_clock.advance(LEASE + 2)
    sealed(lake, {"dt=2/theirs": b"t"}, THEIRS).commit()
    manifest = lake.job().manifest()
    assert manifest is not None
    assert manifest.generation == 2
    assert lake.data() == {**NEW, "dt=2/theirs": b"t"}
    assert (lake.pending(), lake.staging()) == ([], [])


def test_a_holder_that_cannot_be_finished_is_rolled_back() -> None:
    """A job that died while it published, and lost an upload since, is rolled back first."""
    lake = dead("committing")
    for upload in list(lake.store.list_uploads(BUCKET, "")):
        lake.store.abort_upload(BUCKET, upload.key, upload.upload_id)
    theirs = sealed(lake, {"dt=2/theirs": b"t"}, THEIRS)
    theirs.commit()
    assert lake.job().manifest() is None
    assert lake.data() == {**OLD, "dt=2/theirs": b"t"}
    with pytest.raises((NoSuchJob, JobClosed)):
        lake.job().commit()


def test_a_holder_that_was_aborting_is_aborted() -> None:
    """A job that died while it was rolled back is rolled back first."""
    lake = dead("aborting")
    theirs = sealed(lake, {"dt=2/theirs": b"t"}, THEIRS)
    theirs.commit()
    assert lake.job().manifest() is None
    assert lake.data() == {**OLD, "dt=2/theirs": b"t"}
    assert (lake.pending(), lake.staging()) == ([], [])
    with pytest.raises((NoSuchJob, JobClosed)):
        lake.job().commit()


def test_a_holder_that_had_committed_is_finished() -> None:
    """A job that died after its point of no return gets its manifest, and its old data removed."""
    lake = dead("committed")
    theirs = sealed(lake, {"dt=2/theirs": b"t"}, THEIRS)
    theirs.commit()
    manifest = lake.job().manifest()
    assert manifest is not None
    assert lake.data() == {**NEW, "dt=2/theirs": b"t"}
    assert (lake.pending(), lake.staging()) == ([], [])
    assert THEIRS.encode() in lake.get(f"{ROOT}_SUCCESS")


@pytest.mark.parametrize("state", ["open", "sealed", "committing", "aborting", "committed"])
def test_a_holder_within_its_lease_is_not_touched(state: str) -> None:
    """A job whose lease is not over is not helped, whatever its state: it may be alive."""
    lake = dead(state)
    lake.store_clock.advance(-(LEASE + 2))
    sealed(lake, THEIR_NEW, THEIRS)
    lake.store.calls.clear()
    visible, ours = lake.visible(), lake.staging()
    with pytest.raises(LockHeld):
        lake.job(THEIRS, lock_wait=10.0).commit()
    assert (lake.visible(), lake.staging()) == (visible, ours)
    assert held_by(lake) == OURS


@pytest.mark.parametrize("state", ["committing", "committed"])
def test_a_committer_that_wakes_up_does_no_harm(state: str) -> None:
    """A committer that slept through its lease, and was helped, returns the manifest and changes nothing."""
    lake = Lake()
    lake.put(OLD)
    job = sealed(lake, NEW)
    verb, ending = ("complete_upload", "dt=1/b") if state == "committing" else ("put", f"{OURS}.json")
    after: dict[str, Any] = {}

    def sleep() -> None:
        lake.store.rest()
        for clock in (lake.clock, lake.store_clock):
            clock.advance(LEASE + 2)
        their_commit(lake)
        after.update(lake.visible())

    lake.store.before = once(verb, ending, sleep)
    manifest = job.commit()
    assert manifest == lake.job().manifest()
    assert lake.visible() == after
    assert lake.data() == THEIR_NEW
    assert (lake.pending(), lake.staging(), holder(lake)) == ([], [], None)


def test_a_committer_whose_lock_was_removed_goes_on() -> None:
    """If someone removes the lock by hand, its holder takes it again and finishes."""
    lake = Lake()
    job = sealed(lake, {f"dt=1/{n}": b"1" for n in range(3)})
    removed: list[bool] = []

    def remove(progress: Progress) -> None:
        if progress.files_done == 1 and not removed:
            removed.append(True)
            lake.store.delete(BUCKET, KEY)
            lake.clock.advance(LEASE / 2)

    assert job.commit(progress=remove).counts.files == 3
    assert len(lake.data()) == 3
    assert holder(lake) is None


def test_two_jobs_on_one_partition_end_as_one_after_the_other() -> None:
    """A job that is sealed and planned before another one commits replaces that one's output, or is told."""
    lake = Lake()
    lake.put(OLD)
    ours, theirs = sealed(lake, NEW), sealed(lake, THEIR_NEW, THEIRS)
    theirs.commit()
    ours.commit()
    assert lake.data() == NEW

"""A job changes its state by compare-and-swap, and every process sees the state."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_s3commit.exceptions import AlreadyCommitted, InvalidRecord, JobClosed, NoSuchJob, OutcomeUnknown
from airflow_s3commit.protocol.metadata.manifests import find_manifest
from airflow_s3commit.protocol.metadata.state import (
    first_state,
    move,
    read_state,
    replace_state,
    require_state,
)
from tests.protocol.building import BUCKET, OURS, THEIRS, Lake, once

FILES = {"dt=1/a": b"new"}


def at(lake: Lake, state: Any) -> None:
    """Put the job into a state."""
    standing = read_state(lake.context())
    assert standing is not None
    assert move(lake.context(), standing, state) is not None


def test_a_job_begins_open() -> None:
    """Its first state is open: nothing has begun."""
    first = first_state(Lake().context())
    assert (first.state, first.attempt, first.begun) == ("open", 0, False)
    assert first.seal_etag is first.plan_etag is first.saved_success is None


def test_of_two_concurrent_moves_one_succeeds() -> None:
    """The loser gets an error and changes nothing."""
    lake = Lake()
    lake.set_up()
    one, two = lake.context(owner="one"), lake.context(owner="two")
    seen_by_one, seen_by_two = read_state(one), read_state(two)
    assert seen_by_one is not None
    assert seen_by_two is not None
    moved = move(one, seen_by_one, "sealed", seal_etag="e")
    assert moved is not None
    assert (moved.record.owner, moved.record.attempt, moved.record.seal_etag) == ("one", 1, "e")
    assert move(two, seen_by_two, "aborting") is None
    assert read_state(two) == read_state(one)
    standing = read_state(two)
    assert standing is not None
    assert (standing.record.state, standing.record.owner) == ("sealed", "one")


def test_a_move_to_the_same_state_fences_off_readers_of_the_old_record() -> None:
    """A move changes the record even if the state stays the same, and keeps what it does not set."""
    lake = Lake()
    lake.set_up()
    at(lake, "sealed")
    old = read_state(lake.context())
    assert old is not None
    fenced = move(lake.context(), old, "sealed")
    assert fenced is not None
    assert fenced.record.nonce != old.record.nonce
    assert move(lake.context(), old, "committing") is None
    assert (fenced.record.state, fenced.record.seal_etag) == ("sealed", old.record.seal_etag)


def test_a_lost_answer_to_a_move_is_resolved_by_a_read() -> None:
    """The mover recognises its own record; if the old one is still stored, the outcome is unknown."""
    lake = Lake()
    lake.set_up()
    lake.store.after = once("put", "state.json", OutcomeUnknown("lost"))
    at(lake, "sealed")
    lake.store.before = once("put", "state.json", OutcomeUnknown("lost"))
    with pytest.raises(OutcomeUnknown):
        at(lake, "committing")
    standing = read_state(lake.context())
    assert standing is not None
    assert standing.record.state == "sealed"


@pytest.mark.parametrize("state", ["open", "sealed", "committing", "committed", "aborting", "aborted"])
def test_a_step_names_its_states(state: Any) -> None:
    """A step proceeds in the states it names, and is refused in all others, by their type."""
    lake = Lake()
    lake.set_up()
    at(lake, state)
    assert require_state(lake.context(), "open", state).record.state == state
    with pytest.raises(AlreadyCommitted if state == "committed" else JobClosed, match=OURS):
        require_state(lake.context(), "open" if state != "open" else "sealed")


def test_an_unknown_job_is_not_found() -> None:
    """Without a state and without a manifest there is no such job."""
    lake = Lake()
    assert read_state(lake.context()) is None
    assert find_manifest(lake.context()) is None
    with pytest.raises(NoSuchJob, match="never set up"):
        require_state(lake.context(), "open")


def test_a_job_that_committed_is_known_by_its_manifest() -> None:
    """After its staging is gone, the manifest says that it committed."""
    lake = Lake()
    lake.sealed(FILES).commit()
    assert read_state(lake.context()) is None
    assert find_manifest(lake.context()) is not None
    with pytest.raises(AlreadyCommitted, match="see its manifest"):
        require_state(lake.context(), "open")


def test_another_job_s_state_is_refused() -> None:
    """A state record that names another job is invalid, not this job's state."""
    lake = Lake()
    lake.set_up()
    lake.set_up(THEIRS)
    theirs, ours = lake.context(THEIRS).layout.state, lake.context().layout.state
    lake.store.put(BUCKET, ours, lake.get(theirs))
    before = lake.everything()
    with pytest.raises(InvalidRecord, match=f"is of job {THEIRS}"):
        read_state(lake.context())
    for step in (lake.job().seal, lake.job().plan, lake.job().commit, lake.job().abort):
        with pytest.raises(InvalidRecord):
            step()
    assert lake.everything() == before


@pytest.mark.parametrize("cut", [1, 20, 10_000])
def test_a_damaged_state_stops_every_step(cut: int) -> None:
    """A state that cannot be read is not taken for an absent one: nothing is lost, nothing proceeds."""
    lake = Lake()
    lake.put({"dt=1/old": b"old"})
    lake.sealed(FILES)
    lake.tamper(lake.context().layout.state, cut=cut)
    before = lake.everything()
    for step in (lake.job().plan, lake.job().commit, lake.job().abort):
        with pytest.raises(InvalidRecord):
            step()
    assert lake.everything() == before


def test_a_damaged_state_that_another_process_rewrites_meanwhile_is_left() -> None:
    """Only the bytes that were found damaged are overwritten."""
    lake = Lake()
    lake.set_up()
    key = lake.context().layout.state
    whole = lake.get(key)
    lake.tamper(key, cut=5)

    def meanwhile() -> None:
        lake.store.rest()
        lake.store.put(BUCKET, key, whole)

    lake.store.before = once("put", "state.json", meanwhile)
    assert replace_state(lake.context(), "aborting") is None
    assert lake.get(key) == whole

"""Adopt lists, describes, finishes or discards Hadoop's jobs; nothing happens without ``--apply``."""

from __future__ import annotations

import pytest

from airflow_s3commit.cli import store_options
from tests.cli.conftest import RunProgram, plain_json
from tests.protocol.hadoop.dead_jobs import UUID, DeadJob

DEST = "s3a://lake/sales/"


@pytest.fixture
def dead(monkeypatch: pytest.MonkeyPatch) -> DeadJob:
    """Return a dead job of the magic committer, on the store that every command opens."""
    made = DeadJob.magic()
    monkeypatch.setattr(store_options, "open_store", lambda _: made.store)
    return made


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> DeadJob:
    """Return a dead job of a staging committer."""
    made = DeadJob.staging()
    monkeypatch.setattr(store_options, "open_store", lambda _: made.store)
    return made


def test_the_jobs_are_listed(dead: DeadJob, run: RunProgram) -> None:
    """The list has the tasks, uploads and bytes of each and changes nothing."""
    before = dead.everything()
    result = run("adopt", DEST)
    assert result.exit_code == 0
    assert UUID in result.stdout
    told = plain_json(run("adopt", DEST, "--json"))
    assert [(job["pendingsets"], job["uploads"], job["others"]) for job in told["jobs"]] == [(3, 3, 1)]
    assert dead.everything() == before


@pytest.mark.parametrize("verb", ["--commit", "--abort"])
def test_a_dry_run_is_the_default(dead: DeadJob, run: RunProgram, verb: str) -> None:
    """It says what would be done and changes nothing."""
    before = dead.everything()
    result = run("adopt", DEST, UUID, verb)
    assert result.exit_code == 0
    assert "dry run: nothing was changed" in result.stdout
    told = plain_json(run("adopt", DEST, UUID, verb, "--json"))
    assert (told["would"], told["job"]["uploads"]) == (verb.removeprefix("--"), 3)
    assert dead.everything() == before


def test_a_job_is_finished(dead: DeadJob, run: RunProgram) -> None:
    """Every committed file is visible, nothing stays pending, and a second run says the same."""
    for _ in range(2):
        told = plain_json(run("adopt", DEST, UUID, "--commit", "--apply", "--json"))
        assert (told["result"], told["files"]) == ("committed", 3)
    assert dead.visible() == dead.contents
    assert dead.pending_keys() == []


def test_a_job_is_discarded(dead: DeadJob, run: RunProgram) -> None:
    """No upload of it is left."""
    result = run("adopt", DEST, UUID, "--abort", "--apply")
    assert result.exit_code == 0
    assert "4 uploads discarded" in result.stdout
    assert (dead.visible(), dead.pending_keys()) == ({}, [])


def test_pendingsets_elsewhere_are_adopted(staged: DeadJob, run: RunProgram) -> None:
    """The id comes from the directory's path, and without the directory nothing is found."""
    assert "add --pendingsets" in run("adopt", DEST).stdout
    where = ("--pendingsets", staged.pendingsets_uri)
    assert plain_json(run("adopt", DEST, *where, "--json"))["jobs"][0]["uploads"] == 3
    assert "complete 3 uploads" in run("adopt", DEST, *where, "--commit").stdout
    assert run("adopt", DEST, *where, "--commit", "--apply").exit_code == 0
    assert staged.visible() == staged.contents


def test_a_person_is_asked(dead: DeadJob, run: RunProgram) -> None:
    """Answering no changes nothing."""
    before = dead.everything()
    assert run("adopt", DEST, UUID, "--abort", "--apply", typed="n\n").exit_code == 1
    assert dead.everything() == before


def test_damage_and_gaps_are_doubts(dead: DeadJob, run: RunProgram) -> None:
    """An unreadable file and a missing task are reported before a commit."""
    keys = [key for key in dead.keys("sales/__magic_job") if key.endswith(".pendingset")]
    dead.store.delete("lake", keys[1])
    dead.put(keys[0], b"{")
    result = run("adopt", DEST, UUID, "--commit")
    assert result.exit_code == 1
    assert "have no pendingset" in result.stdout
    assert keys[0] in result.stdout
    assert run("adopt", DEST, UUID, "--commit", "--apply").exit_code == 3


def test_the_number_of_tasks_can_be_required(dead: DeadJob, run: RunProgram) -> None:
    """A caller that knows the number accepts no fewer."""
    before = dead.everything()
    result = run("adopt", DEST, UUID, "--commit", "--apply", "--expect-tasks", "4")
    assert result.exit_code == 3
    assert dead.everything() == before


def test_a_missing_job_is_a_finding(dead: DeadJob, run: RunProgram) -> None:
    """A dry run ends with exit code 1, and a real one is refused."""
    assert run("adopt", DEST, "unknown", "--commit").exit_code == 1
    assert run("adopt", DEST, "unknown", "--commit", "--apply").exit_code == 3
    assert dead.pending_keys()


@pytest.mark.parametrize(
    "args",
    [("--apply",), ("--commit",), (UUID, "--commit", "--abort")],
)
def test_contradictions_are_mistakes(dead: DeadJob, run: RunProgram, args: tuple[str, ...]) -> None:
    """The action and its job must each be named once."""
    before = dead.everything()
    assert run("adopt", DEST, *args).exit_code == 2
    assert dead.everything() == before

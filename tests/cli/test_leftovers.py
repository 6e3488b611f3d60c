"""Sweep and adopt say what they would do, do it with ``--apply``, and report failures."""

from __future__ import annotations

import pytest

from airflow_s3commit import Destination, register_destination
from airflow_s3commit.cli import store_options
from airflow_s3commit.exceptions import Unavailable
from airflow_s3commit.protocol.metadata.registry import read_registry
from airflow_s3commit.testing import StoreCall
from tests.cli.conftest import FILES, RunProgram, plain_json
from tests.protocol.building import OURS, THEIRS, Crash, Lake, an_id
from tests.protocol.hadoop.dead_jobs import UUID, DeadJob

DAY = 86_400.0


@pytest.fixture
def littered(lake: Lake) -> Lake:
    """Return a lake with a dead job, an orphan, and a job left in its commit, all two days old."""
    lake.run_task(lake.set_up(), FILES)
    lake.stray()
    lake.sealed({"dt=9/x.parquet": b"9", "dt=9/y.parquet": b"9"}, job_id=THEIRS)
    lake.store.die("complete_upload", after=True)
    with pytest.raises(Crash):
        lake.job(THEIRS).commit()
    lake.store.rest()
    lake.store_clock.advance(2 * DAY)
    return lake


def test_a_sweep_is_a_dry_run_unless_told_otherwise(littered: Lake, run: RunProgram) -> None:
    """It names jobs, orphans, bytes and cost, and changes nothing."""
    before = littered.everything()
    result = run("sweep", littered.destination, "--older-than", "1d")
    assert result.exit_code == 0
    assert littered.everything() == before
    assert "dry run: nothing was changed" in result.stdout
    assert OURS in result.stdout
    assert THEIRS in result.stdout
    assert "dt=1/stray.parquet" in result.stdout
    assert "4 uploads, 16 B" in result.stdout


def test_a_job_id_is_not_folded_on_a_narrow_terminal(littered: Lake, run: RunProgram) -> None:
    """On 80 columns no line is longer, and each id can be copied."""
    shown = run("sweep", littered.destination, "--older-than", "1d", COLUMNS="80").stdout
    assert OURS in shown
    assert THEIRS in shown
    table = shown.partition("total:")[0]
    assert max(map(len, table.splitlines())) <= 80


def test_apply_removes_what_was_named_and_no_more(littered: Lake, run: RunProgram) -> None:
    """The dead jobs are aborted, with what one has published, and the orphan is gone; the living is left."""
    alive = an_id("alive")
    littered.sealed({"dt=8/x.parquet": b"8"}, job_id=alive)
    result = run("sweep", littered.destination, "--older-than", "1d", "--apply")
    assert result.exit_code == 0
    assert "swept: 2 jobs ended (" in result.stdout
    assert "1 object taken back), 1 orphan discarded (5 B)" in result.stdout
    assert f"left alone: job {alive}" in result.stdout
    assert (len(littered.pending()), littered.data()) == (1, {})
    assert (littered.staging(OURS), littered.staging(THEIRS)) == ([], [])
    again = run("sweep", littered.destination, "--older-than", "1d", "--apply")
    assert "nothing to sweep" in again.stdout


def test_what_is_recent_is_left(littered: Lake, run: RunProgram) -> None:
    """A week of silence is required, and two days have passed."""
    told = plain_json(run("sweep", littered.destination, "--older-than", "1w", "--json"))
    assert (told["dry_run"], told["plan"]["jobs"], told["plan"]["uploads"]) == (True, [], [])


def test_json_has_the_plan_and_its_outcome(littered: Lake, run: RunProgram) -> None:
    """One object has the plan with totals and exact ages, and the report."""
    told = plain_json(run("sweep", littered.destination, "--older-than", "36h", "--apply", "--json"))
    assert told["plan"]["older_than"] == 36 * 3600.0
    assert (told["plan"]["pending"], told["plan"]["bytes"]) == (4, 16)
    assert told["plan"]["uploads"][0]["age"] == 2 * DAY
    assert [job["job_id"] for job in told["jobs"]] == [OURS, THEIRS]
    assert (told["dry_run"], told["uploads"], told["failures"]) == (False, 1, [])


def test_a_person_is_asked_first(littered: Lake, run: RunProgram) -> None:
    """The plan is shown before the question, and no leaves everything."""
    before = littered.everything()
    result = run("sweep", littered.destination, "--older-than", "1d", "--apply", typed="n\n")
    assert result.exit_code == 1
    assert OURS in result.stdout
    assert "End 2 jobs and discard 4 uploads?" in result.stderr
    assert littered.everything() == before
    run("sweep", littered.destination, "--older-than", "1d", "--apply", typed="y\n")
    assert littered.staging(OURS) == []


def test_what_could_not_be_removed_is_a_finding(littered: Lake, run: RunProgram) -> None:
    """The rest is still done, with exit code 1 and the error by name."""

    def refuse(call: StoreCall) -> None:
        if call.verb == "abort_upload" and call.key.endswith("stray.parquet"):
            raise Unavailable("slow down")

    littered.store.before = refuse
    result = run("sweep", littered.destination, "--older-than", "1d", "--apply")
    assert result.exit_code == 1
    assert "FAILED: upload" in result.stdout
    assert "2 jobs ended" in result.stdout


@pytest.mark.parametrize("args", [(), ("--older-than", "soon")])
def test_a_sweep_requires_an_age(lake: Lake, run: RunProgram, args: tuple[str, ...]) -> None:
    """There is no default age, and no guess at a wrong one."""
    assert run("sweep", lake.destination, *args).exit_code == 2


def test_a_registry_is_swept_by_each_destinations_own_records(littered: Lake, run: RunProgram) -> None:
    """A prefix without records of jobs is left alone, and one that is gone leaves the registry."""
    registry, foreign = "s3://lake/registry/", "s3://lake/other-program/"
    littered.store.create_upload("lake", "other-program/part-0", metadata={}, content_type="text/plain")
    for destination in (littered.destination, foreign, "s3://lake/gone/"):
        register_destination(littered.store, registry, destination)
    littered.store_clock.advance(2 * DAY)
    pending = len(littered.pending())
    dry = run("sweep", "--registry", registry, "--older-than", "1d")
    assert dry.exit_code == 0
    assert OURS in dry.stdout
    assert "1 destination of 1 to sweep: 4 uploads" in dry.stdout
    assert "nothing is left of: s3://lake/gone/" in dry.stdout
    assert f"left alone: {foreign} has no records of jobs" in dry.stderr
    assert len(littered.pending()) == pending
    told = plain_json(run("sweep", "--registry", registry, "--older-than", "1d", "--apply", "--json"))
    assert [sweep["plan"]["destination"] for sweep in told["sweeps"]] == [littered.destination]
    assert told["forgotten"] == ["s3://lake/gone/"]
    assert littered.staging(OURS) == []
    assert list(littered.store.list_uploads("lake", "other-program/"))
    left = read_registry(littered.store, Destination.parse(registry))
    assert {entry.record.destination for entry in left} == {littered.destination, foreign}


def test_a_destination_that_fails_does_not_stop_the_others(littered: Lake, run: RunProgram) -> None:
    """It is a finding, and the others are swept."""
    registry = "s3://lake/registry/"
    for destination in ("s3://no-such-bucket/x/", littered.destination):
        register_destination(littered.store, registry, destination)
    result = run("sweep", "--registry", registry, "--older-than", "1d", "--apply")
    assert result.exit_code == 1
    assert "FAILED: s3://no-such-bucket/x/" in result.stdout
    assert littered.staging(OURS) == []


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

"""Verify: exit code 0 where all is as it should be, 1 with what is not by name."""

from __future__ import annotations

import pytest

from tests.cli.conftest import FILES, RunProgram, plain_json
from tests.protocol.building import BUCKET, HOME, OURS, ROOT, THEIRS, Crash, Lake, an_id, named


def test_a_commit_that_stands_is_sound(lake: Lake, run: RunProgram) -> None:
    """The table is checked if no job is named; nothing is changed."""
    lake.sealed(FILES).commit()
    before = lake.everything()
    result = run("verify", lake.destination)
    assert (result.exit_code, "the table is as it was committed" in result.stdout) == (0, True)
    for job in ((OURS,), ("--job", OURS)):
        result = run("verify", lake.destination, *job)
        assert result.exit_code == 0
        assert "matches the manifest" in result.stdout
    assert lake.everything() == before


def test_a_table_is_named_with_what_lies_beside_it(lake: Lake, run: RunProgram) -> None:
    """Missing, changed, foreign, left over and unfinished objects; each job's next step."""
    lake.sealed(FILES).commit()
    lake.set_up(THEIRS).abort()
    unfinished = lake.sealed({"dt=3/part-0.parquet": b"new"}, job_id=an_id("unfinished"))
    lake.store.die("complete_upload", after=True)
    with pytest.raises(Crash):
        unfinished.commit()
    lake.store.rest()
    lake.store.delete(BUCKET, ROOT + named("dt=1/part-0.parquet"))
    lake.put({named("dt=2/part-0.parquet"): b"changed", "dt=2/foreign.parquet": b"x"})
    lake.put({named("dt=1/late.parquet", THEIRS): b"late"})
    result = run("verify", lake.destination)
    assert result.exit_code == 1
    for words in (
        "the table is NOT as it was committed",
        f"missing: {ROOT}{named('dt=1/part-0.parquet')}",
        f"changed: {ROOT}{named('dt=2/part-0.parquet')}",
        f"left over: {ROOT}{named('dt=1/late.parquet', THEIRS)}: 4 B, of job {THEIRS}",
        "foreign: flights/dt=2/foreign.parquet: 1 B",
        f"unfinished: {ROOT}{named('dt=3/part-0.parquet', an_id('unfinished'))}",
    ):
        assert words in result.stdout
    for words in (
        f"show {lake.destination} {an_id('unfinished')}",
        f"sweep {lake.destination}",
        f"log {lake.destination}",
        "find out which program wrote the foreign objects",
    ):
        assert words in result.stdout.replace("\n", " ")
    told = plain_json(run("verify", lake.destination, "--json"))
    assert (told["kind"], told["sound"], told["complete"], told["exclusive"]) == (
        "table",
        False,
        False,
        False,
    )
    assert told["missing"] == [ROOT + named("dt=1/part-0.parquet")]


def test_damaged_records_lead_to_repair(lake: Lake, run: RunProgram) -> None:
    """A marker that is missing is a finding, whose next step is the dry run of a repair."""
    lake.sealed(FILES).commit()
    assert "repair" not in run("verify", lake.destination).stdout
    lake.store.delete(BUCKET, f"{ROOT}_SUCCESS")
    assert f"s3commit repair {lake.destination}" in run("verify", lake.destination).stdout.replace("\n", " ")


def test_an_older_generation_is_checked(lake: Lake, run: RunProgram) -> None:
    """What a later commit replaced is counted, and is no problem; both a job and a generation are misuse."""
    lake.sealed(FILES).commit()
    lake.sealed({"dt=2/part-1.parquet": b"x"}, job_id=THEIRS).commit()
    result = run("verify", lake.destination, "--generation", "1")
    assert (result.exit_code, "replaced since" in result.stdout) == (0, True)
    assert run("verify", lake.destination, "--generation", "3").exit_code == 4
    assert run("verify", lake.destination, OURS, "--generation", "1").exit_code == 2
    assert run("verify", lake.destination, OURS, "--job", THEIRS).exit_code == 2


def test_a_damaged_log_is_named(lake: Lake, run: RunProgram) -> None:
    """Findings in the log are listed, with what puts each right; the exit code is 1."""
    lake.sealed(FILES).commit()
    lake.tamper(f"{HOME}log/{1:020d}.json", cut=1)
    result = run("verify", lake.destination)
    assert result.exit_code == 1
    assert "not known: the log is damaged" in result.stdout
    assert f"log: s3://lake/{HOME}log/{1:020d}.json: " in result.stdout


def test_what_is_missing_changed_or_foreign_of_a_job_is_named(lake: Lake, run: RunProgram) -> None:
    """Each kind with its keys; exit code 1."""
    lake.sealed(FILES).commit()
    lake.store.delete(BUCKET, ROOT + named("dt=1/part-0.parquet"))
    lake.put({named("dt=2/part-0.parquet"): b"changed", "dt=2/foreign.parquet": b"x"})
    result = run("verify", lake.destination, OURS)
    assert result.exit_code == 1
    for words in (
        "does NOT match the manifest",
        "missing: ",
        "changed: ",
        "foreign: flights/dt=2/foreign.parquet",
    ):
        assert words in result.stdout
    told = plain_json(run("verify", lake.destination, OURS, "--json"))
    assert (told["kind"], told["sound"], told["complete"], told["exclusive"]) == (
        "committed",
        False,
        False,
        False,
    )
    assert told["missing"] == [ROOT + named("dt=1/part-0.parquet")]


def test_many_findings_are_cut_and_counted(lake: Lake, run: RunProgram) -> None:
    """Twenty names are enough for a person."""
    lake.sealed(FILES).commit()
    lake.put({f"dt=1/foreign-{n:02d}.parquet": b"x" for n in range(30)})
    result = run("verify", lake.destination)
    assert "… and 10 more foreign" in result.stdout
    assert len(plain_json(run("verify", lake.destination, "--json"))["foreign"]) == 30


def test_a_superseded_commit_says_so(lake: Lake, run: RunProgram) -> None:
    """What a later job replaced is expected to be missing."""
    lake.sealed(FILES).commit()
    lake.sealed(FILES, job_id=THEIRS).commit()
    result = run("verify", lake.destination, OURS)
    assert result.exit_code == 1
    assert f"job {THEIRS} has committed since" in result.stdout
    assert run("verify", lake.destination).exit_code == 0


def test_a_pending_job_is_checked_by_its_uploads(lake: Lake, run: RunProgram) -> None:
    """Whole, it is ready; with an upload gone, its commit would fail."""
    lake.sealed(FILES)
    assert "ready" in run("verify", lake.destination, OURS, "--deep").stdout
    upload = next(iter(lake.store.list_uploads(BUCKET, ROOT)))
    lake.store.abort_upload(BUCKET, upload.key, upload.upload_id)
    result = run("verify", lake.destination, OURS)
    assert result.exit_code == 1
    assert f"missing: {upload.key}" in result.stdout
    told = plain_json(run("verify", lake.destination, OURS, "--json"))
    assert (told["kind"], told["sound"], told["missing_count"]) == ("pending", False, 1)


def test_without_a_commit_there_is_nothing_to_verify(lake: Lake, run: RunProgram) -> None:
    """Exit code 1; a job that is not known is refused."""
    result = run("verify", lake.destination)
    assert result.exit_code == 1
    assert "no _SUCCESS" in result.stdout
    assert plain_json(run("verify", lake.destination, "--json"))["manifest"] is None
    assert run("verify", lake.destination, "unknown").exit_code == 3


def test_progress_counts_the_files(lake: Lake, run: RunProgram) -> None:
    """On a terminal a bar is shown on the standard error."""
    lake.sealed(FILES).commit()
    assert "comparing files" in run("verify", lake.destination, FORCE_COLOR="1").stderr

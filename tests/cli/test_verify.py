"""Verify: exit code 0 where all is as it should be, 1 with what is not by name."""

from __future__ import annotations

from tests.cli.conftest import FILES, RunProgram, plain_json
from tests.protocol.building import BUCKET, OURS, ROOT, THEIRS, Lake, named


def test_a_commit_that_stands_is_sound(lake: Lake, run: RunProgram) -> None:
    """The last commit is taken if no job is named."""
    lake.sealed(FILES).commit()
    before = lake.everything()
    for job in ((), (OURS,)):
        result = run("verify", lake.destination, *job)
        assert result.exit_code == 0
        assert "matches the manifest" in result.stdout
    assert lake.everything() == before


def test_what_is_missing_changed_or_foreign_is_named(lake: Lake, run: RunProgram) -> None:
    """Each kind with its keys; exit code 1."""
    lake.sealed(FILES).commit()
    lake.store.delete(BUCKET, ROOT + named("dt=1/part-0.parquet"))
    lake.put({named("dt=2/part-0.parquet"): b"changed", "dt=2/foreign.parquet": b"x"})
    result = run("verify", lake.destination)
    assert result.exit_code == 1
    for words in (
        "does NOT match the manifest",
        "missing: ",
        "changed: ",
        "foreign: flights/dt=2/foreign.parquet",
    ):
        assert words in result.stdout
    told = plain_json(run("verify", lake.destination, "--json"))
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
    assert len(plain_json(run("verify", lake.destination, "--json"))["unlisted"]) == 30


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

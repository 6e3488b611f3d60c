"""Log: the commits to a destination, newest first."""

from __future__ import annotations

from datetime import UTC, datetime

from tests.cli.conftest import FILES, RunProgram, plain_json
from tests.protocol.building import BUCKET, HOME, OURS, THEIRS, Lake, an_id


def test_commits_are_listed_newest_first(lake: Lake, run: RunProgram) -> None:
    """Which generation, by which job and run, what it added and replaced."""
    lake.sealed(FILES).commit()
    job = lake.set_up(THEIRS, said={"dag_id": "nightly", "run_id": "monday"})
    lake.run_stage(job, {"dt=2/part-0.parquet": b"more"})
    job.seal()
    job.commit()
    result = run("log", lake.destination)
    assert result.exit_code == 0
    heading, _, newest, oldest = result.stdout.splitlines()
    for column in ("generation", "committed", "mode", "files", "rows", "partitions", "replaced", "job"):
        assert column in heading
    assert newest.split()[0] == "2"
    for words in ("replace", "4 B", "1 file, 7 B", THEIRS, "dag_id nightly, run_id monday"):
        assert words in newest
    assert (oldest.split()[0], OURS in oldest) == ("1", True)
    told = plain_json(run("log", lake.destination, "--json"))
    assert [commit["generation"] for commit in told["commits"]] == [2, 1]
    last = told["commits"][0]
    assert (last["job_id"], last["context"]["run_id"], last["replaced"]["files"]) == (THEIRS, "monday", 1)
    assert last["partitions"] == {"dt=2": {"files": 1, "bytes": 4, "rows": 4}}


def test_the_number_of_commits_is_limited(lake: Lake, run: RunProgram) -> None:
    """As many as were asked for; fewer than one is misuse."""
    for job_id in (OURS, THEIRS):
        lake.sealed(FILES, job_id=job_id).commit()
    told = plain_json(run("log", lake.destination, "--limit", "1", "--json"))
    assert [commit["job_id"] for commit in told["commits"]] == [THEIRS]
    assert run("log", lake.destination, "--limit", "0").exit_code == 2


def test_a_narrow_terminal_has_the_columns_that_fit(lake: Lake, run: RunProgram) -> None:
    """Generation and time are always there."""
    lake.sealed(FILES).commit()
    heading = run("log", lake.destination, COLUMNS="80").stdout.splitlines()[0]
    assert heading.split() == ["generation", "committed", "mode", "files", "size", "rows"]


def test_a_destination_without_commits(lake: Lake, run: RunProgram) -> None:
    """It is no error, and an empty list for scripts."""
    result = run("log", lake.destination)
    assert (result.exit_code, "no commit is in the log of" in result.stdout) == (0, True)
    assert plain_json(run("log", lake.destination, "--json"))["commits"] == []


def test_commits_are_filtered(lake: Lake, run: RunProgram) -> None:
    """By job, partition, generation and time; the limit counts the commits that are listed."""
    for number in range(1, 5):
        lake.clock.advance(60)
        lake.sealed({f"dt={number % 2}/a": b"a"}, job_id=an_id(str(number))).commit()
    between = datetime.fromtimestamp(lake.clock.time() - 90, UTC).replace(tzinfo=None).isoformat()

    def generations(*filters: str) -> list[int]:
        return [
            one["generation"]
            for one in plain_json(run("log", lake.destination, "--json", *filters))["commits"]
        ]

    assert generations() == [4, 3, 2, 1]
    assert generations("--job", an_id("2")) == [2]
    assert generations("--job", an_id("2"), "--since", "2") == []
    assert generations("--partition", "dt=1/") == [3, 1]
    assert generations("--partition", "dt=1", "--limit", "1") == [3]
    assert generations("--partition", "dt=1", "--partition", "dt=0") == [4, 3, 2, 1]
    assert generations("--since", "2") == [4, 3]
    assert generations("--since", between) == [4, 3]
    assert run("log", lake.destination, "--since", "yesterday").exit_code == 2
    assert "no such commit is in the log" in run("log", lake.destination, "--job", OURS).stdout


def test_the_newest_commit_is_found_without_its_manifest(lake: Lake, run: RunProgram) -> None:
    """The entry decides; the manifest that a dead committer did not write is not missed."""
    lake.sealed(FILES).commit()
    lake.store.delete(BUCKET, f"{HOME}manifests/{OURS}.json")
    told = plain_json(run("log", lake.destination, "--job", OURS, "--json"))
    assert [one["job_id"] for one in told["commits"]] == [OURS]

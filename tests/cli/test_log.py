"""Log: the commits to a destination, newest first."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_s3commit.cli import log
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


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[float]]:
    """Return what takes the steps of others, one in each wait of the program; then the user interrupts."""

    def others(*steps: Callable[[], object]) -> list[float]:
        left, slept = list(steps), []

        class _Clock:
            def sleep(self, seconds: float) -> None:
                slept.append(seconds)
                if not left:
                    raise KeyboardInterrupt
                left.pop(0)()

        monkeypatch.setattr(log, "SystemClock", _Clock)
        return slept

    return others


def test_new_commits_are_followed(lake: Lake, run: RunProgram, waiting: Any) -> None:
    """The last ones oldest first, then each as it comes, until Ctrl-C, which is no error."""
    for number in (1, 2, 3):
        lake.sealed({"dt=1/a": b"a"}, job_id=an_id(str(number))).commit()
    slept = waiting(lambda: None, lake.sealed(FILES, job_id=THEIRS).commit)
    result = run("log", lake.destination, "--follow", "--limit", "2", "--interval", "10s")
    assert (result.exit_code, result.stderr) == (0, "")
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["2", "3", "4"]
    assert THEIRS in result.stdout
    assert len(slept) == 3
    assert all(8 <= seconds <= 12 for seconds in slept)


def test_commits_are_followed_from_a_generation(lake: Lake, run: RunProgram, waiting: Any) -> None:
    """All after it, whatever the limit; for scripts one object a line; other partitions are left out."""
    for number in (1, 2, 3):
        lake.sealed({"dt=1/a": b"a"}, job_id=an_id(str(number))).commit()
    lake.sealed({"dt=1/a": b"a"}, job_id=OURS).abort()
    waiting(
        lake.sealed({"dt=2/a": b"a"}, job_id=an_id("4")).commit,
        lake.sealed({"dt=1/a": b"a"}, job_id=THEIRS).commit,
    )
    follow = ("log", lake.destination, "--follow", "--since", "1", "--limit", "1", "--json")
    result = run(*follow, "--partition", "dt=1")
    told = [json.loads(line) for line in result.stdout.splitlines()]
    assert [one["generation"] for one in told] == [2, 3, 6]
    assert told[-1]["job_id"] == THEIRS


def test_a_destination_without_a_log_is_followed(lake: Lake, run: RunProgram, waiting: Any) -> None:
    """Its first commit is seen."""
    waiting(lake.sealed(FILES).commit)
    assert run("log", lake.destination, "--follow").stdout.split()[0] == "1"
    assert run("log", lake.destination, "--follow", "--job", OURS).exit_code == 2

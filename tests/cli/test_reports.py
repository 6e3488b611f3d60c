"""Jobs, uploads and commits are shown in words to people, and exactly to scripts."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_s3commit import register_destination
from airflow_s3commit.cli import reports
from tests.cli.conftest import FILES, OLD, RunProgram, plain_json
from tests.protocol.building import BUCKET, HOME, OURS, ROOT, THEIRS, Crash, Lake, an_id, apart, named
from tests.protocol.hadoop.dead_jobs import MAGIC, UUID, DeadJob

GIB = 1024**3


def _left_in_commit(lake: Lake, job_id: str = OURS) -> None:
    lake.sealed(FILES, job_id=job_id)
    lake.store.die("complete_upload", after=True)
    with pytest.raises(Crash):
        lake.job(job_id).commit()
    lake.store.rest()


def test_jobs_lists_every_job_with_its_state(lake: Lake, run: RunProgram) -> None:
    """A job has one line: id, state, age, what is pending, and how it commits."""
    lake.run_task(lake.set_up(THEIRS, said={"dag": "nightly"}), FILES)
    lake.sealed(FILES)
    lake.store_clock.advance(3 * 3600)
    result = run("jobs", lake.destination)
    assert result.exit_code == 0
    ours, theirs = (next(li for li in result.stdout.splitlines() if id_ in li) for id_ in (OURS, THEIRS))
    assert "sealed" in ours
    assert "3 h" in ours
    assert "10 B" in ours
    assert "open" in theirs
    assert "dag nightly" in theirs
    assert result.stderr == ""


def test_jobs_as_json_has_exact_values(lake: Lake, run: RunProgram) -> None:
    """Ages are in seconds, bytes as bytes, options and context as given."""
    lake.sealed(FILES, said={"dag": "nightly"})
    lake.store_clock.advance(3725)
    told = plain_json(run("jobs", lake.destination, "--json"))
    assert told["destination"] == lake.destination
    job = told["jobs"][0]
    assert (job["job_id"], job["state"], job["age"]) == (OURS, "sealed", 3725.0)
    assert (job["output"]["files"], job["output"]["bytes"], job["output"]["rows"]) == (2, 10, 10)
    assert job["options"]["conflict_mode"] == "replace"
    assert job["context"] == {"dag": "nightly"}


def test_a_damaged_record_is_shown_with_its_job(lake: Lake, run: RunProgram) -> None:
    """The others are still listed."""
    lake.sealed(FILES)
    lake.set_up(THEIRS)
    lake.tamper(lake.open_key(), cut=10)
    result = run("jobs", lake.destination)
    assert result.exit_code == 0
    assert THEIRS in result.stdout
    assert f"{OURS}: " in result.stdout
    assert f"{THEIRS}: " not in result.stdout
    told = plain_json(run("show", lake.destination, OURS, "--json"))
    assert told["problems"]
    assert told["problems"][0][:20] in run("show", lake.destination, OURS).stdout


def test_a_table_fits_a_narrow_terminal(lake: Lake, run: RunProgram) -> None:
    """On 80 columns no line is longer, and no job id is cut or folded."""
    lake.sealed(FILES, said={"dag": "nightly", "run_id": "scheduled__2013-01-02T00:00:00+00:00"})
    result = run("jobs", lake.destination, COLUMNS="80")
    assert OURS in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_show_says_everything(lake: Lake, run: RunProgram) -> None:
    """It has state, options, context, stages, uploads, what is replaced, and the next step."""
    lake.put(OLD)
    lake.sealed(FILES, said={"dag": "nightly", "run": "[red]manual[/]"})
    result = run("show", lake.destination, OURS)
    assert result.exit_code == 0
    for words in (
        OURS,
        "sealed",
        "conflict mode      replace",
        "nightly",
        "[red]manual[/]",
        "2 pending (10 B in the records)",
        "1 file, 5 B in 1 partition, as of generation 1",
        "spark   1 ",
        f"s3commit commit {lake.destination} {OURS}\n",
    ):
        assert words in result.stdout


def test_show_as_json_has_stages_preview_and_next(lake: Lake, run: RunProgram) -> None:
    """A script gets everything that a person sees."""
    lake.put(OLD)
    lake.sealed(FILES)
    told = plain_json(run("show", lake.destination, OURS, "--json"))
    assert told["summary"]["state"] == "sealed"
    assert told["stages"][0]["tasks"] == 1
    assert told["uploads"]["pending"] == 2
    assert (told["preview"]["objects"], told["preview"]["bytes"]) == (1, 5)
    assert told["next"][0]["command"] == f"s3commit commit {lake.destination} {OURS}"


def test_show_advises_recovery_of_a_commit_that_was_left(lake: Lake, run: RunProgram) -> None:
    """For a half-visible commit the next command is recover, with the options for its store."""
    _left_in_commit(lake)
    result = run("show", lake.destination, OURS, "--endpoint-url", "http://127.0.0.1:9")
    assert f"s3commit recover {lake.destination} {OURS} --endpoint-url http://127.0.0.1:9" in result.stdout
    assert "sealed, publishing (1 of 2 files)" in result.stdout
    assert f"s3commit abort {lake.destination} {OURS}" in result.stdout


@pytest.mark.parametrize("state", ["open", "committed", "aborted", "unfinished", "none"])
def test_every_state_has_a_next_step(lake: Lake, run: RunProgram, state: str) -> None:
    """Whatever happened to a job, show ends with a next step."""
    expected = {
        "open": "commit",
        "committed": "verify",
        "aborted": "nothing to do",
        "unfinished": "recover",
        "none": "abort",
    }[state]
    match state:
        case "none":
            lake.sealed(FILES)
            lake.store.delete("lake", lake.open_key())
            lake.store.delete("lake", lake.open_key("sealed.json"))
        case "unfinished":
            lake.sealed(FILES)
            lake.store.die("abort_upload")
            with pytest.raises(Crash):
                lake.job().abort()
        case "aborted":
            lake.set_up().abort()
        case "committed":
            lake.sealed(FILES).commit()
        case _:
            lake.set_up()
    lake.store.rest()
    result = run("show", lake.destination, OURS)
    told = plain_json(run("show", lake.destination, OURS, "--json"))
    first = told["next"][0]
    assert expected in (first["command"] or first["words"])
    assert ("aborted, not finished" in result.stdout) == (state == "unfinished")
    assert ("--seal" in str(first["command"])) == (state == "open")


def test_show_finds_a_job_whose_records_are_elsewhere(lake: Lake, run: RunProgram) -> None:
    """The job's own record names its staging, so no command about a job has to."""
    lake.sealed(FILES, staging="s3://other/records/")
    result = run("show", lake.destination, OURS)
    assert f"s3://other/records/__magic_job-{OURS}/" in result.stdout
    assert "2 pending (10 B in the records)" in result.stdout
    assert f"s3commit commit {lake.destination} {OURS}\n" in result.stdout
    assert "ready" in run("verify", lake.destination, OURS).stdout
    assert run("abort", lake.destination, OURS).exit_code == 0
    assert list(lake.store.list_objects("other", "")) == []


def test_what_is_left_in_a_staging_elsewhere_is_listed_with_it(lake: Lake, run: RunProgram) -> None:
    """Of a job that has ended it is found where the option, or the entry of a registry, says."""
    registry, staging = "s3://lake/registry/", "s3://other/records/"
    lake.sealed(FILES, staging=staging).commit()
    lake.store.put("other", f"records/__magic_job-{OURS}/left", b"")
    lake.stray()
    register_destination(lake.store, registry, lake.destination, staging=staging)
    assert OURS in run("jobs", lake.destination, "--staging", staging).stdout
    assert OURS not in run("jobs", lake.destination).stdout
    assert OURS in run("jobs", "--registry", registry).stdout
    advised = run("pending", lake.destination, "--staging", staging).stdout
    assert f"s3commit sweep {lake.destination} --older-than 7d --staging {staging}" in advised


def test_uploads_of_hadoop_s_jobs_are_claimed_by_their_files(
    run: RunProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those in a directory elsewhere are found by the option, and without it their uploads are nobody's."""
    dead = DeadJob.magic()
    monkeypatch.setattr("airflow_s3commit.cli.command.open_store", lambda _: dead.store)
    pending = ("pending", "s3://lake/sales/", "--json")
    assert "sweep" not in run(*pending[:2]).stdout
    assert [one["job_id"] for one in plain_json(run(*pending))["jobs"]] == [UUID]
    for key in dead.keys(MAGIC):
        dead.put(f"elsewhere/{key.removeprefix('sales/')}", dead.store.get("lake", key).body)
        dead.store.delete("lake", key)
    assert [one["job_id"] for one in plain_json(run(*pending))["jobs"]] == [None]
    told = plain_json(run(*pending, "--staging", "s3://lake/elsewhere/"))
    assert [one["job_id"] for one in told["jobs"]] == [UUID]


def test_text_of_others_cannot_steer_the_terminal(lake: Lake, run: RunProgram, waiting: Any) -> None:
    """Control characters in a context are shown as text, in a table and in a line."""
    waiting()
    said = {"dag": "\x1b[2Jgone"}
    lake.set_up(said=said)
    lake.sealed(FILES, job_id=THEIRS, said=said).commit()
    for command in (("jobs",), ("show", OURS), ("log", "--follow", "--since", "1")):
        result = run(command[0], lake.destination, *command[1:])
        assert "\x1b" not in result.stdout
        assert "\\x1b[2Jgone" in result.stdout


def test_jobs_of_a_registry_are_listed_with_their_destinations(lake: Lake, run: RunProgram) -> None:
    """All, or those that match a pattern, have totals; an unreadable destination is a finding."""
    registry = "s3://lake/registry/"
    lake.sealed(FILES)
    for destination in (lake.destination, "s3://lake/other/", "s3://no-such-bucket/x/"):
        register_destination(lake.store, registry, destination)
    result = run("jobs", "--registry", registry)
    assert result.exit_code == 1
    assert f"{lake.destination}\n" in result.stdout
    assert OURS in result.stdout
    assert "1 job in progress at 2 destinations, 10 B pending" in result.stdout
    assert "NOT READ: s3://no-such-bucket/x/" in result.stdout
    lake.store_clock.advance(60)
    lake.set_up(THEIRS)
    lake.store_clock.advance(60)
    told = plain_json(run("jobs", "--registry", registry, "--json"))["pending"]
    assert told == {"destinations": 2, "jobs": 2, "bytes": 10, "idle": 120.0}
    told = plain_json(run("jobs", "s3://lake/oth*", "--registry", registry, "--json"))
    assert [place["destination"] for place in told["destinations"]] == ["s3://lake/other/"]
    assert told["pending"] == {"destinations": 1, "jobs": 0, "bytes": 0, "idle": None}


def test_jobs_in_each_staging_of_a_destination_are_listed_once(lake: Lake, run: RunProgram) -> None:
    """A destination has an entry in the registry for each of its stagings, in any order."""
    registry = "s3://lake/registry/"
    lake.sealed(FILES, job_id=THEIRS)
    for number, name in enumerate(("a", "b", "c")):
        staging, job_id = f"s3://other/{name}/", an_id(name)
        lake.sealed({f"dt={number}/a": b"a"}, job_id=job_id, staging=staging, conflict_mode="append").commit()
        lake.store.put("other", f"{name}/__magic_job-{job_id}/left", b"")
        register_destination(lake.store, registry, lake.destination, staging=staging)
    register_destination(lake.store, registry, lake.destination)
    told = plain_json(run("jobs", "--registry", registry, "--json"))
    assert told["pending"]["destinations"] == 1
    listed = [job["job_id"] for place in told["destinations"] for job in place["jobs"]]
    assert sorted(listed) == sorted([THEIRS, an_id("a"), an_id("b"), an_id("c")])


@pytest.mark.parametrize("command", ["jobs", "sweep --older-than 7d"])
def test_a_registry_names_the_stagings(lake: Lake, run: RunProgram, command: str) -> None:
    """A staging beside a registry is a usage error: it would be that of no destination."""
    asked = [*command.split(), "--registry", "s3://lake/registry/", "--staging", "s3://other/a/"]
    result = run(*asked)
    assert (result.exit_code, "--staging" in result.stderr) == (2, True)
    assert lake.store.calls == []


def test_a_pattern_needs_a_registry(lake: Lake, run: RunProgram) -> None:
    """Without one the command line is wrong, and the store is not asked."""
    result = run("jobs", "s3://lake/*")
    assert result.exit_code == 2
    assert "--registry" in result.output
    assert lake.store.calls == []


def test_uploads_are_listed_by_job_and_one_by_one(lake: Lake, run: RunProgram) -> None:
    """Totals come first, then each upload; unclaimed uploads are separate, with the way to sweep them."""
    lake.run_task(lake.set_up(), FILES)
    lake.stray("dt=1/stray.parquet")
    lake.store_clock.advance(2 * 86_400)
    result = run("pending", lake.destination)
    assert result.exit_code == 0
    assert "claimed by no job" in result.stdout
    assert "total" in result.stdout
    assert "dt=1/stray.parquet" in result.stdout
    assert "2 d" in result.stdout
    assert f"s3commit sweep {lake.destination} --older-than 7d" in result.stdout


def test_json_has_exact_ages_bytes_and_costs(lake: Lake, run: RunProgram) -> None:
    """It has seconds, bytes, and dollars a month at the list price."""
    lake.run_task(lake.set_up(), FILES)
    lake.store_clock.advance(60)
    lake.stray("dt=1/stray.parquet", b"x" * 1024**2)
    lake.store_clock.advance(40)
    told = plain_json(run("pending", lake.destination, "--json"))
    assert (told["count"], told["bytes"], told["oldest"]) == (3, 1024**2 + 10, 100.0)
    assert "job_id" not in told
    assert told["monthly_cost_usd"] == (1024**2 + 10) / GIB * 0.023
    assert {job["job_id"]: job["count"] for job in told["jobs"]} == {OURS: 2, None: 1}
    assert {upload["job_id"] for upload in told["uploads"]} == {OURS, None}
    assert {upload["job_id"]: upload["age"] for upload in told["uploads"]} == {OURS: 100.0, None: 40.0}


def test_sizes_can_be_left_out(lake: Lake, run: RunProgram) -> None:
    """Without them no upload's parts are requested, and nothing is invented."""
    lake.stray("dt=1/stray.parquet")
    told = plain_json(run("pending", lake.destination, "--no-bytes", "--json"))
    assert (told["bytes"], told["monthly_cost_usd"], told["uploads"][0]["bytes"]) == (None, None, None)


def test_a_long_list_is_cut_and_says_so(lake: Lake, run: RunProgram) -> None:
    """Only the oldest are shown, unless all are requested; scripts get all."""
    for number in range(45):
        lake.stray(f"dt={99 - number}/stray-{number:02d}.parquet")
        lake.store_clock.advance(1)
    short = run("pending", lake.destination)
    assert "stray-00" in short.stdout
    assert "stray-44" not in short.stdout
    assert "… and 5 more" in short.stdout
    assert "total" not in short.stdout
    assert "stray-44" in run("pending", lake.destination, "--all").stdout
    assert len(plain_json(run("pending", lake.destination, "--json"))["uploads"]) == 45


def test_an_empty_list_says_so(lake: Lake, run: RunProgram) -> None:
    """An empty list is an answer too, and people are warned of a destination without jobs."""
    result = run("pending", lake.destination)
    assert (result.exit_code, result.stdout.startswith("no upload is pending")) == (0, True)
    assert "no job was ever set up there" in result.stderr
    told = run("pending", lake.destination, "--json")
    assert (plain_json(told)["uploads"], told.stderr) == ([], "")
    lake.sealed(FILES).commit()
    assert run("pending", lake.destination).stderr == ""


def test_no_line_to_search_or_paste_is_broken(lake: Lake, run: RunProgram) -> None:
    """A message in a pipe, and a command of an advice, is one line, however narrow a terminal would be."""
    lake.set_up()
    deep = f"{lake.destination}{'deep/' * 9}"
    assert f"no upload is pending below {deep}\n" in run("pending", deep, COLUMNS="40").stdout
    advised = run("show", lake.destination, OURS, COLUMNS="40").stdout
    assert f"s3commit commit {lake.destination} {OURS} --seal\n" in advised


def test_commits_are_listed_newest_first(lake: Lake, run: RunProgram) -> None:
    """Each line has the generation, the job and its run, and what it added and replaced."""
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
    assert newest.split()[0] == "3"
    for words in ("replace", "4 B", "1 file, 7 B", THEIRS, "dag_id nightly, run_id monday"):
        assert words in newest
    assert (oldest.split()[0], OURS in oldest) == ("2", True)
    told = plain_json(run("log", lake.destination, "--json"))
    assert [commit["generation"] for commit in told["commits"]] == [3, 2]
    last = told["commits"][0]
    assert (last["job_id"], last["context"]["run_id"], last["replaced"]["files"]) == (THEIRS, "monday", 1)
    assert (last["partitions"], last["rolled_back_to"]) == ({"dt=2": {"files": 1, "bytes": 4, "rows": 4}}, 0)


def test_the_number_of_commits_is_limited(lake: Lake, run: RunProgram) -> None:
    """As many as requested are shown, and fewer than one is a usage error."""
    for job_id in (OURS, THEIRS):
        lake.sealed(FILES, job_id=job_id).commit()
    told = plain_json(run("log", lake.destination, "--limit", "1", "--json"))
    assert [commit["job_id"] for commit in told["commits"]] == [THEIRS]
    assert run("log", lake.destination, "--limit", "0").exit_code == 2


def test_a_narrow_terminal_has_the_columns_that_fit(lake: Lake, run: RunProgram) -> None:
    """Generation and time are always shown."""
    lake.sealed(FILES).commit()
    heading = run("log", lake.destination, COLUMNS="80").stdout.splitlines()[0]
    assert heading.split() == ["generation", "committed", "mode", "files", "size", "rows"]


def test_no_terminal_is_too_narrow_for_a_value(lake: Lake, run: RunProgram) -> None:
    """What does not fit is wrapped, not cut: half a number is another number."""
    lake.sealed(FILES).commit()
    narrow, wide = (run("log", lake.destination, COLUMNS=width).stdout for width in ("40", "80"))
    assert max(map(len, narrow.splitlines())) <= 40
    shown = [sorted(text.replace("─", "").replace("\n", " ").replace(" ", "")) for text in (narrow, wide)]
    assert shown[0] == shown[1]


def test_a_destination_without_commits_is_not_an_error(lake: Lake, run: RunProgram) -> None:
    """Scripts get an empty list."""
    result = run("log", lake.destination)
    assert (result.exit_code, "no job was ever set up there" in result.stdout) == (0, True)
    assert plain_json(run("log", lake.destination, "--json"))["commits"] == []


def test_commits_are_filtered(
    lake: Lake, run: RunProgram, waiting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partition, generation and time, of UTC, select; the limit counts the commits that are listed."""
    for number in range(1, 5):
        lake.clock.advance(60)
        lake.sealed({f"dt={number % 2}/a": b"a"}, job_id=an_id(str(number))).commit()
    between = datetime.fromtimestamp(lake.clock.time() - 90, UTC).replace(tzinfo=None).isoformat()
    in_tokyo = datetime.fromtimestamp(lake.clock.time() - 90, timezone(timedelta(hours=9))).isoformat()

    def generations(*filters: str) -> list[int]:
        return [
            one["generation"]
            for one in plain_json(run("log", lake.destination, "--json", *filters))["commits"]
        ]

    assert generations() == [5, 4, 3, 2]
    assert generations("--partition", "dt=1/") == [4, 2]
    assert generations("--partition", "dt=1", "--limit", "1") == [4]
    assert generations("--partition", "dt=1", "--partition", "dt=0") == [5, 4, 3, 2]
    assert generations("--since", "3") == generations("--since", in_tokyo) == [5, 4]
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        assert generations("--since", between) == [5, 4]
    time.tzset()
    waiting()
    followed = run("log", lake.destination, "--since", between, "--follow", "--json").stdout.splitlines()
    assert [json.loads(one)["generation"] for one in followed] == [4, 5]
    assert run("log", lake.destination, "--since", "yesterday").exit_code == 2
    assert "no such commit is in the log" in run("log", lake.destination, "--since", "5").stdout


def test_a_commit_by_an_older_clock_hides_no_other(lake: Lake, run: RunProgram, waiting: Any) -> None:
    """Committers' clocks differ: of the last commits each that is newer than a time is listed."""
    for number, step in enumerate((0, 600, -400)):
        lake.clock.advance(step)
        lake.sealed({"dt=1/a": b"a"}, job_id=an_id(str(number))).commit()
    since = datetime.fromtimestamp(lake.clock.time() + 100, UTC).isoformat()
    told = plain_json(run("log", lake.destination, "--since", since, "--json"))
    assert [one["generation"] for one in told["commits"]] == [3]
    waiting()
    followed = run("log", lake.destination, "--since", since, "--follow", "--json").stdout
    assert json.loads(followed)["generation"] == 3


@pytest.mark.parametrize("name", ["at=2013-01-01T03:00:00", "at=2013-01-01T03%3A00%3A00/"])
def test_a_partition_is_found_by_its_plain_and_its_escaped_name(
    lake: Lake, run: RunProgram, name: str
) -> None:
    """The directory of a time has escapes, which a person need not write; a lost value is a mistake."""
    lake.sealed({"at=2013-01-01T03%3A00%3A00/a": b"a"}).commit()
    lake.sealed(FILES, job_id=THEIRS).commit()
    told = plain_json(run("log", lake.destination, "--json", "--partition", name))
    assert [commit["job_id"] for commit in told["commits"]] == [OURS]
    assert run("log", lake.destination, "--partition", "at=").exit_code == 2


def test_the_newest_commit_is_found_without_its_receipt(lake: Lake, run: RunProgram) -> None:
    """The entry decides, even if a dead committer did not write the receipt."""
    lake.sealed(FILES).commit()
    lake.store.delete(BUCKET, lake.receipt_key())
    told = plain_json(run("log", lake.destination, "--json"))
    assert [one["job_id"] for one in told["commits"]] == [OURS]


def test_data_older_than_the_log_is_its_first_commit(lake: Lake, run: RunProgram) -> None:
    """It belongs to no job; without such data the history begins with the first job."""
    lake.put({"dt=1/old.parquet": b"old"})
    lake.sealed(FILES).commit()
    told = plain_json(run("log", lake.destination, "--json"))["commits"]
    assert [(one["generation"], one["job_id"]) for one in told] == [(2, OURS), (1, "older-data")]
    assert "older-data" in run("log", lake.destination).stdout


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[float]]:
    """Return what takes the steps of others, one for each wait of the program; then the user interrupts."""

    def others(*steps: Callable[[], object]) -> list[float]:
        left, slept = list(steps), []

        class _Clock:
            def sleep(self, seconds: float) -> None:
                slept.append(seconds)
                if not left:
                    raise KeyboardInterrupt
                left.pop(0)()

        monkeypatch.setattr(reports, "SystemClock", _Clock)
        return slept

    return others


def test_new_commits_are_followed(lake: Lake, run: RunProgram, waiting: Any) -> None:
    """The last ones come oldest first, then each new one, until Ctrl-C, which is not an error."""
    for number in (1, 2, 3):
        lake.sealed({"dt=1/a": b"a"}, job_id=an_id(str(number))).commit()
    slept = waiting(lambda: None, lake.sealed(FILES, job_id=THEIRS).commit)
    result = run("log", lake.destination, "--follow", "--limit", "2")
    assert (result.exit_code, result.stderr) == (0, "")
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["3", "4", "5"]
    assert THEIRS in result.stdout
    assert len(slept) == 3
    assert all(4 <= seconds <= 6 for seconds in slept)


def test_commits_are_followed_from_a_generation(lake: Lake, run: RunProgram, waiting: Any) -> None:
    """All later commits come, whatever the limit, as one object per line for scripts; others do not."""
    for number in (1, 2, 3):
        lake.sealed({"dt=1/a": b"a"}, job_id=an_id(str(number))).commit()
    lake.sealed({"dt=1/a": b"a"}, job_id=OURS).abort()
    waiting(
        lake.sealed({"dt=2/a": b"a"}, job_id=an_id("4")).commit,
        lake.sealed({"dt=1/a": b"a"}, job_id=THEIRS).commit,
    )
    follow = ("log", lake.destination, "--follow", "--since", "2", "--limit", "1", "--json")
    result = run(*follow, "--partition", "dt=1")
    told = [json.loads(line) for line in result.stdout.splitlines()]
    assert [one["generation"] for one in told] == [3, 4, 7]
    assert told[-1]["job_id"] == THEIRS


def test_the_limit_counts_the_commits_to_a_partition_that_is_followed(
    lake: Lake, run: RunProgram, waiting: Any
) -> None:
    """Of the partition the last commits come first, however many to others came after them."""
    for number, day in enumerate((1, 1, 1, 2, 2, 2)):
        lake.sealed({f"dt={day}/a": b"a"}, job_id=an_id(str(number))).commit()
    waiting(lake.sealed({"dt=1/a": b"a"}, job_id=THEIRS).commit)
    result = run("log", lake.destination, "--follow", "--partition", "dt=1", "--limit", "2", "--json")
    assert [json.loads(line)["generation"] for line in result.stdout.splitlines()] == [3, 4, 8]


def test_data_older_than_the_log_is_followed_too(lake: Lake, run: RunProgram, waiting: Any) -> None:
    """It is the first generation of the history, whichever way that is listed."""
    lake.put({"dt=1/old.parquet": b"old"})
    lake.sealed(FILES).commit()
    waiting()
    told = run("log", lake.destination, "--follow", "--since", "0", "--json").stdout.splitlines()
    assert [json.loads(line)["generation"] for line in told] == [1, 2]


def test_a_destination_without_a_log_is_followed(lake: Lake, run: RunProgram, waiting: Any) -> None:
    """Its first commit is shown."""
    waiting(lake.sealed(FILES).commit)
    assert run("log", lake.destination, "--follow").stdout.split()[0] == "2"


def test_the_last_manifest_is_shown(lake: Lake, run: RunProgram) -> None:
    """It has what it added and replaced, where, and the orchestrator's context."""
    lake.put({"dt=1/old.parquet": b"old"})
    lake.sealed(FILES).commit()
    result = run("manifest", lake.destination)
    assert result.exit_code == 0
    for words in (OURS, "2 files, 10 B, 10 rows", "1 file, 3 B", "dt=2"):
        assert words in result.stdout
    told = plain_json(run("manifest", lake.destination, "--json"))
    assert (told["job_id"], told["counts"]["files"], told["replaced"]["bytes"]) == (OURS, 2, 3)
    assert told["partitions"]["dt=2"]["bytes"] == 7


def test_files_are_listed_one_a_line(lake: Lake, run: RunProgram) -> None:
    """Each line has size, rows and key, ready for other programs; JSON is one object with all of them."""
    lake.sealed(FILES).commit()
    lines = run("manifest", lake.destination, "--files").stdout.splitlines()
    assert [line.split() for line in lines] == [
        ["3", "3", ROOT + named("dt=1/part-0.parquet")],
        ["7", "7", ROOT + named("dt=2/part-0.parquet")],
    ]
    told = plain_json(run("manifest", lake.destination, "--files", "--json"))
    assert told["job_id"] == OURS
    assert [file["size"] for file in told["files"]] == [3, 7]


def test_an_empty_commit_has_an_empty_list(lake: Lake, run: RunProgram) -> None:
    """The object is complete without any file in it."""
    lake.sealed({}).commit()
    assert plain_json(run("manifest", lake.destination, "--files", "--json"))["files"] == []


def test_an_earlier_job_has_its_own_manifest(lake: Lake, run: RunProgram) -> None:
    """A job's manifest is found by its id, whatever was committed later."""
    lake.sealed(FILES).commit()
    lake.sealed(FILES, job_id=THEIRS).commit()
    assert plain_json(run("manifest", lake.destination, OURS, "--json"))["job_id"] == OURS
    assert plain_json(run("manifest", lake.destination, "--json"))["job_id"] == THEIRS


def test_nothing_committed_is_a_finding(lake: Lake, run: RunProgram) -> None:
    """The exit code is 1, for the destination and for a job, with the place to look."""
    lake.sealed(FILES)
    for job in ((), (OURS,)):
        result = run("manifest", lake.destination, *job)
        assert result.exit_code == 1
        assert f"s3commit {'show' if job else 'jobs'} {lake.destination}" in result.stdout
        told = plain_json(run("manifest", lake.destination, *job, "--json"))
        assert told["manifest"] is None


def test_a_list_within_is_shown_on_demand(lake: Lake, run: RunProgram) -> None:
    """The manifest is shown as if its list were an object; ``--files`` shows every file."""
    manifests = []
    for is_apart in (True, False):
        one = Lake()
        with apart(is_apart):
            one.sealed(FILES).commit()
        lake.store.inner._buckets = one.store.inner._buckets
        shown = plain_json(run("manifest", lake.destination, "--json"))
        listed = plain_json(run("manifest", lake.destination, "--files", "--json"))
        assert "within" not in {**shown, **listed}
        manifests.append((shown.keys(), listed["files"]))
    assert manifests[0][0] == manifests[1][0]
    assert [file["key"] for file in manifests[0][1]] == [file["key"] for file in manifests[1][1]]


def test_a_list_that_breaks_off_is_one_error(lake: Lake, run: RunProgram) -> None:
    """An invalid line leaves one JSON object with the error, without the list's beginning."""
    with apart():
        lake.sealed(FILES).commit()
    (key,) = (one for one in lake.keys(f"{HOME}lists/") if OURS in one)
    body = lake.get(key)
    broken = body + b'{"key": 1}\n'
    before, after = (hashlib.sha256(text).hexdigest() for text in (body, broken))
    key = key.replace(before, after)
    lake.store.put(BUCKET, key, broken)
    for record in (lake.receipt_key(), f"{HOME}log/{2:020d}.json"):
        lake.tamper(record, old=before.encode(), new=after.encode())
    result = run("manifest", lake.destination, "--files", "--json")
    assert result.exit_code == 3
    assert f"line 3 of s3://{BUCKET}/{key}" in plain_json(result)["error"]["message"]

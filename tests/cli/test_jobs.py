"""Jobs, show and pending present every state and upload, in words to people and exactly to scripts."""

from __future__ import annotations

import pytest

from airflow_s3commit import register_destination
from tests.cli.conftest import FILES, OLD, RunProgram, plain_json
from tests.protocol.building import OURS, THEIRS, Crash, Lake

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
        "magic, conflict mode replace",
        "nightly",
        "[red]manual[/]",
        "2 pending (10 B in the records)",
        "1 file, 5 B in 1 partition, as of generation 1",
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


def test_text_of_others_cannot_steer_the_terminal(lake: Lake, run: RunProgram) -> None:
    """Control characters in a context are shown as text."""
    lake.set_up(said={"dag": "\x1b[2Jgone"})
    for command in (("jobs", lake.destination), ("show", lake.destination, OURS)):
        result = run(*command)
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
    told = plain_json(run("jobs", "s3://lake/oth*", "--registry", registry, "--json"))
    assert [place["destination"] for place in told["destinations"]] == ["s3://lake/other/"]
    assert told["pending"] == {"destinations": 1, "jobs": 0, "bytes": 0, "idle": None}


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
    lake.stray("dt=1/stray.parquet", b"x" * 1024**2)
    lake.store_clock.advance(100)
    told = plain_json(run("pending", lake.destination, "--json"))
    assert (told["count"], told["bytes"], told["oldest"]) == (3, 1024**2 + 10, 100.0)
    assert told["monthly_cost_usd"] == (1024**2 + 10) / GIB * 0.023
    assert {job["job_id"]: job["count"] for job in told["jobs"]} == {OURS: 2, None: 1}
    assert {upload["job_id"] for upload in told["uploads"]} == {OURS, None}
    assert all(upload["age"] == 100.0 for upload in told["uploads"])


def test_sizes_can_be_left_out(lake: Lake, run: RunProgram) -> None:
    """Without them no upload's parts are requested, and nothing is invented."""
    lake.stray("dt=1/stray.parquet")
    told = plain_json(run("pending", lake.destination, "--no-bytes", "--json"))
    assert (told["bytes"], told["monthly_cost_usd"], told["uploads"][0]["bytes"]) == (None, None, None)


def test_a_long_list_is_cut_and_says_so(lake: Lake, run: RunProgram) -> None:
    """Only the oldest are shown, unless all are requested; scripts get all."""
    for number in range(45):
        lake.stray(f"dt=1/stray-{number:02d}.parquet")
        lake.store_clock.advance(1)
    short = run("pending", lake.destination)
    assert "stray-00" in short.stdout
    assert "stray-44" not in short.stdout
    assert "… and 5 more" in short.stdout
    assert "stray-44" in run("pending", lake.destination, "--all").stdout
    assert len(plain_json(run("pending", lake.destination, "--json"))["uploads"]) == 45


def test_an_empty_list_says_so(lake: Lake, run: RunProgram) -> None:
    """An empty list is an answer too."""
    result = run("pending", lake.destination)
    assert (result.exit_code, result.stdout.startswith("no upload is pending")) == (0, True)
    assert plain_json(run("pending", lake.destination, "--json"))["uploads"] == []

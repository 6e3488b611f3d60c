"""Doctor and verify: checks in words, policies to paste, and exit codes for scripts."""

from __future__ import annotations

import json
import time

import pytest

from airflow_s3commit import MemoryStore
from airflow_s3commit.cli import store_options
from tests.cli.conftest import FILES, RunProgram, plain_json
from tests.protocol.building import BUCKET, HOME, OURS, ROOT, THEIRS, Crash, Lake, an_id, named

DEST = "s3://lake/flights/"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """Return a store whose clock is this machine's."""
    made = MemoryStore(("lake", "records"), now=time.time)
    monkeypatch.setattr(store_options, "open_store", lambda _: made)
    return made


def test_a_good_bucket_is_fit(store: MemoryStore, run: RunProgram) -> None:
    """Every check is named; a warning has its remedy and does not count; nothing is left behind."""
    result = run("doctor", DEST, "--staging", "s3://records/x/")
    assert result.exit_code == 0
    assert "fit for jobs, with 1 warning" in result.stdout
    assert "remedy: add a rule" in result.stdout
    assert "s3://records/x/" in result.stdout
    for bucket in ("lake", "records"):
        assert list(store.list_objects(bucket, "")) == []
        assert list(store.list_uploads(bucket, "")) == []


def test_json_has_every_check(store: MemoryStore, run: RunProgram) -> None:
    """Each has a verdict that a script can filter by."""
    told = plain_json(run("doctor", DEST, "--json"))
    assert told["healthy"] is True
    assert {"name": "fencing", "verdict": "ok"}.items() <= {
        key: value for check in told["checks"] if check["name"] == "fencing" for key, value in check.items()
    }.items()


def test_a_missing_bucket_fails(store: MemoryStore, run: RunProgram) -> None:
    """Exit code 1 says that the doctor ran and found a problem."""
    result = run("doctor", "s3://nowhere/x/")
    assert result.exit_code == 1
    assert " failed: bucket: " in result.stdout
    assert "NOT fit for jobs" in result.stdout


def test_the_policies_are_printed_ready_to_paste(lake: Lake, run: RunProgram) -> None:
    """The standard output is pure JSON, and the store is not asked."""
    result = run("doctor", DEST, "--policy", "--staging", "s3://records/x/", "--region", "cn-north-1")
    for role in ("executors", "committer"):
        policy = json.loads(result.stdout)[role]
        assert policy["Version"] == "2012-10-17"
        assert policy["Statement"][0]["Resource"] == ["arn:aws-cn:s3:::lake/flights/*"]
    assert "records" in result.stdout
    assert lake.store.calls == []
    key = "arn:aws:kms:eu-west-1:1:key/k"
    options = ("--object-option", "sse=aws:kms", "--object-option", f"sse_kms_key_id={key}")
    told = run("doctor", DEST, "--policy", *options, FORCE_COLOR="1", COLUMNS="40").stdout
    assert key in json.dumps(json.loads(told))
    assert set(plain_json(run("doctor", DEST, "--policy", "--json"))) == {"policy"}


OPTIONS = (
    "--object-option", "sse=aws:kms", "--object-option", "sse_bucket_key=true", "--object-option",
    "tags.team=flights", "--object-option", "headers.x-amz-meta-source=a=b",
)  # fmt: skip


def test_object_options_are_tried(store: MemoryStore, run: RunProgram) -> None:
    """The given options have a line."""
    told = plain_json(run("doctor", DEST, "--json", *OPTIONS))
    names = [check["name"] for check in told["checks"] if check["verdict"] == "ok"]
    assert names[-2] == "object options"


def test_object_options_lead_to_the_policy(lake: Lake, run: RunProgram) -> None:
    """The policy allows what the options need."""
    assert "s3:PutObjectTagging" in run("doctor", DEST, "--policy", *OPTIONS).stdout


@pytest.mark.parametrize("text", ["colour=blue", "sse=SSE-C", "sse.x=1", "sse_bucket_key=maybe", "tags=1"])
def test_a_wrong_object_option_is_a_usage_error(lake: Lake, run: RunProgram, text: str) -> None:
    """It is refused before the store is asked for anything, with the name of the option."""
    result = run("doctor", DEST, "--object-option", text)
    assert result.exit_code == 2
    assert "--object-option" in result.stderr


def test_advice_repeats_object_options(lake: Lake, run: RunProgram) -> None:
    """A pasted command writes with the same encryption."""
    result = run("show", lake.destination, "11111111-aaaa-4bbb-8ccc-000000000009", *OPTIONS)
    assert "--object-option sse=aws:kms --object-option sse_bucket_key=true" in result.stderr


def test_an_existing_commit_is_sound(lake: Lake, run: RunProgram) -> None:
    """The table is checked if no job is named, and nothing is changed."""
    lake.sealed(FILES).commit()
    before = lake.everything()
    result = run("verify", lake.destination)
    assert (result.exit_code, "the table is as it was committed" in result.stdout) == (0, True)
    result = run("verify", lake.destination, OURS)
    assert (result.exit_code, "matches the manifest" in result.stdout) == (0, True)
    assert lake.everything() == before


def test_a_table_is_named_with_other_objects_in_it(lake: Lake, run: RunProgram) -> None:
    """Missing, changed, foreign, leftover and unfinished objects are named, with each job's next step."""
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
    """A missing marker is a finding whose next step is the dry run of a repair."""
    lake.sealed(FILES).commit()
    assert "repair" not in run("verify", lake.destination).stdout
    lake.store.delete(BUCKET, f"{ROOT}_SUCCESS")
    assert f"s3commit repair {lake.destination}" in run("verify", lake.destination).stdout.replace("\n", " ")


def test_a_damaged_log_is_named(lake: Lake, run: RunProgram) -> None:
    """Findings in the log are listed with their remedies, and the exit code is 1."""
    lake.sealed(FILES).commit()
    lake.tamper(f"{HOME}log/{1:020d}.json", cut=1)
    result = run("verify", lake.destination)
    assert result.exit_code == 1
    assert "not known: the log is damaged" in result.stdout
    assert f"log: s3://lake/{HOME}log/{1:020d}.json: " in result.stdout


def test_missing_and_changed_files_of_a_job_are_named(lake: Lake, run: RunProgram) -> None:
    """Each kind is named with its keys, and the exit code is 1; foreign files are the table's matter."""
    lake.sealed(FILES).commit()
    lake.store.delete(BUCKET, ROOT + named("dt=1/part-0.parquet"))
    lake.put({named("dt=2/part-0.parquet"): b"changed", "dt=2/foreign.parquet": b"x"})
    result = run("verify", lake.destination, OURS)
    assert result.exit_code == 1
    for words in ("does NOT match the manifest", "missing: ", "changed: "):
        assert words in result.stdout
    assert "foreign" not in result.stdout
    told = plain_json(run("verify", lake.destination, OURS, "--json"))
    assert (told["kind"], told["sound"], told["complete"]) == ("committed", False, False)
    assert told["missing"] == [ROOT + named("dt=1/part-0.parquet")]


def test_many_findings_are_cut_and_counted(lake: Lake, run: RunProgram) -> None:
    """A person sees twenty names."""
    lake.sealed(FILES).commit()
    lake.put({f"dt=1/foreign-{n:02d}.parquet": b"x" for n in range(30)})
    result = run("verify", lake.destination)
    assert "… and 10 more foreign" in result.stdout
    assert len(plain_json(run("verify", lake.destination, "--json"))["foreign"]) == 30


def test_a_superseded_commit_says_so(lake: Lake, run: RunProgram) -> None:
    """What a later job replaced is counted, and not a difference."""
    lake.sealed(FILES).commit()
    lake.sealed(FILES, job_id=THEIRS).commit()
    result = run("verify", lake.destination, OURS)
    assert (result.exit_code, "replaced since  2" in result.stdout) == (0, True)
    assert run("verify", lake.destination).exit_code == 0


def test_a_pending_job_is_checked_by_its_uploads(lake: Lake, run: RunProgram) -> None:
    """An intact job is ready; with an upload gone, its commit would fail."""
    lake.sealed(FILES)
    assert "ready" in run("verify", lake.destination, OURS).stdout
    upload = next(iter(lake.store.list_uploads(BUCKET, ROOT)))
    lake.store.abort_upload(BUCKET, upload.key, upload.upload_id)
    result = run("verify", lake.destination, OURS)
    assert result.exit_code == 1
    assert f"missing: {upload.key}" in result.stdout
    told = plain_json(run("verify", lake.destination, OURS, "--json"))
    assert (told["kind"], told["sound"], told["missing_count"]) == ("pending", False, 1)


def test_without_a_commit_there_is_nothing_to_verify(lake: Lake, run: RunProgram) -> None:
    """The exit code is 1, and an unknown job is refused."""
    result = run("verify", lake.destination)
    assert result.exit_code == 1
    assert "has no log" in result.stdout
    assert plain_json(run("verify", lake.destination, "--json"))["manifest"] is None
    assert run("verify", lake.destination, "unknown").exit_code == 3


def test_progress_counts_the_files(lake: Lake, run: RunProgram) -> None:
    """A terminal gets a bar on the standard error."""
    lake.sealed(FILES).commit()
    assert "comparing files" in run("verify", lake.destination, FORCE_COLOR="1").stderr

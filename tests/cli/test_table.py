"""Checks name what is wrong; commands about a table say what they change; a dry run changes nothing."""

from __future__ import annotations

import json
import re
import shlex
import sys
from typing import Any

import pyarrow as pa
import pytest

from airflow_s3commit import Destination, JobOptions, MemoryStore, register_destination, write_table
from airflow_s3commit.cli.app import program
from airflow_s3commit.exceptions import AccessDenied, Unavailable
from airflow_s3commit.protocol.metadata.registry import read_registry
from airflow_s3commit.protocol.sweep_plan import plan_sweep
from airflow_s3commit.testing import StoreCall
from tests.cases import each
from tests.cli.conftest import FILES, RunProgram, plain_json
from tests.fakes import ManualClock
from tests.protocol.building import BUCKET, HOME, OURS, ROOT, THEIRS, Crash, Lake, an_id, named, once

DEST = "s3://lake/flights/"
DAY = 86_400.0
NOT_THERE = "no job was ever set up there; check the bucket and the prefix"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """Return a store whose clock is the doctor's, which waits for none."""
    clock = ManualClock()
    made = MemoryStore(("lake", "records"), now=clock.time)
    monkeypatch.setattr("airflow_s3commit.protocol.doctor.examine.SystemClock", lambda: clock)
    monkeypatch.setattr("airflow_s3commit.cli.command.open_store", lambda _: made)
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


@each(
    ("region", "partition"),
    [
        ("eu-west-1", "aws"),
        ("cn-north-1", "aws-cn"),
        ("us-gov-west-1", "aws-us-gov"),
        ("eusc-de-east-1", "aws-eusc"),
    ],
)
def test_a_policy_is_of_the_partition_of_its_region(run: RunProgram, region: str, partition: str) -> None:
    """Every partition of AWS has names of its own for the same bucket."""
    policies = run("doctor", DEST, "--policy", "--region", region).stdout
    assert {part.partition(":s3")[0] for part in policies.split('"') if part.startswith("arn:")} == {
        f"arn:{partition}"
    }


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
    """All that differs is named, foreign and unfinished objects too, and the next steps can be pasted."""
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
    assert "find out which program wrote the foreign objects" in result.stdout
    steps = [shlex.split(text) for text in result.stdout.splitlines() if text.strip().startswith("s3commit ")]
    assert [(name, place) for _, name, place, *_ in steps] == [
        (name, lake.destination) for name in ("log", "jobs", "sweep")
    ]
    for _, name, *words in steps:
        program.commands[name].make_context(name, words)
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
    assert "see which records can be rebuilt" not in result.stdout


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


def test_many_findings_are_cut_and_counted(
    lake: Lake, run: RunProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person sees twenty names, and how many more there are, also of those that no report names."""
    lake.sealed(FILES).commit()
    lake.put({f"dt=1/foreign-{n:02d}.parquet": b"x" for n in range(30)})
    with monkeypatch.context() as shorter:
        shorter.setattr("airflow_s3commit.protocol.inspect.verify_table.MAX_NAMED", 25)
        shown = run("verify", lake.destination).stdout
        assert "… and 10 more foreign; --json has up to 25" in shown
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


OLD, NEW = named("dt=1/a", THEIRS), named("dt=1/a")


def filled(lake: Lake, retain: str = "7d") -> None:
    """Commit a partition twice."""
    lake.sealed({"dt=1/a": b"old"}, job_id=THEIRS, conflict_mode="append").commit()
    lake.sealed({"dt=1/a": b"new"}, job_id=OURS, retain=retain).commit()


def test_a_dry_run_shows_what_would_change(lake: Lake, run: RunProgram) -> None:
    """Generations, partitions and files are shown, and nothing is changed."""
    filled(lake)
    before = lake.everything()
    result = run("rollback", lake.destination, "--to", "2", "--dry-run")
    assert result.exit_code == 0
    for words in ("dry run: nothing was changed", "back to", "dt=1", "deleted at once"):
        assert words in result.stdout
    assert lake.everything() == before


def test_a_rollback_restores_the_table(lake: Lake, run: RunProgram) -> None:
    """The old file is back, the log says how, and what left is kept as long as requested."""
    filled(lake)
    result = run("rollback", lake.destination, "--to", "2", "--retain", "2d")
    assert result.exit_code == 0
    assert "retained for          2d" in result.stdout
    assert "rolled back to generation 2; the table is at generation 4 now" in result.stdout
    assert lake.data().keys() == {OLD, NEW}
    assert "rollback to 2" in run("log", lake.destination).stdout
    told = plain_json(run("log", lake.destination, "--json"))["commits"]
    assert [commit["rolled_back_to"] for commit in told] == [2, 0, 0]
    again = run("rollback", lake.destination, "--to", "2")
    assert "none: generation 4 has the files of generation 2" in again.stdout


def test_a_permanent_deletion_is_confirmed(lake: Lake, run: RunProgram) -> None:
    """The question says how many files cannot come back, and how to keep them; no changes nothing."""
    filled(lake)
    before = lake.everything()
    for how in ((), ("--retain", "0h")):
        result = run("rollback", lake.destination, "--to", "2", *how, typed="n\n")
        assert "1 file will be deleted for good (--retain 7d keeps them)." in result.stderr
        assert lake.everything() == before
    kept = run("rollback", lake.destination, "--to", "2", "--retain", "2d", typed="n\n")
    assert "for good" not in kept.stderr


def test_a_rollback_does_what_was_agreed_to(
    lake: Lake, run: RunProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that comes between the question and the answer is not rolled back unseen."""
    filled(lake)
    late = lake.sealed({"dt=1/late.parquet": b"late"}, job_id=an_id("late"), conflict_mode="append")
    monkeypatch.setattr("airflow_s3commit.cli.output.Output.confirm", lambda *_, **__: late.commit())
    assert run("rollback", lake.destination, "--to", "2").exit_code == 3
    assert named("dt=1/late.parquet", an_id("late")) in lake.data()


def test_json_has_the_report(lake: Lake, run: RunProgram) -> None:
    """It is one object, with what was changed."""
    filled(lake)
    told = plain_json(run("rollback", lake.destination, "--to", "2", "--json"))
    assert (told["generation"], told["restored"], told["removed"], told["partitions"]) == (4, 1, 1, ["dt=1"])
    assert lake.data().keys() == {OLD}


def test_a_refusal_names_what_is_missing(lake: Lake, run: RunProgram) -> None:
    """A generation that is gone, one that never existed, and a text that is not a duration are named."""
    filled(lake, retain="0s")
    result = run("rollback", lake.destination, "--to", "2", "--json")
    assert (result.exit_code != 0, plain_json(result)["error"]["type"]) == (True, "NotReversible")
    assert (
        plain_json(run("rollback", lake.destination, "--to", "7", "--json"))["error"]["type"] == "NoSuchKey"
    )
    assert run("rollback", lake.destination, "--to", "2", "--retain", "soon").exit_code != 0
    assert run("rollback", lake.destination).exit_code == 2


def test_a_sweep_shows_and_deletes_replaced_files(lake: Lake, run: RunProgram) -> None:
    """It shows what it keeps and why and, after the retention, what it releases."""
    filled(lake)
    kept = run("sweep", lake.destination, "--older-than", "1d").stdout
    assert "left alone: 1 file (3 B) that generation 3 replaced: retained for 7 d" in kept
    lake.store_clock.advance(8 * 86_400)
    shown = run("sweep", lake.destination, "--older-than", "9w").stdout
    assert "1 file that generation 3 replaced" in shown
    result = run("sweep", lake.destination, "--older-than", "9w", "--apply")
    assert (result.exit_code, "1 replaced file deleted" in result.stdout) == (0, True)
    assert lake.data().keys() == {NEW}


def test_a_repair_is_a_dry_run_by_default(lake: Lake, run: RunProgram) -> None:
    """It names the damaged receipt; with ``--apply`` it is rebuilt, and then there is nothing to do."""
    lake.sealed(FILES).commit()
    key = lake.receipt_key()
    before = lake.get(key)
    lake.tamper(key, cut=3)
    shown = run("repair", lake.destination)
    assert (shown.exit_code, "add --apply" in shown.stdout) == (0, True)
    assert "would rebuild: s3://lake/" in shown.stdout
    assert lake.get(key) != before
    assert len(plain_json(run("repair", lake.destination, "--apply", "--json"))["repaired"]) == 1
    assert lake.get(key) == before
    assert "nothing to repair" in run("repair", lake.destination, "--apply").stdout
    assert "dry run" not in run("repair", lake.destination).stdout


def test_a_repair_that_fails_says_what_is_left(lake: Lake, run: RunProgram) -> None:
    """What the store refuses is a finding with its error, and the same command ends it."""
    lake.sealed(FILES).commit()
    lake.tamper(lake.receipt_key(), cut=3)
    lake.store.before = once("put", lake.receipt_key(), AccessDenied("no writing here"))
    failed = run("repair", lake.destination, "--apply")
    lake.store.rest()
    assert (failed.exit_code, "FAILED: " in failed.stdout) == (1, True)
    assert "no writing here" in failed.stdout.replace("\n", " ")
    assert run("repair", lake.destination, "--apply").exit_code == 0


def test_a_wrong_prefix_is_not_called_sound(lake: Lake, run: RunProgram) -> None:
    """If nothing exists there, the commands that would find nothing wrong say so."""
    lake.sealed(FILES).commit()
    wrong = "s3://lake/flihgts/"
    for command in ("jobs", "log", "compact", "repair", "sweep --older-than 7d"):
        told = run(*command.split(), wrong)
        assert (told.exit_code, told.stdout) == (0, f"there is no log at {wrong}: {NOT_THERE}\n")
        assert plain_json(run(*command.split(), wrong, "--json"))["message"] == told.stdout.strip()
    assert NOT_THERE in run("pending", wrong).stderr
    assert "is s3://lake/flights/ meant?" in run("repair", "s3://lake//flights/").stderr
    refused = run("rollback", lake.destination, "--to", "9")
    assert f"the newest is 2; list them with: s3commit log {lake.destination}" in refused.stderr


def test_what_cannot_be_rebuilt_is_a_finding(lake: Lake, run: RunProgram) -> None:
    """The exit code is 1, and the entry is named with the remedy."""
    lake.sealed(FILES).commit()
    lake.tamper(f"{HOME}log/{1:020d}.json", cut=3)
    result = run("repair", lake.destination, "--apply")
    assert (result.exit_code, "CANNOT BE REBUILT" in result.stdout) == (1, True)
    assert "nothing to repair" not in result.stdout


def test_a_copy_gets_a_log_of_its_own(lake: Lake, run: RunProgram) -> None:
    """Commands name the original of a copy and what to remove; then its first job lists the files."""
    lake.sealed(FILES).commit()
    copy = "s3://lake/copy/"
    for info in list(lake.store.list_objects("lake", ROOT)):
        lake.store.put("lake", f"copy/{info.key.removeprefix(ROOT)}", lake.store.get("lake", info.key).body)
    for command in (("log",), ("rollback", "--to", "1"), ("verify",), ("setup",), ("manifest",)):
        told = run(command[0], copy, *command[1:])
        assert lake.destination in told.stdout + told.stderr, command
    for info in list(lake.store.list_objects("lake", "copy/_s3commit/")):
        lake.store.delete("lake", info.key)
    assert run("setup", copy).exit_code == 0
    (first,) = plain_json(run("log", copy, "--json"))["commits"]
    assert (first["generation"], first["conflict_mode"], first["counts"]["files"]) == (1, "older-data", 2)
    assert lake.destination not in run("verify", copy).stdout


def three_files(lake: Lake) -> None:
    """Commit three files of a partition."""
    for number in range(3):
        rows = pa.table({"id": [number], "dt": ["1"]})
        write_table(rows, lake.destination, store=lake.store, conflict_mode="append", partition_by=["dt"])


def test_a_dry_run_names_partitions(lake: Lake, run: RunProgram) -> None:
    """It shows files before and after, and changes nothing."""
    three_files(lake)
    before = lake.everything()
    result = run("compact", lake.destination, "--dry-run")
    assert result.exit_code == 0, result.output
    for words in ("dry run: nothing was changed", "dt=1", "1 partition to compact, 0 without a gain"):
        assert words in result.stdout
    assert lake.everything() == before


def test_it_says_what_it_wrote(lake: Lake, run: RunProgram) -> None:
    """The text has files, rows and generation; the JSON has all of the report."""
    three_files(lake)
    told = plain_json(run("compact", lake.destination, "--partition", "dt=1", "--json"))
    assert (told["files"], told["rows"], told["generation"]) == (1, 3, 5)
    assert "0 partitions to compact, 1 without a gain" in run("compact", lake.destination).stdout
    three_files(lake)
    small = run("compact", lake.destination, "--target-size", "100", "--dry-run").stdout
    assert "0 partitions to compact, 1 without a gain" in small
    assert "1 file with 6 rows are generation 9" in run("compact", lake.destination).stdout


@pytest.mark.parametrize(("asked", "kept"), [((), 0), (("--retain", "7d"), 3)])
def test_the_old_files_stay_as_long_as_asked(
    lake: Lake, run: RunProgram, asked: tuple[str, ...], kept: int
) -> None:
    """By default a compaction deletes them at once."""
    three_files(lake)
    old = set(lake.data())
    assert run("compact", lake.destination, *asked).exit_code == 0
    assert len(old & set(lake.data())) == kept


def test_uploads_are_recorded_where_no_prefix_lists_them(
    lake: Lake, run: RunProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a store takes a compaction with ``--track-pending s3``, and none without."""
    listed = lake.store.list_uploads
    monkeypatch.setattr(
        lake.store, "list_uploads", lambda bucket, key: (one for one in listed(bucket, key) if one.key == key)
    )
    for number in range(2):
        rows, options = pa.table({"id": [number]}), JobOptions(conflict_mode="append", track_pending="s3")
        write_table(rows, lake.destination, store=lake.store, job_options=options)
    refused = run("compact", lake.destination)
    assert (refused.exit_code, len(lake.data())) == (3, 2)
    assert 'set track_pending="s3"' in refused.stderr
    assert run("compact", lake.destination, "--track-pending", "s3").exit_code == 0
    assert len(lake.data()) == 1


def test_an_unknown_partition_is_refused(lake: Lake, run: RunProgram) -> None:
    """The error names it, and how a partition is written; so does that of a size."""
    three_files(lake)
    result = run("compact", lake.destination, "--partition", "dt=5")
    assert result.exit_code != 0
    assert "'dt=5'" in result.stderr
    assert "not a size" in run("compact", lake.destination, "--target-size", "big").stderr


def test_a_compaction_without_pyarrow_says_what_to_install(
    lake: Lake, run: RunProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base install has no pyarrow: that is no bug, and the extra with it is named."""
    monkeypatch.delitem(sys.modules, "airflow_s3commit.compaction", raising=False)
    monkeypatch.delattr("airflow_s3commit.compaction", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = run("compact", lake.destination)
    assert (result.exit_code, "airflow-s3commit[tables]" in result.stderr) == (3, True)


def test_statements_are_shown_and_nothing_is_changed(lake: Lake, run: RunProgram) -> None:
    """A table that is not published has no version afterwards either."""
    shown = run("publish", lake.destination, "--ddl", "athena", "--table", "lake.flights")
    assert shown.exit_code == 0
    assert f"CREATE EXTERNAL TABLE lake.flights\nLOCATION '{lake.destination}'" in shown.stdout
    as_json = plain_json(run("publish", lake.destination, "--ddl", "duckdb", "--json"))
    assert as_json["engine"] == "duckdb"
    assert f"delta_scan('{lake.destination}')" in as_json["statements"]
    assert not [info.key for info in lake.store.list_objects("lake", "") if "_delta_log" in info.key]


def test_a_name_that_is_none_is_refused(lake: Lake, run: RunProgram) -> None:
    """It would be more than a name in the statement."""
    refused = run("publish", lake.destination, "--ddl", "trino", "--table", "a;b")
    assert refused.exit_code == 3
    assert "cannot be in a statement" in refused.stderr


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
    """The rest is still done, with exit code 1 and the error by name, once."""

    def refuse(call: StoreCall) -> None:
        if call.verb == "abort_upload" and call.key.endswith("stray.parquet"):
            raise Unavailable("slow down")

    littered.store.before = refuse
    result = run("sweep", littered.destination, "--older-than", "1d", "--apply")
    assert result.exit_code == 1
    assert "FAILED: upload" in result.stdout
    assert (result.stdout + result.stderr).count("slow down") == 1
    assert "2 jobs ended" in result.stdout


def test_a_sweep_of_nothing_asks_nothing(lake: Lake, run: RunProgram) -> None:
    """A person who asked to apply it is told so, and a script that it was no dry run."""
    lake.sealed(FILES).commit()
    sweep = ("sweep", lake.destination, "--older-than", "1d", "--apply")
    asked = run(*sweep, typed="")
    assert (asked.exit_code, asked.stderr) == (0, "")
    assert plain_json(run(*sweep, "--json"))["dry_run"] is False


def test_what_changed_after_the_plan_is_skipped_and_said(
    littered: Lake, run: RunProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep ends what is still as it was shown, and names the rest, which is no failure."""

    def overtaken(*args: Any, **how: Any) -> Any:
        plan = plan_sweep(*args, **how)
        (orphan,) = plan.uploads
        littered.store.abort_upload("lake", orphan.key, orphan.upload_id)
        littered.job().abort()
        return plan

    monkeypatch.setattr("airflow_s3commit.cli.table.plan_sweep", overtaken)
    result = run("sweep", littered.destination, "--older-than", "1d", "--apply")
    assert result.exit_code == 0
    assert re.findall(r"skipped: (\w+) .*it is gone", result.stdout) == ["job", "upload"]
    assert "1 job ended" in result.stdout


def test_a_sweep_looks_into_the_staging_that_it_is_given(lake: Lake, run: RunProgram) -> None:
    """What outlived the record that names it is found by the option alone."""
    staging, left = "s3://other/records/", f"records/__magic_job-{OURS}/left"
    lake.sealed(FILES, staging=staging).commit()
    lake.store.put("other", left, b"")
    for words, count in (((), 1), (("--staging", staging), 0)):
        assert run("sweep", lake.destination, "--older-than", "0s", "--apply", *words).exit_code == 0
        assert len(list(lake.store.list_objects("other", "records/"))) == count


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
    assert "left alone" not in result.stderr
    assert littered.staging(OURS) == []


def test_a_failure_of_an_applied_sweep_is_its_destination_s(
    littered: Lake, run: RunProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone it is the error; of a registry it is a finding, as of an entry that cannot be removed."""
    registry = "s3://lake/registry/"
    for destination in (littered.destination, "s3://lake/gone/"):
        register_destination(littered.store, registry, destination)
    littered.store_clock.advance(2 * DAY)

    def denied(*_: object) -> None:
        raise AccessDenied("403")

    monkeypatch.setattr("airflow_s3commit.cli.table.apply_sweep", denied)
    assert run("sweep", littered.destination, "--older-than", "1d", "--apply").exit_code == 4
    sweep = ("sweep", "--registry", registry, "--older-than", "1d", "--apply", "--json")
    told = plain_json(run(*sweep))
    assert told["failures"] == [{"destination": littered.destination, "message": "403"}]
    assert told["forgotten"] == ["s3://lake/gone/"]
    register_destination(littered.store, registry, "s3://lake/gone/")
    littered.store_clock.advance(2 * DAY)
    monkeypatch.setattr("airflow_s3commit.cli.table.forget_destination", denied)
    result = run(*sweep)
    assert result.exit_code == 1
    assert {one["destination"] for one in plain_json(result)["failures"]} == {
        littered.destination,
        "s3://lake/gone/",
    }


def test_a_registry_is_swept_of_the_dead_alone(lake: Lake, run: RunProgram) -> None:
    """A young job stays, and a dry run leaves the entry of what is gone, also if it is all that it finds."""
    registry = "s3://lake/registry/"
    register_destination(lake.store, registry, "s3://lake/gone/")
    lake.store_clock.advance(2 * DAY)
    register_destination(lake.store, registry, lake.destination)
    lake.run_task(lake.set_up(), FILES)
    sweep = ("sweep", "--registry", registry, "--older-than", "1d")
    shown = run(*sweep).stdout
    assert ("add --apply" in shown, "0 destinations of 1 to sweep" in shown) == (True, True)
    assert len(read_registry(lake.store, Destination.parse(registry))) == 2
    assert run(*sweep, "--apply").exit_code == 0
    (left,) = read_registry(lake.store, Destination.parse(registry))
    assert (left.record.destination, len(lake.pending())) == (lake.destination, 2)

"""What is done to a table says what it changes, and a dry run changes nothing."""

from __future__ import annotations

import pyarrow as pa

from airflow_s3commit import write_table
from tests.cli.conftest import FILES, RunProgram, plain_json
from tests.protocol.building import HOME, OURS, ROOT, THEIRS, Lake, named

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
    result = run("rollback", lake.destination, "--to", "2", typed="n\n")
    assert "1 file will be deleted for good (--retain 7d keeps them)." in result.stderr
    assert lake.everything() == before
    kept = run("rollback", lake.destination, "--to", "2", "--retain", "2d", typed="n\n")
    assert "for good" not in kept.stderr


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


def test_a_wrong_prefix_is_not_called_sound(lake: Lake, run: RunProgram) -> None:
    """If nothing exists there, the commands that would find nothing wrong say so."""
    lake.sealed(FILES).commit()
    wrong = "s3://lake/flihgts/"
    assert f"there is no log at {wrong}: check the bucket and the prefix" in run("repair", wrong).stdout
    assert "is s3://lake/flights/ meant?" in run("repair", "s3://lake//flights/").stderr
    refused = run("rollback", lake.destination, "--to", "9")
    assert f"the newest is 2; list them with: s3commit log {lake.destination}" in refused.stderr


def test_what_cannot_be_rebuilt_is_a_finding(lake: Lake, run: RunProgram) -> None:
    """The exit code is 1, and the entry is named with the remedy."""
    lake.sealed(FILES).commit()
    lake.tamper(f"{HOME}log/{1:020d}.json", cut=3)
    result = run("repair", lake.destination, "--apply")
    assert (result.exit_code, "CANNOT BE REBUILT" in result.stdout) == (1, True)


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
    assert "1 file with 6 rows are generation 9 now" in run("compact", lake.destination).stdout


def test_an_unknown_partition_is_refused(lake: Lake, run: RunProgram) -> None:
    """The error names it, and how a partition is written; so does that of a size."""
    three_files(lake)
    result = run("compact", lake.destination, "--partition", "dt=5")
    assert result.exit_code != 0
    assert "'dt=5'" in result.stderr
    assert "not a size" in run("compact", lake.destination, "--target-size", "big").stderr


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

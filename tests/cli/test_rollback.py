"""``rollback`` shows what it changes, and makes the table what it was."""

from __future__ import annotations

from tests.cli.conftest import RunProgram, plain_json
from tests.protocol.building import OURS, THEIRS, Lake, named

OLD, NEW = named("dt=1/a", THEIRS), named("dt=1/a")


def filled(lake: Lake, retain: str = "7d") -> None:
    """Commit a partition twice."""
    lake.sealed({"dt=1/a": b"old"}, job_id=THEIRS, conflict_mode="append").commit()
    lake.sealed({"dt=1/a": b"new"}, job_id=OURS, retain=retain).commit()


def test_a_dry_run_shows_what_would_change(lake: Lake, run: RunProgram) -> None:
    """Generations, partitions and files; nothing is changed."""
    filled(lake)
    before = lake.everything()
    result = run("rollback", lake.destination, "--to", "1", "--dry-run")
    assert result.exit_code == 0
    for words in ("dry run: nothing was changed", "2, back to 1", "dt=1", "1 file, deleted at once"):
        assert words in result.stdout
    assert lake.everything() == before


def test_the_table_is_what_it_was(lake: Lake, run: RunProgram) -> None:
    """The old file is back, the log says how, and what left is kept for as long as asked."""
    filled(lake)
    result = run("rollback", lake.destination, "--to", "1", "--retain", "2d")
    assert result.exit_code == 0
    assert "retained for 2d" in result.stdout
    assert "rolled back to generation 1; the table is at generation 3 now" in result.stdout
    assert lake.data().keys() == {OLD, NEW}
    assert "rollback to 1" in run("log", lake.destination).stdout
    told = plain_json(run("log", lake.destination, "--json"))["commits"]
    assert [commit["rolled_back_to"] for commit in told] == [1, 0, 0]
    again = run("rollback", lake.destination, "--to", "1")
    assert "none: generation 3 has the files of generation 1" in again.stdout


def test_what_is_deleted_for_good_is_asked_about(lake: Lake, run: RunProgram) -> None:
    """The question says how many files cannot come back, and how to keep them; no is no."""
    filled(lake)
    before = lake.everything()
    result = run("rollback", lake.destination, "--to", "1", typed="n\n")
    assert "1 file will be deleted for good (--retain 7d keeps them)." in result.stderr
    assert lake.everything() == before
    kept = run("rollback", lake.destination, "--to", "1", "--retain", "2d", typed="n\n")
    assert "for good" not in kept.stderr


def test_json_has_the_report(lake: Lake, run: RunProgram) -> None:
    """One object, with what was changed."""
    filled(lake)
    told = plain_json(run("rollback", lake.destination, "--to", "1", "--json"))
    assert (told["generation"], told["restored"], told["removed"], told["partitions"]) == (3, 1, 1, ["dt=1"])
    assert lake.data().keys() == {OLD}


def test_a_refusal_names_what_is_missing(lake: Lake, run: RunProgram) -> None:
    """A generation that is gone, one that never was, and a text that is no duration."""
    filled(lake, retain="0s")
    result = run("rollback", lake.destination, "--to", "1", "--json")
    assert (result.exit_code != 0, plain_json(result)["error"]["type"]) == (True, "NotReversible")
    assert (
        plain_json(run("rollback", lake.destination, "--to", "7", "--json"))["error"]["type"] == "NoSuchKey"
    )
    assert run("rollback", lake.destination, "--to", "1", "--retain", "soon").exit_code != 0
    assert run("rollback", lake.destination).exit_code == 2


def test_a_sweep_shows_and_deletes_replaced_files(lake: Lake, run: RunProgram) -> None:
    """What it keeps and why; after the retention, what it releases."""
    filled(lake)
    kept = run("sweep", lake.destination, "--older-than", "1d").stdout
    assert "left alone: 1 file (3 B) that generation 2 replaced: retained for 7 d" in kept
    lake.store_clock.advance(8 * 86_400)
    shown = run("sweep", lake.destination, "--older-than", "9w").stdout
    assert "Replaced files" in shown
    result = run("sweep", lake.destination, "--older-than", "9w", "--apply")
    assert (result.exit_code, "1 replaced file deleted" in result.stdout) == (0, True)
    assert lake.data().keys() == {NEW}

"""``baseline`` lists the files that are older than the log."""

from __future__ import annotations

from tests.cli.conftest import FILES, RunProgram, plain_json
from tests.protocol.building import THEIRS, Lake, named


def test_a_baseline_is_a_dry_run_by_default(lake: Lake, run: RunProgram) -> None:
    """It counts the files and names unfinished jobs; with --apply it lists the files, once."""
    lake.put({"dt=1/a": b"1", "dt=2/b": b"22"})
    lake.sealed(FILES, job_id=THEIRS).plan()
    lake.put({named("dt=1/part-0.parquet", THEIRS): b"half"})
    before = lake.everything()
    shown = run("baseline", lake.destination)
    assert (shown.exit_code, "add --apply" in shown.stdout) == (0, True)
    assert "has 2 files (3 B) in 2 partitions that no commit lists" in shown.stdout
    assert f"left out: unfinished job: {THEIRS}" in shown.stdout
    assert lake.everything() == before
    told = plain_json(run("baseline", lake.destination, "--apply", "--json"))
    assert (told["generation"], told["files"], told["unfinished"]) == (1, 2, [THEIRS])
    assert "commits list every file" in run("baseline", lake.destination, "--apply").stdout

"""``repair`` names what it would rebuild, and rebuilds it with ``--apply``."""

from __future__ import annotations

from tests.cli.conftest import FILES, RunProgram, plain_json
from tests.protocol.building import HOME, OURS, ROOT, Lake


def test_a_repair_is_a_dry_run_by_default(lake: Lake, run: RunProgram) -> None:
    """It names the damaged manifest; with --apply it is as before, and then there is nothing to do."""
    lake.sealed(FILES).commit()
    key = f"{HOME}manifests/{OURS}.json"
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
    """Where nothing is, the commands that would find nothing wrong say that nothing is there."""
    lake.sealed(FILES).commit()
    wrong = "s3://lake/flihgts/"
    assert f"no log is at {wrong}: are bucket and prefix right?" in run("repair", wrong).stdout
    assert f"no file is at {wrong}: are bucket and prefix right?" in run("baseline", wrong).stdout
    assert "is s3://lake/flights/ meant?" in run("repair", "s3://lake//flights/").stderr
    refused = run("rollback", lake.destination, "--to", "9")
    assert f"the newest is 1; list them with: s3commit log {lake.destination}" in refused.stderr


def test_what_cannot_be_rebuilt_is_a_finding(lake: Lake, run: RunProgram) -> None:
    """Exit code 1, and the entry with the remedy."""
    lake.sealed(FILES).commit()
    lake.tamper(f"{HOME}log/{1:020d}.json", cut=3)
    result = run("repair", lake.destination, "--apply")
    assert (result.exit_code, "CANNOT BE REBUILT" in result.stdout) == (1, True)


def test_a_copy_is_rebased(lake: Lake, run: RunProgram) -> None:
    """A dry run compares, --apply takes over the history, and a changed file is a finding."""
    lake.sealed(FILES).commit()
    for info in list(lake.store.list_objects("lake", ROOT)):
        lake.store.put("lake", f"copy/{info.key.removeprefix(ROOT)}", lake.store.get("lake", info.key).body)
    for command in (("repair",), ("log",), ("rollback", "--to", "1"), ("verify",)):
        told = run(command[0], "s3://lake/copy/", *command[1:])
        assert "--rebase" in told.stdout + told.stderr, command
    sizes = ("repair", "s3://lake/copy/", "--rebase", "--accept-sizes")
    refused = run("repair", "s3://lake/copy/", "--rebase")
    assert (refused.exit_code, "ONLY THE SIZE IS THE SAME" in refused.stdout) == (1, True)
    shown = run(*sizes)
    assert (shown.exit_code, "add --apply" in shown.stdout) == (0, True)
    assert "taken over, by generation 2" in run(*sizes, "--apply").stdout
    assert "taken over before" in run("repair", "s3://lake/copy/", "--rebase", "--apply").stdout
    assert run("repair", lake.destination, "--accept-sizes").exit_code == 2

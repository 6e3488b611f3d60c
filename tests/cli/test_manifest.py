"""Manifest: totals by partition, or every file, of the last job or of one."""

from __future__ import annotations

import hashlib

from tests.cli.conftest import FILES, RunProgram, plain_json
from tests.protocol.building import BUCKET, HOME, OURS, ROOT, THEIRS, Lake, named


def test_the_last_manifest_is_shown(lake: Lake, run: RunProgram) -> None:
    """What it brought and replaced, where, and what the orchestrator said."""
    lake.put({"dt=1/old.parquet": b"old"})
    lake.sealed(FILES).commit()
    result = run("manifest", lake.destination)
    assert result.exit_code == 0
    for words in (OURS, "2 files, 10 B, 10 rows in 2 partitions", "1 file, 3 B", "dt=2"):
        assert words in result.stdout
    told = plain_json(run("manifest", lake.destination, "--json"))
    assert (told["job_id"], told["counts"]["files"], told["replaced"]["bytes"]) == (OURS, 2, 3)
    assert told["partitions"]["dt=2"]["bytes"] == 7


def test_files_are_listed_one_a_line(lake: Lake, run: RunProgram) -> None:
    """Size, rows and key, ready for other programs; as JSON one object with all of them."""
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
    """The object is whole without a single file in it."""
    lake.sealed({}).commit()
    assert plain_json(run("manifest", lake.destination, "--files", "--json"))["files"] == []


def test_an_earlier_job_has_its_own(lake: Lake, run: RunProgram) -> None:
    """The manifest of a job is found by its id, whatever was committed later."""
    lake.sealed(FILES).commit()
    lake.sealed(FILES, job_id=THEIRS).commit()
    assert plain_json(run("manifest", lake.destination, OURS, "--json"))["job_id"] == OURS
    assert plain_json(run("manifest", lake.destination, "--json"))["job_id"] == THEIRS


def test_nothing_committed_is_a_finding(lake: Lake, run: RunProgram) -> None:
    """Exit code 1, for the destination and for a job, with where to look."""
    lake.sealed(FILES)
    for job in ((), (OURS,)):
        result = run("manifest", lake.destination, *job)
        assert result.exit_code == 1
        assert "next: " in result.stdout
        told = plain_json(run("manifest", lake.destination, *job, "--json"))
        assert told["manifest"] is None


def test_a_foreign_marker_is_refused(lake: Lake, run: RunProgram) -> None:
    """An empty _SUCCESS is the classic committer's: exit code 3."""
    lake.put({"_SUCCESS": b""})
    result = run("manifest", lake.destination)
    assert result.exit_code == 3
    assert "classic committer" in result.stderr


def test_a_list_that_breaks_off_is_one_error(lake: Lake, run: RunProgram) -> None:
    """A line that is no file leaves one JSON object with the error, and no half of a list before it."""
    lake.sealed(FILES).commit()
    key = f"{HOME}manifests/{OURS}.jsonl"
    body = lake.get(key)
    broken = body + b'{"key": 1}\n'
    lake.store.put(BUCKET, key, broken)
    digests = [hashlib.sha256(text).hexdigest().encode() for text in (body, broken)]
    for record in (f"manifests/{OURS}.json", "log/00000000000000000001.json"):
        lake.tamper(HOME + record, old=digests[0], new=digests[1])
    result = run("manifest", lake.destination, "--files", "--json")
    assert result.exit_code == 3
    assert f"line 3 of s3://{BUCKET}/{key}" in plain_json(result)["error"]["message"]

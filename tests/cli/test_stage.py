"""Setup, put, seal and commit: a stage from a shell, by arguments or by the environment."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from airflow_s3commit import Destination
from airflow_s3commit.cli.app import program
from airflow_s3commit.exceptions import Unavailable
from airflow_s3commit.protocol.metadata.registry import read_registry
from airflow_s3commit.protocol.model.columns import WrittenColumns
from airflow_s3commit.tables.columns import from_text
from tests.cli.conftest import RunProgram, plain_json
from tests.protocol.building import OURS, Crash, Lake, once

STAGE = ("--stage", "load", "--attempt", "1")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Return a directory with two days of files."""
    for day in ("1", "2"):
        (tmp_path / f"dt={day}").mkdir()
        (tmp_path / f"dt={day}" / "part.csv").write_text(f"day {day}\n")
    return tmp_path


def data(lake: Lake) -> dict[str, bytes]:
    """Return the data files, without the job's id in their names."""
    return {path.replace(f"-{OURS}", ""): body for path, body in lake.data().items()}


def test_from_setup_to_commit(lake: Lake, run: RunProgram, files: Path) -> None:
    """A directory, a file and standard input stay pending until the commit, and then are all visible."""
    job = run("setup", lake.destination, "--job-id", OURS, "--conflict-mode", "append").stdout
    assert job == f"{OURS}\n"
    assert run("put", lake.destination, OURS, str(files), *STAGE).exit_code == 0
    single = files / "dt=1" / "part.csv"
    assert run("put", lake.destination, OURS, str(single), "dt=3/", *STAGE).exit_code == 0
    piped = CliRunner().invoke(
        program, ["put", lake.destination, OURS, "-", "dt=4/piped.csv", *STAGE], input=b"\x00piped"
    )
    assert piped.exit_code == 0, piped.output
    assert lake.data() == {}
    sealed = plain_json(run("seal", lake.destination, OURS, *STAGE, "--json"))
    assert (sealed["result"], sealed["files"], sealed["partitions"]) == ("sealed", 4, 4)
    assert run("commit", lake.destination, OURS, "--seal").exit_code == 0
    assert data(lake) == {
        "dt=1/part.csv": b"day 1\n",
        "dt=2/part.csv": b"day 2\n",
        "dt=3/part.csv": b"day 1\n",
        "dt=4/piped.csv": b"\x00piped",
    }
    assert lake.pending() == []


def test_everything_can_come_from_the_environment(lake: Lake, run: RunProgram, files: Path) -> None:
    """Variables name a task's destination, job, stage and attempt once, and commands only the rest."""
    environment = {
        "S3COMMIT_DESTINATION": lake.destination,
        "S3COMMIT_JOB": OURS,
        "S3COMMIT_STAGE": "load",
        "S3COMMIT_ATTEMPT": "1",
    }
    for words in (["setup", "--job-id", OURS], ["put", str(files)], ["seal"], ["commit", "--seal"]):
        done = run(*words, **environment)
        assert done.exit_code == 0, done.output
    assert len(lake.data()) == 2


def test_a_separate_staging_is_named_once(lake: Lake, run: RunProgram, files: Path) -> None:
    """Put, seal and abort find it by the job's record."""
    told = plain_json(
        run("setup", lake.destination, "--job-id", OURS, "--staging", "s3://lake/tmp/", "--json")
    )
    assert told["staging"].startswith("s3://lake/tmp/")
    for words in (
        ["put", lake.destination, OURS, str(files), *STAGE],
        ["seal", lake.destination, OURS, *STAGE],
    ):
        assert run(*words).exit_code == 0
    assert any("/stages/load-1/" in key for key in lake.keys("tmp/"))
    assert run("abort", lake.destination, OURS).exit_code == 0
    assert lake.pending() == []


def test_a_destination_argument_overrides_the_environment(lake: Lake, run: RunProgram) -> None:
    """A destination on the command line is never replaced by that of the environment."""
    others = {"S3COMMIT_DESTINATION": "s3://other/x/", "S3COMMIT_JOB": "x"}
    told = plain_json(run("abort", lake.destination, OURS, "--json", **others))
    assert (told["job_id"], told["destination"]) == (OURS, lake.destination)
    assert list(lake.store.list_objects("other", "")) == []


def test_a_second_put_replaces_the_first(lake: Lake, run: RunProgram, files: Path) -> None:
    """A repeated put leaves one upload of each file, and the last content counts."""
    run("setup", lake.destination, "--job-id", OURS)
    file = files / "dt=1" / "part.csv"
    for body in ("first", "second"):
        file.write_text(body)
        assert run("put", lake.destination, OURS, str(file), "dt=1/", *STAGE).exit_code == 0
    assert len(lake.pending()) == 1
    run("seal", lake.destination, OURS, *STAGE)
    run("commit", lake.destination, OURS, "--seal")
    assert data(lake) == {"dt=1/part.csv": b"second"}


@pytest.mark.parametrize(
    ("verb", "after"),
    [
        pytest.param("put", True, id="before it removes the first"),
        pytest.param("delete", False, id="when the first one's uploads are gone"),
        pytest.param("delete", True, id="when the first one's record is gone"),
    ],
)
def test_a_put_killed_after_its_commit_is_repaired_by_the_next(
    lake: Lake, run: RunProgram, files: Path, verb: str, *, after: bool
) -> None:
    """Another put removes both attempts that may be left, and its content counts."""
    run("setup", lake.destination, "--job-id", OURS)
    file = files / "dt=1" / "part.csv"
    put = ("put", lake.destination, OURS, str(file), "dt=1/", *STAGE)
    assert run(*put).exit_code == 0
    file.write_text("second")
    lake.store.die(verb, ".pendingset", after=after)
    with pytest.raises(Crash):
        run(*put)
    lake.store.rest()
    file.write_text("third")
    healed = run(*put)
    assert healed.exit_code == 0, healed.output
    assert len(lake.pending()) == 1
    assert run("seal", lake.destination, OURS, *STAGE).exit_code == 0
    assert run("commit", lake.destination, OURS, "--seal").exit_code == 0
    assert data(lake) == {"dt=1/part.csv": b"third"}


def test_a_put_that_fails_leaves_nothing_pending(lake: Lake, run: RunProgram, files: Path) -> None:
    """A part that fails ends the call, and all of its uploads with it."""
    run("setup", lake.destination, "--job-id", OURS)
    lake.store.before = once("upload_part", ".csv", Unavailable("503 Slow Down"), nth=2)
    failed = run("put", lake.destination, OURS, str(files), *STAGE)
    lake.store.rest()
    assert failed.exit_code == 4
    assert lake.pending() == []
    assert run("put", lake.destination, OURS, str(files), *STAGE).exit_code == 0


def test_large_files_are_streamed(lake: Lake, run: RunProgram, tmp_path: Path) -> None:
    """A file is sent in parts as it is read, with any committer: none of it is staged on disk."""
    run("setup", lake.destination, "--job-id", OURS, "--committer", "directory")
    large = tmp_path / "large.bin"
    large.write_bytes(bytes(70 * 1024 * 1024))
    lake.store.calls.clear()
    assert run("put", lake.destination, OURS, str(large), "dt=1/", *STAGE).exit_code == 0
    parts = [call for call in lake.store.calls if call.verb == "upload_part"]
    assert len(parts) == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("missing.csv", "dt=1/"), "neither a file nor a directory"),
        (("-",), "needs a TARGET"),
        (("-", "dt=1/"), "needs a TARGET"),
        (("hidden",), "hidden from readers"),
        (("-", "dt=/rows.csv"), "no value"),
        (("-", "dt=None/rows.csv"), "no value"),
        (("empty", "dt=1/hour="), "no value"),
    ],
)
def test_invalid_sources_are_refused_before_any_upload(
    lake: Lake, run: RunProgram, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    """A missing source, a nameless stream, a partition without a value and a hidden file are usage errors."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "_SUCCESS").touch()
    words = tuple(word if word == "-" or "=" in word else str(tmp_path / word) for word in words)
    run("setup", lake.destination, "--job-id", OURS)
    refused = run("put", lake.destination, OURS, *words, *STAGE)
    assert refused.exit_code == 2
    assert message in refused.stderr
    assert lake.pending() == []


def test_a_put_of_parquet_records_the_columns(lake: Lake, run: RunProgram, tmp_path: Path) -> None:
    """The columns come from the footer of the file, those of the partition from its path."""
    for name in ("a", "b"):
        pq.write_table(pa.table({"id": [1, 2], "when": [None, 1.5]}), tmp_path / f"{name}.parquet")
    run("setup", lake.destination, "--job-id", OURS, "--conflict-mode", "append")
    for name in ("a", "b"):
        run("put", lake.destination, OURS, str(tmp_path / f"{name}.parquet"), f"dt={name}/", *STAGE)
    run("seal", lake.destination, OURS, *STAGE)
    (text,) = lake.job().commit(stages=[("load", "1")]).schemas
    found = WrittenColumns.of(text, "here")
    assert [(field.name, field.type) for field in found.spark.fields] == [
        ("id", "long"),
        ("when", "double"),
        ("dt", "void"),
    ]
    assert (found.format, found.partitions) == ("parquet", ["dt"])
    assert from_text(text, "here").files.names == ["id", "when"]


def test_a_stage_without_a_put_is_sealed_only_on_request(lake: Lake, run: RunProgram) -> None:
    """A wrong stage or attempt must not silently seal nothing."""
    run("setup", lake.destination, "--job-id", OURS)
    refused = run("seal", lake.destination, OURS, *STAGE)
    assert refused.exit_code == 3
    assert "nothing was put to stage load-1" in refused.stderr
    assert run("seal", lake.destination, OURS, *STAGE, "--empty").exit_code == 0


def test_a_sealed_attempt_accepts_no_more(lake: Lake, run: RunProgram, files: Path) -> None:
    """Output that would never count is refused before the upload."""
    run("setup", lake.destination, "--job-id", OURS)
    run("put", lake.destination, OURS, str(files), *STAGE)
    run("seal", lake.destination, OURS, *STAGE)
    refused = run("put", lake.destination, OURS, str(files), *STAGE)
    assert refused.exit_code == 3
    assert "is sealed" in refused.stderr
    assert len(lake.pending()) == 2


@pytest.mark.parametrize("by_variable", [True, False])
def test_a_set_up_registers_its_destination(lake: Lake, run: RunProgram, *, by_variable: bool) -> None:
    """An option or a variable names the registry, and the output is only the job's id."""
    registry = "s3://lake/registry/"
    words = [] if by_variable else ["--registry", registry]
    variables = {"S3COMMIT_REGISTRY": registry} if by_variable else {}
    assert run("setup", lake.destination, "--job-id", OURS, *words, **variables).stdout == f"{OURS}\n"
    (entry,) = read_registry(lake.store, Destination.parse(registry))
    assert entry.record.destination == lake.destination

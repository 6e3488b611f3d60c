"""A job is written and ended from a shell; replacing data needs confirmation, or is refused."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from airflow_s3commit import Destination, Job, JobOptions, ObjectOptions
from airflow_s3commit.cli.app import program
from airflow_s3commit.exceptions import AccessDenied, OutcomeUnknown, StoreRejected, Unavailable
from airflow_s3commit.protocol.metadata.registry import read_registry
from airflow_s3commit.protocol.model.sealed_job import WrittenColumns
from airflow_s3commit.tables.columns import from_text
from airflow_s3commit.testing import StoreCall
from tests.cases import each
from tests.cli.conftest import FILES, OLD, RunProgram, plain_json
from tests.protocol.building import BUCKET, HOME, OURS, THEIRS, Crash, Lake, an_id, named, once
from tests.protocol.hadoop.dead_jobs import UUID, DeadJob

SALES = "s3a://lake/sales/"
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


def test_a_job_is_set_up_as_asked(lake: Lake, run: RunProgram) -> None:
    """Without options it is as one of Python's; the mode of Spark's own writers is none of the command's."""
    assert run("setup", lake.destination, "--job-id", OURS).exit_code == 0
    assert lake.job().record().options == JobOptions()
    words = ("--conflict-mode", "append", "--committer", "magic", "--track-pending", "s3", "--retain", "7d")
    words += ("--publish", "delta", "--name", "nightly", "--object-option", "sse=AES256")
    run("setup", lake.destination, "--job-id", THEIRS, *words)
    record = lake.job(THEIRS).record()
    assert record.options == JobOptions(
        conflict_mode="append",
        committer="magic",
        track_pending="s3",
        retain="7d",
        publish="delta",
        object_options=ObjectOptions(sse="AES256"),
    )
    assert "nightly" in record.context.values()
    assert run("setup", lake.destination, "--conflict-mode", "as-written").exit_code == 2


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


def test_options_with_uris_do_not_hide_the_environment(lake: Lake, run: RunProgram) -> None:
    """The destination comes from its variable, also where an option names another place on S3."""
    for option in ("--staging", "--registry"):
        done = run("setup", option, "s3://lake/other/", S3COMMIT_DESTINATION=lake.destination)
        assert done.exit_code == 0, done.output


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


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n"])
def test_a_destination_argument_overrides_the_environment(lake: Lake, run: RunProgram, scheme: str) -> None:
    """A destination on the command line, however spelt, is never replaced by that of the environment."""
    lake.sealed(FILES)
    others = {"S3COMMIT_DESTINATION": "s3://other/x/", "S3COMMIT_JOB": "x"}
    given = lake.destination.replace("s3:", f"{scheme}:")
    told = plain_json(run("abort", given, OURS, "--json", **others))
    assert (told["job_id"], told["destination"]) == (OURS, lake.destination)
    assert list(lake.store.list_objects("other", "")) == []


def test_a_second_put_replaces_the_first(lake: Lake, run: RunProgram, files: Path) -> None:
    """A put to the same path, of whichever file, leaves one upload of it, and the last content counts."""
    run("setup", lake.destination, "--job-id", OURS)
    for body in ("first", "second"):
        (files / body).write_text(body)
        assert run("put", lake.destination, OURS, str(files / body), "dt=1/part.csv", *STAGE).exit_code == 0
    assert len(lake.pending()) == 1
    run("seal", lake.destination, OURS, *STAGE)
    run("commit", lake.destination, OURS, "--seal")
    assert data(lake) == {"dt=1/part.csv": b"second"}


@each("source", [os.fsdecode(b"\xff.csv"), "plain.csv"])
def test_names_that_are_no_text_are_refused(lake: Lake, run: RunProgram, source: str) -> None:
    """Of a file or a target, as the file system has it: the error is one of the path."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, source).write_bytes(b"1")
        lake.set_up()
        target = "" if source != "plain.csv" else os.fsdecode(b"a\xff/")
        done = run("put", lake.destination, OURS, str(Path(folder, source)), target, *STAGE)
    assert (done.exit_code, "control character U+DCFF" in done.stderr) == (3, True)


def test_puts_to_one_directory_add_up(lake: Lake, run: RunProgram, files: Path) -> None:
    """Files with names of their own are beside one another, each replaced by its own repetition alone."""
    run("setup", lake.destination, "--job-id", OURS)
    (files / "link.csv").symlink_to(files / "dt=1" / "part.csv")
    for name in ("dt=1/part.csv", "link.csv", "dt=1/part.csv"):
        assert run("put", lake.destination, OURS, str(files / name), "dt=3/", *STAGE).exit_code == 0
    run("seal", lake.destination, OURS, *STAGE)
    run("commit", lake.destination, OURS, "--seal")
    assert data(lake) == {"dt=3/part.csv": b"day 1\n", "dt=3/link.csv": b"day 1\n"}


def test_a_directory_is_put_again_as_it_is_now(lake: Lake, run: RunProgram, files: Path) -> None:
    """What the last put of a target found, in the directory or in that of a link, is all there is."""
    run("setup", lake.destination, "--job-id", OURS)
    top = files.with_name("linked")
    top.symlink_to(files)
    assert run("put", lake.destination, OURS, str(top), "of=x/", *STAGE).exit_code == 0
    (files / "dt=1" / "part.csv").unlink()
    assert run("put", lake.destination, OURS, str(top), "of=x/", *STAGE).exit_code == 0
    run("seal", lake.destination, OURS, *STAGE)
    run("commit", lake.destination, OURS, "--seal")
    assert data(lake) == {"of=x/dt=2/part.csv": b"day 2\n"}


@pytest.mark.parametrize("targets", [("of=x", "of=x/"), ("of=x/", "of=x")])
def test_a_directory_is_the_same_target_with_and_without_a_slash(
    lake: Lake, run: RunProgram, files: Path, targets: tuple[str, str]
) -> None:
    """The second put of a directory replaces the first, however its target is written."""
    run("setup", lake.destination, "--job-id", OURS)
    for target in targets:
        assert run("put", lake.destination, OURS, str(files), target, *STAGE).exit_code == 0
    assert run("seal", lake.destination, OURS, *STAGE).exit_code == 0
    assert run("commit", lake.destination, OURS, "--seal").exit_code == 0
    assert sorted(data(lake)) == ["of=x/dt=1/part.csv", "of=x/dt=2/part.csv"]


def test_a_put_has_the_media_type_that_it_names(
    lake: Lake, run: RunProgram, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the option it is that of any bytes."""
    types: list[str] = []
    create = lake.store.create_upload
    monkeypatch.setattr(
        lake.store,
        "create_upload",
        lambda *key, **how: types.append(how["content_type"]) or create(*key, **how),
    )
    run("setup", lake.destination, "--job-id", OURS)
    for words in ((), ("--content-type", "text/csv")):
        run("put", lake.destination, OURS, str(files / "dt=1" / "part.csv"), "dt=1/", *words, *STAGE)
    assert [*dict.fromkeys(types)] == ["application/octet-stream", "text/csv"]


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


def test_large_files_are_streamed(
    lake: Lake, run: RunProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is sent in parts as it is read, with any committer: none of it is staged on disk."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "no disk"))
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
        (("", "dt=1/"), "SOURCE is empty"),
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
    """An empty or missing source, a nameless stream, a lost value and a hidden file are usage errors."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "_SUCCESS").touch()
    words = tuple(word if word in ("", "-") or "=" in word else str(tmp_path / word) for word in words)
    run("setup", lake.destination, "--job-id", OURS)
    refused = run("put", lake.destination, OURS, *words, *STAGE)
    assert refused.exit_code == 2
    assert message in refused.stderr
    assert lake.pending() == []


def test_a_put_leaves_nothing_out_unsaid(
    lake: Lake, run: RunProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link to a directory or to nothing, and what cannot be read, is a usage error before any upload."""
    for name in ("linked", "dangling", "locked/dt=2"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "part.csv").touch()
    (tmp_path / "linked" / "dt=2").symlink_to(tmp_path / "dangling")
    (tmp_path / "dangling" / "dt=2").symlink_to(tmp_path / "gone")
    unreadable, access = tmp_path / "locked" / "dt=2", os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != unreadable and access(path, mode))
    run("setup", lake.destination, "--job-id", OURS)
    for source in ("linked", "dangling", "locked", "locked/dt=2"):
        refused = run("put", lake.destination, OURS, str(tmp_path / source), "dt=1/", *STAGE)
        assert refused.exit_code == 2
        assert "/dt=2 is neither a file nor a directory that can be read" in refused.stderr
    assert lake.pending() == []


@pytest.mark.parametrize("piped", [False, True])
def test_a_put_of_parquet_records_the_columns(
    lake: Lake, run: RunProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, piped: bool
) -> None:
    """The columns come from the footer, in however many pieces it is read, and the path."""
    monkeypatch.setattr("airflow_s3commit.cli.steps._CHUNK", 100)
    run("setup", lake.destination, "--job-id", OURS, "--conflict-mode", "append")
    for name in ("a", "b"):
        file = tmp_path / f"{name}.parquet"
        pq.write_table(pa.table({"id": [1, 2], "when": [None, 1.5]}), file)
        source, body = ("-", file.read_bytes()) if piped else (str(file), None)
        words = ["put", lake.destination, OURS, source, f"dt={name}/{file.name}", *STAGE]
        assert CliRunner().invoke(program, words, input=body).exit_code == 0
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


@pytest.mark.parametrize("lacks", ["footer", "metadata", "pyarrow"])
def test_a_file_of_unknown_columns_is_put(
    lake: Lake, run: RunProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    """One that only looks like Parquet, has odd metadata, or cannot be read here, is as any other file."""
    file = tmp_path / "notes.parquet"
    odd = {"org.apache.spark.sql.parquet.row.metadata": "{"} if lacks == "metadata" else None
    pq.write_table(pa.table({"id": [1]}).replace_schema_metadata(odd), file)
    if lacks == "footer":
        file.write_text("no footer")
    if lacks == "pyarrow":
        monkeypatch.setitem(sys.modules, "airflow_s3commit.tables.columns", None)
    run("setup", lake.destination, "--job-id", OURS)
    assert run("put", lake.destination, OURS, str(file), *STAGE).exit_code == 0
    assert len(lake.pending()) == 1


@pytest.mark.parametrize("piped", [False, True])
def test_of_a_large_parquet_file_only_the_end_is_kept(
    lake: Lake, run: RunProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, piped: bool
) -> None:
    """Its footer is there, and a file may be larger than the memory."""
    ends: list[bytes] = []
    monkeypatch.setattr("airflow_s3commit.cli.steps._FOOTER_BYTES", 4)
    monkeypatch.setattr("airflow_s3commit.cli.steps._CHUNK", 3)
    monkeypatch.setattr("airflow_s3commit.tables.columns.footer_text", lambda end, _: ends.append(end))
    file = tmp_path / "large.parquet"
    file.write_bytes(b"0123456789")
    run("setup", lake.destination, "--job-id", OURS)
    words = ["put", lake.destination, OURS, "-" if piped else str(file), "dt=1/a.parquet", *STAGE]
    assert CliRunner().invoke(program, words, input=file.read_bytes()).exit_code == 0
    assert ends[-1] == b"6789"


def test_a_published_table_takes_no_file_of_unknown_columns(lake: Lake, run: RunProgram, files: Path) -> None:
    """Such a file is refused before it is uploaded."""
    run("setup", lake.destination, "--job-id", OURS, "--publish", "delta")
    lake.store.calls.clear()
    refused = run("put", lake.destination, OURS, str(files), *STAGE)
    assert (refused.exit_code, "are unknown" in refused.stderr) == (3, True)
    assert not [call for call in lake.store.calls if call.verb == "create_upload"]


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
    assert (entry.record.destination, entry.record.staging) == (lake.destination, None)


def test_a_set_up_registers_its_staging_or_goes_on_without(lake: Lake, run: RunProgram) -> None:
    """A sweep of the registry looks there too; a registry that cannot be written is only warned of."""
    registry, staging = "s3://lake/registry/", "s3://lake/tmp/"
    run("setup", lake.destination, "--registry", registry, "--staging", staging)
    (entry,) = read_registry(lake.store, Destination.parse(registry))
    assert entry.record.staging == staging
    lake.store.before = once("put", "", AccessDenied("no registry for you"))
    result = run("setup", lake.destination, "--job-id", OURS, "--registry", "s3://lake/other/")
    assert (result.exit_code, result.stdout) == (0, f"{OURS}\n")
    assert "no registry for you" in result.stderr


def _left_in_commit(lake: Lake, **options: Any) -> None:
    lake.sealed(FILES, **options)
    lake.store.die("complete_upload", after=True)
    with pytest.raises(Crash):
        lake.job().commit()
    lake.store.rest()


def test_commit_makes_everything_visible(lake: Lake, run: RunProgram) -> None:
    """The files are visible, the replaced ones are gone, and the totals are printed."""
    lake.put(OLD)
    lake.sealed(FILES)
    result = run("commit", lake.destination, OURS)
    assert result.exit_code == 0
    assert "2 files, 10 B, 10 rows" in result.stdout
    assert "1 file, 5 B" in result.stdout
    assert set(lake.data()) == {
        named("dt=1/part-0.parquet"),
        named("dt=2/part-0.parquet"),
        "dt=3/old.parquet",
    }
    for typed in (None, ""):
        assert run("commit", lake.destination, OURS, typed=typed).exit_code == 0


def test_an_abort_that_fails_is_reported_with_its_cause(lake: Lake, run: RunProgram) -> None:
    """Exit code 5 comes with both errors, and the same command ends the job when the store is back."""
    lake.sealed(FILES)

    def fail(call: StoreCall) -> None:
        if call.verb == "complete_upload" and "dt=2" in call.key:
            raise StoreRejected("the parts are bad", code="InvalidPart")
        if call.verb == "abort_upload":
            raise Unavailable("the store is gone")

    lake.store.before = fail
    result = run("commit", lake.destination, OURS)
    lake.store.rest()
    assert result.exit_code == 5
    assert "the parts are bad" in result.stderr
    assert "is not undone" in result.stderr
    assert "Unavailable: the store is gone" in result.stderr
    assert "up to 2 files of it may be visible" in result.stderr
    assert "run the same command again" in result.stderr
    assert len(lake.data()) == 1
    again = run("commit", lake.destination, OURS)
    assert again.exit_code == 3
    assert "the parts are bad" in again.stderr
    assert (lake.data(), lake.pending()) == ({}, [])


def test_commit_as_json_is_a_short_manifest(lake: Lake, run: RunProgram) -> None:
    """It is one object, with the manifest's address."""
    lake.sealed(FILES)
    lake.put(OLD)
    told = plain_json(run("commit", lake.destination, OURS, "--json"))
    assert (told["result"], told["files"], told["bytes"], told["partitions"]) == ("committed", 2, 10, 2)
    assert told["replaced_bytes"] == 5
    assert told["manifest"] == f"{lake.destination}_s3commit/jobs/{OURS}.json"


def test_conflict_mode_fail_is_refused_with_what_is_in_the_way(lake: Lake, run: RunProgram) -> None:
    """``show`` says it beforehand, and the commit changes nothing."""
    lake.sealed(FILES, conflict_mode="fail")
    lake.put(OLD)
    told = plain_json(run("show", lake.destination, OURS, "--json"))
    assert (told["preview"], "dt=1/old.parquet" in told["conflict"]) == (None, True)
    assert "commit refused" in run("show", lake.destination, OURS).stdout
    before = lake.everything()
    result = run("commit", lake.destination, OURS)
    assert (result.exit_code, "dt=1/old.parquet" in result.stderr) == (3, True)
    assert lake.everything() == before


def test_an_open_job_can_be_sealed_and_committed(lake: Lake, run: RunProgram) -> None:
    """A job whose driver died after its stages were sealed can be sealed and committed."""
    lake.run_stage(lake.set_up(), FILES)
    refused = run("commit", lake.destination, OURS)
    assert refused.exit_code == 3
    assert "is not sealed" in refused.stderr
    assert f"seal and commit it with: s3commit commit {lake.destination} {OURS} --seal" in refused.stderr
    for _ in range(2):
        assert run("commit", lake.destination, OURS, "--seal").exit_code == 0
        assert len(lake.data()) == 2


def test_a_sealed_job_takes_no_other_stage(lake: Lake, run: RunProgram) -> None:
    """A commit with another stage attempt than the seal has is refused; with the same it is made."""
    job = lake.set_up()
    for attempt in ("1", "2"):
        lake.run_stage(job, {f"dt=1/{attempt}.parquet": b"1"}, stage_attempt=attempt)
    job.seal([("spark", "1")])
    assert run("commit", lake.destination, OURS, "--stage", "spark:2").exit_code == 3
    assert lake.data() == {}
    assert run("commit", lake.destination, OURS, "--stage", "spark:1").exit_code == 0
    assert list(lake.data()) == [named("dt=1/1.parquet")]


def test_of_two_attempts_of_a_stage_one_is_chosen(lake: Lake, run: RunProgram) -> None:
    """``--seal`` alone is refused with a remedy; ``--stage`` decides, and the other attempt never appears."""
    job = lake.set_up()
    lake.run_stage(job, {"dt=1/first.parquet": b"1"})
    lake.run_stage(job, {"dt=1/second.parquet": b"2"}, stage_attempt="2")
    refused = run("commit", lake.destination, OURS, "--seal")
    assert refused.exit_code == 3
    assert "--stage" in refused.stderr
    assert run("commit", lake.destination, OURS, "--stage", "spark:2").exit_code == 0
    assert list(lake.data()) == [named("dt=1/second.parquet")]
    assert lake.pending() == []


def test_a_reviewed_preview_is_followed_or_refused(lake: Lake, run: RunProgram) -> None:
    """A commit after the generation that ``show`` names is refused if another one touched its partitions."""

    def previewed() -> tuple[int, int]:
        told = plain_json(run("show", lake.destination, OURS, "--json"))["preview"]
        return told["generation"], told["objects"]

    lake.sealed(FILES)
    assert previewed() == (1, 0)
    lake.sealed({"dt=1/late.parquet": b"late"}, job_id=THEIRS).commit()
    refused = run("commit", lake.destination, OURS, "--generation", "1")
    assert refused.exit_code == 3
    assert f"s3commit show {lake.destination} {OURS}" in refused.stderr
    assert named("dt=1/late.parquet", THEIRS) in lake.data()
    assert previewed() == (2, 1)
    assert run("commit", lake.destination, OURS, "--generation", "2").exit_code == 0
    assert set(lake.data()) == {named(path) for path in FILES}


def test_what_a_person_agreed_to_is_not_exceeded(lake: Lake, run: RunProgram) -> None:
    """A commit that comes between the question and the answer is not replaced unseen."""
    lake.sealed({"dt=1/old.parquet": b"old"}, job_id=an_id("earlier")).commit()
    lake.sealed(FILES)
    theirs = lake.sealed({"dt=1/late.parquet": b"late"}, job_id=THEIRS, conflict_mode="append")
    lake.store.before = once("complete_upload", "", theirs.commit)
    result = run("commit", lake.destination, OURS, typed="y\n")
    lake.store.rest()
    assert "replaces 1 file, 3 B" in result.stderr
    assert result.exit_code == 3
    assert named("dt=1/late.parquet", THEIRS) in lake.data()


def test_a_script_commits_beside_other_jobs(lake: Lake, run: RunProgram) -> None:
    """Without a terminal nothing was shown that the commit would have to follow."""
    lake.sealed(FILES)
    theirs = lake.sealed({"dt=1/late.parquet": b"late"}, job_id=THEIRS, conflict_mode="append")
    lake.store.before = once("complete_upload", "", theirs.commit)
    assert run("commit", lake.destination, OURS).exit_code == 0
    assert set(lake.data()) == {named(path) for path in FILES}


def test_a_generation_that_is_named_is_not_asked_about(lake: Lake, run: RunProgram) -> None:
    """A person who names one has decided, and the commit keeps to that one and no newer."""
    lake.sealed(FILES)
    lake.sealed({"dt=1/late.parquet": b"late"}, job_id=THEIRS).commit()
    refused = run("commit", lake.destination, OURS, "--generation", "1", typed="y\n")
    assert (refused.exit_code, "Continue?" in refused.stderr) == (3, False)
    assert named("dt=1/late.parquet", THEIRS) in lake.data()


@pytest.mark.parametrize("seals", [False, True])
@pytest.mark.parametrize(("answer", "code", "gone"), [("n\n", 1, False), ("y\n", 0, True)])
def test_a_person_is_asked_before_data_is_replaced(
    lake: Lake, run: RunProgram, answer: str, code: int, *, gone: bool, seals: bool
) -> None:
    """The question says how much is affected, also if the command seals the job; a no replaces nothing."""
    lake.put(OLD)
    if seals:
        lake.run_stage(lake.set_up(), FILES)
    else:
        lake.sealed(FILES)
    result = run("commit", lake.destination, OURS, *(["--seal"] if seals else []), typed=answer)
    assert "1 file, 5 B" in result.stderr
    assert result.exit_code == code
    assert ("dt=1/old.parquet" not in lake.data()) == gone


def test_yes_answers_the_question(lake: Lake, run: RunProgram) -> None:
    """With ``--yes``, or if nothing is replaced, there is no question."""
    lake.put(OLD)
    lake.sealed(FILES)
    assert run("commit", lake.destination, OURS, "--yes", typed="").exit_code == 0
    lake.sealed({"dt=9/x.parquet": b"9"}, job_id=an_id("another"))
    assert run("commit", lake.destination, an_id("another"), typed="").exit_code == 0
    assert (
        run("abort", lake.destination, lake.set_up(THEIRS).reference.job_id, "--yes", typed="").exit_code == 0
    )


def test_abort_leaves_nothing_pending(lake: Lake, run: RunProgram) -> None:
    """No upload or record is left, and a second run has nothing to do, without an error."""
    lake.put(OLD)
    lake.sealed(FILES)
    result = run("abort", lake.destination, OURS, "--reason", "wrong input")
    assert result.exit_code == 0
    assert "2 uploads discarded" in result.stdout
    assert "wrong input" in run("show", lake.destination, OURS).stdout
    assert lake.pending() == []
    assert set(lake.data()) == set(OLD)
    again = run("abort", lake.destination, OURS, "--json")
    assert again.exit_code == 0
    assert (plain_json(again)["result"], plain_json(again)["uploads"]) == ("aborted", 0)


@pytest.mark.parametrize("below", ["dt=1/", "typo/"])
def test_an_abort_at_another_directory_discards_nothing(lake: Lake, run: RunProgram, below: str) -> None:
    """A directory without a log is refused, also if uploads of the job are pending below it."""
    lake.sealed(FILES)
    before = lake.everything(), lake.pending()
    result = run("abort", f"{lake.destination}{below}", OURS)
    assert result.exit_code == 3
    assert f"no job was ever set up at {lake.destination}{below}" in " ".join(result.stderr.split())
    assert (lake.everything(), lake.pending()) == before


@pytest.mark.parametrize("place", ["s3://lake/", "s3://lake/flights/dt=1/"])
def test_an_abort_at_a_table_above_or_below_discards_nothing(lake: Lake, run: RunProgram, place: str) -> None:
    """Where another table has a log too, an abort there names the job's own table, and the job commits."""
    # A table is set up before those below it.
    for uri, job_id in sorted([(place, THEIRS), (lake.destination, OURS)]):
        Job.setup(lake.store, uri, options=JobOptions(conflict_mode="append"), job_id=job_id)
    lake.run_stage(lake.job(), FILES)
    lake.job().seal()
    before = lake.everything(), lake.pending()
    result = run("abort", place, OURS)
    assert result.exit_code == 3
    assert f"not on {place}, but on {lake.destination}: abort it there" in " ".join(result.stderr.split())
    assert (lake.everything(), lake.pending()) == before
    assert lake.job().commit().counts.files == 2


def test_a_job_is_aborted_although_its_log_was_deleted(lake: Lake, run: RunProgram) -> None:
    """A job with a record belongs to its destination, whether or not there is a log."""
    lake.sealed(FILES)
    for key in lake.keys(f"{HOME}log/"):
        lake.store.delete(BUCKET, key)
    result = run("abort", lake.destination, OURS)
    assert (result.exit_code, lake.pending()) == (0, [])
    assert "2 uploads discarded" in result.stdout


def test_a_mistyped_id_is_not_taken_for_another_job(lake: Lake, run: RunProgram) -> None:
    """An abort by an id that nothing has, and no job can have, is refused, and leaves the log as it is."""
    lake.sealed(FILES)
    before = lake.everything()
    for mistyped, words in ((OURS.upper(), f"write it as {OURS}"), (OURS[:8], "is not a UUID")):
        result = run("abort", lake.destination, mistyped)
        assert result.exit_code == 3
        assert words in " ".join(result.stderr.split())
    assert lake.everything() == before


def test_abort_asks_a_person(lake: Lake, run: RunProgram) -> None:
    """Answering no changes nothing, also where the result is for a script."""
    lake.sealed(FILES)
    before = lake.everything()
    result = run("abort", lake.destination, OURS, typed="n\n")
    assert result.exit_code == 1
    assert "you answered no" in result.stderr
    told = plain_json(run("abort", lake.destination, OURS, "--json", typed="n\n"))
    assert (told["error"]["type"], told["error"]["exit_code"]) == ("Declined", 1)
    assert lake.everything() == before


def test_a_committed_job_cannot_be_aborted(lake: Lake, run: RunProgram) -> None:
    """Exit code 3 and the way to what it committed refuse an abort."""
    lake.sealed(FILES).commit()
    result = run("abort", lake.destination, OURS)
    assert result.exit_code == 3
    assert f"s3commit manifest {lake.destination} {OURS}" in result.stderr


def test_a_job_whose_commit_died_after_its_entry_counts_as_committed(lake: Lake, run: RunProgram) -> None:
    """The log has its commit, so an abort is refused, and a recovery finishes it."""
    lake.sealed(FILES)
    lake.store.die("put", f"{2:020}.json", after=True)
    with pytest.raises(Crash):
        lake.job().commit()
    lake.store.rest()
    assert run("abort", lake.destination, OURS).exit_code == 3
    assert "committed, not finished" in run("show", lake.destination, OURS).stdout
    assert len(lake.data()) == 2
    assert run("recover", lake.destination, OURS).exit_code == 0
    assert "nothing to do" in run("show", lake.destination, OURS).stdout


def test_recover_continues_a_commit(lake: Lake, run: RunProgram) -> None:
    """Afterwards everything is visible, and a second run says the same."""
    _left_in_commit(lake)
    for _ in range(2):
        told = plain_json(run("recover", lake.destination, OURS, "--json"))
        assert (told["result"], told["files"]) == ("committed", 2)
    assert len(lake.data()) == 2


def test_an_abort_takes_back_what_a_commit_published(lake: Lake, run: RunProgram) -> None:
    """Before its entry a commit can be undone: its visible output is deleted, and the old data stays."""
    lake.put(OLD)
    _left_in_commit(lake)
    assert run("abort", lake.destination, OURS, typed="n\n").exit_code == 1
    result = run("abort", lake.destination, OURS, typed="y\n")
    assert result.exit_code == 0
    assert "1 object taken back" in result.stdout
    assert set(lake.data()) == set(OLD)


def test_recover_continues_an_abort(lake: Lake, run: RunProgram) -> None:
    """Afterwards nothing is pending or staged, and a second run says the same."""
    lake.sealed(FILES)
    lake.store.die("abort_upload")
    with pytest.raises(Crash):
        lake.job().abort()
    lake.store.rest()
    assert "aborted, not finished" in run("show", lake.destination, OURS).stdout
    told = plain_json(run("recover", lake.destination, OURS, "--json"))
    assert (told["result"], told["uploads"]) == ("aborted", 2)
    assert (lake.pending(), lake.staging()) == ([], [])
    assert plain_json(run("recover", lake.destination, OURS, "--json"))["uploads"] == 0


def test_there_is_nothing_to_recover_before_a_commit(lake: Lake, run: RunProgram) -> None:
    """An open job, a sealed one and an unknown job are refused."""
    lake.set_up()
    lake.sealed(FILES, job_id=THEIRS)
    for job_id in (OURS, THEIRS, "unknown"):
        assert run("recover", lake.destination, job_id).exit_code == 3


def test_a_lost_answer_has_its_own_outcome(lake: Lake, run: RunProgram) -> None:
    """Exit code 5, nothing undone, and the same command finishes it."""
    lake.sealed(FILES)
    lake.store.before = once("complete_upload", "", OutcomeUnknown("the answer was lost"))
    result = run("commit", lake.destination, OURS)
    assert result.exit_code == 5
    assert "run the same command again" in result.stderr
    lake.store.rest()
    assert run("commit", lake.destination, OURS).exit_code == 0
    assert len(lake.data()) == 2


def test_a_commit_that_is_denied_midway_says_what_is_visible(lake: Lake, run: RunProgram) -> None:
    """It did not happen, with that exit code, and may be repeated, although one of its files is there."""
    job = lake.sealed({"dt=1/a": b"1"}, {"dt=1/b": b"2"})
    lake.store.before = once("complete_upload", "", AccessDenied("the keys are wrong"), nth=2)
    args = ("commit", lake.destination, job.reference.job_id)
    denied = run(*args)
    assert (denied.exit_code, len(lake.data())) == (4, 1)
    assert "up to 2 files of it may be visible: commit it again, or abort it" in denied.stderr
    assert (run(*args).exit_code, len(lake.data())) == (0, 2)


def test_a_failed_commit_is_rolled_back_and_says_so(lake: Lake, run: RunProgram) -> None:
    """A missing upload fails the job with exit code 4, and the destination is unchanged."""
    lake.put(OLD)
    lake.sealed(FILES)
    upload = next(iter(lake.store.list_uploads(BUCKET, lake.prefix)))
    lake.store.abort_upload(BUCKET, upload.key, upload.upload_id)
    result = run("commit", lake.destination, OURS)
    assert result.exit_code == 4
    assert "is gone" in result.stderr
    assert set(lake.data()) == set(OLD)


def test_progress_is_shown_on_a_terminal_only(lake: Lake, run: RunProgram) -> None:
    """It is on a terminal's standard error, but not in a pipe or beside JSON."""
    lake.sealed(FILES)
    shown = run("commit", lake.destination, OURS, FORCE_COLOR="1")
    assert "completing uploads" in shown.stderr
    assert "completing" not in shown.stdout
    lake.sealed(FILES, job_id=an_id("second"), conflict_mode="append")
    assert run("commit", lake.destination, an_id("second")).stderr == ""
    lake.sealed(FILES, job_id=an_id("third"), conflict_mode="append")
    for words in (("commit", lake.destination, an_id("third")), ("jobs", lake.destination)):
        assert run(*words, "--json", FORCE_COLOR="1").stderr == ""


@pytest.fixture
def dead(monkeypatch: pytest.MonkeyPatch) -> DeadJob:
    """Return a dead job of the magic committer, on the store that every command opens."""
    made = DeadJob.magic()
    monkeypatch.setattr("airflow_s3commit.cli.command.open_store", lambda _: made.store)
    return made


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> DeadJob:
    """Return a dead job of a staging committer."""
    made = DeadJob.staging()
    monkeypatch.setattr("airflow_s3commit.cli.command.open_store", lambda _: made.store)
    return made


def test_the_jobs_are_listed(dead: DeadJob, run: RunProgram) -> None:
    """The list has the tasks, uploads and bytes of each and changes nothing."""
    before = dead.everything()
    result = run("adopt", SALES)
    assert result.exit_code == 0
    assert UUID in result.stdout
    for words in ((), (UUID,)):
        told = plain_json(run("adopt", SALES, *words, "--json"))
        assert [(job["pendingsets"], job["uploads"], job["others"]) for job in told["jobs"]] == [(3, 3, 1)]
    assert plain_json(run("adopt", SALES, "another", "--json"))["jobs"] == []
    assert dead.everything() == before


@pytest.mark.parametrize("verb", ["--commit", "--abort"])
def test_a_dry_run_is_the_default(dead: DeadJob, run: RunProgram, verb: str) -> None:
    """It says what would be done, as it then is, and changes nothing."""
    before = dead.everything()
    result = run("adopt", SALES, UUID, verb)
    assert result.exit_code == 0
    assert "dry run: nothing was changed" in result.stdout
    assert ("and discard 1 of" if verb == "--commit" else "discard 4 uploads,") in result.stdout
    told = plain_json(run("adopt", SALES, UUID, verb, "--json"))
    assert (told["would"], told["job"]["uploads"]) == (verb.removeprefix("--"), 3)
    assert dead.everything() == before


@pytest.mark.parametrize("number", [0, 1], ids=["of a committed task", "of another attempt"])
def test_a_dry_run_says_what_an_abort_takes_back(dead: DeadJob, run: RunProgram, number: int) -> None:
    """Objects that Hadoop has made of any upload of the job are counted, as the abort then deletes them."""
    dead.complete("sales/day=17/part-00001.parquet", number)
    assert "take back 1 object" in run("adopt", SALES, UUID, "--abort").stdout
    assert "1 object taken back" in run("adopt", SALES, UUID, "--abort", "--apply").stdout


def test_a_job_is_finished(dead: DeadJob, run: RunProgram) -> None:
    """Every committed file is visible beside older ones, and a second run says the same."""
    old = {f"{path.rpartition('/')[0]}/old.parquet".removeprefix("/"): b"old" for path in dead.contents}
    for path, body in old.items():
        dead.put(path, body)
    for _ in range(2):
        told = plain_json(run("adopt", SALES, UUID, "--commit", "--apply", "--json"))
        assert (told["result"], told["files"]) == ("committed", 3)
    assert dead.visible() == dead.contents | old
    assert dead.pending_keys() == []


def test_a_job_is_discarded(dead: DeadJob, run: RunProgram) -> None:
    """No upload of it is left."""
    result = run("adopt", SALES, UUID, "--abort", "--apply")
    assert result.exit_code == 0
    assert "4 uploads discarded" in result.stdout
    assert (dead.visible(), dead.pending_keys()) == ({}, [])


def test_pendingsets_elsewhere_are_adopted(staged: DeadJob, run: RunProgram) -> None:
    """Without the directory nothing is found."""
    assert "add --pendingsets" in run("adopt", SALES).stdout
    where = (UUID, "--pendingsets", staged.pendingsets_uri)
    assert plain_json(run("adopt", SALES, *where, "--json"))["jobs"][0]["uploads"] == 3
    assert "complete 3 uploads" in run("adopt", SALES, *where, "--commit").stdout
    assert run("adopt", SALES, *where, "--commit", "--apply").exit_code == 0
    assert staged.visible() == staged.contents


def test_a_person_is_asked(dead: DeadJob, run: RunProgram) -> None:
    """Answering no changes nothing."""
    before = dead.everything()
    assert run("adopt", SALES, UUID, "--abort", "--apply", typed="n\n").exit_code == 1
    assert dead.everything() == before


def test_damage_and_gaps_are_doubts(dead: DeadJob, run: RunProgram) -> None:
    """An unreadable file and a missing task are reported before a commit."""
    keys = [key for key in dead.keys("sales/__magic_job") if key.endswith(".pendingset")]
    dead.store.delete("lake", keys[1])
    dead.put(keys[0], b"{")
    result = run("adopt", SALES, UUID, "--commit")
    assert result.exit_code == 1
    assert "have no pendingset" in result.stdout
    assert keys[0] in result.stdout
    listed = run("adopt", SALES).stdout
    assert ("have no pendingset" in listed, keys[0] in listed) == (True, True)
    assert run("adopt", SALES, UUID, "--commit", "--apply").exit_code == 3


def test_a_gap_stops_a_commit_and_no_abort(dead: DeadJob, run: RunProgram) -> None:
    """A dry run has the verdict of what it would do, for people and for scripts."""
    dead.store.delete("lake", [key for key in dead.keys("sales/__magic_job") if key.endswith("set")][1])
    assert plain_json(run("adopt", SALES, UUID, "--commit", "--json"))["refused"]
    assert "it would be refused" in run("adopt", SALES, UUID, "--commit").stdout
    discarding = run("adopt", SALES, UUID, "--abort")
    assert (discarding.exit_code, "it would discard" in discarding.stdout) == (0, True)


def test_a_lost_upload_is_a_finding_of_a_commit_and_none_of_an_abort(dead: DeadJob, run: RunProgram) -> None:
    """A dry run says that the job cannot be finished, which a script sees by the exit code."""
    key, (upload, *_) = next(iter(dead.uploads.items()))
    dead.store.abort_upload("lake", key, upload)
    finishing = run("adopt", SALES, UUID, "--commit")
    assert (finishing.exit_code, "so it cannot be finished" in finishing.stdout) == (1, True)
    assert run("adopt", SALES, UUID, "--abort").exit_code == 0


def test_a_job_that_was_active_lately_is_left_alone(dead: DeadJob, run: RunProgram) -> None:
    """A dry run says that it may be alive, and the command itself is refused unless it is forced."""
    words = (UUID, "--commit", "--older-than", "5000w")
    dry = run("adopt", SALES, *words)
    assert (dry.exit_code, "perhaps alive" in dry.stdout) == (1, True)
    assert run("adopt", SALES, *words, "--apply").exit_code == 3
    assert run("adopt", SALES, *words, "--force").exit_code == 0


def test_the_number_of_tasks_can_be_required(dead: DeadJob, run: RunProgram) -> None:
    """A caller that knows the number accepts no fewer."""
    before = dead.everything()
    result = run("adopt", SALES, UUID, "--commit", "--apply", "--expect-tasks", "4")
    assert result.exit_code == 3
    assert dead.everything() == before


def test_a_missing_job_is_a_finding(dead: DeadJob, run: RunProgram) -> None:
    """A dry run ends with exit code 1, and a real one is refused."""
    assert run("adopt", SALES, "unknown", "--commit").exit_code == 1
    assert run("adopt", SALES, "unknown", "--commit", "--apply").exit_code == 3
    assert dead.pending_keys()


def test_an_abort_of_a_job_without_files_is_refused_as_its_dry_run_is(dead: DeadJob, run: RunProgram) -> None:
    """Nobody takes a mistyped UUID for an abort; one that was adopted and aborted may be aborted again."""
    before = dead.everything()
    assert run("adopt", SALES, an_id("mistyped"), "--abort").exit_code == 1
    result = run("adopt", SALES, an_id("mistyped"), "--abort", "--apply")
    assert result.exit_code == 3
    assert "has no files in" in result.stderr
    assert dead.everything() == before
    for _ in range(2):
        assert run("adopt", SALES, UUID, "--abort", "--apply").exit_code == 0


@pytest.mark.parametrize(
    "args",
    [
        ("--apply",),
        ("--commit",),
        (UUID, "--commit", "--abort"),
        ("--pendingsets", "s3://lake/x/"),
    ],
)
def test_contradictions_are_mistakes(dead: DeadJob, run: RunProgram, args: tuple[str, ...]) -> None:
    """The action and its job must each be named once."""
    before = dead.everything()
    assert run("adopt", SALES, *args).exit_code == 2
    assert dead.everything() == before

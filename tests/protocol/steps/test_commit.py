"""What ends a commit without its entry, and what becomes of the job then."""

from __future__ import annotations

import pytest

from airflow_s3commit.exceptions import (
    AccessDenied,
    DestinationChanged,
    DestinationNotEmpty,
    InvalidOption,
    InvalidRecord,
    JobClosed,
    OutcomeUnknown,
    Unavailable,
)
from airflow_s3commit.protocol.inspect.verify_table import verify
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.model.job import JobOptions
from airflow_s3commit.protocol.steps import append, files
from airflow_s3commit.protocol.steps.seal import seal_stage
from airflow_s3commit.testing import StoreCall
from tests.cases import each
from tests.protocol.building import BUCKET, HOME, OURS, ROOT, THEIRS, Crash, Lake, an_id, apart, named, once

OLD = {"dt=1/old": b"old", "dt=2/old": b"old"}


def _state(lake: Lake) -> str:
    state = lake.job().state()
    assert state is not None
    return state.state


def _rival(lake: Lake, name: str, path: str) -> None:
    """Commit another job, unseen by what is set on the store."""
    lake.store.rest()
    lake.sealed({path: b"2"}, job_id=an_id(name), conflict_mode="append").commit()


@each("path", ["dt=1/b", "dt=3/b"])
@each("during", [False, True])
@each("whole", [False, True])
def test_a_commit_takes_no_more_than_its_preview_has_shown(path: str, during: bool, whole: bool) -> None:
    """A later commit to what it replaces refuses it, and one elsewhere does not; nothing is lost."""
    lake = Lake()
    lake.put(OLD)
    job = lake.sealed({"dt=1/a": b"1"}, committer="directory" if whole else "partitioned")
    seen = job.preview().generation
    if during:
        lake.store.before = once("put", f"log/{2:020d}.json", lambda: _rival(lake, "rival", path))
    else:
        _rival(lake, "rival", path)
    theirs = named(path, an_id("rival"))
    if path.startswith("dt=3") and not whole:
        job.commit(generation=seen)
        assert lake.data().keys() == {"dt=2/old", named("dt=1/a"), theirs}
        return
    with pytest.raises(DestinationChanged, match="generation 2 changed its partitions after the"):
        job.commit(generation=seen)
    assert lake.data().keys() == {*OLD, theirs}
    assert _state(lake) == ("aborted" if during else "sealed")
    if not during:
        job.commit(generation=job.preview().generation)
        assert lake.data().keys() == {named("dt=1/a")} | (set() if whole else {"dt=2/old"})


@each("whole", [False, True])
def test_a_replace_that_is_overtaken_takes_what_came_before_it(whole: bool) -> None:
    """It is decided anew after an entry that came first, from all that the table has by then."""
    lake = Lake()
    lake.put(OLD)
    job = lake.sealed({"dt=1/a": b"1"}, committer="directory" if whole else "partitioned")
    lake.store.before = once("put", f"log/{2:020d}.json", lambda: _rival(lake, "rival", "dt=1/b"))
    made = job.commit()
    assert (made.generation, made.replaced.files) == (3, 3 if whole else 2)
    assert lake.data().keys() == {named("dt=1/a")} | (set() if whole else {"dt=2/old"})
    assert verify(lake.store, lake.destination).sound


def test_a_preview_holds_for_all_below_an_overwritten_directory() -> None:
    """A later commit anywhere below a directory that a Spark job overwrites refuses its commit."""
    lake = Lake()
    job = lake.set_up(conflict_mode="as-written", committer="partitioned")
    task = lake.run_task(job, {"dt=1/h=0/a": b"1"})
    seal_stage(job._recorded(), "spark", "1", [task], removes="partitions", replaced=["dt=1"])
    job.seal()
    seen = job.preview().generation
    _rival(lake, "rival", "dt=1/h=1/b")
    with pytest.raises(DestinationChanged, match="generation 2 changed its partitions"):
        job.commit(generation=seen)
    assert lake.data().keys() == {named("dt=1/h=1/b", an_id("rival"))}


def test_an_overwritten_directory_loses_what_the_table_has_there() -> None:
    """Partitions below it leave the table even if somebody has deleted their files."""
    lake = Lake()
    lake.sealed({"dt=1/h=0/a": b"1", "dt=1/h=1/b": b"2"}, job_id=THEIRS, conflict_mode="append").commit()
    lake.store.delete(BUCKET, f"{ROOT}{named('dt=1/h=0/a', THEIRS)}")
    job = lake.set_up(conflict_mode="as-written", committer="partitioned")
    task = lake.run_task(job, {"dt=1/h=1/c": b"3"})
    seal_stage(job._recorded(), "spark", "1", [task], removes="partitions", replaced=["dt=1"])
    job.seal()
    assert job.preview().partitions == ["dt=1/h=0", "dt=1/h=1"]
    job.commit()
    assert verify(lake.store, lake.destination).sound
    assert lake.data().keys() == {named("dt=1/h=1/c")}


def test_what_is_retained_once_more_is_not_data() -> None:
    """An object of another program that is retained again, after it was released and rewritten, is left."""
    lake = Lake()
    lake.sealed({"dt=0/a": b"1"}, job_id=an_id("first"), conflict_mode="append").commit()
    for number, retain in enumerate(("1h", "7d")):
        lake.put({"dt=1/latest": b"%d" % number})
        whole = {"conflict_mode": "replace", "committer": "directory", "retain": retain}
        lake.sealed({"dt=0/b": b"2"}, job_id=an_id(retain), **whole).commit()
        lake.store_clock.advance(7200)
        lake.sweep()
    assert verify(lake.store, lake.destination).sound
    lake.sealed({"dt=1/c": b"3"}, conflict_mode="fail").commit()
    assert lake.data()["dt=1/latest"] == b"1"


def test_a_preview_of_the_only_writer_is_read_in_the_log() -> None:
    """A process that writes alone commits by a preview after other jobs have committed since its setup."""
    lake = Lake()
    options = JobOptions(committer="magic", conflict_mode="append")
    job = Job.setup(lake.store, lake.destination, options=options, alone="writer")
    lake.run_stage(job, {"dt=1/a": b"1"})
    job.seal()
    _rival(lake, "rival", "dt=1/b")
    assert job.commit(generation=job.preview().generation).generation == 3


def test_a_commit_that_another_process_finishes_returns_the_same_manifest() -> None:
    """A process that finds the seal gone, because another one has committed the job, says what that did."""
    lake = Lake()
    job = lake.sealed({"dt=1/a": b"1"})
    lake.store.before = once("get", f"{HOME}open/{OURS}/sealed.json", lambda: lake.job().commit())
    assert job.commit() == lake.job().manifest()


def test_a_commit_that_another_process_finishes_deletes_no_newer_file() -> None:
    """A process that stalled before its entry takes only what was there when the other one made it."""
    lake = Lake()
    lake.set_up(THEIRS).abort()
    lake.put({"dt=1/x": b"x"})
    job = lake.sealed({"dt=1/a": b"1"})

    def overtake() -> None:
        lake.store.rest()
        lake.job().commit()
        lake.store_clock.advance(60)
        lake.put({"dt=1/x": b"x"})

    lake.store.before = once("put", f"log/{3:020d}.json", overtake)
    assert job.commit() == lake.job().manifest()
    assert lake.data().keys() == {"dt=1/x", named("dt=1/a")}


def test_what_is_retained_is_not_taken_again() -> None:
    """Older data that has left the table stays as long as it is retained, whatever replaces all of it."""
    lake = Lake()
    lake.put({"dt=1/old": b"old"})
    options = {"committer": "directory", "conflict_mode": "replace"}
    lake.sealed({"dt=2/a": b"1"}, job_id=an_id("first"), retain="1d", **options).commit()
    lake.sealed({"dt=3/b": b"2"}, **options).commit()
    assert lake.data() == {"dt=1/old": b"old", named("dt=3/b"): b"2"}


@each("committer", ["directory", "partitioned"])
def test_a_job_that_could_only_fail_publishes_nothing(committer: str) -> None:
    """It is refused before its first upload is completed, and stays sealed: somebody may make room."""
    lake = Lake()
    job = lake.sealed({"dt=1/a": b"1", "dt=2/b": b"2"}, conflict_mode="fail", committer=committer)
    lake.put({"dt=2/old": b"old"})
    before = lake.everything()
    with pytest.raises(DestinationNotEmpty):
        job.commit()
    assert lake.everything() == before
    lake.store.delete(BUCKET, f"{ROOT}dt=2/old")
    lake.job().commit()


def test_an_end_whose_receipt_is_refused_is_not_finished() -> None:
    """A task that comes late looks for the receipt, so nothing is removed before it is there."""
    lake = Lake()
    job = lake.sealed({"dt=1/a": b"1"})
    lake.store.before = once("put", lake.receipt_key(), AccessDenied("no right to write it"))
    with pytest.raises(OutcomeUnknown, match=r"is committed, as entry 2 .*no right to write it"):
        job.commit()
    assert lake.staging() != []
    lake.job().commit()
    assert (lake.staging(), lake.data().keys()) == ([], {named("dt=1/a")})


def test_the_rows_of_another_program_s_files_are_unknown() -> None:
    """A commit that takes them says how many files and bytes it replaced, and not how many rows."""
    lake = Lake()
    lake.sealed({"dt=1/a": b"1"}, job_id=THEIRS).commit()
    lake.put({"dt=1/old": b"old"})
    replaced = lake.sealed({"dt=1/b": b"2"}).commit().replaced
    assert (replaced.files, replaced.bytes, replaced.rows) == (2, 4, None)


def test_a_commit_is_refused_for_a_generation_that_is_not_there() -> None:
    """Nothing tells what came after it; the job stays, and is committed after another preview."""
    lake = Lake()
    job = lake.sealed({"dt=1/a": b"1"})
    with pytest.raises(DestinationChanged, match="no generation 2: it ends with entry 1"):
        job.commit(generation=2)
    assert _state(lake) == "sealed"
    assert job.commit(generation=job.preview().generation).generation == 2


def test_a_refusal_yields_to_a_commit_by_another_process() -> None:
    """A commit that is refused undoes nothing of what another process commits before its abort."""
    lake = Lake()
    lake.put(OLD)
    job = lake.sealed({"dt=1/a": b"1"})
    seen = job.preview().generation

    def commit() -> None:
        lake.store.rest()
        lake.job().commit()

    def overtake() -> None:
        _rival(lake, "rival", "dt=1/b")
        lake.store.before = once("put", f"log/{3:020d}.json", commit)

    lake.store.before = once("put", f"log/{2:020d}.json", overtake)
    assert job.commit(generation=seen).generation == 3
    assert _state(lake) == "committed"
    assert lake.data().keys() == {"dt=2/old", named("dt=1/a")}


@each("end", ["commit", "abort"])
def test_a_commit_whose_list_is_aborted_learns_of_its_end(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever ends a job aborts the upload of a long list, which another process may still write."""
    monkeypatch.setattr(files, "_PART_BYTES", 100)
    lake = Lake()
    lake.sealed({"dt=1/a": b"1", "dt=1/b": b"2"})

    def end_it() -> None:
        lake.store.rest()
        getattr(lake.job(), end)()

    lake.store.before = once("complete_upload", ".jsonl", end_it)
    with apart():
        if end == "commit":
            assert lake.job().commit() == lake.job().manifest()
        else:
            with pytest.raises(JobClosed, match="is aborted"):
                lake.job().commit()
    assert (lake.pending(), len(lake.data())) == ([], 2 if end == "commit" else 0)


def test_an_abort_finds_the_upload_of_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that dies while it writes a long list leaves an upload whose name is no file of the job."""
    monkeypatch.setattr(files, "_PART_BYTES", 100)
    lake = Lake()
    lake.sealed({"dt=1/a": b"1", "dt=1/b": b"2"})
    lake.store.die("complete_upload", ".jsonl")
    with apart(), pytest.raises(Crash):
        lake.job().commit()
    lake.store.rest()
    assert len(lake.pending()) == 1
    lake.job().abort()
    assert (lake.pending(), lake.data()) == ([], {})


@each("mode", ["append", "replace"])
def test_a_commit_that_is_always_overtaken_gives_up(mode: str) -> None:
    """If other entries always come first it says so, with its files there, and may be taken up or undone."""
    lake = Lake()
    lake.put(OLD)
    job = lake.sealed({"dt=1/a": b"1"}, conflict_mode=mode)
    numbers = iter(range(1000))

    def overtake(call: StoreCall) -> None:
        if call.verb == "put" and "/_s3commit/log/" in call.key:
            lake.store.before = lambda _: None
            lake.set_up(an_id(f"rival {next(numbers)}")).abort()
            lake.store.before = overtake

    lake.store.before = overtake
    with pytest.raises(Unavailable, match=f"came first {append.TRIES} times.*commit it again, or abort it"):
        job.commit()
    assert next(numbers) == append.TRIES
    lake.store.rest()
    assert lake.data().keys() == {*OLD, named("dt=1/a")}
    assert _state(lake) == "sealed"
    lake.job().commit()
    assert lake.data().keys() == {named("dt=1/a"), "dt=2/old"} | ({"dt=1/old"} if mode == "append" else set())


def test_a_job_that_is_not_sealed_is_not_committed() -> None:
    """Whatever its stages are, an unsealed job is refused, and stays open."""
    lake = Lake()
    job = lake.set_up()
    lake.run_stage(job, {"dt=1/a": b"1"})
    for step in (job.commit, job.preview, lambda: job.complete_part(0, 1)):
        with pytest.raises(JobClosed, match="is not sealed"):
            step()
    assert (_state(lake), lake.data()) == ("open", {})


def test_a_damaged_table_ends_no_job() -> None:
    """Once its files are there, a job waits for the table's records to be restored, and is then committed."""
    lake = Lake()
    lake.put(OLD)
    job = lake.sealed({"dt=1/a": b"1"})
    key = f"{HOME}log/{1:020d}.json"
    whole = lake.get(key)
    lake.store.after = once(
        "complete_upload", "", lambda: lake.store.inner.put(BUCKET, key, whole.replace(b"dt=1", b"dt=9"))
    )
    with pytest.raises(InvalidRecord) as caught:
        job.commit()
    assert "up to 1 files of it may be visible" in "".join(caught.value.__notes__)
    assert _state(lake) == "sealed"
    lake.store.put(BUCKET, key, whole)
    lake.job().commit()
    assert lake.data() == {named("dt=1/a"): b"1", "dt=2/old": b"old"}


@each("mode", ["append", "replace", "fail"])
def test_names_of_partition_columns_that_differ_by_case_are_refused(mode: str) -> None:
    """Readers disagree on whether they are one column; a job that replaces the whole table may do so."""
    lake = Lake()
    lake.put({"dt=1/h=0/old": b"old"})
    before = lake.data()
    job = lake.sealed({"dt=2/H=0/new": b"1"}, conflict_mode=mode)
    with pytest.raises(InvalidOption, match="'H' is 'h' in the table"):
        job.commit()
    assert lake.data() == before
    other = an_id("whole")
    lake.sealed({"DT=1/h=0/a": b"1"}, job_id=other, committer="directory").commit()
    assert lake.data().keys() == {named("DT=1/h=0/a", other)}


@each("path", ["b", "x=1/b"])
def test_an_append_after_another_one_finds_the_tables_partition_columns(path: str) -> None:
    """The newest entry alone does not show them: it may have no files, or files without these columns."""
    lake = Lake()
    lake.sealed({"dt=1/a": b"1"}, job_id=an_id("first"), conflict_mode="append").commit()
    lake.sealed({path: b"1"}, job_id=an_id("other"), conflict_mode="append").commit()
    lake.sealed({"dt=2/c": b"1"}, job_id=an_id("same"), conflict_mode="append").commit()
    lake.sealed({path: b"1"}, job_id=an_id("other again"), conflict_mode="append").commit()
    lake.sealed({"dt=9/d": b"1"}, job_id=an_id("aborted"), conflict_mode="append").abort()
    with pytest.raises(InvalidOption, match="'DT' is 'dt' in the table"):
        lake.sealed({"DT=3/e": b"1"}, conflict_mode="append").commit()


def test_a_table_with_both_cases_is_replaced_partition_by_partition() -> None:
    """Names that the table has already make nothing worse."""
    lake = Lake()
    lake.put({"dt=1/old": b"old", "DT=1/old": b"old"})
    for name, path in (("a", "dt=1/new"), ("b", "DT=1/new")):
        lake.sealed({path: b"1"}, job_id=an_id(name)).commit()
    assert lake.data().keys() == {named("dt=1/new", an_id("a")), named("DT=1/new", an_id("b"))}


def test_an_entry_names_its_partitions_in_their_order() -> None:
    """Those that it writes and those that lose files are sorted together, as in seals."""
    lake = Lake()
    lake.sealed({f"dt={number}/a": b"1" for number in range(3, 9)}, job_id=an_id("before")).commit()
    lake.sealed({f"dt={number}/a": b"2" for number in range(1, 9)}).commit()
    assert list(lake.entries()[-1]["commit"]["partitions"]) == [f"dt={number}" for number in range(1, 9)]

"""Where a file written in a magic directory ends up, by Hadoop's rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.magic_paths import final_path, is_magic_path, magic_path
from airflow_s3commit.protocol.records import Committer, JobOptions
from airflow_s3commit.protocol.task_attempt import TaskAttempt
from airflow_s3commit.store.memory import MemoryStore

JOB = "7f3c1c0e-2b8e-4b0a-9d0c-0d6a2b9b7a11"
ATTEMPT = "attempt_202502170001_0003_m_000004_0"


@pytest.mark.parametrize(
    ("written", "final"),
    [
        ("a/__magic_job-1/x/y.txt", "a/y.txt"),
        ("__magic_job-1/4/__base/2/3.txt", "2/3.txt"),
        ("__base/h/__magic_job-1/2/3.txt", "__base/h/3.txt"),
        ("__magic_job-1/y.txt", "y.txt"),
        ("a/b/__magic_job-1/__base/y.txt", "a/b/y.txt"),
        ("__magic_job-1/__base/2/__base/3.txt", "2/__base/3.txt"),
        ("__magic_job-1/x/__magic_job-2/y.txt", "y.txt"),
        ("a/__magic_job-/y.txt", "a/y.txt"),
        ("a/__magic_jobs/y.txt", "a/__magic_jobs/y.txt"),
        ("a/__magic/y.txt", "a/__magic/y.txt"),
        ("a/x__magic_job-1/y.txt", "a/x__magic_job-1/y.txt"),
        ("a/__base/y.txt", "a/__base/y.txt"),
        ("s3a://lake/sales/__magic_job-1/x/__base/d=1/y z.txt", "s3a://lake/sales/d=1/y z.txt"),
        ("/lake/sales/__magic_job-1/x/y.txt", "/lake/sales/y.txt"),
    ],
)
def test_a_written_path_ends_up_where_hadoop_puts_it(written: str, final: str) -> None:
    """The first magic element parts the path; what follows the first ``__base``, or the name alone, stays."""
    assert final_path(written) == final
    assert is_magic_path(written) == (written != final)


@pytest.mark.parametrize(
    "written",
    [
        "__magic_job-1",
        "a/__magic_job-1/",
        "a/__magic_job-1/x/__base",
        "a/__magic_job-1/x/__base/",
        "a/__magic_job-1/x/",
        "a/__magic_job-1//y.txt",
        "a/__magic_job-1/../y.txt",
        "a/__magic_job-1/__base/./y.txt",
    ],
)
def test_a_magic_path_that_names_no_file_is_refused(written: str) -> None:
    """Nothing after the magic element or its ``__base``, and elements that name no entry, are errors."""
    with pytest.raises(InvalidRecord, match="path"):
        final_path(written)


ELEMENTS = st.text("abz019=-. ", min_size=1, max_size=8).filter(lambda e: not e.startswith("."))


@given(st.lists(ELEMENTS, min_size=1, max_size=4), st.integers(0, 120))
def test_a_magic_path_maps_back_to_the_path_it_was_built_from(elements: list[str], run: int) -> None:
    """Building a magic path and mapping it to its destination are each other's reverse."""
    relative = "/".join(elements)
    written = magic_path(JOB, ATTEMPT, relative, application_attempt=run)
    assert written == f"__magic_job-{JOB}/job-{JOB}/{run:02d}/tasks/{ATTEMPT}/__base/{relative}"
    assert is_magic_path(written)
    assert final_path(written) == relative
    assert final_path(f"sales/2025/{written}") == f"sales/2025/{relative}"


@pytest.mark.parametrize(
    ("job", "attempt", "relative", "run"),
    [
        ("../other", ATTEMPT, "y.txt", 0),
        (JOB, "a/b", "y.txt", 0),
        (JOB, ATTEMPT, "../y.txt", 0),
        (JOB, ATTEMPT, "_hidden/y.txt", 0),
        (JOB, ATTEMPT, "y.txt", -1),
    ],
)
def test_no_magic_path_is_built_that_could_not_be_committed(
    job: str, attempt: str, relative: str, run: int
) -> None:
    """Ids and paths are checked before a path is made of them."""
    with pytest.raises(InvalidRecord):
        magic_path(job, attempt, relative, application_attempt=run)


def _writer(committer: Committer, *, unique: bool = False) -> tuple[MemoryStore, Job, TaskAttempt]:
    store = MemoryStore(("lake",), min_part_bytes=1)
    options = JobOptions(committer=committer, conflict_mode="append", unique_filenames=unique)
    job = Job.setup(store, "s3://lake/sales/", options=options, job_id=JOB)
    return store, job, job.task_attempt("spark", "1", "00000", "1", threads=0, min_part_bytes=1)


@pytest.mark.parametrize(("unique", "name"), [(False, "part-0.parquet"), (True, f"part-0-{JOB}.parquet")])
def test_a_file_opened_at_a_magic_path_is_committed_to_its_final_path(unique: bool, name: str) -> None:
    """With the committer ``magic`` a tool may write to the path that Hadoop would give it."""
    store, job, writer = _writer("magic", unique=unique)
    with writer:
        with writer.open(magic_path(JOB, ATTEMPT, "day=17/part-0.parquet")) as file:
            file.write(b"rows")
        task = writer.commit()
    job.seal_stage("spark", "1", [task])
    job.seal()
    assert list(job.commit().partitions) == ["day=17"]
    assert store.get("lake", f"sales/day=17/{name}").body == b"rows"


@pytest.mark.parametrize("committer", ["directory", "partitioned"])
def test_other_committers_refuse_magic_paths(committer: Committer) -> None:
    """A magic path given to a staging committer is an error that says so, and starts no upload."""
    store, _, writer = _writer(committer)
    with writer, pytest.raises(InvalidRecord, match="only the committer magic"):
        writer.open(magic_path(JOB, ATTEMPT, "part-0.parquet"))
    assert not list(store.list_uploads("lake", ""))


@pytest.mark.parametrize(
    "path",
    [
        "__magic_job-1/__base/_hidden/part-0.parquet",
        "__magic_job-1/__base/__magic_job-2/part-0.parquet",
        "../__magic_job-1/__base/part-0.parquet",
        "__magic_job-1/job-1/00/tasks/a/__base/part-0.parquet\n",
    ],
)
def test_a_mapped_path_has_to_pass_like_any_other(path: str) -> None:
    """Mapping opens no way to hidden files, out of the destination, or to keys that stores misread."""
    store, _, writer = _writer("magic")
    with writer, pytest.raises(InvalidRecord):
        writer.open(path)
    assert not list(store.list_uploads("lake", ""))

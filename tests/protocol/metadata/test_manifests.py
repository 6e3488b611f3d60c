from __future__ import annotations

import pytest

from airflow_s3commit.exceptions import InvalidRecord, NoSuchKey
from airflow_s3commit.protocol.metadata.manifests import manifest_of
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.testing import StoreCall
from tests.protocol.building import BUCKET, OURS, ROOT, THEIRS, Crash, Lake


def generation(lake: Lake, job_id: str | None = None) -> str:
    """Return the job whose manifest a reader uses."""
    return manifest_of(lake.store, Destination.parse(lake.destination), job_id).job_id


def test_the_last_commit_is_read_unless_a_job_is_named() -> None:
    """The log decides; a named job is found even after later ones."""
    lake = Lake()
    lake.sealed({"dt=1/a.parquet": b"1"}).commit()
    lake.sealed({"dt=2/a.parquet": b"2"}, job_id=THEIRS).commit()
    assert generation(lake) == THEIRS
    assert generation(lake, OURS) == OURS


def test_a_commit_never_leaves_readers_without_a_generation() -> None:
    """After every call of the second commit the generation is the first job's, then the second's for good."""
    lake = Lake()
    lake.sealed({"dt=1/a.parquet": b"1"}).commit()
    second = lake.sealed({"dt=1/a.parquet": b"2"}, job_id=THEIRS)
    seen: list[str] = []
    looking = False

    def look(call: StoreCall) -> None:
        nonlocal looking
        if not looking:
            looking = True
            lake.store_clock.advance(1)
            seen.append(generation(lake))
            looking = False

    lake.store.after = look
    second.commit()
    lake.store.rest()
    first_ones = seen.count(OURS)
    assert first_ones > 0
    assert seen == [OURS] * first_ones + [THEIRS] * (len(seen) - first_ones)
    assert seen[-1] == THEIRS


def test_a_commit_that_died_leaves_the_old_generation() -> None:
    """Without ``_SUCCESS``, which the dead commit removed, the newest commit in the log is read."""
    lake = Lake()
    lake.sealed({"dt=1/a.parquet": b"1"}).commit()
    second = lake.sealed({"dt=1/a.parquet": b"2"}, job_id=THEIRS)
    lake.store.die("complete_upload")
    with pytest.raises(Crash):
        second.commit()
    lake.store.rest()
    assert f"{lake.prefix}_SUCCESS" not in lake.keys("")
    assert generation(lake) == OURS


@pytest.mark.parametrize("marker", [True, False])
def test_no_clock_orders_commits(marker: bool) -> None:
    """Whatever the committers' and the store's clocks say, the later entry of the log is the later commit."""
    lake = Lake()
    lake.sealed({"dt=1/a.parquet": b"1"}).commit()
    for clock in (lake.clock, lake.store_clock):
        clock.advance(-3600)
    lake.sealed({"dt=1/a.parquet": b"2"}, job_id=THEIRS, conflict_mode="append").commit()
    if not marker:
        lake.store.delete(BUCKET, f"{lake.prefix}_SUCCESS")
    assert generation(lake) == THEIRS


def test_without_a_commit_there_is_nothing_to_read() -> None:
    """The error names the destination and how to see the jobs under way."""
    lake = Lake()
    with pytest.raises(NoSuchKey, match=r"no job has committed to s3://lake/flights/.*s3commit jobs"):
        generation(lake)


def test_a_lost_manifest_is_not_skipped() -> None:
    """The log still has it, whether its copy is there or not."""
    lake = Lake()
    lake.sealed({"dt=1/a.parquet": b"1"}).commit()
    lake.sealed({"dt=1/a.parquet": b"2"}, job_id=THEIRS).commit()
    lake.store.delete(BUCKET, f"{lake.prefix}_s3commit/manifests/{THEIRS}.json")
    assert generation(lake) == THEIRS


def test_markers_of_other_committers_are_refused() -> None:
    """Hadoop's own manifest, and the classic committer's empty marker, lead to no manifest of ours."""
    lake = Lake()
    name = b"org.apache.hadoop.fs.s3a.commit.files.SuccessData/1"
    lake.put({"_SUCCESS": b'{"name":"%s","committer":"magic"}' % name})
    with pytest.raises(InvalidRecord, match="names no manifest: it was written by magic"):
        generation(lake)
    lake.put({"_SUCCESS": b""})
    with pytest.raises(InvalidRecord, match="is empty"):
        generation(lake)


def test_a_table_whose_records_were_deleted_names_what_to_restore() -> None:
    """Where ``_SUCCESS`` alone is left, the error says which directory is missing and what to do."""
    lake = Lake()
    lake.sealed({"a": b"1"}).commit()
    for key in lake.keys(f"{ROOT}_s3commit/"):
        lake.store.delete(BUCKET, key)
    with pytest.raises(NoSuchKey, match=rf"{OURS}.* Restore s3://{BUCKET}/{ROOT}_s3commit/"):
        manifest_of(lake.store, Destination(BUCKET, ROOT), None)

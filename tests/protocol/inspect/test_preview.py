"""A preview says what a plan made at that moment would, and what a commit then does, and changes nothing."""

from __future__ import annotations

from itertools import product

import pytest

from airflow_s3commit.exceptions import AlreadyCommitted, DestinationNotEmpty, JobClosed, NoSuchJob
from airflow_s3commit.protocol.inspect.preview import preview_commit
from airflow_s3commit.protocol.metadata.plans import find_plan
from airflow_s3commit.protocol.metadata.state import require_state
from tests.cases import each
from tests.protocol.building import Crash, Lake

FILES = {"dt=1/part-0.parquet": b"new", "dt=2/part-0.parquet": b"newer"}
OLD = {
    "dt=1/part-0.parquet": b"old 1",
    "dt=1/other.parquet": b"old",
    "dt=3/x.parquet": b"old 3",
    "root": b"r",
}


@each(
    ("committer", "mode", "unique"),
    list(product(("directory", "partitioned", "magic"), ("fail", "append", "replace"), (True, False))),
)
def test_a_preview_says_what_the_plan_will(committer: str, mode: str, unique: bool) -> None:
    """For every committer and conflict mode the preview has the plan's counts, or names its obstacle."""
    lake = Lake()
    job = lake.sealed(FILES, committer=committer, conflict_mode=mode, unique_filenames=unique)
    lake.put(OLD)
    before = lake.everything()
    preview = preview_commit(lake.context())
    assert lake.everything() == before
    assert (preview.files, preview.bytes, preview.partitions, preview.planned) == (2, 8, 2, False)
    if preview.conflict is not None:
        with pytest.raises(DestinationNotEmpty):
            job.plan()
        return
    job.plan()
    stored = find_plan(lake.context(), require_state(lake.context(), "sealed").record)
    if mode == "append" and unique:
        # Nothing is replaced, and no plan written.
        assert (stored, preview.replaced, preview.overwritten) == (None, 0, 0)
        return
    assert stored is not None
    plan = stored.record
    assert (preview.replaced, preview.replaced_bytes, preview.overwritten) == (
        plan.objects,
        plan.bytes,
        plan.overwritten,
    )
    planned = preview_commit(lake.context())
    assert (planned.planned, planned.replaced, planned.replaced_bytes) == (True, plan.objects, plan.bytes)


def test_a_commit_that_has_begun_keeps_to_its_plan() -> None:
    """Later objects are not in the preview, because the commit does not replace them."""
    lake = Lake()
    lake.put({"dt=1/old.parquet": b"old"})
    lake.sealed(FILES)
    lake.store.die("complete_upload")
    with pytest.raises(Crash):
        lake.job().commit()
    lake.store.rest()
    lake.put({"dt=1/late.parquet": b"late"})
    preview = preview_commit(lake.context())
    assert (preview.planned, preview.replaced, preview.replaced_bytes) == (True, 1, 3)


def test_only_a_sealed_job_has_a_preview() -> None:
    """There is no preview before the seal or after the commit."""
    lake = Lake()
    with pytest.raises(NoSuchJob):
        preview_commit(lake.context())
    job = lake.set_up()
    with pytest.raises(JobClosed):
        preview_commit(lake.context())
    lake.run_stage(job, FILES)
    job.seal()
    assert preview_commit(lake.context()).to_dict()["files"] == 2
    job.commit()
    with pytest.raises(AlreadyCommitted):
        preview_commit(lake.context())

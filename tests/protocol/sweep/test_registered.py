"""The destinations of a registry are swept by their own records; the registry says where to look."""

from __future__ import annotations

from airflow_s3commit.exceptions import AccessDenied
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.metadata.registry import read_registry, register_destination
from airflow_s3commit.protocol.model.destination import Destination, RegisteredDestination
from airflow_s3commit.protocol.model.job import JobOptions
from airflow_s3commit.protocol.sweep import RegisteredSweep, apply_sweep, plan_registered
from airflow_s3commit.store.base import ObjectStore
from tests.protocol.building import BUCKET, ROOT, Lake, an_id

REGISTRY = Destination("other", "registry/")
DAY = 86_400.0


def planned(lake: Lake, denied: str = "") -> dict[str, RegisteredSweep]:
    """Plan the sweeps of a registry, by destination; one destination may not be read."""

    def opened(record: RegisteredDestination) -> ObjectStore:
        if record.destination == denied:
            raise AccessDenied("no")
        return lake.store

    entries = read_registry(lake.store, REGISTRY)
    return {one.entry.record.destination: one for one in plan_registered(entries, opened, older_than=DAY)}


def test_the_stagings_of_all_entries_of_a_destination_count() -> None:
    """A destination whose jobs have different stagings is swept once, with what is left in each."""
    lake = Lake()
    roots = [f"s3://other/staging-{number}/" for number in (1, 2)]
    for root in roots:
        options = JobOptions(committer="magic", staging=root)
        job = Job.setup(lake.store, lake.destination, job_id=an_id(root), options=options)
        lake.run_task(job, {"dt=1/a": b"1"})
        register_destination(lake.store, REGISTRY, lake.destination, staging=root)
        lake.store.delete(BUCKET, lake.open_key(job_id=an_id(root)))
    lake.store_clock.advance(2 * DAY)
    [found] = planned(lake).values()
    assert found.plan is not None
    store, plan = found.plan
    assert sorted(plan.staging_roots) == roots
    report = apply_sweep(store, plan, clock=lake.clock, threads=0)
    assert {done.job_id for done in report.jobs} == {an_id(root) for root in roots}
    assert lake.pending() == []
    assert not list(lake.store.list_objects("other", "staging-"))


def test_a_place_without_records_of_its_own_is_left_alone() -> None:
    """Uploads of other programs stay, also beside a log that was copied there; an empty place may go."""
    lake = Lake()
    lake.sealed({"dt=1/a": b"1"}).commit()
    for place in ("foreign/", "copy/", "empty/"):
        register_destination(lake.store, REGISTRY, f"s3://{BUCKET}/{place}")
    for place in ("foreign/", "copy/"):
        lake.store.create_upload(BUCKET, f"{place}theirs", metadata={}, content_type="x")
    for key in lake.keys(f"{ROOT}_s3commit/"):
        lake.store.put(BUCKET, f"copy/{key.removeprefix(ROOT)}", lake.get(key))
    lake.store_clock.advance(2 * DAY)
    found = planned(lake)
    assert {uri: (one.plan, one.gone) for uri, one in found.items()} == {
        f"s3://{BUCKET}/foreign/": (None, False),
        f"s3://{BUCKET}/copy/": (None, False),
        f"s3://{BUCKET}/empty/": (None, True),
    }


def test_a_destination_that_cannot_be_read_does_not_keep_back_the_others() -> None:
    """Its error is reported instead of a plan."""
    lake = Lake()
    lake.sealed({"dt=1/a": b"1"}).commit()
    for uri in (lake.destination, f"s3://{BUCKET}/closed/"):
        register_destination(lake.store, REGISTRY, uri)
    found = planned(lake, denied=f"s3://{BUCKET}/closed/")
    assert isinstance(found[f"s3://{BUCKET}/closed/"].error, AccessDenied)
    assert found[lake.destination].plan is not None

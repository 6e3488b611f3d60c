"""Whatever a tired operator, a dying worker and a store do to DAG runs, no run loses rows without a word."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace

import pytest

from airflow_s3commit import Job, notifications
from airflow_s3commit.hooks import S3CommitHook, StoreAddress
from airflow_s3commit.operators import setup
from airflow_s3commit.protocol.metadata.context import JobContext
from tests.airflow.lives import AtOnce, Life, here, outputs_of


def _live(monkeypatch: pytest.MonkeyPatch, seeds: Iterable[int]) -> None:
    monkeypatch.setattr(S3CommitHook, "store", property(lambda self: here.store))
    monkeypatch.setattr(S3CommitHook, "address", property(lambda self: StoreAddress()))
    monkeypatch.setattr(notifications, "_outputs", outputs_of)
    monkeypatch.setattr(notifications, "threading", SimpleNamespace(Thread=AtOnce))
    monkeypatch.setattr("airflow_s3commit.operators.abort.sleep", lambda _: None)
    # Without threads and with ids of its own a seed is one life.
    defaults = JobContext.__init__.__defaults__ or ()
    alone = tuple(0 if value == 16 else value for value in defaults)
    monkeypatch.setattr(JobContext.__init__, "__defaults__", alone)
    for seed in seeds:
        life = Life(seed)
        monkeypatch.setattr(setup, "uuid4", life.new_id)
        for step in (Job.at, Job.setup):
            monkeypatch.setitem(step.__func__.__kwdefaults__, "new_id", life.new_id)
        life.live((60, 150, 300)[seed % 3])
        assert life.problems == [], "\n".join([f"seed {seed}", *life.story])


def test_a_run_that_succeeds_has_the_last_try_of_each_stage(monkeypatch) -> None:
    """A success has committed what its stages' last tries wrote; at the end nothing is pending or staged."""
    _live(monkeypatch, range(50))


@pytest.mark.all
@pytest.mark.timeout(1200)
def test_a_thousand_lives(monkeypatch) -> None:
    """The same for a thousand lives."""
    _live(monkeypatch, range(50, 1_050))

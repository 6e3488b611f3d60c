"""The records of a job, and its options."""

from __future__ import annotations

from airflow_s3commit.protocol.model.job import JobOptions


def test_options_have_hadoop_s_names() -> None:
    """The options' defaults are the documented ones."""
    options = JobOptions()
    assert (options.committer, options.conflict_mode) == ("partitioned", "fail")
    assert (options.track_pending, options.staging) == ("task", None)

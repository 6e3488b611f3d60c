"""Names of partitions: the form in which they are compared, and the check of those that users give."""

from __future__ import annotations

import pytest

from airflow_s3commit.protocol.inspect.audit import AuditRules, audit
from airflow_s3commit.protocol.model.destination import check_partition_names, partition_form
from airflow_s3commit.protocol.model.sealed_job import Counts, SealReference


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("dt=2013-01-01T03:00:00", "dt=2013-01-01T03%3A00%3A00", True),
        ("/dt=1/region=eu/", "dt=1/region=eu", True),
        ("path=a%2Fb", "path=a/b", False),
        ("share=5%", "share=5%25", True),
        ("name=\xe9", "name=%E9", True),
        ("dt=1", "dt=2", False),
    ],
)
def test_escaped_and_plain_names_have_one_form(one: str, other: str, same: bool) -> None:
    """Two names have the same form exactly if they name the same directory."""
    assert (partition_form(one) == partition_form(other)) == same


@pytest.mark.parametrize(
    "name", ["", " ", "/", "None", "dt=", "dt=None", "dt=1/region=", "dt= /r=1", None, 1]
)
def test_a_name_without_a_value_is_refused(name: object) -> None:
    """What a template or a shell variable without a value leaves names no partition."""
    with pytest.raises(ValueError, match="has"):
        check_partition_names([name], "--partition")
    with pytest.raises(ValueError, match="audit rule"):
        AuditRules.from_dict({"partitions": [name]})


def test_an_audit_finds_a_partition_by_its_plain_name() -> None:
    """The directory of a time has escapes, and the rule need not."""
    partition = {"dt=2013-01-01T03%3A00%3A00": Counts(files=1, bytes=1, rows=1)}
    total = Counts(files=1, bytes=1, rows=1)
    sealed = SealReference(location="s3://lake/x", sha256="d", tasks=1, counts=total, partitions=partition)
    rules = AuditRules.from_dict({"partitions": ["dt=2013-01-01T03:00:00"], "only_partitions": True})
    assert audit("j", sealed, rules).passed
    other = AuditRules.from_dict({"partitions": ["dt=2013-01-02T03:00:00"]})
    assert [check.found for check in audit("j", sealed, other).failures] == [
        "no data for dt=2013-01-02T03:00:00"
    ]

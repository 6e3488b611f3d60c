"""The OpenLineage events of a commit, with the provider's own classes."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.openlineage.extractors import ExtractorManager
from airflow.providers.openlineage.extractors.base import DefaultExtractor
from msgspec.structs import replace

from airflow_s3commit import Destination, latest_manifest
from airflow_s3commit.assets import lineage_of
from airflow_s3commit.operators import S3CommitJobOperator, S3CommitResolveConflictsOperator
from tests.airflow.runs import commit_at, set_up, write_stage

if TYPE_CHECKING:
    from airflow_s3commit import MemoryStore

pytestmark = pytest.mark.airflow


def _committed(store: MemoryStore, context: dict[str, Any]) -> tuple[dict[str, str], S3CommitJobOperator]:
    reference = set_up(store)
    write_stage(store, reference, files={"dt=1/a.parquet": b"rows", "dt=2/b.parquet": b"rows!"})
    S3CommitResolveConflictsOperator(task_id="resolve", job=reference).execute(context)
    operator = S3CommitJobOperator(task_id="commit", job=reference)
    operator.execute(context)
    return reference, operator


def test_a_commit_is_an_output_with_statistics_and_a_version(
    store: MemoryStore, context: dict[str, Any]
) -> None:
    """The provider's own extractor reads from the operator what was committed, and as which version."""
    reference, operator = _committed(store, context)
    found = DefaultExtractor(operator).extract_on_complete(SimpleNamespace())
    assert found is not None
    assert found.inputs == []
    (output,) = found.outputs
    assert (output.namespace, output.name) == ("s3://lake", "flights")
    assert output.facets["version"].datasetVersion == reference["job_id"]
    statistics = output.outputFacets["outputStatistics"]
    assert (statistics.rowCount, statistics.size, statistics.fileCount) == (2, 9, 2)
    assert "lifecycleStateChange" not in output.facets


def test_the_manager_takes_the_operator_for_one_that_knows_its_lineage() -> None:
    """No extractor needs to be registered."""
    operator = S3CommitJobOperator(task_id="commit", job={})
    extractor = ExtractorManager()._get_extractor(operator)
    assert isinstance(extractor, DefaultExtractor)


def test_what_was_replaced_is_an_overwrite(store: MemoryStore, context: dict[str, Any]) -> None:
    """The event of a commit that removed older files says so, beside the number of new rows."""
    from airflow_s3commit import Job, JobOptions, JobReference  # noqa: PLC0415
    from airflow_s3commit.assets import lineage_of  # noqa: PLC0415

    _committed(store, context)
    job = Job.setup(store, "s3://lake/flights/", options=JobOptions(conflict_mode="replace"))
    reference = job.reference.to_dict()
    write_stage(store, reference, files={"dt=1/new.parquet": b"rows"})
    job.seal()
    manifest = Job.at(store, JobReference.from_dict(reference)).commit()
    (output,) = lineage_of(replace(manifest, counts=replace(manifest.counts, rows=7))).outputs
    assert output.outputFacets["outputStatistics"].rowCount == 7
    assert output.facets["lifecycleStateChange"].lifecycleStateChange.value == "OVERWRITE"


def test_a_commit_that_failed_has_no_lineage() -> None:
    """The provider asks a failed task too."""
    operator = S3CommitJobOperator(task_id="commit", job={})
    found = DefaultExtractor(operator).extract_on_failure(SimpleNamespace())
    assert found is not None
    assert found.outputs == []


@pytest.mark.parametrize(
    ("uri", "named"),
    [
        ("s3://lake/flights/", ("s3://lake", "flights")),
        ("s3a://lake/raw/flights", ("s3://lake", "raw/flights")),
        ("s3://lake", ("s3://lake", "/")),
    ],
)
def test_datasets_are_named_as_openlineage_wants_it(
    store: MemoryStore, uri: str, named: tuple[str, str]
) -> None:
    """``s3://bucket`` and the object's key, so that all readers mean the same dataset."""
    commit_at(store, uri)
    (output,) = lineage_of(latest_manifest(store, Destination.parse(uri))).outputs
    assert (output.namespace, output.name) == named


def test_the_provider_is_not_needed() -> None:
    """Without the provider, operators and lineage can be imported."""
    program = (
        "import sys\n"
        "sys.modules['openlineage'] = sys.modules['airflow.providers.openlineage.extractors'] = None\n"
        "import airflow_s3commit.assets, airflow_s3commit.operators.commit\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)

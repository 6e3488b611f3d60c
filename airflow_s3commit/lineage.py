"""OpenLineage facets of a commit: the dataset, its version, and counts.

Only the provider ``apache-airflow-providers-openlineage`` uses them, if it is installed. Names follow
OpenLineage's convention for object stores: the namespace is ``s3://bucket``, the name is the directory's key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_s3commit.protocol.model.destination import Destination

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage

    from airflow_s3commit.protocol.model.manifest import ManifestRecord

__all__ = ["dataset_name", "lineage_of"]


def lineage_of(manifest: ManifestRecord | None) -> OperatorLineage[Any, Any]:
    """Return the lineage of a commit: its destination as an output, with counts, and the job as version.

    :param manifest: The commit's manifest; None gives empty lineage.
    """
    from airflow.providers.openlineage.extractors import OperatorLineage  # noqa: PLC0415 - optional
    from openlineage.client.event_v2 import OutputDataset  # noqa: PLC0415
    from openlineage.client.facet_v2 import (  # noqa: PLC0415
        DatasetFacet,
        dataset_version_dataset,
        lifecycle_state_change_dataset,
        output_statistics_output_dataset,
    )

    if manifest is None:
        return OperatorLineage()
    facets: dict[str, DatasetFacet] = {
        "version": dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=manifest.job_id)
    }
    if manifest.replaced.files:
        change = lifecycle_state_change_dataset.LifecycleStateChange.OVERWRITE
        facets["lifecycleStateChange"] = lifecycle_state_change_dataset.LifecycleStateChangeDatasetFacet(
            lifecycleStateChange=change
        )
    statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
        rowCount=manifest.counts.rows, size=manifest.counts.bytes, fileCount=manifest.counts.files
    )
    namespace, name = dataset_name(Destination.parse(manifest.destination))
    output = OutputDataset(
        namespace=namespace, name=name, facets=facets, outputFacets={"outputStatistics": statistics}
    )
    return OperatorLineage(outputs=[output])


def dataset_name(destination: Destination) -> tuple[str, str]:
    """Return the namespace and name of a destination's dataset; the name of a bucket's root is ``/``.

    :param destination: The destination.
    """
    return f"s3://{destination.bucket}", destination.prefix.rstrip("/") or "/"

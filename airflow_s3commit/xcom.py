"""XComs of a commit's tasks: locations, ETags and counts, never content."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.layout import Layout

if TYPE_CHECKING:
    from airflow_s3commit.protocol.model.manifest import ManifestRecord

__all__ = ["JsonObject", "fetched", "manifest_summary", "manifest_uri", "seal_etags_of", "stages_of"]

#: A small JSON object, as one XCom holds it.
JsonObject: TypeAlias = dict[str, Any]


def manifest_uri(destination: str, job_id: str) -> str:
    """Return where the manifest of a job is, or would be."""
    place = Destination.parse(destination)
    return join_uri(place.bucket, Layout.of(place, job_id).manifest)


def manifest_summary(manifest: ManifestRecord) -> JsonObject:
    """Return a manifest's location, facts and counts; the list of files is in the manifest."""
    return {
        "manifest": manifest_uri(manifest.destination, manifest.job_id),
        "committer": manifest.committer,
        **manifest.to_dict(),
    }


def stages_of(stages: Iterable[Any] | None, job_id: str) -> list[tuple[str, str]] | None:
    """Return the stage attempts that the XComs of stage tasks name; None if none was given.

    A mapped stage's XCom is a sequence with one entry for each of its instances.

    :param stages: XComs of `S3CommitSparkSubmitOperator` tasks.
    :param job_id: The job that they must be of.
    :raises ValueError: An entry names no stage attempt, because its task was skipped or is of another kind;
        or it is of another job, because setup was cleared and the stage was not.
    """
    if stages is None:
        return None
    named: list[tuple[str, str]] = []
    for entry in stages:
        if isinstance(entry, Mapping) and {"stage", "stage_attempt"} <= entry.keys():
            if entry.get("job_id", job_id) != job_id:
                raise ValueError(
                    f"stage {entry['stage']} wrote for job {entry['job_id']}, and this is job {job_id}: "
                    "setup was run again, and that stage was not. Clear it, all its mapped instances, too."
                )
            named.append((str(entry["stage"]), str(entry["stage_attempt"])))
        elif not _is_single(entry):
            named.extend(stages_of(entry, job_id) or [])
        else:
            raise ValueError(
                f"{entry!r} names no stage attempt; pass the XCom of S3CommitSparkSubmitOperator tasks, "
                "or no stages at all to take every sealed stage of the job."
            )
    return named


def fetched(stages: Iterable[Any] | None) -> list[Any] | None:
    """Return the XComs of stage tasks with those of mapped tasks fetched: Airflow fetches them one by one.

    :param stages: XComs of `S3CommitSparkSubmitOperator` tasks, as a task is given them.
    """
    if stages is None:
        return None
    return [entry if _is_single(entry) else list(entry) for entry in stages]


def _is_single(entry: Any) -> bool:
    return isinstance(entry, (Mapping, str, bytes)) or not isinstance(entry, Iterable)


def seal_etags_of(stages: Iterable[Any] | None) -> dict[tuple[str, str], str]:
    """Return the ETags of the stages' seals, where the XComs of stage tasks name them.

    With them, a seal that was changed after its stage ended is refused.

    :param stages: XComs of `S3CommitSparkSubmitOperator` tasks, as for `stages_of`.
    """
    etags: dict[tuple[str, str], str] = {}
    for entry in stages or ():
        if isinstance(entry, Mapping):
            if {"stage", "stage_attempt", "etag"} <= entry.keys():
                etags[str(entry["stage"]), str(entry["stage_attempt"])] = str(entry["etag"])
        elif not _is_single(entry):
            etags.update(seal_etags_of(entry))
    return etags

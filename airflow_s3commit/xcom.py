"""XComs of a commit's tasks: locations, ETags and counts, never a list of files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.layout import Layout

if TYPE_CHECKING:
    from airflow_s3commit.protocol.model.manifest import ManifestRecord

__all__ = ["JsonObject", "fetched", "manifest_summary", "manifest_uri", "seal_etags_of", "stages_of"]

#: A small JSON object, the value of an XCom.
JsonObject: TypeAlias = dict[str, Any]


def manifest_uri(destination: str, job_id: str) -> str:
    """Return the URI of a job's manifest, whether or not the job has committed.

    :param destination: URI of the job's destination.
    :param job_id: The job's id.
    """
    place = Destination.parse(destination)
    return join_uri(place.bucket, Layout.of(place, job_id).manifest)


def manifest_summary(manifest: ManifestRecord) -> JsonObject:
    """Return a manifest's location, facts and counts, without its list of files.

    :param manifest: The manifest.
    """
    return {
        "manifest": manifest_uri(manifest.destination, manifest.job_id),
        "committer": manifest.committer,
        **manifest.to_dict(),
    }


def stages_of(stages: Iterable[Any] | None, job_id: str) -> list[tuple[str, str]] | None:
    """Return the stage attempts in the XComs of stage tasks, as pairs of stage and attempt; None for None.

    A mapped stage's XCom is a sequence with one entry for each of its instances.

    :param stages: XComs of `S3CommitSparkSubmitOperator` tasks.
    :param job_id: The job that the stage attempts must belong to.
    :raises ValueError: An entry has no stage attempt, because its task was skipped or has another type; or it
        belongs to another job, because setup was cleared and the stage was not.
    """
    if stages is None:
        return None
    named: list[tuple[str, str]] = []
    for entry in stages:
        if isinstance(entry, Mapping) and {"stage", "stage_attempt"} <= entry.keys():
            if entry.get("job_id", job_id) != job_id:
                raise ValueError(
                    f"stage {entry['stage']} wrote for job {entry['job_id']}, not for job {job_id}: the setup"
                    " task ran again, and the stage's task did not. Clear it too, with all mapped instances."
                )
            named.append((str(entry["stage"]), str(entry["stage_attempt"])))
        elif not _is_single(entry):
            named.extend(stages_of(entry, job_id) or [])
        else:
            raise ValueError(
                f"{entry!r} has no stage attempt; pass the XComs of S3CommitSparkSubmitOperator tasks, "
                "or leave stages out to take every sealed stage attempt of the job."
            )
    return named


def fetched(stages: Iterable[Any] | None) -> list[Any] | None:
    """Return the XComs of stage tasks, with those of mapped tasks as lists.

    Airflow passes a lazy sequence for a mapped task, which makes a request for each item at each iteration.

    :param stages: XComs of `S3CommitSparkSubmitOperator` tasks, as Airflow passes them to a task.
    """
    if stages is None:
        return None
    return [entry if _is_single(entry) else list(entry) for entry in stages]


def _is_single(entry: Any) -> bool:
    return isinstance(entry, (Mapping, str, bytes)) or not isinstance(entry, Iterable)


def seal_etags_of(stages: Iterable[Any] | None) -> dict[tuple[str, str], str]:
    """Return the ETags of seals in the XComs of stage tasks, by stage and stage attempt.

    With them, a seal that was changed after its stage ended is refused.

    :param stages: XComs of `S3CommitSparkSubmitOperator` tasks.
    """
    etags: dict[tuple[str, str], str] = {}
    for entry in stages or ():
        if isinstance(entry, Mapping):
            if {"stage", "stage_attempt", "etag"} <= entry.keys():
                etags[str(entry["stage"]), str(entry["stage_attempt"])] = str(entry["etag"])
        elif not _is_single(entry):
            etags.update(seal_etags_of(entry))
    return etags

"""XComs of a commit's tasks: locations, digests and counts, never a list of files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from airflow_s3commit.protocol.model.manifest import Manifest

__all__ = [
    "JsonObject",
    "counting_attempts",
    "fetched",
    "manifest_summary",
    "stages_of",
]

#: A small JSON object, the value of an XCom.
JsonObject: TypeAlias = dict[str, Any]


def manifest_summary(manifest: Manifest) -> JsonObject:
    """Return a manifest's location, facts and counts, without its list of files.

    :param manifest: The manifest.
    """
    return {"manifest": manifest.uri, **manifest.to_dict()}


def stages_of(
    stages: Iterable[Any] | None, job_id: str
) -> tuple[list[tuple[str, str]] | None, dict[tuple[str, str], str]]:
    """Return the stage attempts in the XComs of stage tasks, and the SHA-256 of the seals of those with one.

    An attempt is a pair of stage and attempt. With its digest, a seal that was changed after its stage ended
    is refused. A mapped stage's XCom is a sequence with one entry for each of its instances.

    :param stages: XComs of `S3CommitSparkSubmitOperator` tasks; None has None as its attempts.
    :param job_id: The job that the stage attempts must belong to.
    :raises ValueError: An entry has no stage attempt, because its task was skipped or has another type; or it
        belongs to another job, because setup was cleared and the stage was not.
    """
    if stages is None:
        return None, {}
    named: list[tuple[str, str]] = []
    digests: dict[tuple[str, str], str] = {}
    for entry in stages:
        if isinstance(entry, Mapping) and {"stage", "stage_attempt"} <= entry.keys():
            if entry.get("job_id", job_id) != job_id:
                raise ValueError(
                    f"stage {entry['stage']} wrote for job {entry['job_id']}, not for job {job_id}: the setup"
                    " task ran again, and the stage's task did not. Clear it too, with all mapped instances."
                )
            attempt = (str(entry["stage"]), str(entry["stage_attempt"]))
            named.append(attempt)
            if "sha256" in entry:
                digests[attempt] = str(entry["sha256"])
        elif not _is_single(entry):
            inner, theirs = stages_of(entry, job_id)
            named.extend(inner or [])
            digests.update(theirs)
        else:
            raise ValueError(
                f"{entry!r} has no stage attempt; pass the XComs of S3CommitSparkSubmitOperator tasks, "
                "or leave stages out to take the newest sealed attempt of each stage."
            )
    return named, digests


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


def counting_attempts(
    sealed: Iterable[tuple[str, str]], tries: Iterable[Mapping[str, Any]]
) -> list[tuple[str, str]]:
    """Return the sealed stage attempts that count: for each stage, that of the last try.

    Attempts of a stage are numbered by the tries of a task, so that of the last try has the highest number.
    If ids are not numbers, all attempts of the stage count, because none is known to be the last.

    :param sealed: Pairs of stage and stage attempt.
    :param tries: Stage and last try of tasks, which is the try that succeeded.
    :raises ValueError: The last try of a task sealed no output, and an earlier one did.
    """
    by_stage: dict[str, list[str]] = {}
    for stage, attempt in sealed:
        by_stage.setdefault(stage, []).append(attempt)
    last = {str(each["stage"]): str(each["try"]) for each in tries}
    counting: list[tuple[str, str]] = []
    for stage, attempts in by_stage.items():
        if stage in last and last[stage] not in attempts:
            raise ValueError(
                f"try {last[stage]} of stage {stage} succeeded and sealed no output; that of"
                f" {', '.join(attempts)} does not count. Make each try seal its output under its own number,"
                " or leave out the stage's name if a try may use what an earlier one sealed."
            )
        if stage in last:
            counting.append((stage, last[stage]))
        elif all(attempt.isdecimal() for attempt in attempts):
            counting.append((stage, max(attempts, key=int)))
        else:
            counting.extend((stage, attempt) for attempt in attempts)
    return counting

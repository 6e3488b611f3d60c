"""Operators that seal a job, which fixes the stage attempts that count, and preview its commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from airflow.sdk import BaseOperator

from airflow_s3commit._format import Column, text_table
from airflow_s3commit.airflow_version import AirflowFailException, AirflowSkipException
from airflow_s3commit.links import PendingsetsLink
from airflow_s3commit.operators.base import (
    NO_OUTPUT,
    CommitStepOperator,
    failures_are_noted,
    pulled,
    states_of,
    totals,
)
from airflow_s3commit.templates import ValuesRequired, one_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from airflow.sdk import BaseOperatorLink, Context

    from airflow_s3commit.protocol.job import Job
    from airflow_s3commit.protocol.model.sealed_job import SealReference


#: The effect of a skipped stage, and what happens without output.
SkippedStages: TypeAlias = Literal["skip", "ignore"]
OnEmpty: TypeAlias = Literal["skip", "commit", "remove"]

#: Read these arguments.
SKIPPED_STAGES = one_of(*get_args(SkippedStages))
ON_EMPTY = one_of(*get_args(OnEmpty))

#: The key of the XCom with the stage and the try of a task of another engine.
_STAGE_TRY = "stage_try"


def note_try(context: Context, *, stage: str) -> None:
    """Note the stage and the try of a task in its XCom ``stage_try``; a callback for the beginning of a try.

    Airflow deletes a task's XComs before each try, so the note is always that of the last try. If the task is
    marked as successful by hand, the last try is the one that succeeded.

    :param context: The task's context.
    :param stage: The stage's name, or a template of it.
    """
    ti: Any = context["ti"]
    name = str(ti.task.render_template(stage, context))
    ti.xcom_push(key=_STAGE_TRY, value={"stage": name, "try": ti.try_number})


class S3CommitStagesOperator(ValuesRequired, BaseOperator):
    """Returns the XComs of the stages that were not skipped, for the task that seals the job.

    Give it the trigger rule ``none_failed``, as `s3_commit_task_group` does. The task that seals cannot have
    this rule: Airflow requires ``all_success`` of every task directly behind a setup. It may be retried.

    :param stages: XComs of the stage tasks; None if one of them has none, and then the result is None.
        (templated)
    :param skipped_stages: If some stages were skipped, ``ignore`` returns the XComs of the others, and
        ``skip`` skips this task.
    :param on_empty: If all stages were skipped, ``skip`` skips this task; ``commit`` or ``remove`` returns an
        empty list, so that the job commits no files.
    """

    template_fields: Sequence[str] = ("stages",)
    ui_color = "#e8f0f7"

    def __init__(
        self,
        *,
        stages: Any = None,
        skipped_stages: SkippedStages = "ignore",
        on_empty: OnEmpty = "skip",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.stages = stages
        self.skipped_stages = skipped_stages
        self.on_empty = on_empty
        self.check(skipped_stages=SKIPPED_STAGES, on_empty=ON_EMPTY)

    def execute(self, context: Context) -> list[Any] | None:
        """Return the XComs, with those of mapped stages as lists.

        :param context: The task's context.
        :raises AirflowSkipException: All stages were skipped, or some, and this task has to be too.
        """
        ended = {*states_of(context, task_ids=sorted(self.upstream_task_ids)).values()}
        if ended == {"skipped"}:
            if self.on_empty == "skip":
                raise AirflowSkipException("All stages were skipped; there is nothing to commit.")
            return []
        if "skipped" in ended and self.skipped_stages == "skip":
            raise AirflowSkipException("A stage was skipped, so the commit is skipped too.")
        xcoms = _fetched(self.stages)
        # A skipped task has no XCom; a mapped one whose instances were all skipped has an empty list.
        return None if xcoms is None else [xcom for xcom in xcoms if xcom]


class SealingOperator(CommitStepOperator):
    """A step that seals the job with the stages that count.

    :param stages: XComs of the stage tasks; None takes the newest sealed attempt of each stage of the job,
        such as those of other engines. (templated)
    :param named_stages: Ids of tasks of other engines with a stage's name, as `S3CommitGroup.stage` has
        named them: of their stages, only the attempt of the last try counts.
    """

    template_fields: Sequence[str] = (*CommitStepOperator.template_fields, "stages")
    operator_extra_links: Collection[BaseOperatorLink] = (PendingsetsLink(),)

    def __init__(self, *, stages: Any = None, named_stages: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.stages = stages
        self.named_stages = list(named_stages)
        self.seal_uri: str | None = None

    def seal(self, context: Context, job: Job) -> SealReference:
        """Seal the job, and return the seal's location and counts. Repeatable with the same stages.

        :param context: The task's context.
        :param job: The job.
        :raises AirflowFailException: ``stages`` has no XComs of stage tasks of this job.
        :raises Refused: The job cannot be sealed with these stages.
        """
        try:
            stages, digests = _stages_of(_fetched(self.stages), job.reference.job_id)
            if stages is None:
                sealed_stages = job.sealed_stages()
                # What the tasks with a stage's name noted when their last try began.
                tries = pulled(context, self.named_stages, _STAGE_TRY)
                stages = _counting_attempts(sealed_stages, tries) or None
                for stage, attempt in sorted({*sealed_stages} - {*(stages or ())}):
                    self.log.info("Attempt %s of stage %s does not count: a later try did", attempt, stage)
        except ValueError as error:
            raise AirflowFailException(f"Task {self.task_id}: {error}") from error
        sealed = job.seal(stages, digests=digests)
        self.seal_uri = sealed.location
        self.log.info(
            "Job %s is sealed: %s in %d partitions",
            job.reference.job_id,
            totals(sealed.counts),
            len(sealed.partitions),
        )
        return sealed


class S3CommitResolveConflictsOperator(SealingOperator):
    """Seals the job if it is not sealed, and previews its commit: what that would replace now.

    With conflict mode ``fail`` this task fails if a touched partition has data, before any output becomes
    visible. It may be retried. Returns the seal's location, SHA-256 and counts, and the preview's generation
    of the table and counts; the log names the partitions that would lose files.

    If the stages wrote no files, ``on_empty`` decides. Only ``remove`` removes data without replacing it:
    with committer ``directory`` and conflict mode ``replace`` that is the whole table.

    :param on_empty: If the stages wrote no files, ``skip`` skips this task and the commit; ``commit`` commits
        without files, and fails if that would remove data; ``remove`` commits, and removes what the conflict
        mode replaces.
    """

    ui_color = "#e8f0f7"

    def __init__(self, *, on_empty: OnEmpty = "commit", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.on_empty = on_empty
        self.check(on_empty=ON_EMPTY)

    def execute(self, context: Context) -> dict[str, Any]:
        """Seal the job and preview its commit; return what identifies both, and counts.

        :param context: The task's context.
        :raises AirflowSkipException: There is no output, and ``on_empty`` is ``skip``.
        :raises AirflowFailException: There is no output, and the commit would only remove data. Or the
            protocol refused.
        """
        with failures_are_noted(context):
            job = self.opened_job()
            sealed = self.seal(context, job)
            preview = job.preview()
            self.log.info(
                "After generation %d the commit would replace %d objects (%d bytes) in %d partitions",
                preview.generation,
                preview.objects,
                preview.bytes,
                len(preview.partitions),
            )
            if preview.partitions:
                column = Column("partition", "", lambda name: name or "(the root)")
                named = text_table([column], preview.partitions)
                self.log.info("These would lose files:\n%s", named)
            if not sealed.counts.files and self.on_empty != "remove":
                self._check_empty(context, job, preview.objects)
        counted = {**preview.to_dict(), "partitions": len(preview.partitions)}
        return {"seal": sealed.to_dict(), "preview": counted}

    def _check_empty(self, context: Context, job: Job, removed: int) -> None:
        # Spark asks for a removal by its save mode; skipping that would be a silent loss.
        asked = self.on_empty == "commit" or job.record().options.conflict_mode == "as-written"
        if removed and asked:
            raise AirflowFailException(
                f"Task {self.task_id}: the stages wrote no files, and the commit would remove {removed}"
                f' objects of {job.reference.destination}. To remove them give on_empty="remove"; to leave'
                ' the table as it is, on_empty="skip", and a conflict_mode in place of the save modes.'
            )
        if self.on_empty == "skip":
            context["ti"].xcom_push(key=NO_OUTPUT, value=True)
            raise AirflowSkipException("The stages wrote no files; there is nothing to commit.")


def _stages_of(
    stages: Iterable[Any] | None, job_id: str
) -> tuple[list[tuple[str, str]] | None, dict[tuple[str, str], str]]:
    """Return the stage attempts in the XComs of stage tasks, and the SHA-256 of the seals of those with one.

    An attempt is a pair of stage and attempt; those of None are None. With its digest, a seal that was
    changed after its stage ended is refused. A mapped stage's XCom is a sequence with one entry for each of
    its instances.

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
            inner, theirs = _stages_of(entry, job_id)
            named.extend(inner or [])
            digests.update(theirs)
        else:
            raise ValueError(
                f"{entry!r} has no stage attempt; pass the XComs of S3CommitSparkSubmitOperator tasks, "
                "or leave stages out to take the newest sealed attempt of each stage."
            )
    return named, digests


def _fetched(stages: Iterable[Any] | None) -> list[Any] | None:
    """Return the XComs of stage tasks, with those of mapped tasks as lists.

    Airflow passes a lazy sequence for a mapped task, which makes a request for each item at each iteration.
    """
    if stages is None:
        return None
    return [entry if _is_single(entry) else list(entry) for entry in stages]


def _is_single(entry: Any) -> bool:
    return isinstance(entry, (Mapping, str, bytes)) or not isinstance(entry, Iterable)


def _counting_attempts(
    sealed: Iterable[tuple[str, str]], tries: Iterable[Mapping[str, Any]]
) -> list[tuple[str, str]]:
    """Return the sealed stage attempts that count: for each stage, that of the last try.

    Attempts of a stage are numbered by the tries of a task, so that of the last try has the highest number.
    If ids are not numbers, all attempts of the stage count, because none is known to be the last.

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

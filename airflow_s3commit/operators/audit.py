"""The audit gate: a look at what is about to become visible, while nothing of it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk.exceptions import AirflowFailException

from airflow_s3commit.operators.approval import ask_for_approval, decision_in
from airflow_s3commit.operators.base import job_reference, refusals_are_final
from airflow_s3commit.operators.collect import SealingOperator
from airflow_s3commit.operators.log_table import log_table

if TYPE_CHECKING:
    from airflow.sdk import BaseNotifier, Context
    from airflow.sdk.execution_time.hitl import HITLUser

    from airflow_s3commit.protocol.audit import AuditReport, AuditRules
    from airflow_s3commit.protocol.job import Job
    from airflow_s3commit.protocol.records import ManifestRecord
    from airflow_s3commit.xcom import JsonObject

__all__ = ["S3CommitAuditOperator"]

_ON_FAIL = ("fail", "warn", "ask")


class S3CommitAuditOperator(SealingOperator):
    """Seals the job and holds what it is about to make visible against rules. Returns the report.

    It reads the statistics that were written with the output, not the output. Put it before
    `S3CommitResolveConflictsOperator`; when it fails, the commit does not run and the teardown aborts the
    job: nothing becomes visible, nothing stays pending. The report is also the XCom ``audit_report``, which
    a failed audit leaves too.

    :param job: The job reference. (templated)
    :param rules: What is expected, by the names of ``airflow_s3commit.protocol.audit.AuditRules``:
        ``min_rows``, ``max_rows``, ``min_files``, ``max_files``, ``min_bytes``, ``max_bytes``,
        ``partitions``, ``only_partitions``, ``max_null_ratio`` (by column), ``ranges`` (by column, a pair of
        bounds), ``max_drift`` (of the rows, against the commit before). What is not known counts as failed.
        (templated)
    :param on_fail: ``fail``; ``warn``: log what failed and go on; or ``ask``: wait, in no worker, until
        somebody approves of it or rejects it among Airflow's required actions. (templated)
    :param stages: XComs of the stage tasks; None takes every stage attempt that the job has sealed.
        (templated)
    :param response_timeout: How long ``ask`` waits for an answer; then the audit has failed. Keep it shorter
        than the age at which a sweep takes silent jobs for dead. None waits for ever.
    :param assigned_users: Who may answer, as Airflow's ``HITLOperator`` takes them; None is everybody who may
        edit the run.
    :param notifiers: Notifiers that are called when the question is put.
    """

    template_fields: Sequence[str] = (*SealingOperator.template_fields, "rules", "on_fail")
    ui_color = "#f7f3e0"

    def __init__(
        self,
        *,
        rules: Mapping[str, Any],
        on_fail: str = "fail",
        response_timeout: timedelta | None = timedelta(days=1),
        assigned_users: Sequence[HITLUser] | None = None,
        notifiers: Sequence[BaseNotifier] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.rules = rules
        self.on_fail = on_fail
        self.response_timeout = response_timeout
        self.assigned_users = assigned_users
        self.notifiers = notifiers

    def execute(self, context: Context) -> JsonObject:
        """Seal, judge, and let pass or fail."""
        from airflow_s3commit.protocol.audit import audit  # noqa: PLC0415 - keeps DAG parsing light

        rules = self._read_rules()
        with refusals_are_final():
            job = self.opened_job()
            before = self._commit_before(job) if rules.max_drift is not None else None
            report = audit(job.reference.job_id, self.seal(job), rules, before=before)
            table = _table(report)
            self.log.info("Audit of job %s\n%s", report.job_id, table)
            plain = report.to_dict()
            context["ti"].xcom_push(key="audit_report", value=plain)
            if self.on_fail == "fail":
                report.require()
        if not report.passed:
            if self.on_fail == "ask":
                self._ask(context, plain, table)
            self.log.warning("%d checks failed; going on, as on_fail is warn", len(report.failures))
        return plain

    def execute_complete(
        self, context: Context, event: Mapping[str, Any], report: JsonObject, subject: str
    ) -> JsonObject:
        """Go on if the failed audit was approved of, and fail if not.

        :param context: The task's context.
        :param event: The answer.
        :param report: What was found.
        :param subject: The question.
        """
        decision = decision_in(event, subject)
        self.log.info("Going on: %s approved of it at %s", decision["approved_by"], decision["at"])
        decided = {**report, "decision": decision}
        context["ti"].xcom_push(key="audit_report", value=decided)
        return decided

    def _ask(self, context: Context, report: JsonObject, table: str) -> NoReturn:
        failed = sum(not check["passed"] for check in report["checks"])
        subject = (
            f"{failed} of {len(report['checks'])} checks of job {report['job_id']} failed: commit it anyway?"
        )
        destination = job_reference(self.job, self.task_id)["destination"]
        for notifier in self.notifiers:
            notifier(context)
        self.log.info("Waiting for a human: %s", subject)
        ask_for_approval(
            context,
            subject=subject,
            body=f"Nothing of it is visible in `{destination}` yet. Approve: it is committed. Reject, or no "
            f"answer in time: it is aborted, and the run fails.\n\n```\n{table}\n```",
            method_name="execute_complete",
            kwargs={"report": report, "subject": subject},
            timeout=self.response_timeout,
            assigned_users=self.assigned_users,
        )

    def _read_rules(self) -> AuditRules:
        from airflow_s3commit.protocol.audit import AuditRules  # noqa: PLC0415 - keeps DAG parsing light

        if self.on_fail not in _ON_FAIL:
            raise AirflowFailException(
                f"Task {self.task_id}: on_fail is {self.on_fail!r}; it must be one of {', '.join(_ON_FAIL)}."
            )
        try:
            return AuditRules.from_dict(self.rules)
        except ValueError as error:
            raise AirflowFailException(f"Task {self.task_id}: {error}") from error

    def _commit_before(self, job: Job) -> ManifestRecord | None:
        from airflow_s3commit.exceptions import InvalidRecord, NoSuchKey  # noqa: PLC0415
        from airflow_s3commit.protocol.destination import Destination  # noqa: PLC0415
        from airflow_s3commit.protocol.manifest import latest_manifest  # noqa: PLC0415

        try:
            return latest_manifest(self.hook.store, Destination.parse(job.reference.destination))
        except (NoSuchKey, InvalidRecord) as error:
            self.log.info("There is no commit to compare with: %s", error)
            return None


def _table(report: AuditReport) -> str:
    rows = [
        ("passed" if one.passed else "FAILED", one.check, one.expected, one.found) for one in report.checks
    ]
    return log_table(("verdict", "check", "expected", "found"), rows, most=500)

"""The audit gate: checks the output against rules before any of it becomes visible.

It can ask a user through Airflow's human-in-the-loop, which occupies neither a worker nor a triggerer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NoReturn

from airflow_s3commit._format import text_table
from airflow_s3commit.airflow_version import AirflowFailException, wait_for_answer
from airflow_s3commit.operators.base import failures_are_noted
from airflow_s3commit.operators.seal import SealingOperator
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.templates import mapping, one_of

if TYPE_CHECKING:
    from airflow.sdk import BaseNotifier, Context
    from airflow.sdk.execution_time.hitl import HITLUser

    from airflow_s3commit.protocol.inspect.audit import AuditRules

APPROVE: Final = "Approve"
REJECT: Final = "Reject"

_ON_FAIL = one_of("fail", "warn", "ask")


class S3CommitAuditOperator(SealingOperator):
    """Seals the job and checks its output against rules. Returns the report.

    It reads the statistics that were written with the output, not the output itself. Put it before
    `S3CommitResolveConflictsOperator`: if it fails, the commit does not run and the teardown aborts the job.
    The XCom ``audit_report`` has the report too, even if the audit fails. It may be retried.

    :param rules: The checks, by the names of the fields of `AuditRules`: ``min_rows``, ``max_rows``,
        ``min_files``, ``max_files``, ``min_bytes``, ``max_bytes``, ``partitions``, ``only_partitions``,
        ``max_null_ratio`` (by column), ``ranges`` (by column, a pair of bounds), ``max_drift`` (of the number
        of rows, against the previous commit). A check fails if its statistic is unknown. (templated)
    :param on_fail: ``fail``; ``warn``: log the failed checks and succeed; or ``ask``: wait, without a worker,
        until a user approves or rejects the commit in Airflow's required actions. (templated)
    :param response_timeout: Time that ``ask`` waits for an answer before the audit fails; None for no limit.
        Keep it shorter than the age at which a sweep treats a job as dead.
    :param assigned_users: The users who may answer, as in Airflow's ``HITLOperator``; None for all users who
        may edit the run.
    :param notifiers: Notifiers to call when ``ask`` begins to wait.
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
        self.check(on_fail=_ON_FAIL, rules=_rules)

    def execute(self, context: Context) -> dict[str, Any]:
        """Seal the job and check the rules; return the report, ask a user, or fail.

        :param context: The task's context.
        :raises AirflowFailException: A check failed with ``on_fail="fail"``, a rule or ``on_fail`` is not
            valid, or the store or the protocol refused a request.
        """
        from airflow_s3commit.protocol.inspect.audit import (  # noqa: PLC0415 - keeps DAG parsing light
            AuditCheck,
            audit,
            commit_before,
        )

        with failures_are_noted(context):
            self.read("on_fail", _ON_FAIL)
            rules = self.read("rules", _rules)
            job = self.opened_job()
            place = Destination.parse(job.reference.destination)
            sealed = self.seal(context, job)
            drifts = rules.max_drift is not None
            before = commit_before(self.hook.store, place, sealed.partitions) if drifts else None
            report = audit(job.reference.job_id, sealed, rules, before=before)
            table = text_table(AuditCheck.columns, report.checks, most=500)
            self.log.info("Audit of job %s\n%s", report.job_id, table)
            plain = report.to_dict()
            context["ti"].xcom_push(key="audit_report", value=plain)
            if self.on_fail == "fail":
                report.require()
        if not report.passed:
            if self.on_fail == "ask":
                self._ask(context, plain, table)
            self.log.warning("%d checks failed; continuing because on_fail is warn", len(report.failures))
        return plain

    def execute_complete(
        self, context: Context, event: Mapping[str, Any], report: dict[str, Any], subject: str
    ) -> dict[str, Any]:
        """Return the report, with the user's decision, if a user approved the commit.

        :param context: The task's context.
        :param event: The user's answer.
        :param report: The report.
        :param subject: The question.
        :raises AirflowFailException: A user rejected the commit, or nobody answered in time.
        """
        with failures_are_noted(context):
            decision = decision_in(event, subject)
        self.log.info("%s approved the commit at %s", decision["approved_by"], decision["at"])
        decided = {**report, "decision": decision}
        context["ti"].xcom_push(key="audit_report", value=decided)
        return decided

    def _ask(self, context: Context, report: dict[str, Any], table: str) -> NoReturn:
        """Ask whether to commit, and suspend the task; the answer resumes it.

        :raises BaseException: Always; Airflow's own, which suspends the task.
        """
        from airflow.sdk.execution_time.hitl import upsert_hitl_detail  # noqa: PLC0415 - keeps DAG parsing light

        failed = sum(not check["passed"] for check in report["checks"])
        subject = (
            f"{failed} of {len(report['checks'])} checks of job {report['job_id']} failed: commit it anyway?"
        )
        destination = self.opened_job().reference.destination
        for notifier in self.notifiers:
            notifier(context)
        self.log.info("Waiting for an answer: %s", subject)
        ti_id, answers = context["ti"].id, [APPROVE, REJECT]
        upsert_hitl_detail(
            ti_id=ti_id,
            options=answers,
            subject=subject,
            body=f"No output of the job is visible in `{destination}` yet. Approve to commit the job. If you "
            f"reject, or nobody answers in time, the job is aborted and the run fails.\n\n```\n{table}\n```",
            params={},
            assigned_users=list(self.assigned_users) if self.assigned_users else None,
        )
        resumed = {"report": report, "subject": subject}
        wait_for_answer(ti_id, answers, "execute_complete", resumed, self.response_timeout)


def _rules(given: Mapping[str, Any]) -> AuditRules:
    from airflow_s3commit.protocol.inspect.audit import AuditRules  # noqa: PLC0415 - only if there is an audit

    return AuditRules.from_dict(mapping(given))


def decision_in(event: Mapping[str, Any], subject: str) -> dict[str, Any]:
    """Return the user who approved, and the time, as plain values.

    :param event: The event that resumed the task.
    :param subject: The question, for the message.
    :raises AirflowFailException: A user rejected the commit, or nobody answered in time.
    """
    if "error" in event:
        raise AirflowFailException(f"{subject} Nobody answered in time: {event['error']}")
    user = event.get("responded_by_user") or {}
    name = str(user.get("name") or user.get("id") or "somebody")
    time: Any = event.get("responded_at")
    if event.get("chosen_options") != [APPROVE]:
        raise AirflowFailException(f"{subject} {name} rejected it.")
    return {"approved_by": name, "at": time.isoformat() if hasattr(time, "isoformat") else str(time)}

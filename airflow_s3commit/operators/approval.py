"""Asking a human, with Airflow's human-in-the-loop: no worker and no triggerer waits for the answer.

The question is shown among Airflow's required actions, with the task's other details, and may be answered
there or over the REST API.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NoReturn

from airflow.sdk.exceptions import AirflowFailException, TaskAwaitingInput

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.execution_time.hitl import HITLUser

    from airflow_s3commit.xcom import JsonObject

__all__ = ["APPROVE", "REJECT", "ask_for_approval", "decision_in"]

APPROVE: Final = "Approve"
REJECT: Final = "Reject"


def ask_for_approval(
    context: Context,
    *,
    subject: str,
    body: str,
    method_name: str,
    kwargs: JsonObject,
    timeout: timedelta | None,
    assigned_users: Sequence[HITLUser] | None = None,
) -> NoReturn:
    """Put the question and end this run of the task; it is resumed with the answer.

    :param context: The task's context.
    :param subject: The question.
    :param body: What has to be known to answer it, in Markdown.
    :param method_name: The operator's method that is called with the answer as ``event``.
    :param kwargs: What else it is called with: plain JSON values.
    :param timeout: How long to wait; None waits for ever.
    :param assigned_users: Who may answer; None is everybody who may edit the run.
    """
    from airflow.sdk.execution_time.hitl import upsert_hitl_detail  # noqa: PLC0415 - keeps DAG parsing light

    upsert_hitl_detail(
        ti_id=context["ti"].id,
        options=[APPROVE, REJECT],
        subject=subject,
        body=body,
        params={},
        assigned_users=list(assigned_users) if assigned_users else None,
    )
    raise TaskAwaitingInput(method_name=method_name, kwargs=kwargs, timeout=timeout)


def decision_in(event: Mapping[str, Any], subject: str) -> JsonObject:
    """Return who approved, and when, as plain values.

    :param event: What the task was resumed with.
    :param subject: The question, for the message.
    :raises AirflowFailException: The answer was no, or nobody answered in time.
    """
    if "error" in event:
        raise AirflowFailException(f"{subject} Nobody answered in time: {event['error']}")
    who = event.get("responded_by_user") or {}
    name = str(who.get("name") or who.get("id") or "somebody")
    when: Any = event.get("responded_at")
    if event.get("chosen_options") != [APPROVE]:
        raise AirflowFailException(f"{subject} {name} rejected it.")
    return {"approved_by": name, "at": when.isoformat() if hasattr(when, "isoformat") else str(when)}

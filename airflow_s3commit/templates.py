"""Templates of operators and sensors, in which an expression must have a value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jinja2 import Undefined

from airflow_s3commit.airflow_version import AirflowFailException, partition_key_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.sdk import Context
    from jinja2 import Environment


class ValuesRequired:
    """Refuses a template with an expression that is None, which would become the text ``None``.

    ``dt={{ partition_key }}`` in a run without a partition key would name the partition ``dt=None``. A
    template that is one expression may be None with native rendering, where it stays None.
    """

    def require_text(self, *names: str) -> None:
        """Refuse what is no text in template fields that are, or that are collections of it.

        Native rendering turns text such as ``2013_01_05`` into the number 20130105, which cannot be undone.

        :param names: The fields. None is no value.
        :raises AirflowFailException: A field has something else than text.
        """
        own: Any = self
        for name in ("aws_conn_id", "region_name", *names):
            value = getattr(self, name)
            several = value.values() if isinstance(value, Mapping) else value
            for one in several if isinstance(value, Mapping | list | tuple) else [value]:
                if one is not None and not isinstance(one, str):
                    raise AirflowFailException(
                        f"Task {own.task_id}: {name} has {one!r} where text is meant. Native rendering turns"
                        " text into numbers: put quotes into the template, as in \"'{{ ds_nodash }}'\"."
                    )

    def render_template(
        self, content: Any, context: Context, jinja_env: Environment | None = None, seen_oids: Any = None
    ) -> Any:
        """Render a template, as Airflow does; it calls this for every template field.

        :param content: The template, or a collection with templates.
        :param context: The task's context.
        :param jinja_env: The environment of the templates.
        :param seen_oids: Airflow's own record of what is rendered already.
        :raises AirflowFailException: An expression has no value in this run.
        """
        parent: Any = super()
        own: Any = self
        env: Any = jinja_env or own.get_template_env()
        if not isinstance(env.finalize, _Marking):
            env = env.overlay(finalize=_Marking(env.finalize))
        # Before Airflow 3.3 no context has the key.
        known: Any = context
        if "partition_key" not in context:
            known = {**context, "partition_key": partition_key_of(context)}
        try:
            rendered = parent.render_template(content, known, env, seen_oids)
        except _HasNoValue as error:
            raise AirflowFailException(
                f"Task {own.task_id}: {content!r} has an expression without a value in this run. Start the"
                " run with what it names (a partition key, a param, the task whose XCom it reads), or give"
                " it another value: {{ partition_key or params.day }}."
            ) from error
        return None if isinstance(rendered, _NoValue) else rendered


class _HasNoValue(Exception):
    """An expression without a value is to become text."""


class _NoValue:
    def __str__(self) -> str:
        raise _HasNoValue


class _Marking:
    """Replaces None in the results of a template's expressions by a value that cannot become text."""

    def __init__(self, given: Callable[[Any], Any] | None) -> None:
        self._given = given

    def __call__(self, value: Any) -> Any:
        if self._given is not None:
            value = self._given(value)
        return _NoValue() if value is None or type(value) is Undefined else value

"""Template fields of operators and sensors: checked when the DAG is parsed, and when they are rendered."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from airflow.sdk import BaseOperator, Context
from jinja2 import Environment, Undefined

from airflow_s3commit.airflow_version import AirflowFailException, partition_key_of
from airflow_s3commit.exceptions import InvalidOption, S3CommitError
from airflow_s3commit.protocol.model.destination import Destination

T = TypeVar("T")

#: Arguments that must have a value: None does not leave them out, because it is not their default.
_NEEDED = (
    *("apply", "database", "destination", "iceberg_conn_id", "kill_window", "notifiers", "older_than"),
    *("on_empty", "on_fail", "part", "poke_interval", "rules", "search_depth", "skipped_stages", "table"),
    *("target_bytes", "time_limit", "writer"),
)


def is_known(value: Any) -> bool:
    """Return whether parsing a DAG yields the value itself, not a template or a task's or param's result."""
    if isinstance(value, str):
        return "{{" not in value and "{%" not in value
    if isinstance(value, Mapping):
        return all(map(is_known, value.values()))
    if isinstance(value, list | tuple | set):
        return all(map(is_known, value))
    return not hasattr(value, "resolve")


def one_of(*words: str) -> Callable[[Any], str]:
    """Return a parser for an argument that must be one of the given words."""

    def read(value: Any) -> str:
        if value not in words:
            raise ValueError(f"{value!r} is not one of {', '.join(words)}")
        return str(value)

    return read


def at_least(least: float, kind: type[int] | type[float] = float) -> Callable[[Any], Any]:
    """Return a parser for an argument that must be at least ``least``; with ``int``, a whole number."""

    def read(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int if kind is int else (int, float)):
            raise ValueError(f"{value!r} is not a{' whole' if kind is int else ''} number")  # noqa: TRY004
        if value < least:
            raise ValueError(f"{value!r} is less than {least}")
        return value

    return read


def text(value: Any) -> str:
    """Read an argument that is text; anything else is a `ValueError`."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not text")  # noqa: TRY004
    return value


def texts(value: Any) -> list[str]:
    """Read an argument that is one or several texts; anything else is a `ValueError` or `TypeError`."""
    return [text(one) for one in ([value] if isinstance(value, str) else value)]


def place(value: Any) -> Destination:
    """Read an argument that is the URI of a destination."""
    return Destination.parse(text(value))


def mapping(value: Any) -> Mapping[str, Any]:
    """Read an argument that has values by name; anything else is a `ValueError`."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r} has no values by name, as a dict has")  # noqa: TRY004
    return value


def check_value(
    owner: str, name: str, reader: Callable[[Any], object], value: Any, later: Collection[str] = ()
) -> None:
    """Check an argument when a DAG is parsed.

    :param owner: What has the argument, such as a task, for the message.
    :param later: The arguments that are rendered in a run: their templates, and results of tasks, may pass.
    :raises InvalidOption: The reader raises `ValueError` or a refusal.
    """
    # None leaves an argument out; one that is needed is a failed look-up in the DAG file.
    if (name in later and not is_known(value)) or (value is None and name not in _NEEDED):
        return
    try:
        reader(value)
    except (OverflowError, S3CommitError, TypeError, ValueError) as error:
        raise InvalidOption(f"{owner}: {name}: {error}") from error


class CheckedOperator(BaseOperator):
    """Refuses a template with an expression that is None, which would become the text ``None``.

    ``dt={{ partition_key }}`` in a run without a partition key would name the partition ``dt=None``. A
    template that is one expression may be None with native rendering, where it stays None.
    """

    def check(self, **readers: Callable[[Any], object]) -> None:
        """Check arguments when a DAG is parsed; `read` checks rendered templates and the results of tasks.

        :param readers: A parser for each argument, by its name; it raises `ValueError` or a refusal.
        """
        for name, reader in readers.items():
            check_value(f"Task {self.task_id}", name, reader, getattr(self, name), self.template_fields)

    def read(self, name: str, reader: Callable[[Any], T]) -> T:
        """Parse a rendered argument and return the result; an invalid one fails the task without retries."""
        try:
            return reader(getattr(self, name))
        except (OverflowError, TypeError, ValueError) as error:
            raise AirflowFailException(f"Task {self.task_id}: {name}: {error}.") from error

    def require_text(self, *names: str) -> None:
        """Fail the task without retries if an argument is not text in this run, or is needed and None.

        Native rendering turns text such as ``2013_01_05`` into the number 20130105, which cannot be undone.
        """
        for name in ("aws_conn_id", *names):
            value = getattr(self, name)
            if value is None and name in _NEEDED:
                raise AirflowFailException(
                    f"Task {self.task_id}: {name} has no value in this run: check what its template reads."
                )
            if value is not None and not isinstance(value, str):
                raise AirflowFailException(
                    f"Task {self.task_id}: {name} has {value!r} where text is meant. Native rendering turns"
                    " text into numbers: put quotes into the template, as in \"'{{ ds_nodash }}'\"."
                )

    def render_template(
        self, content: Any, context: Context, jinja_env: Environment | None = None, seen_oids: Any = None
    ) -> Any:
        """Render a template, refusing None in text; Airflow calls this for every template field."""
        env: Any = jinja_env or self.get_template_env()
        if not isinstance(env.finalize, _Marking):
            env = env.overlay(finalize=_Marking(env.finalize))
        # Before Airflow 3.3 no context has the key.
        known: Any = context
        if "partition_key" not in context:
            known = {**context, "partition_key": partition_key_of(context)}
        try:
            rendered = super().render_template(content, known, env, seen_oids)
        except _HasNoValue as error:
            raise AirflowFailException(
                f"Task {self.task_id}: {content!r} has an expression without a value in this run. Start the"
                " run with what it names (a partition key, a param, the task whose XCom it reads), or give"
                " it another value: {{ partition_key or params.day }}."
            ) from error
        return None if isinstance(rendered, _NoValue) else rendered


class _HasNoValue(Exception):
    """An expression without a value was about to become text."""


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

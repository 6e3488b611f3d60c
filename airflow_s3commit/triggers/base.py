"""What the triggers have in common: a destination, a connection, and how they are written down."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_s3commit.exceptions import S3CommitError
from airflow_s3commit.hooks.s3_commit import S3CommitHook
from airflow_s3commit.metrics import count_retry
from airflow_s3commit.settings import DEFAULT_POKE_INTERVAL

if TYPE_CHECKING:
    from airflow_s3commit.protocol.records import ManifestRecord
    from airflow_s3commit.sensors.wanted import Outcome
    from airflow_s3commit.xcom import JsonObject

__all__ = ["ManifestTrigger", "failure", "summary_of", "trigger_event"]

#: Seconds for which a look tries again by itself; after that, the next look is due.
_RETRY_DEADLINE = 20.0


class ManifestTrigger(BaseTrigger):
    """A trigger that looks at one destination.

    :param destination: The dataset's directory, ``s3://bucket/prefix/``.
    :param poke_interval: Seconds between two looks.
    :param aws_conn_id: The ``aws`` connection of the store; None means boto3's default chain.
    :param region_name: Overrides the connection's region.
    :param verify: Overrides the connection's check of TLS certificates.
    """

    #: The arguments that a class adds, each of them an attribute of the same name and a plain JSON value.
    arguments: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        *,
        destination: str,
        poke_interval: float = DEFAULT_POKE_INTERVAL,
        aws_conn_id: str | None = S3CommitHook.default_conn_name,
        region_name: str | None = None,
        verify: bool | str | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.destination = destination
        self.poke_interval = poke_interval
        self.aws_conn_id = aws_conn_id
        self.region_name = region_name
        self.verify = verify

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class's path and its arguments, all of them plain JSON values."""
        shared = ("destination", "poke_interval", "aws_conn_id", "region_name", "verify")
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        return path, {name: getattr(self, name) for name in (*self.arguments, *shared)}

    def hook(self) -> S3CommitHook:
        """Return a hook that gives a look up soon: the next one is due before long."""
        return S3CommitHook(
            self.aws_conn_id,
            region_name=self.region_name,
            verify=self.verify,
            retry_deadline=_RETRY_DEADLINE,
            on_retry=count_retry,
        )


def summary_of(manifest: ManifestRecord) -> JsonObject:
    """Return a manifest's summary as an event's payload holds it."""
    from airflow_s3commit.xcom import manifest_summary  # noqa: PLC0415 - keeps DAG parsing light

    return manifest_summary(manifest)


def failure(error: Exception) -> tuple[bool, str, Outcome]:
    """Return whether waiting is over after an error, what it says, and its outcome."""
    from airflow_s3commit.sensors.wanted import outcome_of  # noqa: PLC0415 - keeps DAG parsing light

    outcome: Outcome = outcome_of(error) if isinstance(error, S3CommitError) else "error"
    return outcome != "unavailable", f"{type(error).__name__}: {error}", outcome


def trigger_event(payload: JsonObject) -> TriggerEvent:
    """Return an event with a payload of plain JSON values."""
    return TriggerEvent(payload)  # type: ignore[no-untyped-call]

"""The sensor that waits for *the* manifest, not for any ``_SUCCESS``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue
from airflow.sdk.exceptions import AirflowFailException

from airflow_s3commit.exceptions import AccessDenied, NoSuchBucket, Unavailable
from airflow_s3commit.hooks.s3_commit import S3CommitHook
from airflow_s3commit.links.manifest import ManifestLink
from airflow_s3commit.operators.base import refusals_are_final

if TYPE_CHECKING:
    from collections.abc import Collection

    from airflow.sdk import BaseOperatorLink, Context

    from airflow_s3commit.sensors.wanted import ManifestSearch, Wanted

__all__ = ["S3SuccessManifestSensor"]


class S3SuccessManifestSensor(BaseSensorOperator):
    """Waits until a destination has the manifest that is asked for, and returns its summary.

    A ``_SUCCESS`` is always there from the day before; so at least one of the conditions must be given, and
    all that are given must hold for one and the same manifest. If several fit, the newest is taken. A
    ``_SUCCESS`` of 0 bytes (the classic committer's), or one that another program wrote, is said to be so in
    the log and is not taken for a manifest. A missing bucket, or missing permission, fails the task at once.

    :param destination: The dataset's directory, ``s3://bucket/prefix/``. (templated)
    :param job: The job, as its reference (the output of an `S3CommitSetupOperator`) or its id. (templated)
    :param run_id: The run that committed. (templated)
    :param context: Further facts of that run: ``dag_id``, ``partition_key``, ``logical_date``, … (templated)
    :param newer_than: Commits up to this time don't count: a datetime or ISO 8601 text; without a time zone
        it is UTC. (templated)
    :param partitions: Partitions that the commit brought data to, such as ``dt=2013-01-01``. (templated)
    :param min_files: The least number of files in the manifest. (templated)
    :param search_depth: How many of the newest manifests one look reads at most.
    :param aws_conn_id: The ``aws`` connection of the store; None means boto3's default chain. (templated)
    :param region_name: Overrides the connection's region. (templated)
    :param verify: Overrides the connection's check of TLS certificates. (templated)
    :param kwargs: Everything else that sensors take, such as ``mode`` (``poke`` or ``reschedule``),
        ``poke_interval`` and ``timeout``.
    """

    template_fields: Sequence[str] = (
        "destination",
        "job",
        "run_id",
        "context",
        "newer_than",
        "partitions",
        "min_files",
        "aws_conn_id",
        "region_name",
        "verify",
    )
    operator_extra_links: Collection[BaseOperatorLink] = (ManifestLink(),)
    ui_color = "#f2efe2"

    def __init__(
        self,
        *,
        destination: str,
        job: Any = None,
        run_id: str | None = None,
        context: Mapping[str, str] | None = None,
        newer_than: datetime | str | None = None,
        partitions: Any = None,
        min_files: int | str | None = None,
        search_depth: int = 100,
        aws_conn_id: str | None = S3CommitHook.default_conn_name,
        region_name: str | None = None,
        verify: bool | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        conditions = (job, run_id, context, newer_than, partitions)
        if all(condition is None for condition in conditions):
            raise ValueError(
                f"Sensor {self.task_id} would take any manifest, yesterday's too. Say which one it "
                "waits for: job, run_id, context, newer_than or partitions."
            )
        self.destination = destination
        self.job = job
        self.run_id = run_id
        self.context = context
        self.newer_than = newer_than
        self.partitions = partitions
        self.min_files = min_files
        self.search_depth = search_depth
        self.aws_conn_id = aws_conn_id
        self.region_name = region_name
        self.verify = verify
        self.manifest_uri: str | None = None
        self.endpoint_url: str | None = None

    @cached_property
    def hook(self) -> S3CommitHook:
        """The hook of this task's connection."""
        return S3CommitHook(self.aws_conn_id, region_name=self.region_name, verify=self.verify)

    def poke(self, context: Context) -> PokeReturnValue | bool:  # noqa: ARG002 - Airflow's shape
        """Look once."""
        from airflow_s3commit.xcom import manifest_summary  # noqa: PLC0415 - keeps DAG parsing light

        try:
            with refusals_are_final():
                manifest, seen = self._search.look()
        except (NoSuchBucket, AccessDenied) as error:
            raise AirflowFailException(f"{type(error).__name__}: {error}") from error
        except Unavailable as error:
            self.log.warning("The store turned the look away; looking again later: %s", error)
            return False
        if manifest is None:
            self.log.info("Not yet: %s", seen)
            return False
        summary = manifest_summary(manifest)
        self.manifest_uri = summary["manifest"]
        self.log.info("Found %s", self.manifest_uri)
        return PokeReturnValue(is_done=True, xcom_value=summary)

    @cached_property
    def _search(self) -> ManifestSearch:
        from airflow_s3commit.protocol.destination import Destination  # noqa: PLC0415 - keeps parsing light
        from airflow_s3commit.sensors.wanted import ManifestSearch  # noqa: PLC0415

        destination = Destination.parse(self.destination)
        return ManifestSearch(self.hook.store, destination, self._wanted(), depth=self.search_depth)

    def _wanted(self) -> Wanted:
        from airflow_s3commit.sensors.wanted import Wanted  # noqa: PLC0415 - keeps DAG parsing light

        facts = {name: str(value) for name, value in (self.context or {}).items()}
        if self.run_id:
            facts["run_id"] = self.run_id
        job_id = self.job["job_id"] if isinstance(self.job, Mapping) else self.job
        names = [self.partitions] if isinstance(self.partitions, str) else list(self.partitions or [])
        return Wanted(
            job_id=job_id or None,
            context=facts,
            newer_than=_seconds(self.newer_than),
            min_files=int(self.min_files or 0),
            partitions=frozenset(name.strip("/") for name in names),
        )


def _seconds(moment: datetime | str | None) -> float | None:
    if not moment:
        return None
    known = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    return (known if known.tzinfo else known.replace(tzinfo=UTC)).timestamp()

"""What travels in the Spark conf: which job a Spark application writes for, and where its store is.

Credentials never do: executors take them from their own environment, profile or role.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol.records import JobReference
from airflow_s3commit.store.credentials import plain_endpoint

__all__ = [
    "JobInConf",
    "StoreSettings",
    "committer_conf",
    "job_from_conf",
    "parse_flag",
    "store_from_conf",
    "tasks_have_twins",
]

JOB_ID = "spark.s3commit.job.id"
JOB_DESTINATION = "spark.s3commit.job.destination"
JOB_STAGING = "spark.s3commit.job.staging"
STAGE = "spark.s3commit.stage"
STAGE_ATTEMPT = "spark.s3commit.stage.attempt"
ENDPOINT_URL = "spark.s3commit.endpoint.url"
ENDPOINT_REGION = "spark.s3commit.endpoint.region"
PATH_STYLE = "spark.s3commit.path.style"

#: Spark's own.
SPECULATION = "spark.speculation"

#: The stage of an application that was given none.
DEFAULT_STAGE = "spark"

#: The stage attempt of an application that was given none.
DEFAULT_STAGE_ATTEMPT = "0"

#: Looks one key up in a Spark conf; None where it is not set.
ConfGet: TypeAlias = Callable[[str], str | None]

_FLAGS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """How processes of a Spark application reach the store; None leaves a choice to boto3.

    Attributes:
        endpoint_url: The store's address, if it is not AWS.
        region: Its region.
        path_style: Whether the bucket goes into the path of a request, not into its host name.

    Raises:
        StoreUnsuitable: The address holds a user name or password, or is no URL of a store.

    """

    endpoint_url: str | None = None
    region: str | None = None
    path_style: bool | None = None

    def __post_init__(self) -> None:
        plain_endpoint(self.endpoint_url, "in the Spark conf or among the options")

    def or_else(self, other: StoreSettings) -> StoreSettings:
        """Return these settings, with another's where these leave the choice open."""
        return StoreSettings(
            endpoint_url=self.endpoint_url or other.endpoint_url,
            region=self.region or other.region,
            path_style=other.path_style if self.path_style is None else self.path_style,
        )


@dataclass(frozen=True, slots=True)
class JobInConf:
    """The job, stage and stage attempt that a Spark application writes for."""

    reference: JobReference
    stage: str
    stage_attempt: str


def committer_conf(
    reference: JobReference,
    stage: str,
    stage_attempt: str,
    *,
    endpoint_url: str | None = None,
    region: str | None = None,
    path_style: bool | None = None,
) -> dict[str, str]:
    """Return the Spark conf that makes ``df.write.format("s3commit")`` write for a job and only seal.

    It says which job and where the store is, and holds no credentials: executors find theirs by themselves.
    What ships the package to executors that lack it is `airflow_s3commit.spark.py_files`.

    Args:
        reference: The job, as its set-up returned it.
        stage: Name of this application's part in the job.
        stage_attempt: Which attempt at it this run is: letters and digits, new in each run.
        endpoint_url: The store's address, if it is not AWS.
        region: Its region.
        path_style: Whether the bucket goes into the path of a request; None leaves it to boto3.

    Raises:
        StoreUnsuitable: The address holds a user name or password, or is no URL of a store.

    """
    conf = {
        JOB_ID: reference.job_id,
        JOB_DESTINATION: reference.destination,
        JOB_STAGING: reference.staging,
        STAGE: stage,
        STAGE_ATTEMPT: stage_attempt,
    }
    if endpoint_url:
        conf[ENDPOINT_URL] = plain_endpoint(endpoint_url, "for the Spark conf")
    if region:
        conf[ENDPOINT_REGION] = region
    if path_style is not None:
        conf[PATH_STYLE] = str(path_style).lower()
    return conf


def job_from_conf(get: ConfGet) -> JobInConf | None:
    """Return the job that a conf names, or None where it names none.

    Raises:
        InvalidRecord: It names a job in part.

    """
    found = {key: get(key) for key in (JOB_ID, JOB_DESTINATION, JOB_STAGING)}
    job_id, destination, staging = found.values()
    if not any(found.values()):
        return None
    if not (job_id and destination and staging):
        missing = ", ".join(key for key, value in found.items() if not value)
        raise InvalidRecord(f"the Spark conf names a job but not {missing}; set what committer_conf returns")
    return JobInConf(
        JobReference(job_id=job_id, destination=destination, staging=staging),
        get(STAGE) or DEFAULT_STAGE,
        get(STAGE_ATTEMPT) or DEFAULT_STAGE_ATTEMPT,
    )


def store_from_conf(get: ConfGet) -> StoreSettings:
    """Return what a conf says of the store."""
    path_style = get(PATH_STYLE)
    return StoreSettings(
        endpoint_url=get(ENDPOINT_URL) or None,
        region=get(ENDPOINT_REGION) or None,
        path_style=parse_flag(PATH_STYLE, path_style) if path_style else None,
    )


def tasks_have_twins(get: ConfGet) -> bool:
    """Tell whether Spark may run a second attempt at a slow task beside the first."""
    return parse_flag(SPECULATION, get(SPECULATION) or "false")


def parse_flag(name: str, value: str) -> bool:
    """Read ``true`` or ``false``.

    Raises:
        ValueError: It is neither.

    """
    try:
        return _FLAGS[value.strip().lower()]
    except KeyError:
        raise ValueError(f"{name}={value!r} is neither true nor false") from None

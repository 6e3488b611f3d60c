"""The hook that turns an Airflow connection into a store, jobs, and an address for a Spark conf."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from threading import RLock
from typing import TYPE_CHECKING

from airflow.sdk import BaseHook

from airflow_s3commit.exceptions import AccessDenied, StoreUnsuitable
from airflow_s3commit.settings import DEFAULT_CONNECTION
from airflow_s3commit.store.credentials import StoreAddress, check_keys, is_aws_host, plain_endpoint

if TYPE_CHECKING:
    from airflow.providers.amazon.aws.hooks.s3 import S3Hook
    from airflow.providers.amazon.aws.utils.connection_wrapper import AwsConnectionWrapper

    from airflow_s3commit.exceptions import OutcomeUnknown, Unavailable
    from airflow_s3commit.protocol.job import Job
    from airflow_s3commit.protocol.model.job import JobReference
    from airflow_s3commit.store.base import ObjectStore


__all__ = ["S3CommitHook", "StoreAddress"]

logger = logging.getLogger(__name__)

#: The default connection of Airflow's own operators; where it does not exist, boto3's default chain is used.
AIRFLOWS_DEFAULT = "aws_default"


class S3CommitHook(BaseHook):
    """Connects to the store of an ``aws`` connection, with its role, region, endpoint and ``verify``.

    It uses the Amazon provider's ``S3Hook``, and connects on first use. The extra's ``config_kwargs``
    configures the client (proxies, timeouts, ``max_pool_connections``), not its retries: the store itself
    retries. A missing endpoint comes from ``AWS_ENDPOINT_URL_S3``, ``AWS_ENDPOINT_URL`` or the profile.

    :param aws_conn_id: The ``aws`` connection; None means boto3's default chain.
    :param retry_deadline: Seconds for which one call to the store is retried; None means the store's default.
    :param timeout: Seconds to wait for a response to one request; None means the store's default.
    :param on_retry: Called before each retry with the error of the previous attempt.
    """

    default_conn_name = DEFAULT_CONNECTION

    def __init__(
        self,
        aws_conn_id: str | None = default_conn_name,
        *,
        retry_deadline: float | None = None,
        timeout: float | None = None,
        on_retry: Callable[[OutcomeUnknown | Unavailable], None] | None = None,
    ) -> None:
        super().__init__()
        self.aws_conn_id = aws_conn_id
        self.retry_deadline = retry_deadline
        self.timeout = timeout
        self.on_retry = on_retry
        self._was_noticed = False
        self._lock = RLock()
        self._reader: S3Hook | None = None
        self._aws: S3Hook | None = None
        self._store: ObjectStore | None = None

    @property
    def aws(self) -> S3Hook:
        """The Amazon provider's hook, whose client does not retry requests; the store does.

        :raises AccessDenied: The connection's keys are incomplete or malformed.
        :raises StoreUnsuitable: The endpoint is not a store's URL.
        """
        from airflow_s3commit.store.s3.config import configured_endpoint, made_by_boto3  # noqa: PLC0415

        # Not a cached_property: in Python 3.11 it has one lock for all hooks of the process, so a connection
        # that hangs would hold up the page and the triggerer for all others.
        with self._lock:
            if self._aws is None:
                self._checked_keys()
                # Addressing of buckets and signing of bodies depend on the endpoint.
                hook, given = self._hook_for(self._given_endpoint), self._given_endpoint
                client = made_by_boto3(lambda: hook.conn, self._source)
                endpoint = configured_endpoint(client) if given is None else None
                if endpoint is not None:
                    hook = self._hook_for(endpoint)
                    made_by_boto3(lambda: hook.conn, self._source)
                self._aws = hook
            return self._aws

    @property
    def store(self) -> ObjectStore:
        """The connection's store."""
        from airflow_s3commit.store.execute import RetryPolicy  # noqa: PLC0415
        from airflow_s3commit.store.s3.config import made_by_boto3  # noqa: PLC0415
        from airflow_s3commit.store.s3.store import S3Store  # noqa: PLC0415

        with self._lock:
            if self._store is None:
                policy = RetryPolicy(on_retry=self._noticed)
                if self.retry_deadline is not None:
                    policy = replace(policy, deadline=self.retry_deadline)
                client, source = self.aws.conn, self._source
                self._store = made_by_boto3(lambda: S3Store(client, retry=policy, origin=source), source)
            return self._store

    def job(self, reference: Mapping[str, str] | JobReference) -> Job:
        """Return the job that a reference, the output of `S3CommitSetupOperator`, names. Sends no request."""
        from airflow_s3commit.protocol.job import Job  # noqa: PLC0415
        from airflow_s3commit.protocol.model.job import JobReference  # noqa: PLC0415

        named = reference if isinstance(reference, JobReference) else JobReference.from_dict(reference)
        return Job.at(self.store, named)

    @property
    def address(self) -> StoreAddress:
        """The store's address for a Spark configuration, without credentials.

        If the connection has no endpoint, it comes from this process's environment or profile.
        """
        from airflow_s3commit.store.s3.config import configured_endpoint  # noqa: PLC0415

        return StoreAddress(
            endpoint_url=self._given_endpoint or configured_endpoint(self.aws.conn),
            region=self._plain.region_name,
            path_style=_path_style(self._plain),
        )

    @contextmanager
    def credentials_in_environment(self) -> Iterator[None]:
        """Put the connection's keys into the environment for programs started in the ``with`` block.

        This process's environment has the keys during the block, and programs inherit them. No argument list,
        Spark configuration or rendered template contains them. A connection without keys of its own (a role,
        a profile, an instance's identity) changes nothing: programs use boto3's default chain.
        """
        keys = self._explicit_keys()
        before = {name: os.environ.get(name) for name in keys}
        try:
            _set_environment(keys)
            yield
        finally:
            _set_environment(before)

    @property
    def _plain(self) -> S3Hook:
        """The provider's hook through which the connection is read, and has been; it never makes a client."""
        from airflow.providers.amazon.aws.hooks.s3 import S3Hook  # noqa: PLC0415 - keeps DAG parsing light

        from airflow_s3commit.store.s3.config import made_by_boto3  # noqa: PLC0415

        with self._lock:
            if self._reader is None:
                reader = S3Hook(aws_conn_id=self.aws_conn_id)
                named = f"the connection {self.aws_conn_id!r} (config_kwargs and service_config are objects)"
                made_by_boto3(lambda: reader.conn_config.get_service_endpoint_url("s3"), named)
                self._reader = reader
            return self._reader

    def _noticed(self, error: OutcomeUnknown | Unavailable) -> None:
        """Log the first failure that is retried: retries can take a minute, and log nothing themselves."""
        if not self._was_noticed:
            self._was_noticed = True
            logger.warning("Trying again: %s", error)
        if self.on_retry is not None:
            self.on_retry(error)

    @property
    def _source(self) -> str:
        """Where address and credentials come from, for messages."""
        if self.aws_conn_id is None:
            return "boto3's default chain"
        missing = not self._plain.conn_config
        return f"the connection {self.aws_conn_id!r}" + (", which does not exist" if missing else "")

    @property
    def _given_endpoint(self) -> str | None:
        """The connection's endpoint; None if it has none. A missing connection is `AccessDenied`."""
        known = self._plain.conn_config
        if not known and self.aws_conn_id not in {None, AIRFLOWS_DEFAULT}:
            raise AccessDenied(
                f"the connection {self.aws_conn_id!r} does not exist in Airflow: create it, or name another"
                " one as aws_conn_id (None means boto3's default chain)"
            )
        endpoint = str(known.get_service_endpoint_url("s3") or "") or None
        if endpoint is None and known:
            self._refuse_host(known)
        return plain_endpoint(endpoint, f"of {self._source}")

    def _refuse_host(self, known: AwsConnectionWrapper) -> None:
        """Raise `StoreUnsuitable` if the connection has a store's address as host, which Airflow ignores."""
        host = str(self.get_connection(str(self.aws_conn_id)).host or known.extra_config.get("host") or "")
        if host and not is_aws_host(host):
            shown = host.rpartition("@")[2]
            raise StoreUnsuitable(
                f"the connection {self.aws_conn_id!r} has {shown!r} as its host, which Airflow does not read,"
                " so requests would go to AWS: put the store's URL into the connection's extra, as"
                ' {"endpoint_url": "https://…"}, and clear the host'
            )

    def _hook_for(self, endpoint_url: str | None) -> S3Hook:
        from airflow.providers.amazon.aws.hooks.s3 import S3Hook  # noqa: PLC0415

        from airflow_s3commit.store.s3.config import client_config  # noqa: PLC0415

        config = client_config(
            endpoint_url,
            path_style=_path_style(self._plain),
            timeout=self.timeout,
            given=self._plain.conn_config.botocore_config,
        )
        return S3Hook(aws_conn_id=self.aws_conn_id, config=config)

    def _checked_keys(self) -> AwsConnectionWrapper:
        """Return the connection, after checking that its keys are usable."""
        connection = self._plain.conn_config
        key = connection.aws_access_key_id or connection.login
        if bool(key) != bool(connection.aws_secret_access_key or connection.password):
            raise AccessDenied(f"the connection {self.aws_conn_id!r} has only one of login and password")
        check_keys(
            connection.aws_access_key_id,
            connection.aws_secret_access_key,
            connection.aws_session_token,
            f"of the connection {self.aws_conn_id!r}",
        )
        return connection

    def _explicit_keys(self) -> dict[str, str | None]:
        connection = self._checked_keys()
        if not connection.aws_access_key_id or connection.role_arn:
            return {}
        return {
            "AWS_ACCESS_KEY_ID": connection.aws_access_key_id,
            "AWS_SECRET_ACCESS_KEY": connection.aws_secret_access_key,
            "AWS_SESSION_TOKEN": connection.aws_session_token,
        }


def _set_environment(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _path_style(hook: S3Hook) -> bool | None:
    """Return the connection's ``config_kwargs.s3.addressing_style`` as a flag; None if it has none."""
    configured = hook.conn_config.extra_config.get("config_kwargs") or {}
    style = (configured.get("s3") or {}).get("addressing_style")
    return None if style in {None, "auto"} else style == "path"

"""What of a client's settings its connections are made with, where libcurl makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from botocore.httpsession import get_cert_path

from airflow_s3commit.store.curl import is_able
from airflow_s3commit.store.line import LineSettings

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

__all__ = ["Unfit", "settings_of"]

#: Seconds that stand for no limit: a day.
NEVER = 86_400.0

#: An attempt may take as long as connecting and this many of the longest silences. By default five minutes,
#: in which the largest of what is read, a pendingset of 50 MiB, comes at 170 kB a second.
SILENCES = 5


class Unfit(Exception):
    """This client's requests can only be sent by itself; the message says why."""


def settings_of(client: S3Client) -> LineSettings:
    """Return how a client's connections are made.

    Raises:
        Unfit: It has settings that are not carried over, or libcurl is too old.

    """
    config: Any = client.meta.config
    if not is_able():
        raise Unfit("this libcurl is too old")
    if config.proxies or config.client_cert:
        raise Unfit("it has a proxy or a certificate of its own")
    # There is no public way to ask; where this one ends, so does the fast path, and nothing else.
    session = getattr(getattr(client, "_endpoint", None), "http_session", None)
    verify = getattr(session, "_verify", None)
    if verify is None:
        raise Unfit("its authorities are not known")
    authorities = get_cert_path(verify) if verify else None
    connect, silent = _seconds(config.connect_timeout), _seconds(config.read_timeout)
    return LineSettings(authorities, connect, silent, connect + SILENCES * silent)


def _seconds(timeout: float | None) -> float:
    return NEVER if timeout is None else float(timeout)

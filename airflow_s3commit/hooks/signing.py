"""The key that records are signed with, from the Airflow connection that the installation names for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseHook

from airflow_s3commit.exceptions import InvalidOption
from airflow_s3commit.settings import SIGNING_CONNECTION

if TYPE_CHECKING:
    from airflow_s3commit.protocol.signing import Signer

__all__ = ["configured_signer"]


def configured_signer() -> Signer | None:
    """Return who signs; None if ``[s3commit] signing_conn_id`` names no connection.

    The connection's password holds the keys; or its extra ``kms_key_id`` names a key of KMS, to which the
    rest of the connection, of the type ``aws``, leads.

    :raises InvalidOption: The connection holds no key, or one of less than 32 bytes.
    """
    from airflow_s3commit.protocol.signing import HmacSigner  # noqa: PLC0415 - keeps DAG parsing light

    if SIGNING_CONNECTION is None:
        return None
    connection = BaseHook.get_connection(SIGNING_CONNECTION)
    key_id = connection.extra_dejson.get("kms_key_id")
    if key_id:
        return _of_kms(SIGNING_CONNECTION, str(key_id))
    try:
        return HmacSigner.of_text(connection.password or "")
    except InvalidOption as error:
        raise InvalidOption(f"the password of the connection {SIGNING_CONNECTION!r}: {error}") from None


def _of_kms(conn_id: str, key_id: str) -> Signer:
    from airflow.providers.amazon.aws.hooks.base_aws import AwsBaseHook  # noqa: PLC0415

    from airflow_s3commit.store.connection import made_by_boto3  # noqa: PLC0415
    from airflow_s3commit.store.kms import KmsSigner  # noqa: PLC0415

    hook = AwsBaseHook(aws_conn_id=conn_id, client_type="kms")
    return KmsSigner(made_by_boto3(lambda: hook.conn, f"the connection {conn_id!r}"), key_id)

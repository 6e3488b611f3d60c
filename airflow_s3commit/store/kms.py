"""Signing with a key that never leaves AWS KMS."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from airflow_s3commit.store.errors import CLIENT_ERRORS, Request, translate

__all__ = ["KmsSigner"]

_ALGORITHM = "HMAC_SHA_256"
_NOT_ITS_MAC = "KMSInvalidMacException"


class _KeyRequest(Request):
    """A request for a key, not for a bucket."""

    def __str__(self) -> str:
        return f"{self.operation} with the key {self.bucket}"

    @property
    def permission(self) -> str:
        return f"kms:{self.operation}"


class KmsSigner:
    """Signs with an HMAC key of KMS. Rotation is the key's own, or an alias that is pointed to another key.

    Args:
        client: A boto3 client for ``kms``.
        key_id: Id, ARN or alias of a key of the type ``HMAC_256``.

    """

    def __init__(self, client: Any, key_id: str) -> None:
        self._client = client
        self._key_id = key_id

    def sign(self, message: bytes) -> str:
        """Return the signature of a message in Base64.

        Raises:
            S3CommitError: KMS could not be asked, or refused.

        """
        try:
            answer = self._client.generate_mac(KeyId=self._key_id, MacAlgorithm=_ALGORITHM, Message=message)
        except CLIENT_ERRORS as error:
            raise translate(error, _KeyRequest("GenerateMac", self._key_id)) from error
        return base64.b64encode(answer["Mac"]).decode()

    def verify(self, message: bytes, signature: str) -> bool:
        """Tell whether the key made a signature.

        Raises:
            S3CommitError: KMS could not be asked, or refused to say.

        """
        try:
            mac = base64.b64decode(signature, validate=True)
            answer = self._client.verify_mac(
                KeyId=self._key_id, MacAlgorithm=_ALGORITHM, Message=message, Mac=mac
            )
        except (binascii.Error, ValueError):
            return False
        except CLIENT_ERRORS as error:
            if getattr(error, "response", {}).get("Error", {}).get("Code") == _NOT_ITS_MAC:
                return False
            raise translate(error, _KeyRequest("VerifyMac", self._key_id)) from error
        return bool(answer["MacValid"])

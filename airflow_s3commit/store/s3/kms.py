"""Signing records with a key that never leaves AWS KMS."""

from __future__ import annotations

import base64
from typing import Any

from airflow_s3commit.store.s3.errors import translate
from airflow_s3commit.store.s3.request import Request

_ALGORITHM = "HMAC_SHA_256"
_INVALID_MAC = "KMSInvalidMacException"


class _KeyRequest(Request):
    """A request that uses a KMS key instead of a bucket."""

    def __str__(self) -> str:
        return f"{self.operation} with the key {self.bucket}"

    @property
    def permission(self) -> str:
        return f"kms:{self.operation}"


class KmsSigner:
    """Sign and verify records with an HMAC key of AWS KMS; safe to use from several threads.

    Each method sends one request, is repeatable, and retries only as the client does. A signature verifies
    only with the key that made it: once an alias names another key, earlier signatures fail.

    Args:
        client: A boto3 client for ``kms``.
        key_id: Id, ARN or alias of a key of type ``HMAC_256``.

    """

    def __init__(self, client: Any, key_id: str) -> None:
        self._client = client
        self._key_id = key_id

    def sign(self, message: bytes) -> str:
        """Return the signature of a message in Base64.

        Args:
            message: The message, of at most 4,096 bytes (KMS's limit).

        Raises:
            AccessDenied: The credentials may not use the key.
            Unavailable: KMS could not be reached, or throttled the request.
            StoreRejected: KMS refused the request.

        """
        try:
            response = self._client.generate_mac(KeyId=self._key_id, MacAlgorithm=_ALGORITHM, Message=message)
        except Exception as error:
            raise translate(error, _KeyRequest("GenerateMac", self._key_id)) from error
        return base64.b64encode(response["Mac"]).decode()

    def verify(self, message: bytes, signature: str) -> bool:
        """Return whether the key made this signature; False too for text that is not Base64.

        Args:
            message: The signed message.
            signature: Its signature in Base64.

        Raises:
            AccessDenied: The credentials may not use the key.
            Unavailable: KMS could not be reached, or throttled the request.
            StoreRejected: KMS refused the request.

        """
        try:
            mac = base64.b64decode(signature, validate=True)
        except ValueError:
            return False
        try:
            response = self._client.verify_mac(
                KeyId=self._key_id, MacAlgorithm=_ALGORITHM, Message=message, Mac=mac
            )
        except Exception as error:
            if getattr(error, "response", {}).get("Error", {}).get("Code") == _INVALID_MAC:
                return False
            raise translate(error, _KeyRequest("VerifyMac", self._key_id)) from error
        return bool(response["MacValid"])

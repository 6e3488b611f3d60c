"""Signing with a key of KMS, on moto's KMS."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto import mock_aws

from airflow_s3commit.exceptions import S3CommitError
from airflow_s3commit.store.s3.kms import KmsSigner


@pytest.fixture
def kms(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a client of an account with no key."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    with mock_aws():
        yield boto3.client("kms", "eu-west-1")


def new_key(kms: Any) -> str:
    """Make an HMAC key and return its id."""
    made = kms.create_key(KeyUsage="GENERATE_VERIFY_MAC", KeySpec="HMAC_256")
    return str(made["KeyMetadata"]["KeyId"])


def test_a_signature_is_of_one_message_and_one_key(kms: Any) -> None:
    """It verifies for its message by its key; another message, key or text does not."""
    signer, other = KmsSigner(kms, new_key(kms)), KmsSigner(kms, new_key(kms))
    signature = signer.sign(b"message")
    assert signer.verify(b"message", signature)
    assert not signer.verify(b"massage", signature)
    assert not other.verify(b"message", signature)
    assert not signer.verify(b"message", other.sign(b"message"))
    assert not signer.verify(b"message", "no base64!")


def test_a_key_that_is_not_there_is_an_error_of_ours(kms: Any) -> None:
    """Not being able to ask is no "no": both ways raise, and name the key."""
    missing = KmsSigner(kms, "alias/nothing")
    for ask in (lambda: missing.sign(b"m"), lambda: missing.verify(b"m", "c2lnbmF0dXJl")):
        with pytest.raises(S3CommitError, match="with the key alias/nothing"):
            ask()


def test_a_mistake_is_no_invalid_signature(kms: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the call, of whatever kind, does not make a signature another's."""

    def fail(**_: object) -> None:
        raise ValueError("of the call")

    monkeypatch.setattr(kms, "verify_mac", fail)
    with pytest.raises(ValueError, match="of the call"):
        KmsSigner(kms, "alias/any").verify(b"message", "c2lnbmF0dXJl")

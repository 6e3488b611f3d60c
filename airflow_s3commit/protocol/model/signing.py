"""Signatures of the records that a commit depends on.

Anyone who may write to a prefix may write a record there. A signature proves that the writer holds a key: the
orchestrator's tasks do, Spark's drivers and executors do not.

The signature covers the bytes of the object, so that versions with more or fewer fields can check each
other's records: ``signature`` is the last field of a record, and the signed message is the object's bytes
with ``null`` in its place, under the name of the record's type. A record names its job, destination and
staging, so that it cannot be moved.
"""

from __future__ import annotations

import hmac
from typing import Protocol, TypeVar

import msgspec
from msgspec import Struct

from airflow_s3commit.exceptions import InvalidOption, SignatureRefused
from airflow_s3commit.protocol.model.codec import sha256

_DOMAIN = b"airflow-s3commit signature 1"

#: How a record ends that is not signed.
_UNSIGNED = b'"signature":null}'

#: HMAC-SHA-256 with a shorter key is weaker than its digest.
_MIN_KEY_BYTES = 32

R = TypeVar("R", bound=Struct)


class Signer(Protocol):
    """Signs messages, and verifies signatures."""

    def sign(self, message: bytes) -> str:
        """Return the signature of ``message``, in characters that JSON does not escape."""
        ...

    def verify(self, message: bytes, signature: str) -> bool:
        """Return whether ``signature`` is valid for ``message``, by any accepted key."""
        ...


class HmacSigner:
    """Signs with HMAC-SHA-256.

    Args:
        keys: The first one signs; all of them verify. To rotate, put the new key before the old one until no
            job signed with the old one is left.

    Raises:
        InvalidOption: There is no key, or a key has less than 32 bytes.

    """

    def __init__(self, *keys: bytes) -> None:
        if not keys or min(map(len, keys)) < _MIN_KEY_BYTES:
            raise InvalidOption(f"a signing key is missing, or has less than {_MIN_KEY_BYTES} bytes")
        self._keys = keys

    @classmethod
    def of_text(cls, text: str) -> HmacSigner:
        """Return a signer for keys given as text.

        Args:
            text: The keys, separated by white space.

        Raises:
            InvalidOption: There is no key, or one has less than 32 bytes.

        """
        return cls(*(key.encode() for key in text.split()))

    def __repr__(self) -> str:
        """Return a text without the keys."""
        return f"<{type(self).__name__}>"

    def sign(self, message: bytes) -> str:
        """Return the signature of ``message`` by the first key, in hexadecimal."""
        return hmac.digest(self._keys[0], message, "sha256").hex()

    def verify(self, message: bytes, signature: str) -> bool:
        """Return whether one of the keys made ``signature`` for ``message``."""
        made = [hmac.digest(key, message, "sha256").hex() for key in self._keys]
        return any(hmac.compare_digest(one.encode(), signature.encode()) for one in made)


def sign(record: R, signer: Signer | None) -> R:
    """Return a record with its signature; without a signer, the record as it is."""
    if signer is None:
        return record
    bare = msgspec.structs.replace(record, signature=None)
    message = _message(type(record), msgspec.json.encode(bare))
    return msgspec.structs.replace(record, signature=signer.sign(message))


def check_signature(signer: Signer, record: Struct, body: bytes, where: str) -> None:
    """Raise unless one of the signer's keys signed a record.

    Args:
        signer: The keys.
        record: The record, as it was read.
        body: The bytes it was read from.
        where: Its URI, for the message.

    Raises:
        SignatureRefused: It has no signature, or an invalid one.

    """
    signature: str | None = getattr(record, "signature", None)
    if signature is None:
        raise SignatureRefused(
            f"{where} is not signed, and this process acts on signed records only; if the job was set up"
            " before signing was turned on, end it without a signing key"
        )
    end = b'"signature":"' + signature.encode() + b'"}'
    bare = body.removesuffix(end) + _UNSIGNED
    if not body.endswith(end) or not signer.verify(_message(type(record), bare), signature):
        raise SignatureRefused(
            f"{where} has another signature than its bytes and this process's signing key make: it was"
            " changed, or signed with a key that is not given here"
        )


def _message(kind: type[Struct], bare: bytes) -> bytes:
    # Short for a record of any size: a key service accepts about 4,000 bytes.
    return b"\0".join((_DOMAIN, kind.__name__.encode(), sha256(bare).encode()))
